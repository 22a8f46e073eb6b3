//! Scan: what a snapshot sees of a range of cells, in order, until a lock is in the way.

use std::iter::Peekable;
use std::ops::ControlFlow;

use super::get::{Read, Snapshot, visible, will_write};
use crate::types::{Lock, LockKind, Timestamp, Write};

/// The reason why a scan ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanEnd<K> {
    /// Everything was read.
    Done,
    /// The receiver had enough.
    Stopped,
    /// A lock is in the way, on this cell.
    Locked(K, Lock),
    /// The reader itself was rolled back on this cell.
    RolledBack(K),
}

/// Scans upwards: records ordered by cell and newest first, locks ordered by cell. `emit` gets each
/// cell that has a value.
///
/// # Errors
/// The first error among records and locks.
pub fn scan_forward<K: Ord, E>(
    snapshot: Snapshot<'_>,
    records: impl Iterator<Item = Result<(K, Timestamp, Write), E>>,
    locks: impl Iterator<Item = Result<(K, Lock), E>>,
    emit: impl FnMut(K, Read) -> ControlFlow<()>,
) -> Result<ScanEnd<K>, E> {
    scan(snapshot, records, locks, emit, ScanOrder::Forward)
}

/// Scans downwards: the same records and locks in reverse order, so oldest first within a cell.
///
/// # Errors
/// The first error among records and locks.
pub fn scan_reverse<K: Ord, E>(
    snapshot: Snapshot<'_>,
    records: impl Iterator<Item = Result<(K, Timestamp, Write), E>>,
    locks: impl Iterator<Item = Result<(K, Lock), E>>,
    emit: impl FnMut(K, Read) -> ControlFlow<()>,
) -> Result<ScanEnd<K>, E> {
    scan(snapshot, records, locks, emit, ScanOrder::Reverse)
}

#[derive(Clone, Copy, PartialEq)]
enum ScanOrder {
    Forward,
    Reverse,
}

fn scan<K: Ord, E>(
    snapshot: Snapshot<'_>,
    records: impl Iterator<Item = Result<(K, Timestamp, Write), E>>,
    locks: impl Iterator<Item = Result<(K, Lock), E>>,
    mut emit: impl FnMut(K, Read) -> ControlFlow<()>,
    order: ScanOrder,
) -> Result<ScanEnd<K>, E> {
    let mut locks = locks
        .filter(|lock| {
            lock.as_ref().map_or(true, |(_, lock)| {
                if snapshot.owns(lock) {
                    lock.kind != LockKind::Lock
                } else {
                    snapshot.blocked_by(lock)
                }
            })
        })
        .peekable();
    let mut current: Option<(K, Option<Read>)> = None;
    for record in records {
        let (key, commit_ts, write) = record?;
        let same = current.as_ref().is_some_and(|(cell, _)| *cell == key);
        if !same {
            if let Some(end) = finish(snapshot, current.take(), &mut locks, &mut emit, order)? {
                return Ok(end);
            }
            current = Some((key, None));
        }
        if commit_ts > snapshot.ts {
            continue;
        }
        if let Some((_, seen)) = &mut current {
            if snapshot.ended_by(commit_ts, &write) {
                // Whatever is read of the cell else, this wins.
                *seen = Some(Read::RolledBack);
            }
            // Newest first: the first that shows anything wins. Oldest first: the last one does.
            else if (order == ScanOrder::Reverse || seen.is_none())
                && let Some(read) = visible(write)
            {
                *seen = Some(read);
            }
        }
    }
    if let Some(end) = finish(snapshot, current, &mut locks, &mut emit, order)? {
        return Ok(end);
    }
    for lock in locks {
        let (key, lock) = lock?;
        if let Some(end) = lock_met(snapshot, key, lock, &mut emit) {
            return Ok(end);
        }
    }
    Ok(ScanEnd::Done)
}

/// Ends a cell: stops at a lock at or before it, or emits what was seen. The reader's own locks before it are
/// emitted first, and one on it instead of it.
fn finish<K: Ord, E>(
    snapshot: Snapshot<'_>,
    cell: Option<(K, Option<Read>)>,
    locks: &mut Peekable<impl Iterator<Item = Result<(K, Lock), E>>>,
    emit: &mut impl FnMut(K, Read) -> ControlFlow<()>,
    order: ScanOrder,
) -> Result<Option<ScanEnd<K>>, E> {
    let Some((key, seen)) = cell else {
        return Ok(None);
    };
    while let Some(met) = locks.next_if(|lock| match (lock, order) {
        (Err(_), _) => true,
        (Ok((locked, _)), ScanOrder::Forward) => *locked <= key,
        (Ok((locked, _)), ScanOrder::Reverse) => *locked >= key,
    }) {
        let (locked, lock) = met?;
        let hides = locked == key;
        let end = lock_met(snapshot, locked, lock, emit);
        if end.is_some() || hides {
            return Ok(end);
        }
    }
    Ok(match seen {
        None | Some(Read::Absent) => None,
        Some(Read::RolledBack) => Some(ScanEnd::RolledBack(key)),
        Some(read) => emit(key, read).is_break().then_some(ScanEnd::Stopped),
    })
}

/// A lock that the reader may not ignore.
fn lock_met<K>(
    snapshot: Snapshot<'_>,
    key: K,
    lock: Lock,
    emit: &mut impl FnMut(K, Read) -> ControlFlow<()>,
) -> Option<ScanEnd<K>> {
    if !snapshot.owns(&lock) {
        return Some(ScanEnd::Locked(key, lock));
    }
    match will_write(&lock) {
        None | Some(Read::Absent) => None,
        Some(read) => emit(key, read).is_break().then_some(ScanEnd::Stopped),
    }
}
