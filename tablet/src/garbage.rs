//! Collection. Its cost follows the garbage, not the data. A write that hides a version, or a record that becomes useless,
//! leaves an entry in an index ordered by time. Collection reads that index up to the safe point, and the cells that it names.
//!
//! A fate that has to be kept (`protocol::safe_point`) leaves an entry of another kind instead, behind all others, which waits
//! for resolved. It names what to remove, as the others do.
//!
//! It works in pieces, one at a time, each a request like others: it waits for its rows' latches, is decided by
//! `protocol::actions::gc`, and goes to the disk with a group. So it never comes between the steps of another request, and may
//! be killed at any point. Readers take no latches; a read ends before a second group of its time is durable, as the rule
//! requires.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry as Slot};

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

/// The bytes of a version's key behind its cell's.
const VERSION_BYTES: usize = 8;
/// The most bytes of cells' keys in one piece, about: each is written some three times when it is collected.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// The most records of one cell that one piece removes, about.
const RECORDS_OF_ONE_CELL: usize = 64;

/// Entries of the index to finish, oldest first: their keys, and the entries. All are of fates, or none.
pub(crate) type Piece = Vec<(Bytes, Entry)>;

/// The garbage of a cell that an entry of this time names.
#[derive(Clone, Copy)]
struct IndexedGarbage {
    of_fates: bool,
    ts: Timestamp,
    hidden: Hidden,
}

/// The front of the index. A search from the very beginning would pass the marks that engines keep of removed entries.
#[derive(Debug)]
pub(crate) struct Front {
    of_fates: bool,
    /// No entry lies below this key.
    from: Vec<u8>,
    /// The same once the piece under way is durable.
    next: Vec<u8>,
    /// No entry was left below this when the index was read last.
    pub(crate) collected_to: Timestamp,
}

impl Front {
    pub(crate) fn new(of_fates: bool) -> Self {
        let from = Entry::first_key(of_fates, Timestamp::ZERO).to_vec();
        Self {
            of_fates,
            next: from.clone(),
            from,
            collected_to: Timestamp::ZERO,
        }
    }

    /// Notes that the last piece is durable and finished.
    pub(crate) fn piece_done(&mut self) {
        self.from = std::mem::take(&mut self.next);
    }

    /// Notes a new entry: old transactions leave theirs below younger ones'.
    pub(crate) fn entry_made(&mut self, ts: Timestamp) {
        let key = Entry::first_key(self.of_fates, ts);
        for front in [&mut self.from, &mut self.next] {
            if front[..] > key[..] {
                *front = key.to_vec();
            }
        }
    }

    /// The time of the first entry.
    pub(crate) fn oldest(&self, engine: &dyn Engine) -> Result<Option<Timestamp>, Error> {
        let end = Entry::first_key(true, Timestamp::ZERO);
        let end = if self.of_fates { &[][..] } else { &end };
        let first = engine.first(Column::Garbage, &self.from, end)?;
        let entry = first.map(|(key, value)| Ok(Entry::decode(&key, value)?.ts));
        entry.transpose()
    }
}

/// The oldest entries below the point for which these wait: this many items, or a few more, and no more than
/// [`PIECE_BYTES_MAX`] and one entry.
pub(crate) fn piece(
    engine: &dyn Engine,
    front: &mut Front,
    point: Timestamp,
    most: usize,
) -> Result<Piece, Error> {
    let end = Entry::first_key(front.of_fates, point);
    let mut piece = Piece::new();
    if point == Timestamp::ZERO {
        return Ok(piece);
    }
    front.next.clone_from(&front.from);
    let (mut items, mut bytes) = (0, 0);
    for pair in engine.scan(Column::Garbage, &front.from, &end, Direction::Forward)? {
        let (key, value) = pair?;
        let entry = Entry::decode(&key, value)?;
        items += entry.items.len();
        bytes += entry
            .items
            .iter()
            .map(|it| it.cell_key.len())
            .sum::<usize>();
        front.next = key.to_vec();
        piece.push((key, entry));
        if items >= most || bytes >= PIECE_BYTES_MAX {
            break;
        }
    }
    Ok(piece)
}

