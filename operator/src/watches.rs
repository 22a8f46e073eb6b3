//! Whether all watches still tell: one may stand still without an error, or never begin, as where the definition of the
//! resource is missing. Seen where answers come in, so that no watch is left out.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Bytes};
use hyper::{Method, Request, Response, Uri};
use tower::{BoxError, Layer, Service};

/// The API server ends each watch within five minutes, at the client's own wish, and another one begins.
const SILENCE_MAX: Duration = Duration::from_secs(330);
/// What is watched, as it stands at the end of a path.
const WATCHED: [&str; 11] = [
    "configmaps",
    "deployments",
    "percolatorclusters",
    "persistentvolumeclaims",
    "poddisruptionbudgets",
    "pods",
    "rolebindings",
    "roles",
    "serviceaccounts",
    "services",
    "statefulsets",
];

/// What is known of each watch, by its path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watches {
    books: Arc<Mutex<BTreeMap<String, Watch>>>,
}

#[derive(Debug, Default)]
struct Watch {
    /// When it last brought anything, be it its beginning.
    heard: Option<Instant>,
    /// Why the last request for what it watches failed, if it did.
    failing: Option<String>,
}

impl Watches {
    fn books(&self) -> MutexGuard<'_, BTreeMap<String, Watch>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self, path: &str, now: Instant) {
        if let Some(watch) = self.books().get_mut(path) {
            watch.heard = Some(now);
        }
    }

    fn answered(&self, path: &str, failing: Option<String>) {
        self.books().entry(path.to_owned()).or_default().failing = failing;
    }

    /// A watch that brings nothing any more, though the API server answers, in a sentence: a process that begins anew
    /// may hear again.
    pub(crate) fn silent(&self, now: Instant) -> Option<String> {
        let books = self.books();
        let silent = books.iter().find(|(_, watch)| {
            let silence = watch
                .heard
                .map(|heard| now.saturating_duration_since(heard));
            watch.failing.is_none() && silence.is_some_and(|silence| silence > SILENCE_MAX)
        });
        silent.map(|(path, _)| format!("the watch of {path} has brought nothing for too long"))
    }

    /// What the API server doesn't let us watch, in a sentence: to begin anew is of no use.
    pub(crate) fn failing(&self) -> Option<String> {
        let books = self.books();
        let mut failing = books.iter();
        failing.find_map(|(path, watch)| {
            Some(format!("cannot watch {path}: {}", watch.failing.as_ref()?))
        })
    }
}

impl<S> Layer<S> for Watches {
    type Service = WatchStream<S>;

    fn layer(&self, api_server: S) -> WatchStream<S> {
        WatchStream {
            api_server,
            watches: self.clone(),
        }
    }
}

/// See [`Watches`].
#[derive(Clone, Debug)]
pub(crate) struct WatchStream<S> {
    api_server: S,
    watches: Watches,
}

/// Whether a request is a watch: its answer goes on for ever.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    has(uri, "watch=true")
}

/// Whether the query has a pair that begins so.
fn has(uri: &Uri, start: &str) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with(start))
}

type SeenBody = UnsyncBoxBody<Bytes, BoxError>;

impl<S, A, B> Service<Request<A>> for WatchStream<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<SeenBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.api_server.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let is_watch = is_watch(request.uri());
        // A watch begins with a list by pages; reconciles of clusters list without.
        let is_watched = request.method() == Method::GET
            && (is_watch || has(request.uri(), "limit="))
            && WATCHED.contains(&path.rsplit('/').next().unwrap_or_default());
        let watches = self.watches.clone();
        let answer = self.api_server.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into);
            if is_watched {
                watches.answered(
                    &path,
                    match &answer {
                        Ok(answer) if answer.status().is_success() => None,
                        Ok(answer) => Some(format!("the API server answers {}", answer.status())),
                        Err(error) => Some(error.to_string()),
                    },
                );
            }
            let (head, body) = answer?.into_parts();
            let body = body.map_err(Into::into);
            if !(is_watched && is_watch && head.status.is_success()) {
                return Ok(Response::from_parts(head, body.boxed_unsync()));
            }
            watches.heard(&path, Instant::now());
            let body = body.map_frame(move |frame| {
                watches.heard(&path, Instant::now());
                frame
            });
            Ok(Response::from_parts(head, body.boxed_unsync()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Full;
    use tower::ServiceExt as _;

    use super::*;

    const PODS: &str = "/api/v1/pods";

    /// A request, and what is known after its answer with this code.
    async fn ask(watches: &Watches, path: &str, code: u16) {
        let api_server = tower::service_fn(move |_: Request<()>| {
            let answer = Response::builder().status(code);
            std::future::ready(Ok::<_, Infallible>(
                answer.body(Full::new(Bytes::from_static(b"{}"))).unwrap(),
            ))
        });
        let request = Request::get(path).body(()).unwrap();
        let answer = watches.layer(api_server).oneshot(request).await.unwrap();
        answer.into_body().collect().await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_definition_is_told_of_until_it_is_there() {
        let watches = Watches::default();
        let path = "/apis/percolator.dev/v1alpha1/percolatorclusters";
        ask(&watches, &format!("{path}?limit=100"), 404).await;
        let told = watches.failing().expect("it fails");
        assert!(told.contains(path) && told.contains("404"), "{told}");
        let much_later = Instant::now() + 2 * SILENCE_MAX;
        assert_eq!(
            watches.silent(much_later),
            None,
            "to begin anew is of no use"
        );
        ask(&watches, &format!("{path}?limit=100"), 200).await;
        assert_eq!(watches.failing(), None);
        // What is no watch fails for reasons of its own.
        ask(&watches, "/api/v1/namespaces/n/pods/a", 404).await;
        ask(&watches, "/api/v1/namespaces/n/pods?labelSelector=a", 500).await;
        assert_eq!(watches.failing(), None);
    }

    #[tokio::test]
    async fn a_watch_that_brings_nothing_is_told_of() {
        let watches = Watches::default();
        ask(&watches, PODS, 200).await;
        let before = Instant::now();
        assert_eq!(
            watches.silent(before + 2 * SILENCE_MAX),
            None,
            "no watch has begun"
        );
        ask(
            &watches,
            &format!("{PODS}?&watch=true&resourceVersion=7"),
            200,
        )
        .await;
        assert_eq!(watches.silent(before + SILENCE_MAX), None);
        let later = Instant::now() + SILENCE_MAX + Duration::from_secs(1);
        let told = watches.silent(later).expect("it is silent");
        assert!(told.contains(PODS), "{told}");
        // Lists of the same path, as reconciles of clusters make them, are no sign of the watch.
        ask(&watches, PODS, 200).await;
        assert!(watches.silent(later).is_some());
        watches.heard(PODS, later);
        assert_eq!(watches.silent(later), None);
    }
}
