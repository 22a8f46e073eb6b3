//! The standard health service of gRPC (`grpc.health.v1.Health`), beside a server's own: what probes of
//! containers and load balancers ask.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use tonic::body::Body;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::{Service, http};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const PREFIX: &str = "/grpc.health.v1.Health/";

/// What a check asks, by the name of the service in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether the server answers requests: to anyone who names no service, or another one. A server that doesn't for
    /// long may be started again.
    Lives,
    /// Whether it also has everything that it is to have: to anyone who asks for the service `ready`. To start it again
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

/// A service with the health service beside it.
#[derive(Clone)]
pub(crate) struct WithHealth<S> {
    service: S,
    health: HealthServer<HealthService>,
}

impl<S> WithHealth<S> {
    /// `passes` answers each check.
    pub(crate) fn new(service: S, passes: impl Fn(Probe) -> bool + Send + Sync + 'static) -> Self {
        Self {
            service,
            health: HealthServer::new(HealthService(Arc::new(passes))),
        }
    }
}

impl<S> Service<http::Request<Body>> for WithHealth<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future =
        Either<S::Future, <HealthServer<HealthService> as Service<http::Request<Body>>>::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path().starts_with(PREFIX) {
            Either::Right(self.health.call(request))
        } else {
            Either::Left(self.service.call(request))
        }
    }
}

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
