//! The faults of a cluster's pods that the operator sees: pure.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStatus, Event, Pod,
};
use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, ConditionType, Reason};
use percolator_telemetry::endpoint::DATA_LOST;
use serde_json::Value;

use super::build::Settings;
use super::growing;
use super::names::{METRICS_PORT, Role};
use super::object::Kind;
use super::observed::{self, Observed, condition, node, pod_condition, seconds_since};

/// How long a condition of a pod or a node may last before it is reported as Degraded.
const CONDITION_TIMEOUT: i64 = 10;
/// How long a pod may take to start on its node: it gets its volume and its image within that, as a rule.
const START_TIMEOUT: i64 = 120;
/// A server that has run for so long since its last end is not in a crash loop. Kubernetes resets its back-off then, too.
const STABLE_AFTER: i64 = 600;
/// How many restarts make a crash loop: a server that has ended once may have been killed.
const RESTARTS_MIN: i32 = 2;
/// Why a container waits, if that doesn't end by itself.
const IMAGE_REASONS: [&str; 5] = [
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
];
/// Why a container waits while it starts.
const USUAL_REASONS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The most important fault, if there is one.
pub(super) fn worst(
    observed: &Observed,
    unschedulable_timeout: i64,
    now: Timestamp,
) -> Option<(Reason, String)> {
    let pods = observed.pods.iter();
    let of_pods = pods.filter_map(|pod| of_pod(pod, unschedulable_timeout, now));
    let messages = observed.not_ready_messages.iter();
    let lost = messages.filter_map(|(pod, message)| {
        let what = message.strip_prefix(DATA_LOST)?;
        Some((Reason::DataLost, format!("pod {pod}: {}", what.trim())))
    });
    let refused = observed.refused_pods.iter().map(|(set, why)| {
        let message = format!(
            "the pods of StatefulSet {set} can't be made: {}; check spec.*.pod and spec.podDefaults, and what the namespace allows \
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
            "the pods of Deployment {name} can't be made: {}; check spec.proxy and spec.observers, and what the namespace allows \
             (quotas, pod security)",
            why.trim()
        );
        (failure["status"] == "True").then_some((Reason::PodsRefused, message))
    });
    let all = of_pods.chain(lost).chain(refused);
    all.chain(of_deployments).min()
}

/// Pods whose servers run and aren't ready, and the address at which each reports why.
pub(crate) fn to_ask(observed: &Observed) -> Vec<(String, String)> {
    let pods = observed.pods.iter().filter(|pod| {
        let container = server(pod);
        container.is_some_and(|it| it.started == Some(true) && !it.ready)
    });
    let address = |pod| observed::address(pod, METRICS_PORT);
    pods.filter_map(|pod| Some((observed::name_of(pod).to_owned(), address(pod)?)))
        .collect()
}

/// StatefulSets that have had too few pods for longer than their start takes, and their ids: Kubernetes reports the reason in
/// events alone.
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
            && now.as_second() - since >= CONDITION_TIMEOUT
    });
    if !has_lasted {
        return Vec::new();
    }
    let sets = Role::ALL.into_iter();
    let sets = sets.filter_map(|role| observed.own_set(cluster, role));
    let incomplete = sets.filter(|set| {
        observed::number(set, "/status/replicas") < observed::number(set, "/spec/replicas")
    });
    incomplete
        .filter_map(|set| {
            let uid = set.pointer("/metadata/uid")?.as_str()?;
            Some((observed::name(set).to_owned(), uid.to_owned()))
        })
        .collect()
}

/// The message of the newest of these events of a StatefulSet, if that is that a pod couldn't be made.
pub(crate) fn last_refusal(events: &[Event]) -> Option<String> {
    let time = |event: &Event| {
        let series = event.series.as_ref();
        let of_series = series.and_then(|series| series.last_observed_time.as_ref());
        let last = event.last_timestamp.as_ref();
        let created = event.metadata.creation_timestamp.as_ref();
        let first = event.event_time.as_ref().map(|time| time.0);
        of_series
            .map(|time| time.0)
            .or(last.map(|time| time.0))
            .or(first)
            .or(created.map(|time| time.0))
    };
    let is_refusal = |event: &Event| event.reason.as_deref() == Some("FailedCreate");
    let of_pods = events.iter().filter(|event| {
        matches!(
            event.reason.as_deref(),
            Some("FailedCreate" | "SuccessfulCreate")
        )
    });
    // Of several events of one second, some pods may have been made.
    let last = of_pods.max_by_key(|event| (time(event), is_refusal(event)))?;
    last.message.clone().filter(|_| is_refusal(last))
}

