//! Locks that are in the way: what to do about them, by who meets them.

use crate::actions::Status;
use crate::types::{Cell, Lock, Timestamp};

/// A lock, and where it was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetLock {
    /// The locked cell.
    pub cell: Cell,
    /// Its lock.
    pub lock: Lock,
}

/// How a transaction ended, as its primary says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It committed: its locks become write records.
    Committed(Timestamp),
    /// It was rolled back: its locks go.
    RolledBack,
}

impl Ending {
    /// The ending, where the transaction has one.
    pub fn of(status: Status) -> Option<Self> {
        match status {
            Status::Committed(commit_ts) => Some(Self::Committed(commit_ts)),
            Status::RolledBack => Some(Self::RolledBack),
            Status::Alive { .. } | Status::PrimaryPending => None,
        }
    }
}

/// The next step of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadNext {
    /// Clear the lock, and read again.
    Resolve(Ending),
    /// Read again and ignore the transaction's locks: it commits above the snapshot.
    Bypass,
    /// Ask again in a moment: the transaction is about to commit, or its primary is on its way.
    Wait,
}

/// Decides what a reader at `snapshot` does about a lock whose transaction has this status. Readers
/// don't wait for a live writer; they have pushed it past their snapshot.
pub fn after_status_read(status: Status, snapshot: Timestamp) -> ReadNext {
    match status {
        Status::Committed(commit_ts) => ReadNext::Resolve(Ending::Committed(commit_ts)),
        Status::RolledBack => ReadNext::Resolve(Ending::RolledBack),
        Status::Alive { min_commit_ts, .. } if min_commit_ts > snapshot => ReadNext::Bypass,
        Status::Alive { .. } | Status::PrimaryPending => ReadNext::Wait,
    }
}
