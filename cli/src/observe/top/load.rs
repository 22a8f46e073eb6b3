//! What a process has done between two pages of its metrics.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::metrics::{Page, quantile};

/// Series of metrics that have one of these values of a label.
type Selected = (
    &'static str,
    &'static [(&'static str, &'static [&'static str])],
);

/// Which metrics of a role say what it does.
pub(crate) struct Shown {
    /// Every process of the role has it.
    pub(crate) requests: &'static str,
    transactions: Selected,
    duration: &'static str,
    reads: &'static [&'static str],
    writes: &'static [&'static str],
}

/// Tablet servers'.
pub(crate) const TABLETS: Shown = Shown {
    requests: "percolator_tablet_requests_total",
    transactions: ("percolator_tablet_transactions_committed_total", &[]),
    duration: "percolator_tablet_request_duration_seconds",
    reads: &["get", "scan"],
    writes: &["prewrite", "commit"],
};

/// Proxies'.
pub(crate) const PROXIES: Shown = Shown {
    requests: "percolator_proxy_requests_total",
    transactions: (
        "percolator_proxy_sessions_ended_total",
        &[("end", &["committed"])],
    ),
    duration: "percolator_proxy_request_duration_seconds",
    reads: &["get", "batch_get", "get_for_update", "scan"],
    writes: &["commit"],
};

/// What servers of a role have done, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Load {
    /// Requests that have their responses.
    pub(crate) requests_per_second: f64,
    /// Transactions that were committed, each counted once: on the server of its primary, or by its proxy.
    pub(crate) transactions_per_second: f64,
    /// The bound of the bucket that it lies in. `None`: there was none.
    pub(crate) read_p99_seconds: Option<f64>,
    /// The same.
    pub(crate) write_p99_seconds: Option<f64>,
    /// Cells that are locked now.
    pub(crate) locks: f64,
}

/// Of these servers together: what each showed then and shows now, so many seconds later.
pub(crate) fn between(shown: &Shown, pages: &[(&Page, &Page)], seconds: f64) -> Load {
    let more = |name: &str, labels: &[(&str, &[&str])]| -> f64 {
        let each = pages.iter().map(|(before, after)| {
            let now = after.sum(name, labels).unwrap_or(0.0);
            let then = before.sum(name, labels).unwrap_or(0.0);
            // A process that was started again counts from 0.
            if now < then { now } else { now - then }
        });
        each.sum::<f64>() / seconds.max(0.001)
    };
    let p99 = |methods| quantile(0.99, pages, shown.duration, &[("method", methods)]);
    let locks = pages
        .iter()
        .map(|(_, page)| page.sum("percolator_tablet_locks", &[]));
    Load {
        requests_per_second: more(shown.requests, &[]),
        transactions_per_second: more(shown.transactions.0, shown.transactions.1),
        read_p99_seconds: p99(shown.reads),
        write_p99_seconds: p99(shown.writes),
        // A sum of nothing is -0.
        locks: locks.flatten().sum::<f64>() + 0.0,
    }
}

/// What was asked of one tablet, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct TabletLoad {
    /// Requests for its rows.
    pub(crate) requests_per_second: f64,
    /// Of rows, columns and values, read and written.
    pub(crate) bytes_per_second: f64,
}

/// Of the tablets that a server tells apart, by their number.
pub(crate) fn of_tablets(before: &Page, after: &Page, seconds: f64) -> BTreeMap<u64, TabletLoad> {
    let mut loads: BTreeMap<u64, TabletLoad> = BTreeMap::new();
    let mut rates = |name: &str, rate: fn(&mut TabletLoad) -> &mut f64| {
        let then = before.by(name, "tablet");
        for (tablet, now) in after.by(name, "tablet") {
            // The sum of tablets without a label of their own has no number.
            let Ok(tablet_id) = tablet.parse() else {
                continue;
            };
            let then = then.get(tablet).copied().unwrap_or(0.0);
            // A process that was started again counts from 0.
            let more = if now < then { now } else { now - then };
            *rate(loads.entry(tablet_id).or_default()) = more / seconds.max(0.001);
        }
    };
    rates("percolator_tablet_tablet_requests_total", |load| {
        &mut load.requests_per_second
    });
    rates("percolator_tablet_tablet_bytes_total", |load| {
        &mut load.bytes_per_second
    });
    loads
}
