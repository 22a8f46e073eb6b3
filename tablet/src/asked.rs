//! What can be said of a request before it is read.

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::Refusal;
use crate::peers::PullRequest;

/// Why a message is no [`Work`].
pub(crate) enum RequestError {
    /// It only reads.
    Reads(Vec<v1::TabletRef>, v1::request::Body),
    /// It resolves locks, which have to be looked for first.
    Resolves(Vec<v1::TabletRef>, v1::ResolveRequest),
    /// It asks for a piece of a tablet that is handed over.
    Pulls(Box<PullRequest>),
    /// It waits for a turn at a cell.
    Waits(Vec<v1::TabletRef>, v1::WaitForCellRequest),
    /// It asks for notifications, and may wait for them.
    Notifications(Vec<v1::TabletRef>, v1::NotificationsRequest),
    /// It is wrong.
    Refused(Refusal),
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Where the benchmark's plain values lie: apart from all that belongs to transactions.
pub(crate) fn raw_key(key: &[u8]) -> Vec<u8> {
    [b"raw/", key].concat()
}

/// The timestamp that has to be within the server's lease, as far as the request says it in its form; what is decided
/// later asks again.
pub(crate) fn depends_on(body: &v1::request::Body) -> Option<Timestamp> {
    use v1::request::Body as B;
    let ts = match body {
        B::GetOne(request) => request.start_ts,
        B::Get(request) => request.start_ts,
        B::Scan(request) => request.start_ts,
        B::Prewrite(request) => request.start_ts,
        B::Commit(request) => request.commit_ts,
        B::CheckStatus(request) => request.now.max(request.start_ts),
        // What they leave behind counts for the oracle: it has to go on above that.
        B::Rollback(request) => request.start_ts,
        B::KeepAlive(request) => request.start_ts,
        B::Notify(request) => request.at,
        B::Resolve(request) => request.commit_ts.max(request.start_ts),
        B::RawGet(_)
        | B::RawPut(_)
        | B::LocksBelow(_)
        | B::Verify(_)
        | B::WaitForCell(_)
        | B::PullTablet(_)
        | B::Observe(_)
        | B::Unobserve(_)
        | B::Notifications(_)
        | B::TakeTablet(_) => return None,
    };
    // A value that is no timestamp is refused for that.
    (ts != u64::MAX).then_some(Timestamp::from_u64(ts))
}

/// Whether the request is one of the benchmark's, which no server takes that wasn't started for it.
pub(crate) fn is_raw(body: &v1::request::Body) -> bool {
    use v1::request::Body as B;
    matches!(body, B::RawGet(_) | B::RawPut(_))
}