/// The number of items in a piece.
pub(crate) fn items(piece: &Piece) -> usize {
    piece.iter().map(|(_, entry)| entry.items.len()).sum()
}

/// The rows of a piece's cells, to be latched. A key that can't be read is noticed when the piece is decided.
pub(crate) fn rows(piece: &Piece) -> impl Iterator<Item = RowHash> {
    let items = piece.iter().flat_map(|(_, entry)| &entry.items);
    let cells = items.filter_map(|item| key::decode_cell(&item.cell_key).ok());
    cells.map(|cell| latches::row(cell.table.0, &cell.row))
}

/// Decides what to remove of the piece, which holds its latches.
pub(crate) fn decide(state: &State, piece: Piece) -> Result<Decision, Error> {
    let mut decision = Decision::new();
    let mut cells: BTreeMap<&Bytes, Vec<IndexedGarbage>> = BTreeMap::new();
    for (_, entry) in &piece {
        for item in &entry.items {
            cells
                .entry(&item.cell_key)
                .or_default()
                .push(IndexedGarbage {
                    of_fates: entry.of_fates,
                    ts: entry.ts,
                    hidden: item.hidden,
                });
        }
    }
    // The cells whose entries stay.
    let mut stays = BTreeSet::new();
    for (cell_key, named) in cells {
        let tablet = state.tablets.holding(cell_key)?;
        // The tablet arrives or leaves: the entry is read again after that.
        let is_under_way = match tablet {
            0 => state.arriving.has(cell_key),
            id => state.tablets.is_closed(id),
        };
        if is_under_way {
            let lowest = named.iter().map(|named| named.ts).min();
            decision.garbage.postponed = decision.garbage.postponed.into_iter().chain(lowest).min();
            stays.insert(cell_key.clone());
            continue;
        }
        // The rows of other tablets are removed without the index.
        if tablet != 0 {
            let collected = collect(state, cell_key, &named)?;
            let change = decision.garbage.counts.entry(tablet).or_default();
            let removed = collected.effects.iter();
            let removed = removed.filter(|effect| !matches!(effect, Effect::PutWrite(..)));
            let key_bytes = removed.count() * (cell_key.len() + VERSION_BYTES);
            change.records += collected.records as u64;
            change.bytes += (collected.bytes + key_bytes) as u64;
            for commit_ts in &collected.fates {
                keep_fate(
                    &mut decision,
                    *commit_ts,
                    cell_key,
                    Hidden::fate(*commit_ts),
                );
            }
            decision.collect(cell_key, &collected.effects);
            if !collected.done {
                decision.garbage.unfinished = true;
                stays.insert(cell_key.clone());
                continue;
            }
            for named in named.iter().filter(|named| !named.of_fates) {
                let is_kept = collected.fates.contains(&named.ts);
                if named.hidden == Hidden::ReadCell
                    && !is_kept
                    && is_fate(state, cell_key, named.ts)?
                {
                    keep_fate(&mut decision, named.ts, cell_key, Hidden::ReadCell);
                }
            }
        }
        decision.garbage.counts.entry(tablet).or_default().done += named.len() as u64;
    }
    leave(state, &mut decision, piece, &stays)?;
    Ok(decision)
}

/// Removes the piece's entries, without the items of these cells. Several entries may name one cell, as fates of one
/// transaction do: the rest of an entry may have the key of another one, within the piece or not.
fn leave(
    state: &State,
    decision: &mut Decision,
    piece: Piece,
    stays: &BTreeSet<Bytes>,
) -> Result<(), Error> {
    let mut keys = BTreeSet::new();
    let mut left: BTreeMap<Bytes, Entry> = BTreeMap::new();
    for (key, mut entry) in piece {
        entry.items.retain(|item| stays.contains(&item.cell_key));
        if !entry.items.is_empty() {
            match left.entry(entry.key().into()) {
                Slot::Occupied(mut other) => join(state, decision, other.get_mut(), entry)?,
                Slot::Vacant(slot) => {
                    slot.insert(entry);
                }
            }
        }
        decision.batch.delete(Column::Garbage, key.clone());
        keys.insert(key);
    }
    for (key, mut entry) in left {
        if !keys.contains(&key) {
            join_stored(state, decision, &mut entry)?;
        }
        decision.batch.put(Column::Garbage, key, entry.value());
    }
    Ok(())
}

