//! What is there of a cluster: read for each reconciliation, so that no decision rests on an old cache.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use percolator_api::{ClusterObject, Quantity};
use serde_json::{Value, json};

use super::drift::Altered;
use super::monitored::Lack;
use super::names::{self, CLAIM, CLUSTER_LABEL, COMPONENT_LABEL, MANAGER, Role, RoleSpec};
use super::object::{Kind, Object, asked_mark};
use super::scale_in::MasterReport;

/// The annotation of StatefulSets that has the size which was last asked of their volumes: a set's own template keeps the
/// first one.
pub(crate) const SIZE_ASKED: &str = "percolator.dev/volume-size";

/// The objects of a cluster as the API server has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Those of the kinds that we make, which are ours or have a name that we need.
    pub(crate) objects: BTreeMap<(Kind, String), Value>,
    /// The pods of the cluster's StatefulSets and Deployments.
    pub(crate) pods: Vec<Value>,
    /// What Deployments have their pods made by: those with the cluster's labels.
    pub(crate) replica_sets: Vec<Value>,
    /// The volumes' claims with the cluster's labels.
    pub(crate) claims: Vec<Value>,
    /// Claims without these labels whose names the cluster needs.
    pub(crate) foreign_claims: Vec<String>,
    /// The kinds that can't be made here, and why.
    pub(crate) lacking: BTreeMap<Kind, Lack>,
    /// What servers that run say of why they aren't ready, by their pods.
    pub(crate) said: BTreeMap<String, String>,
    /// Why Kubernetes doesn't make a StatefulSet's pods, by the set.
    pub(crate) refused_pods: BTreeMap<String, String>,
    /// What the API server keeps otherwise than it was asked for.
    pub(crate) altered: BTreeMap<(Kind, String), Altered>,
    /// What the master says of the tablet servers.
    pub(crate) master: MasterReport,
    /// Why servers that are there may not be changed now, if so: other clusters' are.
    pub(crate) turn_awaited: Option<String>,
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
    pub(crate) fn remember(&mut self, mut altered: BTreeMap<(Kind, String), Altered>) {
        altered.retain(|key, altered| {
            self.objects
                .get(key)
                .is_some_and(|live| altered.is_of(live))
        });
        self.altered = altered;
    }

    /// Notes what the API server made of an object that was applied.
    pub(crate) fn note_applied(&mut self, object: &Object, answer: Value) {
        let key = (object.kind, object.name.clone());
        match Altered::of(object, &answer) {
            Some(altered) => drop(self.altered.insert(key.clone(), altered)),
            None => drop(self.altered.remove(&key)),
        }
        self.objects.insert(key, answer);
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
        let claim = claims.find(|found| name(found) == claim);
        claim.into_iter().for_each(leaves);
    }

    pub(crate) fn has_deployments(&self) -> bool {
        self.objects
            .keys()
            .any(|(kind, _)| *kind == Kind::Deployment)
    }

    /// Of these pods, those that a StatefulSet of the cluster controls, or a Deployment's ReplicaSet. Anyone can give a pod the
    /// same labels.
    pub(crate) fn own_pods(&self, cluster: &ClusterObject, mut pods: Vec<Value>) -> Vec<Value> {
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
            let owner = controller(set).and_then(|owner| owner["uid"].as_str());
            owner.is_some_and(|owner| deployments.contains(owner))
        });
        let ids: BTreeSet<String> = sets.chain(replica_sets).filter_map(id).collect();
        pods.retain(|pod| {
            let owner = controller(pod).and_then(|owner| owner["uid"].as_str());
            owner.is_some_and(|owner| ids.contains(owner))
        });
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
    pub(crate) fn claims_of(&self, cluster: &str, role: Role) -> BTreeMap<u32, &Value> {
        let prefix = format!("{CLAIM}-{}-", role.set(cluster));
        let ordinal = |claim: &Value| name(claim).strip_prefix(&prefix)?.parse().ok();
        let claims = self.claims.iter();
        claims
            .filter_map(|claim| Some((ordinal(claim)?, claim)))
            .collect()
    }

    /// Of these, those that have, or had, a volume, and stay.
    fn claims_with_volumes(&self, cluster: &str, role: Role) -> BTreeMap<u32, &Value> {
        let mut claims = self.claims_of(cluster, role);
        claims.retain(|_, claim| has_volume(claim) && !is_leaving(claim));
        claims
    }

    /// Whether a server of the role has a volume: also where its claim is to go, which stays for as long as its pod does; and
    /// where its claim isn't known for the cluster's, as one that has lost its labels: no pod has a node before its claim has a
    /// volume.
    fn keeps_data(&self, cluster: &str, role: Role) -> bool {
        let mut claims = self.claims_of(cluster, role).into_values();
        claims.any(has_volume) || self.has_placed_pods(cluster, role)
    }

    fn has_placed_pods(&self, cluster: &str, role: Role) -> bool {
        let prefix = format!("{}-", role.set(cluster));
        let is_of_role = |pod: &Value| {
            let ordinal = name(pod).strip_prefix(&prefix);
            ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
        };
        let is_placed = |pod: &Value| pod.pointer("/spec/nodeName").is_some_and(Value::is_string);
        self.pods
            .iter()
            .any(|pod| is_of_role(pod) && is_placed(pod))
    }

    /// How many servers there are up to the last one that has, or had, a volume.
    pub(crate) fn volumes(&self, cluster: &str, role: Role) -> u32 {
        self.volumes_but(cluster, role, &BTreeSet::new())
    }

    /// The same without these servers, which are drained: what lies at the others may be all there is of some rows.
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

    /// The template of claims that a StatefulSet was made with, which it can't change. None where there's no set,
    /// and where something else is asked for before there is any volume: it's made anew then.
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
        let serving = pods.filter(|pod| !is_leaving(pod) && is_ready(pod));
        serving.map(name).collect()
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
    let kept = set["metadata"]["annotations"][SIZE_ASKED].as_str();
    let kept = kept.and_then(|size| size.parse().ok());
    kept.or_else(|| Some(made_with(set)?.1))
}

