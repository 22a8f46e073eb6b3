//! Between the rules and the engine: loads the state of a cell, and writes effects into batches.

use std::cell::RefCell;

use bytes::Bytes;
use percolator_engine::{Batch, Column, CountingFilter, Direction, Engine, Value};
use percolator_protocol::actions::{CellView, Read, Snapshot, get};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Cell, Effect, Lock, Timestamp, Write, WriteKind, key};

use crate::Error;
use crate::cache::CellCache;
use crate::latches;
use crate::marks::Marks;

/// The key of the folder's progress.
pub(crate) const REACHED: &[u8] = b"reached";

/// The progress of a server. A folder with less is an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolderProgress {
    /// The highest timestamp of any write record.
    pub(crate) high_ts: Timestamp,
    /// The number of durable groups. Groups of locks have no write record.
    pub(crate) groups: u64,
    /// The highest snapshot that was read before the last group left for the disk.
    pub(crate) read_ts: Timestamp,
}

impl FolderProgress {
    pub(crate) fn load(engine: &dyn Engine) -> Result<Self, Error> {
        if let Some(stored) = engine.get(Column::Meta, REACHED)? {
            let malformed = || Error::Reached {
                bytes: stored.len(),
            };
            let (numbers, rest) = stored.as_chunks::<8>();
            let ([high_ts, groups, read_ts], []) = (numbers, rest) else {
                return Err(malformed());
            };
            return Ok(Self {
                high_ts: Timestamp::from_u64(u64::from_be_bytes(*high_ts)),
                groups: u64::from_be_bytes(*groups),
                read_ts: Timestamp::from_u64(u64::from_be_bytes(*read_ts)),
            });
        }
        // Without this record write records may have any timestamp.
        let is_empty = engine.first(Column::Write, &[], &[])?.is_none();
        Ok(Self {
            high_ts: if is_empty {
                Timestamp::ZERO
            } else {
                Timestamp::MAX
            },
            groups: 0,
            read_ts: Timestamp::ZERO,
        })
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let numbers = [self.high_ts.as_u64(), self.groups, self.read_ts.as_u64()];
        numbers.map(u64::to_be_bytes).concat()
    }
}

/// The locked cells, by the hashes of their keys. A read of a cell that isn't locked, which is the usual case, needs no look-up
/// in the lock column.
#[derive(Debug, Default)]
pub(crate) struct LockFilter(CountingFilter);

impl LockFilter {
    /// Counts every lock of the engine.
    pub(crate) fn load(engine: &dyn Engine) -> Result<Self, Error> {
        let mut filter = Self::default();
        if mutants::on(Mutant::FilterNotLoaded) {
            return Ok(filter);
        }
        for pair in engine.scan(Column::Lock, &[], &[], Direction::Forward)? {
            filter.add(latches::hash(&[&pair?.0]));
        }
        Ok(filter)
    }

    /// Whether the cell of this hash may be locked.
    pub(crate) fn may_hold_hash(&self, hash: u64) -> bool {
        self.0.may_contain(hash)
    }

    pub(crate) fn add(&mut self, hash: u64) {
        self.0.add(hash);
    }

    pub(crate) fn remove(&mut self, hash: u64) {
        self.0.remove(hash);
    }

    /// The number of locks.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A lock that a decision adds or removes, by the hash of the cell's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockChange {
    Added(u64),
    Removed(u64),
}

/// The cell's lock. It is read before the cell's write records: a commit replaces the lock by the record in one batch, so that
/// a reader without a lock finds the record.
pub(crate) fn stored_lock(
    engine: &(impl percolator_engine::Read + ?Sized),
    cell_key: &[u8],
) -> Result<Option<Lock>, Error> {
    match engine.get(Column::Lock, cell_key)? {
        Some(record) => Ok(Some(Lock::decode(record)?)),
        None => Ok(None),
    }
}

/// The mutants under which the debug check of the marks doesn't run, so that other checks kill them.
const MARKS_ARE_WRONG: [Mutant; 4] = [
    Mutant::CommitNotMarked,
    Mutant::RollbackNotMarked,
    Mutant::HighTsNotEachTime,
    Mutant::MovedRecordsNotMarked,
];

/// The state of a cell, as far as the transaction `start_ts` is concerned. `known` is the cell's lock, if it was read before.
/// `records` has the highest timestamps of write records, by the hash of the cell's key.
pub(crate) fn view(
    engine: &dyn Engine,
    filter: &LockFilter,
    records: &Marks,
    known: Option<Lock>,
    cell_key: &[u8],
    start_ts: Timestamp,
    commit_ts: Option<Timestamp>,
) -> Result<CellView, Error> {
    let hash = latches::hash(&[cell_key]);
    let lock = match known {
        None if filter.may_hold_hash(hash) => stored_lock(engine, cell_key)?,
        known => known,
    };
    let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
    let mut behind = key::version(cell_key.to_vec(), start_ts);
    behind.push(0);
    // The marks usually save a read of the engine.
    if records.highest(hash) < start_ts {
        // Tests read the engine anyway, so that each of them checks the marks.
        debug_assert!(
            MARKS_ARE_WRONG.into_iter().any(mutants::on)
                || engine.first(Column::Write, &newest, &behind)?.is_none(),
            "a record that no mark knows of"
        );
        let none = std::iter::empty::<Result<_, Error>>();
        return CellView::load(lock, start_ts, commit_ts, none);
    }
    // Usually no record is above start_ts, and one look-up shows that.
    if engine.first(Column::Write, &newest, &behind)?.is_none() {
        return CellView::load(
            lock,
            start_ts,
            commit_ts,
            std::iter::empty::<Result<_, Error>>(),
        );
    }
    let records = engine
        .scan(Column::Write, &newest, &behind, Direction::Forward)?
        .map(|pair| version_record(pair?));
    CellView::load(lock, start_ts, commit_ts, records)
}

