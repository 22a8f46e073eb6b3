//! The status, from what was asked for and what is there: pure. "Now" is an argument, and stands in a status only
//! where a condition turned.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, ConditionType, Problem, Reason, RoleStatus, Status};
use serde_json::Value;

use super::names::{self, PORT, Role};
use super::observed::{self, Observed};
use super::plan::Plan;

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
    let role = |role: Role, asked: u32| {
        let set = observed.set(name, role);
        let desired = match set.filter(|_| is_invalid) {
            Some(set) => observed::number(set, "/spec/replicas"),
            None => asked.into(),
        };
        role_status(set, i32::try_from(desired).unwrap_or(i32::MAX))
    };
    let mut status = Status {
        observed_generation: cluster.metadata.generation,
        conditions: Vec::new(),
        endpoint: Some(format!("{name}.{namespace}.svc:{PORT}")),
        version: version(observed),
        selector: Some(names::selector_text(&names::role_selector(
            name,
            Role::Tablet,
        ))),
        tablets: role(Role::Tablet, spec.tablets.replicas),
        oracle: role(Role::Oracle, spec.oracle.replicas),
        gc_master: role(Role::GcMaster, spec.gc_master.replicas),
    };
    let known = cluster
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    status.conditions = ConditionType::ALL
        .into_iter()
        .map(|kind| {
            let (is_true, reason, message) = match kind {
                ConditionType::Available => available(&status),
                ConditionType::Progressing => progressing(spec.paused, outcome),
                ConditionType::Degraded => degraded(observed, outcome, now),
                ConditionType::Paused => paused(spec.paused),
            };
            condition(cluster, known, kind, is_true, reason, message, now)
        })
        .collect();
    status
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
    }
}

/// The tag of the image of the pods, if all have one and the same.
fn version(observed: &Observed) -> Option<String> {
    let images = observed
        .pods
        .iter()
        .map(|pod| pod.pointer("/spec/containers/0/image")?.as_str());
    let mut versions: Vec<&str> = images.flatten().map(tag).collect();
    versions.sort_unstable();
    versions.dedup();
    match versions[..] {
        [] => None,
        [version] => Some(version.to_owned()),
        _ => Some(versions.join(", ")),
    }
}

fn tag(image: &str) -> &str {
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    name.split_once(':').map_or("latest", |(_, tag)| tag)
}

type Said = (bool, Reason, String);

fn available(status: &Status) -> Said {
    let roles = [
        ("master", &status.gc_master),
        ("oracle", &status.oracle),
        ("tablet servers", &status.tablets),
    ];
    let missing: Vec<String> = roles
        .iter()
        .filter(|(_, role)| role.ready < role.desired)
        .map(|(name, role)| format!("{name} {}", role.summary))
        .collect();
    if missing.is_empty() {
        let message = "the master, the oracle and all tablet servers serve".to_owned();
        return (true, Reason::AllServersReady, message);
    }
    (
        false,
        Reason::ServersNotReady,
        format!("ready: {}", missing.join(", ")),
    )
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

fn degraded(observed: &Observed, outcome: &Outcome<'_>, now: Timestamp) -> Said {
    match outcome {
        Outcome::Invalid(problems) => {
            let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
            return (true, Reason::InvalidSpec, problems.join("; "));
        }
        Outcome::Planned(plan) | Outcome::Refused(plan, _) if !plan.conflicts.is_empty() => {
            let names: Vec<String> = plan
                .conflicts
                .iter()
                .map(|(kind, name)| format!("{} {name}", kind.name()))
                .collect();
            let message = format!(
                "not made by this cluster, but with names that it needs: {}; delete or rename them, or give \
                 the cluster another name",
                names.join(", ")
            );
            return (true, Reason::ObjectConflict, message);
        }
        Outcome::Refused(_, why) => {
            let message = format!("the API server refuses: {why}");
            return (true, Reason::ApplyRefused, message);
        }
        Outcome::Planned(_) => {}
    }
    let mut troubles: Vec<(Reason, String)> = observed
        .pods
        .iter()
        .filter_map(|pod| trouble(pod, now))
        .collect();
    troubles.sort();
    match troubles.into_iter().next() {
        Some((reason, message)) => (true, reason, message),
        None => {
            let message = "nothing is wrong that the operator could see".to_owned();
            (false, Reason::AsExpected, message)
        }
    }
}

/// A pod that no node takes for so long is told of.
const PASSES_SECONDS: i64 = 10;
/// Why a container waits, where that doesn't end by itself.
const IMAGE_REASONS: [&str; 5] = [
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
];
/// Why a container waits, where that is what containers do.
const USUAL_REASONS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Whether a pod's condition is older than what passes by itself: volumes are made, nodes come.
fn has_lasted(condition: &Value, now: Timestamp) -> bool {
    let since = condition["lastTransitionTime"].as_str();
    let since = since.and_then(|since| since.parse::<Timestamp>().ok());
    since.is_none_or(|since| now.as_second() - since.as_second() >= PASSES_SECONDS)
}

fn trouble(pod: &Value, now: Timestamp) -> Option<(Reason, String)> {
    let name = observed::name(pod);
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let unscheduled = conditions.into_iter().flatten().find(|condition| {
        condition["type"] == "PodScheduled"
            && condition["reason"] == "Unschedulable"
            && has_lasted(condition, now)
    });
    if let Some(condition) = unscheduled {
        let why = condition["message"].as_str().unwrap_or_default();
        return Some((
            Reason::PodUnschedulable,
            format!(
                "no node takes pod {name}: {why}; look at spec.*.pod and spec.*.storage, or add nodes"
            ),
        ));
    }
    let container = pod.pointer("/status/containerStatuses/0")?;
    let waiting = container.pointer("/state/waiting")?;
    let reason = waiting["reason"].as_str()?;
    if USUAL_REASONS.contains(&reason) {
        return None;
    }
    if IMAGE_REASONS.contains(&reason) {
        let image = container["image"].as_str().unwrap_or_default();
        return Some((
            Reason::ImageUnavailable,
            format!(
                "pod {name} can't get its image {image} ({reason}); look at spec.image, \
                 spec.imagePullPolicy and spec.imagePullSecrets"
            ),
        ));
    }
    let last = container
        .pointer("/lastState/terminated/message")
        .or_else(|| waiting.get("message"))
        .and_then(Value::as_str)
        .unwrap_or_default();
    Some((
        Reason::ServerCrashing,
        format!("pod {name} doesn't run ({reason}): {}", last.trim()),
    ))
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
            None => condition.status == "True",
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
