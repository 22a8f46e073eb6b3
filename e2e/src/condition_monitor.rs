//! Whether a cluster's conditions tell the truth all the way, and not only where a test waits for them: held against the
//! pods, from one moment to the next.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::watched::Watched;
use crate::{Namespace, condition, is_ending, lock, say};

/// The truth may take as long: a lease may have to run out first, before another operator says anything.
const MAY_LAST: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What stood still for longer has heard nothing meanwhile, and neither has the operator.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// The roles, as in a spec and as in labels.
const ROLES: [(&str, &str); 3] = [
    ("master", "master"),
    ("oracle", "tso"),
    ("tablets", "tablet"),
];

/// The conditions that are followed.
const FOLLOWED: [&str; 3] = ["Available", "Progressing", "Degraded"];

/// What there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Moment {
    /// Whether each of those that are followed is true, where it is about the newest spec.
    told: [Option<bool>; FOLLOWED.len()],
    /// The pods of each role that are ready, and how many there are to be.
    serving: [(u64, u64); ROLES.len()],
    /// How many tablet servers have ever served.
    joined: u64,
}

type IsTold = fn(&Moment) -> bool;

/// What is not true of what is told, of a cluster whose spec is good.
const LIES: [(&str, IsTold); 4] = [
    (
        "Available is True, and a server that has served isn't ready",
        |moment| {
            let [.., (tablets, asked)] = moment.serving;
            let have_rows = moment.joined.min(asked);
            let is_away = moment.serving.iter().any(|(ready, _)| *ready == 0);
            moment.told[0] == Some(true) && (is_away || tablets < have_rows)
        },
    ),
    ("Available is False, and all pods are ready", |moment| {
        moment.told[0] == Some(false) && moment.is_whole()
    }),
    (
        "Progressing is False, and pods are missing or not ready",
        |moment| moment.told[1] == Some(false) && !moment.is_whole(),
    ),
    ("Degraded is True, and all pods are ready", |moment| {
        moment.told[2] == Some(true) && moment.is_whole()
    }),
];

