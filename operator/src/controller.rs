//! Which cluster is reconciled when, and one reconcile of one cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, ObjectMeta};
use kube::runtime::controller::{self, Action, Config, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, Resource};
use percolator_api::{ClusterObject, ConditionType, Reason, Status};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use crate::api::{CarriedOut, Objects, is_of_ending_namespace, scopes};
use crate::cluster::{
    self, Altered, CLUSTER_LABEL, Decision, Kind, MANAGER, Observed, REGISTER_LABEL, Refusal,
    Settings, full_name,
};
use crate::conditions::ClusterConditions;
use crate::definitions::Definitions;
use crate::known::KnownObject;
use crate::masters;
use crate::metrics::Metrics;
use crate::reconciles::Reconciles;
use crate::rolls::{self, Rolls};
use crate::watches::Watches;

/// How many clusters are reconciled at a time, of all namespaces together.
const CONCURRENCY: u16 = 8;
/// What happens to a cluster within this is reconciled once: its objects come in bursts.
const GATHER: Duration = Duration::from_millis(50);
/// What happened while nobody watched is found out by then.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// What goes on for too long, while servers don't serve, is found out by then, at first.
const RESYNC_SOON: Duration = Duration::from_secs(12);
/// How soon a cluster whose tablets are moved off servers is reconciled, of which no watch tells: at first, and at the latest.
const DRAIN_RESYNC: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));
/// A plan goes on by then after an answer of the API server that nothing tells of.
const GO_ON: Duration = Duration::from_millis(200);
/// Definitions and permissions that are waited for come without a word; so goes what is somebody else's.
const RESYNC_OF_WAITING: Duration = Duration::from_secs(40);
/// How often what the watches tell is compared with what there is.
const COMPARE: Duration = Duration::from_secs(120);
/// All of them are listed by then, or never.
const LISTED: Duration = Duration::from_secs(60);
/// How many clusters are asked for at a time, to compare.
const COMPARED_AT_A_TIME: u32 = 100;
/// How many objects come at a time when a watch begins: that many are in memory whole.
const WATCHED_AT_A_TIME: u32 = 100;

/// What admission altered of a cluster's objects.
type AlteredObjects = BTreeMap<(Kind, String), Altered>;

/// What all reconciles share.
pub(crate) struct Shared {
    client: Client,
    settings: Settings,
    recorder: Recorder,
    pub(crate) metrics: Metrics,
    pub(crate) reconciles: Reconciles,
    definitions: Definitions,
    pub(crate) watches: Watches,
    /// Every namespace that is watched by itself has a controller of its own, and they share these.
    slots: Semaphore,
    /// What admission made of the objects of clusters, by their full names: otherwise it would be applied again each time.
    altered: Mutex<BTreeMap<String, AlteredObjects>>,
    /// Which clusters change their servers.
    rolls: Mutex<Rolls>,
    /// What the statuses of clusters say, for metrics.
    pub(crate) conditions: ClusterConditions,
    /// The clusters that watches have told of, and that aren't gone.
    known: Mutex<Vec<Store<KnownObject<ClusterObject>>>>,
}

