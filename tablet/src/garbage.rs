//! Collection: its cost follows the garbage, not the data. Whatever hides a version, or will be of no use some
//! day itself, leaves an entry in an index ordered by time. Collection reads that index up to the safe point,
//! and looks at the cells that it names.
//!
//! What has a fate to be kept (`protocol::safe_point`) leaves an entry of another kind instead, behind all others, which
//! waits for resolved. It says what to remove, as the others do.
//!
//! It works in pieces, one at a time, each a request like others: it waits for its rows' latches, decides by
//! `protocol::actions::gc`, and goes to the disk with a group. So nothing that it does can come between the
//! steps of another request, and it may be killed at any point. Readers take no latches; a request that reads
//! ends before a second group of its time is durable, which is what the rule asks for.

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

/// What a version's key has behind its cell's.
const VERSION_BYTES: usize = 8;
/// Keys of cells in one piece, about: each is written some three times when it is collected.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// Records of one cell that one piece removes, about.
const RECORDS_OF_ONE_CELL: usize = 64;

/// Entries to be done with, oldest first: their keys, and what they say. All are of fates, or none.
pub(crate) type Piece = Vec<(Bytes, Entry)>;

/// What an entry of this time says of a cell.
#[derive(Clone, Copy)]
struct IndexedGarbage {
    of_fates: bool,
    ts: Timestamp,
    hidden: Hidden,
}

/// Where the index begins. What was removed from its front is long in the way of anyone who looks from its very
/// beginning: engines keep marks of what they have removed.
#[derive(Debug)]
pub(crate) struct Front {
    of_fates: bool,
    /// No entry lies below this key.
    from: Vec<u8>,
    /// What that will be when the piece under way is durable.
    next: Vec<u8>,
    /// Nothing is left below this, as far as the last look goes.
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

    /// The piece that was taken last is durable, and nothing is left of it.
    pub(crate) fn piece_done(&mut self) {
        self.from = std::mem::take(&mut self.next);
    }

    /// An entry was made: old transactions leave theirs below younger ones'.
    pub(crate) fn entry_made(&mut self, ts: Timestamp) {
        let key = Entry::first_key(self.of_fates, ts);
        for front in [&mut self.from, &mut self.next] {
            if front[..] > key[..] {
                *front = key.to_vec();
            }
        }
    }

    /// The first entry.
    pub(crate) fn oldest(&self, engine: &dyn Engine) -> Result<Option<Timestamp>, Error> {
        let end = Entry::first_key(true, Timestamp::ZERO);
        let end = if self.of_fates { &[][..] } else { &end };
        let first = engine.first(Column::Garbage, &self.from, end)?;
        let entry = first.map(|(key, value)| Ok(Entry::decode(&key, value)?.ts));
        entry.transpose()
    }
}

/// The oldest entries below the point that these wait for: as many as have this many items, or a few more, and no more than
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
    // Of these cells the entries stay; of the others they don't.
    let mut stays = BTreeSet::new();
    for (cell_key, said) in cells {
        let tablet = state.tablets.holding(cell_key)?;
        // On its way here, or away: it is looked at again when that is settled.
        let is_under_way = match tablet {
            0 => state.arriving.has(cell_key),
            id => state.tablets.is_closed(id),
        };
        if is_under_way {
            let lowest = said.iter().map(|said| said.ts).min();
            decision.garbage.postponed = decision.garbage.postponed.into_iter().chain(lowest).min();
            stays.insert(cell_key.clone());
            continue;
        }
        // The rows of other tablets go as a whole.
        if tablet != 0 {
            let collected = collect(state, cell_key, &said)?;
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
            for said in said.iter().filter(|said| !said.of_fates) {
                let is_kept = collected.fates.contains(&said.ts);
                if said.hidden == Hidden::Look && !is_kept && is_fate(state, cell_key, said.ts)? {
                    keep_fate(&mut decision, said.ts, cell_key, Hidden::Look);
                }
            }
        }
        decision.garbage.counts.entry(tablet).or_default().done += said.len() as u64;
    }
    leave(state, &mut decision, piece, &stays)?;
    Ok(decision)
}

/// Removes the piece's entries, but for what they say of these cells. Several may name one cell, as fates of one transaction
/// do: then what is left of them may have the same key, or that of an entry which is not in the piece.
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

/// Whether the record at this time stays as it is, because it is its own fate: a delete, or a lock's.
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

/// This stays until resolved has passed it.
fn keep_fate(decision: &mut Decision, ts: Timestamp, cell_key: &Bytes, hidden: Hidden) {
    decision
        .garbage
        .fates
        .insert((ts, cell_key.clone()), hidden);
}

/// What goes of a cell: what its entries say, or, where one doesn't, what its records do.
fn collect(state: &State, cell_key: &[u8], said: &[IndexedGarbage]) -> Result<Collected, Error> {
    let points = state.points.now();
    let mut all = Collected {
        done: true,
        ..Collected::default()
    };
    for said in said {
        match said.hidden {
            Hidden::Look => return look(state, cell_key),
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
                if let Some(version) = said.hidden.collected() {
                    all.extend(version);
                }
            }
        }
    }
    Ok(all)
}

fn look(state: &State, cell_key: &[u8]) -> Result<Collected, Error> {
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
            decision
                .garbage
                .hides
                .push((*ts, Item { cell_key, hidden }));
        }
    }
}

/// Leaves entries for what was noted, and for fates.
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
        // Those of one transaction come in any number of pieces.
        join_stored(state, decision, &mut entry)?;
        let key = entry.key();
        let lowest = decision.garbage.lowest_fate.unwrap_or(entry.ts);
        decision.garbage.lowest_fate = Some(lowest.min(entry.ts));
        decision.batch.put(Column::Garbage, key, entry.value());
    }
    Ok(())
}

/// Adds what is stored under the entry's key.
fn join_stored(state: &State, decision: &mut Decision, entry: &mut Entry) -> Result<(), Error> {
    let key = entry.key();
    match state.engine.get(Column::Garbage, &key)? {
        Some(stored) => join(state, decision, entry, Entry::decode(&key, stored)?),
        None => Ok(()),
    }
}

/// Adds what another entry of this time says. What both say is done with once.
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
            hidden: Hidden::Look,
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
