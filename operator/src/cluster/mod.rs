//! One cluster: from its resource to its objects, in named steps. All of it is pure: `crate::api` reads what is there
//! and does what was decided, `crate::controller` says when.
//!
//! Dereference, validate, build, plan, apply, status.

mod build;
mod drift;
mod growing;
mod joined;
mod monitored;
mod names;
mod object;
mod observed;
mod plan;
mod records;
mod registers;
mod revisions;
mod scale_in;
mod status;
#[cfg(test)]
mod tests;
mod trouble;
mod validate;
mod workloads;

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use percolator_api::{ClusterObject, ConditionType, Problem, Reason, Status};

pub(crate) use build::Settings;
pub(crate) use drift::AlteredObject;
pub(crate) use monitored::UnavailableReason;
pub(crate) use names::{
    CLUSTER_LABEL, COMPONENT_LABEL, MANAGER, PROXY, REGISTER_LABEL, selector, selector_text,
};
pub(crate) use object::{Kind, Object};
pub(crate) use observed::{Observed, changes_pods, name_of, replaces_pods};
pub(crate) use plan::{FAILED_WEBHOOK, Plan, Refusal};
pub(crate) use scale_in::{MasterReport, TabletServer, masters_to_ask, server_name};
pub(crate) use status::turned;
pub(crate) use trouble::{due_in, last_refusal, to_ask, without_pods};

use names::Role;
use observed::Standing;
use scale_in::ScaleIn;
use status::Outcome;

/// What a reconcile decided before anything was written.
#[derive(Debug)]
pub(crate) enum Decision {
    /// The spec can't be carried out: these are its problems. The plan keeps the cluster as the last valid spec says.
    Invalid(Vec<Problem>, Plan),
    /// This is to be done; nothing of it, when the spec says `paused`.
    Do(Plan),
}

impl Decision {
    /// What is to be done.
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Self::Invalid(_, plan) | Self::Do(plan) => plan,
        }
    }
}

/// Whether the status has to be written before anything is done: it records the image, the templates and the servers that the
/// operator drains, and an operator that follows must find them there.
pub(crate) fn records_first(cluster: &ClusterObject, plan: &Plan) -> bool {
    let recorded = cluster.status.as_ref();
    let image = recorded.and_then(|status| status.default_image.as_ref());
    let records_image = cluster.spec.image.is_none() && image.is_none();
    let records_templates = recorded.is_none_or(|status| status.templates.is_none());
    let drained = scale_in::recorded(cluster);
    let records_drain = plan.drain.iter().any(|ordinal| !drained.contains(ordinal));
    records_image || records_templates || (records_drain && !cluster.spec.paused)
}

/// The cluster with the last spec that was valid, if it still is. Whether it is paused, the newest spec says.
fn last_valid(cluster: &ClusterObject, observed: &Observed) -> Option<ClusterObject> {
    let last = recorded_spec(cluster)?;
    validate::validate(&last, observed)
        .is_empty()
        .then_some(last)
}

/// The cluster with the spec that its status records.
fn recorded_spec(cluster: &ClusterObject) -> Option<ClusterObject> {
    let recorded = cluster.status.as_ref()?.last_valid_spec.as_ref()?;
    let mut last = cluster.clone();
    last.spec = serde_json::from_str(recorded).ok()?;
    last.spec.paused = cluster.spec.paused;
    Some(last)
}

/// Validates, builds and plans.
pub(crate) fn decide(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
) -> Decision {
    let problems = validate::validate(cluster, observed);
    if !problems.is_empty() {
        let last = last_valid(cluster, observed);
        let repair = last.map(|last| {
            let wanted = build::build(&last, observed, settings);
            plan::plan(&last, &wanted, observed)
        });
        return Decision::Invalid(problems, repair.unwrap_or_default());
    }
    let wanted = build::build(cluster, observed, settings);
    Decision::Do(plan::plan(cluster, &wanted, observed))
}