/// Whether the record at this time stays, because it is its own fate: a delete, or a lock's.
fn is_fate(state: &State, cell_key: &[u8], ts: Timestamp) -> Result<bool, Error> {
    if !state.points.now().needs_fate(ts) {
        return Ok(false);
    }
    let key = key::version(cell_key.to_vec(), ts);
    let stored = state.engine.get(Column::Write, &key)?;
    let record = stored.map(|stored| version_record((key.into(), stored)));
    Ok(record
        .transpose()?
        .is_some_and(|(_, write)| write.kind != WriteKind::Rollback))
}

/// Leaves an entry of a fate that stays until resolved has passed it.
fn keep_fate(decision: &mut Decision, ts: Timestamp, cell_key: &Bytes, hidden: Hidden) {
    decision
        .garbage
        .fates
        .insert((ts, cell_key.clone()), hidden);
}

/// The collected garbage of a cell: what its entries name, or, if one names nothing, what its records show.
fn collect(state: &State, cell_key: &[u8], named: &[IndexedGarbage]) -> Result<Collected, Error> {
    let points = state.points.now();
    let mut all = Collected {
        done: true,
        ..Collected::default()
    };
    for named in named {
        match named.hidden {
            Hidden::ReadCell => return collect_cell(state, cell_key),
            Hidden::Version { commit_ts, .. } if points.needs_fate(commit_ts) => {
                let key = key::version(cell_key.to_vec(), commit_ts);
                if let Some(stored) = state.engine.get(Column::Write, &key)? {
                    let (_, write) = version_record((key.into(), stored))?;
                    if matches!(write.kind, WriteKind::Put | WriteKind::Delete) {
                        all.replace(commit_ts, write);
                    }
                }
            }
            Hidden::Version { .. } => {
                if let Some(version) = named.hidden.collected() {
                    all.extend(version);
                }
            }
        }
    }
    Ok(all)
}

fn collect_cell(state: &State, cell_key: &[u8]) -> Result<Collected, Error> {
    let mut points = state.points.now();
    if mutants::on(Mutant::CollectedAtTheBarrier) {
        points.safe_point = points.barrier;
    }
    let newest = key::version(cell_key.to_vec(), points.safe_point);
    let behind = key::behind_cell(cell_key.to_vec());
    let records = state
        .engine
        .scan(Column::Write, &newest, &behind, Direction::Forward)?
        .map(|pair| version_record(pair?));
    gc(points, records, RECORDS_OF_ONE_CELL)
}

/// Notes the garbage that effects on a cell make. `hash` is the key's.
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
            _ => Some(Hidden::ReadCell),
        };
        if let Some(hidden) = hidden {
            let cell_key = Bytes::copy_from_slice(cell_key);
            decision
                .garbage
                .hides
                .push((*ts, Item { cell_key, hidden }));
        }
    }
}

