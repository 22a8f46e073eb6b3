//! What the core tells of its work while it does it, for anyone who measures that. Nothing depends on it: in the
//! simulator nobody listens. The core knows no clock; a probe may have one.

use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::Refusal;
use crate::load::Load;

/// A kind of request; its number is its place in `percolator_telemetry::names::tablet::METHODS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the requests are")]
pub(crate) enum Method {
    Get,
    Scan,
    Prewrite,
    Commit,
    Rollback,
    CheckStatus,
    KeepAlive,
    Resolve,
    LocksBelow,
    Verify,
    RawGet,
    RawPut,
    Command,
    WaitForCell,
    PullTablet,
    TakeTablet,
    Observe,
    Notifications,
    Notify,
}

impl Method {
    /// Of a request; none for one that asks nothing.
    pub(crate) fn of(request: &v1::Request) -> Option<Self> {
        use v1::request::Body as B;
        Some(match request.body.as_ref()? {
            B::GetOne(_) | B::Get(_) => Self::Get,
            B::Scan(_) => Self::Scan,
            B::Prewrite(_) => Self::Prewrite,
            B::Commit(_) => Self::Commit,
            B::Rollback(_) => Self::Rollback,
            B::CheckStatus(_) => Self::CheckStatus,
            B::KeepAlive(_) => Self::KeepAlive,
            B::Resolve(_) => Self::Resolve,
            B::LocksBelow(_) => Self::LocksBelow,
            B::Verify(_) => Self::Verify,
            B::RawGet(_) => Self::RawGet,
            B::RawPut(_) => Self::RawPut,
            B::WaitForCell(_) => Self::WaitForCell,
            B::PullTablet(_) => Self::PullTablet,
            B::TakeTablet(_) => Self::TakeTablet,
            B::Observe(_) | B::Unobserve(_) => Self::Observe,
            B::Notifications(_) => Self::Notifications,
            B::Notify(_) => Self::Notify,
        })
    }

    /// Whether it only reads.
    pub(crate) fn reads(self) -> bool {
        use Method as M;
        matches!(
            self,
            M::Get | M::Scan | M::LocksBelow | M::Verify | M::RawGet | M::Notifications
        )
    }
}

/// A part of the way of a request, which has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It waited for its turn.
    Queue,
    /// It waited for its rows, and holds them.
    Latch,
    /// A read was carried out; a write was decided, with what it loaded for that.
    Decide,
    /// It waited for its group.
    Group,
    /// Its group was made durable.
    Commit,
}

/// A limit above which requests are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests that write.
    Requests,
    /// Memory of requests that wait for rows.
    QueuedBytes,
    /// Memory of what is decided.
    DecidedBytes,
    /// Reads that wait for the disk.
    Reads,
}

/// How a transaction was committed; its number is its place in `percolator_telemetry::names::tablet::COMMITTED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// In one request.
    OnePhase,
    /// Prewritten, and then committed.
    TwoPhase,
    /// The same, beyond its client's buffer.
    Large,
}

/// What the probe wants to know again of a request, which carries it along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// `None`: a background task of the server.
    pub(crate) method: Option<Method>,
    /// Its steps are timed.
    pub(crate) timed: bool,
    /// When it came, as the probe counts time.
    pub(crate) came: u64,
    /// When its last step ended.
    pub(crate) last: u64,
    /// More is told of it, under this number.
    pub(crate) told: Option<u32>,
}

/// The numbers of the tablets that a request is about.
pub(crate) fn tablets(request: &v1::Request) -> impl Iterator<Item = u64> {
    let one = match &request.body {
        Some(v1::request::Body::GetOne(get)) => Some(get.tablet_id),
        _ => None,
    };
    let listed = request.tablets.iter().map(|tablet| tablet.id);
    one.into_iter().chain(listed)
}

/// Anyone who listens.
pub(crate) trait Probe: Send {
    /// What is handed over from now on came then, as the probe counts time.
    fn turn_began(&self, _: u64) {}
    /// The answers of the turn have gone to their connections.
    fn turn_ended(&self) {}
    /// A request came, of this kind; without a message where it is a command of the master.
    fn came(&self, _: Option<Method>, _: Option<&v1::Request>) -> Note {
        Note::default()
    }
    /// The request, of which more is told, is about rows of this table.
    fn of_table(&self, _: &Note, _: &str) {}
    /// More was asked of this tablet: to read, or to write.
    fn asked(&self, _: u64, _reads: bool, _: Load) {}
    /// A step of the request has ended.
    fn ended(&self, _: &mut Note, _: Step) {}
    /// What a cell holds is being loaded, until [`Self::loaded`].
    fn loading(&self) {}
    /// See [`Self::loading`].
    fn loaded(&self) {}
    /// A request has to wait for others that write its rows.
    fn waits_for_rows(&self) {}
    /// A request is refused for this.
    fn limited(&self, _: Limit) {}
    /// A request is answered.
    fn answered(&self, _: Note, _: &Result<Option<Body>, Refusal>) {}
    /// It is durable that a transaction is committed: once for each.
    fn transaction(&self, _: Committed) {}
    /// What was told so far is to be seen now.
    fn flush(&self) {}
}

/// Nobody listens.
#[derive(Debug)]
pub(crate) struct Silent;

impl Probe for Silent {}