/// Whether what makes the cluster's pods has no owner: a former cluster of this name left it to itself, or this one is about to.
pub(crate) fn adopts(cluster: &ClusterObject, observed: &Observed) -> bool {
    let mut objects = observed.objects.iter();
    objects.any(|((kind, _), live)| {
        matches!(kind, Kind::StatefulSet | Kind::Deployment)
            && observed::standing(live, cluster) == Standing::Ours
            && !observed::is_ours(live, cluster)
    })
}

/// Whether the cluster serves, as far as its status says: one that doesn't has nothing to lose by a change.
pub(crate) fn is_available(cluster: &ClusterObject) -> bool {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.filter(|it| it.type_ == ConditionType::Available.name());
    conditions.any(|it| it.status == "True")
}

/// Whether the roll-out waits for servers, by this status of the cluster.
pub(crate) fn waits_for_servers(status: &Status) -> bool {
    let waits = [
        Reason::WaitingForMaster,
        Reason::WaitingForOracle,
        Reason::WaitingForTablets,
        Reason::WaitingForProxy,
    ];
    let waits = waits.map(Reason::name);
    let mut conditions = status.conditions.iter();
    conditions.any(|it| {
        it.type_ == ConditionType::Progressing.name()
            && it.status == "True"
            && waits.contains(&it.reason)
    })
}

/// Whether the servers or the proxies of the cluster are being changed: there are pods of two templates, or are about to be.
pub(crate) fn is_changing(cluster: &ClusterObject, observed: &Observed) -> bool {
    let sets = Role::ALL.into_iter();
    let mut sets = sets.filter_map(|role| observed.own_set(cluster, role));
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let proxies = observed.get(Kind::Deployment, &names::proxies(name));
    let proxies = proxies.filter(|live| observed::is_ours(live, cluster));
    sets.any(changes_pods) || proxies.is_some_and(replaces_pods)
}

/// The names of all objects that the cluster may have, whatever its spec says now: also those of `deployments`, which have its
/// labels.
pub(crate) fn names_needed(
    cluster: &ClusterObject,
    settings: &Settings,
    deployments: &[Deployment],
) -> BTreeSet<(Kind, String)> {
    // While the spec is invalid, the last valid one is carried out.
    let last = recorded_spec(cluster).filter(|last| last.spec != cluster.spec);
    let specs = [Some(cluster), last.as_ref()];
    let wanted = specs.map(|spec| Some(build::build(spec?, &Observed::default(), settings)));
    let wanted = wanted.iter().flatten();
    let names = wanted
        .flat_map(build::Wanted::all)
        .map(|object| (object.kind, object.name.clone()));
    // Not made where every role has one of its own, or where nobody asks for them: one that was made before is to go.
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let [monitor, rule] = Kind::OF_MONITORING;
    let others = [
        Kind::ServiceAccount,
        // All pods had one budget once.
        Kind::PodDisruptionBudget,
        monitor,
        rule,
    ];
    let others = others.map(|kind| (kind, name.clone()));
    // A cluster that has registers keeps them.
    let of_registers = Role::ALL.into_iter().flat_map(|role| {
        let registers = names::registers(&name, role);
        let rights = [Kind::ServiceAccount, Kind::Role, Kind::RoleBinding];
        let rights = rights.map(|kind| (kind, role.set(&name)));
        let rights = rights.into_iter().filter(|_| !registers.is_empty());
        let objects: Vec<(Kind, String)> = rights.collect();
        let registers = registers.into_iter().map(|name| (Kind::ConfigMap, name));
        objects.into_iter().chain(registers)
    });
    // What belongs to proxies may be there without them: it couldn't be removed, or they were not made yet.
    let proxies = names::proxies(&name);
    let of_deployments = deployments.iter().map(observed::name_of);
    let of_deployments = of_deployments
        .filter(|name| *name != proxies)
        .chain([&*proxies])
        .flat_map(names::of_deployment);
    let all = names.chain(others).chain(of_registers);
    all.chain(of_deployments).collect()
}

