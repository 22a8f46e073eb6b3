//! What to do next, from what is wanted and what is there: pure. The order lives here: the master, then the
//! oracle, then the tablet servers, each only when the ones before serve.

use percolator_api::{ClusterObject, Quantity, Reason};
use serde_json::Value;

use super::build::Wanted;
use super::names::Role;
use super::object::{Kind, Object};
use super::observed::{self, Observed};

/// What to do now, and what has to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Objects to apply, in this order.
    pub(crate) apply: Vec<Object>,
    /// Claims that are to have more: the claim's name and its new size.
    pub(crate) grow: Vec<(String, Quantity)>,
    /// Objects of ours that nobody asks for any more.
    pub(crate) remove: Vec<(Kind, String)>,
    /// Objects that somebody else made, with names that this cluster needs: nothing is done while there are any.
    pub(crate) conflicts: Vec<(Kind, String)>,
    /// The first thing that isn't yet as it is to be.
    pub(crate) waits: Option<(Reason, String)>,
}

impl Plan {
    /// Whether there is nothing to write.
    pub(crate) fn is_idle(&self) -> bool {
        self.apply.is_empty() && self.grow.is_empty() && self.remove.is_empty()
    }
}

pub(crate) fn plan(cluster: &ClusterObject, wanted: &Wanted, observed: &Observed) -> Plan {
    let mut plan = Plan::default();
    for object in wanted.all() {
        if let Some(live) = observed.get(object.kind, &object.name)
            && !observed::is_ours(live, cluster)
        {
            plan.conflicts.push((object.kind, object.name.clone()));
        }
    }
    if !plan.conflicts.is_empty() {
        return plan;
    }
    let differs = |object: &&Object| {
        observed
            .get(object.kind, &object.name)
            .is_none_or(|live| !object.is_met_by(live))
    };
    plan.apply
        .extend(wanted.common.iter().filter(differs).cloned());
    for (role, set) in &wanted.sets {
        let live = observed.get(set.kind, &set.name);
        let is_as_wanted = !differs(&set);
        if !is_as_wanted && plan.waits.is_none() {
            plan.apply.push(set.clone());
        }
        let is_settled = is_as_wanted && live.is_some_and(observed::is_settled);
        if !is_settled && plan.waits.is_none() {
            plan.waits = Some(waits_for(*role, set, live));
        }
    }
    grow(cluster, observed, &mut plan);
    for ((kind, name), live) in &observed.objects {
        let is_asked_for = wanted
            .all()
            .any(|object| (object.kind, &object.name) == (*kind, name));
        if !is_asked_for && observed::is_ours(live, cluster) && !is_leaving(live) {
            plan.remove.push((*kind, name.clone()));
        }
    }
    plan
}

fn is_leaving(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn waits_for(role: Role, set: &Object, live: Option<&Value>) -> (Reason, String) {
    let reason = match role {
        Role::GcMaster => Reason::WaitingForMaster,
        Role::Oracle => Reason::WaitingForOracle,
        Role::Tablet => Reason::WaitingForTablets,
    };
    let desired = observed::number(&set.value, "/spec/replicas");
    let at = |path| live.map_or(0, |live| observed::number(live, path));
    let message = format!(
        "waiting for {}: {} of {desired} serve, {} of {desired} run as the spec says",
        role.plural(),
        at("/status/readyReplicas").min(desired),
        at("/status/updatedReplicas").min(desired),
    );
    (reason, message)
}

fn grow(cluster: &ClusterObject, observed: &Observed, plan: &mut Plan) {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let spec = &cluster.spec;
    let mut growing = Vec::new();
    for (role, size) in [
        (Role::GcMaster, spec.gc_master.storage.size),
        (Role::Oracle, spec.oracle.storage.size),
        (Role::Tablet, spec.tablets.storage.size),
    ] {
        for claim in observed.claims_of(name, role) {
            let is_bound = claim.pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
            if !is_bound {
                continue;
            }
            if observed::claim_size(claim).is_some_and(|asked| asked < size) {
                plan.grow.push((observed::name(claim).to_owned(), size));
            }
            if observed::claim_capacity(claim).is_some_and(|has| has < size) {
                growing.push(observed::name(claim).to_owned());
            }
        }
    }
    if let (None, [first, ..]) = (&plan.waits, &growing[..]) {
        plan.waits = Some((
            Reason::GrowingVolumes,
            format!(
                "waiting for {} volume(s) to grow, {first} among them: its storage class must allow that \
                 (allowVolumeExpansion)",
                growing.len()
            ),
        ));
    }
}
