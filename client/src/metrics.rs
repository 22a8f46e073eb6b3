//! What the library counts, where the application gives it a registry.

use std::time::Duration;

use percolator_protocol::txn::Ending;
use percolator_protocol::types::Timestamp;
use percolator_telemetry::names::client as names;
use percolator_telemetry::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry, Set,
};
use percolator_wire::v1::request::Body as Ask;

use crate::attempts::Attempt;
use crate::error::Conflict;
use crate::router::Router;
use crate::{Error, MetricsError};

/// The library's metrics.
pub(crate) struct Metrics {
    pub(crate) begun: IntCounter,
    commits: IntCounterVec,
    commit_seconds: Histogram,
    pub(crate) commit_cells: Histogram,
    pub(crate) retries: IntCounter,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    timestamp_seconds: Histogram,
    pub(crate) locks_met: IntCounter,
    locks_resolved: IntCounterVec,
    pub(crate) locks_pushed: IntCounter,
    pub(crate) flushes: IntCounter,
    observer_runs: IntCounterVec,
    pub(crate) observer_retries: IntCounter,
    pub(crate) observer_running: IntGauge,
    observer_lag_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, MetricsError> {
        let set = Set::new(registry, names::ALL);
        let metrics = Self {
            begun: set.counter(names::BEGUN)?,
            commits: set.counters(names::COMMITS)?,
            commit_seconds: set.histogram(names::COMMIT_SECONDS)?,
            commit_cells: set.histogram(names::COMMIT_CELLS)?,
            retries: set.counter(names::RETRIES)?,
            requests: set.counters(names::REQUESTS)?,
            request_seconds: set.histograms(names::REQUEST_SECONDS)?,
            timestamp_seconds: set.histogram(names::TIMESTAMP_SECONDS)?,
            locks_met: set.counter(names::LOCKS_MET)?,
            locks_resolved: set.counters(names::LOCKS_RESOLVED)?,
            locks_pushed: set.counter(names::LOCKS_PUSHED)?,
            flushes: set.counter(names::FLUSHES)?,
            observer_runs: set.counters(names::OBSERVER_RUNS)?,
            observer_retries: set.counter(names::OBSERVER_RETRIES)?,
            observer_running: set.gauge(names::OBSERVER_RUNNING)?,
            observer_lag_seconds: set.histogram(names::OBSERVER_LAG_SECONDS)?,
        };
        set.finish();
        Ok(metrics)
    }

    /// A transaction has begun, and waited so long for its timestamp.
    pub(crate) fn began(&self, waited: Duration) {
        self.begun.inc();
        self.timestamp_seconds.observe(waited.as_secs_f64());
    }

    /// A commit has ended.
    fn committed(&self, outcome: &'static str, took: Duration) {
        self.commits.with_label_values(&[outcome]).inc();
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// A request to a tablet server has ended.
    pub(crate) fn asked(&self, method: &'static str, attempt: &Attempt, took: Duration) {
        let labels = [method, attempt.result()];
        self.requests.with_label_values(&labels).inc();
        self.request_seconds
            .with_label_values(&[method])
            .observe(took.as_secs_f64());
    }

    /// An observer is done with a change.
    pub(crate) fn observed(&self, end: &'static str) {
        self.observer_runs.with_label_values(&[end]).inc();
    }

    /// The first run for a change has begun.
    pub(crate) fn run_began(&self, changed_at: Timestamp, start_ts: Timestamp) {
        let lag_ms = start_ts
            .physical_ms()
            .saturating_sub(changed_at.physical_ms());
        let lag = Duration::from_millis(lag_ms);
        self.observer_lag_seconds.observe(lag.as_secs_f64());
    }

    /// Locks of others were cleared.
    pub(crate) fn resolved(&self, ending: Ending, locks: u64) {
        let ending = match ending {
            Ending::Committed(_) => "committed",
            Ending::RolledBack => "rolled_back",
        };
        self.locks_resolved
            .with_label_values(&[ending])
            .inc_by(locks);
    }
}

impl Attempt {
    /// How it ended, for metrics and traces.
    pub(crate) fn result(&self) -> &'static str {
        match self {
            Self::Done(_) => "ok",
            Self::Lost(_) | Self::NeverSent(_) => "lost",
            Self::Again(_)
            | Self::Moved(_)
            | Self::Damaged(_)
            | Self::Busy(_)
            | Self::Frozen(_)
            | Self::Invalid(_)
            | Self::TooOld(_) => "refused",
        }
    }
}

/// How a commit's end is called.
fn outcome(start_ts: Timestamp, result: &Result<Timestamp, Error>) -> &'static str {
    match result {
        Ok(commit_ts) if *commit_ts == start_ts => "read_only",
        Ok(_) => "committed",
        Err(Error::Conflict(Conflict::RolledBack { .. })) => "rolled_back",
        Err(Error::Conflict(_)) => "conflict",
        Err(Error::TooOld(_)) => "too_old",
        Err(Error::Timeout { .. }) => "timeout",
        Err(Error::Unavailable(_)) => "unavailable",
        Err(Error::Unknown { .. }) => "unknown",
        Err(_) => "other",
    }
}

/// How a request is called.
pub(crate) fn method(ask: &Ask) -> &'static str {
    match ask {
        Ask::GetOne(_) | Ask::Get(_) => "get",
        Ask::Scan(_) => "scan",
        Ask::Prewrite(_) => "prewrite",
        Ask::Commit(_) => "commit",
        Ask::Rollback(_) => "rollback",
        Ask::CheckStatus(_) => "check_status",
        Ask::KeepAlive(_) => "keep_alive",
        Ask::WaitForCell(_) => "wait_for_cell",
        Ask::Notifications(_) => "notifications",
        Ask::Observe(_) => "observe",
        Ask::Unobserve(_) => "unobserve",
        Ask::Notify(_) => "notify",
        _ => "other",
    }
}

/// Carries out the commit of the transaction that began at `start_ts`, and counts how it ended.
pub(crate) async fn counted(
    router: &Router,
    start_ts: Timestamp,
    commit: impl Future<Output = Result<Timestamp, Error>>,
) -> Result<Timestamp, Error> {
    let (metrics, trace) = (router.metrics(), &router.trace);
    let began = metrics.map(|_| router.world.transport.now());
    let result = commit.await.map_err(|error| router.by_cause(error));
    if metrics.is_none() && trace.is_none() {
        return result;
    }
    let outcome = outcome(start_ts, &result);
    if let (Some(metrics), Some(began)) = (metrics, began) {
        let took = router.world.transport.now().saturating_sub(began);
        metrics.committed(outcome, took);
    }
    if let Some(trace) = trace {
        trace.ended(outcome);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_method_and_result() {
        let metrics = Metrics::new(&Registry::new()).expect("new names");
        let took = Duration::from_millis(1_500);
        metrics.asked("get", &Attempt::Busy(String::new()), took);
        metrics.asked("get", &Attempt::Lost(String::new()), took);
        for result in ["refused", "lost"] {
            let counted = metrics.requests.with_label_values(&["get", result]);
            assert_eq!(counted.get(), 1, "{result}");
        }
        let seconds = metrics.request_seconds.with_label_values(&["get"]);
        assert_eq!(
            (seconds.get_sample_count(), seconds.get_sample_sum()),
            (2, 3.0)
        );
    }
}
