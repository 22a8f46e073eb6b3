//! Of several oracles: whether a cluster has a register, how many oracles may run by now, and who leads. Pure.

use k8s_openapi::ByteString;
use percolator_api::{ClusterObject, Leader};
use percolator_protocol::election::Leadership;
use percolator_register::StoredRecord;
use percolator_register_kube::KEY;
use serde_json::Value;

use super::names::{self, Role};
use super::object::Kind;
use super::observed::{self, Observed, Standing};

/// The argument of an oracle that shares a register.
pub(crate) const REGISTER: &str = "--register=";

/// How the oracles of a cluster are to run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OraclePlan {
    /// They share a register. Without one an oracle is alone, and needs no API server.
    pub(crate) has_register: bool,
    /// How many are to run: fewer than the spec asks for until the register has a value.
    pub(crate) replicas: u32,
}

impl OraclePlan {
    /// An oracle that has been alone must begin the register before another one joins: only it knows how far it has
    /// granted. And a cluster that has had a register keeps it, because the limit is nowhere else then.
    pub(crate) fn of(cluster: &ClusterObject, observed: &Observed) -> Self {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let asked = cluster.spec.oracle.replicas;
        let set = observed.set(name, Role::Oracle);
        let set_has_register = set.is_some_and(|set| has_argument(set, REGISTER));
        let register = register(cluster, observed);
        let has_register = asked > 1 || set_has_register || register.is_some();
        let joining = match set {
            _ if register.and_then(value).is_some() => asked,
            // None has ever granted a timestamp.
            None if observed.volumes(name, Role::Oracle) == 0 => asked,
            Some(set) if set_has_register => {
                let live = observed::number(set, "/spec/replicas");
                u32::try_from(live).unwrap_or(1).max(1)
            }
            Some(_) | None => 1,
        };
        Self {
            has_register,
            replicas: asked.min(joining),
        }
    }
}

/// The register, where it is the cluster's own.
fn register<'a>(cluster: &ClusterObject, observed: &'a Observed) -> Option<&'a Value> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let register = observed.get(Kind::ConfigMap, &names::register(name))?;
    (observed::standing(register, cluster) != Standing::Foreign).then_some(register)
}

/// What oracles have stored there; none if nothing was stored, or something else.
fn value(register: &Value) -> Option<Leadership> {
    let bytes = register["binaryData"].get(KEY)?;
    let ByteString(bytes) = serde_json::from_value(bytes.clone()).ok()?;
    let record = StoredRecord::decode(bytes).ok()?;
    Leadership::decode(&record.value).ok()
}

/// Who leads the oracles, by their register. One that has lost its value says nothing: then it is who led last.
pub(crate) fn leader(cluster: &ClusterObject, observed: &Observed) -> Option<Leader> {
    let Some(leadership) = register(cluster, observed).and_then(value) else {
        return led_last(cluster);
    };
    Some(Leader {
        server: leadership.holder?.name,
        term: i64::try_from(leadership.term).unwrap_or(i64::MAX),
    })
}

fn led_last(cluster: &ClusterObject) -> Option<Leader> {
    cluster.status.as_ref()?.oracle.leader.clone()
}

/// What is wrong with the register, if it has had a value, and has none any more.
pub(crate) fn lost_register(cluster: &ClusterObject, observed: &Observed) -> Option<String> {
    let Leader { server, term } = led_last(cluster)?;
    if register(cluster, observed).and_then(value).is_some() {
        return None;
    }
    let name = names::register(cluster.metadata.name.as_deref().unwrap_or_default());
    Some(format!(
        "ConfigMap {name} has lost its value, by which {server} led in term {term}: no timestamps are granted, because they \
         could be granted twice; restore its binaryData from a copy, and delete the oracles' pods"
    ))
}

/// The service accounts of the oracles' pods that use the register now: a role that is taken from them would end their
/// leadership.
pub(crate) fn accounts_in_use(observed: &Observed) -> impl Iterator<Item = &str> {
    let component = Role::Oracle.component();
    let pods = observed.pods.iter().filter(move |pod| {
        let label = &pod["metadata"]["labels"]["app.kubernetes.io/component"];
        *label == component && has_argument_of_pod(pod, REGISTER)
    });
    pods.filter_map(|pod| pod.pointer("/spec/serviceAccountName")?.as_str())
}

fn has_argument(set: &Value, flag: &str) -> bool {
    set.pointer("/spec/template")
        .is_some_and(|pod| has_argument_of_pod(pod, flag))
}

fn has_argument_of_pod(pod: &Value, flag: &str) -> bool {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let mut arguments = containers.into_iter().flatten().flat_map(|container| {
        let arguments = container["args"].as_array().into_iter().flatten();
        arguments.filter_map(Value::as_str)
    });
    arguments.any(|argument| argument.starts_with(flag))
}
