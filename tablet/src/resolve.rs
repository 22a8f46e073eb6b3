//! Resolves the locks that an ended transaction has left in a tablet. They are found in the tablet, because a large transaction
//! doesn't remember them.
//!
//! A request resolves one piece. It reads some of the locks without a latch, and is then a request like others: it takes the
//! latches of the rows that it found, reads their locks again if it had to wait, and goes to the disk with a group. The caller
//! repeats the request behind the piece. Prewrites that are not durable yet are not found, and need not be: a transaction
//! commits when all of its prewrites were answered, and a late lock of one that was rolled back is cleared by its primary's
//! record.

use percolator_engine::{Column, Direction};
use percolator_protocol::actions::resolve;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::txn::Ending;
use percolator_protocol::types::{Cell, Lock, Timestamp, key};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::decision::Decision;
use crate::latches::{self, RowHash};
use crate::state::State;
use crate::store::{self, Version};
use crate::work::{commit_timestamp, invalid, timestamp};
use crate::{Error, Refusal, notify};

/// Locks that a piece resolves beside other requests, so that none of them waits long behind it.
pub(crate) const LOCKS_BESIDE: usize = 8;
/// For each of those it may read this many locks of any transaction.
const SEEN: usize = 64;
/// To resolve a lock is as much work as to write this many cells: it removes the lock, writes the record, and looks up what
/// that hides.
pub(crate) const CELLS_OF_A_LOCK: usize = 2;
/// To read this many locks is as much work as a cell.
const SEEN_OF_A_CELL: usize = SEEN / CELLS_OF_A_LOCK;

/// Locks to resolve.
#[derive(Debug)]
pub(crate) struct Piece {
    start_ts: Timestamp,
    ending: Ending,
    cells: Vec<LockedCell>,
    /// Locks that were read, of any transaction.
    seen: usize,
    /// There may be more behind this cell.
    resume: Option<Cell>,
}

/// A cell that has one of these locks.
#[derive(Debug)]
struct LockedCell {
    cell_key: Vec<u8>,
    /// The lock as it was found. `None`: the piece has waited for its latches since, and reads it again.
    lock: Option<Lock>,
}

impl Piece {
    /// The work of the piece, in cells that are written.
    pub(crate) fn work(&self) -> usize {
        let resolved = CELLS_OF_A_LOCK * self.cells.len();
        resolved.max(self.seen / SEEN_OF_A_CELL).max(1)
    }

    /// The rows of its cells, to be latched. One that can't be read is found when the piece is decided.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RowHash> {
        let cells = self
            .cells
            .iter()
            .filter_map(|found| key::decode_cell(&found.cell_key).ok());
        cells.map(|cell| latches::row(cell.table.0, &cell.row))
    }

    /// Drops the locks: others may change them while the piece waits. Returns the memory that it takes.
    pub(crate) fn wait(&mut self) -> usize {
        let held = |found: &mut LockedCell| {
            found.lock = None;
            size_of::<LockedCell>() + found.cell_key.len()
        };
        self.cells.iter_mut().map(held).sum()
    }
}

/// Finds the next piece, of at most `most` locks, and its tablet.
pub(crate) fn find(
    state: &State,
    refs: Vec<v1::TabletRef>,
    request: v1::ResolveRequest,
    most: usize,
) -> Result<(v1::TabletRef, Piece), Refusal> {
    let start_ts = timestamp(request.start_ts, "start_ts")?;
    let ending = match request.commit_ts {
        0 => Ending::RolledBack,
        at => Ending::Committed(commit_timestamp(at, start_ts)?),
    };
    let Ok([asked]) = <[v1::TabletRef; 1]>::try_from(refs) else {
        return Err(invalid("locks are resolved in one tablet at a time"));
    };
    let tablet = state.tablets.serving(asked.id, asked.epoch)?;
    let rows = tablet.rows.within(&request.start_row, &request.end_row);
    let mut start = key::row_bound(tablet.table, &rows.start);
    if let Some(after) = request.after {
        start = start.max(key::behind_cell(store::cell_key(&Cell::from(after))));
    }
    let end = key::rows_end(tablet.table, &rows.end);
    let mut piece = Piece {
        start_ts,
        ending,
        cells: Vec::new(),
        seen: 0,
        resume: None,
    };
    let pairs = state
        .engine
        .scan(Column::Lock, &start, &end, Direction::Forward)
        .map_err(Error::from)?;
    for pair in pairs {
        let (key, record) = pair.map_err(Error::from)?;
        let lock = Lock::decode(record).map_err(Error::from)?;
        let is_its = lock.start_ts == start_ts;
        let found = piece.cells.len() + usize::from(is_its);
        piece.seen += 1;
        let enough = piece.seen >= most * SEEN || found >= most;
        if enough {
            piece.resume = Some(key::decode_cell(&key).map_err(Error::from)?);
        }
        if is_its {
            piece.cells.push(LockedCell {
                cell_key: key.to_vec(),
                lock: Some(lock),
            });
        }
        if enough {
            break;
        }
    }
    Ok((asked, piece))
}

/// Decides the piece, which holds its latches.
pub(crate) fn decide(
    state: &State,
    refs: &[v1::TabletRef],
    piece: Piece,
) -> Result<Decision, Refusal> {
    for asked in refs {
        state.tablets.serving(asked.id, asked.epoch)?;
    }
    let commit_ts = match piece.ending {
        Ending::Committed(commit_ts) => Some(commit_ts),
        Ending::RolledBack => None,
    };
    let mut decision = Decision::new();
    let mut resolved = 0;
    let skipped = mutants::on(Mutant::ResolveSkipsPiece) && piece.resume.is_some();
    for LockedCell { cell_key, lock } in piece.cells.into_iter().filter(|_| !skipped) {
        // A lock that is still set has not changed: the piece has had the cell's latch since it was found.
        let view = state.view_knowing(lock, &cell_key, piece.start_ts, commit_ts)?;
        let effects = resolve(&view, piece.start_ts, piece.ending);
        if effects.is_empty() {
            continue;
        }
        resolved += 1;
        if commit_ts.is_some() {
            let commit = notify::Committing::locked(piece.start_ts, view.lock.as_ref());
            notify::note(state, &mut decision, &cell_key, &commit, &effects)?;
        }
        decision
            .memory
            .versions
            .extend(Version::of_commit(&cell_key, &effects));
        decision.add(state, &cell_key, true, effects);
    }
    decision.answer = Some(Body::Resolve(v1::ResolveResponse {
        resolved,
        resume: piece.resume.as_ref().map(v1::CellName::from),
    }));
    Ok(decision)
}
