//! Whether all watches still deliver events. A watch may stand still without an error, or never begin, as without the definition of
//! the resource. A layer of the client records the responses, so that no watch is left out.

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

/// How long a watch may deliver nothing. The client asks the API server to end each watch within five minutes, and begins another
/// one.
const EVENT_TIMEOUT: Duration = Duration::from_secs(330);
/// The resources that are watched: the ends of the requests' paths.
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

/// The state of each watch, by its path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watches {
    watches_by_path: Arc<Mutex<BTreeMap<String, Watch>>>,
}

#[derive(Debug, Default)]
struct Watch {
    /// When it began, or last delivered an event.
    last_event: Option<Instant>,
    /// Why the last request of the watch failed, if it did.
    failing: Option<String>,
}

impl Watches {
    fn watches_by_path(&self) -> MutexGuard<'_, BTreeMap<String, Watch>> {
        self.watches_by_path
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn note_event(&self, path: &str, now: Instant) {
        if let Some(watch) = self.watches_by_path().get_mut(path) {
            watch.last_event = Some(now);
        }
    }

    fn note_response(&self, path: &str, failing: Option<String>) {
        self.watches_by_path()
            .entry(path.to_owned())
            .or_default()
            .failing = failing;
    }

    /// A sentence about a watch that delivers nothing any more, though the API server responds. A restart of the process may
    /// help.
    pub(crate) fn standstill(&self, now: Instant) -> Option<String> {
        let watches_by_path = self.watches_by_path();
        let standing = watches_by_path.iter().find(|(_, watch)| {
            let idle = watch
                .last_event
                .map(|last_event| now.saturating_duration_since(last_event));
            watch.failing.is_none() && idle.is_some_and(|idle| idle > EVENT_TIMEOUT)
        });
        standing.map(|(path, _)| format!("the watch of {path} has delivered nothing for too long"))
    }

    /// A sentence about a resource that can't be watched. A restart of the process doesn't help.
    pub(crate) fn failing(&self) -> Option<String> {
        let watches_by_path = self.watches_by_path();
        let mut failing = watches_by_path.iter();
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

/// Whether a request is a watch: its response doesn't end.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    has(uri, "watch=true")
}

/// Whether the query has a pair that begins so.
fn has(uri: &Uri, start: &str) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with(start))
}

type WatchBody = UnsyncBoxBody<Bytes, BoxError>;

impl<S, A, B> Service<Request<A>> for WatchStream<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<WatchBody>;
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
        let response = self.api_server.call(request);
        Box::pin(async move {
            let response = response.await.map_err(Into::into);
            if is_watched {
                watches.note_response(
                    &path,
                    match &response {
                        Ok(response) if response.status().is_success() => None,
                        Ok(response) => {
                            Some(format!("the API server responds {}", response.status()))
                        }
                        Err(error) => Some(error.to_string()),
                    },
                );
            }
            let (head, body) = response?.into_parts();
            let body = body.map_err(Into::into);
            if !(is_watched && is_watch && head.status.is_success()) {
                return Ok(Response::from_parts(head, body.boxed_unsync()));
            }
            watches.note_event(&path, Instant::now());
            let body = body.map_frame(move |frame| {
                watches.note_event(&path, Instant::now());
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

    /// A request to an API server that responds with this code.
    async fn ask(watches: &Watches, path: &str, code: u16) {
        let api_server = tower::service_fn(move |_: Request<()>| {
            let response = Response::builder().status(code);
            std::future::ready(Ok::<_, Infallible>(
                response.body(Full::new(Bytes::from_static(b"{}"))).unwrap(),
            ))
        });
        let request = Request::get(path).body(()).unwrap();
        let response = watches.layer(api_server).oneshot(request).await.unwrap();
        response.into_body().collect().await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_definition_is_reported_until_it_is_there() {
        let watches = Watches::default();
        let path = "/apis/percolator.dev/v1alpha1/percolatorclusters";
        ask(&watches, &format!("{path}?limit=100"), 404).await;
        let message = watches.failing().expect("it fails");
        assert!(
            message.contains(path) && message.contains("404"),
            "{message}"
        );
        let much_later = Instant::now() + 2 * EVENT_TIMEOUT;
        assert_eq!(
            watches.standstill(much_later),
            None,
            "a restart does not help"
        );
        ask(&watches, &format!("{path}?limit=100"), 200).await;
        assert_eq!(watches.failing(), None);
        // What is no watch fails for reasons of its own.
        ask(&watches, "/api/v1/namespaces/n/pods/a", 404).await;
        ask(&watches, "/api/v1/namespaces/n/pods?labelSelector=a", 500).await;
        assert_eq!(watches.failing(), None);
    }

    #[tokio::test]
    async fn a_watch_that_delivers_nothing_is_reported() {
        let watches = Watches::default();
        ask(&watches, PODS, 200).await;
        let before = Instant::now();
        assert_eq!(
            watches.standstill(before + 2 * EVENT_TIMEOUT),
            None,
            "no watch has begun"
        );
        ask(
            &watches,
            &format!("{PODS}?&watch=true&resourceVersion=7"),
            200,
        )
        .await;
        assert_eq!(watches.standstill(before + EVENT_TIMEOUT), None);
        let later = Instant::now() + EVENT_TIMEOUT + Duration::from_secs(1);
        let message = watches.standstill(later).expect("it stands still");
        assert!(message.contains(PODS), "{message}");
        // Lists of the same path, as reconciles of clusters make them, are no sign of the watch.
        ask(&watches, PODS, 200).await;
        assert!(watches.standstill(later).is_some());
        watches.note_event(PODS, later);
        assert_eq!(watches.standstill(later), None);
    }
}
