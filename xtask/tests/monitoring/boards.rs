//! What the dashboards show. In expressions, `%` stands for the choice of namespace and cluster.

/// A dashboard.
pub(crate) struct Board {
    /// Also its file's name, and what its address ends with.
    pub(crate) uid: &'static str,
    pub(crate) title: &'static str,
    pub(crate) panels: &'static [Panel],
}

/// One picture.
pub(crate) struct Panel {
    pub(crate) question: &'static str,
    /// As Grafana calls it.
    pub(crate) unit: &'static str,
    /// Expressions, and what their lines are called.
    pub(crate) lines: &'static [(&'static str, &'static str)],
    /// From where on it is a bad sign.
    pub(crate) bad_from: Option<f64>,
    /// The alert whose runbook helps.
    pub(crate) runbook: &'static str,
}

const fn panel(
    question: &'static str,
    unit: &'static str,
    lines: &'static [(&'static str, &'static str)],
    runbook: &'static str,
) -> Panel {
    Panel {
        question,
        unit,
        lines,
        bad_from: None,
        runbook,
    }
}

impl Panel {
    const fn bad_from(self, value: f64) -> Self {
        Self {
            bad_from: Some(value),
            ..self
        }
    }
}

pub(crate) const BOARDS: &[Board] = &[
    Board {
        uid: "percolator-overview",
        title: "Percolator: overview",
        panels: &[
            panel("How many processes are not ready, or don't answer?", "short", &[("sum(1 - percolator_ready{%}) or vector(0)", "not ready"), ("count(up{%} == 0 and on (job, instance) last_over_time(percolator_build_info{%}[7d])) or vector(0)", "no answer")], "PercolatorNotReady").bad_from(1.0),
            panel("How many tablets can't be reached?", "short", &[("sum(percolator_master_tablets{%,state=~\"down|lost\"})", "tablets")], "PercolatorTabletsDown").bad_from(1.0),
            panel("Who uses it: what is asked for, each second?", "reqps", &[("sum by (method) (rate(percolator_tablet_requests_total{%}[$__rate_interval]))", "{{method}}")], "PercolatorSaturated"),
            panel("Who uses it: which tables are asked for?", "reqps", &[("topk(10, sum by (table) (rate(percolator_tablet_tablet_requests_total{%}[$__rate_interval])))", "{{table}}")], "PercolatorSaturated"),
            panel("How long do 99 of 100 requests take at most?", "s", &[("histogram_quantile(0.99, sum by (method, le) (rate(percolator_tablet_request_duration_seconds_bucket{%,method=~\"get|scan|prewrite|commit\"}[$__rate_interval])))", "{{method}}")], "PercolatorSlowRequests").bad_from(0.5),
            panel("What limits it: whose thread is busy?", "percentunit", &[("rate(percolator_runtime_busy_seconds_total{%}[$__rate_interval])", "{{instance}}")], "PercolatorSaturated").bad_from(0.9),
            panel("What limits it: what is refused?", "reqps", &[("sum by (limit) (rate(percolator_tablet_limit_hits_total{%}[$__rate_interval]))", "{{limit}}")], "PercolatorRequestsRefused").bad_from(1.0),
            panel("How full are the volumes?", "percentunit", &[("1 - percolator_tablet_disk_free_bytes{%} / percolator_tablet_disk_size_bytes{%}", "{{instance}}"), ("1 - percolator_tso_disk_free_bytes{%} / percolator_tso_disk_size_bytes{%}", "{{instance}}: oracle"), ("1 - percolator_master_disk_free_bytes{%} / percolator_master_disk_size_bytes{%}", "{{instance}}: master")], "PercolatorDiskFilling").bad_from(0.9),
            panel("How much memory do processes use?", "bytes", &[("process_resident_memory_bytes{%} and on (job, instance) percolator_build_info{%}", "{{instance}}"), ("percolator_memory_limit_bytes{%} > 0", "{{instance}}: limit")], "PercolatorMemoryNearLimit"),
        ],
    },
    Board {
        uid: "percolator-transactions",
        title: "Percolator: transactions",
        panels: &[
            panel("How do commits end, as applications see it?", "ops", &[("sum by (outcome) (rate(percolator_client_commits_total{%}[$__rate_interval]))", "{{outcome}}")], "PercolatorUnknownOutcomes"),
            panel("How long do commits take, as applications see it?", "s", &[("histogram_quantile(0.5, sum by (le) (rate(percolator_client_commit_duration_seconds_bucket{%}[$__rate_interval])))", "half of them"), ("histogram_quantile(0.99, sum by (le) (rate(percolator_client_commit_duration_seconds_bucket{%}[$__rate_interval])))", "99 of 100")], "PercolatorSlowRequests").bad_from(0.5),
            panel("What part of the prewrites is refused for a conflict?", "percentunit", &[("sum(rate(percolator_tablet_requests_total{%,method=\"prewrite\",result=~\"conflict|rolled_back\"}[$__rate_interval])) / sum(rate(percolator_tablet_requests_total{%,method=\"prewrite\"}[$__rate_interval]))", "refused")], "PercolatorConflicts").bad_from(0.3),
            panel("Who meets locks, and what becomes of them?", "ops", &[("sum by (by) (rate(percolator_tablet_locks_met_total{%}[$__rate_interval]))", "met by a {{by}}"), ("sum by (status) (rate(percolator_tablet_status_checks_total{%}[$__rate_interval]))", "{{status}}")], "PercolatorLocksNotResolved"),
            panel("How many cells are locked?", "short", &[("sum(percolator_tablet_locks{%})", "cells")], "PercolatorLocksNotResolved"),
            panel("How many commits need one request only?", "ops", &[("sum(rate(percolator_tablet_one_phase_commits_total{%}[$__rate_interval]))", "one phase")], "PercolatorSlowRequests"),
        ],
    },
    Board {
        uid: "percolator-tablets",
        title: "Percolator: tablet servers",
        panels: &[
            panel("Which step takes the time of a request?", "s", &[("sum by (kind, step) (rate(percolator_tablet_step_duration_seconds_sum{%}[$__rate_interval])) / sum by (kind, step) (rate(percolator_tablet_step_duration_seconds_count{%}[$__rate_interval]))", "{{kind}}: {{step}}")], "PercolatorSlowRequests"),
            panel("How long does the disk take to make a group durable?", "s", &[("histogram_quantile(0.99, sum by (instance, le) (rate(percolator_tablet_group_commit_duration_seconds_bucket{%}[$__rate_interval])))", "{{instance}}, 99 of 100")], "PercolatorSlowRequests").bad_from(0.1),
            panel("How many requests share one wait for the disk?", "short", &[("sum by (instance) (rate(percolator_tablet_group_requests_sum{%}[$__rate_interval])) / sum by (instance) (rate(percolator_tablet_group_requests_count{%}[$__rate_interval]))", "{{instance}}")], "PercolatorSlowRequests"),
            panel("What do requests wait for?", "short", &[("sum by (for) (percolator_tablet_waiting_requests{%})", "{{for}}")], "PercolatorRequestsRefused"),
            panel("Which part of the reads is answered from memory?", "percentunit", &[("sum by (instance) (rate(percolator_tablet_cache_lookups_total{%,result=\"hit\"}[$__rate_interval])) / sum by (instance) (rate(percolator_tablet_cache_lookups_total{%}[$__rate_interval]))", "{{instance}}")], "PercolatorSlowRequests"),
            panel("Which tables have how many tablets?", "short", &[("sum by (table) (percolator_tablet_table_tablets{%})", "{{table}}")], "PercolatorTabletsDown"),
            panel("Which tablets have the load?", "reqps", &[("topk(10, sum by (table, tablet, kind) (rate(percolator_tablet_tablet_requests_total{%}[$__rate_interval])))", "{{table}}, tablet {{tablet}}: {{kind}}")], "PercolatorSaturated"),
            panel("Which tablets have how many bytes read and written?", "Bps", &[("topk(10, sum by (table, tablet, kind) (rate(percolator_tablet_tablet_bytes_total{%}[$__rate_interval])))", "{{table}}, tablet {{tablet}}: {{kind}}")], "PercolatorSaturated"),
            panel("How much is on the disks?", "bytes", &[("percolator_tablet_engine_size_bytes{%}", "{{instance}}: data and log"), ("percolator_tablet_log_size_bytes{%}", "{{instance}}: log")], "PercolatorDiskFilling"),
        ],
    },
    Board {
        uid: "percolator-observers",
        title: "Percolator: observers",
        panels: &[
            panel("How many changes wait for observers?", "short", &[("sum by (instance) (percolator_tablet_notifications{%})", "{{instance}}")], "PercolatorObserversBehind"),
            panel("How long has the oldest of them waited?", "s", &[("max(time() - (percolator_tablet_notification_oldest_timestamp_seconds{%} > 0)) or vector(0)", "oldest")], "PercolatorObserversBehind").bad_from(300.0),
            panel("How long after its change does a run begin?", "s", &[("histogram_quantile(0.5, sum by (le) (rate(percolator_client_observer_lag_seconds_bucket{%}[$__rate_interval])))", "half of them"), ("histogram_quantile(0.99, sum by (le) (rate(percolator_client_observer_lag_seconds_bucket{%}[$__rate_interval])))", "99 of 100")], "PercolatorObserversBehind"),
            panel("How do workers get on with changes?", "ops", &[("sum by (end) (rate(percolator_client_observer_runs_total{%}[$__rate_interval]))", "{{end}}"), ("sum(rate(percolator_client_observer_retries_total{%}[$__rate_interval]))", "begun again")], "PercolatorObserverDeadLetters"),
            panel("For how many changes do observers run just now?", "short", &[("sum by (instance) (percolator_client_observer_running{%})", "{{instance}}")], "PercolatorObserversBehind"),
        ],
    },
    Board {
        uid: "percolator-oracle",
        title: "Percolator: timestamp oracle",
        panels: &[
            panel("For how long can it hand out timestamps?", "s", &[("percolator_tso_limit_remaining_seconds{%}", "left"), ("percolator_tso_window_seconds{%}", "window")], "PercolatorOracleLimitNear"),
            panel("How many timestamps are handed out, each second?", "ops", &[("sum(rate(percolator_tso_timestamps_total{%}[$__rate_interval]))", "timestamps"), ("sum by (result) (rate(percolator_tso_requests_total{%}[$__rate_interval]))", "requests: {{result}}")], "PercolatorOracleLimitNear"),
            panel("How far is its machine's clock from its time?", "s", &[("percolator_tso_clock_offset_seconds{%}", "{{instance}}")], "PercolatorOracleClockOff").bad_from(1.0),
            panel("How long does it take to make a limit durable?", "s", &[("histogram_quantile(0.99, sum by (le) (rate(percolator_tso_limit_write_duration_seconds_bucket{%}[$__rate_interval])))", "99 of 100")], "PercolatorOracleLimitNear").bad_from(1.0),
        ],
    },
    Board {
        uid: "percolator-gc",
        title: "Percolator: garbage collection",
        panels: &[
            panel("How old are the points?", "s", &[("percolator_master_barrier_age_seconds{%}", "barrier"), ("percolator_master_safe_point_age_seconds{%}", "safe point"), ("percolator_master_retention_seconds{%}", "retention")], "PercolatorSafePointStuck"),
            panel("What holds collection back?", "short", &[("max by (by) (percolator_master_gc_held{%})", "{{by}}")], "PercolatorSafePointStuck").bad_from(1.0),
            panel("How old is the oldest transaction?", "s", &[("percolator_master_oldest_gc_lock_age_seconds{%}", "oldest")], "PercolatorOldGcLock"),
            panel("How much garbage waits?", "short", &[("percolator_tablet_garbage_entries{%}", "{{instance}}")], "PercolatorSafePointStuck"),
            panel("How much is collected, each second?", "ops", &[("sum by (instance) (rate(percolator_tablet_collected_versions_total{%}[$__rate_interval]))", "{{instance}}")], "PercolatorSafePointStuck"),
            panel("How do the rounds of resolving old locks end?", "ops", &[("sum by (result) (rate(percolator_tablet_lock_resolutions_total{%}[$__rate_interval]))", "{{result}}")], "PercolatorLocksNotResolved"),
        ],
    },
    Board {
        uid: "percolator-operator",
        title: "Percolator: operator",
        panels: &[
            panel("Which clusters are not as they should be?", "short", &[("max by (namespace, name, type) (percolator_cluster_condition{type=~\"Degraded|Stalled\", status=\"True\"})", "{{namespace}}/{{name}}: {{type}}"), ("max by (namespace, name) (percolator_cluster_condition{type=\"Available\", status=\"False\"})", "{{namespace}}/{{name}}: not Available")], "PercolatorClusterDegraded").bad_from(1.0),
            panel("Who acts?", "short", &[("percolator_operator_leader", "{{instance}}")], "PercolatorOperatorIdle"),
            panel("How do its reconciles end?", "ops", &[("sum by (result) (rate(percolator_operator_reconciles_total[$__rate_interval]))", "{{result}}"), ("sum(rate(percolator_operator_writes_total[$__rate_interval]))", "wrote something")], "PercolatorOperatorFailing"),
            panel("How long does a reconcile take?", "s", &[("histogram_quantile(0.99, sum by (le) (rate(percolator_operator_reconcile_duration_seconds_bucket[$__rate_interval])))", "99 of 100")], "PercolatorOperatorFailing").bad_from(5.0),
            panel("What does it ask of the API server?", "reqps", &[("sum by (method, result) (rate(percolator_operator_api_requests_total[$__rate_interval]))", "{{method}}: {{result}}")], "PercolatorOperatorFailing"),
            panel("What waits in its queue?", "short", &[("max(percolator_operator_clusters)", "clusters"), ("sum by (state) (percolator_operator_queued_clusters)", "{{state}}")], "PercolatorOperatorFailing"),
            panel("What fails: reconciles and watches?", "ops", &[("sum(rate(percolator_operator_errors_total[$__rate_interval]))", "errors")], "PercolatorOperatorFailing"),
        ],
    },
];
