//! What the master shows.

use super::{SECONDS, SECONDS_SHORT, declarations};
use crate::{Label, Metric};

/// Requests, by their number in the master.
pub const METHODS: &[&str] = &[
    "heartbeat",
    "locate",
    "directory",
    "session",
    "gc_status",
    "set_gc",
    "transactions",
    "release_gc_lock",
    "create_table",
    "delete_table",
    "split_table",
    "merge_table",
    "move_tablet",
    "drain_servers",
    "introduce_proxy",
    "rebuild",
];
/// What holds collection back.
pub const HOLDERS: &[&str] = &[
    "paused",
    "oracle",
    "gc_lock",
    "server_down",
    "server_behind",
    "tablets_lost",
    "locks",
    "resolving",
    "table_creating",
    "table_deleting",
    "starting",
];
/// States of tables.
pub const TABLE_STATES: &[&str] = &["creating", "ready", "deleting"];
/// States of servers.
pub const SERVER_STATES: &[&str] = &["up", "down", "drained"];
/// States of tablets.
pub const TABLET_STATES: &[&str] = &["creating", "serving", "frozen", "down", "lost"];
/// Roles of servers.
pub const ROLES: &[&str] = &["master", "tablet", "tso"];

const METHOD: Label = Label::one_of("method", METHODS);

