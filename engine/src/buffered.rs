//! A buffer of changes in front of a store that is slow to change.
//!
//! sled takes 5 to 20 us for each put, more than everything else in a commit together, and most of what
//! transactions write is short-lived: a lock is put and deleted within milliseconds. Here changes go
//! into ordered maps in memory (the log in front has made them durable), and a checkpoint brings what
//! is left of them into the store, sorted, in the background. A lock that was put and deleted between
//! two checkpoints never touches the store.
//!
//! Memory: the changes since the last checkpoint, some 150 bytes each and their keys and values; twice
//! that while a checkpoint is being made; and 4 MiB that say which locks the store may hold. A checkpoint rests between its steps as long as the next buffer is less
//! than half full, the less the fuller that is. When it still takes longer than that takes to fill, commits wait for it.
//!
//! A store may break on a full disk (sled does for good). So a checkpoint asks for room before each of
//! its steps, and where there is none it ends there; the next one goes on. Meanwhile commits don't wait:
//! what they can still add is bounded by what the log has room for.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    Batch, Column, CountingFilter, Direction, Error, Key, Value,
    backend::{CHUNK_BYTES, Checkpoint, Step, StepHook, Store},
    read::{bounds, is_empty_range, successor},
};

/// Bytes that go into the store as one step of a checkpoint: one more put may go over it.
const FLUSH_BYTES: usize = 256 << 10;
/// After so many steps what they have changed is written to the device: some 100 KiB.
const STEPS_WRITTEN: u32 = 4;
/// The overhead of an entry beyond its key and value, in bytes: the map's nodes, and their counts of users.
const ENTRY_BYTES: usize = 150;

/// A [`Store`] whose `apply` may run together with reads of other keys.
pub trait ConcurrentStore: Store {}

/// A store behind a buffer.
#[derive(Debug)]
pub struct Buffered<S> {
    pub(crate) store: S,
    tables: RwLock<Tables>,
    /// Held while a checkpoint is made: how far the frozen table was brought into the store.
    checkpointing: Mutex<Position>,
    /// Whether the last checkpoint failed or was broken off: then commits don't wait for it. They are refused further up, or it
    /// is tried again when there's room.
    failed: Mutex<bool>,
    /// Signalled when a frozen table is gone, or will not go.
    ended: Condvar,
    buffer_bytes: usize,
    /// Locks that the store holds, and some that it doesn't: deleting any other one from it is spared, and is forgotten.
    locks_in_store: Mutex<CountingFilter>,
}

/// Changes that go into the store together.
#[derive(Default)]
struct FlushStep {
    batch: Batch,
    /// Hashes of the locks that the store didn't hold before.
    added: Vec<u64>,
    /// Hashes of the locks that it held, and doesn't hold then.
    removed: Vec<u64>,
}

/// The last change of a table that is in the store.
type Position = Option<(Column, Key)>;

#[derive(Debug, Default)]
struct Tables {
    active: Table,
    /// Being brought into the store.
    frozen: Option<Arc<Table>>,
}

/// Changes by column and key; `None`: deleted.
#[derive(Debug, Default)]
struct Table {
    columns: [BTreeMap<Key, Option<Value>>; Column::ALL.len()],
    bytes: usize,
}

impl Table {
    fn column(&self, column: Column) -> &BTreeMap<Key, Option<Value>> {
        &self.columns[column.index()]
    }

    fn insert(&mut self, column: Column, key: Key, value: Option<Value>) {
        let size = |value: &Option<Value>| value.as_ref().map_or(0, Value::len);
        self.bytes += key.len() + size(&value) + ENTRY_BYTES;
        let key_bytes = key.len();
        if let Some(old) = self.columns[column.index()].insert(key, value) {
            self.bytes -= key_bytes + size(&old) + ENTRY_BYTES;
        }
    }

    fn remove(&mut self, column: Column, key: &Key) {
        if let Some(old) = self.columns[column.index()].remove(key) {
            self.bytes -= key.len() + old.map_or(0, |value| value.len()) + ENTRY_BYTES;
        }
    }

    fn is_empty(&self) -> bool {
        self.columns.iter().all(BTreeMap::is_empty)
    }

