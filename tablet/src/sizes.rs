//! The sizes of tablets, and the rows at which large ones can be split.
//!
//! A size is an estimate: written bytes are added, and collected ones are subtracted. A walk through the tablet counts it
//! exactly. It runs when the estimate has reached the limit, and then also finds the row before which about half of the tablet
//! lies. It also runs after a start if no size is stored, and after a split at any other row. Sizes are stored now and then, so that a start doesn't read
//! everything.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::types::{Cell, Tablet, key};

use crate::Error;
use crate::leaving::KeyRange;
use crate::tablets::{self, Tablets};

/// The prefix of a tablet's id; the value is its size, 8 bytes, big-endian.
const SIZE_PREFIX: &[u8] = b"size/";
/// The columns whose keys and values count.
const COUNTED: [Column; 2] = [Column::Write, Column::Data];
/// Bytes that a walk reads at a time.
const STEP_BYTES: u64 = 256 << 10;
/// Keys that a walk reads at a time.
const STEP_KEYS: usize = 4_096;
/// A walk keeps a key of each of this many parts of the limit.
const PARTS: u64 = 64;
/// A size is stored when it has changed by more than this, and by an eighth.
const UNWRITTEN_MAX: u64 = 1 << 20;
/// The significant bits of a reported size; the others are zero.
const REPORTED_BITS: u32 = 5;

/// The sizes of this server's tablets.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    tablets: BTreeMap<u64, Size>,
    /// The keys of the tablet that was written to last.
    last: Option<(u64, KeyRange)>,
    /// Tablets of more bytes are split; zero: none is.
    split_bytes: u64,
    walk: Option<Walk>,
    /// Tablets that need a walk, and sizes that need storing, so that no pass over all tablets is needed.
    to_walk: BTreeSet<u64>,
    to_write: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
struct Size {
    bytes: u64,
    /// The stored size; `None`: none is stored.
    written: Option<u64>,
    /// The size is not stored, and not counted since the start.
    is_unknown: bool,
    /// A walk that found no row to split at, or less than the limit, is repeated at this many bytes.
    walk_from: u64,
    split_at: Bytes,
}

impl Size {
    fn has_to_be_walked(&self, split_bytes: u64) -> bool {
        let is_large = split_bytes > 0
            && self.split_at.is_empty()
            && self.bytes > split_bytes.max(self.walk_from);
        self.is_unknown || is_large
    }

    fn has_to_be_written(&self) -> bool {
        let written = self.written.unwrap_or_default();
        let changed = self.bytes.abs_diff(written);
        !self.is_unknown && changed > UNWRITTEN_MAX.max(written / 8)
    }
}

/// A walk through a tablet.
#[derive(Debug)]
struct Walk {
    tablet: Tablet,
    rows: KeyRange,
    column: usize,
    next: Vec<u8>,
    total: u64,
    /// The first key of all columns.
    first: Option<Vec<u8>>,
    /// Keys, and the bytes between each and the one before it in its column.
    parts: Vec<(Vec<u8>, u64)>,
    part_bytes: u64,
    since_part: u64,
}

impl Sizes {
    /// Reads the stored sizes.
    pub(crate) fn load(engine: &dyn Engine, tablets: &Tablets) -> Result<Self, Error> {
        let mut sizes = Self::default();
        for tablet in tablets.all() {
            let written = engine.get(Column::Meta, &tablets::key(SIZE_PREFIX, tablet.id))?;
            let written = written.and_then(|value| value.as_ref().try_into().ok());
            let written = written.map(u64::from_be_bytes);
            let size = Size {
                bytes: written.unwrap_or_default(),
                is_unknown: written.is_none(),
                written,
                ..Size::default()
            };
            sizes.set(tablet.id, size);
        }
        Ok(sizes)
    }

    fn set(&mut self, id: u64, size: Size) {
        self.last = None;
        self.tablets.insert(id, size);
        self.changed(id);
    }

    /// Updates whether the tablet needs a walk, or its size storing.
    fn changed(&mut self, id: u64) {
        let mark = |set: &mut BTreeSet<u64>, is_in: bool| {
            if is_in {
                set.insert(id);
            } else {
                set.remove(&id);
            }
        };
        let size = self.tablets.get(&id);
        let split_bytes = self.split_bytes;
        mark(
            &mut self.to_walk,
            size.is_some_and(|it| it.has_to_be_walked(split_bytes)),
        );
        mark(
            &mut self.to_write,
            size.is_some_and(Size::has_to_be_written),
        );
    }

