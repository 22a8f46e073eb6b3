//! How a transaction ended, for the application.

use super::coordinator::Step;
use super::obstacle::MetLock;
use crate::actions::NotNotified;
use crate::safe_point::TooOld;
use crate::types::{Cell, Timestamp};

/// How it ended.
#[allow(
    clippy::large_enum_variant,
    reason = "one a transaction; a box would cost more than it saves"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Committed; durable, and visible to every later snapshot.
    Committed(Timestamp),
    /// Nothing of it will ever be visible.
    Aborted(AbortReason),
    /// The commit of the primary was not answered: either may be true. Its primary knows.
    Unknown,
    /// Nothing is decided yet: this part of a pipelined transaction is in place.
    Flushed {
        /// The transaction may not commit below this.
        min_commit_ts: Timestamp,
    },
}

/// The reason why a transaction was aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// Another transaction committed a cell after the snapshot.
    Conflict {
        /// Which cell.
        cell: Cell,
        /// The other transaction.
        with_start_ts: Timestamp,
        /// When it committed.
        with_commit_ts: Timestamp,
    },
    /// It acknowledges a notification of this cell, and none waits that its snapshot has seen.
    NotNotified(Cell, NotNotified),
    /// An older transaction, alive, holds a cell (die).
    LockedByOlder(MetLock),
    /// Somebody rolled this transaction back: an older one (wound), or a reader that found its
    /// ttl over.
    RolledBack(Cell),
    /// The application dropped it.
    Cancelled,
    /// The runner gave up before the decision.
    GaveUp(Step),
    /// The barrier of collection has passed it.
    TooOld(TooOld),
    /// The oracle has granted only timestamps below what has been read.
    StaleCommitTs {
        /// The last one.
        granted: Timestamp,
        /// The transaction may not commit below this.
        min_commit_ts: Timestamp,
    },
}
