//! Handing a tablet over from its owner to another server: what is decided about it, and written down.
//!
//! The server that gets it pulls a copy, chunk by chunk, and makes each durable, while the owner goes on to serve
//! ([`crate::leaving`], [`crate::arriving`]). With the last chunk the owner decides nothing about the tablet any more. When that
//! chunk is durable too, the owner is told to write down that the other one has the tablet, at the next epoch: that is the
//! decision, and nothing else is. Before it either side may drop the attempt, and the owner serves on; after it only the
//! other one may serve, once it has heard of it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{
    DecodeError, Lock, Notification, Tablet, Timestamp, Write, WriteKind, key,
};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::arriving::{self, Step};
use crate::decision::{Decision, TabletChange};
use crate::index::{Hidden, Item};
use crate::latches::{self, RowHash};
use crate::leaving::Range;
use crate::state::State;
use crate::store::{self, LockChange, version_record};
use crate::work::invalid;
use crate::{Error, Refusal, observed, tablets};

/// Something to be decided about tablets that are handed over.
#[derive(Debug)]
pub(crate) enum Move {
    /// One that this server gets: this attempt of it.
    Arrival {
        id: u64,
        attempt: u64,
        step: Arc<Step>,
    },
    /// To give this server's tablet away.
    Give(v1::TakeTabletRequest),
    /// The rows of these, which others have and report, may go.
    Settle(Vec<u64>),
}

impl Move {
    pub(crate) fn latches(&self) -> Vec<RowHash> {
        let ids = match self {
            Self::Arrival { id, .. } => vec![*id],
            Self::Give(take) => take.tablet.iter().map(|tablet| tablet.id).collect(),
            Self::Settle(ids) => ids.clone(),
        };
        ids.into_iter().map(latches::tablet).collect()
    }

    pub(crate) fn decide(self, state: &State) -> Result<Decision, Refusal> {
        match self {
            Self::Arrival { id, attempt, step } => arrive(state, id, attempt, &step),
            Self::Give(take) => Ok(give(state, take)),
            Self::Settle(ids) => Ok(settle(state, ids)),
        }
    }
}

/// To get a tablet from its owner.
pub(crate) fn import(
    state: &State,
    tablet: Tablet,
    from: v1::MovedTo,
    address: String,
) -> Result<Decision, Refusal> {
    let id = tablet.id;
    if state.draining {
        return Err(invalid(format!(
            "{} is drained, and gets no tablets",
            state.me.server
        )));
    }
    let mut decision = Decision::new();
    if let Some(known) = state.arriving.get(id) {
        if known.tablet.epoch != tablet.epoch {
            return Err(invalid(format!(
                "tablet {id} is being got at epoch {}, and not at {}",
                known.tablet.epoch, tablet.epoch
            )));
        }
        return Ok(decision);
    }
    let here = state.tablets.get(id);
    if here.is_some_and(|here| here.epoch > tablet.epoch) {
        // It has come since this was asked for.
        return Ok(decision);
    }
    if state.tablets.is_deleted(tablet.table.0) {
        let table = &tablet.table_name;
        return Err(invalid(format!("table {table} was deleted")));
    }
    if tablet.is_frozen() {
        let table = &tablet.table_name;
        return Err(invalid(format!("table {table} is being deleted")));
    }
    if let Some(other) = state.tablets.overlapping(tablet.table.0, &tablet.rows) {
        let other = other.id;
        return Err(invalid(format!(
            "this server has rows of tablet {id} in its tablet {other}"
        )));
    }
    if let Some(other) = state.arriving.overlapping(&tablet) {
        return Err(invalid(format!(
            "this server is getting tablet {}, which has the same rows",
            other.id
        )));
    }
    if let Some(other) = state.tablets.left_over(&tablet)
        && !mutants::on(Mutant::MovedOntoLeftovers)
    {
        return Err(invalid(format!(
            "rows of tablet {}, which was here before, are still to be removed: try again soon",
            other.id
        )));
    }
    let record = v1::ArrivingTablet {
        tablet: Some(tablet.into()),
        from: Some(from),
        attempt: state.arriving.next_attempt(),
        incarnation: state.me.incarnation,
        complete: false,
        by_address: address,
        copy: 0,
        observed: Vec::new(),
    };
    arriving::put_record(&mut decision.batch, id, &record);
    decision.tablet_change = Some(TabletChange::Arrive(Box::new(record)));
    Ok(decision)
}

