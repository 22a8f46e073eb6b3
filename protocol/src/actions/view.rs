//! The records that a rule about one transaction on one cell needs to have loaded.

use crate::types::{Lock, Timestamp, Write, WriteKind};

/// The transaction's own record in the write column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRecord {
    /// Nothing.
    None,
    /// It committed this cell.
    Committed(Timestamp),
    /// It was rolled back on this cell.
    RolledBack,
}

/// The state of one cell as far as one transaction is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellView {
    /// The cell's lock, whosever it is.
    pub lock: Option<Lock>,
    /// The newest committed record at or above the transaction's start_ts that isn't its own:
    /// commit_ts, and the start_ts of its transaction.
    pub newer: Option<(Timestamp, Timestamp)>,
    /// The transaction's own record here.
    pub own: OwnRecord,
    /// The record that stands exactly at the transaction's start_ts.
    pub at_start: Option<Write>,
    /// The record that stands exactly at the commit_ts in question, if there is one in question.
    pub at_commit: Option<Write>,
}

impl CellView {
    /// Builds the view of the transaction `start_ts`, that may be about to commit at `commit_ts`, from
    /// the cell's write records, newest first. Reads no more of them than it needs: those below start_ts can't matter, because a transaction's own
    /// records stand at or above its start_ts.
    ///
    /// # Errors
    /// The first error among the records.
    pub fn load<E>(
        lock: Option<Lock>,
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
        records: impl Iterator<Item = Result<(Timestamp, Write), E>>,
    ) -> Result<Self, E> {
        let mut view = Self {
            lock,
            newer: None,
            own: OwnRecord::None,
            at_start: None,
            at_commit: None,
        };
        for record in records {
            let (ts, write) = record?;
            if ts < start_ts {
                break;
            }
            if write.start_ts == start_ts {
                view.own = match write.kind {
                    WriteKind::Rollback => OwnRecord::RolledBack,
                    _ => OwnRecord::Committed(ts),
                };
            } else if write.kind != WriteKind::Rollback && view.newer.is_none() {
                view.newer = Some((ts, write.start_ts));
            }
            if commit_ts == Some(ts) {
                view.at_commit = Some(write.clone());
            }
            if ts == start_ts {
                if write.overlapped_rollback {
                    view.own = OwnRecord::RolledBack;
                }
                view.at_start = Some(write);
                break;
            }
        }
        Ok(view)
    }

    /// The cell's lock, where it is this transaction's.
    pub fn own_lock(&self, start_ts: Timestamp) -> Option<&Lock> {
        self.lock.as_ref().filter(|lock| lock.start_ts == start_ts)
    }
}
