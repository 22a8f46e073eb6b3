//! Counts the requests to the API server, by how they end.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::{Request, Response};
use percolator_telemetry::IntCounterVec;
use tower::{Layer, Service};

/// Counts by `method` and `result`.
#[derive(Clone, Debug)]
pub(crate) struct Calls(pub(crate) IntCounterVec);

impl<S> Layer<S> for Calls {
    type Service = CountedService<S>;

    fn layer(&self, api_server: S) -> CountedService<S> {
        CountedService {
            api_server,
            calls: self.clone(),
        }
    }
}

/// See [`Calls`].
#[derive(Clone, Debug)]
pub(crate) struct CountedService<S> {
    api_server: S,
    calls: Calls,
}

impl<S, A, B> Service<Request<A>> for CountedService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.api_server.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let method = request.method().clone();
        let Calls(counters) = self.calls.clone();
        let response = self.api_server.call(request);
        Box::pin(async move {
            let response = response.await;
            let result = match &response {
                Ok(response) if response.status().is_client_error() => "refused",
                Ok(response) if !response.status().is_server_error() => "ok",
                _ => "failed",
            };
            counters.with_label_values(&[method.as_str(), result]).inc();
            response
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn requests_are_counted_by_how_they_end() {
        let metrics = Metrics::new().unwrap();
        let calls = Calls(metrics.requests.clone());
        for code in [200, 201, 101, 404, 409, 500, 0] {
            let api_server = tower::service_fn(move |_: Request<()>| {
                let answer = Response::builder().status(code).body(());
                std::future::ready(answer.map_err(|_| "no answer"))
            });
            let request = Request::get("/").body(()).unwrap();
            let _ = calls.layer(api_server).oneshot(request).await;
        }
        let count = |result| metrics.requests.with_label_values(&["GET", result]).get();
        assert_eq!(["ok", "refused", "failed"].map(count), [3, 2, 2]);
    }
}
