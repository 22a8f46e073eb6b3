//! The status, from what was asked for and what is there: pure. "Now" is an argument, and stands in a status only
//! where a condition turned.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, ConditionType, Problem, Reason, RoleStatus, Status};
use serde_json::Value;

use super::monitored::{self, Said};
use super::names::{self, PORT, Role};
use super::observed::{self, Observed};
use super::plan::{Conflict, Plan};
use super::trouble;

/// How the steps before ended.
#[derive(Debug)]
pub(crate) enum Outcome<'a> {
    /// The spec can't be carried out.
    Invalid(&'a [Problem]),
    /// This was to be done.
    Planned(&'a Plan),
    /// The API server refused to do it, and says why.
    Refused(&'a Plan, &'a str),
}

/// The longest message of a condition that is of any use, in characters.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// `sha256:` and twelve digits.
const DIGEST_CHARS: usize = 19;

pub(crate) fn status(
    cluster: &ClusterObject,
    observed: &Observed,
    outcome: &Outcome<'_>,
    now: Timestamp,
) -> Status {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &cluster.spec;
    // What a bad spec asks for is not what there is to be.
    let is_invalid = matches!(outcome, Outcome::Invalid(_));
    let serving = observed.serving();
    let role = |role: Role, before: fn(&Status) -> &RoleStatus| {
        let set = observed.own_set(cluster, role);
        let desired = match set.filter(|_| is_invalid) {
            Some(set) => observed::number(set, "/spec/replicas"),
            None => role.asked(spec).replicas.into(),
        };
        let serves = |ordinal: i32| {
            set.is_some() && serving.contains(&*format!("{}-{ordinal}", role.set(name)))
        };
        let desired = i32::try_from(desired).unwrap_or(i32::MAX);
        let before = cluster
            .status
            .as_ref()
            .map_or(0, |status| before(status).joined);
        let joined = joined(before, desired, &serves);
        let status = RoleStatus {
            joined,
            volumes: i32::try_from(observed.volumes(name, role)).unwrap_or(i32::MAX),
            claimed: observed.claimed(name, role),
            ..role_status(set, desired)
        };
        // At first all of them.
        let counting = if joined == 0 { desired } else { joined };
        ((0..counting).all(serves), status)
    };
    let (tablets_serve, tablets) = role(Role::Tablet, |status| &status.tablets);
    let (oracle_serves, oracle) = role(Role::Oracle, |status| &status.oracle);
    let (master_serves, gc_master) = role(Role::GcMaster, |status| &status.gc_master);
    let mut status = Status {
        observed_generation: cluster.metadata.generation,
        conditions: Vec::new(),
        endpoint: Some(format!("{name}.{namespace}.svc:{PORT}")),
        version: version(observed),
        selector: Some(names::selector_text(&names::role_selector(
            name,
            Role::Tablet,
        ))),
        tablets,
        oracle,
        gc_master,
    };
    let known = cluster
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    status.conditions = ConditionType::ALL
        .into_iter()
        .map(|kind| {
            let (is_true, reason, message) = match kind {
                ConditionType::Available => {
                    available(&status, [master_serves, oracle_serves, tablets_serve])
                }
                ConditionType::Progressing => progressing(spec.paused, outcome),
                ConditionType::Degraded => degraded(name, observed, outcome, now),
                ConditionType::Paused => paused(spec.paused),
                ConditionType::Monitored => {
                    let asked = &spec.monitoring;
                    let is_asked = asked.pod_monitor.enabled || asked.prometheus_rule.enabled;
                    monitored::monitored(is_asked, spec.paused, outcome)
                }
            };
            condition(cluster, known, kind, is_true, reason, message, now)
        })
        .collect();
    status
}

/// How many servers, from the first on, have served: at first all have to at a time, and then those that are added count
/// when they do.
fn joined(before: i32, desired: i32, serves: &impl Fn(i32) -> bool) -> i32 {
    match before.min(desired) {
        0 if (0..desired).all(serves) => desired,
        0 => 0,
        before => (before..desired)
            .find(|ordinal| !serves(*ordinal))
            .unwrap_or(desired),
    }
}

fn role_status(set: Option<&Value>, desired: i32) -> RoleStatus {
    let at = |path| {
        let number = set.map_or(0, |set| observed::number(set, path));
        i32::try_from(number).unwrap_or(i32::MAX)
    };
    let ready = at("/status/readyReplicas");
    RoleStatus {
        desired,
        created: at("/status/replicas"),
        updated: at("/status/updatedReplicas"),
        ready,
        summary: format!("{ready}/{desired}"),
        ..RoleStatus::default()
    }
}

/// The tag of the image of the pods, or of each of them, where they differ.
fn version(observed: &Observed) -> Option<String> {
    let images = observed
        .pods
        .iter()
        .map(|pod| pod.pointer("/spec/containers/0/image")?.as_str());
    let mut versions: Vec<&str> = images.flatten().map(tag_or_digest).collect();
    versions.sort_unstable();
    versions.dedup();
    match versions[..] {
        [] => None,
        [version] => Some(version.to_owned()),
        _ => Some(versions.join(", ")),
    }
}

/// Where an image has no tag, as much of its digest as people go by.
fn tag_or_digest(image: &str) -> &str {
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    let (name, digest) = match name.split_once('@') {
        Some((name, digest)) => (name, digest.get(..DIGEST_CHARS).unwrap_or(digest)),
        None => (name, "latest"),
    };
    name.split_once(':').map_or(digest, |(_, tag)| tag)
}

/// `serve` says of the master, the oracle and the tablet servers whether those serve that have to.
fn available(status: &Status, serve: [bool; 3]) -> Said {
    let roles = [
        ("master", &status.gc_master),
        ("oracle", &status.oracle),
        ("tablet servers", &status.tablets),
    ];
    let missing = roles.iter().zip(serve).filter(|(_, serves)| !serves);
    let missing: Vec<String> = missing
        .map(|((name, role), _)| format!("{name} {}", role.summary))
        .collect();
    if !missing.is_empty() {
        let message = format!("ready: {}", missing.join(", "));
        return (false, Reason::ServersNotReady, message);
    }
    let added = status.tablets.desired - status.tablets.joined;
    let message = match added {
        0 => "the master, the oracle and all tablet servers serve".to_owned(),
        _ => format!(
            "the master, the oracle and {} tablet servers serve; {added} more have never served, and hold no rows",
            status.tablets.joined
        ),
    };
    (true, Reason::AllServersReady, message)
}

fn progressing(is_paused: bool, outcome: &Outcome<'_>) -> Said {
    let plan = match outcome {
        Outcome::Invalid(_) => {
            let message = "nothing is changed until the spec is good; see Degraded".to_owned();
            return (false, Reason::InvalidSpec, message);
        }
        Outcome::Planned(plan) | Outcome::Refused(plan, _) => plan,
    };
    if !plan.conflicts.is_empty() {
        let message = "nothing is changed until the conflict is gone; see Degraded".to_owned();
        return (false, Reason::ObjectConflict, message);
    }
    if is_paused {
        let message = if plan.is_idle() {
            "paused; the cluster is what the spec says"
        } else {
            "paused; set spec.paused to false to have the spec carried out"
        };
        return (false, Reason::PausedBySpec, message.to_owned());
    }
    match &plan.waits {
        Some((reason, message)) => (true, *reason, message.clone()),
        None => {
            let message = "the cluster is what the spec says".to_owned();
            (false, Reason::UpToDate, message)
        }
    }
}

fn conflict_message(cluster: &str, conflicts: &[Conflict]) -> String {
    let are_claims = conflicts
        .iter()
        .any(|conflict| matches!(conflict, Conflict::Claim(_)));
    let names: Vec<String> = conflicts
        .iter()
        .map(|conflict| match conflict {
            Conflict::Object(kind, name) => format!("{} {name}", kind.name()),
            Conflict::Claim(name) => format!("PersistentVolumeClaim {name}"),
        })
        .collect();
    let mut message = format!(
        "not made by this cluster, but with names that it needs: {}; delete or rename them, or give \
         the cluster another name",
        names.join(", ")
    );
    if are_claims {
        let labels = names::selector_text(&names::selector(cluster));
        message += &format!("; claims that were restored for it need the labels {labels}");
    }
    message
}

fn degraded(cluster: &str, observed: &Observed, outcome: &Outcome<'_>, now: Timestamp) -> Said {
    match outcome {
        Outcome::Invalid(problems) => {
            let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
            return (true, Reason::InvalidSpec, problems.join("; "));
        }
        Outcome::Planned(plan) | Outcome::Refused(plan, _) if !plan.conflicts.is_empty() => {
            let message = conflict_message(cluster, &plan.conflicts);
            return (true, Reason::ObjectConflict, message);
        }
        Outcome::Refused(_, why) => {
            let message = format!("the API server refuses: {why}");
            return (true, Reason::ApplyRefused, message);
        }
        Outcome::Planned(_) => {}
    }
    match trouble::worst(observed, now) {
        Some((reason, message)) => (true, reason, message),
        None => {
            let message = "nothing is wrong that the operator could see".to_owned();
            (false, Reason::AsExpected, message)
        }
    }
}

fn paused(is_paused: bool) -> Said {
    if is_paused {
        let message = "spec.paused is true: the operator changes nothing".to_owned();
        (true, Reason::PausedBySpec, message)
    } else {
        (false, Reason::NotPaused, "spec.paused is false".to_owned())
    }
}

fn condition(
    cluster: &ClusterObject,
    known: &[Condition],
    kind: ConditionType,
    is_true: bool,
    reason: Reason,
    mut message: String,
    now: Timestamp,
) -> Condition {
    if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
        message.truncate(end);
        message.push('…');
    }
    let status = if is_true { "True" } else { "False" };
    let since = known
        .iter()
        .find(|condition| condition.type_ == kind.name() && condition.status == status)
        .map(|condition| condition.last_transition_time.clone());
    Condition {
        type_: kind.name().to_owned(),
        status: status.to_owned(),
        reason: reason.name(),
        message,
        observed_generation: cluster.metadata.generation,
        last_transition_time: since.unwrap_or_else(|| Time(seconds(now))),
    }
}

