//! The metrics of a tablet server.

use super::{BYTES, COUNTS, SECONDS, SECONDS_SHORT, declarations};
use crate::{Label, Metric};

/// How transactions are committed, by their number in the server.
pub const COMMITTED: &[&str] = &["one_phase", "two_phase", "large"];
/// Kinds of requests, by their number in the server.
pub const METHODS: &[&str] = &[
    "get",
    "scan",
    "prewrite",
    "commit",
    "rollback",
    "check_status",
    "keep_alive",
    "resolve",
    "locks_below",
    "verify",
    "raw_get",
    "raw_put",
    "command",
    "wait_for_cell",
    "pull_tablet",
    "take_tablet",
    "observe",
    "notifications",
    "notify",
];
/// The results of requests, by their numbers in the server.
pub const RESULTS: &[&str] = &[
    "ok",
    "locked",
    "conflict",
    "rolled_back",
    "too_low",
    "not_served",
    "too_old",
    "not_leased",
    "busy",
    "invalid",
    "failed",
];
/// The steps of requests, and the kinds of requests that have them, by their numbers in the server.
pub const STEPS: &[&[&str]] = &[
    &["read", "queue"],
    &["read", "load"],
    &["read", "reply"],
    &["write", "queue"],
    &["write", "latch"],
    &["write", "load"],
    &["write", "decide"],
    &["write", "group"],
    &["write", "commit"],
    &["write", "reply"],
];
/// Waiting requests, by their numbers in the server.
pub const WAITING: &[&str] = &["rows", "disk", "readable", "cells"];
/// Limits, by their number in the server.
pub const LIMITS: &[&str] = &["requests", "queued_bytes", "decided_bytes", "reads"];
/// The outcomes of status checks, by their numbers in the server.
pub const STATUSES: &[&str] = &["committed", "rolled_back", "alive", "pending"];
/// States of tablets, by their number in the server.
pub const STATES: &[&str] = &["serving", "frozen"];

/// The most tablets with series of their own; the load of the others is summed.
pub const TABLETS_NAMED: usize = 100;
/// Kinds of load, by their number in the server.
pub const LOAD_KINDS: &[&str] = &["read", "write"];

/// The labels of loads.
const LOAD: &[Label] = &[
    Label::up_to("tablet", TABLETS_NAMED, "tablets, by number"),
    Label::of("table", "tablet"),
    Label::one_of("kind", LOAD_KINDS),
];

const METHOD: Label = Label::one_of("method", METHODS);

