//! The interface by which the core reports its work to whatever measures it. No decision depends on it: the simulator's probe
//! is silent. The core knows no clock; a probe may have one.

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
    /// The method of a request; `None`: it has no body.
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

    /// Whether requests of this method only read.
    pub(crate) fn reads(self) -> bool {
        use Method as M;
        matches!(
            self,
            M::Get | M::Scan | M::LocksBelow | M::Verify | M::RawGet | M::Notifications
        )
    }
}

/// A part of a request's time, which has just ended.
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
pub(crate) enum CommitKind {
    /// In one request.
    OnePhase,
    /// Prewritten, and then committed.
    TwoPhase,
    /// The same, beyond its client's buffer.
    Large,
}

/// The probe's note on a request, which the core passes back.
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
    /// The number of its trace, if it is traced.
    pub(crate) traced: Option<u32>,
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

/// A receiver of reports.
pub(crate) trait Probe: Send {
    /// A turn begins, with requests that came at this time, as the probe counts it.
    fn turn_began(&self, _: u64) {}
    /// The responses of the turn have gone to their connections.
    fn turn_ended(&self) {}
    /// A request of this method came. A command of the master has no message.
    fn came(&self, _: Option<Method>, _: Option<&v1::Request>) -> Note {
        Note::default()
    }
    /// The traced request is about rows of this table.
    fn of_table(&self, _: &Note, _: &str) {}
    /// A request reads or writes rows of this tablet.
    fn asked(&self, _: u64, _reads: bool, _: Load) {}
    /// A step of the request has ended.
    fn ended(&self, _: &mut Note, _: Step) {}
    /// The state of a cell is being loaded, until [`Self::loaded`].
    fn loading(&self) {}
    /// See [`Self::loading`].
    fn loaded(&self) {}
    /// A request waits for others that write its rows.
    fn waits_for_rows(&self) {}
    /// A request is refused by this limit.
    fn limited(&self, _: Limit) {}
    /// A request is answered.
    fn answered(&self, _: Note, _: &Result<Option<Body>, Refusal>) {}
    /// The commit of a transaction is durable. Reported once for each.
    fn transaction(&self, _: CommitKind) {}
    /// Publishes the counts so far.
    fn flush(&self) {}
}

/// A probe that ignores all reports.
#[derive(Debug)]
pub(crate) struct Silent;

impl Probe for Silent {}
