//! Scan: what a snapshot sees of a range of cells, in order, until a lock is in the way.

use std::iter::Peekable;
use std::ops::ControlFlow;

use super::get::{Read, Snapshot, visible};
use crate::types::{Lock, Timestamp, Write};

/// Why a scan ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanEnd<K> {
    /// Everything was read.
    Done,
    /// The receiver had enough.
    Stopped,
    /// A lock is in the way, on this cell.
    Locked(K, Lock),
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
    scan(snapshot, records, locks, emit, Order::Forward)
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
    scan(snapshot, records, locks, emit, Order::Reverse)
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Forward,
    Reverse,
}

fn scan<K: Ord, E>(
    snapshot: Snapshot<'_>,
    records: impl Iterator<Item = Result<(K, Timestamp, Write), E>>,
    locks: impl Iterator<Item = Result<(K, Lock), E>>,
    mut emit: impl FnMut(K, Read) -> ControlFlow<()>,
    order: Order,
) -> Result<ScanEnd<K>, E> {
    let mut locks = locks
        .filter(|lock| {
            lock.as_ref()
                .map_or(true, |(_, lock)| snapshot.blocked_by(lock))
        })
        .peekable();
    let mut current: Option<(K, Option<Read>)> = None;
    for record in records {
        let (key, commit_ts, write) = record?;
        let same = current.as_ref().is_some_and(|(cell, _)| *cell == key);
        if !same {
            if let Some(end) = finish(current.take(), &mut locks, &mut emit, order)? {
                return Ok(end);
            }
            current = Some((key, None));
        }
        if commit_ts > snapshot.ts {
            continue;
        }
        if let Some((_, seen)) = &mut current {
            // Newest first: the first that shows anything wins. Oldest first: the last one does.
            if (order == Order::Reverse || seen.is_none())
                && let Some(read) = visible(write)
            {
                *seen = Some(read);
            }
        }
    }
    if let Some(end) = finish(current, &mut locks, &mut emit, order)? {
        return Ok(end);
    }
    match locks.next() {
        Some(lock) => lock.map(|(key, lock)| ScanEnd::Locked(key, lock)),
        None => Ok(ScanEnd::Done),
    }
}

/// Ends a cell: stops at a lock at or before it, or emits what was seen.
fn finish<K: Ord, E>(
    cell: Option<(K, Option<Read>)>,
    locks: &mut Peekable<impl Iterator<Item = Result<(K, Lock), E>>>,
    emit: &mut impl FnMut(K, Read) -> ControlFlow<()>,
    order: Order,
) -> Result<Option<ScanEnd<K>>, E> {
    let Some((key, seen)) = cell else {
        return Ok(None);
    };
    let met = locks.next_if(|lock| match (lock, order) {
        (Err(_), _) => true,
        (Ok((locked, _)), Order::Forward) => *locked <= key,
        (Ok((locked, _)), Order::Reverse) => *locked >= key,
    });
    if let Some(met) = met {
        return met.map(|(locked, lock)| Some(ScanEnd::Locked(locked, lock)));
    }
    match seen {
        None | Some(Read::Absent) => Ok(None),
        Some(read) => Ok(emit(key, read).is_break().then_some(ScanEnd::Stopped)),
    }
}
