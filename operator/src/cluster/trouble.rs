//! What is wrong with the pods of a cluster, as far as the operator can see: pure.

use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, ConditionType, Reason};
use percolator_telemetry::endpoint::DATA_LOST;
use serde_json::Value;

use super::build::Settings;
use super::growing;
use super::names::{METRICS_PORT, Role};
use super::object::Kind;
use super::observed::{self, Observed, condition, seconds_since};

/// What lasts for so long doesn't pass by itself: volumes are made, nodes come, pods are made again.
const PASSES_SECONDS: i64 = 10;
/// A pod that has found its node has its volume and its image by then, as a rule.
const STARTS_SECONDS: i64 = 120;
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
pub(super) fn worst(
    observed: &Observed,
    unschedulable_grace: i64,
    now: Timestamp,
) -> Option<(Reason, String)> {
    let pods = observed.pods.iter();
    let of_pods = pods.filter_map(|pod| of_pod(pod, unschedulable_grace, now));
    let lost = observed.said.iter().filter_map(|(pod, said)| {
        let what = said.strip_prefix(DATA_LOST)?;
        Some((Reason::DataLost, format!("pod {pod}: {}", what.trim())))
    });
    let refused = observed.refused_pods.iter().map(|(set, why)| {
        let message = format!(
            "the pods of StatefulSet {set} can't be made: {}; look at spec.*.pod and spec.podDefaults, and at what the namespace allows \
             (quotas, pod security)",
            why.trim()
        );
        (Reason::PodsRefused, message)
    });
    let deployments = observed.objects.iter();
    let of_deployments = deployments.filter_map(|((kind, name), live)| {
        let failure = (*kind == Kind::Deployment).then(|| condition(live, "ReplicaFailure"))??;
        let why = failure["message"].as_str().unwrap_or_default();
        let message = format!(
            "the pods of Deployment {name} can't be made: {}; look at spec.proxy and spec.observers, and at what the namespace allows \
             (quotas, pod security)",
            why.trim()
        );
        (failure["status"] == "True").then_some((Reason::PodsRefused, message))
    });
    let all = of_pods.chain(lost).chain(refused);
    all.chain(of_deployments).min()
}

