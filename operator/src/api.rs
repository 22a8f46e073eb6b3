//! The API server: reads a cluster's objects, and carries out plans.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{join_all, try_join, try_join_all};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::api::{ApiResource, ObjectMeta};
use kube::core::Status as KubeStatus;
use kube::{Client, Resource};
use percolator_api::{ClusterObject, Status};
use percolator_telemetry::endpoint;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{
    self, FAILED_WEBHOOK, Kind, MANAGER, Object, Observed, Plan, Refusal, Settings,
    UnavailableReason,
};
use crate::masters;

/// The cause of a refusal, of Kubernetes' plugin NamespaceLifecycle.
const NAMESPACE_ENDS: &str = "NamespaceTerminating";
/// How long the writes of a reconcile may take. Each one may wait for a webhook that doesn't answer; the next reconcile does the
/// rest.
const WRITES_TIMEOUT: Duration = Duration::from_secs(20);
/// How many claims are read at a time: there may be a thousand servers.
const READ_AT_A_TIME: usize = 16;
/// How long a server may take to report why it isn't ready: the operator may not reach it.
const READYZ_TIMEOUT: Duration = Duration::from_secs(1);

/// The namespaces to list and watch: each of these, or all at once (`None`) if none is named.
pub(crate) fn scopes(namespaces: &[String]) -> impl Iterator<Item = Option<&str>> {
    let all = namespaces.is_empty().then_some(None);
    all.into_iter()
        .chain(namespaces.iter().map(|name| Some(name.as_str())))
}

/// Why a server isn't ready, as it reports it; none if it doesn't answer, or is ready by now.
async fn not_ready_message(address: &str) -> Option<String> {
    let response = tokio::time::timeout(READYZ_TIMEOUT, endpoint::get(address, "/readyz")).await;
    let response = response.ok()?.ok()?;
    (response.status != 200).then_some(response.body)
}

fn text(object: &Value, path: &str) -> Option<String> {
    object.pointer(path)?.as_str().map(str::to_owned)
}

fn claims_api() -> ApiResource {
    ApiResource::erase::<PersistentVolumeClaim>(&())
}

/// The result of carrying out a plan.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CarriedOut {
    /// The writes that the API server refused.
    pub(crate) refused: Vec<Refusal>,
    /// The timeout passed before the rest.
    pub(crate) is_cut_off: bool,
}

/// One of a plan's writes.
enum Write<'a> {
    Apply(&'a Object),
    ChangeClaim(&'a str, &'a Value),
    Remove(Kind, &'a str),
    Release(&'a str),
}

impl Write<'_> {
    fn is_of_set(&self) -> bool {
        matches!(self, Self::Apply(object) if object.kind == Kind::StatefulSet)
    }

    fn is_of_monitoring(&self) -> bool {
        match self {
            Self::Apply(object) => object.kind.is_of_monitoring(),
            Self::Remove(kind, _) => kind.is_of_monitoring(),
            Self::ChangeClaim(..) | Self::Release(_) => false,
        }
    }
}

/// All of them, in their order.
fn writes(plan: &Plan) -> impl Iterator<Item = Write<'_>> {
    let is_late = |object: &&Object| object.kind.is_of_monitoring();
    let objects = plan.apply.iter().filter(move |object| !is_late(object));
    let claims = plan.claims.iter();
    let claims = claims.map(|(name, change)| Write::ChangeClaim(name, change));
    let removed = plan.remove.iter();
    let removed = removed.map(|(kind, name)| Write::Remove(*kind, name));
    let released = plan.release.iter().map(|name| Write::Release(name));
    let late = plan.apply.iter().filter(is_late).map(Write::Apply);
    let first = objects.map(Write::Apply).chain(claims);
    first.chain(removed).chain(released).chain(late)
}

