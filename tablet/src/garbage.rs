//! Collection: its cost follows the garbage, not the data. Whatever hides a version, or will be of no use some
//! day itself, leaves an entry in an index ordered by time. Collection reads that index up to the ready point,
//! and looks at the cells that it names.
//!
//! It works in pieces, one at a time, each a request like others: it waits for its rows' latches, decides by
//! `protocol::actions::gc`, and goes to the disk with a group. So nothing that it does can come between the
//! steps of another request, and it may be killed at any point. Readers take no latches; a request that reads
//! ends before a second group of its time is durable, which is what the rule asks for.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_engine::{Column, Direction, Engine};
use percolator_protocol::actions::{Collected, gc};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Effect, Timestamp, Write, WriteKind, key};

use crate::Error;
use crate::decision::{Decision, Ground};
use crate::latches::{self, RowHash};
use crate::store::version_record;

/// What a version's key has behind its cell's.
const VERSION_BYTES: usize = 8;
/// Records of one cell that one piece removes, about.
const RECORDS_OF_ONE_CELL: usize = 64;

/// Cells to look at, and their entries: the time, and what they hide.
pub(crate) type Piece = BTreeMap<Vec<u8>, Vec<(Timestamp, Hidden)>>;

/// What a put hides, as its entry says it: then it goes without a look at the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// Not said, or there is more to do: the cell is read.
    Look,
    /// The version of this time, and of the transaction that began at `long`, if its value has a key of its own;
    /// otherwise it is so many bytes long.
    Version {
        commit_ts: Timestamp,
        long: Option<Timestamp>,
        bytes: u8,
    },
}

impl Hidden {
    fn of(commit_ts: Timestamp, write: &Write) -> Self {
        let long = write.kind == WriteKind::Put && write.short_value.is_none();
        let bytes = write.short_value.as_ref().map_or(0, Bytes::len);
        Self::Version {
            commit_ts,
            long: long.then_some(write.start_ts),
            bytes: u8::try_from(bytes).unwrap_or(u8::MAX),
        }
    }

    fn encode(self) -> Vec<u8> {
        match self {
            Self::Look => Vec::new(),
            Self::Version {
                commit_ts,
                long,
                bytes,
            } => {
                let long = long.map(|ts| ts.as_u64().to_be_bytes());
                let mut encoded = commit_ts.as_u64().to_be_bytes().to_vec();
                encoded.push(bytes);
                encoded.extend(long.into_iter().flatten());
                encoded
            }
        }
    }

    fn decode(bytes: &[u8]) -> Self {
        let Some((commit_ts, [bytes, rest @ ..])) = bytes.split_first_chunk() else {
            return Self::Look;
        };
        let ts = |bytes: &[u8; 8]| Timestamp::from_u64(u64::from_be_bytes(*bytes));
        Self::Version {
            commit_ts: ts(commit_ts),
            long: rest.first_chunk().map(ts),
            bytes: *bytes,
        }
    }

    /// What goes, where the version that hides it is at or below the ready point: then no snapshot at or above that
    /// sees it.
    fn collected(self) -> Option<Collected> {
        let Self::Version {
            commit_ts,
            long,
            bytes,
        } = self
        else {
            return None;
        };
        let mut effects = vec![Effect::DeleteWrite(commit_ts)];
        effects.extend(long.map(Effect::DeleteData));
        Some(Collected {
            effects,
            records: 1,
            bytes: bytes.into(),
            done: true,
        })
    }
}

/// Where the index begins. What was removed from its front is long in the way of whoever looks from its very
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
        let entry = first.map(|(entry, _)| Ok(split_entry(&entry)?.0));
        entry.transpose()
    }
}