/// Whose an object is that has a name which a cluster needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The cluster's own; or one that a former cluster of this name left to itself, when it was deleted without what it
    /// had (`--cascade=orphan`).
    Ours,
    /// A former cluster's of this name: Kubernetes removes it.
    Former,
    /// Somebody else's.
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

fn controller(object: &Value) -> Option<&Value> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

/// Marks an object as one that is being removed. When that was asked for is for nobody to know.
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

/// Whether a claim has, or had, a volume: a server may have written to it. One that is made of a snapshot or of another
/// claim is as good as that, before it has one.
pub(crate) fn has_volume(claim: &Value) -> bool {
    let phase = claim.pointer("/status/phase").and_then(Value::as_str);
    ["volumeName", "dataSource", "dataSourceRef"]
        .iter()
        .any(|field| claim["spec"].get(field).is_some())
        || phase.is_some_and(|phase| phase != "Pending")
}

/// Whether a claim has its volume.
pub(crate) fn is_bound(claim: &Value) -> bool {
    claim.pointer("/status/phase").and_then(Value::as_str) == Some("Bound")
}

/// A condition of an object's status.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// How many seconds ago a time was.
pub(crate) fn seconds_since(time: &Value, now: Timestamp) -> Option<i64> {
    let time = time.as_str()?.parse::<Timestamp>().ok()?;
    Some(now.as_second() - time.as_second())
}

/// Of a pod's containers, or what is told of them, that of its server: others may have been added.
pub(crate) fn of_server<'a>(pod: &Value, containers: &'a [Value]) -> Option<&'a Value> {
    let role = pod["metadata"]["labels"].get(COMPONENT_LABEL);
    let mut all = containers.iter();
    let its = all.find(|it| role.is_some_and(|role| it["name"] == *role));
    its.or(containers.first())
}

/// Whether the pod is a worker of an observer, which may have an image of its own.
pub(crate) fn is_of_observer(pod: &Value) -> bool {
    let component = pod["metadata"]["labels"][COMPONENT_LABEL].as_str();
    component.is_some_and(|it| it.starts_with(&names::observer("")))
}

/// A port of a pod, by the pod's address; none before it has one.
pub(crate) fn address(pod: &Value, port: u16) -> Option<String> {
    let ip = pod.pointer("/status/podIP")?.as_str()?;
    Some(if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    })
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition["status"] == "True")
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
pub(crate) fn claim_size(claim: &Value) -> Option<Quantity> {
    claim
        .pointer("/spec/resources/requests/storage")?
        .as_str()?
        .parse()
        .ok()
}

/// How much a claim has.
pub(crate) fn claim_capacity(claim: &Value) -> Option<Quantity> {
    claim
        .pointer("/status/capacity/storage")?
        .as_str()?
        .parse()
        .ok()
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

/// Whether a Deployment makes its pods anew: some are of an older template, or are about to be. Not one that Kubernetes has given up, or
/// may make no pods of: it serves as before, and nobody knows for how long.
pub(crate) fn replaces_pods(deployment: &Value) -> bool {
    let pods = number(deployment, "/status/replicas");
    let seen = number(deployment, "/status/observedGeneration");
    if seen < number(deployment, "/metadata/generation") {
        return pods > 0;
    }
    let is =
        |kind, status| condition(deployment, kind).is_some_and(|found| found["status"] == status);
    let is_stuck = is("Progressing", "False") || is("ReplicaFailure", "True");
    !is_stuck && number(deployment, "/status/updatedReplicas") < pods
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
