//! Prewrite: conflict check, lock and value in one atomic step (paper, section 2.2).

use super::{CellView, NotNotified, OwnRecord};
use crate::mutants::{self, Mutant};
use crate::types::limits::SHORT_VALUE_BYTES_MAX;
use crate::types::{Cell, Chain, Effect, Lock, LockKind, Mutation, Timestamp};

/// The fields that all mutations of one prewrite request share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prewrite {
    /// The transaction.
    pub start_ts: Timestamp,
    /// Its primary.
    pub primary: Cell,
    /// Ttl of its locks, in milliseconds after start_ts.
    pub ttl_ms: u64,
    /// Which of the transaction's flushes this is, counted from 1; 0: all of it at once.
    pub generation: u32,
    /// The runs of observers that it comes from; `None`: it is no observer's.
    pub chain: Option<Box<Chain>>,
}

/// The reason why a cell was not locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrewriteRejection {
    /// Another transaction holds the cell.
    Locked(Lock),
    /// Another transaction committed the cell after this one's snapshot.
    Conflict {
        /// The other transaction.
        with_start_ts: Timestamp,
        /// When it committed.
        with_commit_ts: Timestamp,
    },
    /// This transaction was rolled back here: by a reader that took it for dead, by an older one that
    /// was in a hurry, or by itself with this request arriving late.
    RolledBack,
    /// This transaction has committed this cell: the request is a late copy.
    Committed(Timestamp),
    /// It is an acknowledgement, and no notification waits for one.
    NotNotified(NotNotified),
}

/// The least commit_ts of a transaction that has prewritten cells which no snapshot above `read_ts` has read
/// without their locks: such a snapshot has seen the cells as they were before.
///
/// The answer to a prewrite carries it to the coordinator, which commits at no lower timestamp. A commit_ts that
/// the oracle grants afterwards is higher anyway; one that two oracles with overlapping rights have granted may
/// not be (`docs/design/failover.md`). TiKV keeps one highest read timestamp a store in the same way
/// (RFC 0067).
pub fn min_commit_ts(start_ts: Timestamp, read_ts: Timestamp) -> Timestamp {
    if mutants::on(Mutant::PrewriteIgnoresReads) {
        return start_ts.next();
    }
    start_ts.max(read_ts).next()
}

/// Locks the cell for the transaction, unless somebody else has it or has changed it since the
/// transaction's snapshot. Doing it twice is harmless.
///
/// A pipelined transaction flushes what it has written so far, and may write a cell again afterwards. The later
/// flush replaces the earlier one's lock and value, and never the other way round: requests may be late, or
/// come twice. (TiDB's pipelined DML orders its flushes the same way, by a generation.)
///
/// `read_ts` is at least the highest snapshot that has read the cell. Only the primary's lock keeps what follows from
/// it, see [`min_commit_ts`]: once the primary is committed, no secondary may refuse the same commit_ts.
///
/// # Errors
/// The rejection; nothing is to be written then.
#[allow(
    clippy::result_large_err,
    reason = "one a cell, and taken apart at once; a box would cost more than it saves"
)]
pub fn prewrite(
    view: &CellView,
    mutation: &Mutation,
    txn: &Prewrite,
    read_ts: Timestamp,
) -> Result<Vec<Effect>, PrewriteRejection> {
    match view.own {
        OwnRecord::RolledBack => return Err(PrewriteRejection::RolledBack),
        OwnRecord::Committed(commit_ts) => return Err(PrewriteRejection::Committed(commit_ts)),
        OwnRecord::None => {}
    }
    if let Some(lock) = &view.lock {
        if lock.start_ts == txn.start_ts {
            return Ok(prewrite_again(lock, mutation, txn));
        }
        return Err(PrewriteRejection::Locked(lock.clone()));
    }
    // Also a committed `get_for_update` counts: that is how write skew is caught.
    if let Some((with_commit_ts, with_start_ts)) = view.newer
        && !mutants::on(Mutant::NoConflictCheck)
        && !(mutants::on(Mutant::ConflictByStartTs) && with_start_ts < txn.start_ts)
    {
        return Err(PrewriteRejection::Conflict {
            with_start_ts,
            with_commit_ts,
        });
    }
    let put = mutation.kind == LockKind::Put;
    let short = put && mutation.value.len() <= SHORT_VALUE_BYTES_MAX;
    let mut effects = vec![Effect::PutLock(Lock {
        kind: mutation.kind,
        primary: txn.primary.clone(),
        start_ts: txn.start_ts,
        ttl_ms: txn.ttl_ms,
        min_commit_ts: if mutation.cell == txn.primary {
            min_commit_ts(txn.start_ts, read_ts)
        } else {
            txn.start_ts.next()
        },
        committing: false,
        generation: txn.generation,
        short_value: short.then(|| mutation.value.clone()),
        chain: txn.chain.clone(),
    })];
    if put && !short {
        effects.push(Effect::PutData(txn.start_ts, mutation.value.clone()));
    }
    Ok(effects)
}

/// On a cell that the transaction has locked before.
fn prewrite_again(lock: &Lock, mutation: &Mutation, txn: &Prewrite) -> Vec<Effect> {
    let is_newer = if mutants::on(Mutant::LateFlushOverwrites) {
        txn.generation != lock.generation
    } else {
        txn.generation > lock.generation
    };
    // Getting for update what was written before doesn't undo that; it is as strong.
    if !is_newer || mutation.kind == LockKind::Lock {
        return Vec::new();
    }
    let put = mutation.kind == LockKind::Put;
    let short = put && mutation.value.len() <= SHORT_VALUE_BYTES_MAX;
    // What readers were promised, and how long its owner lives, stays as it is.
    let mut effects = vec![Effect::PutLock(Lock {
        kind: mutation.kind,
        ttl_ms: lock.ttl_ms.max(txn.ttl_ms),
        generation: txn.generation,
        short_value: short.then(|| mutation.value.clone()),
        ..lock.clone()
    })];
    if put && !short {
        effects.push(Effect::PutData(txn.start_ts, mutation.value.clone()));
    } else if lock.has_long_value() && !(put && mutants::on(Mutant::ShortenedValueStays)) {
        effects.push(Effect::DeleteData(txn.start_ts));
    }
    effects
}