/// Why a reconcile of a cluster ended early; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server didn't do what it was asked for.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// It refused some of that, until somebody changes something.
    #[error("refused: {0}")]
    Refused(String),
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
            rolls: Mutex::new(Rolls::new(settings.rolls_max)),
            settings,
            metrics,
            reconciles: Reconciles::default(),
            definitions: Definitions::default(),
            watches,
            slots: Semaphore::new(CONCURRENCY.into()),
            altered: Mutex::default(),
            conditions: ClusterConditions::default(),
            known: Mutex::default(),
        }
    }

    fn altered(&self) -> MutexGuard<'_, BTreeMap<String, AlteredObjects>> {
        self.altered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rolls(&self) -> MutexGuard<'_, Rolls> {
        self.rolls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is known of a cluster that is gone.
    fn forget(&self, name: &str) {
        self.reconciles.forget(name);
        self.rolls().end(name);
        self.altered().remove(name);
        let (namespace, name) = name.split_once('/').unwrap_or_default();
        self.conditions.forget(namespace, name);
    }

    fn knows(&self, store: Store<KnownObject<ClusterObject>>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(store);
    }

    /// How many clusters are known, are being reconciled, and wait to be reconciled again after a failure; one that is gone
    /// waits for nothing.
    pub(crate) fn count(&self) -> (usize, usize, usize) {
        self.reconciles.count(|name| {
            let (namespace, name) = name.split_once('/').unwrap_or_default();
            self.is_there(namespace, name)
        })
    }

    /// The generation of a cluster that watches have told last.
    fn generation(&self, full_name: &str) -> Option<i64> {
        let (namespace, name) = full_name.split_once('/')?;
        self.told(namespace, name)?.metadata.generation
    }

    /// Whether there is such a cluster, as far as watches have told.
    pub(crate) fn is_there(&self, namespace: &str, name: &str) -> bool {
        self.told(namespace, name).is_some()
    }

    /// The cluster, as watches have told it last.
    fn told(&self, namespace: &str, name: &str) -> Option<Arc<KnownObject<ClusterObject>>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let reference = ObjectRef::new(name).within(namespace);
        known.iter().find_map(|store| store.get(&reference))
    }
}

/// Reconciles all clusters of these namespaces, or of all if none is named, whenever something happens to them.
/// Ends when `shutdown` does, and what is under way with it.
pub(crate) async fn run(
    shared: Arc<Shared>,
    namespaces: &[String],
    shutdown: impl Future<Output = ()> + Clone + Send + Sync + 'static,
) {
    rolls::find(&shared.client, namespaces, |cluster| {
        shared.rolls().note(cluster);
    })
    .await;
    let controllers = FuturesUnordered::new();
    for namespace in scopes(namespaces) {
        controllers.push(watch(shared.clone(), namespace, shutdown.clone()));
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
        // A list of which nothing comes any more would end all comparing.
        let listed = generations(&shared.client, namespaces);
        match tokio::time::timeout(LISTED, listed).await {
            Ok((present, unknown)) => {
                let is_unknown = |name: &str| {
                    unknown.iter().any(|namespace| {
                        namespace.is_none_or(|it| name.split('/').next() == Some(it))
                    })
                };
                let told = |name: &str| shared.generation(name);
                shared
                    .reconciles
                    .compare(&present, told, |name| !is_unknown(name));
            }
            Err(_) => tracing::warn!("no answer to a list of the clusters"),
        }
    }
}

/// Clusters by their full names, and their generations; and the namespaces that tell of none, as one whose role is gone:
/// `None` for all.
async fn generations<'a>(
    client: &Client,
    namespaces: &'a [String],
) -> (BTreeMap<String, i64>, Vec<Option<&'a str>>) {
    let (mut found, mut unknown) = (BTreeMap::new(), Vec::new());
    for namespace in scopes(namespaces) {
        let api = match namespace {
            None => Api::all(client.clone()),
            Some(name) => Api::namespaced(client.clone(), name),
        };
        match generations_of(&api).await {
            Ok(of_namespace) => found.extend(of_namespace),
            Err(error) => {
                tracing::debug!(%error, namespace, "cannot list the clusters");
                unknown.push(namespace);
            }
        }
    }
    (found, unknown)
}