/// The names of claims that the cluster's StatefulSets would take up, where they are there, and that aren't known to be
/// its own: those of sets that aren't there yet, and of servers that a set doesn't have yet.
pub(crate) fn claims_to_ask_for(cluster: &ClusterObject, observed: &Observed) -> Vec<String> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let known: BTreeSet<&str> = observed.claims.iter().map(observed::name_of).collect();
    let last = recorded_spec(cluster);
    let claims = Role::ALL.into_iter().flat_map(|role| {
        let set = observed.set(name, role);
        let at = |path| set.map_or(0, |set| observed::number(set, path));
        let has = at("/spec/replicas").max(at("/status/replicas"));
        let last = last.as_ref().map_or(0, |it| role.asked(&it.spec).replicas);
        let asked = role.asked(&cluster.spec).replicas.max(last);
        let ordinals = u32::try_from(has).unwrap_or(0)..asked;
        ordinals.map(move |ordinal| names::claim(name, role, ordinal))
    });
    claims.filter(|claim| !known.contains(&**claim)).collect()
}

/// Notes a claim that was asked for by its name.
pub(crate) fn note_claim(
    cluster: &ClusterObject,
    observed: &mut Observed,
    claim: PersistentVolumeClaim,
) {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let selector = selector(name);
    let mut wanted = selector.as_object().into_iter().flatten();
    let live = |label: &str| claim.metadata.labels.as_ref()?.get(label);
    if wanted.all(|(label, value)| live(label).is_some_and(|live| value == live)) {
        // Younger than the list.
        observed.claims.push(claim);
    } else {
        let claim = observed::name_of(&claim).to_owned();
        observed.foreign_claims.push(claim);
    }
}

/// The status of the cluster after the decision was carried out. `observed` is what is there now.
pub(crate) fn status_after(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
    decision: &Decision,
    refused: &[Refusal],
    now: Timestamp,
) -> Status {
    let outcome = match decision {
        Decision::Invalid(problems, _) => {
            let outcome = Outcome::Invalid(problems);
            let mut status = status::status(cluster, observed, settings, &outcome, now);
            let recorded = match last_valid(cluster, observed) {
                Some(last) => ScaleIn::of(&last, observed).recorded,
                None => scale_in::recorded(cluster),
            };
            status.tablets.draining = status::ordinals(&recorded);
            return status;
        }
        // What was applied is there now, so that what waits may be something else.
        Decision::Do(plan) if plan.conflicts.is_empty() => {
            let wanted = build::build(cluster, observed, settings);
            plan::plan(cluster, &wanted, observed)
        }
        Decision::Do(plan) => plan.clone(),
    };
    let outcome = Outcome::Planned(&outcome, refused);
    let mut status = status::status(cluster, observed, settings, &outcome, now);
    let recorded = match decision {
        // Such a plan drains nothing.
        Decision::Do(plan) if !plan.conflicts.is_empty() => scale_in::recorded(cluster),
        _ => ScaleIn::of(cluster, observed).recorded,
    };
    status.tablets.draining = status::ordinals(&recorded);
    status
}

/// Whether what the API server remembers of pods and claims, which may be a moment old, is not enough: something is
/// about to be removed by it, or a master is to be found by it, or it isn't what StatefulSets say.
pub(crate) fn wants_fresh_lists(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
) -> bool {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let serving = observed.serving();
    let differs = Role::ALL.into_iter().any(|role| {
        let Some(set) = observed.own_set(cluster, role) else {
            return false;
        };
        let prefix = format!("{}-", role.set(name));
        let ready = serving.iter().filter(|pod| {
            let ordinal = pod.strip_prefix(&prefix);
            ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
        });
        let asked = i64::from(role.asked(&cluster.spec).replicas);
        observed::number(set, "/status/readyReplicas") != i64::try_from(ready.count()).unwrap_or(0)
            || asked < observed::number(set, "/spec/replicas")
    });
    let removes_sets = |plan: &Plan| {
        let mut kinds = plan.remove.iter().map(|(kind, _)| *kind);
        kinds.any(|kind| kind == Kind::StatefulSet)
    };
    differs || masters_to_ask(cluster, observed).is_some() || {
        let decision = decide(cluster, observed, settings);
        let plan = decision.plan();
        !plan.release.is_empty() || removes_sets(plan)
    }
}

/// A cluster's name in logs: NAMESPACE/NAME.
pub(crate) fn full_name(metadata: &ObjectMeta) -> String {
    format!(
        "{}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    )
}
