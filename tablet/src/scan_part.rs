//! A part of a scan: the cells of a range that fit into one response, and where the next part begins.

use std::cell::{Cell as Counter, RefCell};
use std::ops::ControlFlow;

use bytes::Bytes;
use percolator_engine::{Column, Direction};
use percolator_protocol::actions::{Read, ScanEnd, Snapshot, scan_forward, scan_reverse};
use percolator_protocol::types::{Cell, Lock, Timestamp, Write, key};
use percolator_wire::{met_lock, v1};

use crate::reads::bytes_of;
use crate::records::Records;
use crate::state::State;
use crate::store;
use crate::{Error, Refusal};

/// The bytes of a cell in a response besides its names and its value.
const CELL_BYTES: usize = 16;

/// A range of cells' keys.
pub(crate) struct CellRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
    pub(crate) reverse: bool,
}

impl CellRange {
    fn direction(&self) -> Direction {
        if self.reverse {
            Direction::Reverse
        } else {
            Direction::Forward
        }
    }

    /// Up to this cell, with it.
    fn up_to(&self, last: Option<&Vec<u8>>) -> (Vec<u8>, Vec<u8>) {
        match last {
            Some(last) if self.reverse => (last.clone(), self.end.clone()),
            Some(last) => (self.start.clone(), key::behind_cell(last.clone())),
            None => (self.start.clone(), self.end.clone()),
        }
    }
}

pub(crate) struct Part {
    pub(crate) cells: Vec<(Cell, Bytes)>,
    pub(crate) end: PartEnd,
}

impl Part {
    pub(crate) fn bytes(&self) -> usize {
        let each = self.cells.iter();
        each.map(|(cell, value)| bytes_of(cell, value)).sum()
    }
}

pub(crate) enum PartEnd {
    /// The range is read.
    Done,
    /// There's more behind this cell's key (forward), or before it (reverse).
    Resume(Vec<u8>),
    /// Locks block the rest; the part ends at the first one.
    Locked(Vec<v1::MetLock>),
    /// The reader was rolled back on this cell.
    RolledBack(Vec<u8>),
}

/// The limits of a part.
#[derive(Clone, Copy)]
pub(crate) struct PartMax {
    pub(crate) cells: usize,
    pub(crate) bytes: usize,
}

/// Reads a part of the range. Locks come first: see the module [`crate::reads`].
pub(crate) fn scan_part(
    state: &State,
    engine: &dyn percolator_engine::Read,
    snapshot: Snapshot<'_>,
    range: &CellRange,
    max: PartMax,
) -> Result<Part, Refusal> {
    let limits = &state.limits;
    let mut locks = locks_in(engine, range, range.direction(), limits.scan_locks)?;
    // Set if the part has to end early: the last key that it may reach.
    let is_full = locks.len() == limits.scan_locks;
    let part_end = locks.last().filter(|_| is_full).map(|(key, _)| key.clone());
    let (start, end) = range.up_to(part_end.as_ref());
    let of_one_cell = limits.scan_records_of_one_cell;
    let (scanned, bounds) = (
        ScannedRecords::new(range, limits.scan_records),
        (&*start, &*end),
    );
    let records = Records::new(engine, snapshot, bounds, range.direction(), of_one_cell)?
        .take_while(|record| scanned.takes(record));
    let mut found = ScannedCells {
        engine,
        cells: Vec::new(),
        bytes: 0,
        failed: None,
        is_cut_off: false,
    };
    let emit = |cell_key: Vec<u8>, read| {
        // The cell has one of the reader's own locks, and cells before it are not read yet.
        if snapshot.own && scanned.is_cut_short() && scanned.is_before(&cell_key) {
            found.is_cut_off = true;
            return ControlFlow::Break(());
        }
        found.add(&cell_key, read)?;
        if found.cells.len() >= max.cells || limits.ends_scan(found.bytes, max.bytes) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    locks.retain(|(_, lock)| snapshot.blocked_by(lock) || snapshot.owns(lock));
    let in_the_way = locks.iter().cloned().map(Ok);
    let ended = if range.reverse {
        scan_reverse(snapshot, records, in_the_way, emit)?
    } else {
        scan_forward(snapshot, records, in_the_way, emit)?
    };
    if let Some(error) = found.failed {
        return Err(error.into());
    }
    let is_cut_short = scanned.is_cut_short();
    let end = match ended {
        // A lock behind the last record that was read doesn't block this part.
        ScanEnd::Locked(cell_key, _) if is_cut_short && scanned.is_before(&cell_key) => {
            PartEnd::Resume(scanned.last().unwrap_or_default())
        }
        ScanEnd::Locked(cell_key, _) => PartEnd::Locked(met_from(&cell_key, &locks, snapshot)?),
        ScanEnd::RolledBack(cell_key) => PartEnd::RolledBack(cell_key),
        ScanEnd::Stopped if found.is_cut_off => PartEnd::Resume(scanned.last().unwrap_or_default()),
        ScanEnd::Stopped => match found.cells.last() {
            Some((cell, _)) => PartEnd::Resume(store::cell_key(cell)),
            None => PartEnd::Done,
        },
        ScanEnd::Done => match (is_cut_short, scanned.last(), part_end) {
            (true, Some(last), _) => PartEnd::Resume(last),
            (_, _, Some(last)) => PartEnd::Resume(last),
            _ => PartEnd::Done,
        },
    };
    let cells = found.cells;
    Ok(Part { cells, end })
}

/// The records that a part reads, up to a limit.
struct ScannedRecords<'a> {
    range: &'a CellRange,
    records_max: usize,
    count: Counter<usize>,
    /// The cell of the last record.
    last: RefCell<Option<Vec<u8>>>,
}

