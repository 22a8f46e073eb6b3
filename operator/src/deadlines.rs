//! A timeout of every request to the API server but watches: a reconcile would wait for ever without it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes};
use hyper::{Request, Response};
use tower::{BoxError, Layer, Service};

use crate::watches::is_watch;

/// How long a request and its whole response may take. The API server cancels a request after 60 s; an admission webhook may take
/// 30 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);

/// Ends requests without a response in time, but no watches: see `crate::watches`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines;

impl<S> Layer<S> for Deadlines {
    type Service = DeadlineService<S>;

    fn layer(&self, api_server: S) -> DeadlineService<S> {
        DeadlineService { api_server }
    }
}

/// See [`Deadlines`].
#[derive(Clone, Debug)]
pub(crate) struct DeadlineService<S> {
    api_server: S,
}

type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

impl<S, A, B> Service<Request<A>> for DeadlineService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.api_server.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let is_watch = is_watch(request.uri());
        let what = format!("{} {}", request.method(), request.uri().path());
        let response = self.api_server.call(request);
        Box::pin(async move {
            if is_watch {
                let response = response.await.map_err(Into::into)?;
                return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()));
            }
            let whole = async {
                let (head, body) = response.await.map_err(Into::into)?.into_parts();
                let body = body.collect().await.map_err(Into::into)?.to_bytes();
                let body = Full::new(body).map_err(|never| match never {});
                Ok(Response::from_parts(head, body.boxed_unsync()))
            };
            let in_time = tokio::time::timeout(REQUEST_TIMEOUT, whole).await;
            in_time.unwrap_or_else(|_| {
                let seconds = REQUEST_TIMEOUT.as_secs();
                Err(format!("no answer to {what} within {seconds} s").into())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tower::ServiceExt as _;

    use super::*;

    type Part = Result<Frame<Bytes>, Infallible>;

    /// An answer whose body never ends.
    async fn begun(
        _: Request<()>,
    ) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
        let first: Part = Ok(Frame::data(Bytes::from_static(b"{")));
        let parts = futures_util::stream::once(async { first });
        let parts = futures_util::StreamExt::chain(parts, futures_util::stream::pending());
        Ok(Response::new(StreamBody::new(Box::pin(parts))))
    }

    fn asked(path: &str) -> Request<()> {
        Request::get(path).body(()).expect("a request")
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_ends() {
        let silent =
            |_: Request<()>| std::future::pending::<Result<Response<Full<Bytes>>, BoxError>>();
        let api_server = Deadlines.layer(tower::service_fn(silent));
        let error = api_server.oneshot(asked("/api/v1/pods")).await;
        let error = error.expect_err("no answer").to_string();
        assert_eq!(error, "no answer to GET /api/v1/pods within 40 s");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_half_way_ends() {
        let api_server = Deadlines.layer(tower::service_fn(begun));
        let answer = api_server.oneshot(asked("/api/v1/pods?limit=1")).await;
        assert!(answer.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_goes_on() {
        let api_server = Deadlines.layer(tower::service_fn(begun));
        let answer = api_server.oneshot(asked("/api/v1/pods?watch=true")).await;
        let mut body = answer.expect("it begins").into_body();
        let first = body.frame().await.expect("a part").expect("a part");
        assert_eq!(first.into_data().expect("data"), "{");
        let more = tokio::time::timeout(10 * REQUEST_TIMEOUT, body.frame()).await;
        assert!(more.is_err(), "nothing ends it");
    }
}