/// The value of the cell in the snapshot, without long values. `hash` is the key's.
pub(crate) fn read(
    engine: &dyn Engine,
    filter: &LockFilter,
    cache: &RefCell<CellCache>,
    cell_key: &[u8],
    hash: u64,
    snapshot: Snapshot<'_>,
) -> Result<Read, Error> {
    let may_be_locked = filter.may_hold_hash(hash);
    let lock = if may_be_locked {
        stored_lock(engine, cell_key)?
    } else {
        None
    };
    let in_cache = !may_be_locked || (lock.is_none() && mutants::on(Mutant::CacheOfLockedCells));
    if in_cache
        && let Some(newest) = cache.borrow().newest(hash, cell_key)
        && newest.commit_ts <= snapshot.ts
    {
        cache.borrow().count(true);
        let record = (newest.commit_ts, newest.write());
        return get(snapshot, None, std::iter::once(Ok::<_, Error>(record)));
    }
    cache.borrow().count(false);
    let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
    let behind = key::behind_cell(cell_key.to_vec());
    // Usually the newest record decides.
    let Some(pair) = engine.first(Column::Write, &newest, &behind)? else {
        let none = std::iter::empty::<Result<_, Error>>();
        return get(snapshot, lock.as_ref(), none);
    };
    let (commit_ts, write) = version_record(pair)?;
    if matches!(write.kind, WriteKind::Put | WriteKind::Delete) {
        if !may_be_locked {
            cache.borrow_mut().learn(hash, cell_key, commit_ts, &write);
        }
        if commit_ts <= snapshot.ts {
            return get(
                snapshot,
                lock.as_ref(),
                std::iter::once(Ok::<_, Error>((commit_ts, write))),
            );
        }
    }
    let start = key::version(cell_key.to_vec(), snapshot.ts);
    let records = engine
        .scan(Column::Write, &start, &behind, Direction::Forward)?
        .map(|pair| version_record(pair?));
    get(snapshot, lock.as_ref(), records)
}

/// The value of a cell for a transaction that may have locked it, or been rolled back on it.
pub(crate) fn read_own(
    reader: &dyn percolator_engine::Read,
    cell_key: &[u8],
    snapshot: Snapshot<'_>,
) -> Result<Read, Error> {
    let lock = stored_lock(reader, cell_key)?;
    let start = key::version(cell_key.to_vec(), snapshot.ts);
    let behind = key::behind_cell(cell_key.to_vec());
    let records = reader
        .scan(Column::Write, &start, &behind, Direction::Forward)?
        .map(|pair| version_record(pair?));
    get(snapshot, lock.as_ref(), records)
}

/// A long value.
pub(crate) fn long_value(
    engine: &(impl percolator_engine::Read + ?Sized),
    cell_key: &[u8],
    start_ts: Timestamp,
) -> Result<Value, Error> {
    engine
        .get(Column::Data, &key::version(cell_key.to_vec(), start_ts))?
        .ok_or(Error::ValueMissing { start_ts })
}

pub(crate) fn version_record(
    (key, value): (percolator_engine::Key, Value),
) -> Result<(Timestamp, Write), Error> {
    let (_, ts) = key::split_version(&key)?;
    Ok((ts, Write::decode(ts, value)?))
}

/// A put or delete that is the cell's newest committed version once its batch is durable.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) cell_key: Bytes,
    pub(crate) commit_ts: Timestamp,
    pub(crate) write: Write,
}

impl Version {
    /// The newest version of the cell after the effects of a commit, whose lock has kept other transactions from committing
    /// since. Not for a rollback's effects, which can rewrite an old record.
    pub(crate) fn of_commit(cell_key: &[u8], effects: &[Effect]) -> Option<Self> {
        effects.iter().find_map(|effect| match effect {
            Effect::PutWrite(commit_ts, write)
                if matches!(write.kind, WriteKind::Put | WriteKind::Delete) =>
            {
                Some(Self {
                    cell_key: Bytes::copy_from_slice(cell_key),
                    commit_ts: *commit_ts,
                    write: write.clone(),
                })
            }
            _ => None,
        })
    }
}

/// Writes effects on a cell into a batch. Returns the change of the number of locks. `hash` is the key's; `was_locked`: the
/// cell had a lock.
pub(crate) fn write_down(
    batch: &mut Batch,
    cell_key: &[u8],
    hash: u64,
    was_locked: bool,
    effects: Vec<Effect>,
) -> Option<LockChange> {
    let mut change = None;
    for effect in effects {
        match effect {
            Effect::PutLock(lock) => {
                batch.put(Column::Lock, cell_key.to_vec(), lock.encode());
                if !was_locked {
                    change = Some(LockChange::Added(hash));
                }
            }
            Effect::DeleteLock => {
                batch.delete(Column::Lock, cell_key.to_vec());
                if was_locked {
                    change = Some(LockChange::Removed(hash));
                }
            }
            Effect::PutWrite(ts, write) => batch.put(
                Column::Write,
                key::version(cell_key.to_vec(), ts),
                write.encode(ts),
            ),
            Effect::DeleteWrite(ts) => {
                batch.delete(Column::Write, key::version(cell_key.to_vec(), ts));
            }
            Effect::PutData(ts, value) => {
                batch.put(Column::Data, key::version(cell_key.to_vec(), ts), value);
            }
            Effect::DeleteData(ts) => {
                batch.delete(Column::Data, key::version(cell_key.to_vec(), ts));
            }
        }
    }
    change
}

/// The key of a cell.
pub(crate) fn cell_key(cell: &Cell) -> Vec<u8> {
    key::cell(cell.table, &cell.row, &cell.column)
}