/// Pods whose servers run and aren't ready, and where each says why.
pub(crate) fn to_ask(observed: &Observed) -> Vec<(String, String)> {
    let pods = observed.pods.iter().filter(|pod| {
        let container = server(pod);
        container.is_some_and(|it| it["started"] == true && it["ready"] == false)
    });
    let address = |pod| observed::address(pod, METRICS_PORT);
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

/// Why a pod of a cluster doesn't serve, in some words: the same ones for as long as it is so.
pub(super) fn why_not(observed: &Observed, pod: &str, now: Timestamp) -> String {
    let mut pods = observed.pods.iter();
    let Some(found) = pods.find(|found| observed::name(found) == pod) else {
        return "isn't there".to_owned();
    };
    let node = node(found);
    // Kubernetes lets it end some minutes later, and still nobody hears of it.
    if is_cut_off(found) {
        return format!("its node {} doesn't answer", node.unwrap_or_default());
    }
    if observed::is_leaving(found) {
        return "is ending".to_owned();
    }
    let Some(node) = node else {
        return "waits for a node".to_owned();
    };
    let container = server(found);
    let what = match (container.and_then(waits_for), container) {
        (Some("CrashLoopBackOff"), _) => "ends again and again",
        (_, Some(container)) if ends_again_and_again(container, now) => "ends again and again",
        (Some(reason), _) if !USUAL_REASONS.contains(&reason) => image_reason(reason),
        (None, Some(container)) if container.pointer("/state/running").is_some() => {
            "runs, and isn't ready"
        }
        _ => "starts",
    };
    format!("{what} on node {node}")
}

/// Whether Kubernetes hears nothing of the pod's node: it has taken the pod's readiness from it then, though its containers
/// were ready at last.
fn is_cut_off(pod: &Value) -> bool {
    let is =
        |kind: &str, status: &str| condition(pod, kind).is_some_and(|it| it["status"] == status);
    let has_gates = pod
        .pointer("/spec/readinessGates")
        .and_then(Value::as_array)
        .is_some_and(|gates| !gates.is_empty());
    is("Ready", "False") && is("ContainersReady", "True") && !has_gates
}

/// Between two tries an image's reason is another one.
fn image_reason(reason: &str) -> &str {
    match reason {
        "ErrImagePull" => "ImagePullBackOff",
        other => other,
    }
}

fn node(pod: &Value) -> Option<&str> {
    pod.pointer("/spec/nodeName")?.as_str()
}

/// What passes by itself as a rule.
struct Lasting {
    /// What it is where it doesn't.
    reason: Reason,
    /// For how many seconds it has lasted, and for how many it may.
    seconds: i64,
    may_last: i64,
}

impl Lasting {
    fn of(pod: &Value, unschedulable_grace: i64, now: Timestamp) -> Option<Self> {
        let since = |kind: &str| {
            let since = condition(pod, kind).map(|it| &it["lastTransitionTime"]);
            since.and_then(|since| seconds_since(since, now))
        };
        let scheduled = condition(pod, "PodScheduled");
        if scheduled.is_some_and(|it| it["reason"] == "Unschedulable") {
            return Some(Self {
                reason: Reason::PodUnschedulable,
                seconds: since("PodScheduled").unwrap_or(unschedulable_grace),
                may_last: unschedulable_grace,
            });
        }
        node(pod)?;
        if is_cut_off(pod) {
            return Some(Self {
                reason: Reason::NodeUnreachable,
                seconds: since("Ready").unwrap_or(PASSES_SECONDS),
                may_last: PASSES_SECONDS,
            });
        }
        let starts = match server(pod) {
            None => true,
            Some(container) => waits_for(container).is_some_and(|it| USUAL_REASONS.contains(&it)),
        };
        // Whatever happened to it last.
        let conditions = [
            "PodScheduled",
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
        ];
        let since = conditions.into_iter().filter_map(since).min();
        (starts && !observed::is_leaving(pod)).then_some(Self {
            reason: Reason::PodNotStarted,
            seconds: since.unwrap_or_default(),
            may_last: STARTS_SECONDS,
        })
    }
}

/// In how many seconds something will be wrong that isn't yet, unless it passes: nothing tells of that.
pub(crate) fn due_in(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Option<u64> {
    let grace = settings.unschedulable_grace_seconds;
    let pods = observed.pods.iter();
    let lasting = pods.filter_map(|pod| Lasting::of(pod, grace, now));
    let left = lasting.map(|it| it.may_last - it.seconds);
    let left = left.chain(growing::due_in(cluster, observed, now));
    left.filter_map(|seconds| u64::try_from(seconds).ok().filter(|left| *left > 0))
        .min()
}

/// Why a container waits.
fn waits_for(container: &Value) -> Option<&str> {
    container.pointer("/state/waiting/reason")?.as_str()
}

fn of_pod(pod: &Value, unschedulable_grace: i64, now: Timestamp) -> Option<(Reason, String)> {
    let name = observed::name(pod);
    if let Some(lasting) = Lasting::of(pod, unschedulable_grace, now) {
        if lasting.seconds < lasting.may_last {
            return None;
        }
        let node = node(pod).unwrap_or_default();
        let message = match lasting.reason {
            Reason::PodUnschedulable => {
                let why = condition(pod, "PodScheduled").map(|it| it["message"].as_str());
                let why = why.flatten().unwrap_or_default();
                format!(
                    "no node takes pod {name}: {why}; look at spec.*.pod, spec.podDefaults and spec.*.storage, or add nodes"
                )
            }
            Reason::NodeUnreachable => format!(
                "node {node} of pod {name} doesn't answer: bring it back; or, if it is surely off, kubectl taint node \
                 {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, and Kubernetes starts the pod elsewhere \
                 if its volume can follow"
            ),
            _ => format!(
                "pod {name} has not started on node {node} for two minutes: its volume or its image isn't there, or the \
                 node doesn't answer; kubectl describe pod {name} says more"
            ),
        };
        return Some((lasting.reason, message));
    }
    let container = server(pod)?;
    let reason = waits_for(container);
    if let Some(reason) = reason.filter(|reason| IMAGE_REASONS.contains(reason)) {
        let image = container["image"].as_str().unwrap_or_default();
        return Some((
            Reason::ImageUnavailable,
            format!(
                "pod {name} can't get its image {image} ({}); look at {}, spec.imagePullPolicy and spec.imagePullSecrets",
                image_reason(reason),
                if observed::is_of_observer(pod) {
                    "image in spec.observers, spec.image"
                } else {
                    "spec.image"
                }
            ),
        ));
    }
    match reason {
        Some("CrashLoopBackOff") => {}
        _ if ends_again_and_again(container, now) => {}
        Some(reason) => return Some(crashing(name, container, reason)),
        None => return None,
    }
    // In the same words whether Kubernetes waits for its next start or not.
    Some(crashing(name, container, "it ends again and again"))
}

/// The status of the container of a pod's server, or of the one before it that fails.
fn server(pod: &Value) -> Option<&Value> {
    let before = pod.pointer("/status/initContainerStatuses");
    let before = before.and_then(Value::as_array).into_iter().flatten();
    let code = |container: &Value, state: &str| {
        let code = container.pointer(&format!("/{state}/terminated/exitCode"));
        code.and_then(Value::as_i64)
    };
    // One that goes on beside the server has not failed while it runs.
    let beside = |it: &Value| {
        let runs = it.pointer("/state/running").is_some() && it["ready"] == true;
        runs && is_sidecar(pod, it)
    };
    let mut before = before.filter(|it| code(it, "state") != Some(0) && !beside(it));
    let fails = before.find(|it| code(it, "state").or(code(it, "lastState")).is_some());
    let all = || pod.pointer("/status/containerStatuses")?.as_array();
    fails.or_else(|| observed::of_server(pod, all()?))
}

/// Whether an init container, by its status, is one that begins before the server and runs as long as it.
fn is_sidecar(pod: &Value, status: &Value) -> bool {
    let all = pod.pointer("/spec/initContainers");
    let mut all = all.and_then(Value::as_array).into_iter().flatten();
    all.any(|it| it["name"] == status["name"] && it["restartPolicy"] == "Always")
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
            last_words(words.unwrap_or_default())
        ),
    )
}