/// Why a pod of a cluster doesn't serve: the same text for as long as the reason is the same.
pub(super) fn why_not(observed: &Observed, pod: &str, now: Timestamp) -> String {
    let mut pods = observed.pods.iter();
    let Some(found) = pods.find(|found| observed::name_of(*found) == pod) else {
        return "isn't there".to_owned();
    };
    let node = node(found);
    // Kubernetes marks it for deletion some minutes later. Its node still doesn't answer then.
    if is_cut_off(found) {
        return format!("its node {} doesn't answer", node.unwrap_or_default());
    }
    if observed::is_terminating(found) {
        return "is ending".to_owned();
    }
    let Some(node) = node else {
        return "waits for a node".to_owned();
    };
    let container = server(found);
    let what = match (container.and_then(waiting_reason), container) {
        (Some("CrashLoopBackOff"), _) => "ends again and again",
        (_, Some(container)) if ends_again_and_again(container, now) => "ends again and again",
        (Some(reason), _) if !USUAL_REASONS.contains(&reason) => image_reason(reason),
        (None, Some(container)) if running(container).is_some() => "runs, and isn't ready",
        _ => "starts",
    };
    format!("{what} on node {node}")
}

/// Whether the pod's node doesn't answer Kubernetes any more. Kubernetes sets Ready to False then, and leaves ContainersReady
/// at its last value.
fn is_cut_off(pod: &Pod) -> bool {
    let is =
        |kind: &str, status: &str| pod_condition(pod, kind).is_some_and(|it| it.status == status);
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.readiness_gates.as_ref());
    let has_gates = gates.is_some_and(|gates| !gates.is_empty());
    is("Ready", "False") && is("ContainersReady", "True") && !has_gates
}

/// The reason of an image that can't be pulled: Kubernetes alternates between two.
fn image_reason(reason: &str) -> &str {
    match reason {
        "ErrImagePull" => "ImagePullBackOff",
        other => other,
    }
}

/// A state of a pod that passes by itself, as a rule.
struct TransientState {
    /// The reason of Degraded, if it lasts for too long.
    reason: Reason,
    /// For how many seconds it has lasted.
    seconds: i64,
    /// For how many seconds it may last.
    timeout: i64,
}

impl TransientState {
    fn of(pod: &Pod, unschedulable_timeout: i64, now: Timestamp) -> Option<Self> {
        let since = |kind: &str| {
            let since = pod_condition(pod, kind)?.last_transition_time.as_ref();
            since.map(|since| seconds_since(since, now))
        };
        let scheduled = pod_condition(pod, "PodScheduled");
        if scheduled.is_some_and(|it| it.reason.as_deref() == Some("Unschedulable")) {
            return Some(Self {
                reason: Reason::PodUnschedulable,
                seconds: since("PodScheduled").unwrap_or(unschedulable_timeout),
                timeout: unschedulable_timeout,
            });
        }
        node(pod)?;
        if is_cut_off(pod) {
            return Some(Self {
                reason: Reason::NodeUnreachable,
                seconds: since("Ready").unwrap_or(CONDITION_TIMEOUT),
                timeout: CONDITION_TIMEOUT,
            });
        }
        let starts = match server(pod) {
            None => true,
            Some(container) => {
                waiting_reason(container).is_some_and(|it| USUAL_REASONS.contains(&it))
            }
        };
        // The newest transition counts.
        let conditions = [
            "PodScheduled",
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
        ];
        let since = conditions.into_iter().filter_map(since).min();
        (starts && !observed::is_terminating(pod)).then_some(Self {
            reason: Reason::PodNotStarted,
            seconds: since.unwrap_or_default(),
            timeout: START_TIMEOUT,
        })
    }
}

/// In how many seconds a state that lasts becomes Degraded: no watch reports that.
pub(crate) fn due_in(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Option<u64> {
    let timeout = settings.unschedulable_timeout_seconds;
    let pods = observed.pods.iter();
    let states = pods.filter_map(|pod| TransientState::of(pod, timeout, now));
    let left = states.map(|it| it.timeout - it.seconds);
    let left = left.chain(growing::due_in(cluster, observed, now));
    left.filter_map(|seconds| u64::try_from(seconds).ok().filter(|left| *left > 0))
        .min()
}

/// Why a container waits.
fn waiting_reason(container: &ContainerStatus) -> Option<&str> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    waiting.reason.as_deref()
}

fn running(container: &ContainerStatus) -> Option<&ContainerStateRunning> {
    container.state.as_ref()?.running.as_ref()
}

