//! Which cluster is looked at when, and one look at one cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, ObjectMeta};
use kube::core::Status as KubeStatus;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Client, Resource};
use percolator_api::{ClusterObject, ConditionType, Reason, Status};
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::api::Objects;
use crate::cluster::{self, Decision, MANAGER, Settings, full_name};
use crate::definitions::Definitions;
use crate::known::Known;
use crate::looks::Looks;
use crate::metrics::Metrics;
use crate::watches::Watches;

/// How many clusters are looked at a time.
const CONCURRENCY: u16 = 8;
/// What happens to a cluster within this is looked at once: its objects come in bursts.
const GATHER: Duration = Duration::from_millis(50);
/// What happened while nobody watched is found out by then.
const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// What goes on for too long, while servers don't serve, is found out by then, at first.
const LOOK_SOON: Duration = Duration::from_secs(12);
/// Definitions and permissions that are waited for come without a word.
const LOOK_FOR_DEFINITIONS: Duration = Duration::from_secs(40);
/// How often what the watches tell is compared with what there is.
const COMPARE: Duration = Duration::from_secs(120);
/// How many clusters are asked for at a time, to compare.
const COMPARED_AT_A_TIME: u32 = 100;
/// How many objects come at a time when a watch begins: that many are in memory whole.
const WATCHED_AT_A_TIME: u32 = 100;

/// What all looks share.
pub(crate) struct Shared {
    client: Client,
    settings: Settings,
    recorder: Recorder,
    pub(crate) metrics: Metrics,
    pub(crate) looks: Looks,
    definitions: Definitions,
    pub(crate) watches: Watches,
}

/// Why a look at a cluster ended early; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server didn't do what it was asked for.
    #[error("{0}")]
    Api(#[from] kube::Error),
}

impl Shared {
    pub(crate) fn new(
        client: Client,
        settings: Settings,
        instance: &str,
        metrics: Metrics,
        watches: Watches,
    ) -> Self {
        let reporter = Reporter {
            controller: MANAGER.to_owned(),
            instance: Some(instance.to_owned()),
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            settings,
            metrics,
            looks: Looks::default(),
            definitions: Definitions::default(),
            watches,
        }
    }
}

/// Looks at all clusters of these namespaces, or of all if none is named, whenever something happens to them.
/// Ends when `shutdown` does, and what is under way with it.
pub(crate) async fn run(
    shared: Arc<Shared>,
    namespaces: &[String],
    shutdown: impl Future<Output = ()> + Clone + Send + Sync + 'static,
) {
    let controllers = FuturesUnordered::new();
    if namespaces.is_empty() {
        controllers.push(watch(shared.clone(), None, shutdown));
    } else {
        for namespace in namespaces {
            controllers.push(watch(shared.clone(), Some(namespace), shutdown.clone()));
        }
    }
    tokio::select! {
        () = controllers.collect::<()>() => {}
        () = compare(&shared, namespaces) => {}
    }
}

/// Compares what the watches have told with what there is, again and again: a watch may stand still without an error.
async fn compare(shared: &Shared, namespaces: &[String]) {
    loop {
        tokio::time::sleep(COMPARE).await;
        match generations(&shared.client, namespaces).await {
            Ok(present) => shared.looks.compare(&present),
            Err(error) => tracing::debug!(%error, "cannot list the clusters"),
        }
    }
}