    /// Adds an empty tablet.
    pub(crate) fn begins(&mut self, id: u64) {
        if !self.tablets.contains_key(&id) {
            self.set(id, Size::default());
        }
    }

    /// Adds a tablet that has arrived with this many bytes; zero: the size is not known.
    pub(crate) fn arrived(&mut self, id: u64, bytes: u64) {
        let size = Size {
            bytes,
            is_unknown: bytes == 0,
            ..Size::default()
        };
        self.set(id, size);
    }

    /// Removes a tablet that is not here any more.
    pub(crate) fn ends(&mut self, id: u64) {
        self.last = None;
        self.tablets.remove(&id);
        self.changed(id);
    }

    /// Gives each part of a split tablet half of its size. Both are walked unless the row is the one that a walk has found: of any other
    /// row it isn't known how much lies before it.
    pub(crate) fn split(&mut self, first: u64, second: &Tablet) {
        let known = self.tablets.get(&first).cloned().unwrap_or_default();
        let half = known.bytes / 2;
        let part = |bytes, written| Size {
            bytes,
            written,
            is_unknown: known.is_unknown || second.rows.start != known.split_at,
            ..Size::default()
        };
        self.set(first, part(known.bytes - half, known.written));
        self.set(second.id, part(half, None));
    }

    /// Gives the merged tablet the size of both.
    pub(crate) fn merge(&mut self, merged: u64, gone: u64) {
        let [known, other] =
            [merged, gone].map(|id| self.tablets.get(&id).cloned().unwrap_or_default());
        self.ends(gone);
        let size = Size {
            bytes: known.bytes + other.bytes,
            written: known.written,
            is_unknown: known.is_unknown || other.is_unknown,
            ..Size::default()
        };
        self.set(merged, size);
    }

    /// Counts a durable batch.
    pub(crate) fn wrote(&mut self, batch: &Batch, tablets: &Tablets) {
        for (column, key, value) in batch.ops() {
            let Some(value) = value.filter(|_| COUNTED.contains(&column)) else {
                continue;
            };
            if !matches!(&self.last, Some((_, rows)) if rows.contains(key)) {
                let Some(tablet) = owner(key, tablets) else {
                    continue;
                };
                let last = self.last.replace((tablet.id, KeyRange::of(tablet)));
                if let Some((last, _)) = last {
                    self.changed(last);
                }
            }
            if let Some((id, _)) = &self.last
                && let Some(size) = self.tablets.get_mut(id)
            {
                size.bytes += (key.len() + value.len()) as u64;
            }
        }
        if let Some(last) = self.last.as_ref().map(|(id, _)| *id) {
            self.changed(last);
        }
    }

    /// Subtracts collected bytes.
    pub(crate) fn collected(&mut self, id: u64, bytes: u64) {
        if let Some(size) = self.tablets.get_mut(&id) {
            size.bytes = size.bytes.saturating_sub(bytes);
            self.changed(id);
        }
    }

    /// Sets the bytes above which tablets are split; zero: none is.
    pub(crate) fn limit(&mut self, split_bytes: u64) {
        if std::mem::replace(&mut self.split_bytes, split_bytes) != split_bytes {
            self.walk = None;
            for size in self.tablets.values_mut() {
                size.walk_from = 0;
                size.split_at.clear();
            }
            for id in self.tablets.keys().copied().collect::<Vec<_>>() {
                self.changed(id);
            }
        }
    }

    /// The size of each tablet, for the master: id, bytes, and the row at which to split it, which may be empty.
    pub(crate) fn reported(&self) -> impl Iterator<Item = (u64, u64, &Bytes)> {
        let all = self.tablets.iter();
        all.map(|(id, size)| (*id, rounded(size.bytes), &size.split_at))
    }

    /// Whether a size needs storing.
    pub(crate) fn has_to_write(&self) -> bool {
        !self.to_write.is_empty()
    }

