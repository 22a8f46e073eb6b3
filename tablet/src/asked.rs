//! What a request's form shows before it is decoded.

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::Refusal;
use crate::peers::PullRequest;

/// Why a message is no [`Work`](crate::work::Work).
pub(crate) enum RequestError {
    /// It only reads.
    Reads(Vec<v1::TabletRef>, v1::request::Body),
    /// It resolves locks, which have to be found first.
    Resolves(Vec<v1::TabletRef>, v1::ResolveRequest),
    /// It requests a chunk of a tablet that is handed over.
    Pulls(Box<PullRequest>),
    /// It waits for a turn at a cell.
    Waits(Vec<v1::TabletRef>, v1::WaitForCellRequest),
    /// It requests notifications, and may wait for them.
    Notifications(Vec<v1::TabletRef>, v1::NotificationsRequest),
    /// It is wrong.
    Refused(Refusal),
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The key of the benchmark's raw values, apart from all that belongs to transactions.
pub(crate) fn raw_key(key: &[u8]) -> Vec<u8> {
    [b"raw/", key].concat()
}

/// The timestamp of the request that the server's lease has to cover. Decisions check other timestamps again.
pub(crate) fn depends_on(body: &v1::request::Body) -> Option<Timestamp> {
    use v1::request::Body as B;
    let ts = match body {
        B::GetOne(request) => request.start_ts,
        B::Get(request) => request.start_ts,
        B::Scan(request) => request.start_ts,
        B::Prewrite(request) => request.start_ts,
        B::Commit(request) => request.commit_ts,
        B::CheckStatus(request) => request.now.max(request.start_ts),
        // The oracle has to continue above the records that these leave.
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
    // The decoder refuses a value that is no timestamp.
    (ts != u64::MAX).then_some(Timestamp::from_u64(ts))
}

/// Whether the request is one of the benchmark's, which only a server that was started for them takes.
pub(crate) fn is_raw(body: &v1::request::Body) -> bool {
    use v1::request::Body as B;
    matches!(body, B::RawGet(_) | B::RawPut(_))
}
