//! Leader election: of several operators, the one that holds the lease acts.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::{Method, Request};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// A holder that has not renewed the lease for so long has lost it.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew the lease for so long stops acting. A request that is under way then ends before another
/// operator begins.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How long a request about the lease may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// How often the lease is renewed, or read.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// The lease, and the operator that competes for it.
pub(crate) struct Election {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The name of this operator: no other one has it.
    pub(crate) me: String,
    pub(crate) term: Term,
}

/// The time until which this operator may write. None before it holds a lease, and for an operator that acts without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Term(Arc<Mutex<Option<Instant>>>);

impl Term {
    fn set_end(&self, end: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    fn end(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses writes after the term: a process that stood still doesn't know that it has ended.
impl<S> Layer<S> for Term {
    type Service = TermService<S>;

    fn layer(&self, api_server: S) -> TermService<S> {
        TermService {
            api_server,
            term: self.clone(),
        }
    }
}

/// See [`Term`].
#[derive(Clone, Debug)]
pub(crate) struct TermService<S> {
    api_server: S,
    term: Term,
}

impl<S, A> Service<Request<A>> for TermService<S>
where
    S: Service<Request<A>>,
    S::Error: Into<BoxError>,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.api_server.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let is_about_leases = request.uri().path().contains("/apis/coordination.k8s.io/");
        let is_over = self.term.end().is_some_and(|end| end <= Instant::now());
        if is_over && request.method() != Method::GET && !is_about_leases {
            let refused = "the lease could not be renewed: another operator may act by now";
            return Box::pin(std::future::ready(Err(refused.into())));
        }
        let response = self.api_server.call(request);
        Box::pin(async move { response.await.map_err(Into::into) })
    }
}

/// The lease of another holder. Only this process's clock counts for how long it has not changed.
struct ObservedLease {
    version: Option<String>,
    since: Instant,
    holder: String,
}

impl Election {
    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until the lease is ours.
    pub(crate) async fn win(&self) {
        let mut observed = None;
        loop {
            let asked = Instant::now();
            // A connection may break without an error: the next request takes another one.
            match tokio::time::timeout(REQUEST_TIMEOUT, self.try_win(&mut observed)).await {
                Ok(Ok(true)) => return self.term.set_end(asked + RENEW_DEADLINE),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "cannot acquire the lease")
                }
                Err(_) => {
                    tracing::warn!(lease = self.name, "the request about the lease timed out")
                }
            }
            tokio::time::sleep(RETRY_PERIOD).await;
        }
    }

    async fn try_win(&self, observed: &mut Option<ObservedLease>) -> kube::Result<bool> {
        let Some(mut lease) = self.api().get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(0)),
            };
            return has_won(self.api().create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone();
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let since = match observed {
            Some(known) if known.version == version => known.since,
            _ => {
                let since = Instant::now();
                // One line for each holder, not for each of its renewals.
                let is_known = observed
                    .as_ref()
                    .is_some_and(|known| known.holder == holder);
                if !holder.is_empty() && holder != self.me && !is_known {
                    tracing::info!(
                        holder,
                        lease = self.name,
                        "another operator holds the lease"
                    );
                }
                *observed = Some(ObservedLease {
                    version,
                    since,
                    holder: holder.clone(),
                });
                since
            }
        };
        if !holder.is_empty() && holder != self.me && since.elapsed() < LEASE_DURATION {
            return Ok(false);
        }
        lease.spec = Some(self.held(spec.lease_transitions.unwrap_or_default() + 1));
        // With the version that was read: of two that try, one gets a conflict.
        let result = self
            .api()
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        has_won(result)
    }

    fn held(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(
                i32::try_from(LEASE_DURATION.as_secs()).unwrap_or(i32::MAX),
            ),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Renews the lease that was won. Ends when it is lost, or may be soon.
    pub(crate) async fn keep(&self) {
        let mut end = self.term.end().unwrap_or_else(Instant::now);
        while Instant::now() < end {
            tokio::time::sleep_until(end.min(Instant::now() + RETRY_PERIOD)).await;
            let asked = Instant::now();
            match tokio::time::timeout_at(end.min(asked + REQUEST_TIMEOUT), self.renew()).await {
                Ok(Ok(true)) => {
                    end = asked + RENEW_DEADLINE;
                    self.term.set_end(end);
                }
                Ok(Ok(false)) => return,
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "cannot renew the lease")
                }
                Err(_) => {
                    tracing::warn!(lease = self.name, "the request about the lease timed out")
                }
            }
        }
    }

    async fn renew(&self) -> kube::Result<bool> {
        let mut lease = self.api().get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.me) {
            return Ok(false);
        }
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let result = self
            .api()
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        has_won(result)
    }

    /// Gives the lease back, so that the next one need not wait until it ends.
    pub(crate) async fn give_back(&self) -> kube::Result<()> {
        let mut lease = self.api().get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.me) {
            spec.holder_identity = Some(String::new());
            self.api()
                .replace(&self.name, &PostParams::default(), &lease)
                .await?;
        }
        Ok(())
    }
}

