//! Collection: its cost follows the garbage, not the data. Whatever hides a version, or will be of no use some
//! day itself, leaves an entry in an index ordered by time. Collection reads that index up to the safe point,
//! and looks at the cells that it names.
//!
//! It works in pieces, one at a time, each a request like others: it waits for its rows' latches, decides by
//! `protocol::actions::gc`, and goes to the disk with a group. So nothing that it does can come between the
//! steps of another request, and it may be killed at any point. Readers take no latches; a request that reads
//! ends before a second group of its time is durable, which is what the rule asks for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_engine::{Column, Direction, Engine};
use percolator_protocol::actions::{Collected, gc};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Effect, Timestamp, Write, WriteKind, key};

use crate::Error;
use crate::decision::Decision;
use crate::index::{Entry, Hidden, Item};
use crate::latches::{self, RowHash};
use crate::state::State;
use crate::store::version_record;
use crate::tablets::Tablets;

/// What a version's key has behind its cell's.
const VERSION_BYTES: usize = 8;
/// Records of one cell that one piece removes, about.
const RECORDS_OF_ONE_CELL: usize = 64;

/// Entries to be done with, oldest first: their keys, and what they say.
pub(crate) type Piece = Vec<(Bytes, Entry)>;

/// Where the index begins. What was removed from its front is long in the way of anyone who looks from its very
/// beginning: engines keep marks of what they have removed.
#[derive(Debug, Default)]
pub(crate) struct Front {
    /// No entry lies below this key.
    from: Vec<u8>,
    /// What that will be when the piece under way is durable.
    next: Vec<u8>,
}

impl Front {
    /// The piece that was taken last is durable, and nothing is left of it.
    pub(crate) fn piece_done(&mut self) {
        self.from = std::mem::take(&mut self.next);
    }

    /// An entry was made: old transactions leave theirs below younger ones'.
    pub(crate) fn entry_made(&mut self, ts: Timestamp) {
        let key = ts.as_u64().to_be_bytes();
        for front in [&mut self.from, &mut self.next] {
            if front[..] > key[..] {
                *front = key.to_vec();
            }
        }
    }

    /// The first entry.
    pub(crate) fn oldest(&self, engine: &dyn Engine) -> Result<Option<Timestamp>, Error> {
        let first = engine.first(Column::Garbage, &self.from, &[])?;
        let entry = first.map(|(key, value)| Ok(Entry::decode(&key, value)?.ts));
        entry.transpose()
    }
}

/// The oldest entries below the safe point: as many as have this many items, or a few more.
pub(crate) fn piece(
    engine: &dyn Engine,
    front: &mut Front,
    safe_point: Timestamp,
    most: usize,
) -> Result<Piece, Error> {
    let end = safe_point.as_u64().to_be_bytes();
    let mut piece = Piece::new();
    if safe_point == Timestamp::ZERO {
        return Ok(piece);
    }
    front.next.clone_from(&front.from);
    let mut items = 0;
    for pair in engine.scan(Column::Garbage, &front.from, &end, Direction::Forward)? {
        let (key, value) = pair?;
        let entry = Entry::decode(&key, value)?;
        items += entry.items.len();
        front.next = key.to_vec();
        piece.push((key, entry));
        if items >= most {
            break;
        }
    }
    Ok(piece)
}

/// How many items a piece has.
pub(crate) fn items(piece: &Piece) -> usize {
    piece.iter().map(|(_, entry)| entry.items.len()).sum()
}

/// The rows of a piece's cells, to be latched. One that can't be read is found when the piece is decided.
pub(crate) fn rows(piece: &Piece) -> impl Iterator<Item = RowHash> {
    let items = piece.iter().flat_map(|(_, entry)| &entry.items);
    let cells = items.filter_map(|item| key::decode_cell(&item.cell_key).ok());
    cells.map(|cell| latches::row(cell.table.0, &cell.row))
}

