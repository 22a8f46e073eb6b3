//! What is there of a cluster: read for each reconciliation, so that no decision rests on an old cache.

use std::collections::BTreeMap;

use percolator_api::{ClusterObject, Quantity};
use serde_json::{Value, json};

use super::build::DEFAULT_IMAGE;
use super::names::{CLAIM, Role};
use super::object::Kind;

/// The objects of a cluster as the API server has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Those of the kinds that we make, which are ours or have a name that we need.
    pub(crate) objects: BTreeMap<(Kind, String), Value>,
    /// The pods with the cluster's labels.
    pub(crate) pods: Vec<Value>,
    /// The volumes' claims with the cluster's labels.
    pub(crate) claims: Vec<Value>,
}

impl Observed {
    pub(crate) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    pub(crate) fn set(&self, cluster: &str, role: Role) -> Option<&Value> {
        self.get(Kind::StatefulSet, &role.set(cluster))
    }

    /// The claims of a role: those of pods that are there, and those that pods left behind.
    pub(crate) fn claims_of<'a>(
        &'a self,
        cluster: &str,
        role: Role,
    ) -> impl Iterator<Item = &'a Value> + use<'a> {
        let prefix = format!("{CLAIM}-{}-", role.set(cluster));
        self.claims.iter().filter(move |claim| {
            name(claim)
                .strip_prefix(&prefix)
                .is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
        })
    }

    /// Whether no server of this cluster has ever had a volume but the master: the oracle and the tablet
    /// servers are made when the master serves, so a master without state is then the first one.
    pub(crate) fn is_new(&self, cluster: &str) -> bool {
        [Role::Oracle, Role::Tablet].into_iter().all(|role| {
            self.set(cluster, role).is_none() && self.claims_of(cluster, role).next().is_none()
        })
    }

    /// The image that the operator had when it made the cluster.
    pub(crate) fn default_image(&self, cluster: &str) -> Option<&str> {
        let config = self.get(Kind::ConfigMap, cluster)?;
        config["data"][DEFAULT_IMAGE].as_str()
    }

    /// The claims' size and class that a StatefulSet was made with, which it can't change.
    pub(crate) fn frozen_claim(&self, cluster: &str, role: Role) -> Option<Value> {
        let template = self
            .set(cluster, role)?
            .pointer("/spec/volumeClaimTemplates/0/spec")?;
        let mut frozen = json!({
            "accessModes": template["accessModes"],
            "resources": {"requests": {"storage": template.pointer("/resources/requests/storage")?}},
        });
        if let Some(class) = template.get("storageClassName") {
            frozen["storageClassName"] = class.clone();
        }
        Some(frozen)
    }
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
    let owners = object.pointer("/metadata/ownerReferences");
    owners
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|owner| owner["controller"] == true && owner["uid"].as_str() == uid)
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
