//! What a process has done between two pages of its metrics.

use serde::Serialize;

use super::super::metrics::{Page, quantile};

const REQUESTS: &str = "percolator_tablet_requests_total";
const DURATION: &str = "percolator_tablet_request_duration_seconds";
const READS: &[(&str, &[&str])] = &[("method", &["get", "scan"])];
const WRITES: &[(&str, &[&str])] = &[("method", &["prewrite", "commit"])];
const COMMITS: &[(&str, &[&str])] = &[("method", &["commit"]), ("result", &["ok"])];

/// What the tablet servers have done, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Load {
    /// Requests that were answered.
    pub(crate) requests_per_second: f64,
    /// Commit requests that were carried out, and commits in one phase: a transaction counts on each server that it
    /// has written to.
    pub(crate) commits_per_second: f64,
    /// The bound of the bucket that it lies in. `None`: there was none.
    pub(crate) read_p99_seconds: Option<f64>,
    /// The same.
    pub(crate) write_p99_seconds: Option<f64>,
    /// Cells that are locked now.
    pub(crate) locks: f64,
}

/// Of these servers together: what each showed then and shows now, so many seconds later.
pub(crate) fn between(pages: &[(&Page, &Page)], seconds: f64) -> Load {
    let more = |name: &str, labels: &[(&str, &[&str])]| -> f64 {
        let each = pages.iter().map(|(before, after)| {
            let now = after.sum(name, labels).unwrap_or(0.0);
            let then = before.sum(name, labels).unwrap_or(0.0);
            // A process that was started again counts from 0.
            if now < then { now } else { now - then }
        });
        each.sum::<f64>() / seconds.max(0.001)
    };
    let locks = pages
        .iter()
        .map(|(_, page)| page.sum("percolator_tablet_locks", &[]));
    Load {
        requests_per_second: more(REQUESTS, &[]),
        commits_per_second: more(REQUESTS, COMMITS)
            + more("percolator_tablet_one_phase_commits_total", &[]),
        read_p99_seconds: quantile(0.99, pages, DURATION, READS),
        write_p99_seconds: quantile(0.99, pages, DURATION, WRITES),
        locks: locks.flatten().sum(),
    }
}
