//! Schedules the reconciles of clusters, and runs one reconcile of one cluster.

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
    self, AlteredObject, CLUSTER_LABEL, Decision, Kind, MANAGER, Observed, REGISTER_LABEL, Refusal,
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

/// How many clusters are reconciled at a time, in all namespaces together.
const CONCURRENCY: u16 = 8;
/// Changes of a cluster within this time lead to one reconcile: its objects change in bursts.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// How often each cluster is reconciled without a change: a watch may have missed one.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// The first interval of reconciles while servers don't serve: a state that lasts becomes Degraded.
const RESYNC_MIN: Duration = Duration::from_secs(12);
/// The first and the longest interval of reconciles while tablets are moved off servers: no watch reports that.
const DRAIN_RESYNC: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));
/// How soon a plan continues after a write that no watch reports.
const CONTINUE_AFTER: Duration = Duration::from_millis(200);
/// The longest interval of reconciles while a definition or a permission is missing, or another owner's object has a name that
/// the cluster needs: no watch reports that this changes.
const WAITING_RESYNC: Duration = Duration::from_secs(40);
/// How often what the watches have reported is compared with a list.
const COMPARE_INTERVAL: Duration = Duration::from_secs(120);
/// How long that list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// How many clusters that list requests at a time.
const COMPARED_AT_A_TIME: u32 = 100;
/// How many objects a watch requests at a time when it begins: these are in memory with all their fields.
const WATCHED_AT_A_TIME: u32 = 100;

/// What admission altered of a cluster's objects.
type AlteredObjects = BTreeMap<(Kind, String), AlteredObject>;

/// What all reconciles share.
pub(crate) struct Shared {
    client: Client,
    settings: Settings,
    recorder: Recorder,
    pub(crate) metrics: Metrics,
    pub(crate) reconciles: Reconciles,
    definitions: Definitions,
    pub(crate) watches: Watches,
    /// The slots of reconciles. Each namespace that is watched by itself has its own controller, and they share these.
    slots: Semaphore,
    /// What admission made of the objects of clusters, by their full names: otherwise it would be applied again each time.
    altered: Mutex<BTreeMap<String, AlteredObjects>>,
    /// Which clusters change their servers.
    rolls: Mutex<Rolls>,
    /// The conditions of all clusters, for metrics.
    pub(crate) conditions: ClusterConditions,
    /// The clusters that the watches have reported and that still exist.
    known: Mutex<Vec<Store<KnownObject<ClusterObject>>>>,
}

/// Why a reconcile of a cluster ended early; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A request to the API server failed.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// It refused a write, and will until a person changes something.
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

    /// How many clusters are known, are being reconciled, and wait for a retry. Clusters that are gone don't wait.
    pub(crate) fn count(&self) -> (usize, usize, usize) {
        self.reconciles.count(|name| {
            let (namespace, name) = name.split_once('/').unwrap_or_default();
            self.is_there(namespace, name)
        })
    }

    /// The generation of a cluster that a watch has reported last.
    fn generation(&self, full_name: &str) -> Option<i64> {
        let (namespace, name) = full_name.split_once('/')?;
        self.watched(namespace, name)?.metadata.generation
    }

    /// Whether there is such a cluster, by what the watches have reported.
    pub(crate) fn is_there(&self, namespace: &str, name: &str) -> bool {
        self.watched(namespace, name).is_some()
    }

    /// The cluster, as a watch has reported it last.
    fn watched(&self, namespace: &str, name: &str) -> Option<Arc<KnownObject<ClusterObject>>> {
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

/// Compares what the watches have reported with a list, again and again: a watch may stand still without an error.
async fn compare(shared: &Shared, namespaces: &[String]) {
    loop {
        tokio::time::sleep(COMPARE_INTERVAL).await;
        // A list that never ends would end all comparing.
        let listed = generations(&shared.client, namespaces);
        match tokio::time::timeout(LIST_TIMEOUT, listed).await {
            Ok((present, unknown)) => {
                let is_unknown = |name: &str| {
                    unknown.iter().any(|namespace| {
                        namespace.is_none_or(|it| name.split('/').next() == Some(it))
                    })
                };
                let reported = |name: &str| shared.generation(name);
                shared
                    .reconciles
                    .compare(&present, reported, |name| !is_unknown(name));
            }
            Err(_) => tracing::warn!("the list of the clusters timed out"),
        }
    }
}

/// Clusters by their full names, and their generations; and the namespaces that can't be listed, as one without the operator's
/// role: `None` for all.
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
    let config = Config::default()
        .concurrency(CONCURRENCY)
        .debounce(DEBOUNCE);
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
                // An object of a cluster that is gone has changed, or a retry of the cluster was due: no failure.
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
            // Requests fail when the cluster goes meanwhile: no failure.
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

/// When to reconcile again without a change: the interval grows with the time for which servers have not served, or for which the
/// cluster has waited.
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
        WAITING_RESYNC
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
        Some(lasts) => lasts.clamp(RESYNC_MIN, most),
        None => most,
    }
}

