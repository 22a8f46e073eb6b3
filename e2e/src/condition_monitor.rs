//! A monitor that compares a cluster's conditions with its pods all the time, and not only when a test waits for them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::watched::ObjectWatches;
use crate::{Namespace, condition, is_ending, lock, say};

/// A condition may be wrong for so long: a lease may have to run out before another operator reports.
const LAG_MAX: Duration = Duration::from_secs(30);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
/// A longer interval counts as this one: if this process stood still, the operator may have stood still, too.
const SAMPLE_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The roles, as in a spec and as in labels.
const ROLES: [(&str, &str); 3] = [
    ("master", "master"),
    ("oracle", "tso"),
    ("tablets", "tablet"),
];

/// The conditions that are followed.
const FOLLOWED: [&str; 3] = ["Available", "Progressing", "Degraded"];

/// The conditions and pods of a cluster at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sample {
    /// Whether each followed condition is true, if it is about the newest spec.
    conditions: [Option<bool>; FOLLOWED.len()],
    /// The pods of each role that are ready, and how many there are to be.
    serving: [(u64, u64); ROLES.len()],
    /// How many tablet servers have ever served.
    joined: u64,
}

type IsWrong = fn(&Sample) -> bool;

/// Contradictions between conditions and pods, of a cluster whose spec is valid.
const CONTRADICTIONS: [(&str, IsWrong); 4] = [
    (
        "Available is True, and a server that has served isn't ready",
        |moment| {
            let [.., (tablets, asked)] = moment.serving;
            let have_rows = moment.joined.min(asked);
            let is_away = moment.serving.iter().any(|(ready, _)| *ready == 0);
            moment.conditions[0] == Some(true) && (is_away || tablets < have_rows)
        },
    ),
    ("Available is False, and all pods are ready", |moment| {
        moment.conditions[0] == Some(false) && moment.is_whole()
    }),
    (
        "Progressing is False, and pods are missing or not ready",
        |moment| moment.conditions[1] == Some(false) && !moment.is_whole(),
    ),
    ("Degraded is True, and all pods are ready", |moment| {
        moment.conditions[2] == Some(true) && moment.is_whole()
    }),
];

impl Sample {
    fn of(cluster: &Value, pods: &[Value]) -> Self {
        let conditions = FOLLOWED.map(|kind| {
            condition(cluster, kind)
                .filter(|it| it["observedGeneration"] == cluster["metadata"]["generation"])
                .map(|it| it["status"] == "True")
        });
        let name = &cluster["metadata"]["name"];
        let serving = ROLES.map(|(role, component)| {
            let serves = |pod: &&Value| {
                let labels = &pod["metadata"]["labels"];
                labels["percolator.dev/cluster"] == *name
                    && labels["percolator.dev/component"] == component
                    && !is_ending(pod)
                    && condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
            };
            let ready = pods.iter().filter(serves).count();
            let asked = cluster["spec"][role]["replicas"].as_u64();
            (u64::try_from(ready).unwrap_or_default(), asked.unwrap_or(1))
        });
        let joined = cluster["status"]["tablets"]["joined"].as_u64();
        Self {
            conditions,
            serving,
            joined: joined.unwrap_or_default(),
        }
    }

    fn is_whole(&self) -> bool {
        self.serving.iter().all(|(ready, asked)| ready >= asked)
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (kind, status) in FOLLOWED.iter().zip(self.conditions) {
            let status = match status {
                Some(true) => "True",
                Some(false) => "False",
                None => "not of the newest spec",
            };
            write!(f, "{kind} {status}; ")?;
        }
        f.write_str("ready:")?;
        ROLES
            .iter()
            .zip(self.serving)
            .try_for_each(|((_, role), (ready, asked))| write!(f, " {role} {ready} of {asked}"))
    }
}

/// The samples of a cluster, and the first contradiction among them.
#[derive(Debug, Default)]
struct Timeline {
    last: Option<Sample>,
    /// For how long each contradiction has lasted.
    lasts: [Duration; CONTRADICTIONS.len()],
    turns: u32,
    timeline: String,
    /// The first contradiction that lasted too long.
    contradiction: Option<&'static str>,
}

impl Timeline {
    fn add(&mut self, moment: Option<Sample>, since_last: Duration, since_start: Duration) {
        let at = since_start.as_secs_f64();
        for ((what, is_wrong), lasts) in CONTRADICTIONS.iter().zip(&mut self.lasts) {
            let is_wrong = |moment: &Option<Sample>| moment.as_ref().is_some_and(is_wrong);
            *lasts = if is_wrong(&moment) && is_wrong(&self.last) {
                *lasts + since_last.min(SAMPLE_INTERVAL_MAX)
            } else {
                Duration::ZERO
            };
            if *lasts > LAG_MAX && self.contradiction.is_none() {
                self.contradiction = Some(what);
                let _ = writeln!(self.timeline, "{at:8.1} s: {what} for {LAG_MAX:?}");
            }
        }
        if moment != self.last {
            let conditions =
                |moment: &Option<Sample>| moment.as_ref().map(|moment| moment.conditions);
            self.turns += u32::from(conditions(&moment) != conditions(&self.last));
            let text = moment
                .as_ref()
                .map_or("no cluster".to_owned(), Sample::to_string);
            let _ = writeln!(self.timeline, "{at:8.1} s: {text}");
            self.last = moment;
        }
    }
}

