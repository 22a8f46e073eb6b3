//! What the operator shows.

use super::declarations;
use crate::{Label, Metric};

/// Durations of reconciles of clusters: requests to the API server take milliseconds each.
const DURATIONS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// How a request to the API server ended.
pub const API_RESULTS: &[&str] = &["ok", "refused", "failed"];
/// What a cluster in the queue waits for.
pub const QUEUE_STATES: &[&str] = &["reconciling", "retrying"];

/// Of so many clusters conditions are shown.
pub const CONDITION_CLUSTERS: usize = 1_000;
/// The conditions of a cluster.
pub const CONDITION_TYPES: &[&str] = &[
    "Ready",
    "Available",
    "Progressing",
    "Degraded",
    "Reconciling",
    "Stalled",
    "Drifted",
    "Paused",
    "Monitored",
];

declarations! {
    RECONCILES: Metric::counter(
        "percolator_operator_reconciles_total",
        "Reconciles of clusters, in which what is there was compared with what the manifest asks for.",
    )
    .by(&[Label::one_of("result", &["ok", "error"])]);
    RECONCILE_SECONDS: Metric::histogram(
        "percolator_operator_reconcile_duration_seconds",
        "How long a reconcile of a cluster takes.",
        DURATIONS,
        "25 ms, 100 ms",
    );
    WRITES: Metric::counter(
        "percolator_operator_writes_total",
        "Reconciles of clusters that wrote objects, or a status.",
    );
    ERRORS: Metric::counter(
        "percolator_operator_errors_total",
        "Watches that broke, and reconciles of clusters that failed.",
    );
    API_REQUESTS: Metric::counter(
        "percolator_operator_api_requests_total",
        "Requests to the Kubernetes API server, by method of HTTP. refused: with a code from 400 on, as 404 and 409 in the usual run of things; failed: with one from 500 on, or no answer came.",
    )
    .by(&[
        Label::one_of("method", &["DELETE", "GET", "PATCH", "POST", "PUT"]),
        Label::one_of("result", API_RESULTS),
    ]);
    CLUSTERS: Metric::gauge(
        "percolator_operator_clusters",
        "Clusters that were reconciled and weren't deleted since, as far as that is known: they are compared every two minutes.",
    );
    QUEUE: Metric::gauge(
        "percolator_operator_queued_clusters",
        "Clusters in the queue. reconciling: they are being reconciled, at most 8 at a time; retrying: the last reconcile failed, and they wait for the next one.",
    )
    .by(&[Label::one_of("state", QUEUE_STATES)]);
    ROLLING: Metric::gauge(
        "percolator_operator_rolling_clusters",
        "Clusters whose servers are being changed, at most as many as --rolls-max says at a time: others wait for their turn.",
    );
    CONDITION: Metric::gauge(
        "percolator_cluster_condition",
        "Conditions of clusters, as their statuses have them: 1 for the status that a condition has. Its other statuses have no series. Only the operator that acts shows them, of the first clusters by name.",
    )
    .by(&[
        Label::up_to("namespace", CONDITION_CLUSTERS, "clusters"),
        Label::of("name", "namespace"),
        Label::one_of("type", CONDITION_TYPES),
        Label::one_of("status", &["True", "False", "Unknown"]),
    ]);
    LEADER: Metric::gauge(
        "percolator_operator_leader",
        "1 where this process is the one that acts, 0 where it stands by.",
    );
}
