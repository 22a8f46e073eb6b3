//! Book-keeping of the reconciles of clusters: which are under way, which failed and when they are tried again, and
//! whether the watch still tells of every change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A failure is tried again after the first pause, then after twice as long each time.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(120);
/// Between two reconciles of all that are tried again: an API server in trouble isn't helped by a thousand clusters
/// that ask at a time.
const RETRIES_APART: Duration = Duration::from_millis(100);
/// A reconcile that takes longer is stuck.
const STUCK: Duration = Duration::from_secs(120);

/// What is known of the reconciles of all clusters, by their full names.
#[derive(Debug, Default)]
pub(crate) struct Reconciles {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    clusters: BTreeMap<String, Cluster>,
    /// When reconciles that failed are tried again.
    retries: BTreeSet<Instant>,
    /// A cluster whose change the watch has not told.
    untold: Option<String>,
}

#[derive(Debug, Default)]
struct Cluster {
    /// In a row.
    failures: u32,
    under_way_since: Option<Instant>,
    /// One that the API server had, and the watch hadn't told, when they were last compared.
    waited_for: Option<i64>,
}

impl Reconciles {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reconcile begins.
    pub(crate) fn begin(&self, cluster: &str, now: Instant) {
        let mut books = self.books();
        let of_cluster = books.clusters.entry(cluster.to_owned()).or_default();
        of_cluster.under_way_since = Some(now);
    }

    pub(crate) fn end(&self, cluster: &str, succeeded: bool) {
        if let Some(of_cluster) = self.books().clusters.get_mut(cluster) {
            of_cluster.under_way_since = None;
            if succeeded {
                of_cluster.failures = 0;
            }
        }
    }

    /// How many failures in a row this one makes, and when to try again; `jitter` is from 0.5 to 1.
    pub(crate) fn failed(&self, cluster: &str, now: Instant, jitter: f64) -> (u32, Duration) {
        let mut books = self.books();
        let of_cluster = books.clusters.entry(cluster.to_owned()).or_default();
        of_cluster.failures = of_cluster.failures.saturating_add(1);
        let failures = of_cluster.failures;
        let at = books.free_retry(now, pause_after(failures).mul_f64(jitter));
        (failures, at.saturating_duration_since(now))
    }

    /// Compares what the API server has with what the watch has told: clusters, and their generations. What it
    /// hasn't told from one comparison to the next, it won't. `told`: the generation that it has told last, also if its reconcile
    /// waits for others. Those that are gone are forgotten, of which it `is_known` whether they are.
    pub(crate) fn compare(
        &self,
        present: &BTreeMap<String, i64>,
        told: impl Fn(&str) -> Option<i64>,
        is_known: impl Fn(&str) -> bool,
    ) {
        let mut books = self.books();
        books.clusters.retain(|name, cluster| {
            present.contains_key(name) || cluster.under_way_since.is_some() || !is_known(name)
        });
        let mut untold = None;
        for (name, generation) in present {
            let cluster = books.clusters.entry(name.clone()).or_default();
            let (waited_for, told) = (cluster.waited_for, told(name));
            if told >= Some(*generation) {
                cluster.waited_for = None;
            } else if waited_for.is_some_and(|waited_for| told < Some(waited_for)) {
                untold = Some(name.clone());
            } else {
                cluster.waited_for = Some(*generation);
            }
        }
        books.untold = untold;
    }

    /// There is no such cluster any more.
    pub(crate) fn forget(&self, cluster: &str) {
        let mut books = self.books();
        let known = books.clusters.get(cluster);
        if known.is_some_and(|cluster| cluster.under_way_since.is_none()) {
            books.clusters.remove(cluster);
        }
    }

    /// How many clusters are known, are being reconciled, and wait to be reconciled again after a failure, which only one
    /// that `is_there` does.
    pub(crate) fn count(&self, is_there: impl Fn(&str) -> bool) -> (usize, usize, usize) {
        let books = self.books();
        let clusters = books.clusters.values();
        let under_way = |cluster: &&Cluster| cluster.under_way_since.is_some();
        let retrying = books.clusters.iter().filter(|(name, cluster)| {
            !under_way(cluster) && cluster.failures > 0 && is_there(name)
        });
        (
            clusters.len(),
            clusters.filter(under_way).count(),
            retrying.count(),
        )
    }

    /// What doesn't move any more, in a sentence; a process that begins anew may.
    pub(crate) fn standstill(&self, now: Instant) -> Option<String> {
        let books = self.books();
        let stuck = books.clusters.iter().find(|(_, cluster)| {
            let since = cluster.under_way_since;
            since.is_some_and(|since| now.saturating_duration_since(since) > STUCK)
        });
        match (stuck, &books.untold) {
            (Some((name, _)), _) => Some(format!("the reconcile of {name} has taken too long")),
            (None, Some(name)) => Some(format!("the watch doesn't tell of the change of {name}")),
            (None, None) => None,
        }
    }
}

impl Books {
    /// The first time after a pause that is free, which is taken then: what waits for long holds up nobody else.
    fn free_retry(&mut self, now: Instant, pause: Duration) -> Instant {
        // Those before have been.
        self.retries = self.retries.split_off(&now);
        let mut at = now + pause;
        // Those that began before this one, and are too near, count too.
        let near = at.checked_sub(RETRIES_APART);
        let near = near.map_or(Bound::Unbounded, Bound::Excluded);
        for taken in self.retries.range((near, Bound::Unbounded)) {
            if at + RETRIES_APART <= *taken {
                break;
            }
            at = *taken + RETRIES_APART;
        }
        self.retries.insert(at);
        at
    }
}