fn arrive(state: &State, id: u64, attempt: u64, step: &Arc<Step>) -> Result<Decision, Refusal> {
    let mut decision = Decision::new();
    let known = state.arriving.get(id);
    let Some(arrival) = known.filter(|known| known.record.attempt == attempt) else {
        return Ok(decision);
    };
    match &**step {
        Step::Chunk {
            entries,
            changes,
            last,
            observed,
        } => {
            store(state, &mut decision, entries, *changes)?;
            decision.garbage.arrives = true;
            if let Some(points) = last {
                let record = v1::ArrivingTablet {
                    complete: true,
                    observed: observed.clone(),
                    ..arrival.record.clone()
                };
                arriving::put_record(&mut decision.batch, id, &record);
                raise(state, &mut decision, *points);
            }
        }
        Step::Serve { barrier } => {
            let served = moved(&arrival.tablet);
            decision.batch = tablets::record(&served);
            tablets::note_id(&mut decision.batch, &state.tablets, id);
            tablets::remove_left(&mut decision.batch, id);
            let (table, columns) = (served.table.0, arrival.record.observed.clone());
            observed::put_record(&mut decision.batch, id, table, columns);
            arriving::remove_record(&mut decision.batch, id);
            // The last chunk is older than what its owner has said since of its locks.
            raise(
                state,
                &mut decision,
                Points {
                    barrier: *barrier,
                    ..Points::default()
                },
            );
            // Nobody else can serve it.
            decision.batch.spend_reserve();
        }
        Step::GiveUp(_) => {
            tablets::add_dropped(&mut decision.batch, &arrival.tablet);
            arriving::remove_record(&mut decision.batch, id);
            decision.batch.spend_reserve();
        }
    }
    decision.tablet_change = Some(TabletChange::Arrived {
        id,
        step: step.clone(),
        entries: decision.garbage.hides.len() as u64,
    });
    Ok(decision)
}

/// The decision makes these points durable, if they are news.
fn raise(state: &State, decision: &mut Decision, points: Points) {
    let news = state.points.news(points);
    if let Some(raised) = news.filter(|_| !mutants::on(Mutant::MovedBarrierForgotten)) {
        decision.raise(raised);
    }
}

/// The tablet as it is at the server that has got it.
fn moved(tablet: &Tablet) -> Tablet {
    Tablet {
        epoch: tablet.epoch + 1,
        ..tablet.clone()
    }
}

/// What a chunk changes here: all that other requests need to know of keys is learned again from them.
fn store(
    state: &State,
    decision: &mut Decision,
    entries: &[v1::MovedEntry],
    changes: usize,
) -> Result<(), Refusal> {
    // Of locks that are in the chunk twice.
    let mut locked: HashMap<&Bytes, bool> = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let column = column_of(entry)?;
        match column {
            Column::Lock => {
                let was_locked = match locked.get(&entry.key) {
                    Some(locked) => *locked,
                    None => store::stored_lock(&*state.engine, &entry.key)?.is_some(),
                };
                let is_locked = entry.value.is_some();
                locked.insert(&entry.key, is_locked);
                let hash = latches::hash(&[&entry.key]);
                match (was_locked, is_locked) {
                    _ if mutants::on(Mutant::MovedLocksNotCounted) => {}
                    (false, true) => decision.memory.lock_changes.push(LockChange::Added(hash)),
                    (true, false) => decision.memory.lock_changes.push(LockChange::Removed(hash)),
                    (true, true) | (false, false) => {}
                }
            }
            Column::Write => {
                let next = entries.get(at + 1).filter(|_| at >= changes);
                learn(state, decision, entry, next)?;
            }
            Column::Notify if mutants::on(Mutant::MovedNotificationsForgotten) => continue,
            _ => {}
        }
        match &entry.value {
            Some(value) => decision.batch.put(column, entry.key.clone(), value.clone()),
            None => decision.batch.delete(column, entry.key.clone()),
        }
    }
    Ok(())
}