/// Adds entries to the index for noted garbage and fates.
pub(crate) fn index(state: &State, decision: &mut Decision) -> Result<(), Error> {
    for (_, item) in &decision.garbage.hides {
        let tablet = state.tablets.holding(&item.cell_key)?;
        decision.garbage.counts.entry(tablet).or_default().made += 1;
    }
    for mut entry in Entry::of(false, std::mem::take(&mut decision.garbage.hides)) {
        if decision.garbage.arrives {
            // The same records may come twice, or have been here before, beside others of their transactions.
            join_stored(state, decision, &mut entry)?;
        }
        decision
            .batch
            .put(Column::Garbage, entry.key(), entry.value());
        let lowest = decision.garbage.lowest_entry.unwrap_or(entry.ts);
        decision.garbage.lowest_entry = Some(lowest.min(entry.ts));
    }
    let fates = std::mem::take(&mut decision.garbage.fates).into_iter();
    let fates = fates.map(|((ts, cell_key), hidden)| (ts, Item { cell_key, hidden }));
    for mut entry in Entry::of(true, fates.collect()) {
        for item in &entry.items {
            let tablet = state.tablets.holding(&item.cell_key)?;
            decision.garbage.counts.entry(tablet).or_default().made += 1;
        }
        // Fates of one transaction come in any number of pieces.
        join_stored(state, decision, &mut entry)?;
        let key = entry.key();
        let lowest = decision.garbage.lowest_fate.unwrap_or(entry.ts);
        decision.garbage.lowest_fate = Some(lowest.min(entry.ts));
        decision.batch.put(Column::Garbage, key, entry.value());
    }
    Ok(())
}

/// Joins the entry that is stored under the same key.
fn join_stored(state: &State, decision: &mut Decision, entry: &mut Entry) -> Result<(), Error> {
    let key = entry.key();
    match state.engine.get(Column::Garbage, &key)? {
        Some(stored) => join(state, decision, entry, Entry::decode(&key, stored)?),
        None => Ok(()),
    }
}

/// Joins another entry of the same time. A cell that both name is finished once.
fn join(
    state: &State,
    decision: &mut Decision,
    entry: &mut Entry,
    other: Entry,
) -> Result<(), Error> {
    for cell_key in entry.join(other) {
        let tablet = state.tablets.holding(&cell_key)?;
        decision.garbage.counts.entry(tablet).or_default().done += 1;
    }
    Ok(())
}

/// The garbage that a put at this time hides; `None`: the cell has no write record yet.
fn hidden(state: &State, cell_key: &[u8], hash: u64, ts: Timestamp) -> Option<Hidden> {
    if state.records.highest(hash) == Timestamp::ZERO {
        return None;
    }
    // If the put replaces a record, or comes below one, the cell has to be read.
    let of = |commit_ts: Timestamp, write: &Write| match write.kind {
        WriteKind::Put | WriteKind::Delete if commit_ts < ts => Hidden::of(commit_ts, write),
        _ => Hidden::ReadCell,
    };
    if let Some(newest) = state.cache.borrow().newest(hash, cell_key) {
        return Some(of(newest.commit_ts, &newest.write()));
    }
    let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
    let behind = key::behind_cell(cell_key.to_vec());
    // An extra entry does no harm, and other reads notice an engine that can't be read.
    match state.engine.first(Column::Write, &newest, &behind) {
        Ok(found) => found.map(|pair| {
            version_record(pair)
                .map_or(Hidden::ReadCell, |(commit_ts, write)| of(commit_ts, &write))
        }),
        Err(_) => Some(Hidden::ReadCell),
    }
}

#[cfg(test)]
mod tests {
    use percolator_engine::{Batch, EngineKind, Options};

    use super::*;

    #[test]
    fn a_piece_is_bounded_whatever_its_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(EngineKind::Memory, "tablet-0");
        let engine = percolator_engine::open(folder.path(), &options).expect("an engine");
        let item = |number: u64| Item {
            cell_key: format!("{number:06}{}", "k".repeat(4_000)).into(),
            hidden: Hidden::ReadCell,
        };
        let items = (0..2_000).map(|it| (Timestamp::from_u64(it + 1), item(it)));
        let mut batch = Batch::default();
        for entry in Entry::of(false, items.collect()) {
            batch.put(Column::Garbage, entry.key(), entry.value());
        }
        engine.commit(&[batch]).expect("written");
        let mut front = Front::new(false);
        let point = Timestamp::from_u64(1_000_000);
        let found = piece(&*engine, &mut front, point, 100_000).expect("a piece");
        let count = super::items(&found);
        assert!((200..300).contains(&count), "{count}");
    }
}
