//! Two services of gRPC on one listener.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::Either;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// A service, and a second one that answers requests of its own name.
#[derive(Clone, Debug)]
pub struct Beside<S, T> {
    service: S,
    second: T,
}

impl<S, T> Beside<S, T> {
    /// `second` must always be ready, as generated services are.
    pub fn new(service: S, second: T) -> Self {
        Self { service, second }
    }
}

impl<S, T> Service<http::Request<Body>> for Beside<S, T>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    T: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + NamedService,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, T::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path().strip_prefix('/');
        let name = path.and_then(|path| path.split_once('/'));
        if name.is_some_and(|(name, _)| name == T::NAME) {
            Either::Right(self.second.call(request))
        } else {
            Either::Left(self.service.call(request))
        }
    }
}