/// After so many failures in a row.
fn pause_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (RETRY_FIRST * (1 << doublings)).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(clusters: &[(&str, i64)]) -> BTreeMap<String, i64> {
        let clusters = clusters.iter();
        clusters
            .map(|(name, generation)| ((*name).to_owned(), *generation))
            .collect()
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let millis = |failures| pause_after(failures).as_millis();
        assert_eq!(
            [millis(1), millis(2), millis(4), millis(9), millis(u32::MAX)],
            [500, 1_000, 4_000, 120_000, 120_000]
        );
    }

    #[test]
    fn what_failed_is_tried_again_one_after_the_other() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        let pause = |cluster: &str| reconciles.failed(cluster, now, 1.0);
        assert_eq!(pause("a/a"), (1, Duration::from_millis(500)));
        assert_eq!(pause("a/b"), (1, Duration::from_millis(600)));
        assert_eq!(pause("a/a"), (2, Duration::from_millis(1_000)));
        assert_eq!(pause("a/c"), (1, Duration::from_millis(700)));
        reconciles.end("a/a", true);
        assert_eq!(reconciles.failed("a/a", now, 0.5).0, 1);
        // One that fails always waits for long, and holds up nobody else.
        for _ in 0..9 {
            pause("a/d");
        }
        assert_eq!(pause("a/e"), (1, Duration::from_millis(900)));
        // However many there are, no more than so many a second.
        let pauses: Vec<Duration> = (0..1_000)
            .map(|n| reconciles.failed(&format!("b/{n}"), now, 1.0).1)
            .collect();
        assert!(
            pauses
                .windows(2)
                .all(|two| two[1] - two[0] >= RETRIES_APART)
        );
    }

    #[test]
    fn the_queue_is_what_is_looked_at_and_what_is_tried_again() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        for cluster in ["a/a", "a/b", "a/c"] {
            reconciles.begin(cluster, now);
        }
        assert_eq!(reconciles.count(|_| true), (3, 3, 0));
        reconciles.end("a/a", true);
        reconciles.end("a/b", false);
        reconciles.failed("a/b", now, 1.0);
        assert_eq!(reconciles.count(|_| true), (3, 1, 1));
        assert_eq!(
            reconciles.count(|name| name != "a/b"),
            (3, 1, 0),
            "it is gone"
        );
        reconciles.begin("a/b", now);
        assert_eq!(reconciles.count(|_| true), (3, 2, 0));
        reconciles.end("a/b", true);
        reconciles.end("a/c", true);
        assert_eq!(reconciles.count(|_| true), (3, 0, 0));
        reconciles.forget("a/b");
        assert_eq!(reconciles.count(|_| true), (2, 0, 0));
    }

    #[test]
    fn a_look_that_takes_too_long_is_a_standstill() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        reconciles.begin("a/a", now);
        assert_eq!(reconciles.standstill(now + STUCK), None);
        let later = now + STUCK + Duration::from_secs(1);
        let told = reconciles.standstill(later).expect("a standstill");
        assert!(told.contains("a/a"), "{told}");
        reconciles.end("a/a", false);
        assert_eq!(reconciles.standstill(later), None);
    }

    #[test]
    fn a_watch_that_is_a_moment_late_twice_is_no_standstill() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        let compare = |told: i64, there: i64| {
            reconciles.compare(&present(&[("a/a", there)]), |_| Some(told), |_| true);
            reconciles.standstill(now)
        };
        assert_eq!(compare(1, 2), None);
        assert_eq!(compare(2, 3), None, "what was waited for was told");
        assert!(compare(2, 4).is_some());
    }

    #[test]
    fn a_watch_that_misses_a_change_is_a_standstill() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        let compare = |told: Option<i64>, there: &[(&str, i64)]| {
            let told = |name: &str| told.filter(|_| name == "a/a").or(Some(1));
            reconciles.compare(&present(there), told, |_| true);
            reconciles.standstill(now)
        };
        reconciles.begin("a/b", now);
        reconciles.end("a/b", true);
        assert_eq!(compare(Some(1), &[("a/a", 1), ("a/b", 1)]), None);
        assert_eq!(
            compare(Some(1), &[("a/a", 2), ("a/b", 1)]),
            None,
            "it may be on its way"
        );
        let said = compare(Some(1), &[("a/a", 3), ("a/b", 1)]).expect("a standstill");
        assert!(said.contains("a/a"), "{said}");
        assert_eq!(compare(Some(3), &[("a/a", 3)]), None);
        assert_eq!(reconciles.books().clusters.len(), 1, "a/b is gone");
    }

    /// What was told waits for its turn, behind reconciles that take long: that is none of the watch's doing.
    #[test]
    fn a_reconcile_that_waits_for_others_is_no_standstill() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        for _ in 0..5 {
            reconciles.compare(&present(&[("a/a", 2)]), |_| Some(2), |_| true);
        }
        assert_eq!(reconciles.standstill(now), None);
    }
}