/// Decides what of the piece goes; it holds its latches.
pub(crate) fn decide(state: &State, piece: Piece) -> Result<Decision, Error> {
    let mut decision = Decision::new();
    let mut cells: BTreeMap<&Bytes, Vec<Hidden>> = BTreeMap::new();
    for item in piece.iter().flat_map(|(_, entry)| &entry.items) {
        cells.entry(&item.cell_key).or_default().push(item.hidden);
    }
    let mut unfinished = BTreeSet::new();
    for (cell_key, hidden) in cells {
        let tablet = state.tablets.holding(cell_key)?;
        // The rows of other tablets go as a whole.
        if tablet != 0 {
            let collected = collect(state, cell_key, &hidden)?;
            let change = decision.garbage.entry(tablet).or_default();
            let key_bytes = collected.effects.len() * (cell_key.len() + VERSION_BYTES);
            change.records += collected.records as u64;
            change.bytes += (collected.bytes + key_bytes) as u64;
            decision.add(state, cell_key, false, collected.effects);
            if !collected.done {
                unfinished.insert(cell_key.clone());
                continue;
            }
        }
        decision.garbage.entry(tablet).or_default().done += hidden.len() as u64;
    }
    decision.unfinished = !unfinished.is_empty();
    for (key, mut entry) in piece {
        decision.batch.delete(Column::Garbage, key);
        entry
            .items
            .retain(|item| unfinished.contains(&item.cell_key));
        if !entry.items.is_empty() {
            decision
                .batch
                .put(Column::Garbage, entry.key(), entry.value());
        }
    }
    Ok(decision)
}

/// What goes of a cell: what its entries say, or, where one doesn't, what its records do.
fn collect(state: &State, cell_key: &[u8], hidden: &[Hidden]) -> Result<Collected, Error> {
    let mut said = Collected {
        done: true,
        ..Collected::default()
    };
    for hidden in hidden {
        let Some(version) = hidden.collected() else {
            return look(state, cell_key);
        };
        said.effects.extend(version.effects);
        said.records += version.records;
        said.bytes += version.bytes;
    }
    Ok(said)
}

fn look(state: &State, cell_key: &[u8]) -> Result<Collected, Error> {
    let safe_point = if mutants::on(Mutant::CollectedAtTheBarrier) {
        state.points.now().barrier
    } else {
        state.points.now().safe_point
    };
    let newest = key::version(cell_key.to_vec(), safe_point);
    let behind = key::behind_cell(cell_key.to_vec());
    let records = state
        .engine
        .scan(Column::Write, &newest, &behind, Direction::Forward)?
        .map(|pair| version_record(pair?));
    gc(safe_point, records, RECORDS_OF_ONE_CELL)
}

/// Notes what effects on a cell, whose key has this hash, hide or will be of no use.
pub(crate) fn note(
    state: &State,
    decision: &mut Decision,
    cell_key: &[u8],
    hash: u64,
    effects: &[Effect],
) {
    if !state.limits.index_garbage {
        return;
    }
    for effect in effects {
        let Effect::PutWrite(ts, write) = effect else {
            continue;
        };
        let hidden = match write.kind {
            WriteKind::Put => hidden(state, cell_key, hash, *ts),
            _ => Some(Hidden::Look),
        };
        if let Some(hidden) = hidden {
            let cell_key = Bytes::copy_from_slice(cell_key);
            decision.hides.push((*ts, Item { cell_key, hidden }));
        }
    }
}

/// Leaves entries for what was noted.
pub(crate) fn index(tablets: &Tablets, decision: &mut Decision) -> Result<(), Error> {
    for (_, item) in &decision.hides {
        let tablet = tablets.holding(&item.cell_key)?;
        decision.garbage.entry(tablet).or_default().made += 1;
    }
    for entry in Entry::of(std::mem::take(&mut decision.hides)) {
        decision
            .batch
            .put(Column::Garbage, entry.key(), entry.value());
        let lowest = decision.lowest_entry.unwrap_or(entry.ts);
        decision.lowest_entry = Some(lowest.min(entry.ts));
    }
    Ok(())
}

/// What a put at this time hides; `None`: the cell has no write record yet.
fn hidden(state: &State, cell_key: &[u8], hash: u64, ts: Timestamp) -> Option<Hidden> {
    if state.records.highest(hash) == Timestamp::ZERO {
        return None;
    }
    // Where this replaces a record, or comes below one, the cell is looked at.
    let of = |commit_ts: Timestamp, write: &Write| match write.kind {
        WriteKind::Put | WriteKind::Delete if commit_ts < ts => Hidden::of(commit_ts, write),
        _ => Hidden::Look,
    };
    if let Some(newest) = state.cache.borrow().newest(hash, cell_key) {
        return Some(of(newest.commit_ts, &newest.write()));
    }
    let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
    let behind = key::behind_cell(cell_key.to_vec());
    // An entry too many does no harm, and an engine that can't be read is noticed by others.
    match state.engine.first(Column::Write, &newest, &behind) {
        Ok(found) => found.map(|pair| {
            version_record(pair).map_or(Hidden::Look, |(commit_ts, write)| of(commit_ts, &write))
        }),
        Err(_) => Some(Hidden::Look),
    }
}