impl<'a> ScannedRecords<'a> {
    fn new(range: &'a CellRange, records_max: usize) -> Self {
        Self {
            range,
            records_max,
            count: Counter::new(0),
            last: RefCell::default(),
        }
    }

    /// Whether the limit has ended the part.
    fn is_cut_short(&self) -> bool {
        self.count.get() > self.records_max
    }

    /// The cell of the last record.
    fn last(&self) -> Option<Vec<u8>> {
        self.last.borrow().clone()
    }

    /// Whether the last record lies before this cell, in the order of the scan.
    fn is_before(&self, cell_key: &[u8]) -> bool {
        self.last.borrow().as_deref().is_some_and(|last| {
            if self.range.reverse {
                cell_key < last
            } else {
                cell_key > last
            }
        })
    }

    /// Whether one more record is read. A part ends only between cells: some of a cell's versions could show the wrong one.
    fn takes(&self, record: &Result<(Vec<u8>, Timestamp, Write), Error>) -> bool {
        self.count.set(self.count.get() + 1);
        let Ok((key, ..)) = record else {
            return true;
        };
        let mut last = self.last.borrow_mut();
        if last.as_ref() == Some(key) {
            return true;
        }
        if self.is_cut_short() {
            return false;
        }
        *last = Some(key.clone());
        true
    }
}

/// The cells that a part returns.
struct ScannedCells<'a> {
    engine: &'a dyn percolator_engine::Read,
    cells: Vec<(Cell, Bytes)>,
    bytes: usize,
    failed: Option<Error>,
    /// The part ends before a lock of the reader's own.
    is_cut_off: bool,
}

impl ScannedCells<'_> {
    /// Adds the cell, if it has a value.
    fn add(&mut self, cell_key: &[u8], read: Read) -> ControlFlow<()> {
        let value = match read {
            Read::Value(value) => Ok(value),
            Read::Long(ts) => store::long_value(self.engine, cell_key, ts),
            Read::Absent | Read::Locked(_) | Read::RolledBack => {
                return ControlFlow::Continue(());
            }
        };
        match value.and_then(|value| Ok((key::decode_cell(cell_key)?, value))) {
            Ok((cell, value)) => {
                self.bytes += bytes_of(&cell, &value) + CELL_BYTES;
                self.cells.push((cell, value));
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

/// The first locks of a range, in the order of a scan, up to `most`.
pub(crate) fn locks_in(
    engine: &dyn percolator_engine::Read,
    range: &CellRange,
    direction: Direction,
    most: usize,
) -> Result<Vec<(Vec<u8>, Lock)>, Error> {
    let pairs = engine.scan(Column::Lock, &range.start, &range.end, direction)?;
    pairs
        .take(most)
        .map(|pair| {
            let (key, record) = pair?;
            Ok((key.to_vec(), Lock::decode(record)?))
        })
        .collect()
}

/// Other transactions' locks from this cell on.
pub(crate) fn met_from(
    cell_key: &[u8],
    locks: &[(Vec<u8>, Lock)],
    snapshot: Snapshot<'_>,
) -> Result<Vec<v1::MetLock>, Error> {
    let from = locks.iter().position(|(key, _)| *key == cell_key);
    let met = locks[from.unwrap_or_default()..].iter();
    met.filter(|(_, lock)| !snapshot.owns(lock))
        .map(|(key, lock)| Ok(met_lock(&key::decode_cell(key)?, lock)))
        .collect()
}
