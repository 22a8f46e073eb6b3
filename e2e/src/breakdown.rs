//! A breakdown of the time from `kubectl apply` to an available cluster: each pod's steps, and the operator's own.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::condition;
use crate::watched::ObservedChange;

const SETS: &str = "statefulsets";
const PODS: &str = "pods";
const CLUSTERS: &str = "percolatorclusters";
/// The kinds that are to be watched.
pub const KINDS: [&str; 3] = [SETS, PODS, CLUSTERS];
/// In the order in which they start.
const ROLES: [&str; 3] = ["master", "tso", "tablet"];

/// The first moment at which this was so.
fn first(
    changes: &[ObservedChange],
    kind: &str,
    name: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Option<Instant> {
    let of_it = changes
        .iter()
        .filter(|seen| seen.name.0 == kind && seen.name.1 == name);
    let mut of_it = of_it.filter(|seen| seen.object.as_ref().is_some_and(&is_so));
    of_it.next().map(|seen| seen.at)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|found| found["status"] == "True")
}

/// A StatefulSet all of whose pods are ready.
fn is_ready(set: &Value) -> bool {
    let (asked, status) = (&set["spec"]["replicas"], &set["status"]);
    status["observedGeneration"] == set["metadata"]["generation"]
        && status["readyReplicas"] == *asked
}

/// The operator's own share: from each fact that it waits for, as the API server reported it, to what it writes then. None
/// if something of it was not seen.
fn steps(changes: &[ObservedChange], cluster: &str) -> Option<Vec<(String, Duration)>> {
    let mut steps = Vec::new();
    let mut fact = (
        "the cluster is made".to_owned(),
        first(changes, CLUSTERS, cluster, |_| true)?,
    );
    for role in ROLES {
        let set = format!("{cluster}-{role}");
        let made = first(changes, SETS, &set, |_| true)?;
        let (what, since) = fact;
        let took = made.saturating_duration_since(since);
        steps.push((format!("{what}, until {set} is there"), took));
        fact = (
            format!("{set} is ready"),
            first(changes, SETS, &set, is_ready)?,
        );
    }
    let reported = first(changes, CLUSTERS, cluster, |it| is_true(it, "Available"))?;
    let (what, since) = fact;
    let took = reported.saturating_duration_since(since);
    steps.push((format!("{what}, until Available is True"), took));
    Some(steps)
}

fn total(steps: &[(String, Duration)]) -> Duration {
    steps.iter().map(|(_, took)| *took).sum()
}

/// All of the operator's own share.
pub fn share(changes: &[ObservedChange], cluster: &str) -> Option<Duration> {
    steps(changes, cluster).map(|steps| total(&steps))
}

/// The steps and their times since `start`, as text.
pub fn text(changes: &[ObservedChange], cluster: &str, start: Instant) -> String {
    let after = |moment: Option<Instant>| match moment {
        Some(at) => format!("{:6.2}", at.saturating_duration_since(start).as_secs_f64()),
        None => "     ?".to_owned(),
    };
    let mut text = "seconds after apply: created, scheduled, started, ready\n".to_owned();
    let mut pods: Vec<&str> = Vec::new();
    for seen in changes.iter().filter(|seen| seen.name.0 == PODS) {
        if !pods.contains(&&*seen.name.1) {
            pods.push(&seen.name.1);
        }
    }
    for pod in pods {
        let at = |is_so: fn(&Value) -> bool| after(first(changes, PODS, pod, is_so));
        let running =
            |pod: &Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
        let steps = [
            at(|_| true),
            at(|pod| is_true(pod, "PodScheduled")),
            at(running),
            at(|pod| is_true(pod, "Ready")),
        ];
        let _ = writeln!(text, "    {} {pod}", steps.join(" "));
    }
    match steps(changes, cluster) {
        Some(steps) => {
            let all = total(&steps);
            let _ = writeln!(text, "the operator's own share: {:.2} s", all.as_secs_f64());
            for (what, took) in steps {
                let _ = writeln!(text, "    {:6.2} {what}", took.as_secs_f64());
            }
        }
        None => text += "the operator's own share: something of it was not seen",
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_operators_share_is_what_it_takes_from_facts_to_writes() {
        let start = Instant::now();
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        let seen = |tenths, kind, name: &str, object| ObservedChange {
            at: at(tenths),
            object: Some(object),
            name: (kind, name.to_owned()),
        };
        let set = |ready: u64| json!({"spec": {"replicas": 1}, "status": {"readyReplicas": ready}});
        let cluster = |status: &str| json!({"status": {"conditions": [{"type": "Available", "status": status}]}});
        let pod = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let mut changes = vec![seen(1, CLUSTERS, "a", cluster("False"))];
        for (role, made) in [("master", 2), ("tso", 12), ("tablet", 22)] {
            let name = format!("a-{role}");
            changes.push(seen(made, SETS, &name, set(0)));
            changes.push(seen(made + 8, SETS, &name, set(1)));
        }
        changes.push(seen(21, PODS, "a-tablet-0", pod));
        assert!(text(&changes, "a", start).contains("not seen"));
        changes.push(seen(35, CLUSTERS, "a", cluster("True")));
        let text = text(&changes, "a", start);
        // 0.1 s, twice 0.2 s, and 0.5 s.
        assert!(text.contains("share: 1.00 s"), "{text}");
        assert!(
            text.contains("2.10      ?      ?   2.10 a-tablet-0"),
            "{text}"
        );
    }
}
