//! What can go wrong for an application.

use std::fmt;
use std::time::Duration;

use percolator_protocol::txn::{AbortReason, MetLock, Step};
use percolator_protocol::types::{Cell, Timestamp};

/// Why a call failed. Whatever isn't [`Error::Unknown`] says for certain that nothing of the
/// transaction is or will be visible.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another transaction was first. Begin again.
    #[error("conflict: {0}")]
    Conflict(Conflict),
    /// The commit was sent, and its answer lost: it may be committed, or not. Ask
    /// [`crate::Client::outcome`] later.
    #[error(
        "the outcome of transaction {start_ts} is unknown: its commit was not answered; ask later with \
         outcome({start_ts}, {primary})"
    )]
    Unknown {
        /// The transaction.
        start_ts: Timestamp,
        /// Its primary, which knows.
        primary: Cell,
    },
    /// The snapshot is older than what the cluster keeps, or isn't one that the oracle has handed out.
    #[error("no snapshot at {asked}: {why}")]
    NoSnapshot {
        /// The timestamp asked for.
        asked: Timestamp,
        /// Why not.
        why: String,
    },
    /// The deadline passed.
    #[error("gave up after {:.1} s: {doing}; last seen: {last}", .after.as_secs_f64())]
    Timeout {
        /// How long it was tried.
        after: Duration,
        /// What was being done.
        doing: &'static str,
        /// What was in the way.
        last: String,
    },
    /// A server can't be reached.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The call breaks a documented limit or form.
    #[error("invalid: {0}")]
    Invalid(String),
    /// There's no such table.
    #[error("there is no table {name:?}; `percolator table list` shows what there is")]
    UnknownTable {
        /// The name asked for.
        name: String,
    },
    /// The table is there already.
    #[error("{0}")]
    AlreadyExists(String),
    /// The transaction has ended: it was committed, rolled back, or dropped.
    #[error("the transaction has ended")]
    Ended,
    /// The application's own reason, from a closure of [`crate::Client::transact`].
    #[error("{0}")]
    Application(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// The application's own reason to abort a transaction; it isn't retried.
    pub fn application(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Application(why.into())
    }

    /// Whether the transaction may be tried again from its beginning.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }
}

/// With whom, and on what.
#[derive(Clone, Debug)]
pub enum Conflict {
    /// Another transaction committed the cell after this one's snapshot.
    Committed {
        /// The cell.
        cell: Cell,
        /// The other transaction.
        with_start_ts: Timestamp,
        /// When it committed.
        with_commit_ts: Timestamp,
    },
    /// An older transaction that is alive holds the cell.
    Locked {
        /// The cell.
        cell: Cell,
        /// The other transaction.
        by_start_ts: Timestamp,
        /// Its primary.
        primary: Cell,
    },
    /// Somebody rolled this transaction back on the cell: an older transaction that met its lock, or a
    /// reader that found its life time over.
    RolledBack {
        /// The cell.
        cell: Cell,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Committed {
                cell,
                with_start_ts,
                with_commit_ts,
            } => write!(
                f,
                "transaction {with_start_ts} committed cell {cell} at {with_commit_ts}, after this one began"
            ),
            Self::Locked {
                cell,
                by_start_ts,
                primary,
            } => write!(
                f,
                "the older transaction {by_start_ts} (primary {primary}) is committing cell {cell}"
            ),
            Self::RolledBack { cell } => write!(
                f,
                "this transaction was rolled back on cell {cell} by an older one, or for taking too long"
            ),
        }
    }
}

impl Error {
    pub(crate) fn aborted(reason: AbortReason, last: Option<String>, after: Duration) -> Self {
        match reason {
            AbortReason::Conflict {
                cell,
                with_start_ts,
                with_commit_ts,
            } => Self::Conflict(Conflict::Committed {
                cell,
                with_start_ts,
                with_commit_ts,
            }),
            AbortReason::LockedByOlder(MetLock { cell, lock }) => {
                Self::Conflict(Conflict::Locked {
                    cell,
                    by_start_ts: lock.start_ts,
                    primary: lock.primary,
                })
            }
            AbortReason::RolledBack(cell) => Self::Conflict(Conflict::RolledBack { cell }),
            AbortReason::Cancelled => Self::Ended,
            AbortReason::GaveUp(step) => Self::Timeout {
                after,
                doing: match step {
                    Step::Prewrite => {
                        "locking the cells to write (the transaction was rolled back)"
                    }
                    Step::CommitTs => "taking a commit timestamp (the transaction was rolled back)",
                    Step::CommitPrimary => "committing",
                },
                last: last.unwrap_or_else(|| "no answer".into()),
            },
        }
    }
}