/// What a server said last of why it ended, the same with each of its ends: without the time.
fn last_words(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).collect();
    // What a panic says stands on the line behind its place.
    let panic = lines
        .iter()
        .rposition(|line| line.contains(" panicked at "));
    let panic = panic.map(|at| {
        let what = lines.get(at + 1).copied().unwrap_or_default();
        format!("{} {what}", lines[at]).trim().to_owned()
    });
    // Behind it there may be how the program is to be used.
    let error = lines.iter().rfind(|line| line.starts_with("error:"));
    let says_why = |line: &&&str| {
        let is_advice = ["note:", "For more information"]
            .iter()
            .any(|advice| line.starts_with(advice));
        !line.is_empty() && !is_advice
    };
    let last = || lines.iter().rfind(says_why);
    match (panic, error.or_else(last)) {
        (Some(panic), _) => panic,
        (None, Some(line)) => without_time(line),
        (None, None) => String::new(),
    }
}

/// A line of a server's log.
fn without_time(line: &str) -> String {
    let Ok(Value::Object(event)) = serde_json::from_str(line) else {
        let (first, rest) = line.split_once(' ').unwrap_or_default();
        let is_time = first.parse::<Timestamp>().is_ok();
        return if is_time { rest.trim() } else { line }.to_owned();
    };
    let told = ["message", "error"].map(|field| event.get(field).and_then(Value::as_str));
    let told: Vec<&str> = told.into_iter().flatten().collect();
    if told.is_empty() {
        line.to_owned()
    } else {
        told.join(": ")
    }
}
