//! The master's requests.

use std::net::SocketAddr;
use std::sync::Arc;

use percolator_server::Folder;
use percolator_wire::v1::master_server::Master;
use percolator_wire::{check_cluster, v1};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::convert::{self, millis};
use crate::events::Heartbeat;
use crate::leadership::Serving;
use crate::locate::locate;
use crate::pending::Pending;
use crate::requests::{self, Awaited};
use crate::runner::Runner;

/// The most transactions that are named at a time.
const NAMED_MAX: usize = 10_000;

pub(crate) struct Service {
    serving: Arc<Serving>,
    folder: Arc<Folder>,
    /// This process' name.
    server: String,
    metrics_address: Option<SocketAddr>,
}

impl Service {
    pub(crate) fn new(
        serving: Arc<Serving>,
        folder: Arc<Folder>,
        server: String,
        metrics_address: Option<SocketAddr>,
    ) -> Self {
        Self {
            serving,
            folder,
            server,
            metrics_address,
        }
    }

    /// The directory to ask, for a request with this metadata that was read.
    fn runner(&self, metadata: &MetadataMap) -> Result<Arc<Runner>, Status> {
        self.check_cluster(metadata)?;
        self.serving.runner()
    }

    /// The folder is the cluster's before anybody is answered.
    fn check_cluster(&self, metadata: &MetadataMap) -> Result<(), Status> {
        check_cluster(metadata, self.folder.cluster_id().as_deref())
    }

    /// Goes on with a request until it is done. It stays with the directory that it began with: another one is of another
    /// term.
    async fn finish<Q, R, A: Awaited<R>>(
        &self,
        request: Request<Q>,
        go_on: impl FnOnce(Q) -> A,
    ) -> Result<Response<R>, Status> {
        self.check_cluster(request.metadata())?;
        let mut go_on = go_on(request.into_inner());
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
        let runner = self.runner(request.metadata())?;
        let beat = Heartbeat::try_from(request.into_inner())?;
        let heard = runner.step(|directory, now| directory.heartbeat(now, beat));
        let heard = heard.await??;
        Ok(Response::new(heard.into()))
    }

    async fn locate(
        &self,
        request: Request<v1::LocateRequest>,
    ) -> Result<Response<v1::LocateResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let request = request.into_inner();
        let located = runner.look(|directory, _| locate(directory, &request));
        Ok(Response::new(located.await??))
    }

    async fn directory(
        &self,
        request: Request<v1::DirectoryRequest>,
    ) -> Result<Response<v1::DirectoryResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        if request.into_inner().oracles_only {
            let oracles = runner.look(convert::oracles).await??;
            return Ok(Response::new(oracles));
        }
        let mut response = v1::DirectoryResponse {
            master: self.server.clone(),
            master_metrics_address: convert::text(self.metrics_address),
            master_term: runner.term(),
            ..runner.look(convert::directory).await??
        };
        if let Some(candidate) = self.serving.candidate() {
            let host = candidate.host();
            host.show_standbys(&mut response);
            response.master_takeover_ms = host.last_takeover().map(millis);
        }
        Ok(Response::new(response))
    }

    async fn session(
        &self,
        request: Request<v1::SessionRequest>,
    ) -> Result<Response<v1::SessionResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let request = request.into_inner();
        let renewed = runner.step(|directory, now| requests::session(directory, now, request));
        Ok(Response::new(renewed.await??))
    }

    async fn gc_status(
        &self,
        request: Request<v1::GcStatusRequest>,
    ) -> Result<Response<v1::GcStatusResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        Ok(Response::new(runner.look(convert::gc_status).await??))
    }

    async fn set_gc(
        &self,
        request: Request<v1::SetGcRequest>,
    ) -> Result<Response<v1::SetGcResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let request = request.into_inner();
        let set = runner.step(|directory, _| requests::set_gc(directory, &request));
        Ok(Response::new(set.await??))
    }

    async fn introduce_proxy(
        &self,
        request: Request<v1::IntroduceProxyRequest>,
    ) -> Result<Response<v1::IntroduceProxyResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let request = request.into_inner();
        let introduced =
            runner.step(|directory, now| requests::introduce_proxy(directory, now, request));
        Ok(Response::new(introduced.await??))
    }

    async fn rebuild(
        &self,
        request: Request<v1::RebuildRequest>,
    ) -> Result<Response<v1::RebuildResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let request = request.into_inner();
        let rebuilt = runner.step(|directory, now| requests::rebuild(directory, now, request));
        Ok(Response::new(rebuilt.await??))
    }

    async fn transactions(
        &self,
        request: Request<v1::TransactionsRequest>,
    ) -> Result<Response<v1::TransactionsResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let most = usize::try_from(request.into_inner().limit).unwrap_or(usize::MAX);
        let named = runner
            .look(|directory, now| requests::transactions(directory, now, most.min(NAMED_MAX)));
        Ok(Response::new(named.await??))
    }

    async fn release_gc_lock(
        &self,
        request: Request<v1::ReleaseGcLockRequest>,
    ) -> Result<Response<v1::ReleaseGcLockResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let request = request.into_inner();
        let released =
            runner.step(|directory, now| requests::release_gc_lock(directory, now, &request));
        Ok(Response::new(released.await??))
    }

    async fn create_table(
        &self,
        request: Request<v1::CreateTableRequest>,
    ) -> Result<Response<v1::CreateTableResponse>, Status> {
        self.finish(request, requests::create_table).await
    }

    async fn split_table(
        &self,
        request: Request<v1::SplitTableRequest>,
    ) -> Result<Response<v1::SplitTableResponse>, Status> {
        self.finish(request, requests::split_table).await
    }

    async fn merge_table(
        &self,
        request: Request<v1::MergeTableRequest>,
    ) -> Result<Response<v1::MergeTableResponse>, Status> {
        self.finish(request, requests::merge_table).await
    }

    async fn move_tablet(
        &self,
        request: Request<v1::MoveTabletRequest>,
    ) -> Result<Response<v1::MoveTabletResponse>, Status> {
        self.finish(request, requests::move_tablet).await
    }

    async fn drain_servers(
        &self,
        request: Request<v1::DrainServersRequest>,
    ) -> Result<Response<v1::DrainServersResponse>, Status> {
        let runner = self.runner(request.metadata())?;
        let request = request.into_inner();
        let drained =
            runner.step(|directory, now| requests::drain_servers(directory, now, &request));
        Ok(Response::new(drained.await??))
    }

    async fn delete_table(
        &self,
        request: Request<v1::DeleteTableRequest>,
    ) -> Result<Response<v1::DeleteTableResponse>, Status> {
        self.finish(request, requests::delete_table).await
    }
}
