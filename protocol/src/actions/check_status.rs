//! The check of a transaction's status, decided on its primary alone (paper, section 2.2).
//!
//! A transaction that meets a lock asks here. Clean-up and commit race on the primary's cell, and its row's
//! latch makes one of them win.

use super::{CellView, OwnRecord, rollback};
use crate::mutants::{self, Mutant};
use crate::types::{Cell, Effect, Lock, Timestamp, expired};

/// A query of a transaction's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// The transaction asked about.
    pub start_ts: Timestamp,
    /// A timestamp that the oracle has handed out: the time by which ttls are judged.
    pub now: Timestamp,
    /// A reader's snapshot, past which a live transaction's commit is to be pushed.
    pub push_past: Option<Timestamp>,
    /// Roll a live transaction back: an older one is in its way (wound-die).
    pub force: bool,
    /// The ttl of the lock that was met: how long to wait for a primary that hasn't arrived.
    pub met_ttl_ms: u64,
}

/// The state of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It committed.
    Committed(Timestamp),
    /// It was rolled back, maybe just now.
    RolledBack,
    /// Its owner is alive.
    Alive {
        /// It will commit at or above this.
        min_commit_ts: Timestamp,
        /// It is being committed and can't be pushed any more.
        committing: bool,
        /// Ttl of the primary's lock, in milliseconds after start_ts.
        ttl_ms: u64,
    },
    /// The primary's prewrite hasn't arrived, and the lock that was met is within its ttl:
    /// prewrites are sent in parallel, so this is usual for a moment.
    PrimaryPending,
}

/// The cell is locked by the transaction, and isn't its primary: what became of it is not decided here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the primary of transaction {start_ts} is {primary}")]
pub struct NotThePrimary {
    /// The transaction.
    pub start_ts: Timestamp,
    /// The primary, where the transaction is decided.
    pub primary: Cell,
}

/// Decides by the state of the primary, `cell`. A dead owner's transaction is rolled back by this very step.
///
/// # Errors
/// [`NotThePrimary`]: a secondary that is rolled back for its age would tear a committed transaction.
/// Without a lock primary and secondary can't be distinguished; then nothing can be torn.
pub fn check_status(
    view: &CellView,
    query: &StatusQuery,
    cell: &Cell,
) -> Result<(Vec<Effect>, Status), NotThePrimary> {
    let start_ts = query.start_ts;
    match view.own {
        OwnRecord::Committed(commit_ts) => return Ok((Vec::new(), Status::Committed(commit_ts))),
        OwnRecord::RolledBack => return Ok((Vec::new(), Status::RolledBack)),
        OwnRecord::None => {}
    }
    let Some(lock) = view.own_lock(start_ts) else {
        if !query.force && !expired(start_ts, query.met_ttl_ms, query.now) {
            return Ok((Vec::new(), Status::PrimaryPending));
        }
        return Ok(rolled_back(view, start_ts));
    };
    if lock.primary != *cell {
        return Err(NotThePrimary {
            start_ts,
            primary: lock.primary.clone(),
        });
    }
    if query.force || lock.expired(query.now) {
        return Ok(rolled_back(view, start_ts));
    }
    let mut effects = Vec::new();
    let mut min_commit_ts = lock.min_commit_ts;
    if let Some(snapshot) = query.push_past
        && !lock.committing
        && min_commit_ts <= snapshot
    {
        min_commit_ts = snapshot.next();
        if !mutants::on(Mutant::PromiseNotWritten) {
            effects.push(Effect::PutLock(Lock {
                min_commit_ts,
                ..lock.clone()
            }));
        }
    }
    let status = Status::Alive {
        min_commit_ts,
        committing: lock.committing,
        ttl_ms: lock.ttl_ms,
    };
    Ok((effects, status))
}

fn rolled_back(view: &CellView, start_ts: Timestamp) -> (Vec<Effect>, Status) {
    match rollback(view, start_ts) {
        Ok(effects) => (effects, Status::RolledBack),
        Err(committed) => (Vec::new(), Status::Committed(committed.commit_ts)),
    }
}