/// What the API server keeps of a time.
fn seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// What turned between two statuses, to tell people: the condition as it is now, and whether it's bad news.
pub(crate) fn turned<'a>(before: Option<&Status>, after: &'a Status) -> Vec<(&'a Condition, bool)> {
    let known = before.map_or(&[][..], |status| &status.conditions);
    let mut turned = Vec::new();
    for condition in &after.conditions {
        let old = known.iter().find(|old| old.type_ == condition.type_);
        let is_told = match old {
            Some(old) => (&old.status, &old.reason) != (&condition.status, &condition.reason),
            // What is as it always is needn't be told of a new cluster.
            None => {
                let waits = [Reason::WaitingForDefinitions, Reason::WaitingForPermission];
                condition.status == "True"
                    || waits.iter().any(|reason| reason.name() == condition.reason)
            }
        };
        if is_told {
            let is_bad = condition.type_ == ConditionType::Degraded.name()
                && condition.status == "True"
                || condition.type_ == ConditionType::Available.name()
                    && condition.status == "False";
            turned.push((condition, is_bad));
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_tag_or_its_digest() {
        for (image, version) in [
            ("percolator", "latest"),
            ("localhost:5000/percolator", "latest"),
            ("localhost:5000/percolator:1.2", "1.2"),
            ("a/percolator:1.2@sha256:0123456789abcdef", "1.2"),
            (
                "localhost:5000/percolator@sha256:0123456789abcdef",
                "sha256:0123456789ab",
            ),
            ("percolator@sha256:01", "sha256:01"),
        ] {
            assert_eq!(tag_or_digest(image), version, "{image}");
        }
    }
}
