//! What is there of a cluster: read for each reconcile, so that no decision rests on an old cache.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod,
    PodCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use percolator_api::{ClusterObject, Quantity};
use serde_json::{Value, json};

use super::drift::AlteredObject;
use super::monitored::UnavailableReason;
use super::names::{self, CLAIM, CLUSTER_LABEL, COMPONENT_LABEL, MANAGER, Role, RoleSpec};
use super::object::{Kind, Object, asked_mark};
use super::scale_in::MasterReport;

/// The annotation of StatefulSets with the last size that was applied to their volumes: a set's own template keeps the first one.
pub(crate) const SIZE_ASKED: &str = "percolator.dev/volume-size";

/// The objects of a cluster as the API server has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Objects of the kinds that the operator makes: the cluster's own, and others whose names it needs.
    pub(crate) objects: BTreeMap<(Kind, String), Value>,
    /// The pods of the cluster's StatefulSets and Deployments.
    pub(crate) pods: Vec<Pod>,
    /// The ReplicaSets with the cluster's labels: they own the pods of Deployments.
    pub(crate) replica_sets: Vec<ReplicaSet>,
    /// The volumes' claims with the cluster's labels.
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    /// Claims without these labels whose names the cluster needs.
    pub(crate) foreign_claims: Vec<String>,
    /// The kinds that can't be made here, and why.
    pub(crate) unavailable: BTreeMap<Kind, UnavailableReason>,
    /// Why servers that run aren't ready, as they report it, by their pods.
    pub(crate) not_ready_messages: BTreeMap<String, String>,
    /// Why Kubernetes doesn't make a StatefulSet's pods, by the set.
    pub(crate) refused_pods: BTreeMap<String, String>,
    /// Objects that the API server keeps otherwise than they were applied.
    pub(crate) altered: BTreeMap<(Kind, String), AlteredObject>,
    /// What the master reports of the tablet servers.
    pub(crate) master: MasterReport,
    /// Why servers that are there may not be changed now: other clusters have their turn.
    pub(crate) turn_wait: Option<String>,
    /// Nothing can be made any more, because the namespace is being deleted.
    pub(crate) namespace_ends: bool,
}

impl Observed {
    pub(crate) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    /// Whether the object is there as it is asked for, or as the API server made of it when it was last applied.
    pub(crate) fn has(&self, object: &Object) -> bool {
        let Some(live) = self.get(object.kind, &object.name) else {
            return false;
        };
        let altered = self.altered.get(&(object.kind, object.name.clone()));
        object.is_met_by(live) || altered.is_some_and(|altered| altered.accounts_for(object, live))
    }

    /// Takes over what was altered before, as far as it's still so.
    pub(crate) fn remember(&mut self, mut altered: BTreeMap<(Kind, String), AlteredObject>) {
        altered.retain(|key, altered| {
            self.objects
                .get(key)
                .is_some_and(|live| altered.is_of(live))
        });
        self.altered = altered;
    }

    /// Notes what the API server made of an object that was applied.
    pub(crate) fn note_applied(&mut self, object: &Object, applied: Value) {
        let key = (object.kind, object.name.clone());
        match AlteredObject::of(object, &applied) {
            Some(altered) => drop(self.altered.insert(key.clone(), altered)),
            None => drop(self.altered.remove(&key)),
        }
        self.objects.insert(key, applied);
    }

    /// Notes that the API server removes an object, which may take a while.
    pub(crate) fn note_removed(&mut self, kind: Kind, name: &str) {
        let key = (kind, name.to_owned());
        self.altered.remove(&key);
        self.objects.get_mut(&key).into_iter().for_each(leaves);
    }

    /// Notes that the API server removes a claim, which may take a while.
    pub(crate) fn note_released(&mut self, claim: &str) {
        let mut claims = self.claims.iter_mut();
        if let Some(claim) = claims.find(|found| name_of(&**found) == claim) {
            // The API server's own time isn't known.
            let time = &mut claim.metadata.deletion_timestamp;
            time.get_or_insert(Time(Timestamp::UNIX_EPOCH));
        }
    }

    pub(crate) fn has_deployments(&self) -> bool {
        self.objects
            .keys()
            .any(|(kind, _)| *kind == Kind::Deployment)
    }