/// The refusal of a write, if it was refused. Another failure ends the reconcile.
fn refusal(result: kube::Result<()>, is_of_monitoring: bool) -> kube::Result<Option<Refusal>> {
    match result {
        Ok(()) => Ok(None),
        Err(kube::Error::Api(why)) if is_refusal(&why) && !is_of_ending_namespace(&why) => {
            tracing::info!(why.message, "refused");
            let message = stable_message(&why.message).to_owned();
            Ok(Some(if is_of_monitoring {
                Refusal::of_monitoring(message)
            } else {
                Refusal::of_servers(message)
            }))
        }
        Err(error) => Err(error),
    }
}

/// The part of a message that is the same each time: after the name of a webhook that can't be called there may be times and
/// ports.
fn stable_message(message: &str) -> &str {
    let end = message.find(FAILED_WEBHOOK).and_then(|at| {
        let name = at + FAILED_WEBHOOK.len();
        Some(name + message[name..].find('"')? + 1)
    });
    end.map_or(message, |end| &message[..end])
}

/// Whether nothing can be made in the namespace, because it is being deleted, and the cluster with it.
pub(crate) fn is_of_ending_namespace(why: &KubeStatus) -> bool {
    let causes = why.details.iter().flat_map(|details| &details.causes);
    why.code == 403
        && causes
            .into_iter()
            .any(|cause| cause.reason == NAMESPACE_ENDS)
}

/// Whether the same request will be refused again, until a person changes something. Conflicts and too many
/// requests pass by themselves.
fn is_refusal(why: &KubeStatus) -> bool {
    // The API server reports an internal error if a patch can't be merged, as with two elements of one name in a list, and if a
    // webhook doesn't answer.
    let lasts = ["typed patch", FAILED_WEBHOOK];
    let lasts = why.code == 500 && lasts.iter().any(|text| why.message.contains(text));
    lasts || matches!(why.code, 400..=499) && !matches!(why.code, 401 | 404 | 409 | 429)
}

/// The API server, for one namespace.
#[derive(Clone)]
pub(crate) struct Objects {
    client: Client,
    namespace: String,
}

