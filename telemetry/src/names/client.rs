//! What the client library shows.

use super::{COUNTS, SECONDS, declarations};
use crate::{Label, Metric};

/// How transactions end, by their number in the client.
pub const OUTCOMES: &[&str] = &[
    "committed",
    "read_only",
    "conflict",
    "rolled_back",
    "too_old",
    "timeout",
    "unavailable",
    "unknown",
    "other",
];
/// Requests to tablet servers, by their number in the client.
pub const METHODS: &[&str] = &[
    "get",
    "scan",
    "prewrite",
    "commit",
    "rollback",
    "check_status",
    "keep_alive",
    "wait_for_cell",
    "notifications",
    "observe",
    "unobserve",
    "notify",
    "other",
];
/// How an observer is done with a change.
pub const OBSERVED: &[&str] = &["committed", "overtaken", "unknown", "dead_letter"];

declarations! {
    BEGUN: Metric::counter(
        "percolator_client_transactions_begun_total",
        "Transactions that were begun, those that only read too.",
    );
    COMMITS: Metric::counter(
        "percolator_client_commits_total",
        "Commits that were asked for, by how they ended. committed; read_only: nothing was written; conflict: another transaction was first, and the application may begin again; rolled_back: by another one that was in its way; too_old: it began before what is kept; timeout and unavailable: servers didn't answer, and nothing is committed; unknown: the answer to the deciding request was lost, so that it may be committed; other: the application's own mistake.",
    )
    .by(&[Label::one_of("outcome", OUTCOMES)]);
    COMMIT_SECONDS: Metric::histogram(
        "percolator_client_commit_duration_seconds",
        "How long commits took, with whatever became of them.",
        SECONDS,
        "3 ms, 45 ms",
    );
    RETRIES: Metric::counter(
        "percolator_client_transact_retries_total",
        "Times that transact() began a transaction again after a conflict.",
    );
    REQUESTS: Metric::counter(
        "percolator_client_requests_total",
        "Requests to tablet servers, by how they ended. lost: no answer came, and it is asked again as far as that can be done; refused: the server didn't carry it out.",
    )
    .by(&[
        Label::one_of("method", METHODS),
        Label::one_of("result", &["ok", "refused", "lost"]),
    ]);
    REQUEST_SECONDS: Metric::histogram(
        "percolator_client_request_duration_seconds",
        "From when a request to a tablet server was made to when its answer was there.",
        SECONDS,
        "get: 0.3 ms, 5 ms; prewrite: 2 ms, 40 ms",
    )
    .by(&[Label::one_of("method", METHODS)]);
    TIMESTAMP_SECONDS: Metric::histogram(
        "percolator_client_timestamp_duration_seconds",
        "How long begin took: it waits for a timestamp of the oracle's.",
        SECONDS,
        "0.3 ms, 5 ms",
    );
    LOCKS_MET: Metric::counter(
        "percolator_client_locks_met_total",
        "Times that somebody else's locks were in the way, and their transaction's primary was asked.",
    );
    LOCKS_RESOLVED: Metric::counter(
        "percolator_client_locks_resolved_total",
        "Locks of others that were cleared, by how their transaction had ended.",
    )
    .by(&[Label::one_of("ending", &["committed", "rolled_back"])]);
    LOCKS_PUSHED: Metric::counter(
        "percolator_client_locks_pushed_total",
        "Times that a live transaction in the way of a read was pushed to commit after it, and its locks were ignored.",
    );
    FLUSHES: Metric::counter(
        "percolator_client_flushes_total",
        "Times that a large transaction's writes were flushed before its commit.",
    )
    .after("a transaction writes more than its buffer holds");
    OBSERVER_RUNS: Metric::counter(
        "percolator_client_observer_runs_total",
        "Changes of observed columns that this process was given and is done with. committed: a run has committed; overtaken: another one had acknowledged it before; unknown: the answer to the run's commit was lost, and the change comes again if it waits still; dead_letter: it was given up.",
    )
    .by(&[Label::one_of("end", OBSERVED)]);
    OBSERVER_RETRIES: Metric::counter(
        "percolator_client_observer_retries_total",
        "Times that a run was begun again: after a conflict, a failure of the handler, or of servers.",
    );
    OBSERVER_RUNNING: Metric::gauge(
        "percolator_client_observer_running",
        "Changes for which observers run just now, those that wait before they are tried again too.",
    );
    OBSERVER_LAG_SECONDS: Metric::histogram(
        "percolator_client_observer_lag_seconds",
        "How long ago a change had been committed when its first run in this process began, by the oracle's time.",
        SECONDS,
        "3 ms, 200 ms",
    );
    COMMIT_CELLS: Metric::histogram(
        "percolator_client_commit_cells",
        "Cells that a transaction wrote, without those that were flushed before.",
        COUNTS,
        "2, 2",
    );
}