    fn range(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> std::collections::btree_map::Range<'_, Key, Option<Value>> {
        self.column(column).range::<[u8], _>(bounds(start, end))
    }
}

impl Tables {
    fn get(&self, column: Column, key: &[u8]) -> Option<&Option<Value>> {
        self.active
            .column(column)
            .get(key)
            .or_else(|| self.frozen.as_ref()?.column(column).get(key))
    }

    /// The changes in a range, up to `limit` of them in the order of `direction`, and whether those are
    /// all.
    fn changes(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
        limit: usize,
    ) -> (BTreeMap<Key, Option<Value>>, bool) {
        let mut changes = BTreeMap::new();
        let mut all = true;
        let tables = self.frozen.as_deref().into_iter().chain([&self.active]);
        for table in tables {
            let range = table.range(column, start, end);
            let mut taken = 0;
            let mut take = |(key, value): (&Key, &Option<Value>)| {
                taken += 1;
                if taken > limit {
                    return false;
                }
                // The active table comes last, and its word counts.
                changes.insert(key.clone(), value.clone());
                true
            };
            all &= match direction {
                Direction::Forward => range.into_iter().all(&mut take),
                Direction::Reverse => range.rev().all(&mut take),
            };
        }
        // Beyond the last one of the shorter part, nothing of the other part may be reported.
        while changes.len() > limit {
            all = false;
            match direction {
                Direction::Forward => changes.pop_last(),
                Direction::Reverse => changes.pop_first(),
            };
        }
        (changes, all)
    }
}

impl<S: ConcurrentStore> Buffered<S> {
    /// `buffer_bytes`: commits wait while more than this is buffered and a checkpoint is under way.
    pub fn new(store: S, buffer_bytes: usize) -> Result<Self, Error> {
        let mut locks = CountingFilter::default();
        let mut start = Key::new();
        loop {
            let mut found = Vec::new();
            let done = store.chunk(
                Column::Lock,
                &start,
                &[],
                Direction::Forward,
                4096,
                &mut found,
            )?;
            for (key, _) in &found {
                locks.add(hash(key));
            }
            match found.last() {
                Some((last, _)) if !done => start = successor(last),
                _ => break,
            }
        }
        Ok(Self {
            store,
            tables: RwLock::default(),
            checkpointing: Mutex::default(),
            failed: Mutex::new(false),
            ended: Condvar::new(),
            buffer_bytes,
            locks_in_store: Mutex::new(locks),
        })
    }

    /// Brings everything that is buffered now into the store, from the position on where the last
    /// checkpoint ended early.
    fn flush_all(
        &self,
        position: &mut Position,
        rest: StepHook<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let left = self.tables.read().frozen.clone();
        if let Some(left) = left
            && self.flush_frozen(&left, position, rest)?.is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        let frozen = {
            let mut tables = self.tables.write();
            if tables.active.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            let frozen = Arc::new(std::mem::take(&mut tables.active));
            // Only one checkpoint is made at a time.
            debug_assert!(tables.frozen.is_none());
            tables.frozen = Some(frozen.clone());
            frozen
        };
        self.flush_frozen(&frozen, position, rest)
    }

    fn flush_frozen(
        &self,
        frozen: &Table,
        position: &mut Position,
        rest: StepHook<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        if self.flush(frozen, position, rest)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        *position = None;
        let mut failed = self.failed.lock();
        *failed = false;
        self.tables.write().frozen = None;
        self.ended.notify_all();
        Ok(ControlFlow::Continue(()))
    }