/// A write record that has come, or has gone: marks, the index of garbage, and what memory knows of the cell. `next`: what
/// was copied behind it.
fn learn(
    state: &State,
    decision: &mut Decision,
    entry: &v1::MovedEntry,
    next: Option<&v1::MovedEntry>,
) -> Result<(), Refusal> {
    let cell_key = cell_of(&entry.key).map_err(Error::from)?;
    if !mutants::on(Mutant::MovedCacheKept) {
        decision
            .memory
            .unlearn
            .push(Bytes::copy_from_slice(cell_key));
    }
    let Some(value) = &entry.value else {
        return Ok(());
    };
    let (commit_ts, write) = version_record((entry.key.clone(), value.clone()))?;
    if !mutants::on(Mutant::MovedRecordsNotMarked) {
        let hash = latches::hash(&[cell_key]);
        decision.memory.records.push((hash, commit_ts));
    }
    // Copied records of a cell follow each other, newest first. An entry too many does no harm.
    let is_alone = |next: &v1::MovedEntry| {
        next.column() == v1::MovedColumn::Write
            && cell_of(&next.key).is_ok_and(|next| next > cell_key)
    };
    let hides_nothing = write.kind == WriteKind::Put && next.is_some_and(is_alone);
    if state.limits.index_garbage && !hides_nothing && !mutants::on(Mutant::MovedGarbageForgotten) {
        let item = Item {
            cell_key: Bytes::copy_from_slice(cell_key),
            hidden: Hidden::Look,
        };
        decision.garbage.hides.push((commit_ts, item));
    }
    Ok(())
}

/// The cell of a version's key.
pub(crate) fn cell_of(version_key: &[u8]) -> Result<&[u8], DecodeError> {
    Ok(key::split_version(version_key)?.0)
}

fn column_of(entry: &v1::MovedEntry) -> Result<Column, Refusal> {
    match entry.column() {
        v1::MovedColumn::Lock => Ok(Column::Lock),
        v1::MovedColumn::Write => Ok(Column::Write),
        v1::MovedColumn::Data => Ok(Column::Data),
        v1::MovedColumn::Notify => Ok(Column::Notify),
        v1::MovedColumn::Unspecified => Err(invalid("a chunk has a column that is not known")),
    }
}