/// A thread that follows the conditions of a cluster.
#[derive(Debug)]
pub struct ConditionMonitor {
    timeline: Arc<Mutex<Timeline>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ConditionMonitor {
    /// From now on.
    pub fn follow(space: &Namespace, cluster: &str) -> Self {
        let watched = ObjectWatches::begin(space.name(), &["percolatorclusters", "pods"]);
        watched.wait_until_begun();
        let (timeline, stop) = (
            Arc::<Mutex<Timeline>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (written, stopped, name) = (timeline.clone(), stop.clone(), cluster.to_owned());
        let thread = std::thread::spawn(move || {
            let (started, mut last) = (Instant::now(), Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                let clusters = watched.now("percolatorclusters");
                let cluster = clusters.iter().find(|it| it["metadata"]["name"] == *name);
                let pods = watched.now("pods");
                let moment = cluster.map(|cluster| Sample::of(cluster, &pods));
                lock(&written).add(moment, last.elapsed(), started.elapsed());
                last = Instant::now();
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self {
            timeline,
            stop,
            thread: Some(thread),
        }
    }

    /// Asserts that no condition was wrong for long, and that some changed.
    pub fn holds(self) {
        let samples = lock(&self.timeline);
        let timeline = &samples.timeline;
        assert_eq!(samples.contradiction, None, "on the way:\n{timeline}");
        assert!(samples.turns > 1, "nothing turned on the way:\n{timeline}");
        say(&format!(
            "{} were followed all the way: they changed {} times, and agreed with the pods",
            FOLLOWED.join(", "),
            samples.turns
        ));
    }
}

impl Drop for ConditionMonitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(conditions: [Option<bool>; 3], ready: [u64; 3]) -> Sample {
        Sample {
            conditions,
            serving: ready.map(|ready| (ready, 1)),
            joined: 1,
        }
    }

    #[test]
    fn conditions_are_compared_with_the_pods() {
        const WHOLE: [u64; 3] = [1, 1, 1];
        const MISSING: [u64; 3] = [1, 0, 1];
        let (yes, no) = (Some(true), Some(false));
        let wrong = |conditions, ready| {
            let moment = moment(conditions, ready);
            CONTRADICTIONS.map(|(_, is_wrong)| is_wrong(&moment))
        };
        assert_eq!(wrong([yes, no, no], WHOLE), [false; 4]);
        assert_eq!(wrong([no, yes, yes], MISSING), [false; 4]);
        assert_eq!(wrong([None; 3], MISSING), [false; 4]);
        assert_eq!(wrong([yes, yes, no], MISSING), [true, false, false, false]);
        assert_eq!(wrong([no, yes, no], WHOLE), [false, true, false, false]);
        assert_eq!(wrong([no, no, no], MISSING), [false, false, true, false]);
        assert_eq!(wrong([yes, no, yes], WHOLE), [false, false, false, true]);
        let one_of_three = Sample {
            serving: [(1, 1), (1, 1), (2, 3)],
            joined: 3,
            ..moment([yes, yes, no], WHOLE)
        };
        let is_wrong = |moment: &Sample| CONTRADICTIONS.map(|(_, is_wrong)| is_wrong(moment))[0];
        assert!(is_wrong(&one_of_three));
        let not_yet = Sample {
            joined: 2,
            ..one_of_three
        };
        assert!(!is_wrong(&not_yet));
    }

    #[test]
    fn a_moment_is_read_from_objects() {
        let object = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let cluster = object(
            r#"{"metadata": {"name": "a", "generation": 2}, "spec": {"tablets": {"replicas": 2}},
            "status": {"conditions": [{"type": "Available", "status": "True", "observedGeneration": 2},
            {"type": "Degraded", "status": "True", "observedGeneration": 1},
            {"type": "Progressing", "status": "False", "observedGeneration": 2}], "tablets": {"joined": 2}}}"#,
        );
        let pod = |component: &str, more: &str| {
            object(&format!(
                r#"{{"metadata": {{"labels": {{"percolator.dev/cluster": "a",
                "percolator.dev/component": "{component}"}}{more}}},
                "status": {{"conditions": [{{"type": "Ready", "status": "True"}}]}}}}"#
            ))
        };
        let ending = r#", "deletionTimestamp": "2026""#;
        let pods = [pod("tablet", ""), pod("tablet", ending), pod("tso", "")];
        let found = Sample::of(&cluster, &pods);
        assert_eq!(found.conditions, [Some(true), Some(false), None]);
        assert_eq!(found.serving, [(0, 1), (1, 1), (1, 2)]);
        assert_eq!(found.joined, 2);
    }

    #[test]
    fn only_what_lasts_is_wrong_and_no_time_in_which_all_stood_still() {
        let seconds = Duration::from_secs;
        let mut timeline = Timeline::default();
        let mut add = |moment, since_last| {
            timeline.add(moment, since_last, Duration::ZERO);
            timeline.contradiction
        };
        let unavailable = || Some(moment([Some(false), None, None], [1, 1, 1]));
        add(unavailable(), seconds(1));
        assert_eq!(add(unavailable(), seconds(1_000)), None, "all stood still");
        for _ in 0..29 {
            assert_eq!(add(unavailable(), seconds(1)), None);
        }
        add(
            Some(moment([Some(true), None, None], [1, 1, 1])),
            seconds(1),
        );
        for _ in 0..31 {
            assert_eq!(add(unavailable(), seconds(1)), None);
        }
        assert!(add(unavailable(), seconds(1)).is_some());
        let text = &timeline.timeline;
        assert!(text.contains("tablet 1 of 1"), "{text}");
    }
}
