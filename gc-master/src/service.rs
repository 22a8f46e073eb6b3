//! The master's requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;
use percolator_wire::v1::master_server::Master;
use tonic::{Request, Response, Status};

use crate::convert;
use crate::core::Directory;
use crate::events::{Deletion, Heartbeat, swept_by};
use crate::refusal::Refusal;
use crate::runner::Runner;
use crate::settings::Change;
use crate::truth::TableState;

/// A request about a table waits this long for tablet servers: less than clients wait for an answer, so that
/// they hear whom it waits for. What it began goes on after that.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// The most transactions that are named at a time.
const NAMED_MAX: usize = 10_000;

pub(crate) struct Service {
    runner: Arc<Runner>,
    /// This process' name.
    server: String,
    metrics_address: Option<SocketAddr>,
}

impl Service {
    pub(crate) fn new(
        runner: Arc<Runner>,
        server: String,
        metrics_address: Option<SocketAddr>,
    ) -> Self {
        Self {
            runner,
            server,
            metrics_address,
        }
    }

    /// Begins the table, once the servers that are up had their time to be heard.
    async fn begin(&self, name: &str, cuts: &[Vec<u8>]) -> Result<u32, Status> {
        loop {
            let mut changes = self.runner.changes();
            let begun = self
                .runner
                .step(|directory, now| directory.create_table(now, name, cuts))?;
            match begun {
                Err(Refusal::Settling { until }) => {
                    let until = tokio::time::sleep_until(self.runner.at(until));
                    tokio::select! {
                        () = until => {}
                        _ = changes.changed() => {}
                    }
                }
                begun => return Ok(begun?),
            }
        }
    }

    /// Waits until the table is as wanted.
    async fn wait<R>(
        &self,
        id: u32,
        what: &str,
        wanted: impl Fn(&Directory) -> Option<R>,
    ) -> Result<R, Status> {
        let mut changes = self.runner.changes();
        let reached = async {
            loop {
                let seen = self.runner.look(|directory, _| wanted(directory))?;
                if let Some(result) = seen {
                    return Ok::<_, Status>(result);
                }
                changes
                    .changed()
                    .await
                    .map_err(|_| Status::unavailable("the master is stopping"))?;
            }
        };
        match tokio::time::timeout(WAIT_MAX, reached).await {
            Ok(result) => result,
            Err(_) => {
                let waits_for = self
                    .runner
                    .look(|directory, now| directory.waits_for(id, now))?;
                Err(Status::deadline_exceeded(format!(
                    "{what}: it waits for {waits_for}"
                )))
            }
        }
    }
}

#[tonic::async_trait]
impl Master for Service {
    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let beat = Heartbeat::try_from(request.into_inner())?;
        let heard = self
            .runner
            .step(|directory, now| directory.heartbeat(now, beat))??;
        Ok(Response::new(heard.into()))
    }

    async fn directory(
        &self,
        _: Request<v1::DirectoryRequest>,
    ) -> Result<Response<v1::DirectoryResponse>, Status> {
        Ok(Response::new(v1::DirectoryResponse {
            master: self.server.clone(),
            master_metrics_address: convert::text(self.metrics_address),
            ..self.runner.look(convert::directory)??
        }))
    }

    async fn session(
        &self,
        request: Request<v1::SessionRequest>,
    ) -> Result<Response<v1::SessionResponse>, Status> {
        let request = request.into_inner();
        let renewed = self
            .runner
            .step(|directory, now| directory.session(now, request))??;
        Ok(Response::new(renewed))
    }

    async fn gc_status(
        &self,
        _: Request<v1::GcStatusRequest>,
    ) -> Result<Response<v1::GcStatusResponse>, Status> {
        Ok(Response::new(self.runner.look(convert::gc_status)??))
    }

    async fn set_gc(
        &self,
        request: Request<v1::SetGcRequest>,
    ) -> Result<Response<v1::SetGcResponse>, Status> {
        let v1::SetGcRequest {
            retention_ms,
            paused,
            hold_ms_max,
        } = request.into_inner();
        let change = Change {
            retention: retention_ms.map(Duration::from_millis),
            hold_max: hold_ms_max.map(Duration::from_millis),
            paused,
        };
        let set = self.runner.step(|directory, now| {
            directory.set_collection(now, change)?;
            Ok::<_, Refusal>(convert::gc_settings(directory))
        })??;
        Ok(Response::new(set))
    }

    async fn transactions(
        &self,
        request: Request<v1::TransactionsRequest>,
    ) -> Result<Response<v1::TransactionsResponse>, Status> {
        let most = usize::try_from(request.into_inner().limit).unwrap_or(usize::MAX);
        let named = self
            .runner
            .look(|directory, now| directory.transactions(now, most.min(NAMED_MAX)))??;
        Ok(Response::new(named))
    }

    async fn release_gc_lock(
        &self,
        request: Request<v1::ReleaseGcLockRequest>,
    ) -> Result<Response<v1::ReleaseGcLockResponse>, Status> {
        let start_ts = Timestamp::from_u64(request.into_inner().start_ts);
        let released = self
            .runner
            .step(|directory, now| directory.release(now, start_ts))??;
        Ok(Response::new(released))
    }

    async fn create_table(
        &self,
        request: Request<v1::CreateTableRequest>,
    ) -> Result<Response<v1::CreateTableResponse>, Status> {
        let v1::CreateTableRequest { name, split_at } = request.into_inner();
        let cuts: Vec<Vec<u8>> = split_at.into_iter().map(Vec::from).collect();
        let id = self.begin(&name, &cuts).await?;
        let what = format!("the table {name} is being created, and that goes on by itself");
        let state = |directory: &Directory| directory.table(id).map(|table| table.state);
        self.wait(id, &what, |directory| match state(directory) {
            Some(TableState::Creating) => None,
            Some(TableState::Ready) => Some(Ok(())),
            Some(TableState::Deleting) | None => Some(Err(Status::aborted(format!(
                "the table {name} was deleted while it was being created"
            )))),
        })
        .await??;
        let response = self.runner.look(|directory, _| {
            let truth = directory.truth()?;
            Ok::<_, Refusal>(v1::CreateTableResponse {
                table: directory
                    .table(id)
                    .map(|table| convert::table_info(id, table)),
                tablets: convert::places(truth, id),
            })
        })??;
        Ok(Response::new(response))
    }

    async fn delete_table(
        &self,
        request: Request<v1::DeleteTableRequest>,
    ) -> Result<Response<v1::DeleteTableResponse>, Status> {
        let request = request.into_inner();
        let swept = swept_by(&request);
        let deletion = Deletion::asked(&request, swept.as_ref());
        let id = self
            .runner
            .step(|directory, now| directory.delete_table(now, &deletion))??;
        let name = request.name;
        let what = format!("the table {name} is being deleted, and deleting it again goes on");
        let gone = self
            .wait(id, &what, |directory| match directory.table(id) {
                None => Some(true),
                Some(table) if table.swept => None,
                Some(_) => directory.is_frozen(id).then_some(false),
            })
            .await?;
        let sweep = match gone {
            true => Vec::new(),
            false => self.runner.look(|directory, _| directory.to_sweep())?,
        };
        Ok(Response::new(v1::DeleteTableResponse {
            sweep,
            table: Some(v1::TableInfo {
                id,
                name,
                state: v1::TableState::Deleting.into(),
            }),
            gone,
        }))
    }
}
