//! Book-keeping of the reconciles of clusters: which are under way, which failed and when they are tried again, and
//! whether the watch still reports every change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A failure is tried again after the first pause, then after twice as long each time.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(120);
/// The least time between two retries of all clusters: a thousand retries at a time would add to an API server's trouble.
const RETRIES_APART: Duration = Duration::from_millis(100);
/// How long a reconcile may take.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(120);

/// What is known of the reconciles of all clusters, by their full names.
#[derive(Debug, Default)]
pub(crate) struct Reconciles {
    book: Mutex<ReconcileBook>,
}

#[derive(Debug, Default)]
struct ReconcileBook {
    clusters: BTreeMap<String, Cluster>,
    /// When reconciles that failed are tried again.
    retries: BTreeSet<Instant>,
    /// A cluster whose change the watch has missed.
    missed: Option<String>,
}

#[derive(Debug, Default)]
struct Cluster {
    /// In a row.
    failures: u32,
    under_way_since: Option<Instant>,
    /// The generation that the API server had, and the watch hadn't reported, at the last comparison.
    waited_for: Option<i64>,
}

impl Reconciles {
    fn book(&self) -> MutexGuard<'_, ReconcileBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reconcile begins.
    pub(crate) fn begin(&self, cluster: &str, now: Instant) {
        let mut book = self.book();
        let of_cluster = book.clusters.entry(cluster.to_owned()).or_default();
        of_cluster.under_way_since = Some(now);
    }

    pub(crate) fn end(&self, cluster: &str, succeeded: bool) {
        if let Some(of_cluster) = self.book().clusters.get_mut(cluster) {
            of_cluster.under_way_since = None;
            if succeeded {
                of_cluster.failures = 0;
            }
        }
    }

    /// How many failures in a row this one makes, and when to try again; `jitter` is from 0.5 to 1.
    pub(crate) fn failed(&self, cluster: &str, now: Instant, jitter: f64) -> (u32, Duration) {
        let mut book = self.book();
        let of_cluster = book.clusters.entry(cluster.to_owned()).or_default();
        of_cluster.failures = of_cluster.failures.saturating_add(1);
        let failures = of_cluster.failures;
        let at = book.free_retry(now, pause_after(failures).mul_f64(jitter));
        (failures, at.saturating_duration_since(now))
    }

    /// Compares the generations of all clusters with those that the watch has reported last (`reported`), also if their reconciles
    /// still wait. The watch has missed a generation that it doesn't report until the next comparison. Clusters that are gone are
    /// forgotten, if it `is_known` that they are.
    pub(crate) fn compare(
        &self,
        present: &BTreeMap<String, i64>,
        reported: impl Fn(&str) -> Option<i64>,
        is_known: impl Fn(&str) -> bool,
    ) {
        let mut book = self.book();
        book.clusters.retain(|name, cluster| {
            present.contains_key(name) || cluster.under_way_since.is_some() || !is_known(name)
        });
        let mut missed = None;
        for (name, generation) in present {
            let cluster = book.clusters.entry(name.clone()).or_default();
            let (waited_for, reported) = (cluster.waited_for, reported(name));
            if reported >= Some(*generation) {
                cluster.waited_for = None;
            } else if waited_for.is_some_and(|waited_for| reported < Some(waited_for)) {
                missed = Some(name.clone());
            } else {
                cluster.waited_for = Some(*generation);
            }
        }
        book.missed = missed;
    }

    /// There is no such cluster any more.
    pub(crate) fn forget(&self, cluster: &str) {
        let mut book = self.book();
        let known = book.clusters.get(cluster);
        if known.is_some_and(|cluster| cluster.under_way_since.is_none()) {
            book.clusters.remove(cluster);
        }
    }

    /// How many clusters are known, are being reconciled, and wait to be reconciled again after a failure, which only one
    /// that `is_there` does.
    pub(crate) fn count(&self, is_there: impl Fn(&str) -> bool) -> (usize, usize, usize) {
        let book = self.book();
        let clusters = book.clusters.values();
        let under_way = |cluster: &&Cluster| cluster.under_way_since.is_some();
        let retrying = book.clusters.iter().filter(|(name, cluster)| {
            !under_way(cluster) && cluster.failures > 0 && is_there(name)
        });
        (
            clusters.len(),
            clusters.filter(under_way).count(),
            retrying.count(),
        )
    }

    /// A sentence about a reconcile or a watch that stands still. A restart of the process may help.
    pub(crate) fn standstill(&self, now: Instant) -> Option<String> {
        let book = self.book();
        let overdue = book.clusters.iter().find(|(_, cluster)| {
            let since = cluster.under_way_since;
            since.is_some_and(|since| now.saturating_duration_since(since) > RECONCILE_TIMEOUT)
        });
        match (overdue, &book.missed) {
            (Some((name, _)), _) => Some(format!("the reconcile of {name} has taken too long")),
            (None, Some(name)) => Some(format!("the watch has missed a change of {name}")),
            (None, None) => None,
        }
    }
}

impl ReconcileBook {
    /// Takes the first free time after a pause. Retries with long pauses don't delay others.
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
        // One that always fails waits for long, and delays no other.
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
    fn the_queue_has_the_clusters_in_a_reconcile_and_those_that_are_tried_again() {
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
    fn a_reconcile_that_takes_too_long_is_a_standstill() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        reconciles.begin("a/a", now);
        assert_eq!(reconciles.standstill(now + RECONCILE_TIMEOUT), None);
        let later = now + RECONCILE_TIMEOUT + Duration::from_secs(1);
        let reported = reconciles.standstill(later).expect("a standstill");
        assert!(reported.contains("a/a"), "{reported}");
        reconciles.end("a/a", false);
        assert_eq!(reconciles.standstill(later), None);
    }

    #[test]
    fn a_watch_that_is_a_moment_late_twice_is_no_standstill() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        let compare = |reported: i64, there: i64| {
            reconciles.compare(&present(&[("a/a", there)]), |_| Some(reported), |_| true);
            reconciles.standstill(now)
        };
        assert_eq!(compare(1, 2), None);
        assert_eq!(compare(2, 3), None, "the change was reported");
        assert!(compare(2, 4).is_some());
    }

    #[test]
    fn a_watch_that_misses_a_change_is_a_standstill() {
        let reconciles = Reconciles::default();
        let now = Instant::now();
        let compare = |reported: Option<i64>, there: &[(&str, i64)]| {
            let reported = |name: &str| reported.filter(|_| name == "a/a").or(Some(1));
            reconciles.compare(&present(there), reported, |_| true);
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
        let message = compare(Some(1), &[("a/a", 3), ("a/b", 1)]).expect("a standstill");
        assert!(message.contains("a/a"), "{message}");
        assert_eq!(compare(Some(3), &[("a/a", 3)]), None);
        assert_eq!(reconciles.book().clusters.len(), 1, "a/b is gone");
    }

    /// A change that was reported waits behind reconciles that take long. The watch works.
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
