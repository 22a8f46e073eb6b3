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
use crate::cuts::{Merging, Splitting};
use crate::events::Heartbeat;
use crate::leadership::Serving;
use crate::locate::locate;
use crate::moves::Moving;
use crate::pending::{Creation, Pending, Removal};
use crate::refusal::Refusal;
use crate::runner::Runner;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The most transactions that are named at a time.
const NAMED_MAX: usize = 10_000;

pub(crate) struct Service {
    serving: Arc<Serving>,
    /// This process' name.
    server: String,
    metrics_address: Option<SocketAddr>,
}

impl Service {
    pub(crate) fn new(
        serving: Arc<Serving>,
        server: String,
        metrics_address: Option<SocketAddr>,
    ) -> Self {
        Self {
            serving,
            server,
            metrics_address,
        }
    }

    /// The directory to ask, for a request that was read.
    fn runner(&self) -> Result<Arc<Runner>, Status> {
        self.serving.runner()
    }

    /// Goes on with a request until it is done. It stays with the directory that it began with: another one is of another
    /// term.
    async fn finish<R>(
        &self,
        mut go_on: impl FnMut(&mut Directory, Duration) -> Result<Pending<R>, Refusal>,
    ) -> Result<Response<R>, Status> {
        let (runner, _waiting) = self.serving.runner_to_wait()?;
        loop {
            let progressed = runner.progressed();
            match runner.step(&mut go_on).await?? {
                Pending::Done(response) => return Ok(Response::new(response)),
                Pending::Wait { until } => {
                    let until = tokio::time::sleep_until(runner.at(until));
                    tokio::select! {
                        () = until => {}
                        () = progressed => {}
                    }
                }
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
        let runner = self.runner()?;
        let heard = runner.step(|directory, now| directory.heartbeat(now, beat));
        let heard = heard.await??;
        Ok(Response::new(heard.into()))
    }

    async fn locate(
        &self,
        request: Request<v1::LocateRequest>,
    ) -> Result<Response<v1::LocateResponse>, Status> {
        let request = request.into_inner();
        let runner = self.runner()?;
        let located = runner.look(|directory, _| locate(directory, &request));
        Ok(Response::new(located.await??))
    }

    async fn directory(
        &self,
        request: Request<v1::DirectoryRequest>,
    ) -> Result<Response<v1::DirectoryResponse>, Status> {
        if request.into_inner().oracles_only {
            let oracles = self.runner()?.look(convert::oracles).await??;
            return Ok(Response::new(oracles));
        }
        let runner = self.runner()?;
        let mut response = v1::DirectoryResponse {
            master: self.server.clone(),
            master_metrics_address: convert::text(self.metrics_address),
            master_term: runner.term(),
            ..runner.look(convert::directory).await??
        };
        if let Some(candidate) = self.serving.candidate() {
            let host = candidate.host();
            response.standby_masters = host.standby_masters(response.masters_expected);
            response.master_takeover_ms = host.last_takeover().map(millis);
        }
        Ok(Response::new(response))
    }

    async fn session(
        &self,
        request: Request<v1::SessionRequest>,
    ) -> Result<Response<v1::SessionResponse>, Status> {
        let request = request.into_inner();
        let runner = self.runner()?;
        let renewed = runner.step(|directory, now| directory.session(now, request));
        Ok(Response::new(renewed.await??))
    }

    async fn gc_status(
        &self,
        _: Request<v1::GcStatusRequest>,
    ) -> Result<Response<v1::GcStatusResponse>, Status> {
        Ok(Response::new(
            self.runner()?.look(convert::gc_status).await??,
        ))
    }

    async fn set_gc(
        &self,
        request: Request<v1::SetGcRequest>,
    ) -> Result<Response<v1::SetGcResponse>, Status> {
        let request = request.into_inner();
        let runner = self.runner()?;
        let set = runner.step(|directory, _| convert::set_gc(directory, &request));
        Ok(Response::new(set.await??))
    }

    async fn introduce_proxy(
        &self,
        request: Request<v1::IntroduceProxyRequest>,
    ) -> Result<Response<v1::IntroduceProxyResponse>, Status> {
        let request = request.into_inner();
        let runner = self.runner()?;
        let introduced = runner.step(|directory, now| directory.introduce_proxy(now, request));
        Ok(Response::new(introduced.await??))
    }

    async fn rebuild(
        &self,
        request: Request<v1::RebuildRequest>,
    ) -> Result<Response<v1::RebuildResponse>, Status> {
        let request = request.into_inner();
        let runner = self.runner()?;
        let rebuilt = runner.step(|directory, now| directory.rebuild(now, &request));
        Ok(Response::new(rebuilt.await??))
    }

    async fn transactions(
        &self,
        request: Request<v1::TransactionsRequest>,
    ) -> Result<Response<v1::TransactionsResponse>, Status> {
        let most = usize::try_from(request.into_inner().limit).unwrap_or(usize::MAX);
        let runner = self.runner()?;
        let named = runner.look(|directory, now| directory.transactions(now, most.min(NAMED_MAX)));
        Ok(Response::new(named.await??))
    }

    async fn release_gc_lock(
        &self,
        request: Request<v1::ReleaseGcLockRequest>,
    ) -> Result<Response<v1::ReleaseGcLockResponse>, Status> {
        let start_ts = Timestamp::from_u64(request.into_inner().start_ts);
        let runner = self.runner()?;
        let released = runner.step(|directory, now| directory.release(now, start_ts));
        Ok(Response::new(released.await??))
    }

    async fn create_table(
        &self,
        request: Request<v1::CreateTableRequest>,
    ) -> Result<Response<v1::CreateTableResponse>, Status> {
        let mut creation = Creation::new(request.into_inner());
        self.finish(move |directory, now| creation.go_on(directory, now))
            .await
    }

    async fn split_table(
        &self,
        request: Request<v1::SplitTableRequest>,
    ) -> Result<Response<v1::SplitTableResponse>, Status> {
        let mut splitting = Splitting::new(request.into_inner());
        self.finish(move |directory, now| splitting.go_on(directory, now))
            .await
    }

    async fn merge_table(
        &self,
        request: Request<v1::MergeTableRequest>,
    ) -> Result<Response<v1::MergeTableResponse>, Status> {
        let mut merging = Merging::new(request.into_inner());
        self.finish(move |directory, now| merging.go_on(directory, now))
            .await
    }

    async fn move_tablet(
        &self,
        request: Request<v1::MoveTabletRequest>,
    ) -> Result<Response<v1::MoveTabletResponse>, Status> {
        let mut moving = Moving::new(request.into_inner());
        self.finish(move |directory, now| moving.go_on(directory, now))
            .await
    }

    async fn drain_servers(
        &self,
        request: Request<v1::DrainServersRequest>,
    ) -> Result<Response<v1::DrainServersResponse>, Status> {
        let request = request.into_inner();
        let runner = self.runner()?;
        let drained =
            runner.step(|directory, now| convert::drain_servers(directory, now, &request));
        Ok(Response::new(drained.await??))
    }

    async fn delete_table(
        &self,
        request: Request<v1::DeleteTableRequest>,
    ) -> Result<Response<v1::DeleteTableResponse>, Status> {
        let mut removal = Removal::new(request.into_inner());
        self.finish(move |directory, now| removal.go_on(directory, now))
            .await
    }
}