async fn generations_of(api: &Api<ClusterObject>) -> kube::Result<BTreeMap<String, i64>> {
    let mut found = BTreeMap::new();
    let mut page = ListParams::default().limit(COMPARED_AT_A_TIME);
    loop {
        let list = api.list_metadata(&page).await?;
        found.extend(list.items.iter().map(|cluster| {
            let generation = cluster.metadata.generation.unwrap_or_default();
            (full_name(&cluster.metadata), generation)
        }));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

async fn watch(
    shared: Arc<Shared>,
    namespace: Option<&str>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let client = &shared.client;
    fn api<K>(client: &Client, namespace: Option<&str>) -> Api<KnownObject<K>>
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
    // Registers change every second.
    let but_registers = pages.clone().labels(&format!(
        "app.kubernetes.io/managed-by={MANAGER},!{REGISTER_LABEL}"
    ));
    let of_servers = pages.clone().labels(CLUSTER_LABEL);
    let clusters = api::<ClusterObject>(client, namespace);
    let config = Config::default().concurrency(CONCURRENCY).debounce(GATHER);
    let metrics = shared.metrics.clone();
    let controller = Controller::new(clusters, pages);
    shared.knows(controller.store());
    controller
        .with_config(config)
        .owns(api::<StatefulSet>(client, namespace), ours.clone())
        .owns(api::<Deployment>(client, namespace), ours.clone())
        .owns(api::<Service>(client, namespace), ours.clone())
        .owns(api::<ConfigMap>(client, namespace), but_registers)
        .owns(api::<ServiceAccount>(client, namespace), ours.clone())
        .owns(api::<Role>(client, namespace), ours.clone())
        .owns(api::<RoleBinding>(client, namespace), ours.clone())
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
        .run(reconcile, failed, shared.clone())
        .for_each(|result| {
            if let Err(controller::Error::ObjectNotFound(gone)) = &result {
                // Something of a cluster that is gone has changed, or a reconcile of it was to be tried again: as it is to be.
                let namespace = gone.namespace.as_deref().unwrap_or_default();
                shared.forget(&format!("{namespace}/{}", gone.name));
            } else if let Err(error) = result {
                metrics.watch_errors.inc();
                tracing::debug!(%error, "a watch or a reconcile failed");
            }
            std::future::ready(())
        })
        .await;
}

/// The cluster that a pod or a claim belongs to, by its labels.
fn of_cluster(metadata: &ObjectMeta) -> Option<ObjectRef<KnownObject<ClusterObject>>> {
    let labels = metadata.labels.as_ref()?;
    let name = labels.get(CLUSTER_LABEL)?;
    let namespace = metadata.namespace.as_ref()?;
    Some(ObjectRef::new(name).within(namespace))
}

async fn reconcile(
    found: Arc<KnownObject<ClusterObject>>,
    shared: Arc<Shared>,
) -> Result<Action, Error> {
    let name = full_name(&found.metadata);
    // Adds the cluster's name to every log line of this reconcile.
    let span = tracing::error_span!("cluster", name);
    let _slot = shared.slots.acquire().await;
    shared.reconciles.begin(&name, Instant::now());
    let timer = shared.metrics.durations.start_timer();
    let result = async {
        match run_steps(&found.metadata, &shared).await {
            // What is asked for something of it fails when it goes meanwhile, which is no failure.
            Err(_) if is_gone(&found.metadata, &shared).await => Ok(Action::await_change()),
            result => result,
        }
    };
    let result = result.instrument(span).await;
    timer.observe_duration();
    shared.reconciles.end(&name, result.is_ok());
    let outcome = if result.is_ok() { "ok" } else { "error" };
    shared
        .metrics
        .reconciles
        .with_label_values(&[outcome])
        .inc();
    result
}

/// Whether there is no such cluster any more, or it is about to go.
async fn is_gone(found: &ObjectMeta, shared: &Shared) -> bool {
    let namespace = found.namespace.as_deref().unwrap_or_default();
    let objects = Objects::new(shared.client.clone(), namespace);
    let name = found.name.as_deref().unwrap_or_default();
    objects.cluster(name).await.is_ok_and(|cluster| {
        cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some())
    })
}

fn failed(found: Arc<KnownObject<ClusterObject>>, error: &Error, shared: Arc<Shared>) -> Action {
    let name = full_name(&found.metadata);
    let jitter = rand::random_range(0.5..1.0);
    let (failures, pause) = shared.reconciles.failed(&name, Instant::now(), jitter);
    tracing::warn!(cluster = name, %error, failures, ?pause, "trying again");
    Action::requeue(pause)
}

/// When to reconcile again though nothing happened: the longer servers have not served, or something has been waited for, the
/// less is to be expected of the next moment.
fn requeue_after(status: &Status, now: Timestamp) -> Duration {
    let waited_for = [
        Reason::WaitingForDefinitions,
        Reason::WaitingForPermission,
        Reason::ObjectConflict,
        Reason::WaitingForTurn,
    ]
    .map(Reason::name);
    let most = if status
        .conditions
        .iter()
        .any(|condition| waited_for.contains(&condition.reason))
    {
        RESYNC_OF_WAITING
    } else {
        RESYNC_INTERVAL
    };
    let waits = status.conditions.iter().filter(|condition| {
        let is_waiting = match condition.status.as_str() {
            "True" => ConditionType::Progressing,
            _ => ConditionType::Available,
        };
        condition.type_ == is_waiting.name()
    });
    let since = waits.map(|condition| condition.last_transition_time.0.as_second());
    let lasts = since.max().map(|since| {
        let seconds = u64::try_from(now.as_second() - since).unwrap_or_default();
        Duration::from_secs(seconds)
    });
    let drains = [Reason::DrainingTablets, Reason::DrainBlocked].map(Reason::name);
    let is_draining = status.conditions.iter().any(|condition| {
        condition.type_ == ConditionType::Progressing.name() && drains.contains(&condition.reason)
    });
    match lasts {
        Some(lasts) if is_draining => (lasts / 4).clamp(DRAIN_RESYNC.0, DRAIN_RESYNC.1),
        Some(lasts) => lasts.clamp(RESYNC_SOON, most),
        None => most,
    }
}

/// Dereference, decide, carry out, tell.
async fn run_steps(found: &ObjectMeta, shared: &Shared) -> Result<Action, Error> {
    let name = found.name.as_deref().unwrap_or_default();
    let namespace = found.namespace.as_deref().unwrap_or_default();
    let objects = Objects::new(shared.client.clone(), namespace);
    let Some(mut cluster) = objects.cluster(name).await? else {
        shared.conditions.forget(namespace, name);
        return Ok(Action::await_change());
    };
    if cluster.metadata.deletion_timestamp.is_some() {
        // Kubernetes removes what the cluster owns, whenever that is.
        shared.rolls().end(&full_name(found));
        return Ok(Action::await_change());
    }
    let lacking = shared.definitions.lacking(&shared.client).await?;
    let now = Timestamp::now();
    let mut observed = objects
        .observe(&cluster, &shared.settings, lacking, now)
        .await?;
    if cluster::adopts(&cluster, &observed) {
        // A deletion that leaves everything (`--cascade=orphan`) takes the owner off each object after the resource is marked. An object
        // that got the owner back would go with it, with its pods.
        let now = objects.cluster(name).await?;
        let uid = &cluster.metadata.uid;
        let is_there =
            |it: ClusterObject| it.metadata.uid == *uid && it.metadata.deletion_timestamp.is_none();
        if !now.is_some_and(is_there) {
            return Ok(Action::requeue(GO_ON));
        }
    }
    let full_name = full_name(found);
    let altered = shared.altered().get(&full_name).cloned();
    observed.remember(altered.unwrap_or_default());
    if cluster::is_changing(&cluster, &observed) {
        shared.rolls().note(&full_name);
    }
    let done = carry_out(shared, &objects, &mut cluster, &mut observed).await?;
    if let Some(status) = &cluster.status {
        shared.conditions.note(namespace, name, status);
    }
    let is_newly_altered = note_altered(shared, &full_name, &observed);
    match done.refused.into_iter().next() {
        Some(refusal) => Err(Error::Refused(refusal.why)),
        None if done.is_cut_off => Ok(Action::requeue(GO_ON)),
        // Nothing more is to be done, ever; what goes meanwhile is told by watches.
        None if observed.namespace_ends => Ok(Action::requeue(RESYNC_INTERVAL)),
        // What was applied may have been so already, and no watch brings anything then.
        None if is_newly_altered => Ok(Action::requeue(GO_ON)),
        None => {
            let now = Timestamp::now();
            let status = cluster.status.as_ref();
            let pause = status.map_or(RESYNC_SOON, |status| requeue_after(status, now));
            let pause = pause.mul_f64(rand::random_range(1.0..1.5));
            let due = cluster::due_in(&cluster, &observed, &shared.settings, now);
            let due = due.map(|seconds| Duration::from_secs(seconds + 1));
            Ok(Action::requeue(due.map_or(pause, |due| pause.min(due))))
        }
    }
}

/// Keeps what admission altered of a cluster's objects for the next reconcile. Whether that is news.
fn note_altered(shared: &Shared, full_name: &str, observed: &Observed) -> bool {
    let mut altered = shared.altered();
    if observed.altered.is_empty() {
        altered.remove(full_name);
        return false;
    }
    let before = altered.insert(full_name.to_owned(), observed.altered.clone());
    before.as_ref() != Some(&observed.altered)
}

/// Decides. Servers that serve are changed in their cluster's turn.
fn decide(shared: &Shared, cluster: &ClusterObject, observed: &mut Observed) -> Decision {
    let decision = cluster::decide(cluster, observed, &shared.settings);
    let restarts = decision.plan().restarts && !cluster.spec.paused;
    if !restarts || !cluster::is_available(cluster) {
        return decision;
    }
    let turn = shared.rolls().begin(&full_name(&cluster.metadata));
    match turn {
        Ok(()) => decision,
        Err(why) => {
            observed.turn_awaited = Some(why);
            cluster::decide(cluster, observed, &shared.settings)
        }
    }
}

/// Decides, carries that out, and writes the status.
async fn carry_out(
    shared: &Shared,
    objects: &Objects,
    cluster: &mut ClusterObject,
    observed: &mut Observed,
) -> Result<CarriedOut, Error> {
    let settings = &shared.settings;
    let decision = decide(shared, cluster, observed);
    let status = |cluster: &ClusterObject, observed: &Observed, refused: &[Refusal]| {
        let now = Timestamp::now();
        cluster::status_after(cluster, observed, settings, &decision, refused, now)
    };
    let plan = decision.plan();
    if cluster::records_first(cluster, plan) {
        let first = status(cluster, observed, &[]);
        write_status(shared, objects, cluster, first).await?;
    }
    let mut carried_out = CarriedOut::default();
    if !plan.is_idle() && !cluster.spec.paused {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        if let Some(addresses) = cluster::masters_to_ask(cluster, observed) {
            masters::carry_out(name, &addresses, plan, observed).await;
        }
        let done = objects.carry_out(plan, observed).await;
        shared.metrics.writes.inc();
        match done {
            Ok(done) => carried_out = done,
            Err(kube::Error::Api(why)) if is_of_ending_namespace(&why) => {
                tracing::debug!(why.message, "the namespace is being deleted");
                observed.namespace_ends = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let last = status(cluster, observed, &carried_out.refused);
    // From the first role to the last it is one change.
    let is_repair = matches!(decision, Decision::Invalid(..)) && plan.waits.is_some();
    let goes_on = plan.is_to_restart && (is_repair || cluster::awaits_servers(&last));
    if !cluster::is_changing(cluster, observed) && !goes_on {
        shared.rolls().end(&full_name(&cluster.metadata));
    }
    write_status(shared, objects, cluster, last).await?;
    Ok(carried_out)
}

/// Writes the status, unless it is there already, and publishes what turned.
async fn write_status(
    shared: &Shared,
    objects: &Objects,
    cluster: &mut ClusterObject,
    status: Status,
) -> Result<(), Error> {
    if objects.tell(cluster, &status).await? {
        shared.metrics.writes.inc();
        publish(shared, cluster, &status).await;
        cluster.status = Some(status);
    }
    Ok(())
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
        match shared.recorder.publish(&event, &reference).await {
            Ok(()) => {}
            // No event either.
            Err(kube::Error::Api(why)) if is_of_ending_namespace(&why) => return,
            Err(error) => tracing::warn!(%error, "an event was not taken"),
        }
    }
}

#[cfg(test)]
mod tests;