/// The code with which a container ended, if it is in that state.
fn exit_code(state: Option<&ContainerState>) -> Option<i32> {
    Some(state?.terminated.as_ref()?.exit_code)
}

fn of_pod(pod: &Pod, unschedulable_timeout: i64, now: Timestamp) -> Option<(Reason, String)> {
    let name = observed::name_of(pod);
    if let Some(state) = TransientState::of(pod, unschedulable_timeout, now) {
        let lasts = state.seconds >= state.timeout;
        return lasts.then(|| (state.reason, state_message(pod, state.reason)));
    }
    let container = server(pod)?;
    let reason = waiting_reason(container);
    if let Some(reason) = reason.filter(|reason| IMAGE_REASONS.contains(reason)) {
        let image = &container.image;
        return Some((
            Reason::ImageUnavailable,
            format!(
                "pod {name} can't get its image {image} ({}); check {}, spec.imagePullPolicy and spec.imagePullSecrets",
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
    // The same message whether Kubernetes waits for its next start or not.
    Some(crashing(name, container, "it ends again and again"))
}

/// The message of Degraded for a state that lasts for too long.
fn state_message(pod: &Pod, reason: Reason) -> String {
    let name = observed::name_of(pod);
    let node = node(pod).unwrap_or_default();
    match reason {
        Reason::PodUnschedulable => {
            let why = pod_condition(pod, "PodScheduled").and_then(|it| it.message.as_deref());
            let why = why.unwrap_or_default();
            format!(
                "no node takes pod {name}: {why}; check spec.*.pod, spec.podDefaults and spec.*.storage, or add nodes"
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
    }
}

/// The status of the container of a pod's server, or of the one before it that fails.
fn server(pod: &Pod) -> Option<&ContainerStatus> {
    let before = pod.status.iter().flat_map(|it| &it.init_container_statuses);
    // One that goes on beside the server has not failed while it runs.
    let beside =
        |it: &ContainerStatus| running(it).is_some() && it.ready && is_sidecar(pod, &it.name);
    let mut before = before
        .flatten()
        .filter(|it| exit_code(it.state.as_ref()) != Some(0) && !beside(it));
    let fails = before.find(|it| {
        let (now, last) = (it.state.as_ref(), it.last_state.as_ref());
        exit_code(now).or(exit_code(last)).is_some()
    });
    fails.or_else(|| observed::server_status(pod))
}

/// Whether an init container is one that begins before the server and runs as long as it.
fn is_sidecar(pod: &Pod, name: &str) -> bool {
    let all = pod.spec.iter().flat_map(|spec| &spec.init_containers);
    let mut all = all.flatten();
    all.any(|it| it.name == name && it.restart_policy.as_deref() == Some("Always"))
}

/// Between two starts of a server that ends each time, its container runs, or has just ended.
fn ends_again_and_again(container: &ContainerStatus, now: Timestamp) -> bool {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let has_failed = states
        .into_iter()
        .filter_map(exit_code)
        .any(|code| code != 0);
    let started = running(container).and_then(|it| it.started_at.as_ref());
    let runs_for = started.map(|since| seconds_since(since, now));
    container.restart_count >= RESTARTS_MIN
        && !container.ready
        && has_failed
        && runs_for.is_none_or(|seconds| seconds < STABLE_AFTER)
}

fn crashing(pod: &str, container: &ContainerStatus, reason: &str) -> (Reason, String) {
    let ended = |state: Option<&ContainerState>| state?.terminated.as_ref()?.message.clone();
    let waits = |state: Option<&ContainerState>| state?.waiting.as_ref()?.message.clone();
    let (state, last) = (container.state.as_ref(), container.last_state.as_ref());
    let log = ended(state)
        .or_else(|| ended(last))
        .or_else(|| waits(state));
    (
        Reason::ServerCrashing,
        format!(
            "pod {pod} doesn't run ({reason}): {}",
            last_error(log.as_deref().unwrap_or_default())
        ),
    )
}

/// The error in the end of a server's log, without its time: the same text after each crash.
fn last_error(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).collect();
    // A panic's message is on the line behind its place.
    let panic = lines
        .iter()
        .rposition(|line| line.contains(" panicked at "));
    let panic = panic.map(|at| {
        let what = lines.get(at + 1).copied().unwrap_or_default();
        format!("{} {what}", lines[at]).trim().to_owned()
    });
    // The program's usage may follow.
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
    let texts = ["message", "error"].map(|field| event.get(field).and_then(Value::as_str));
    let texts: Vec<&str> = texts.into_iter().flatten().collect();
    if texts.is_empty() {
        line.to_owned()
    } else {
        texts.join(": ")
    }
}
