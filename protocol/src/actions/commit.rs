//! Commit: the lock becomes a write record, in one atomic step (paper, section 2.2).

use super::{CellView, OwnRecord};
use crate::mutants::{self, Mutant};
use crate::types::{Effect, Lock, LockKind, Timestamp, Write, WriteKind};

/// The reason why a cell was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitRejection {
    /// The transaction has neither lock nor commit record here: it was rolled back, or it never
    /// came here.
    LockMissing {
        /// A rollback record of it stands here.
        rolled_back: bool,
    },
    /// Readers were promised that the transaction commits at or above this. The lock is now marked as
    /// committing, so that they stop pushing.
    TooLow {
        /// The least commit_ts.
        min_commit_ts: Timestamp,
    },
    /// Another transaction has committed this cell at the same commit_ts. The oracle hands out no
    /// timestamp twice, so this commit_ts isn't from the oracle.
    Taken {
        /// The other transaction.
        by: Timestamp,
    },
}

/// Commits the cell at `commit_ts`, which `view` was loaded for. Doing it twice is harmless. The
/// effects are to be written also beside a rejection.
///
/// # Panics
/// When commit_ts isn't above start_ts: the snapshot would see its own commit.
pub fn commit(
    view: &CellView,
    start_ts: Timestamp,
    commit_ts: Timestamp,
) -> (Vec<Effect>, Result<(), CommitRejection>) {
    assert!(
        commit_ts > start_ts,
        "commit_ts {commit_ts} is not above start_ts {start_ts}"
    );
    let own_lock = view.own_lock(start_ts);
    let missing = |rolled_back| {
        (
            Vec::new(),
            Err(CommitRejection::LockMissing { rolled_back }),
        )
    };
    // As in every other rule, a record counts for more than a lock. No rule leaves both; should they
    // be there, the lock goes, or nobody could ever clear it.
    match view.own {
        OwnRecord::Committed(_) => {
            let stray = own_lock.map(|_| Effect::DeleteLock);
            return (stray.into_iter().collect(), Ok(()));
        }
        OwnRecord::RolledBack if !mutants::on(Mutant::CommitWithoutLock) => return missing(true),
        OwnRecord::RolledBack => {}
        OwnRecord::None => {}
    }
    let Some(lock) = own_lock else {
        if mutants::on(Mutant::CommitWithoutLock) {
            return (Vec::new(), Ok(()));
        }
        return missing(false);
    };
    if commit_ts < lock.min_commit_ts && !mutants::on(Mutant::MinCommitTsIgnored) {
        let min_commit_ts = lock.min_commit_ts;
        let effects = if lock.committing {
            Vec::new()
        } else {
            vec![Effect::PutLock(Lock {
                committing: true,
                ..lock.clone()
            })]
        };
        return (effects, Err(CommitRejection::TooLow { min_commit_ts }));
    }
    // A rollback record of the transaction that started at commit_ts must survive inside ours.
    let overlapped_rollback = match &view.at_commit {
        None => false,
        Some(at) if at.kind == WriteKind::Rollback => true,
        Some(at) => {
            return (Vec::new(), Err(CommitRejection::Taken { by: at.start_ts }));
        }
    };
    let write = Write {
        kind: match lock.kind {
            LockKind::Put => WriteKind::Put,
            LockKind::Delete => WriteKind::Delete,
            LockKind::Lock => WriteKind::Lock,
        },
        start_ts,
        short_value: lock.short_value.clone(),
        overlapped_rollback,
    };
    if lock.kind == LockKind::Lock && mutants::on(Mutant::ForUpdateLeavesNothing) {
        return (vec![Effect::DeleteLock], Ok(()));
    }
    let ts = if mutants::on(Mutant::RecordAtStart) {
        start_ts
    } else {
        commit_ts
    };
    (
        vec![Effect::PutWrite(ts, write), Effect::DeleteLock],
        Ok(()),
    )
}
