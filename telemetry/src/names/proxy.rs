//! What the proxy shows.

use super::{SECONDS, declarations};
use crate::{Label, Metric};

/// The methods of the proxy.
pub const METHODS: &[&str] = &[
    "begin",
    "get",
    "get_for_update",
    "batch_get",
    "scan",
    "put",
    "delete",
    "write",
    "commit",
    "rollback",
    "join",
    "finish",
    "outcome",
    "create_table",
];
/// The codes of gRPC that a method may end with; over JSON they are the same.
pub const CODES: &[&str] = &[
    "ok",
    "cancelled",
    "aborted",
    "failed_precondition",
    "not_found",
    "already_exists",
    "invalid_argument",
    "resource_exhausted",
    "unavailable",
    "unknown",
    "internal",
];
/// How sessions end.
pub const ENDS: &[&str] = &[
    "committed",
    "rolled_back",
    "aborted",
    "idle",
    "too_long",
    "stopped",
    "finished",
    "participant_lost",
    "manager_gone",
    "unknown",
];

declarations! {
    SESSIONS: Metric::gauge(
        "percolator_proxy_sessions",
        "Open sessions, each of which is one transaction.",
    );
    BEGUN: Metric::counter(
        "percolator_proxy_sessions_begun_total",
        "Sessions that were begun.",
    );
    ENDED: Metric::counter(
        "percolator_proxy_sessions_ended_total",
        "Sessions that have ended. committed; rolled_back: by the client; aborted: by a conflict, or by another reason of the cluster's; idle: no call came for --idle-max; too_long: it was open for --session-max; stopped: the proxy stopped; finished: a participant of a shared transaction has handed over what it wrote; participant_lost: a participant had not finished; manager_gone: the session that was joined has ended; unknown: the answer to the commit was lost, so that it may be committed.",
    )
    .by(&[Label::one_of("end", ENDS)]);
    REQUESTS: Metric::counter(
        "percolator_proxy_requests_total",
        "Calls that have ended, by the code of gRPC. cancelled: the client gave up.",
    )
    .by(&[
        Label::one_of("method", METHODS),
        Label::one_of("code", CODES),
    ]);
    REQUEST_SECONDS: Metric::histogram(
        "percolator_proxy_request_duration_seconds",
        "From when a call was read to when its answer was made. Of a scan: to when it has begun.",
        SECONDS,
        "0.3 ms, 5 ms",
    )
    .by(&[Label::one_of("method", METHODS)]);
    BUFFERED_BYTES: Metric::gauge(
        "percolator_proxy_buffered_bytes",
        "What open sessions have written and not committed yet, in bytes of memory.",
    );
    TRANSIT_BYTES: Metric::gauge(
        "percolator_proxy_transit_bytes",
        "Requests that are not carried out yet, answers that their clients have not taken, and what scans hold of own writes, in bytes.",
    );
    REFUSED: Metric::counter(
        "percolator_proxy_refused_requests_total",
        "Requests that were refused before they were received to their end, because too many bytes were on their way. Of gRPC, percolator_proxy_requests_total has none of these.",
    );
    CONNECTIONS: Metric::gauge(
        "percolator_proxy_connections",
        "Open connections of clients.",
    );
    CONNECTIONS_REFUSED: Metric::counter(
        "percolator_proxy_refused_connections_total",
        "Connections that were closed at once, because their client, or all together, have too many.",
    );
    RELAYED: Metric::counter(
        "percolator_proxy_relayed_timestamps_total",
        "Timestamps that were taken from the oracle for clients of the relay.",
    );
}