/// The oldest entries below the ready point, at most so many.
pub(crate) fn piece(
    engine: &dyn Engine,
    front: &mut Front,
    ready: Timestamp,
    most: usize,
) -> Result<Piece, Error> {
    let end = ready.as_u64().to_be_bytes();
    let mut cells = Piece::new();
    if ready == Timestamp::ZERO {
        return Ok(cells);
    }
    front.next.clone_from(&front.from);
    let entries = engine.scan(Column::Garbage, &front.from, &end, Direction::Forward)?;
    for entry in entries.take(most) {
        let (entry, hidden) = entry?;
        let (ts, cell_key) = split_entry(&entry)?;
        let entries = cells.entry(cell_key.to_vec()).or_default();
        entries.push((ts, Hidden::decode(&hidden)));
        front.next = entry.to_vec();
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
    let mut decision = Decision::new();
    for (cell_key, entries) in piece {
        let cell = key::decode_cell(cell_key)?;
        let tablet = ground.tablets.holding(&cell);
        // The rows of other tablets go as a whole.
        if tablet != 0 {
            let collected = collect(ground, cell_key, entries)?;
            let change = decision.garbage.entry(tablet).or_default();
            let key_bytes = collected.effects.len() * (cell_key.len() + VERSION_BYTES);
            change.records += collected.records as u64;
            change.bytes += (collected.bytes + key_bytes) as u64;
            decision.add(ground, cell_key, false, collected.effects);
            if !collected.done {
                decision.unfinished = true;
                continue;
            }
        }
        decision.garbage.entry(tablet).or_default().done += entries.len() as u64;
        for (ts, _) in entries {
            decision.batch.delete(Column::Garbage, entry(*ts, cell_key));
        }
    }
    Ok(decision)
}

/// What goes of a cell: what its entries say, or, where one doesn't, what its records do.
fn collect(
    ground: Ground<'_>,
    cell_key: &[u8],
    entries: &[(Timestamp, Hidden)],
) -> Result<Collected, Error> {
    let mut said = Collected {
        done: true,
        ..Collected::default()
    };
    for (_, hidden) in entries {
        let Some(version) = hidden.collected() else {
            return look(ground, cell_key);
        };
        said.effects.extend(version.effects);
        said.records += version.records;
        said.bytes += version.bytes;
    }
    Ok(said)
}

fn look(ground: Ground<'_>, cell_key: &[u8]) -> Result<Collected, Error> {
    let ready = match mutants::on(Mutant::CollectedAtTheBarrier) {
        true => ground.points.barrier,
        false => ground.points.ready,
    };
    let newest = key::version(cell_key.to_vec(), ready);
    let behind = key::behind_cell(cell_key.to_vec());
    let records = ground
        .engine
        .scan(Column::Write, &newest, &behind, Direction::Forward)?
        .map(|pair| version_record(pair?));
    gc(ready, records, RECORDS_OF_ONE_CELL)
}

/// Leaves entries for what effects on a cell, whose key has this hash, hide or will be of no use.
pub(crate) fn index(
    ground: Ground<'_>,
    decision: &mut Decision,
    cell_key: &[u8],
    hash: u64,
    effects: &[Effect],
) {
    if !ground.limits.index_garbage {
        return;
    }
    for effect in effects {
        let Effect::PutWrite(ts, write) = effect else {
            continue;
        };
        let hidden = match write.kind {
            WriteKind::Put => hidden(ground, cell_key, hash, *ts),
            _ => Some(Hidden::Look),
        };
        if let Some(hidden) = hidden {
            let entry = entry(*ts, cell_key);
            decision.batch.put(Column::Garbage, entry, hidden.encode());
            if let Ok(cell) = key::decode_cell(cell_key) {
                let tablet = ground.tablets.holding(&cell);
                decision.garbage.entry(tablet).or_default().made += 1;
            }
            if decision.lowest_entry.is_none_or(|lowest| *ts < lowest) {
                decision.lowest_entry = Some(*ts);
            }
        }
    }
}

/// What a put at this time hides; `None`: the cell has no write record yet.
fn hidden(ground: Ground<'_>, cell_key: &[u8], hash: u64, ts: Timestamp) -> Option<Hidden> {
    if ground.records.highest(hash) == Timestamp::ZERO {
        return None;
    }
    // Where this replaces a record, or comes below one, the cell is looked at.
    let of = |commit_ts: Timestamp, write: &Write| match write.kind {
        WriteKind::Put | WriteKind::Delete if commit_ts < ts => Hidden::of(commit_ts, write),
        _ => Hidden::Look,
    };
    if let Some(newest) = ground.cache.borrow().newest(hash, cell_key) {
        return Some(of(newest.commit_ts, &newest.write()));
    }
    let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
    let behind = key::behind_cell(cell_key.to_vec());
    // An entry too many does no harm, and an engine that can't be read is noticed by others.
    match ground.engine.first(Column::Write, &newest, &behind) {
        Ok(found) => found.map(|pair| {
            version_record(pair).map_or(Hidden::Look, |(commit_ts, write)| of(commit_ts, &write))
        }),
        Err(_) => Some(Hidden::Look),
    }
}

pub(crate) fn entry(ts: Timestamp, cell_key: &[u8]) -> Vec<u8> {
    [&ts.as_u64().to_be_bytes(), cell_key].concat()
}

/// The time of an entry, and its cell's key.
pub(crate) fn split_entry(entry: &[u8]) -> Result<(Timestamp, &[u8]), Error> {
    let (ts, cell_key) = entry
        .split_first_chunk()
        .ok_or(Error::GarbageKey { bytes: entry.len() })?;
    Ok((Timestamp::from_u64(u64::from_be_bytes(*ts)), cell_key))
}
