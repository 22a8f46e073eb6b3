//! The registers of the roles in which one of several servers leads: whether the servers share them, how many servers may run now,
//! and the leader. Pure.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use percolator_api::{ClusterObject, Leader};
use percolator_protocol::election::Leadership;
use percolator_register::StoredRecord;
use percolator_register_kube::KEY;
use serde_json::Value;

use super::names::{self, Role};
use super::object::Kind;
use super::observed::{self, Observed, Standing};
use super::scale_in::ScaleIn;

/// The argument of a server that shares registers.
pub(crate) const REGISTER: &str = "--register=";

/// How the servers of a role run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterPlan {
    /// They share registers. Without them a server is alone, and needs no API server.
    pub(crate) has_register: bool,
    /// How many are to run: fewer than the spec asks for until the registers have their values, and more until tablet servers
    /// that are to go are drained.
    pub(crate) replicas: u32,
}

impl RegisterPlan {
    /// A server that has been alone must begin the registers before another one joins: only an oracle itself knows how far it
    /// has granted, and only a master itself has its state. And a cluster that has had registers keeps them, because those
    /// values are nowhere else then.
    pub(crate) fn of(cluster: &ClusterObject, observed: &Observed, role: Role) -> Self {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let asked = match role {
            Role::Tablet => ScaleIn::of(cluster, observed).replicas,
            Role::Master | Role::Oracle => role.asked(&cluster.spec).replicas,
        };
        let registers = names::registers(name, role);
        if registers.is_empty() {
            return Self {
                has_register: false,
                replicas: asked,
            };
        }
        let set = observed.set(name, role);
        let set_has_register = set.is_some_and(|set| has_argument(set, REGISTER));
        let mut found = registers.iter();
        let is_there = found.any(|register| own(cluster, observed, register).is_some());
        let joining = match set {
            // A master stores its state before it takes part in the election.
            _ if leadership(cluster, observed, role).is_some() => asked,
            // None has ever granted a timestamp, or begun a cluster.
            None if observed.volumes(name, role) == 0 => asked,
            Some(set) if set_has_register => {
                let live = observed::number(set, "/spec/replicas");
                u32::try_from(live).unwrap_or(1).max(1)
            }
            Some(_) | None => 1,
        };
        Self {
            has_register: asked > 1 || set_has_register || is_there,
            replicas: asked.min(joining),
        }
    }
}

/// A register, if it is the cluster's own.
fn own<'a>(cluster: &ClusterObject, observed: &'a Observed, name: &str) -> Option<&'a Value> {
    let register = observed.get(Kind::ConfigMap, name)?;
    (observed::standing(register, cluster) != Standing::Foreign).then_some(register)
}

/// The value of a register; none if nothing was stored, or not by a register.
fn value(register: &Value) -> Option<Vec<u8>> {
    let bytes = register["binaryData"].get(KEY)?;
    let ByteString(bytes) = serde_json::from_value(bytes.clone()).ok()?;
    Some(StoredRecord::decode(bytes).ok()?.value)
}

/// The leadership that the role's servers have stored.
fn leadership(cluster: &ClusterObject, observed: &Observed, role: Role) -> Option<Leadership> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let registers = names::registers(name, role);
    let register = own(cluster, observed, registers.first()?)?;
    Leadership::decode(&value(register)?).ok()
}

/// The leader of the role, by its register. If the register has lost its value, the last known leader.
pub(crate) fn leader(cluster: &ClusterObject, observed: &Observed, role: Role) -> Option<Leader> {
    let Some(leadership) = leadership(cluster, observed, role) else {
        return led_last(cluster, role);
    };
    Some(Leader {
        server: leadership.holder?.name,
        term: i64::try_from(leadership.term).unwrap_or(i64::MAX),
    })
}

fn led_last(cluster: &ClusterObject, role: Role) -> Option<Leader> {
    let status = cluster.status.as_ref()?;
    match role {
        Role::Master => status.master.leader.clone(),
        Role::Oracle => status.oracle.leader.clone(),
        Role::Tablet => None,
    }
}

/// A message about a register of the role that has lost its value.
pub(crate) fn lost(cluster: &ClusterObject, observed: &Observed, role: Role) -> Option<String> {
    let Leader { server, term } = led_last(cluster, role)?;
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let registers = names::registers(name, role);
    let is_lost = |register: &&String| {
        let found = own(cluster, observed, register);
        found.and_then(value).is_none()
    };
    // One of another version is none that is lost.
    if registers.first().is_some_and(|it| is_lost(&it)) {
        let register = registers.first()?;
        let so = match role {
            Role::Oracle => {
                "no timestamps are granted, because they could be granted twice; restore its binaryData from a copy, and \
                 delete the oracles' pods"
            }
            _ => {
                "no master answers; delete the masters' pods, and they begin it anew, because the cluster's state is in \
                 another one"
            }
        };
        return Some(format!(
            "ConfigMap {register} has lost its value, by which {server} led in term {term}: {so}"
        ));
    }
    let register = registers.iter().skip(1).find(is_lost)?;
    Some(format!(
        "ConfigMap {register} has lost its value, the state of the masters, of which {server} leads in term {term}: tables can't \
         be created or found; restore its binaryData from a copy, and delete the masters' pods; without a copy the state is \
         rebuilt then by `percolator master rebuild`"
    ))
}

/// The service accounts of the role's pods that use its registers now: without their rights their leadership would end.
pub(crate) fn accounts_in_use(observed: &Observed, role: Role) -> impl Iterator<Item = &str> {
    let component = role.component();
    let pods = observed.pods.iter().filter(move |pod| {
        observed::component(pod) == Some(component) && has_argument_of_pod(pod, REGISTER)
    });
    pods.filter_map(|pod| pod.spec.as_ref()?.service_account_name.as_deref())
}

fn has_argument_of_pod(pod: &Pod, flag: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut arguments = containers.flat_map(|container| container.args.iter().flatten());
    arguments.any(|argument| argument.starts_with(flag))
}

fn has_argument(set: &Value, flag: &str) -> bool {
    let containers = set.pointer("/spec/template/spec/containers");
    let containers = containers.and_then(Value::as_array);
    let mut arguments = containers.into_iter().flatten().flat_map(|container| {
        let arguments = container["args"].as_array().into_iter().flatten();
        arguments.filter_map(Value::as_str)
    });
    arguments.any(|argument| argument.starts_with(flag))
}