    /// Brings a frozen table into the store.
    fn flush(
        &self,
        table: &Table,
        position: &mut Position,
        rest: StepHook<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let done = position.clone();
        let (mut step_ops, page) = (self.store.step_ops(), self.store.page());
        // Where a step ends with a page, it is about so large.
        let enough_ops = step_ops / 2;
        if page.is_some() {
            step_ops *= 2;
        }
        let mut page_bytes = 0;
        let mut step = FlushStep::default();
        let mut steps = 0_u32;
        let mut apply = |step: &mut FlushStep, last: Option<(Column, &Key)>| {
            self.store.check_room(step.batch.size_bytes())?;
            let began = Instant::now();
            self.store.apply(&[std::mem::take(&mut step.batch)])?;
            // Until the frozen table is gone, commits that delete these locks find them there.
            self.count(step);
            *position = last
                .map(|(column, key)| (column, key.clone()))
                .or(position.take());
            // Not beside the call: the tables would stay locked for as long as it rests.
            let buffered = self.tables.read().active.bytes;
            let leisure = (1.0 - 2.0 * buffered as f64 / self.buffer_bytes as f64).max(0.0);
            steps += 1;
            if leisure > 0.0 && steps.is_multiple_of(STEPS_WRITTEN) {
                self.store.write_out()?;
            }
            let took = began.elapsed();
            Ok::<_, Error>(rest(Step { took, leisure }))
        };
        let mut last = None;
        for column in Column::ALL {
            for (key, value) in table.column(column) {
                if done
                    .as_ref()
                    .is_some_and(|done| (column, key) <= (done.0, &done.1))
                {
                    continue;
                }
                if let Some(page) = page {
                    let bytes = page.put_bytes + key.len() + value.as_ref().map_or(0, Value::len);
                    page_bytes += bytes;
                    if page_bytes > page.bytes {
                        page_bytes = bytes;
                        if step.batch.len() >= enough_ops && apply(&mut step, last)?.is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                }
                last = Some((column, key));
                let held = column == Column::Lock && self.holds_lock(key)?;
                match value {
                    Some(value) => {
                        step.batch.put(column, key.clone(), value.clone());
                        if column == Column::Lock && !held {
                            step.added.push(hash(key));
                        }
                    }
                    None if column == Column::Lock && !held => continue,
                    None => {
                        step.batch.delete(column, key.clone());
                        if held {
                            step.removed.push(hash(key));
                        }
                    }
                }
                let full = step.batch.len() >= step_ops || step.batch.size_bytes() >= FLUSH_BYTES;
                if full && apply(&mut step, last)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        // Nothing is left to be broken off.
        let _ = apply(&mut step, last)?;
        Ok(ControlFlow::Continue(()))
    }

    /// Whether the store holds a lock.
    fn holds_lock(&self, key: &Key) -> Result<bool, Error> {
        let may = self.locks_in_store.lock().may_contain(hash(key));
        Ok(may && self.store.get(Column::Lock, key)?.is_some())
    }

    /// Counts the locks that a step has brought into the store and taken out of it.
    fn count(&self, step: &mut FlushStep) {
        if step.added.is_empty() && step.removed.is_empty() {
            return;
        }
        let mut locks = self.locks_in_store.lock();
        step.added.drain(..).for_each(|hash| locks.add(hash));
        step.removed.drain(..).for_each(|hash| locks.remove(hash));
    }

    fn first_in(
        &self,
        tables: &Tables,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        let mut from = Key::new();
        let mut start = start;
        loop {
            let active = tables.active.range(column, start, end).next();
            let frozen = tables
                .frozen
                .as_ref()
                .and_then(|frozen| frozen.range(column, start, end).next());
            // The smaller key; of the same key the active table's word.
            let change = match (active, frozen) {
                (Some(active), Some(frozen)) if frozen.0 < active.0 => Some(frozen),
                (Some(active), _) => Some(active),
                (None, frozen) => frozen,
            };
            let Some((key, value)) = change else {
                return self.store.first(column, start, end);
            };
            if let Some(stored) = self.store.first(column, start, key)? {
                return Ok(Some(stored));
            }
            if let Some(value) = value {
                return Ok(Some((key.clone(), value.clone())));
            }
            from.clone_from(&successor(key));
            start = &from;
            if is_empty_range(start, end) {
                return Ok(None);
            }
        }
    }
}

impl<S: ConcurrentStore> Store for Buffered<S> {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        let tables = self.tables.read();
        match tables.get(column, key) {
            Some(value) => Ok(value.clone()),
            None => self.store.get(column, key),
        }
    }

    fn chunk(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
        limit: usize,
        into: &mut Vec<(Key, Value)>,
    ) -> Result<bool, Error> {
        let tables = self.tables.read();
        let (mut start, mut end) = (Key::copy_from_slice(start), Key::copy_from_slice(end));
        loop {
            if is_empty_range(&start, &end) {
                return Ok(true);
            }
            let mut stored = Vec::new();
            let (changes, all_changes) = tables.changes(column, &start, &end, direction, limit);
            // Where the changes were cut, what lies behind them is for the next round.
            let (mut part_start, mut part_end) = (start.clone(), end.clone());
            if !all_changes {
                match direction {
                    Direction::Forward => {
                        if let Some((last, _)) = changes.last_key_value() {
                            part_end = successor(last);
                        }
                    }
                    Direction::Reverse => {
                        if let Some((last, _)) = changes.first_key_value() {
                            part_start = last.clone();
                        }
                    }
                }
            }
            let part_done = self.store.chunk(
                column,
                &part_start,
                &part_end,
                direction,
                limit,
                &mut stored,
            )?;
            if !part_done && let Some((last, _)) = stored.last() {
                match direction {
                    Direction::Forward => part_end = successor(last),
                    Direction::Reverse => part_start = last.clone(),
                }
            }
            let before = into.len();
            merge(stored, changes, &part_start, &part_end, direction, into);
            match direction {
                Direction::Forward => start = part_end,
                Direction::Reverse => end = part_start,
            }
            if part_done && all_changes {
                return Ok(true);
            }
            let bytes: usize = into[before..]
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum();
            // If everything was deleted, the read goes on; a caller continues from the last pair that it
            // received.
            if into.len() > before || bytes >= CHUNK_BYTES {
                return Ok(false);
            }
        }
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        if is_empty_range(start, end) {
            return Ok(None);
        }
        let tables = self.tables.read();
        self.first_in(&tables, column, start, end)
    }

    fn wait_for_room(&self) {
        let mut failed = self.failed.lock();
        while !*failed {
            {
                let tables = self.tables.read();
                if tables.frozen.is_none() || tables.active.bytes < self.buffer_bytes {
                    return;
                }
            }
            // Anyone who takes the frozen table away signals under this lock, so no signal is missed.
            self.ended.wait(&mut failed);
        }
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        let mut tables = self.tables.write();
        let tables = &mut *tables;
        for (column, key, value) in group.iter().flat_map(Batch::ops) {
            // A lock that only this table knows is gone without a trace: scans would have to step over
            // the traces of thousands.
            if column == Column::Lock
                && value.is_none()
                && !tables
                    .frozen
                    .as_ref()
                    .is_some_and(|frozen| frozen.column(column).contains_key(key))
                && !self.locks_in_store.lock().may_contain(hash(key))
            {
                tables.active.remove(column, key);
            } else {
                tables.active.insert(column, key.clone(), value.cloned());
            }
        }
        Ok(())
    }

    fn checkpoint(&self, rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        let mut position = self.checkpointing.lock();
        let flushed = self.flush_all(&mut position, rest);
        if !matches!(flushed, Ok(ControlFlow::Continue(()))) {
            *self.failed.lock() = true;
            self.ended.notify_all();
        }
        if flushed?.is_break() {
            return Ok(Checkpoint::BrokenOff);
        }
        self.store.checkpoint(rest)
    }

    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }
}

/// The hash of a lock's key.
fn hash(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

/// Merges what the store holds with the changes to it, as far as the part goes.
fn merge(
    stored: Vec<(Key, Value)>,
    changes: BTreeMap<Key, Option<Value>>,
    start: &[u8],
    end: &[u8],
    direction: Direction,
    into: &mut Vec<(Key, Value)>,
) {
    let within = |key: &Key| key[..] >= *start && (end.is_empty() || key[..] < *end);
    let mut stored = stored.into_iter().peekable();
    let in_order: Box<dyn Iterator<Item = (Key, Option<Value>)>> = match direction {
        Direction::Forward => Box::new(changes.into_iter()),
        Direction::Reverse => Box::new(changes.into_iter().rev()),
    };
    for (key, value) in in_order.filter(|(key, _)| within(key)) {
        let before = |stored: &(Key, Value)| match direction {
            Direction::Forward => stored.0 < key,
            Direction::Reverse => stored.0 > key,
        };
        while let Some(pair) = stored.next_if(before) {
            into.push(pair);
        }
        stored.next_if(|stored| stored.0 == key);
        if let Some(value) = value {
            into.push((key, value));
        }
    }
    into.extend(stored);
}
