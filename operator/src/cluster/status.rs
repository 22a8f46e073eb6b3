//! The status, from what was asked for and what is there: pure. "Now" is an argument, and stands in a status only
//! where a condition turned.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, ConditionType, Problem, Reason, RoleStatus, Status};
use serde_json::Value;

use super::build::Settings;
use super::drift;
use super::growing;
use super::joined::JoinedServers;
use super::monitored::{self, ConditionValue};
use super::names::{self, PORT, Role};
use super::observed::{self, Observed};
use super::plan::{Conflict, Plan, Refusal};
use super::records;
use super::registers;
use super::scale_in::ScaleIn;
use super::trouble;
use super::workloads;

/// The result of the steps before.
#[derive(Debug)]
pub(crate) enum Outcome<'a> {
    /// The spec can't be carried out.
    Invalid(&'a [Problem]),
    /// The plan, and its writes that the API server refused.
    Planned(&'a Plan, &'a [Refusal]),
}

impl Outcome<'_> {
    /// Whether the servers are rolled out as the spec says.
    fn is_done(&self) -> bool {
        match self {
            Self::Invalid(_) => false,
            Self::Planned(plan, _) => plan.waits.is_none() && plan.is_idle_but_for_monitoring(),
        }
    }

    /// Claims that the API server keeps otherwise than they were asked for.
    fn altered_claims(&self) -> &[(String, &'static str)] {
        match self {
            Self::Invalid(_) => &[],
            Self::Planned(plan, _) => &plan.altered_claims,
        }
    }

    /// Whether the API server refused a write that the servers need, and will refuse it until a person changes something.
    fn has_lasting_refusal(&self) -> bool {
        match self {
            Self::Invalid(_) => false,
            Self::Planned(_, refused) => {
                let mut refused = refused.iter();
                refused.any(|it| !it.is_of_monitoring && it.is_lasting())
            }
        }
    }

    /// The API server's messages about refused writes, for the Prometheus operator or for all else; empty if it refused none.
    pub(super) fn refused(&self, is_of_monitoring: bool) -> String {
        let refused = match self {
            Self::Invalid(_) => &[],
            Self::Planned(_, refused) => *refused,
        };
        let refused = refused
            .iter()
            .filter(|it| it.is_of_monitoring == is_of_monitoring);
        let why: BTreeSet<&str> = refused.map(|it| &*it.why).collect();
        Vec::from_iter(why).join("; ")
    }
}

/// The longest message of a condition, in characters.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// How many pods of a role a message names.
const NAMED_MAX: usize = 3;
/// `sha256:` and twelve digits.
const DIGEST_CHARS: usize = 19;

