//! One cluster: from its resource to its objects, in named steps. All of it is pure: `crate::api` reads what is there
//! and does what was decided, `crate::controller` says when.
//!
//! Dereference, validate, build, plan, apply, status.

mod build;
mod names;
mod object;
mod observed;
mod plan;
mod status;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use percolator_api::{ClusterObject, Problem, Status};

pub(crate) use build::Settings;
pub(crate) use names::{MANAGER, selector, selector_text};
pub(crate) use object::Kind;
pub(crate) use observed::{Observed, name};
pub(crate) use plan::Plan;
pub(crate) use status::turned;

use status::Outcome;

/// What a reconciliation decided before anything was written.
#[derive(Debug)]
pub(crate) enum Decision {
    /// The spec is not to be carried out: these are its problems.
    Invalid(Vec<Problem>),
    /// This is to be done; nothing of it, when the spec says `paused`.
    Do(Plan),
}

/// Validates, builds and plans.
pub(crate) fn decide(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
) -> Decision {
    let problems = validate::validate(cluster, observed);
    if !problems.is_empty() {
        return Decision::Invalid(problems);
    }
    let wanted = build::build(cluster, observed, settings);
    Decision::Do(plan::plan(cluster, &wanted, observed))
}

/// The names of all objects that the cluster may have, whatever its spec says now.
pub(crate) fn names_needed(
    cluster: &ClusterObject,
    settings: &Settings,
) -> BTreeSet<(Kind, String)> {
    let wanted = build::build(cluster, &Observed::default(), settings);
    let names = wanted
        .all()
        .map(|object| (object.kind, object.name.clone()));
    // Not made where every role has one of its own: one that was made before is to go then.
    let name = cluster.metadata.name.clone().unwrap_or_default();
    names.chain([(Kind::ServiceAccount, name)]).collect()
}

/// What to tell of the cluster after the decision was carried out. `observed` is what is there now.
pub(crate) fn status_after(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
    decision: &Decision,
    refused: Option<&str>,
    now: Timestamp,
) -> Status {
    let outcome = match decision {
        Decision::Invalid(problems) => {
            return status::status(cluster, observed, &Outcome::Invalid(problems), now);
        }
        // What was applied is there now, so that what waits may be something else.
        Decision::Do(plan) if plan.conflicts.is_empty() => {
            let wanted = build::build(cluster, observed, settings);
            plan::plan(cluster, &wanted, observed)
        }
        Decision::Do(plan) => plan.clone(),
    };
    let outcome = match refused {
        Some(why) => Outcome::Refused(&outcome, why),
        None => Outcome::Planned(&outcome),
    };
    status::status(cluster, observed, &outcome, now)
}

/// A cluster's name in logs: NAMESPACE/NAME.
pub(crate) fn full_name(metadata: &ObjectMeta) -> String {
    format!(
        "{}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    )
}
