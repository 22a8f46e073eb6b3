//! Whether what the spec asks for of the Prometheus operator is there: the condition Monitored.

use kube::api::ApiResource;
use percolator_api::Reason;

use super::object::Kind;
use super::plan::Plan;
use super::status::Outcome;

/// Why the operator can't make objects of a kind, though the API server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnavailableReason {
    /// The API server has no definition of the kind.
    Definition,
    /// The operator's role doesn't permit it.
    Permission,
    /// An object of another owner has the name.
    Name,
}

/// The status, the reason and the message of a condition.
pub(super) type ConditionValue = (bool, Reason, String);

/// The condition, of objects that the spec asks for.
pub(super) fn monitored(
    is_asked_for: bool,
    is_paused: bool,
    outcome: &Outcome<'_>,
) -> ConditionValue {
    let refused = outcome.refused(true);
    if !refused.is_empty() {
        let message = format!("the API server refuses: {refused}; check spec.monitoring");
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
    if let Some(value) = unavailable(plan) {
        return value;
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

fn not_now(reason: Reason, until: &str) -> ConditionValue {
    (
        false,
        reason,
        format!("not as spec.monitoring says until {until}"),
    )
}

fn unavailable(plan: &Plan) -> Option<ConditionValue> {
    let of = |reason: UnavailableReason| -> Vec<&'static str> {
        let kinds = plan.unavailable.iter().filter(|(_, why)| *why == reason);
        kinds.map(|(kind, _)| kind.name()).collect()
    };
    let (undefined, forbidden) = (
        of(UnavailableReason::Definition),
        of(UnavailableReason::Permission),
    );
    let named = of(UnavailableReason::Name);
    if !named.is_empty() {
        let message = format!(
            "{} of the cluster's name is there, and not made by it: delete or rename that, or set enabled to false in \
             spec.monitoring; the operator checks every minute",
            named.join(" and ")
        );
        return Some((false, Reason::ObjectConflict, message));
    }
    if !undefined.is_empty() {
        let ApiResource { api_version, .. } = Kind::PodMonitor.api();
        let message = format!(
            "waiting for the definition of {} ({api_version}): install the Prometheus operator's, or set enabled to \
             false in spec.monitoring; the operator checks every minute",
            undefined.join(" and ")
        );
        return Some((false, Reason::WaitingForDefinitions, message));
    }
    if !forbidden.is_empty() {
        let message = format!(
            "the operator may not read {}: give it the chart's role; the operator tries again every minute",
            forbidden.join(" and ")
        );
        return Some((false, Reason::WaitingForPermission, message));
    }
    None
}