/// Dereference, decide, carry out, write the status.
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
    let unavailable = shared.definitions.unavailable(&shared.client).await?;
    let now = Timestamp::now();
    let mut observed = objects
        .observe(&cluster, &shared.settings, unavailable, now)
        .await?;
    if cluster::adopts(&cluster, &observed) {
        // A deletion that leaves everything (`--cascade=orphan`) takes the owner off each object after the resource is marked. An object
        // that got the owner back would go with it, with its pods.
        let now = objects.cluster(name).await?;
        let uid = &cluster.metadata.uid;
        let is_there =
            |it: ClusterObject| it.metadata.uid == *uid && it.metadata.deletion_timestamp.is_none();
        if !now.is_some_and(is_there) {
            return Ok(Action::requeue(CONTINUE_AFTER));
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
        None if done.is_cut_off => Ok(Action::requeue(CONTINUE_AFTER)),
        None if observed.namespace_ends => Ok(Action::requeue(RESYNC_INTERVAL)),
        // An apply that changed nothing leads to no event of a watch.
        None if is_newly_altered => Ok(Action::requeue(CONTINUE_AFTER)),
        None => {
            let now = Timestamp::now();
            let status = cluster.status.as_ref();
            let pause = status.map_or(RESYNC_MIN, |status| requeue_after(status, now));
            let pause = pause.mul_f64(rand::random_range(1.0..1.5));
            let due = cluster::due_in(&cluster, &observed, &shared.settings, now);
            let due = due.map(|seconds| Duration::from_secs(seconds + 1));
            Ok(Action::requeue(due.map_or(pause, |due| pause.min(due))))
        }
    }
}

/// Keeps what admission altered of a cluster's objects for the next reconcile. Returns whether that has changed.
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
            observed.turn_wait = Some(why);
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
    let goes_on = plan.is_to_restart && (is_repair || cluster::waits_for_servers(&last));
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
    if objects.write_status(cluster, &status).await? {
        shared.metrics.writes.inc();
        publish(shared, cluster, &status).await;
        cluster.status = Some(status);
    }
    Ok(())
}

/// Publishes events for `kubectl describe`. A lost event does no harm: the status says the same.
async fn publish(shared: &Shared, cluster: &ClusterObject, status: &Status) {
    let reference = cluster.object_ref(&());
    for (condition, is_warning) in cluster::turned(cluster.status.as_ref(), status) {
        tracing::info!(
            condition = condition.type_,
            status = condition.status,
            reason = condition.reason,
            message = condition.message,
            "turned"
        );
        let event = Event {
            type_: if is_warning {
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
            Err(error) => tracing::warn!(%error, "cannot publish an event"),
        }
    }
}

#[cfg(test)]
mod tests;
