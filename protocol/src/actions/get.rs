//! Get: what a snapshot sees of a cell (paper, figure 6).

use bytes::Bytes;

use crate::mutants::{self, Mutant};
use crate::types::{Lock, LockKind, Timestamp, Write, WriteKind};

/// A reader's point in time.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// Everything committed at or below this is seen, and nothing else.
    pub ts: Timestamp,
    /// Transactions whose locks can't hide anything from this snapshot: they were rolled back, were
    /// pushed past it, or committed above it.
    pub bypass: &'a [Timestamp],
    /// The reader is the transaction that began at `ts`: it sees what its own locks will write. Somebody else
    /// may read at the same timestamp, and doesn't.
    pub own: bool,
}

/// The result of a read of a cell at a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A value that was short.
    Value(Bytes),
    /// A long value: it lies in the data column at this start_ts.
    Long(Timestamp),
    /// Nothing.
    Absent,
    /// A lock may hide a commit at or below the snapshot: its transaction has to be asked about first.
    Locked(Lock),
    /// The reader itself was rolled back on this cell: what it had written is gone.
    RolledBack,
}

impl Snapshot<'_> {
    /// Whether the lock keeps this snapshot from reading the cell.
    pub fn blocked_by(&self, lock: &Lock) -> bool {
        lock.kind != LockKind::Lock
            && lock.start_ts <= self.ts
            // It can't commit at or below the snapshot.
            && lock.min_commit_ts <= self.ts
            && !self.bypass.contains(&lock.start_ts)
            && !mutants::on(Mutant::ReadSkipsLocks)
    }

    /// Whether the lock is the reader's own.
    pub fn owns(&self, lock: &Lock) -> bool {
        self.own && lock.start_ts == self.ts
    }

    /// Whether the record says that the reader was rolled back.
    pub fn ended_by(&self, ts: Timestamp, write: &Write) -> bool {
        self.own
            && ts == self.ts
            && (write.kind == WriteKind::Rollback || write.overlapped_rollback)
    }
}

/// Reads a cell from its lock and its write records, newest first; those above the snapshot may be
/// left out. No more of them is read than needed.
///
/// # Errors
/// The first error among the records.
pub fn get<E>(
    snapshot: Snapshot<'_>,
    lock: Option<&Lock>,
    records: impl Iterator<Item = Result<(Timestamp, Write), E>>,
) -> Result<Read, E> {
    match lock {
        Some(lock) if snapshot.owns(lock) => {
            if let Some(read) = will_write(lock) {
                return Ok(read);
            }
        }
        Some(lock) if snapshot.blocked_by(lock) => return Ok(Read::Locked(lock.clone())),
        _ => {}
    }
    for record in records {
        let (commit_ts, write) = record?;
        if snapshot.ended_by(commit_ts, &write) {
            return Ok(Read::RolledBack);
        }
        if commit_ts <= snapshot.ts
            && let Some(read) = visible(write)
        {
            return Ok(read);
        }
    }
    Ok(Read::Absent)
}

/// The value that a lock shows to its owner; `None` if the version below it counts.
pub(super) fn will_write(lock: &Lock) -> Option<Read> {
    match (lock.kind, &lock.short_value) {
        (LockKind::Put, Some(value)) => Some(Read::Value(value.clone())),
        (LockKind::Put, None) => Some(Read::Long(lock.start_ts)),
        (LockKind::Delete, _) => Some(Read::Absent),
        (LockKind::Lock, _) => None,
    }
}

/// The value that a record shows; `None` if the version below it counts: a lock or a rollback hides no value.
pub(super) fn visible(write: Write) -> Option<Read> {
    match (write.kind, write.short_value) {
        (WriteKind::Put, Some(value)) => Some(Read::Value(value)),
        (WriteKind::Put, None) => Some(Read::Long(write.start_ts)),
        (WriteKind::Delete, _) => Some(Read::Absent),
        (WriteKind::Lock | WriteKind::Rollback, _) => None,
    }
}
