//! Collection: its cost follows the garbage, not the data. Whatever hides a version, or will be of no use some
//! day itself, leaves an entry in an index ordered by time. Collection reads that index up to the ready point,
//! and looks at the cells that it names.
//!
//! It works in pieces, one at a time, each a request like others: it waits for its rows' latches, decides by
//! `protocol::actions::gc`, and goes to the disk with a group. So nothing that it does can come between the
//! steps of another request, and it may be killed at any point. Readers take no latches; a request that reads
//! ends before a second group of its time is durable, which is what the rule asks for.

use std::collections::BTreeMap;

use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::actions::gc;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Effect, Timestamp, WriteKind, key};

use crate::Error;
use crate::decision::{Decision, Ground};
use crate::latches::{self, RowHash};
use crate::store::version_record;

/// Entries of one piece beside other requests, and where there are none.
const ENTRIES_BESIDE: usize = 16;
const ENTRIES_ALONE: usize = 256;
/// Records of one cell that one piece removes, about.
const RECORDS_OF_ONE_CELL: usize = 64;

/// Cells to look at, and the times of their entries.
pub(crate) type Piece = BTreeMap<Vec<u8>, Vec<Timestamp>>;

/// The oldest entries below the ready point.
pub(crate) fn piece(engine: &dyn Engine, ready: Timestamp, alone: bool) -> Result<Piece, Error> {
    let most = match alone {
        true => ENTRIES_ALONE,
        false => ENTRIES_BESIDE,
    };
    let end = ready.as_u64().to_be_bytes();
    let mut cells = Piece::new();
    if ready == Timestamp::ZERO {
        return Ok(cells);
    }
    let entries = engine.scan(Column::Garbage, &[], &end, Direction::Forward)?;
    for entry in entries.take(most) {
        let (entry, _) = entry?;
        let (ts, cell_key) = entry
            .split_first_chunk()
            .ok_or(Error::GarbageKey { bytes: entry.len() })?;
        let ts = Timestamp::from_u64(u64::from_be_bytes(*ts));
        cells.entry(cell_key.to_vec()).or_default().push(ts);
    }
    Ok(cells)
}

/// The rows of a piece's cells, to be latched. One that can't be read is found when the piece is decided.
pub(crate) fn rows(piece: &Piece) -> impl Iterator<Item = RowHash> {
    let cells = piece.keys().filter_map(|key| key::decode_cell(key).ok());
    cells.map(|cell| latches::row(cell.table.0, &cell.row))
}

/// Decides what of the piece goes; it holds its latches.
pub(crate) fn decide(ground: Ground<'_>, piece: &Piece) -> Result<Decision, Error> {
    let ready = match mutants::on(Mutant::CollectedAtTheBarrier) {
        true => ground.points.barrier,
        false => ground.points.ready,
    };
    let mut decision = Decision::new();
    for (cell_key, entries) in piece {
        let cell = key::decode_cell(cell_key)?;
        // The rows of other tablets go as a whole.
        if ground.tablets.serves(&cell) {
            let newest = key::version(cell_key.clone(), ready);
            let behind = key::behind_cell(cell_key.clone());
            let records = ground
                .engine
                .scan(Column::Write, &newest, &behind, Direction::Forward)?
                .map(|pair| version_record(pair?));
            let collected = gc(ready, records, RECORDS_OF_ONE_CELL)?;
            decision.collected += collected.records;
            decision.add(ground, cell_key, false, collected.effects);
            if !collected.done {
                continue;
            }
        }
        for ts in entries {
            decision.batch.delete(Column::Garbage, entry(*ts, cell_key));
        }
    }
    Ok(decision)
}

/// Leaves entries for what effects on a cell, whose key has this hash, hide or will be of no use.
pub(crate) fn index(
    ground: Ground<'_>,
    batch: &mut Batch,
    cell_key: &[u8],
    hash: u64,
    effects: &[Effect],
) {
    for effect in effects {
        if let Effect::PutWrite(ts, write) = effect
            && (write.kind != WriteKind::Put || has_records(ground, cell_key, hash))
        {
            batch.put(Column::Garbage, entry(*ts, cell_key), Vec::new());
        }
    }
}

/// Whether the cell may have a write record already.
fn has_records(ground: Ground<'_>, cell_key: &[u8], hash: u64) -> bool {
    if ground.records.highest(hash) == Timestamp::ZERO {
        return false;
    }
    if ground.cache.borrow().newest(hash, cell_key).is_some() {
        return true;
    }
    let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
    let behind = key::behind_cell(cell_key.to_vec());
    // An entry too many does no harm, and an engine that can't be read is noticed by others.
    ground
        .engine
        .first(Column::Write, &newest, &behind)
        .map_or(true, |found| found.is_some())
}

fn entry(ts: Timestamp, cell_key: &[u8]) -> Vec<u8> {
    [&ts.as_u64().to_be_bytes(), cell_key].concat()
}