/// All clusters by their full names, and their generations.
async fn generations(
    client: &Client,
    namespaces: &[String],
) -> kube::Result<BTreeMap<String, i64>> {
    let mut found = BTreeMap::new();
    let apis: Vec<Api<ClusterObject>> = match namespaces {
        [] => vec![Api::all(client.clone())],
        names => names
            .iter()
            .map(|name| Api::namespaced(client.clone(), name))
            .collect(),
    };
    for api in apis {
        let mut page = ListParams::default().limit(COMPARED_AT_A_TIME);
        loop {
            let list = api.list_metadata(&page).await?;
            found.extend(list.items.iter().map(|cluster| {
                let generation = cluster.metadata.generation.unwrap_or_default();
                (full_name(&cluster.metadata), generation)
            }));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
    }
    Ok(found)
}

async fn watch(
    shared: Arc<Shared>,
    namespace: Option<&String>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let client = &shared.client;
    fn api<K>(client: &Client, namespace: Option<&String>) -> Api<Known<K>>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + DeserializeOwned,
    {
        match namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }
    let pages = watcher::Config::default().page_size(WATCHED_AT_A_TIME);
    let ours = pages
        .clone()
        .labels(&format!("app.kubernetes.io/managed-by={MANAGER}"));
    let of_servers = pages.clone().labels("app.kubernetes.io/name=percolator");
    let clusters: Api<Known<ClusterObject>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let config = Config::default().concurrency(CONCURRENCY).debounce(GATHER);
    let metrics = shared.metrics.clone();
    Controller::new(clusters, pages)
        .with_config(config)
        .owns(api::<StatefulSet>(client, namespace), ours.clone())
        .owns(api::<Service>(client, namespace), ours.clone())
        .owns(api::<ConfigMap>(client, namespace), ours.clone())
        .owns(api::<ServiceAccount>(client, namespace), ours.clone())
        .owns(api::<PodDisruptionBudget>(client, namespace), ours)
        .watches(api::<Pod>(client, namespace), of_servers.clone(), |pod| {
            of_cluster(&pod.metadata)
        })
        .watches(
            api::<PersistentVolumeClaim>(client, namespace),
            of_servers,
            |claim| of_cluster(&claim.metadata),
        )
        .graceful_shutdown_on(shutdown)
        .run(look, failed, shared.clone())
        .for_each(|result| {
            if let Err(error) = result {
                metrics.watch_errors.inc();
                tracing::debug!(%error, "a watch or a look failed");
            }
            std::future::ready(())
        })
        .await;
}

/// The cluster that a pod or a claim belongs to, by its labels.
fn of_cluster(metadata: &ObjectMeta) -> Option<ObjectRef<Known<ClusterObject>>> {
    let labels = metadata.labels.as_ref()?;
    let name = labels.get("app.kubernetes.io/instance")?;
    let namespace = metadata.namespace.as_ref()?;
    Some(ObjectRef::new(name).within(namespace))
}

async fn look(found: Arc<Known<ClusterObject>>, shared: Arc<Shared>) -> Result<Action, Error> {
    let name = full_name(&found.metadata);
    let span = tracing::info_span!("cluster", name);
    let generation = found.metadata.generation;
    shared.looks.begin(&name, generation, Instant::now());
    let timer = shared.metrics.durations.start_timer();
    let result = reconcile(&found.metadata, &shared).instrument(span).await;
    timer.observe_duration();
    shared.looks.end(&name, result.is_ok());
    let outcome = if result.is_ok() { "ok" } else { "error" };
    shared.metrics.looks.with_label_values(&[outcome]).inc();
    result
}

fn failed(found: Arc<Known<ClusterObject>>, error: &Error, shared: Arc<Shared>) -> Action {
    let name = full_name(&found.metadata);
    let jitter = rand::random_range(0.5..1.0);
    let (failures, pause) = shared.looks.failed(&name, Instant::now(), jitter);
    tracing::warn!(cluster = name, %error, failures, ?pause, "trying again");
    Action::requeue(pause)
}

/// When to look again though nothing happened: the longer servers have not served, or something has been waited for, the
/// less is to be expected of the next moment.
fn look_again(status: &Status, now: Timestamp) -> Duration {
    let waited_for =
        [Reason::WaitingForDefinitions, Reason::WaitingForPermission].map(Reason::name);
    let most = match status
        .conditions
        .iter()
        .any(|condition| waited_for.contains(&condition.reason))
    {
        true => LOOK_FOR_DEFINITIONS,
        false => LOOK_AGAIN,
    };
    let waits = status.conditions.iter().filter(|condition| {
        let is_waiting = match condition.status.as_str() {
            "True" => ConditionType::Progressing,
            _ => ConditionType::Available,
        };
        condition.type_ == is_waiting.name()
    });
    let since = waits.map(|condition| condition.last_transition_time.0.as_second());
    match since.max() {
        Some(since) => {
            let seconds = u64::try_from(now.as_second() - since).unwrap_or_default();
            Duration::from_secs(seconds).clamp(LOOK_SOON, most)
        }
        None => most,
    }
}

/// Dereference, decide, carry out, tell.
async fn reconcile(found: &ObjectMeta, shared: &Shared) -> Result<Action, Error> {
    let name = found.name.as_deref().unwrap_or_default();
    let namespace = found.namespace.as_deref().unwrap_or_default();
    let objects = Objects::new(shared.client.clone(), namespace);
    let Some(cluster) = objects.cluster(name).await? else {
        return Ok(Action::await_change());
    };
    if cluster.metadata.deletion_timestamp.is_some() {
        // Kubernetes removes what the cluster owns.
        return Ok(Action::await_change());
    }
    let lacking = shared.definitions.lacking(&shared.client).await?;
    let now = Timestamp::now();
    let mut observed = objects
        .observe(&cluster, &shared.settings, lacking, now)
        .await?;
    let decision = cluster::decide(&cluster, &observed, &shared.settings);
    let mut refused = None;
    if let Decision::Do(plan) = &decision
        && !plan.is_idle()
        && !cluster.spec.paused
    {
        let done = objects.carry_out(plan, &mut observed).await;
        shared.metrics.writes.inc();
        match done {
            Ok(()) => {}
            Err(kube::Error::Api(why)) if is_refusal(&why) => refused = Some(why),
            Err(error) => return Err(error.into()),
        }
    }
    let status = cluster::status_after(
        &cluster,
        &observed,
        &shared.settings,
        &decision,
        refused.as_ref().map(|why| why.message.as_str()),
        Timestamp::now(),
    );
    if objects.tell(&cluster, &status).await? {
        shared.metrics.writes.inc();
        publish(shared, &cluster, &status).await;
    }
    match refused {
        Some(why) => Err(Error::Api(kube::Error::Api(why))),
        None => {
            let pause = look_again(&status, Timestamp::now());
            Ok(Action::requeue(pause.mul_f64(rand::random_range(1.0..1.5))))
        }
    }
}

/// Whether the same request will be refused again, until somebody changes something. A conflict and too many
/// requests go by themselves.
fn is_refusal(why: &KubeStatus) -> bool {
    // What can't be merged, such as lists with two elements of one name, is an internal error to an API server.
    let cannot_be_merged = why.code == 500 && why.message.contains("typed patch");
    cannot_be_merged || matches!(why.code, 400..=499) && !matches!(why.code, 401 | 404 | 409 | 429)
}

/// Events for `kubectl describe`. One that is lost is no harm: the status says the same.
async fn publish(shared: &Shared, cluster: &ClusterObject, status: &Status) {
    let reference = cluster.object_ref(&());
    for (condition, is_bad) in cluster::turned(cluster.status.as_ref(), status) {
        tracing::info!(
            condition = condition.type_,
            status = condition.status,
            reason = condition.reason,
            message = condition.message,
            "turned"
        );
        let event = Event {
            type_: if is_bad {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: condition.reason.clone(),
            note: Some(condition.message.clone()),
            action: condition.type_.clone(),
            secondary: None,
        };
        if let Err(error) = shared.recorder.publish(&event, &reference).await {
            tracing::warn!(%error, "an event was not taken");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_serve_is_looked_at_soon_and_then_less_often() {
        use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
        let at = |second| Timestamp::from_second(second).unwrap();
        let condition = |type_: &str, status: &str, since| Condition {
            type_: type_.into(),
            status: status.into(),
            reason: "x".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(at(since)),
        };
        for (serves, waits, now, seconds) in [
            ("True", "False", 1_001, 600),
            ("False", "False", 1_001, 12),
            ("False", "False", 1_100, 100),
            ("False", "False", 9_000, 600),
            ("False", "False", 999, 12),
            // The pods of a server more can't be made, as nobody tells the operator.
            ("True", "True", 2_001, 12),
            ("True", "True", 2_100, 100),
            ("False", "True", 2_100, 100),
        ] {
            let status = Status {
                conditions: vec![
                    condition("Available", serves, 1_000),
                    condition("Progressing", waits, 2_000),
                ],
                ..Status::default()
            };
            let pause = look_again(&status, at(now));
            assert_eq!(pause.as_secs(), seconds, "{serves} {waits} {now}");
        }
        // Nothing tells of definitions that come later.
        for reason in ["WaitingForDefinitions", "WaitingForPermission"] {
            let mut waits = condition("Monitored", "False", 2_000);
            waits.reason = reason.into();
            let status = Status {
                conditions: vec![condition("Available", "True", 1_000), waits],
                ..Status::default()
            };
            assert_eq!(look_again(&status, at(9_000)).as_secs(), 40);
        }
    }

    /// An API server with one cluster, of a version that this operator doesn't know.
    fn with_a_newer_cluster() -> Client {
        let newer = r#"{"apiVersion": "percolator.dev/v1alpha1", "kind": "PercolatorCluster",
            "metadata": {"name": "newer", "namespace": "n"},
            "spec": {"tablets": {"storage": {"engine": "stone"}}}}"#;
        let gone = r#"{"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "message": "gone", "reason": "NotFound", "code": 404}"#;
        let answer = move |request: hyper::Request<kube::client::Body>| {
            let is_there = request.uri().path().ends_with("/newer");
            let (status, text) = if is_there { (200, newer) } else { (404, gone) };
            let body = kube::client::Body::from(text.as_bytes().to_vec());
            let answer = hyper::Response::builder().status(status).body(body);
            std::future::ready(answer)
        };
        Client::new(tower::service_fn(answer), "n")
    }

    #[tokio::test]
    async fn a_cluster_that_does_not_parse_holds_up_no_other() {
        let settings = Settings {
            image: "percolator:1".into(),
        };
        let shared = Shared::new(
            with_a_newer_cluster(),
            settings,
            "me",
            Metrics::new().unwrap(),
            Watches::default(),
        );
        let shared = Arc::new(shared);
        let found = |name: &str| {
            let metadata = ObjectMeta {
                name: Some(name.into()),
                namespace: Some("n".into()),
                generation: Some(1),
                ..ObjectMeta::default()
            };
            Arc::new(Known::<ClusterObject>::new(metadata))
        };
        for failures in 1..=3 {
            let error = look(found("newer"), shared.clone()).await.unwrap_err();
            assert!(error.to_string().contains("stone"), "{error}");
            let again = failed(found("newer"), &error, shared.clone());
            assert_ne!(again, Action::await_change(), "{failures}");
            look(found("another"), shared.clone()).await.unwrap();
        }
        assert_eq!(shared.looks.standstill(Instant::now()), None);
        let text = percolator_telemetry::text(&shared.metrics.registry).unwrap();
        assert!(
            text.contains("reconciles_total{result=\"error\"} 3"),
            "{text}"
        );
        assert!(text.contains("reconciles_total{result=\"ok\"} 3"), "{text}");
    }

    #[test]
    fn what_goes_by_itself_is_no_refusal() {
        let of = |code, message: &str| {
            let status = KubeStatus::failure(message, "why");
            is_refusal(&status.with_code(code))
        };
        assert!([403, 422, 400].into_iter().all(|code| of(code, "")));
        assert!(
            ![401, 404, 409, 429, 500, 503]
                .into_iter()
                .any(|code| of(code, ""))
        );
        assert!(of(
            500,
            "failed to create typed patch object (n/demo; apps/v1, Kind=StatefulSet): duplicate entries"
        ));
    }
}
