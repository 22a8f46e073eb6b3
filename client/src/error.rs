//! What can go wrong for an application.

use std::fmt;
use std::time::Duration;

use percolator_protocol::safe_point::TooOld;
use percolator_protocol::txn::{AbortReason, MetLock, Step};
use percolator_protocol::types::{Cell, Timestamp};

use crate::transport::Replaced;

/// The reason why a call failed. Whatever isn't [`Error::Unknown`] says for certain that nothing of the
/// transaction is or will be visible. Its text says everything: no reason is left for
/// [`std::error::Error::source`], so that anyone who prints both says nothing twice.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another transaction was first. Begin again.
    #[error("conflict: {0}")]
    Conflict(Conflict),
    /// The commit was sent, and its response lost: it may be committed, or not. Ask
    /// [`crate::Client::outcome`] later.
    #[error(
        "the outcome of transaction {start_ts} is unknown: its commit was not answered ({why}); ask later with \
         outcome({start_ts}, {primary})"
    )]
    Unknown {
        /// The transaction.
        start_ts: Timestamp,
        /// Its primary, which knows.
        primary: Cell,
        /// What was seen last.
        why: String,
    },
    /// It began so long ago that what it would see, or what became of it, may have been collected. Begin again.
    #[error(
        "{0}; begin a new transaction (this one had no gc-lock, or it was ended: `percolator gc status` shows the \
         retention and the longest hold, `percolator gc set` changes them)"
    )]
    TooOld(TooOld),
    /// The snapshot isn't one that the oracle has handed out.
    #[error("no snapshot at {asked}: {why}")]
    NoSnapshot {
        /// The timestamp asked for.
        asked: Timestamp,
        /// The reason.
        why: String,
    },
    /// Nobody can have begun such a transaction.
    #[error("there is no transaction {start_ts}: {why}")]
    NoTransaction {
        /// The start_ts asked for.
        start_ts: Timestamp,
        /// The reason.
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
    /// The cluster was deleted, and another one answers in its place.
    #[error(transparent)]
    ClusterReplaced(Replaced),
    /// The call breaks a documented limit or form.
    #[error("invalid: {0}")]
    Invalid(String),
    /// Tablet servers are not drained, because the others have not enough room for the tablets.
    #[error("{0}")]
    NoRoom(String),
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
    #[error(transparent)]
    Application(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// The application's own reason to abort a transaction; it isn't retried.
    pub fn application(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Application(why.into())
    }

    /// Whether the transaction may be tried again from its beginning.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::TooOld(_))
    }
}

/// The other transaction and the cell of a conflict.
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
    /// It acknowledges a change for an observer, and no notification waits that its snapshot has seen: another transaction has
    /// acknowledged it, or the cell has changed since.
    NotNotified {
        /// The cell of the acknowledgement.
        cell: Cell,
        /// When the observed cell changed since the snapshot, if it did.
        changed_at: Option<Timestamp>,
    },
    /// Somebody rolled this transaction back on the cell: an older transaction that met its lock, or a
    /// reader that found its ttl over.
    RolledBack {
        /// The cell.
        cell: Cell,
    },
}

impl Conflict {
    /// The cell that it is about.
    pub fn cell(&self) -> &Cell {
        match self {
            Self::Committed { cell, .. }
            | Self::Locked { cell, .. }
            | Self::NotNotified { cell, .. }
            | Self::RolledBack { cell } => cell,
        }
    }
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
            Self::NotNotified {
                cell,
                changed_at: None,
            } => write!(
                f,
                "another transaction has acknowledged the change, in cell {cell}"
            ),
            Self::NotNotified {
                cell,
                changed_at: Some(at),
            } => write!(
                f,
                "the observed cell changed at {at}, after this transaction began: nothing is acknowledged in cell {cell}"
            ),
            Self::RolledBack { cell } => write!(
                f,
                "this transaction was rolled back on cell {cell} by an older one, by hand, or for taking too long"
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
            AbortReason::NotNotified(cell, not) => Self::Conflict(Conflict::NotNotified {
                cell,
                changed_at: not.changed_at,
            }),
            AbortReason::RolledBack(cell) => Self::Conflict(Conflict::RolledBack { cell }),
            AbortReason::Cancelled => Self::Ended,
            AbortReason::TooOld(too_old) => Self::TooOld(too_old),
            AbortReason::StaleCommitTs {
                granted,
                min_commit_ts,
            } => Self::Unavailable(format!(
                "the oracle grants no commit_ts above what has been read: {granted} is below {min_commit_ts}, so the \
                 transaction was rolled back; two oracles may be granting at a time"
            )),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::OracleError;

    /// One of each; a new variant doesn't compile until it is here.
    fn every() -> Vec<Error> {
        let text = || "the reason".to_owned();
        let (ts, cell) = (
            Timestamp::from_u64(7),
            Cell::new(percolator_protocol::types::TableId(1), "r", "c"),
        );
        let all = vec![
            Error::Conflict(Conflict::RolledBack { cell: cell.clone() }),
            Error::Unknown {
                start_ts: ts,
                primary: cell,
                why: text(),
            },
            Error::TooOld(TooOld {
                start_ts: ts,
                barrier: ts.next(),
            }),
            Error::NoSnapshot {
                asked: ts,
                why: text(),
            },
            Error::NoTransaction {
                start_ts: ts,
                why: text(),
            },
            Error::Timeout {
                after: Duration::from_secs(10),
                doing: "reading",
                last: text(),
            },
            Error::Unavailable(text()),
            Error::ClusterReplaced(Replaced {
                ours: text(),
                theirs: "another".into(),
            }),
            Error::Invalid(text()),
            Error::NoRoom(text()),
            Error::UnknownTable { name: text() },
            Error::AlreadyExists(text()),
            Error::Ended,
            Error::application(std::io::Error::other(text())),
            Error::application(OracleError::Unavailable {
                address: "here:1".into(),
                cause: text(),
                waited_ms: 10_000,
            }),
        ];
        for error in &all {
            match error {
                Error::Conflict(_)
                | Error::Unknown { .. }
                | Error::TooOld(_)
                | Error::NoSnapshot { .. }
                | Error::NoTransaction { .. }
                | Error::Timeout { .. }
                | Error::Unavailable(_)
                | Error::ClusterReplaced(_)
                | Error::Invalid(_)
                | Error::NoRoom(_)
                | Error::UnknownTable { .. }
                | Error::AlreadyExists(_)
                | Error::Ended
                | Error::Application(_) => {}
            }
        }
        all
    }

    #[test]
    fn a_stale_oracle_is_named() {
        let reason = AbortReason::StaleCommitTs {
            granted: Timestamp::from_u64(8),
            min_commit_ts: Timestamp::from_u64(21),
        };
        let error = Error::aborted(reason, None, Duration::ZERO);
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(error.to_string().contains("8 is below 21"), "{error}");
    }

    #[test]
    fn no_error_says_a_reason_twice() {
        for error in every() {
            let mut said = error.to_string();
            let mut next = std::error::Error::source(&error);
            while let Some(source) = next {
                said = format!("{said}: {source}");
                next = source.source();
            }
            assert!(said.matches("the reason").count() <= 1, "{said}");
        }
    }
}