    /// Of these pods, those that a StatefulSet of the cluster controls, or a Deployment's ReplicaSet. Anyone can give a pod the
    /// same labels.
    pub(crate) fn own_pods(&self, cluster: &ClusterObject, mut pods: Vec<Pod>) -> Vec<Pod> {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let sets = Role::ALL.into_iter();
        let sets = sets.filter_map(|role| self.set(name, role));
        let sets = sets.filter(|set| standing(set, cluster) == Standing::Ours);
        let id = |object: &'_ Value| Some(object.pointer("/metadata/uid")?.as_str()?.to_owned());
        let deployments = self.objects.iter().filter(|((kind, _), live)| {
            *kind == Kind::Deployment && standing(live, cluster) == Standing::Ours
        });
        let deployments: BTreeSet<String> = deployments.filter_map(|(_, live)| id(live)).collect();
        let replica_sets = self.replica_sets.iter().filter(|set| {
            controller_uid(&set.metadata).is_some_and(|owner| deployments.contains(owner))
        });
        let replica_sets = replica_sets.filter_map(|set| set.metadata.uid.clone());
        let ids: BTreeSet<String> = sets.filter_map(id).chain(replica_sets).collect();
        pods.retain(|pod| controller_uid(&pod.metadata).is_some_and(|owner| ids.contains(owner)));
        pods
    }

    pub(crate) fn set(&self, cluster: &str, role: Role) -> Option<&Value> {
        self.get(Kind::StatefulSet, &role.set(cluster))
    }

    /// The StatefulSet, where it's this cluster's, and not that of a former one of its name.
    pub(crate) fn own_set(&self, cluster: &ClusterObject, role: Role) -> Option<&Value> {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        self.set(name, role).filter(|set| is_ours(set, cluster))
    }

    /// The claims of a role, by their servers' numbers: those of pods that are there, and those that pods left behind.
    pub(crate) fn claims_of(
        &self,
        cluster: &str,
        role: Role,
    ) -> BTreeMap<u32, &PersistentVolumeClaim> {
        let prefix = format!("{CLAIM}-{}-", role.set(cluster));
        let ordinal =
            |claim: &PersistentVolumeClaim| name_of(claim).strip_prefix(&prefix)?.parse().ok();
        let claims = self.claims.iter();
        claims
            .filter_map(|claim| Some((ordinal(claim)?, claim)))
            .collect()
    }

    /// Of these, those that have, or had, a volume, and stay.
    fn claims_with_volumes(
        &self,
        cluster: &str,
        role: Role,
    ) -> BTreeMap<u32, &PersistentVolumeClaim> {
        let mut claims = self.claims_of(cluster, role);
        claims.retain(|_, claim| has_volume(claim) && !is_terminating(*claim));
        claims
    }

    /// Whether a server of the role has a volume. A claim that is being removed counts, because it stays as long as its pod does. A
    /// pod with a node counts, too, because its claim has a volume by then, also if the claim has lost its labels.
    fn keeps_data(&self, cluster: &str, role: Role) -> bool {
        let mut claims = self.claims_of(cluster, role).into_values();
        claims.any(has_volume) || self.has_placed_pods(cluster, role)
    }

    fn has_placed_pods(&self, cluster: &str, role: Role) -> bool {
        let prefix = format!("{}-", role.set(cluster));
        let is_of_role = |pod: &Pod| {
            let ordinal = name_of(pod).strip_prefix(&prefix);
            ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
        };
        self.pods
            .iter()
            .any(|pod| is_of_role(pod) && node(pod).is_some())
    }

    /// How many servers there are up to the last one that has, or had, a volume.
    pub(crate) fn volumes(&self, cluster: &str, role: Role) -> u32 {
        self.volumes_but(cluster, role, &BTreeSet::new())
    }

    /// The same without these servers, which are drained. The others may have the only copy of some rows.
    pub(crate) fn volumes_but(&self, cluster: &str, role: Role, drained: &BTreeSet<u32>) -> u32 {
        let claims = self.claims_with_volumes(cluster, role);
        let mut with_rows = claims.into_keys().filter(|it| !drained.contains(it));
        with_rows.next_back().map_or(0, |last| last + 1)
    }

    /// The most that a volume of the role was asked for.
    pub(crate) fn claimed(&self, cluster: &str, role: Role) -> Option<Quantity> {
        let claims = self.claims_with_volumes(cluster, role).into_values();
        claims.filter_map(claim_size).max()
    }

    /// Whether no server of this cluster has ever had a volume but the master: the oracle and the tablet
    /// servers are made when the master serves, so a master without state is then the first one.
    pub(crate) fn is_new(&self, cluster: &str) -> bool {
        [Role::Oracle, Role::Tablet].into_iter().all(|role| {
            self.set(cluster, role).is_none() && self.claims_of(cluster, role).is_empty()
        })
    }

