//! The standard health service of gRPC (`grpc.health.v1.Health`), beside a server's own: what probes of
//! containers and load balancers ask.

use std::pin::Pin;
use std::sync::Arc;

use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// What a check asks, by the name of the service in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether the server answers requests: for a request that names no service, or another one. A server that doesn't for
    /// long may be started again.
    Lives,
    /// Whether it also has all that it needs: for a request that names the service `ready`. To start it again
    /// is of no use.
    Ready,
}

impl Probe {
    fn of(service: &str) -> Self {
        match service {
            "ready" => Self::Ready,
            _ => Self::Lives,
        }
    }
}

/// The health service; `passes` answers each check.
pub(crate) fn health(
    passes: impl Fn(Probe) -> bool + Send + Sync + 'static,
) -> HealthServer<HealthService> {
    let server = HealthServer::new(HealthService(Arc::new(passes)));
    server.max_decoding_message_size(REQUEST_BYTES_MAX)
}

/// A request has the name of a service.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Answers for the whole server.
pub(crate) struct HealthService(Arc<dyn Fn(Probe) -> bool + Send + Sync>);

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = if (self.0)(Probe::of(&request.get_ref().service)) {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        Ok(Response::new(HealthCheckResponse {
            status: status.into(),
        }))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("ask with Check, as often as needed"))
    }
}
