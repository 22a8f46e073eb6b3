//! An injected fault for tests: watches deliver their events with a delay, as from an API server that is far behind. No decision of
//! the operator may depend on when a watch reports a change.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body, Bytes};
use hyper::{Request, Response};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// Delays the events of watches. Lists and other requests have no delay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelayedWatches {
    pub(crate) delay: Duration,
}

impl<S> Layer<S> for DelayedWatches {
    type Service = DelayedWatchService<S>;

    fn layer(&self, api_server: S) -> DelayedWatchService<S> {
        DelayedWatchService {
            api_server,
            delay: self.delay,
        }
    }
}

/// See [`DelayedWatches`].
#[derive(Clone, Debug)]
pub(crate) struct DelayedWatchService<S> {
    api_server: S,
    delay: Duration,
}

type DelayedBody = UnsyncBoxBody<Bytes, BoxError>;

impl<S, A, B> Service<Request<A>> for DelayedWatchService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError> + Send,
{
    type Response = Response<DelayedBody>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.api_server.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|pair| pair == "watch=true");
        let delay = self.delay;
        let response = self.api_server.call(request);
        Box::pin(async move {
            let (head, body) = response.await?.into_parts();
            let body = body.map_err(Into::into);
            let body = if is_watch {
                delayed(body, delay)
            } else {
                body.boxed_unsync()
            };
            Ok(Response::from_parts(head, body))
        })
    }
}

/// The same body, each part of it with the delay.
fn delayed<B>(mut body: B, delay: Duration) -> DelayedBody
where
    B: Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let part = tokio::select! {
                part = body.frame() => part,
                () = sender.closed() => None,
            };
            let is_end = part.is_none();
            if sender.send((Instant::now() + delay, part)).is_err() || is_end {
                return;
            }
        }
    });
    let parts = unfold(receiver, |mut receiver| async move {
        let (at, part) = receiver.recv().await?;
        tokio::time::sleep_until(at).await;
        Some((part?, receiver))
    });
    StreamBody::new(parts).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Full;
    use tower::ServiceExt as _;

    use super::*;

    async fn answer(delay: Duration, path: &str) -> Bytes {
        let api_server = tower::service_fn(|request: Request<()>| async move {
            let text = Bytes::from(request.uri().to_string());
            Ok::<_, Infallible>(Response::new(Full::new(text)))
        });
        let request = Request::get(path).body(()).unwrap();
        let answer = DelayedWatches { delay }.layer(api_server).oneshot(request);
        let body = answer.await.unwrap().into_body();
        body.collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn what_a_watch_tells_comes_late_and_whole() {
        let delay = Duration::from_millis(50);
        let asked = Instant::now();
        let path = "/api/v1/pods?&watch=true&resourceVersion=7";
        assert_eq!(answer(delay, path).await, path);
        assert!(asked.elapsed() >= delay);
    }

    #[tokio::test]
    async fn what_is_asked_for_is_answered_at_once() {
        let delay = Duration::from_secs(1_000_000);
        for path in ["/api/v1/pods?&limit=100", "/api/v1/namespaces/a/pods/b"] {
            assert_eq!(answer(delay, path).await, path);
        }
    }
}