    /// The template of claims that a StatefulSet was made with, which it can't change. None if there is no set, or if the spec asks for
    /// other claims before there is a volume: the set is made anew then.
    pub(crate) fn frozen_claim(
        &self,
        cluster: &str,
        role: Role,
        asked: &RoleSpec<'_>,
    ) -> Option<Value> {
        let set = self.set(cluster, role)?;
        let is_asked_for = made_with(set) == Some((asked.class, asked.size));
        if !is_asked_for && !self.keeps_data(cluster, role) {
            return None;
        }
        let template = set.pointer(CLAIM_TEMPLATE)?;
        let spec = template.get("spec")?;
        let mut frozen = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": {
                "accessModes": spec["accessModes"],
                "resources": {"requests": {"storage": spec.pointer("/resources/requests/storage")?}},
            },
        });
        for (part, field) in [
            ("metadata", "labels"),
            ("metadata", "annotations"),
            ("spec", "storageClassName"),
            ("spec", "volumeAttributesClassName"),
        ] {
            if let Some(value) = template[part].get(field) {
                frozen[part][field] = value.clone();
            }
        }
        Some(frozen)
    }

    /// The pods of the cluster that serve, by name.
    pub(crate) fn serving(&self) -> BTreeSet<&str> {
        let pods = self.pods.iter();
        let serving = pods.filter(|pod| !is_terminating(*pod) && is_ready(pod));
        serving.map(name_of).collect()
    }
}

const CLAIM_TEMPLATE: &str = "/spec/volumeClaimTemplates/0";

/// The class and the size of the claims that a StatefulSet makes.
pub(crate) fn made_with(set: &Value) -> Option<(Option<&str>, Quantity)> {
    let template = set.pointer(CLAIM_TEMPLATE)?.get("spec")?;
    let size = template.pointer("/resources/requests/storage")?.as_str()?;
    Some((template["storageClassName"].as_str(), size.parse().ok()?))
}

/// How much was last asked of a StatefulSet's volumes.
pub(crate) fn last_size(set: &Value) -> Option<Quantity> {
    let asked = set["metadata"]["annotations"][SIZE_ASKED].as_str();
    let asked = asked.and_then(|size| size.parse().ok());
    asked.or_else(|| Some(made_with(set)?.1))
}

/// The owner of an object whose name a cluster needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The cluster's own; or an orphan of a former cluster of this name, which was deleted with `--cascade=orphan`.
    Ours,
    /// A former cluster's of this name: Kubernetes removes it.
    Former,
    /// Another owner's.
    Foreign,
}

pub(crate) fn standing(object: &Value, cluster: &ClusterObject) -> Standing {
    if is_ours(object, cluster) {
        return Standing::Ours;
    }
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let metadata = &object["metadata"];
    match controller(object) {
        Some(owner)
            if owner["kind"] == ClusterObject::kind(&()).as_ref() && owner["name"] == name =>
        {
            Standing::Former
        }
        None if asked_mark(object).is_string()
            && metadata["labels"]["app.kubernetes.io/managed-by"] == MANAGER
            && metadata["labels"][CLUSTER_LABEL] == name =>
        {
            if is_leaving(object) {
                Standing::Former
            } else {
                Standing::Ours
            }
        }
        _ => Standing::Foreign,
    }
}

/// The uid of the object's owner that controls it.
fn controller_uid(metadata: &ObjectMeta) -> Option<&str> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(&owner.uid)
}

fn controller(object: &Value) -> Option<&Value> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

/// Marks an object as one that is being removed. The API server's own time isn't known.
fn leaves(object: &mut Value) {
    let time = &mut object["metadata"]["deletionTimestamp"];
    if time.is_null() {
        *time = json!("");
    }
}

/// Whether the object is being removed.
pub(crate) fn is_leaving(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// The same of a pod or a claim.
pub(crate) fn is_terminating<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether a claim has, or had, a volume: a server may have written to it. A claim with a data source counts before it has its
/// volume, because the source may hold rows.
pub(crate) fn has_volume(claim: &PersistentVolumeClaim) -> bool {
    let has_source = claim.spec.as_ref().is_some_and(|spec| {
        spec.volume_name.is_some() || spec.data_source.is_some() || spec.data_source_ref.is_some()
    });
    has_source || phase(claim).is_some_and(|phase| phase != "Pending")
}

/// Whether a claim has its volume.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    phase(claim) == Some("Bound")
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// A condition of a claim's status.
pub(crate) fn claim_condition<'a>(
    claim: &'a PersistentVolumeClaim,
    kind: &str,
) -> Option<&'a PersistentVolumeClaimCondition> {
    let mut conditions = claim.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

/// A condition of a pod's status.
pub(crate) fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

