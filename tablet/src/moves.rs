//! Handing a tablet over from its owner to another server: the decisions, and their batches.
//!
//! The receiver pulls a copy, chunk by chunk, and makes each durable, while the owner continues to serve
//! ([`crate::leaving`], [`crate::arriving`]). From the last chunk on the owner decides no request about the tablet. When that
//! chunk is durable too, the receiver requests that the owner write down the hand-over, at the next epoch: that record alone is
//! the decision. Before it either side may drop the attempt, and the owner serves on. After it only the receiver may serve, once
//! it has the owner's response.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{DecodeError, Lock, Notification, Tablet, Write, WriteKind, key};

use crate::arriving::{self, ArrivalRecord, Step};
use crate::decision::{Decision, TabletChange};
use crate::index::{Hidden, Item};
use crate::latches::{self, RowHash};
use crate::leaving::KeyRange;
use crate::peers::{DepartedTablet, MovedEntry, ServerLocation, TakeOutcome, TakeRequest};
use crate::state::State;
use crate::store::{self, LockChange, version_record};
use crate::work::invalid;
use crate::{Error, Refusal, observed, tablets};

/// A decision about tablets that are handed over.
#[derive(Debug)]
pub(crate) enum Move {
    /// Carries out the next step of an attempt to get a tablet.
    Arrival {
        id: u64,
        attempt: u64,
        step: Arc<Step>,
    },
    /// Gives this server's tablet away.
    Give(TakeRequest),
    /// Lets the rows of these tablets go, which other servers report.
    Settle(Vec<u64>),
}