/// Whether a write won. After a conflict another operator's write has won.
fn has_won<T>(result: kube::Result<T>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Response;
    use kube::client::Body;
    use tower::ServiceExt as _;

    use super::*;

    /// An API server that takes a lease, and doesn't respond about it after that.
    fn silent_after_the_first() -> Client {
        let answer = |request: Request<Body>| async move {
            let (code, text) = match *request.method() {
                Method::POST => (201, "{\"metadata\": {\"name\": \"l\"}}"),
                _ if request.uri().path().ends_with("/won") => std::future::pending().await,
                _ => (404, "{\"code\": 404, \"reason\": \"NotFound\"}"),
            };
            let body = Body::from(text.as_bytes().to_vec());
            Response::builder().status(code).body(body)
        };
        Client::new(tower::service_fn(answer), "n")
    }

    fn election(name: &str) -> Election {
        Election {
            client: silent_after_the_first(),
            namespace: "n".into(),
            name: name.into(),
            me: "me".into(),
            term: Term::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_cannot_renew_stops_before_another_one_begins() {
        let election = election("l");
        let before = Instant::now();
        election.win().await;
        // The same, under a name for which the API server doesn't respond.
        let election = Election {
            name: "won".into(),
            ..election
        };
        election.keep().await;
        assert!(
            before.elapsed() <= RENEW_DEADLINE + Duration::from_millis(10),
            "{:?}",
            before.elapsed()
        );
        assert!(before.elapsed() + REQUEST_TIMEOUT < LEASE_DURATION);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_times_out_is_repeated() {
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = asked.clone();
        let answer = move |request: Request<Body>| {
            let is_first = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            async move {
                let (code, text) = match *request.method() {
                    _ if is_first => std::future::pending().await,
                    Method::POST => (201, "{\"metadata\": {\"name\": \"l\"}}"),
                    _ => (404, "{\"code\": 404, \"reason\": \"NotFound\"}"),
                };
                let body = Body::from(text.as_bytes().to_vec());
                Response::builder().status(code).body(body)
            }
        };
        let election = Election {
            client: Client::new(tower::service_fn(answer), "n"),
            ..election("l")
        };
        let wins = tokio::time::timeout(10 * REQUEST_TIMEOUT, election.win());
        wins.await.expect("the second response counts");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_term() {
        let term = Term::default();
        let api_server = term.layer(tower::service_fn(|_: Request<()>| {
            std::future::ready(Ok::<_, BoxError>(()))
        }));
        let may = async |method: Method, path: &str| {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .body(())
                .unwrap();
            api_server.clone().oneshot(request).await.is_ok()
        };
        let set = "/apis/apps/v1/namespaces/n/statefulsets/a";
        assert!(
            may(Method::PATCH, set).await,
            "one that acts without a lease"
        );
        term.set_end(Instant::now() + RENEW_DEADLINE);
        assert!(may(Method::PATCH, set).await);
        tokio::time::advance(RENEW_DEADLINE).await;
        for method in [Method::PATCH, Method::POST, Method::DELETE] {
            assert!(!may(method, set).await);
        }
        assert!(may(Method::GET, set).await);
        assert!(
            may(
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"
            )
            .await
        );
    }
}