declarations! {
    REQUESTS: Metric::counter(
        "percolator_master_requests_total",
        "Requests that were answered. heartbeat: of servers; session: a client renews the lease of its gc-locks; locate: a client asks where rows are; directory: where everything is, for people, or the oracles.",
    )
    .by(&[METHOD, Label::one_of("result", &["ok", "error"])]);
    REQUEST_SECONDS: Metric::histogram(
        "percolator_master_request_duration_seconds",
        "How long requests took. create_table, delete_table, split_table, merge_table and move_tablet wait for tablet servers.",
        SECONDS_SHORT,
        "heartbeat: 40 us, 40 ms where the state is written; session and locate: 10 us, 25 us",
    )
    .by(&[METHOD]);
    HAS_STATE: Metric::gauge(
        "percolator_master_has_state",
        "1 where the master has its directory; 0 while one that has lost it refuses all servers.",
    );
    SERVERS: Metric::gauge(
        "percolator_master_servers",
        "Servers that the master knows. up: its last heartbeat is at most 1.5 seconds old; drained: a tablet server that is not, and that is to \
         have no tablets and has none.",
    )
    .by(&[
        Label::one_of("server_role", &["tablet", "tso"]),
        Label::one_of("state", SERVER_STATES),
    ]);
    EXPECTED: Metric::gauge(
        "percolator_master_expected_servers",
        "Servers that the cluster's manifest asks for, by role. 0: it doesn't set the number. The master that leads knows.",
    )
    .by(&[Label::one_of("role", ROLES)]);
    TABLES: Metric::gauge("percolator_master_tables", "Tables.")
        .by(&[Label::one_of("state", TABLE_STATES)]);
    TABLETS: Metric::gauge(
        "percolator_master_tablets",
        "Tablets. creating: not made at its owner yet; serving; frozen: its table is being deleted; down: its owner has sent no heartbeat lately; lost: its owner is up and doesn't have it, so its data is gone.",
    )
    .by(&[Label::one_of("state", TABLET_STATES)]);
    TABLETS_DOWN: Metric::gauge(
        "percolator_master_tablets_down",
        "Tablets of a tablet server that has sent no heartbeat lately. 0: it has, or has no tablets.",
    )
    .by(&[Label::up_to("owner", 200, "tablet servers")]);
    TABLETS_MOVING: Metric::gauge(
        "percolator_master_tablets_moving",
        "Tablets that servers are getting from others.",
    );
    TABLETS_TO_DRAIN: Metric::gauge(
        "percolator_master_tablets_to_drain",
        "Tablets of servers that are to have none. They are moved to others, but for those of tables that are being deleted.",
    );
    TABLE_TABLETS: Metric::gauge(
        "percolator_master_table_tablets",
        "Tablets, by their table.",
    )
    .by(&[Label::up_to("table", 100, "tables")]);
    STATE_WRITES: Metric::counter(
        "percolator_master_state_writes_total",
        "Times that the state was to be made durable. After an error the master stops.",
    )
    .by(&[Label::one_of("result", &["ok", "error"])]);
    STATE_WRITE_SECONDS: Metric::histogram(
        "percolator_master_state_write_duration_seconds",
        "How long it took to make the state durable. Requests wait meanwhile.",
        SECONDS,
        "8 ms, 50 ms",
    );
    STATE_BYTES: Metric::gauge(
        "percolator_master_state_size_bytes",
        "Size of the state when it was last made durable.",
    );
    STATE_AHEAD: Metric::gauge(
        "percolator_master_state_ahead",
        "1 while only the folders of masters have the newest state, because its register can't be swapped. One of these folders must last until then.",
    )
    .after("the register can't be reached");
    PROMISED: Metric::gauge(
        "percolator_master_promised",
        "1 while this master leads and all masters that could take over promise not to: it goes on if the register can't be reached. 0 on a standby.",
    )
    .after("several masters share a register");
    BY_PROMISES: Metric::gauge(
        "percolator_master_leads_by_promises",
        "1 while this master leads by promises alone, because the register has not answered for 2 s. If another master is lost now, none answers until the register is back.",
    )
    .after("the register can't be reached");
    PROMISES: Metric::counter(
        "percolator_master_promises_total",
        "Promises not to take over, by what became of them. Of a standby: given, refused, or failed, because its folder takes no writes. Of the leader: received, or missing, because a standby refused or did not answer.",
    )
    .by(&[Label::one_of("result", &["given", "refused", "failed", "received", "missing"])])
    .after("several masters share a register");
    COMMANDS: Metric::counter(
        "percolator_master_commands_total",
        "Commands to tablet servers: to make or to drop a tablet. Those that failed are sent again.",
    )
    .by(&[Label::one_of("result", &["ok", "error"])]);
    COMMANDS_IN_FLIGHT: Metric::gauge(
        "percolator_master_commands_in_flight",
        "Commands to tablet servers that were not answered yet.",
    );
    NOW: Metric::gauge(
        "percolator_master_oracle_timestamp_seconds",
        "The oracle's time when the master last asked, in seconds since 1970; 0: not yet.",
    );
    BARRIER_AGE: Metric::gauge(
        "percolator_master_barrier_age_seconds",
        "How far the barrier lies behind the oracle's time: transactions that began before it are refused. It is the retention, or more where a transaction holds it back. 0: there's no barrier yet.",
    );
    READY_AGE: Metric::gauge(
        "percolator_master_safe_point_age_seconds",
        "How far the safe point lies behind the oracle's time: what was hidden before it may be collected. A little more than the barrier's age, or much more where something is in the way. Where there is none yet, for how long the master has had a tablet server and no safe point; 0: neither.",
    );
    RESOLVED_AGE: Metric::gauge(
        "percolator_master_resolved_age_seconds",
        "How far resolved lies behind the oracle's time: no lock of an older transaction is left anywhere. Much more than the safe point's age where something has been in the way for more than a minute: collection goes on then, and keeps what became of each commit. 0: there's none yet.",
    );
    RETENTION: Metric::gauge(
        "percolator_master_retention_seconds",
        "How long versions are kept, as configured.",
    );
    HELD_BY: Metric::gauge(
        "percolator_master_gc_held",
        "1 where this holds garbage collection back now, or locks from being resolved: for that it waits a minute, and then goes on, but keeps what became of each commit. paused: it was paused by hand; oracle: it doesn't answer; gc_lock: a transaction older than the retention holds the barrier; server_down: a tablet server doesn't answer; server_behind: one answers, and doesn't take the barrier; tablets_lost: one has lost tablets that it had; locks: locks of old transactions can't be resolved; resolving: a tablet server has resolved them for more than 10 s; table_creating: a table is being created, or its rows are not all known; table_deleting: a server has not frozen a table that is being deleted; starting: the master waits for the leases of before its start.",
    )
    .by(&[Label::one_of("by", HOLDERS)]);
    SESSIONS: Metric::gauge(
        "percolator_master_sessions",
        "Clients with transactions under way.",
    );
    GC_LOCKS: Metric::gauge(
        "percolator_master_gc_locks",
        "Transactions that clients have named with their leases: those that have been open for a while.",
    )
    .after("a transaction stays open for some seconds");
    OLDEST_GC_LOCK: Metric::gauge(
        "percolator_master_oldest_gc_lock_age_seconds",
        "How far the oldest of all leases' floors lies behind the oracle's time: nothing that began after it is collected. 0: there's none.",
    );
    GARBAGE: Metric::gauge(
        "percolator_master_garbage_entries",
        "Versions and records that wait to be collected, on all tablet servers that have reported.",
    );
    DISK_FAILURES: Metric::counter(
        "percolator_master_disk_failures_total",
        "Times that a tablet server ended because its disk failed, or because what it has stored is not what was written to it.",
    )
    .after("a disk fails");
    DISK_FREE: Metric::gauge(
        "percolator_master_disk_free_bytes",
        "Room that is left on the volume of the data. Full, the state can't be made durable, and the master stops.",
    );
    DISK_SIZE: Metric::gauge(
        "percolator_master_disk_size_bytes",
        "Size of the volume of the data.",
    );
}