impl Moment {
    fn of(cluster: &Value, pods: &[Value]) -> Self {
        let told = FOLLOWED.map(|kind| {
            condition(cluster, kind)
                .filter(|told| told["observedGeneration"] == cluster["metadata"]["generation"])
                .map(|told| told["status"] == "True")
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
            told,
            serving,
            joined: joined.unwrap_or_default(),
        }
    }

    fn is_whole(&self) -> bool {
        self.serving.iter().all(|(ready, asked)| ready >= asked)
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (kind, told) in FOLLOWED.iter().zip(self.told) {
            let told = match told {
                Some(true) => "True",
                Some(false) => "False",
                None => "not told of the newest spec",
            };
            write!(f, "{kind} {told}; ")?;
        }
        f.write_str("ready:")?;
        ROLES
            .iter()
            .zip(self.serving)
            .try_for_each(|((_, role), (ready, asked))| write!(f, " {role} {ready} of {asked}"))
    }
}

/// What was seen of a cluster, from one moment to the next.
#[derive(Debug, Default)]
struct Timeline {
    last: Option<Moment>,
    /// For how long each lie has lasted.
    lasts: [Duration; LIES.len()],
    turns: u32,
    timeline: String,
    /// The first that lasted too long.
    lie: Option<&'static str>,
}

impl Timeline {
    fn look(&mut self, moment: Option<Moment>, since_last: Duration, since_start: Duration) {
        let at = since_start.as_secs_f64();
        for ((lie, is_told), lasts) in LIES.iter().zip(&mut self.lasts) {
            let is_told = |moment: &Option<Moment>| moment.as_ref().is_some_and(is_told);
            *lasts = if is_told(&moment) && is_told(&self.last) {
                *lasts + since_last.min(LOOK_MAX)
            } else {
                Duration::ZERO
            };
            if *lasts > MAY_LAST && self.lie.is_none() {
                self.lie = Some(lie);
                let _ = writeln!(self.timeline, "{at:8.1} s: {lie} for {MAY_LAST:?}");
            }
        }
        if moment != self.last {
            let told = |moment: &Option<Moment>| moment.as_ref().map(|moment| moment.told);
            self.turns += u32::from(told(&moment) != told(&self.last));
            let text = moment
                .as_ref()
                .map_or("no cluster".to_owned(), Moment::to_string);
            let _ = writeln!(self.timeline, "{at:8.1} s: {text}");
            self.last = moment;
        }
    }
}

/// Follows a cluster for as long as it is there.
#[derive(Debug)]
pub struct ConditionMonitor {
    told: Arc<Mutex<Timeline>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ConditionMonitor {
    /// From now on.
    pub fn follow(space: &Namespace, cluster: &str) -> Self {
        let watched = Watched::begin(space.name(), &["percolatorclusters", "pods"]);
        watched.wait_until_told();
        let (told, stop) = (
            Arc::<Mutex<Timeline>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (kept, stopped, name) = (told.clone(), stop.clone(), cluster.to_owned());
        let thread = std::thread::spawn(move || {
            let (started, mut last) = (Instant::now(), Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                let clusters = watched.now("percolatorclusters");
                let cluster = clusters.iter().find(|it| it["metadata"]["name"] == *name);
                let pods = watched.now("pods");
                let moment = cluster.map(|cluster| Moment::of(cluster, &pods));
                let mut told = lock(&kept);
                told.look(moment, last.elapsed(), started.elapsed());
                drop(told);
                last = Instant::now();
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Self {
            told,
            stop,
            thread: Some(thread),
        }
    }

    /// Nothing that was told was untrue for long, and what happened meanwhile was told.
    pub fn holds(self) {
        let told = lock(&self.told);
        let timeline = &told.timeline;
        assert_eq!(told.lie, None, "on the way:\n{timeline}");
        assert!(told.turns > 1, "nothing turned on the way:\n{timeline}");
        say(&format!(
            "{} were followed all the way: they turned {} times, and told the truth",
            FOLLOWED.join(", "),
            told.turns
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

    fn moment(told: [Option<bool>; 3], ready: [u64; 3]) -> Moment {
        Moment {
            told,
            serving: ready.map(|ready| (ready, 1)),
            joined: 1,
        }
    }

    #[test]
    fn what_is_told_is_held_against_the_pods() {
        const WHOLE: [u64; 3] = [1, 1, 1];
        const LACKING: [u64; 3] = [1, 0, 1];
        let (yes, no) = (Some(true), Some(false));
        let lies = |told, ready| {
            let moment = moment(told, ready);
            LIES.map(|(_, is_told)| is_told(&moment))
        };
        assert_eq!(lies([yes, no, no], WHOLE), [false; 4]);
        assert_eq!(lies([no, yes, yes], LACKING), [false; 4]);
        assert_eq!(lies([None; 3], LACKING), [false; 4]);
        assert_eq!(lies([yes, yes, no], LACKING), [true, false, false, false]);
        assert_eq!(lies([no, yes, no], WHOLE), [false, true, false, false]);
        assert_eq!(lies([no, no, no], LACKING), [false, false, true, false]);
        assert_eq!(lies([yes, no, yes], WHOLE), [false, false, false, true]);
        let one_of_three = Moment {
            serving: [(1, 1), (1, 1), (2, 3)],
            joined: 3,
            ..moment([yes, yes, no], WHOLE)
        };
        let told = |moment: &Moment| LIES.map(|(_, is_told)| is_told(moment))[0];
        assert!(told(&one_of_three));
        let not_yet = Moment {
            joined: 2,
            ..one_of_three
        };
        assert!(!told(&not_yet));
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
        let found = Moment::of(&cluster, &pods);
        assert_eq!(found.told, [Some(true), Some(false), None]);
        assert_eq!(found.serving, [(0, 1), (1, 1), (1, 2)]);
        assert_eq!(found.joined, 2);
    }

    #[test]
    fn only_what_lasts_is_a_lie_and_no_time_in_which_all_stood_still() {
        let seconds = Duration::from_secs;
        let mut told = Timeline::default();
        let mut look = |moment, since_last| {
            told.look(moment, since_last, Duration::ZERO);
            told.lie
        };
        let unavailable = || Some(moment([Some(false), None, None], [1, 1, 1]));
        look(unavailable(), seconds(1));
        assert_eq!(look(unavailable(), seconds(1_000)), None, "all stood still");
        for _ in 0..29 {
            assert_eq!(look(unavailable(), seconds(1)), None);
        }
        look(
            Some(moment([Some(true), None, None], [1, 1, 1])),
            seconds(1),
        );
        for _ in 0..31 {
            assert_eq!(look(unavailable(), seconds(1)), None);
        }
        assert!(look(unavailable(), seconds(1)).is_some());
        assert!(told.timeline.contains("tablet 1 of 1"), "{}", told.timeline);
    }
}