/// A condition of another object's status.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// How many seconds ago a time was.
pub(crate) fn seconds_since(time: &Time, now: Timestamp) -> i64 {
    now.as_second() - time.0.as_second()
}

/// The role that the pod's label says.
pub(crate) fn component(pod: &Pod) -> Option<&str> {
    let labels = pod.metadata.labels.as_ref()?;
    labels.get(COMPONENT_LABEL).map(String::as_str)
}

/// The container of the pod's server: others may have been added.
pub(crate) fn server_container(pod: &Pod) -> Option<&Container> {
    let all = &pod.spec.as_ref()?.containers;
    let its = all.iter().find(|it| component(pod) == Some(&*it.name));
    its.or(all.first())
}

/// The status of that container.
pub(crate) fn server_status(pod: &Pod) -> Option<&ContainerStatus> {
    let all = pod.status.as_ref()?.container_statuses.as_ref()?;
    let its = all.iter().find(|it| component(pod) == Some(&*it.name));
    its.or(all.first())
}

/// Whether the pod is a worker of an observer, which may have an image of its own.
pub(crate) fn is_of_observer(pod: &Pod) -> bool {
    component(pod).is_some_and(|it| it.starts_with(&names::observer("")))
}

/// The node that the pod was given.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// A port of a pod, by the pod's address; none before it has one.
pub(crate) fn address(pod: &Pod, port: u16) -> Option<String> {
    let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
    Some(if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    })
}

fn is_ready(pod: &Pod) -> bool {
    pod_condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// The name of a pod, a claim or another typed object.
pub(crate) fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// The name of an object.
pub(crate) fn name(object: &Value) -> &str {
    object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether the object is one that this cluster controls.
pub(crate) fn is_ours(object: &Value, cluster: &ClusterObject) -> bool {
    let uid = cluster.metadata.uid.as_deref();
    controller(object).is_some_and(|owner| owner["uid"].as_str() == uid)
}

/// A number of a StatefulSet's status or spec, 0 if it isn't there.
pub(crate) fn number(object: &Value, path: &str) -> i64 {
    object
        .pointer(path)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// How much a claim asks for.
pub(crate) fn claim_size(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    let asked = resources.requests.as_ref()?.get("storage")?;
    asked.0.parse().ok()
}

/// How much a claim has.
pub(crate) fn claim_capacity(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let capacity = claim.status.as_ref()?.capacity.as_ref()?;
    capacity.get("storage")?.0.parse().ok()
}

/// Whether all pods of a StatefulSet run as it says, and serve.
pub(crate) fn is_settled(set: &Value) -> bool {
    let replicas = number(set, "/spec/replicas");
    number(set, "/status/observedGeneration") >= number(set, "/metadata/generation")
        && number(set, "/status/readyReplicas") == replicas
        && number(set, "/status/updatedReplicas") == replicas
        && number(set, "/status/replicas") == replicas
}

/// Whether a StatefulSet that had made all of its pods before makes them anew.
pub(crate) fn changes_pods(set: &Value) -> bool {
    let revision = |path| set.pointer(path).and_then(Value::as_str);
    let current = revision("/status/currentRevision");
    let is_seen = number(set, "/status/observedGeneration") >= number(set, "/metadata/generation");
    current.is_some() && (!is_seen || current != revision("/status/updateRevision"))
}

/// Whether a Deployment makes its pods anew: some are of an older template, or are about to be. A Deployment whose deadline for
/// progress has passed, or that may make no pods, doesn't count: it serves as before for an unknown time.
pub(crate) fn replaces_pods(deployment: &Value) -> bool {
    let pods = number(deployment, "/status/replicas");
    let seen = number(deployment, "/status/observedGeneration");
    if seen < number(deployment, "/metadata/generation") {
        return pods > 0;
    }
    let is =
        |kind, status| condition(deployment, kind).is_some_and(|found| found["status"] == status);
    let has_failed = is("Progressing", "False") || is("ReplicaFailure", "True");
    !has_failed && number(deployment, "/status/updatedReplicas") < pods
}

/// Whether the last change of a StatefulSet is rolled out: its pods are of its newest template, and all of them have served
/// with it at a time. They may have stopped serving since.
pub(crate) fn is_rolled_out(set: &Value) -> bool {
    let revision = |path| set.pointer(path).and_then(Value::as_str);
    let updated = revision("/status/updateRevision");
    let replicas = number(set, "/spec/replicas");
    // Kubernetes makes the update's revision the current one when all pods of it serve.
    number(set, "/status/observedGeneration") >= number(set, "/metadata/generation")
        && updated.is_some()
        && updated == revision("/status/currentRevision")
        && number(set, "/status/replicas") == replicas
}