/// To hand a tablet over.
fn give(state: &State, take: v1::TakeTabletRequest) -> Decision {
    let id = take.tablet.as_ref().map_or(0, |tablet| tablet.id);
    let is_this = |left: &&v1::LeftTablet| {
        let server = |to: &Option<v1::MovedTo>| to.as_ref().and_then(|to| to.server.clone());
        left.attempt == take.attempt && server(&left.to) == server(&take.by)
    };
    let answer = |taken: v1::Taken| {
        Decision::answered(Body::TakeTablet(v1::TakeTabletResponse {
            taken: taken.into(),
            barrier: state.points.now().barrier.as_u64(),
        }))
    };
    if state.tablets.departed(id).filter(is_this).is_some() {
        return answer(v1::Taken::Moved);
    }
    // Without a lease another start of this server may have the tablet, by a copy of the folder, and have committed to it.
    let known = state.tablets.get(id);
    if let Some(tablet) = known.filter(|_| state.check_leased().is_ok())
        && state.leaving.may_give(id, &take)
    {
        let record = v1::LeftTablet {
            tablet: Some(moved(tablet).into()),
            to: take.by,
            attempt: take.attempt,
            settled: false,
        };
        let mut decision = answer(v1::Taken::Moved);
        if mutants::on(Mutant::MovedAndKept) {
            return decision;
        }
        tablets::remove_record(&mut decision.batch, id);
        observed::remove_record(&mut decision.batch, &state.observed, id);
        tablets::put_left(&mut decision.batch, id, &record);
        decision.batch.spend_reserve();
        decision.tablet_change = Some(TabletChange::Leave(Box::new(record)));
        return decision;
    }
    // It may have been merged with its neighbour. While it is on its way to the disk that it leaves, nobody knows.
    let owner = state.tablets.owning(take.table_id, &take.start_row);
    let stays = owner.is_some_and(|owner| !state.leaving.is_given(owner.id));
    // To another one, by another attempt. One that has it never asks again after others report that.
    let epoch = take.tablet.map_or(0, |tablet| tablet.epoch);
    let has_left = state.tablets.has_left(id, epoch + 1);
    let is_over = stays || has_left || state.tablets.is_deleted(take.table_id);
    // The copy goes with that: a folder of before the hand-over must not say so.
    if is_over && state.check_leased().is_ok() {
        return answer(v1::Taken::Stays);
    }
    answer(v1::Taken::Unspecified)
}

fn settle(state: &State, ids: Vec<u64>) -> Decision {
    let mut decision = Decision::new();
    let mut settled = Vec::new();
    for id in ids {
        let Some(left) = state.tablets.departed(id) else {
            continue;
        };
        let tablet = left.tablet.clone().unwrap_or_default();
        let Ok(tablet) = Tablet::try_from(tablet) else {
            continue;
        };
        let record = v1::LeftTablet {
            to: None,
            settled: true,
            ..left.clone()
        };
        tablets::put_left(&mut decision.batch, id, &record);
        tablets::add_dropped(&mut decision.batch, &tablet);
        settled.push(tablet);
    }
    if !settled.is_empty() {
        decision.batch.spend_reserve();
        decision.tablet_change = Some(TabletChange::Settle(settled));
    }
    decision
}

/// The last words of an owner.
pub(crate) fn points_of(chunk: &v1::PullTabletResponse) -> Points {
    Points {
        barrier: Timestamp::from_u64(chunk.barrier),
        safe_point: Timestamp::from_u64(chunk.safe_point),
        resolved: Timestamp::from_u64(chunk.all_resolved_ts),
    }
}

/// Whether all of a chunk is of the tablet, and can be read.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_chunk(entries: &[v1::MovedEntry], rows: &Range) -> Result<(), String> {
    let readable = |entry: &v1::MovedEntry| {
        let value = entry.value.clone();
        match entry.column() {
            v1::MovedColumn::Lock => {
                key::decode_cell(&entry.key)?;
                value.map(Lock::decode).transpose()?;
            }
            v1::MovedColumn::Write => {
                let (cell_key, ts) = key::split_version(&entry.key)?;
                key::decode_cell(cell_key)?;
                value.map(|value| Write::decode(ts, value)).transpose()?;
            }
            v1::MovedColumn::Notify => {
                key::decode_cell(&entry.key)?;
                value.map(Notification::decode).transpose()?;
            }
            v1::MovedColumn::Data | v1::MovedColumn::Unspecified => {
                key::split_version(&entry.key)?;
            }
        }
        Ok::<_, DecodeError>(())
    };
    for entry in entries {
        if entry.column() == v1::MovedColumn::Unspecified || !rows.contains(&entry.key) {
            return Err("its owner has sent keys that are not the tablet's".into());
        }
        readable(entry)
            .map_err(|error| format!("its owner has sent what can't be read: {error}"))?;
    }
    Ok(())
}