declarations! {
    REQUESTS: Metric::counter(
        "percolator_tablet_requests_total",
        "Requests that were answered. method: the kind of the request (command: one of the master). result: ok; locked: another transaction's lock blocked it; conflict: another transaction has written the cell first; rolled_back: the transaction was rolled back before; too_low: a reader has seen the cells, and the commit takes a later timestamp; not_served: the tablet is not here; too_old: the transaction began below the read barrier; busy: a limit was hit; invalid: the request was malformed; failed: the engine or the disk.",
    )
    .by(&[METHOD, Label::one_of("result", RESULTS)]);
    REQUEST_SECONDS: Metric::histogram(
        "percolator_tablet_request_duration_seconds",
        "Time from reading a request to handing the response to its connection. Writes are answered when they are durable.",
        SECONDS_SHORT,
        "get: 7 us, 0.2 ms; scan: 0.6 ms, 30 ms; prewrite and commit: 1.3 ms, 40 ms",
    )
    .by(&[METHOD]);
    STEP_SECONDS: Metric::histogram(
        "percolator_tablet_step_duration_seconds",
        "Time of the steps of one request in 16. queue: from reading it to its turn; latch: waiting for others that write the same rows; load: reading the cells; decide: the rules of the protocol; group: waiting for the commits before it; commit: being made durable with its group; reply: handing the response to its connection.",
        SECONDS_SHORT,
        "read: queue 1 us, 25 us; load 3 us, 45 us; reply 2 us, 35 us. write: queue 1 us, 90 us; latch 2 us, 1 ms; load 6 us, 80 us; decide 4 us, 30 us; group 0.4 ms, 10 ms; commit 0.7 ms, 10 ms; reply 5 us, 70 us",
    )
    .by(&[
        Label::one_of("kind", &["read", "write"]),
        Label::one_of("step", &["queue", "latch", "load", "decide", "group", "commit", "reply"]),
    ])
    .only(STEPS);
    LATCH_WAITS: Metric::counter(
        "percolator_tablet_latch_waits_total",
        "Requests that had to wait for others that write the same rows.",
    );
    WAITING_REQUESTS: Metric::gauge(
        "percolator_tablet_waiting_requests",
        "Requests that wait now. rows: for others that write the same rows; disk: decided, until they are durable; readable: reads of cells whose commit is not durable yet; cells: transactions that begin again at their turn at a hot cell.",
    )
    .by(&[Label::one_of("for", WAITING)]);
    WAITING_BYTES: Metric::gauge(
        "percolator_tablet_waiting_bytes",
        "Memory of the requests that wait now. rows: those that wait for rows, and reads that wait for the disk (at most 64 MiB); disk: decided batches (at most 128 MiB).",
    )
    .by(&[Label::one_of("for", &["rows", "disk"])]);
    LIMIT_HITS: Metric::counter(
        "percolator_tablet_limit_hits_total",
        "Requests that were refused because of a limit: their clients try again. requests: the number of waiting writes; queued_bytes: the memory of those that wait for rows; decided_bytes: the memory of decided batches; reads: the number of waiting reads.",
    )
    .by(&[Label::one_of("limit", LIMITS)])
    .after("clients write more than the disk takes, for seconds");
    GROUP_REQUESTS: Metric::histogram(
        "percolator_tablet_group_requests",
        "Requests that were made durable together, with one wait for the disk.",
        COUNTS,
        "2, 13",
    );
    GROUP_BYTES: Metric::histogram(
        "percolator_tablet_group_bytes",
        "Bytes that were made durable together.",
        BYTES,
        "230 bytes, 1 KiB",
    );
    GROUP_SECONDS: Metric::histogram(
        "percolator_tablet_group_commit_duration_seconds",
        "Time to make a group durable: log, sync, engine.",
        SECONDS,
        "0.4 ms, 8 ms",
    );
    GROUPS: Metric::counter(
        "percolator_tablet_groups_total",
        "Groups that were sent to the disk. full: refused, because the disk is nearly full; failed: the disk's content is not known, and the server stops.",
    )
    .by(&[Label::one_of("result", &["ok", "full", "failed"])]);
    SYNC_SECONDS: Metric::gauge(
        "percolator_tablet_sync_duration_seconds",
        "How long the disk took for the last sync of the log.",
    );
    TRANSACTIONS: Metric::counter(
        "percolator_tablet_transactions_committed_total",
        "Transactions whose commit is durable, each counted once, at the server of its primary: the sum over all servers is the cluster's. one_phase: in one request; two_phase: prewritten, then committed; large: pipelined, with flushes of its client's buffer.",
    )
    .by(&[Label::one_of("how", COMMITTED)]);
    ONE_PHASE: Metric::counter(
        "percolator_tablet_one_phase_commits_total",
        "Transactions that were committed in one request, because one server has all their cells.",
    );
    LOCKS: Metric::gauge(
        "percolator_tablet_locks",
        "Cells that are locked now, about: transactions under way, and those whose client has died.",
    );
    NOTIFICATIONS: Metric::gauge(
        "percolator_tablet_notifications",
        "Changes of observed columns that no observer has acknowledged. At most 4096 are counted; `percolator observe status` counts more.",
    );
    NOTIFICATION_OLDEST: Metric::gauge(
        "percolator_tablet_notification_oldest_timestamp_seconds",
        "Time of the oldest counted change that waits for an observer, by the oracle's time; 0: none waits.",
    );
    LOCKS_MET: Metric::counter(
        "percolator_tablet_locks_met_total",
        "Locks of other transactions that blocked reads or writes.",
    )
    .by(&[Label::one_of("by", &["read", "write"])]);
    STATUS_CHECKS: Metric::counter(
        "percolator_tablet_status_checks_total",
        "Outcomes of transactions whose locks blocked others, by their primaries. committed and rolled_back: its locks are cleared; alive: it was pushed, or is committing; pending: its primary is not prewritten yet.",
    )
    .by(&[Label::one_of("status", STATUSES)]);
    LOCK_RESOLUTIONS: Metric::counter(
        "percolator_tablet_lock_resolutions_total",
        "Rounds of resolving this server's locks of transactions from before the barrier, so that the safe point can follow. blocked: one couldn't be resolved.",
    )
    .by(&[Label::one_of("result", &["ok", "blocked"])]);
    SCAN_CELLS: Metric::histogram(
        "percolator_tablet_scan_cells",
        "Cells in one response to a scan.",
        COUNTS,
        "85, 250: the bank's audits; at most 4,096",
    );
    SCANS_CUT: Metric::counter(
        "percolator_tablet_scans_cut_total",
        "Responses to scans that ended before the requested rows, because of their size: the client requests the rest.",
    );
    STREAMS: Metric::gauge(
        "percolator_tablet_streams",
        "Connected clients, by their open streams of requests.",
    );
    SLOW_CLIENTS: Metric::counter(
        "percolator_tablet_slow_clients_total",
        "Clients that were cut off, because they took no responses for 30 seconds.",
    )
    .after("a client takes no responses");
    TABLETS: Metric::gauge(
        "percolator_tablet_tablets",
        "Tablets that this server owns. frozen: their table is being deleted.",
    )
    .by(&[Label::one_of("state", STATES)]);
    TABLE_TABLETS: Metric::gauge(
        "percolator_tablet_table_tablets",
        "Tablets that this server owns, by their table.",
    )
    .by(&[Label::up_to("table", 100, "tables")]);
    TABLET_REQUESTS: Metric::counter(
        "percolator_tablet_tablet_requests_total",
        "Requests for rows of a tablet, refused ones too; one for several tablets counts for each. The first tablets with requests have series of their own, as long as they are here.",
    )
    .by(LOAD);
    TABLET_BYTES: Metric::counter(
        "percolator_tablet_tablet_bytes_total",
        "Bytes of the rows, columns and values that were read from a tablet, or sent to be written there.",
    )
    .by(LOAD);
    ENGINE_BYTES: Metric::gauge(
        "percolator_tablet_engine_size_bytes",
        "Bytes of the engine on the disk, store and log together.",
    );
    LOG_BYTES: Metric::gauge(
        "percolator_tablet_log_size_bytes",
        "Bytes of the write-ahead log on the disk.",
    );
    SYNCS: Metric::counter(
        "percolator_tablet_log_syncs_total",
        "Syncs of the write-ahead log: waits for the disk.",
    );
    SNAPSHOTS: Metric::gauge(
        "percolator_tablet_engine_snapshots",
        "Open snapshots of the engine.",
    );
    CACHE_BYTES: Metric::gauge(
        "percolator_tablet_cache_size_bytes",
        "Memory of the newest versions of cells that were read.",
    );
    CACHE_LIMIT: Metric::gauge(
        "percolator_tablet_cache_limit_bytes",
        "Memory that the caches may take, as configured (cacheSize): three quarters for the engine, one for the newest versions of cells.",
    );
    CACHE_LOOKUPS: Metric::counter(
        "percolator_tablet_cache_lookups_total",
        "Reads of cells. hit: the newest version was in memory; miss: the engine was read.",
    )
    .by(&[Label::one_of("result", &["hit", "miss"])]);
    DISK_FREE: Metric::gauge(
        "percolator_tablet_disk_free_bytes",
        "Free room on the volume of the data. Below 64 MiB new data is refused.",
    );
    DISK_SIZE: Metric::gauge(
        "percolator_tablet_disk_size_bytes",
        "Size of the volume of the data.",
    );
    DISK_FULL: Metric::gauge(
        "percolator_tablet_disk_full",
        "1 while new data is refused because the disk is nearly full.",
    )
    .after("the volume of the data fills up");
    DISK_STALLED: Metric::gauge(
        "percolator_tablet_disk_stalled_seconds",
        "How long the disk has neither taken nor refused the write under way; 0 if shorter than 5 s.",
    )
    .after("the disk stalls");
    BARRIER: Metric::gauge(
        "percolator_tablet_barrier_timestamp_seconds",
        "Transactions that began before this time are refused, in seconds since 1970; 0: none yet.",
    );
    SAFE_POINT: Metric::gauge(
        "percolator_tablet_safe_point_timestamp_seconds",
        "Versions that were hidden before this time may be collected here, in seconds since 1970; 0: none yet.",
    );
    GARBAGE: Metric::gauge(
        "percolator_tablet_garbage_entries",
        "Versions and records that wait to be collected.",
    );
    GARBAGE_OLDEST: Metric::gauge(
        "percolator_tablet_garbage_oldest_timestamp_seconds",
        "When the oldest version that waits to be collected was hidden, in seconds since 1970; 0: nothing waits.",
    );
    COLLECTED_VERSIONS: Metric::counter(
        "percolator_tablet_collected_versions_total",
        "Versions and records that were collected.",
    );
    COLLECTED_BYTES: Metric::counter(
        "percolator_tablet_collected_bytes_total",
        "Bytes of keys and short values that were collected.",
    );
    MASTER_ANSWERED: Metric::gauge(
        "percolator_tablet_master_answered_timestamp_seconds",
        "When the master last answered a heartbeat, in seconds since 1970; 0: not yet.",
    );
}
