//! The master's gRPC service.

use std::net::SocketAddr;
use std::sync::Arc;

use percolator_server::Folder;
use percolator_wire::v1::master_server::Master;
use percolator_wire::{check_cluster, v1};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::convert::{millis, text};
use crate::leadership::NetworkServing;
use crate::runner::RequestError;
use crate::runner_host::NetworkRunner;

/// The master's gRPC service: each request goes to the directory that is served.
pub(crate) struct Service {
    serving: Arc<NetworkServing>,
    folder: Arc<Folder>,
    /// This process' name.
    server: String,
    metrics_address: Option<SocketAddr>,
}

impl Service {
    pub(crate) fn new(
        serving: Arc<NetworkServing>,
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

    /// The folder is the cluster's before anybody is answered.
    fn check_cluster(&self, metadata: &MetadataMap) -> Result<(), Status> {
        check_cluster(metadata, self.folder.cluster_id().as_deref())
    }

    /// Answers a request that waits for no tablet server.
    async fn answer<Q, R, F>(
        &self,
        request: Request<Q>,
        answer: impl FnOnce(Arc<NetworkRunner>, Q) -> F,
    ) -> Result<Response<R>, Status>
    where
        F: Future<Output = Result<R, RequestError>>,
    {
        self.check_cluster(request.metadata())?;
        respond(self.serving.runner()?, request, answer).await
    }

    /// Answers a request that may wait for tablet servers. It stays with the directory that it began with: another one is of another
    /// term.
    async fn finish<Q, R, F>(
        &self,
        request: Request<Q>,
        answer: impl FnOnce(Arc<NetworkRunner>, Q) -> F,
    ) -> Result<Response<R>, Status>
    where
        F: Future<Output = Result<R, RequestError>>,
    {
        self.check_cluster(request.metadata())?;
        let (runner, _waiting) = self.serving.runner_to_wait()?;
        respond(runner, request, answer).await
    }

    /// Adds what the directory doesn't know of the masters themselves.
    fn add_processes(&self, response: &mut v1::DirectoryResponse) {
        response.master.clone_from(&self.server);
        response.master_metrics_address = text(self.metrics_address);
        if let Some(candidate) = self.serving.candidate() {
            let host = candidate.host();
            host.show_standbys(response);
            response.master_takeover_ms = host.last_takeover().map(millis);
        }
    }
}

async fn respond<Q, R, F>(
    runner: Arc<NetworkRunner>,
    request: Request<Q>,
    answer: impl FnOnce(Arc<NetworkRunner>, Q) -> F,
) -> Result<Response<R>, Status>
where
    F: Future<Output = Result<R, RequestError>>,
{
    Ok(Response::new(answer(runner, request.into_inner()).await?))
}

#[tonic::async_trait]
impl Master for Service {
    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        self.answer(request, NetworkRunner::heartbeat).await
    }

    async fn locate(
        &self,
        request: Request<v1::LocateRequest>,
    ) -> Result<Response<v1::LocateResponse>, Status> {
        self.answer(request, NetworkRunner::locate).await
    }

    async fn directory(
        &self,
        request: Request<v1::DirectoryRequest>,
    ) -> Result<Response<v1::DirectoryResponse>, Status> {
        let is_whole = !request.get_ref().oracles_only;
        let mut response = self.answer(request, NetworkRunner::directory).await?;
        if is_whole {
            self.add_processes(response.get_mut());
        }
        Ok(response)
    }

    async fn session(
        &self,
        request: Request<v1::SessionRequest>,
    ) -> Result<Response<v1::SessionResponse>, Status> {
        self.answer(request, NetworkRunner::session).await
    }

    async fn gc_status(
        &self,
        request: Request<v1::GcStatusRequest>,
    ) -> Result<Response<v1::GcStatusResponse>, Status> {
        self.answer(request, NetworkRunner::gc_status).await
    }

    async fn set_gc(
        &self,
        request: Request<v1::SetGcRequest>,
    ) -> Result<Response<v1::SetGcResponse>, Status> {
        self.answer(request, NetworkRunner::set_gc).await
    }

    async fn introduce_proxy(
        &self,
        request: Request<v1::IntroduceProxyRequest>,
    ) -> Result<Response<v1::IntroduceProxyResponse>, Status> {
        self.answer(request, NetworkRunner::introduce_proxy).await
    }

    async fn rebuild(
        &self,
        request: Request<v1::RebuildRequest>,
    ) -> Result<Response<v1::RebuildResponse>, Status> {
        self.answer(request, NetworkRunner::rebuild).await
    }

    async fn transactions(
        &self,
        request: Request<v1::TransactionsRequest>,
    ) -> Result<Response<v1::TransactionsResponse>, Status> {
        self.answer(request, NetworkRunner::transactions).await
    }

    async fn release_gc_lock(
        &self,
        request: Request<v1::ReleaseGcLockRequest>,
    ) -> Result<Response<v1::ReleaseGcLockResponse>, Status> {
        self.answer(request, NetworkRunner::release_gc_lock).await
    }

    async fn drain_servers(
        &self,
        request: Request<v1::DrainServersRequest>,
    ) -> Result<Response<v1::DrainServersResponse>, Status> {
        self.answer(request, NetworkRunner::drain_servers).await
    }

    async fn create_table(
        &self,
        request: Request<v1::CreateTableRequest>,
    ) -> Result<Response<v1::CreateTableResponse>, Status> {
        self.finish(request, NetworkRunner::create_table).await
    }

    async fn delete_table(
        &self,
        request: Request<v1::DeleteTableRequest>,
    ) -> Result<Response<v1::DeleteTableResponse>, Status> {
        self.finish(request, NetworkRunner::delete_table).await
    }

    async fn split_table(
        &self,
        request: Request<v1::SplitTableRequest>,
    ) -> Result<Response<v1::SplitTableResponse>, Status> {
        self.finish(request, NetworkRunner::split_table).await
    }

    async fn merge_table(
        &self,
        request: Request<v1::MergeTableRequest>,
    ) -> Result<Response<v1::MergeTableResponse>, Status> {
        self.finish(request, NetworkRunner::merge_table).await
    }

    async fn move_tablet(
        &self,
        request: Request<v1::MoveTabletRequest>,
    ) -> Result<Response<v1::MoveTabletResponse>, Status> {
        self.finish(request, NetworkRunner::move_tablet).await
    }
}