impl Objects {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
        }
    }

    fn kind(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, kind)
    }

    fn clusters(&self) -> Api<ClusterObject> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The resource itself, none if it's gone.
    pub(crate) async fn cluster(&self, name: &str) -> kube::Result<Option<ClusterObject>> {
        self.clusters().get_opt(name).await
    }

    /// The objects with these labels. The API server's cache, without a read of its store, is a moment old at most, and cheap if
    /// there are many objects of other clusters.
    async fn labelled<K>(&self, selector: &str, is_fresh: bool) -> kube::Result<Vec<K>>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let mut parameters = ListParams::default().labels(selector);
        if !is_fresh {
            parameters = parameters.match_any();
        }
        let api = Api::<K>::namespaced(self.client.clone(), &self.namespace);
        Ok(api.list(&parameters).await?.items)
    }

    async fn pods_and_claims(
        &self,
        of_cluster: &str,
        is_fresh: bool,
    ) -> kube::Result<(Vec<Pod>, Vec<PersistentVolumeClaim>)> {
        try_join(
            self.labelled::<Pod>(of_cluster, is_fresh),
            self.labelled::<PersistentVolumeClaim>(of_cluster, is_fresh),
        )
        .await
    }

    /// The object of this name, or why its kind is unavailable.
    async fn named(
        &self,
        kind: Kind,
        name: &str,
    ) -> kube::Result<Option<Result<Value, UnavailableReason>>> {
        match self.kind(&kind.api()).get_opt(name).await {
            Ok(found) => Ok(found.map(|object| Ok(json!(object)))),
            // No reason to leave the servers alone.
            Err(kube::Error::Api(status)) if status.code == 403 && kind.is_of_monitoring() => {
                Ok(Some(Err(UnavailableReason::Permission)))
            }
            // A missing object would be a Status with this reason: the definition has gone since it was read.
            Err(kube::Error::Api(status)) if status.code == 404 && kind.is_of_monitoring() => {
                Ok(Some(Err(UnavailableReason::Definition)))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads what is there of the cluster, and the objects whose names it needs. Decisions rest on reads of the store.
    /// `unavailable` has the kinds without definitions.
    pub(crate) async fn observe(
        &self,
        cluster: &ClusterObject,
        settings: &Settings,
        mut unavailable: BTreeMap<Kind, UnavailableReason>,
        now: Timestamp,
    ) -> kube::Result<Observed> {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let of_cluster = cluster::selector_text(&cluster::selector(name));
        let made = self.labelled::<Deployment>(&of_cluster, false).await?;
        let needed = cluster::names_needed(cluster, settings, &made);
        let needed = needed
            .into_iter()
            .filter(|(kind, _)| !unavailable.contains_key(kind));
        let objects = needed.map(|(kind, name)| async move {
            let found = self.named(kind, &name).await;
            found.map(|found| Some(((kind, name), found?)))
        });
        let (objects, (pods, claims)) = try_join(
            try_join_all(objects),
            self.pods_and_claims(&of_cluster, false),
        )
        .await?;
        let mut found = BTreeMap::new();
        for (key, object) in objects.into_iter().flatten() {
            match object {
                Ok(object) => drop(found.insert(key, object)),
                Err(reason) => drop(unavailable.insert(key.0, reason)),
            }
        }
        let mut observed = Observed {
            objects: found,
            claims,
            unavailable,
            ..Observed::default()
        };
        if observed.has_deployments() {
            observed.replica_sets = self.labelled::<ReplicaSet>(&of_cluster, false).await?;
        }
        observed.pods = observed.own_pods(cluster, pods);
        let claims = self.claims();
        let unknown = cluster::claims_to_ask_for(cluster, &observed);
        for names in unknown.chunks(READ_AT_A_TIME) {
            let found = try_join_all(names.iter().map(|name| claims.get_opt(name))).await?;
            for claim in found.into_iter().flatten() {
                cluster::note_claim(cluster, &mut observed, claim);
            }
        }
        if cluster::wants_fresh_lists(cluster, &observed, settings) {
            let (pods, claims) = self.pods_and_claims(&of_cluster, true).await?;
            observed.pods = observed.own_pods(cluster, pods);
            observed.claims = claims;
        }
        if let Some(addresses) = cluster::masters_to_ask(cluster, &observed) {
            observed.master = masters::ask(name, &addresses).await;
        }
        for (set, uid) in cluster::without_pods(cluster, &observed, now) {
            let events = self.events(&uid).await?;
            let refusal = cluster::last_refusal(&events);
            observed.refused_pods.extend(refusal.map(|why| (set, why)));
        }
        let not_ready = cluster::to_ask(&observed).into_iter();
        let messages =
            join_all(not_ready.map(|(pod, address)| async move {
                Some((pod, not_ready_message(&address).await?))
            }));
        observed.not_ready_messages = messages.await.into_iter().flatten().collect();
        Ok(observed)
    }

    /// The events of an object.
    async fn events(&self, uid: &str) -> kube::Result<Vec<Event>> {
        let parameters = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let api = Api::<Event>::namespaced(self.client.clone(), &self.namespace);
        Ok(api.list(&parameters).await?.items)
    }

    /// Carries out a plan until its end or the timeout, and records in `observed` what is there then. After a refusal all writes but
    /// those of StatefulSets go on. Objects for the Prometheus operator come last.
    ///
    /// # Errors
    /// The API server doesn't answer, or accepts nothing more in this namespace: the rest is not carried out.
    pub(crate) async fn carry_out(
        &self,
        plan: &Plan,
        observed: &mut Observed,
    ) -> kube::Result<CarriedOut> {
        let mut refused = Vec::new();
        let began = Instant::now();
        for write in writes(plan) {
            if began.elapsed() > WRITES_TIMEOUT {
                return Ok(CarriedOut {
                    refused,
                    is_cut_off: true,
                });
            }
            // What its pods need may be missing.
            if write.is_of_set() && !refused.is_empty() {
                continue;
            }
            let done = self.write(&write, observed).await;
            refused.extend(refusal(done, write.is_of_monitoring())?);
        }
        Ok(CarriedOut {
            refused,
            is_cut_off: false,
        })
    }

    async fn write(&self, write: &Write<'_>, observed: &mut Observed) -> kube::Result<()> {
        match *write {
            Write::Apply(object) => self.apply(object, observed).await,
            Write::ChangeClaim(name, change) => self.change_claim(name, change, observed).await,
            Write::Remove(kind, name) => {
                let live = &observed.objects[&(kind, name.to_owned())];
                let only = Preconditions {
                    uid: text(live, "/metadata/uid"),
                    resource_version: None,
                };
                self.remove(&kind.api(), name, only).await?;
                observed.note_removed(kind, name);
                Ok(())
            }
            Write::Release(name) => {
                let mut claims = observed.claims.iter();
                let live = claims.find(|claim| cluster::name_of(*claim) == name);
                // The version that was read: the claim may have a volume by now.
                let only = Preconditions {
                    uid: live.and_then(|live| live.metadata.uid.clone()),
                    resource_version: live.and_then(|live| live.metadata.resource_version.clone()),
                };
                self.remove(&claims_api(), name, only).await?;
                observed.note_released(name);
                Ok(())
            }
        }
    }

    /// Applies an object, and records the API server's response.
    async fn apply(&self, object: &Object, observed: &mut Observed) -> kube::Result<()> {
        let mut value = object.value.clone();
        let mut parameters = PatchParams::apply(MANAGER);
        // The object that was read, in the version that was read. If there was none, others may have made one since. A deletion
        // that leaves everything (`--cascade=orphan`) may have taken its owner off; an object that got the owner back would go
        // with it.
        if let Some(live) = observed.get(object.kind, &object.name) {
            for field in ["uid", "resourceVersion"] {
                value["metadata"][field] = live["metadata"][field].clone();
            }
            parameters = parameters.force();
        }
        let applied = self
            .kind(&object.kind.api())
            .patch(&object.name, &parameters, &Patch::Apply(value))
            .await?;
        let (kind, name) = (object.kind.name(), &object.name);
        tracing::info!(kind, name, "applied");
        observed.note_applied(object, json!(applied));
        Ok(())
    }

    async fn change_claim(
        &self,
        name: &str,
        change: &Value,
        observed: &mut Observed,
    ) -> kube::Result<()> {
        let as_manager = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let changed = self
            .claims()
            .patch(name, &as_manager, &Patch::Merge(change.clone()))
            .await?;
        tracing::info!(claim = name, %change, "changed a claim");
        let mut claims = observed.claims.iter_mut();
        if let Some(known) = claims.find(|claim| cluster::name_of(&**claim) == name) {
            *known = changed;
        }
        Ok(())
    }

    /// Removes an object, if it is the one that was read, and no other that has taken its name since.
    async fn remove(
        &self,
        kind: &ApiResource,
        name: &str,
        only: Preconditions,
    ) -> kube::Result<()> {
        let parameters = DeleteParams {
            preconditions: Some(only),
            ..DeleteParams::default()
        };
        match self.kind(kind).delete(name, &parameters).await {
            Ok(_) => {
                tracing::info!(kind = kind.kind, name, "removed");
                Ok(())
            }
            // By its code: without the definition the response is no Status.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes the status, unless it's there already.
    pub(crate) async fn write_status(
        &self,
        cluster: &ClusterObject,
        status: &Status,
    ) -> kube::Result<bool> {
        if cluster.status.as_ref() == Some(status) {
            return Ok(false);
        }
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        // The object that was read, and no other of its name.
        let object = json!({
            "apiVersion": ClusterObject::api_version(&()),
            "kind": ClusterObject::kind(&()),
            "metadata": ObjectMeta {
                name: Some(name.to_owned()),
                uid: cluster.metadata.uid.clone(),
                ..ObjectMeta::default()
            },
            "status": status,
        });
        let parameters = PatchParams::apply(MANAGER).force();
        self.clusters()
            .patch_status(name, &parameters, &Patch::Apply(object))
            .await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