pub(crate) fn status(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
    outcome: &Outcome<'_>,
    now: Timestamp,
) -> Status {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &cluster.spec;
    let is_invalid = matches!(outcome, Outcome::Invalid(_));
    let [of_master, of_oracle, of_tablets] =
        Role::ALL.map(|role| of_role(cluster, observed, role, is_invalid));
    let (masters_missing, master) = of_master;
    let (oracles_missing, oracle) = of_oracle;
    let (tablets_missing, tablets) = of_tablets;
    let missing = [masters_missing, oracles_missing, tablets_missing];
    let mut status = Status {
        observed_generation: cluster.metadata.generation,
        conditions: Vec::new(),
        endpoint: Some(format!("{name}.{namespace}.svc:{PORT}")),
        version: version(observed),
        default_image: records::default_image(cluster, settings, is_invalid),
        templates: records::templates(cluster, observed, settings, is_invalid),
        last_valid_spec: records::last_valid_spec(cluster, is_invalid),
        selector: Some(names::selector_text(&names::role_selector(
            name,
            Role::Tablet,
        ))),
        tablets,
        oracle,
        master,
        proxy: workloads::proxies(cluster, observed, is_invalid),
        observers: if is_invalid {
            BTreeMap::new()
        } else {
            workloads::observers(cluster, observed)
        },
    };
    let known = cluster
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let available = available(&status, &missing, observed, now);
    let progressing = progressing(spec.paused, outcome);
    let degraded = degraded(cluster, observed, settings, outcome, now);
    let stalled = stalled(&degraded, outcome);
    status.conditions = ConditionType::ALL
        .into_iter()
        .map(|kind| {
            let (is_true, reason, message) = match kind {
                ConditionType::Ready => ready(&available, &progressing, &stalled, outcome),
                ConditionType::Available => available.clone(),
                ConditionType::Progressing => progressing.clone(),
                ConditionType::Degraded => degraded.clone(),
                ConditionType::Reconciling => reconciling(&progressing, &stalled),
                ConditionType::Stalled => stalled.clone(),
                ConditionType::Drifted => drift::drifted(observed, outcome.altered_claims()),
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

/// How the servers of a role are, and which of them don't serve.
fn of_role(
    cluster: &ClusterObject,
    observed: &Observed,
    role: Role,
    is_invalid: bool,
) -> (Missing, RoleStatus) {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let serving = observed.serving();
    let set = observed.own_set(cluster, role);
    // What a bad spec asks for is not what there is to be.
    let desired = match set.filter(|_| is_invalid) {
        Some(set) => observed::number(set, "/spec/replicas"),
        None => role.asked(&cluster.spec).replicas.into(),
    };
    // Servers that are to go have rows until they are drained.
    let running = match role {
        Role::Tablet if !is_invalid => desired.max(ScaleIn::of(cluster, observed).replicas.into()),
        _ => desired,
    };
    let serves =
        |ordinal: i32| set.is_some() && serving.contains(&*format!("{}-{ordinal}", role.set(name)));
    let [desired, running] =
        [desired, running].map(|count| i32::try_from(count).unwrap_or(i32::MAX));
    let before = cluster.status.as_ref().map(|status| match role {
        Role::Master => &status.master,
        Role::Oracle => &status.oracle,
        Role::Tablet => &status.tablets,
    });
    let JoinedServers { first, beyond } = JoinedServers::now(before, running, &serves);
    let status = RoleStatus {
        joined: first,
        joined_beyond: beyond.iter().copied().collect(),
        volumes: i32::try_from(observed.volumes(name, role)).unwrap_or(i32::MAX),
        claimed: observed.claimed(name, role),
        leader: registers::leader(cluster, observed, role),
        ..role_status(set, desired)
    };
    // At first all of them.
    let counting = if first == 0 { running } else { first };
    let counting: Vec<i32> = (0..counting).chain(beyond).collect();
    let is_drained = |ordinal: i32| {
        let server = u32::try_from(ordinal)
            .ok()
            .and_then(|it| observed.master.server(it));
        role == Role::Tablet && ordinal >= desired && server.is_some_and(|it| it.is_drained)
    };
    let missing = counting.iter().copied();
    let missing = missing.filter(|ordinal| !serves(*ordinal) && !is_drained(*ordinal));
    let missing = missing.map(|ordinal| format!("{}-{ordinal}", role.set(name)));
    let pods = missing.collect::<Vec<_>>();
    let is_enough = role != Role::Tablet && first > 0 && pods.len() < counting.len();
    let missing = Missing {
        role: match role {
            Role::Master | Role::Oracle => role.singular(),
            Role::Tablet => role.plural(),
        },
        has_set: set.is_some(),
        pods,
        is_enough,
    };
    (missing, status)
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

/// Servers' numbers in the type of a status.
pub(super) fn ordinals(servers: &BTreeSet<u32>) -> Vec<i32> {
    let servers = servers.iter().copied();
    servers.filter_map(|it| i32::try_from(it).ok()).collect()
}

/// The tag of the image of the servers' and proxies' pods, or of each of them, where they differ.
fn version(observed: &Observed) -> Option<String> {
    let of_ours = observed
        .pods
        .iter()
        .filter(|pod| !observed::is_of_observer(pod));
    let images = of_ours.map(|pod| observed::server_container(pod)?.image.as_deref());
    let mut versions: Vec<&str> = images.flatten().map(tag_or_digest).collect();
    versions.sort_unstable();
    versions.dedup();
    match versions[..] {
        [] => None,
        [version] => Some(version.to_owned()),
        _ => Some(versions.join(", ")),
    }
}

/// The tag of an image, or the first characters of its digest.
fn tag_or_digest(image: &str) -> &str {
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    let (name, digest) = match name.split_once('@') {
        Some((name, digest)) => (name, digest.get(..DIGEST_CHARS).unwrap_or(digest)),
        None => (name, "latest"),
    };
    name.split_once(':').map_or(digest, |(_, tag)| tag)
}

/// The servers of a role that have to serve, and don't.
struct Missing {
    role: &'static str,
    /// Whether there is a StatefulSet: before that no pod is named.
    has_set: bool,
    pods: Vec<String>,
    /// Others of the role serve in their place.
    is_enough: bool,
}

impl Missing {
    fn text(&self, summary: &str, observed: &Observed, now: Timestamp) -> String {
        let mut text = format!("{} {summary}", self.role);
        if !self.has_set {
            return text;
        }
        let named = self.pods.iter().take(NAMED_MAX);
        let named = named.map(|pod| format!("{pod}: {}", trouble::why_not(observed, pod, now)));
        text += &format!(" ({})", named.collect::<Vec<_>>().join("; "));
        if self.pods.len() > NAMED_MAX {
            text.pop();
            text += &format!("; and {} more)", self.pods.len() - NAMED_MAX);
        }
        text
    }
}

/// `missing` is of the master, the oracle and the tablet servers.
fn available(
    status: &Status,
    missing: &[Missing; 3],
    observed: &Observed,
    now: Timestamp,
) -> ConditionValue {
    let of_roles = [&status.master, &status.oracle, &status.tablets];
    let of_roles = missing.iter().zip(of_roles);
    let (standbys, needed): (Vec<_>, Vec<_>) = of_roles
        .filter(|(missing, _)| !missing.pods.is_empty())
        .partition(|(missing, _)| missing.is_enough);
    let texts = |of: &[(&Missing, &RoleStatus)]| {
        let texts = of.iter();
        let texts = texts.map(|(missing, role)| missing.text(&role.summary, observed, now));
        texts.collect::<Vec<_>>().join(", ")
    };
    if !needed.is_empty() {
        let message = format!("ready: {}", texts(&[needed, standbys].concat()));
        return (false, Reason::ServersNotReady, message);
    }
    if !standbys.is_empty() {
        let message = format!(
            "every row can be read and written; ready: {}",
            texts(&standbys)
        );
        return (true, Reason::StandbysNotReady, message);
    }
    let beyond = i32::try_from(status.tablets.joined_beyond.len()).unwrap_or(i32::MAX);
    let joined = status.tablets.joined + beyond;
    let added = status.tablets.desired - joined;
    let message = match added {
        ..=0 => "the master, the oracle and all tablet servers serve".to_owned(),
        _ => format!(
            "the master, the oracle and {joined} tablet servers serve; {added} more have never served, and hold no rows"
        ),
    };
    (true, Reason::AllServersReady, message)
}

fn progressing(is_paused: bool, outcome: &Outcome<'_>) -> ConditionValue {
    let plan = match outcome {
        Outcome::Invalid(_) => {
            let message = "the cluster is kept as the last valid spec says until the spec is valid; see Degraded".to_owned();
            return (false, Reason::InvalidSpec, message);
        }
        Outcome::Planned(plan, _) => plan,
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
        None if !outcome.refused(false).is_empty() => {
            let message = "waiting until the API server takes what it refuses; see Degraded";
            (true, Reason::ApplyRefused, message.to_owned())
        }
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

fn degraded(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
    outcome: &Outcome<'_>,
    now: Timestamp,
) -> ConditionValue {
    match outcome {
        Outcome::Invalid(problems) => {
            let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
            return (true, Reason::InvalidSpec, problems.join("; "));
        }
        Outcome::Planned(plan, _) if !plan.conflicts.is_empty() => {
            let name = cluster.metadata.name.as_deref().unwrap_or_default();
            let message = conflict_message(name, &plan.conflicts);
            return (true, Reason::ObjectConflict, message);
        }
        Outcome::Planned(..) => {}
    }
    let refused = outcome.refused(false);
    if !refused.is_empty() {
        let message = format!("the API server refuses: {refused}");
        return (true, Reason::ApplyRefused, message);
    }
    let roles = Role::ALL.into_iter();
    let lost = roles.filter_map(|role| registers::lost(cluster, observed, role));
    let lost = lost.map(|lost| (Reason::DataLost, lost));
    let timeout = settings.unschedulable_timeout_seconds;
    let blocked = ScaleIn::of(cluster, observed).blocked;
    let blocked = blocked.filter(|_| !cluster.spec.paused).map(|why| {
        let message = format!("spec.tablets.replicas can't be met: {why}");
        (Reason::DrainBlocked, message)
    });
    match trouble::worst(observed, timeout, now)
        .into_iter()
        .chain(growing::trouble(cluster, observed, now))
        .chain(lost)
        .chain(blocked)
        .min()
    {
        Some((reason, message)) => (true, reason, message),
        None => {
            let message = "nothing is wrong that the operator could see".to_owned();
            (false, Reason::AsExpected, message)
        }
    }
}

/// Stalled, by kstatus' rules: only a person can mend it.
fn stalled(degraded: &ConditionValue, outcome: &Outcome<'_>) -> ConditionValue {
    let (is_degraded, reason, message) = degraded;
    let is_for_a_person = match reason {
        Reason::InvalidSpec | Reason::ObjectConflict | Reason::DataLost => true,
        Reason::ApplyRefused => outcome.has_lasting_refusal(),
        _ => false,
    };
    if *is_degraded && is_for_a_person {
        return (true, *reason, message.clone());
    }
    let message = "nothing blocks the operator that only a person can mend".to_owned();
    (false, Reason::NotStalled, message)
}

/// Reconciling, by kstatus' rules: never together with Stalled.
fn reconciling(progressing: &ConditionValue, stalled: &ConditionValue) -> ConditionValue {
    match stalled {
        (true, reason, _) => {
            let message = "the operator gets no further; see Stalled".to_owned();
            (false, *reason, message)
        }
        _ => progressing.clone(),
    }
}

/// Ready, by kstatus' rules: false until everything is rolled out and serves. The message says what the operator waits for.
fn ready(
    available: &ConditionValue,
    progressing: &ConditionValue,
    stalled: &ConditionValue,
    outcome: &Outcome<'_>,
) -> ConditionValue {
    let (serves, why_not, servers) = available;
    let (is_progressing, reason, progress) = progressing;
    if let (true, reason, message) = stalled {
        return (false, *reason, message.clone());
    }
    if *is_progressing || !outcome.is_done() {
        let message = if *serves {
            progress.clone()
        } else {
            format!("{progress}; {servers}")
        };
        return (false, *reason, message);
    }
    if !serves {
        return (false, *why_not, servers.clone());
    }
    (true, Reason::UpToDate, servers.clone())
}

fn paused(is_paused: bool) -> ConditionValue {
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

/// A time in whole seconds: the API server keeps no fraction.
fn seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The conditions that turned between two statuses, for events, each with whether that is a warning.
pub(crate) fn turned<'a>(before: Option<&Status>, after: &'a Status) -> Vec<(&'a Condition, bool)> {
    let known = before.map_or(&[][..], |status| &status.conditions);
    let mut turned = Vec::new();
    for condition in &after.conditions {
        // These say the same as others.
        let is_repeated = ConditionType::OF_KSTATUS
            .iter()
            .any(|kind| kind.name() == condition.type_);
        if is_repeated {
            continue;
        }
        let old = known.iter().find(|old| old.type_ == condition.type_);
        let is_event = match old {
            Some(old) => (&old.status, &old.reason) != (&condition.status, &condition.reason),
            // A new cluster gets no events of conditions that are as usual.
            None => {
                let waits = [Reason::WaitingForDefinitions, Reason::WaitingForPermission];
                condition.status == "True"
                    || waits.iter().any(|reason| reason.name() == condition.reason)
            }
        };
        if is_event {
            let is_warning = condition.type_ == ConditionType::Degraded.name()
                && condition.status == "True"
                || condition.type_ == ConditionType::Available.name()
                    && condition.status == "False";
            turned.push((condition, is_warning));
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
