//! What is wrong with the pods of a cluster, as far as the operator can see: pure.

use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, ConditionType, Reason};
use percolator_telemetry::endpoint::DATA_LOST;
use serde_json::Value;

use super::names::{METRICS_PORT, Role};
use super::observed::{self, Observed, condition};

/// What lasts for so long doesn't pass by itself: volumes are made, nodes come, pods are made again.
const PASSES_SECONDS: i64 = 10;
/// A server that has run for so long since its last end doesn't end again and again: Kubernetes thinks so, too.
const RUNS_SECONDS: i64 = 600;
/// A server that has ended once may have been killed; from this many on there's a pattern.
const ENDS: i64 = 2;
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

/// The worst that is wrong, if anything is.
pub(super) fn worst(observed: &Observed, now: Timestamp) -> Option<(Reason, String)> {
    let of_pods = observed.pods.iter().filter_map(|pod| of_pod(pod, now));
    let lost = observed.said.iter().filter_map(|(pod, said)| {
        let what = said.strip_prefix(DATA_LOST)?;
        Some((Reason::DataLost, format!("pod {pod}: {}", what.trim())))
    });
    let refused = observed.refused_pods.iter().map(|(set, why)| {
        let message = format!(
            "the pods of StatefulSet {set} can't be made: {}; look at spec.*.pod, and at what the namespace allows \
             (quotas, pod security)",
            why.trim()
        );
        (Reason::PodsRefused, message)
    });
    of_pods.chain(lost).chain(refused).min()
}

/// Pods whose servers run and aren't ready, and where each says why.
pub(crate) fn to_ask(observed: &Observed) -> Vec<(String, String)> {
    let pods = observed.pods.iter().filter(|pod| {
        let container = server(pod);
        container.is_some_and(|it| it["started"] == true && it["ready"] == false)
    });
    let address = |pod: &Value| {
        let ip = pod.pointer("/status/podIP")?.as_str()?;
        Some(match ip.contains(':') {
            true => format!("[{ip}]:{METRICS_PORT}"),
            false => format!("{ip}:{METRICS_PORT}"),
        })
    };
    pods.filter_map(|pod| Some((observed::name(pod).to_owned(), address(pod)?)))
        .collect()
}

/// StatefulSets that have had fewer pods than they are to have for longer than that takes, and their ids: Kubernetes
/// tells why in events alone.
pub(crate) fn without_pods(
    cluster: &ClusterObject,
    observed: &Observed,
    now: Timestamp,
) -> Vec<(String, String)> {
    let known = cluster.status.iter().flat_map(|status| &status.conditions);
    let has_lasted = known.into_iter().any(|condition| {
        let since = condition.last_transition_time.0.as_second();
        condition.type_ == ConditionType::Progressing.name()
            && condition.status == "True"
            && now.as_second() - since >= PASSES_SECONDS
    });
    if !has_lasted {
        return Vec::new();
    }
    let sets = Role::ALL.into_iter();
    let sets = sets.filter_map(|role| observed.own_set(cluster, role));
    let lacking = sets.filter(|set| {
        observed::number(set, "/status/replicas") < observed::number(set, "/spec/replicas")
    });
    lacking
        .filter_map(|set| {
            let uid = set.pointer("/metadata/uid")?.as_str()?;
            Some((observed::name(set).to_owned(), uid.to_owned()))
        })
        .collect()
}

/// Of what a StatefulSet's controller tells of its pods, the last word, if that is that one couldn't be made.
pub(crate) fn last_refusal(events: &[Value]) -> Option<String> {
    let time = |event: &Value| {
        let times = [
            "/series/lastObservedTime",
            "/lastTimestamp",
            "/eventTime",
            "/metadata/creationTimestamp",
        ];
        let time = times.iter().find_map(|path| event.pointer(path)?.as_str());
        time.and_then(|time| time.parse::<Timestamp>().ok())
    };
    let of_pods = events.iter().filter(|event| {
        matches!(
            event["reason"].as_str(),
            Some("FailedCreate" | "SuccessfulCreate")
        )
    });
    // Of those of one second, some of several pods may have been made.
    let last = of_pods.max_by_key(|event| (time(event), event["reason"] == "FailedCreate"))?;
    let message = last["message"]
        .as_str()
        .filter(|_| last["reason"] == "FailedCreate")?;
    Some(message.to_owned())
}

fn seconds_since(time: &Value, now: Timestamp) -> Option<i64> {
    let time = time.as_str()?.parse::<Timestamp>().ok()?;
    Some(now.as_second() - time.as_second())
}

fn of_pod(pod: &Value, now: Timestamp) -> Option<(Reason, String)> {
    let name = observed::name(pod);
    let unscheduled = condition(pod, "PodScheduled").filter(|condition| {
        let since = seconds_since(&condition["lastTransitionTime"], now);
        condition["reason"] == "Unschedulable"
            && since.is_none_or(|seconds| seconds >= PASSES_SECONDS)
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
    let container = server(pod)?;
    let waiting = container.pointer("/state/waiting");
    let reason = waiting.and_then(|waiting| waiting["reason"].as_str());
    if let Some(reason) = reason.filter(|reason| IMAGE_REASONS.contains(reason)) {
        let image = container["image"].as_str().unwrap_or_default();
        return Some((
            Reason::ImageUnavailable,
            format!(
                "pod {name} can't get its image {image} ({reason}); look at spec.image, \
                 spec.imagePullPolicy and spec.imagePullSecrets"
            ),
        ));
    }
    match reason {
        Some("CrashLoopBackOff") => {}
        Some(reason) if USUAL_REASONS.contains(&reason) => return None,
        Some(reason) => return Some(crashing(name, container, reason)),
        None if !ends_again_and_again(container, now) => return None,
        None => {}
    }
    // In the same words whether Kubernetes waits for its next start or not.
    Some(crashing(name, container, "it ends again and again"))
}

/// What is told of the container of a pod's server; others may have been added to it.
fn server(pod: &Value) -> Option<&Value> {
    let role = pod.pointer("/metadata/labels/app.kubernetes.io~1component");
    let all = pod.pointer("/status/containerStatuses")?.as_array()?;
    let its = all
        .iter()
        .find(|it| role.is_some_and(|role| it["name"] == *role));
    its.or(all.first())
}

/// Between two starts of a server that ends each time, its container runs, or has just ended.
fn ends_again_and_again(container: &Value, now: Timestamp) -> bool {
    let failed = |state: &str| {
        let code = container.pointer(&format!("/{state}/terminated/exitCode"));
        code.is_some_and(|code| *code != 0)
    };
    let runs_for = container.pointer("/state/running/startedAt");
    let runs_for = runs_for.and_then(|since| seconds_since(since, now));
    container["restartCount"].as_i64() >= Some(ENDS)
        && container["ready"] != true
        && (failed("state") || failed("lastState"))
        && runs_for.is_none_or(|seconds| seconds < RUNS_SECONDS)
}

fn crashing(pod: &str, container: &Value, reason: &str) -> (Reason, String) {
    let words = [
        "/state/terminated/message",
        "/lastState/terminated/message",
        "/state/waiting/message",
    ];
    let words = words
        .iter()
        .find_map(|path| container.pointer(path)?.as_str());
    (
        Reason::ServerCrashing,
        format!(
            "pod {pod} doesn't run ({reason}): {}",
            words.unwrap_or_default().trim()
        ),
    )
}