    /// The batch that stores changed sizes, if there are any.
    pub(crate) fn take_unwritten(&mut self) -> Option<Batch> {
        let mut batch = Batch::default();
        for id in std::mem::take(&mut self.to_write) {
            if let Some(size) = self.tablets.get_mut(&id) {
                size.written = Some(size.bytes);
                let bytes = size.bytes.to_be_bytes().to_vec();
                batch.put(Column::Meta, tablets::key(SIZE_PREFIX, id), bytes);
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Removes the stored size of this tablet, in the batch.
    pub(crate) fn remove_record(batch: &mut Batch, id: u64) {
        batch.delete(Column::Meta, tablets::key(SIZE_PREFIX, id));
    }

    /// Whether a tablet needs a walk.
    pub(crate) fn has_to_walk(&self) -> bool {
        self.walk.is_some() || !self.to_walk.is_empty()
    }

    /// Ends a walk through a tablet that can't be read: its size is what was counted so far.
    pub(crate) fn give_walk_up(&mut self) {
        let Some(walk) = self.walk.take() else {
            return;
        };
        let id = walk.tablet.id;
        if let Some(size) = self.tablets.get_mut(&id) {
            size.bytes = size.bytes.max(walk.total);
            size.is_unknown = false;
            size.walk_from = u64::MAX;
            self.changed(id);
        }
    }

    /// Continues a walk, or begins one.
    pub(crate) fn walk(&mut self, engine: &dyn Engine, tablets: &Tablets) -> Result<(), Error> {
        let is_here = |walk: &Walk| tablets.get(walk.tablet.id) == Some(&walk.tablet);
        self.walk.take_if(|walk| !is_here(walk));
        if self.walk.is_none() {
            let Some(id) = self.to_walk.first().copied() else {
                return Ok(());
            };
            match tablets.get(id) {
                Some(tablet) => self.walk = Some(Walk::new(tablet, self.split_bytes)),
                None => self.ends(id),
            }
        }
        let Some(walk) = &mut self.walk else {
            return Ok(());
        };
        if !walk.step(engine)? {
            return Ok(());
        }
        let (id, total) = (walk.tablet.id, walk.total);
        let is_large = self.split_bytes > 0 && total > self.split_bytes;
        let split_at = is_large.then(|| walk.middle()).flatten();
        self.walk = None;
        if let Some(size) = self.tablets.get_mut(&id) {
            size.bytes = total;
            size.is_unknown = false;
            size.walk_from = total.saturating_add(total / 4);
            size.split_at = split_at.unwrap_or_default();
            self.changed(id);
        }
        Ok(())
    }
}

/// The tablet that has the cell of this version.
fn owner<'a>(version: &[u8], tablets: &'a Tablets) -> Option<&'a Tablet> {
    let cell = cell_of(version)?;
    tablets.owning(cell.table.0, &cell.row)
}

fn cell_of(version: &[u8]) -> Option<Cell> {
    let (cell, _) = key::split_version(version).ok()?;
    key::decode_cell(cell).ok()
}

/// Rounds a size, so that small changes are not reported.
fn rounded(bytes: u64) -> u64 {
    let digits = u64::BITS - bytes.leading_zeros();
    let zeros = digits.saturating_sub(REPORTED_BITS);
    bytes >> zeros << zeros
}

impl Walk {
    fn new(tablet: &Tablet, split_bytes: u64) -> Self {
        let rows = KeyRange::of(tablet);
        Self {
            tablet: tablet.clone(),
            next: rows.start.clone(),
            rows,
            column: 0,
            total: 0,
            first: None,
            parts: Vec::new(),
            part_bytes: (split_bytes / PARTS).max(1),
            since_part: 0,
        }
    }

    /// Reads some more. Returns whether the walk has ended.
    fn step(&mut self, engine: &dyn Engine) -> Result<bool, Error> {
        let Some(column) = COUNTED.get(self.column) else {
            return Ok(true);
        };
        let mut read = 0;
        let pairs = engine.scan(*column, &self.next, &self.rows.end, Direction::Forward)?;
        for (count, pair) in pairs.enumerate() {
            let (key, value) = pair?;
            if read >= STEP_BYTES || count >= STEP_KEYS {
                self.next = key.to_vec();
                return Ok(false);
            }
            if self.first.as_ref().is_none_or(|first| key[..] < first[..]) {
                self.first = Some(key.to_vec());
            }
            let bytes = (key.len() + value.len()) as u64;
            read += bytes;
            self.total += bytes;
            self.since_part += bytes;
            if self.since_part >= self.part_bytes {
                self.parts.push((key.to_vec(), self.since_part));
                self.since_part = 0;
            }
        }
        self.column += 1;
        self.next.clone_from(&self.rows.start);
        self.since_part = 0;
        Ok(self.column == COUNTED.len())
    }

    /// The row before which about half of the tablet lies; `None`: all of it is in one row.
    fn middle(&mut self) -> Option<Bytes> {
        let first = cell_of(self.first.as_ref()?)?.row;
        self.parts.sort_unstable();
        let mut before = 0;
        for (key, bytes) in &self.parts {
            before += bytes;
            if before * 2 < self.total {
                continue;
            }
            let row = cell_of(key)?.row;
            if row > first && self.tablet.rows.contains(&row) {
                return Some(row);
            }
        }
        None
    }
}