impl Move {
    pub(crate) fn latches(&self) -> Vec<RowHash> {
        let ids = match self {
            Self::Arrival { id, .. } => vec![*id],
            Self::Give(take) => vec![take.id],
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

/// Decides to get a tablet from its owner.
pub(crate) fn import(
    state: &State,
    tablet: Tablet,
    from: ServerLocation,
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
        let known = &known.record.tablet;
        if known.epoch != tablet.epoch {
            return Err(invalid(format!(
                "tablet {id} is being got at epoch {}, and not at {}",
                known.epoch, tablet.epoch
            )));
        }
        return Ok(decision);
    }
    let here = state.tablets.get(id);
    if here.is_some_and(|here| here.epoch > tablet.epoch) {
        // The tablet has arrived since the master sent the command.
        return Ok(decision);
    }
    check_import(state, &tablet)?;
    let record = ArrivalRecord {
        tablet,
        from,
        attempt: state.arriving.next_attempt(),
        incarnation: state.me.incarnation,
        is_complete: false,
        by_address: address,
        copy: 0,
        observed: Vec::new(),
    };
    arriving::put_record(&mut decision.batch, record.clone());
    decision.tablet_change = Some(TabletChange::Arrive(Box::new(record)));
    Ok(decision)
}

/// Checks that no other tablet and no deleted table is in the way of a tablet that isn't here.
fn check_import(state: &State, tablet: &Tablet) -> Result<(), Refusal> {
    let table = &tablet.table_name;
    if state.tablets.is_deleted(tablet.table.0) {
        return Err(invalid(format!("table {table} was deleted")));
    }
    if tablet.is_frozen() {
        return Err(invalid(format!("table {table} is being deleted")));
    }
    if let Some(other) = state.tablets.overlapping(tablet.table.0, &tablet.rows) {
        return Err(invalid(format!(
            "this server has rows of tablet {} in its tablet {}",
            tablet.id, other.id
        )));
    }
    if let Some(other) = state.arriving.overlapping(tablet) {
        return Err(invalid(format!(
            "this server is getting tablet {}, which has the same rows",
            other.id
        )));
    }
    if let Some(other) = state.tablets.left_over(tablet)
        && !mutants::on(Mutant::MovedOntoLeftovers)
    {
        return Err(invalid(format!(
            "rows of tablet {}, which was here before, are still to be removed: try again soon",
            other.id
        )));
    }
    Ok(())
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
                let record = ArrivalRecord {
                    is_complete: true,
                    observed: observed.clone(),
                    ..arrival.record.clone()
                };
                arriving::put_record(&mut decision.batch, record);
                raise(state, &mut decision, *points);
            }
        }
        Step::Serve { barrier } => {
            let served = moved(&arrival.record.tablet);
            decision.batch = tablets::record(&served);
            tablets::note_id(&mut decision.batch, &state.tablets, id);
            tablets::remove_left(&mut decision.batch, id);
            let (table, columns) = (served.table.0, arrival.record.observed.clone());
            observed::put_record(&mut decision.batch, id, table, columns);
            arriving::remove_record(&mut decision.batch, id);
            // The owner may have reported on its locks since the last chunk.
            raise(
                state,
                &mut decision,
                Points {
                    barrier: *barrier,
                    ..Points::default()
                },
            );
            // No other server can serve it.
            decision.batch.spend_reserve();
        }
        Step::GiveUp(_) => {
            tablets::add_dropped(&mut decision.batch, &arrival.record.tablet);
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

/// Makes these points durable with the decision, if they are higher than the server's.
fn raise(state: &State, decision: &mut Decision, points: Points) {
    let news = state.points.news(points);
    if let Some(raised) = news.filter(|_| !mutants::on(Mutant::MovedBarrierForgotten)) {
        decision.raise(raised);
    }
}

/// The tablet as its receiver serves it.
fn moved(tablet: &Tablet) -> Tablet {
    Tablet {
        epoch: tablet.epoch + 1,
        ..tablet.clone()
    }
}

/// Stores a chunk, and rebuilds what memory knows of its keys.
fn store(
    state: &State,
    decision: &mut Decision,
    entries: &[MovedEntry],
    changes: usize,
) -> Result<(), Refusal> {
    // A lock may be in the chunk twice.
    let mut locked: HashMap<&Bytes, bool> = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let column = entry.column;
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

/// Notes a write record that is put or deleted: in the marks, in the index of garbage, and in what memory knows of the cell.
/// `next` is the entry that was copied behind it.
fn learn(
    state: &State,
    decision: &mut Decision,
    entry: &MovedEntry,
    next: Option<&MovedEntry>,
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
    // Copied records of a cell follow each other, newest first. An extra entry of the index does no harm.
    let is_alone = |next: &MovedEntry| {
        next.column == Column::Write && cell_of(&next.key).is_ok_and(|next| next > cell_key)
    };
    let hides_nothing = write.kind == WriteKind::Put && next.is_some_and(is_alone);
    if state.limits.index_garbage && !hides_nothing && !mutants::on(Mutant::MovedGarbageForgotten) {
        let item = Item {
            cell_key: Bytes::copy_from_slice(cell_key),
            hidden: Hidden::ReadCell,
        };
        decision.garbage.hides.push((commit_ts, item));
    }
    Ok(())
}

/// The cell of a version's key.
pub(crate) fn cell_of(version_key: &[u8]) -> Result<&[u8], DecodeError> {
    Ok(key::split_version(version_key)?.0)
}

/// Decides whether a tablet is handed over.
fn give(state: &State, take: TakeRequest) -> Decision {
    let id = take.id;
    let moved_to_receiver = TakeOutcome::Moved {
        barrier: state.points.now().barrier,
    };
    let departed = state.tablets.departed(id);
    if departed.is_some_and(|it| it.attempt == take.attempt && it.to.server == take.by.server) {
        return Decision::answered(moved_to_receiver.into());
    }
    // Without a lease another incarnation may have the tablet, by a copy of the folder, and have committed to it.
    let known = state.tablets.get(id);
    if let Some(tablet) = known.filter(|_| state.check_leased().is_ok())
        && state.leaving.may_give(&take)
    {
        let departed = DepartedTablet {
            tablet: moved(tablet),
            to: take.by,
            attempt: take.attempt,
        };
        let mut decision = Decision::answered(moved_to_receiver.into());
        if mutants::on(Mutant::MovedAndKept) {
            return decision;
        }
        tablets::remove_record(&mut decision.batch, id);
        observed::remove_record(&mut decision.batch, &state.observed, id);
        tablets::put_departed(&mut decision.batch, &departed);
        decision.batch.spend_reserve();
        decision.tablet_change = Some(TabletChange::Leave(Box::new(departed)));
        return decision;
    }
    // The tablet may have been merged with its neighbour. While its hand-over is on its way to the disk, the outcome is open.
    let owner = state.tablets.owning(take.table, &take.start_row);
    let stays = owner.is_some_and(|owner| !state.leaving.is_given(owner.id));
    // It has left to another server, by another attempt: a receiver repeats no request for a tablet that it reports.
    let has_left = state.tablets.has_left(id, take.epoch + 1);
    let is_over = stays || has_left || state.tablets.is_deleted(take.table);
    // The receiver then removes its copy: a folder from before the hand-over must not cause that.
    let outcome = if is_over && state.check_leased().is_ok() {
        TakeOutcome::Stays
    } else {
        TakeOutcome::Undecided
    };
    Decision::answered(outcome.into())
}

fn settle(state: &State, ids: Vec<u64>) -> Decision {
    let mut decision = Decision::new();
    let mut settled = Vec::new();
    for id in ids {
        let Some(left) = state.tablets.departed(id) else {
            continue;
        };
        tablets::put_settled(&mut decision.batch, &left.tablet);
        tablets::add_dropped(&mut decision.batch, &left.tablet);
        settled.push(left.tablet.clone());
    }
    if !settled.is_empty() {
        decision.batch.spend_reserve();
        decision.tablet_change = Some(TabletChange::Settle(settled));
    }
    decision
}

/// Checks that all of a chunk belongs to the tablet, and can be read.
///
/// # Errors
/// The reason to give the tablet up.
pub(crate) fn check_chunk(entries: &[MovedEntry], rows: &KeyRange) -> Result<(), String> {
    let readable = |entry: &MovedEntry| {
        let value = entry.value.clone();
        match entry.column {
            Column::Lock => {
                key::decode_cell(&entry.key)?;
                value.map(Lock::decode).transpose()?;
            }
            Column::Write => {
                let (cell_key, ts) = key::split_version(&entry.key)?;
                key::decode_cell(cell_key)?;
                value.map(|value| Write::decode(ts, value)).transpose()?;
            }
            Column::Notify => {
                key::decode_cell(&entry.key)?;
                value.map(Notification::decode).transpose()?;
            }
            Column::Data | Column::Garbage | Column::Meta => {
                key::split_version(&entry.key)?;
            }
        }
        Ok::<_, DecodeError>(())
    };
    for entry in entries {
        if !rows.contains(&entry.key) {
            return Err("its owner has sent keys that are not the tablet's".into());
        }
        readable(entry)
            .map_err(|error| format!("its owner has sent what can't be read: {error}"))?;
    }
    Ok(())
}
