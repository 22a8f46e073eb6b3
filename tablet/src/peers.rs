//! Servers, and what one asks another about a tablet that is handed over ([`crate::moves`]). [`crate::convert`] encodes and decodes it.

use std::fmt;

use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Tablet, Timestamp};

/// One start of a server, to the end of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIncarnation {
    /// The server's stable name.
    pub server: String,
    /// The number of the start.
    pub incarnation: u64,
}

/// An incarnation of a server, and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLocation {
    /// The incarnation.
    pub server: ServerIncarnation,
    /// The address.
    pub address: String,
}

impl fmt::Display for ServerLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.server.server)
    }
}

/// Why a server doesn't serve a tablet at the epoch that a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NotServed {
    pub(crate) id: u64,
    pub(crate) asked_epoch: u64,
    /// Zero: the server doesn't know the tablet.
    pub(crate) known_epoch: u64,
    /// The tablet's table is being deleted.
    pub(crate) is_frozen: bool,
    /// The tablet is being handed over: the request may be repeated.
    pub(crate) is_moving: bool,
    /// The tablet as it is now, and those behind it.
    pub(crate) tablets: Vec<Tablet>,
    /// The server that has the tablet.
    pub(crate) moved_to: Option<ServerLocation>,
}

/// A tablet that this server has handed over, and that no other server is known to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DepartedTablet {
    /// As its new owner has it.
    pub(crate) tablet: Tablet,
    /// The new owner.
    pub(crate) to: ServerLocation,
    /// The new owner's number of the attempt.
    pub(crate) attempt: u64,
}

/// A call to the owner of a tablet that this server gets.
#[derive(Clone, Debug)]
pub struct MoveCall {
    /// The tablet.
    pub tablet: u64,
    /// The number of the attempt.
    pub attempt: u64,
    /// The owner's address.
    pub address: String,
    /// The request.
    pub request: MoveRequest,
}

/// A request to the owner of a tablet that is handed over.
#[derive(Clone, Debug)]
pub enum MoveRequest {
    /// Asks for the next chunk of the copy.
    Pull(PullRequest),
    /// Asks the owner to write down that the tablet is handed over.
    Take(TakeRequest),
}

/// The owner's response to a [`MoveRequest`].
#[derive(Clone, Debug)]
pub enum MoveResponse {
    /// To [`MoveRequest::Pull`].
    Pull(PullResponse),
    /// To [`MoveRequest::Take`].
    Take(TakeOutcome),
}

/// Asks the owner of a tablet for a chunk of its copy.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// The owner.
    pub to: Option<ServerIncarnation>,
    /// The tablet.
    pub id: u64,
    /// Its epoch at the owner.
    pub epoch: u64,
    /// The server that gets the tablet.
    pub by: ServerLocation,
    /// The number of the attempt.
    pub attempt: u64,
    /// The number of the chunk, counted from 1.
    pub chunk: u64,
    /// The number of the copy; zero: there is none yet.
    pub copy: u64,
    /// The chunk before is not durable yet.
    pub is_ahead: bool,
    /// Up to here the locks of the server that gets the tablet are resolved.
    pub resolved_ts: Timestamp,
}

/// Asks the owner of a tablet, all of which is copied, to write down that the tablet is handed over.
#[derive(Clone, Debug)]
pub struct TakeRequest {
    /// The owner's name.
    pub owner: String,
    /// The tablet.
    pub id: u64,
    /// Its epoch at the owner.
    pub epoch: u64,
    /// Its table.
    pub table: u32,
    /// Its first row.
    pub start_row: Bytes,
    /// The server that gets the tablet.
    pub by: ServerLocation,
    /// The number of the attempt.
    pub attempt: u64,
    /// The number of the copy.
    pub copy: u64,
}

/// The owner's response to a [`PullRequest`].
#[derive(Clone, Debug)]
pub enum PullResponse {
    /// The chunk.
    Chunk(TabletChunk),
    /// The attempt is over, for this reason.
    Over(String),
}

/// Some keys of a tablet.
#[derive(Clone, Debug, Default)]
pub struct TabletChunk {
    /// Changes in their order, then keys as they are stored, column by column.
    pub entries: Vec<MovedEntry>,
    /// The number of changes among the entries.
    pub changes: usize,
    /// All keys were sent, and only changes follow.
    pub is_copied: bool,
    /// The number of the copy.
    pub copy: u64,
    /// Set in the last chunk.
    pub last: Option<ClosedTablet>,
}

/// The state of a tablet whose owner has closed it, and of that owner.
#[derive(Clone, Debug)]
pub struct ClosedTablet {
    /// The owner's points.
    pub points: Points,
    /// The highest snapshot that was read at the owner.
    pub read_ts: Timestamp,
    /// Up to here the tablet's locks are resolved.
    pub resolved_ts: Timestamp,
    /// The tablet's observed columns.
    pub observed: Vec<Bytes>,
}

/// A key of one of the columns that hold rows.
#[derive(Clone, Debug)]
pub struct MovedEntry {
    /// The column.
    pub column: Column,
    /// The key.
    pub key: Bytes,
    /// The value; `None`: the key is removed.
    pub value: Option<Bytes>,
}

impl MovedEntry {
    /// The bytes of its key and its value.
    pub(crate) fn size_bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// The owner's response to a [`TakeRequest`].
#[derive(Clone, Copy, Debug)]
pub enum TakeOutcome {
    /// The tablet is handed over. The owner refused what lies below this barrier.
    Moved {
        /// The owner's barrier.
        barrier: Timestamp,
    },
    /// The attempt is over: the tablet stays with its owner, or another server has it.
    Stays,
    /// The owner can't decide: its folder or its lease doesn't let it.
    Undecided,
}

/// Why a call has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Another server, or another incarnation of the owner, has the address.
    OtherServer,
    /// The owner has too much to do now.
    Later(String),
    /// The call may be repeated.
    Lost(String),
}
