//! Whether what the spec asks for of the Prometheus operator is there: the condition Monitored.

use kube::api::ApiResource;
use percolator_api::Reason;

use super::object::Kind;
use super::plan::Plan;
use super::status::Outcome;

/// Why no objects of a kind can be made, though the API server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// There is no definition of it.
    Definition,
    /// The operator may not.
    Permission,
    /// Somebody else's object has the name.
    Name,
}

pub(super) type Said = (bool, Reason, String);

/// The condition, of objects that the spec asks for.
pub(super) fn monitored(is_asked_for: bool, is_paused: bool, outcome: &Outcome<'_>) -> Said {
    let refused = outcome.refused(true);
    if !refused.is_empty() {
        let message = format!("the API server refuses: {refused}; look at spec.monitoring");
        return (false, Reason::ApplyRefused, message);
    }
    if !is_asked_for {
        let message = "spec.monitoring asks for nothing".to_owned();
        return (false, Reason::NotAskedFor, message);
    }
    let plan = match outcome {
        Outcome::Invalid(_) => {
            return not_now(Reason::InvalidSpec, "the spec is good; see Degraded");
        }
        Outcome::Planned(plan, _) => plan,
    };
    if !plan.conflicts.is_empty() {
        return not_now(Reason::ObjectConflict, "the conflict is gone; see Degraded");
    }
    if let Some((Reason::WaitingForRemoval, message)) = &plan.waits {
        return (false, Reason::WaitingForRemoval, message.clone());
    }
    if let Some(said) = lacking(plan) {
        return said;
    }
    let is_missing = plan
        .apply
        .iter()
        .any(|object| object.kind.is_of_monitoring());
    if !is_missing {
        let message = "what spec.monitoring asks for is there".to_owned();
        return (true, Reason::AsAskedFor, message);
    }
    if is_paused {
        return not_now(Reason::PausedBySpec, "spec.paused is false");
    }
    not_now(Reason::ApplyRefused, "the operator tries again")
}

fn not_now(reason: Reason, until: &str) -> Said {
    (
        false,
        reason,
        format!("not as spec.monitoring says until {until}"),
    )
}

fn lacking(plan: &Plan) -> Option<Said> {
    let of = |lack: Lack| -> Vec<&'static str> {
        let kinds = plan.lacking.iter().filter(|(_, why)| *why == lack);
        kinds.map(|(kind, _)| kind.name()).collect()
    };
    let (undefined, forbidden) = (of(Lack::Definition), of(Lack::Permission));
    let named = of(Lack::Name);
    if !named.is_empty() {
        let message = format!(
            "{} of the cluster's name is there, and not made by it: delete or rename that, or set enabled to false in \
             spec.monitoring; it is looked for every minute",
            named.join(" and ")
        );
        return Some((false, Reason::ObjectConflict, message));
    }
    if !undefined.is_empty() {
        let ApiResource { api_version, .. } = Kind::PodMonitor.api();
        let message = format!(
            "waiting for the definition of {} ({api_version}): install the Prometheus operator's, or set enabled to \
             false in spec.monitoring; it is looked for every minute",
            undefined.join(" and ")
        );
        return Some((false, Reason::WaitingForDefinitions, message));
    }
    if !forbidden.is_empty() {
        let message = format!(
            "the operator may not read {}: give it the chart's role; it is tried every minute",
            forbidden.join(" and ")
        );
        return Some((false, Reason::WaitingForPermission, message));
    }
    None
}
