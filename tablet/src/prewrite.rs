//! Decides about a prewrite: all of its mutations or none, and in one phase if that is requested and possible.

use percolator_protocol::actions::{
    CellView, NotNotified, OnePhaseRejection, Prewrite, PrewriteRejection, one_phase, prewrite,
};
use percolator_protocol::types::{Effect, Mutation, Timestamp, key};
use percolator_wire::v1::response::Body;
use percolator_wire::{prewrite_rejection, v1};

use crate::decision::Decision;
use crate::places::Place;
use crate::probe::CommitKind;
use crate::state::State;
use crate::store::{self, Version};
use crate::{Refusal, latches, notify};

/// The state of a mutation's cell.
struct Loaded {
    key: Vec<u8>,
    tablet: u64,
    mutation: Mutation,
    view: CellView,
    /// Whether observers let the cell be written.
    notified: Result<(), NotNotified>,
}

/// Decides a prewrite. `one_phase_at`: a commit_ts that was requested after the client knew this incarnation.
pub(crate) fn decide(
    state: &State,
    refs: &[v1::TabletRef],
    txn: &Prewrite,
    mutations: Vec<(Place, Mutation)>,
    one_phase_at: Option<Timestamp>,
) -> Result<Decision, Refusal> {
    state.points.now().admit_prewrite(txn.start_ts)?;
    state
        .lease
        .admit(one_phase_at.unwrap_or(txn.start_ts).max(txn.start_ts))?;
    let one_phase_at = one_phase_at.filter(|commit_ts| state.lease.may_commit_at(*commit_ts));
    let mut cells = Vec::with_capacity(mutations.len());
    for (place, mut mutation) in mutations {
        mutation.cell = state.cell(refs, &place)?;
        let key = store::cell_key(&mutation.cell);
        let view = state.view(&key, txn.start_ts, one_phase_at)?;
        let notified = notify::admit(state, &mutation, txn.start_ts)?;
        cells.push(Loaded {
            key,
            tablet: refs
                .get(place.tablet as usize)
                .map_or(0, |tablet| tablet.id),
            mutation,
            view,
            notified,
        });
    }
    if let Some(commit_ts) = one_phase_at
        && let Some(decision) = decide_one_phase(state, txn, &cells, commit_ts)
    {
        return Ok(decision);
    }
    let mut decision = Decision::new();
    let mut rejections = Vec::new();
    let read_ts = state.read_ts();
    for (index, cell) in cells.iter().enumerate() {
        match cell.prewrite(txn, read_ts) {
            Ok(effects) => decision.add(state, &cell.key, cell.view.lock.is_some(), effects),
            Err(rejection) => {
                rejections.push(prewrite_rejection(
                    index as u32,
                    &cell.mutation.cell,
                    &rejection,
                ));
            }
        }
    }
    if !rejections.is_empty() {
        // All or nothing: the client clears the locks, and sends the request again.
        decision = Decision::new();
    } else {
        decision.prewritten = Some(txn.start_ts);
    }
    decision.answer = Some(answer(state, rejections, false));
    Ok(decision)
}

impl Loaded {
    #[allow(
        clippy::result_large_err,
        reason = "one a cell, and taken apart at once; a box would cost more than it saves"
    )]
    fn prewrite(
        &self,
        txn: &Prewrite,
        read_ts: Timestamp,
    ) -> Result<Vec<Effect>, PrewriteRejection> {
        let effects = prewrite(&self.view, &self.mutation, txn, read_ts)?;
        // The first prewrite checks the notification. A late copy finds its lock, and no other transaction removes the
        // notification before that is gone.
        match self.notified {
            Err(not) if self.view.lock.is_none() => Err(PrewriteRejection::NotNotified(not)),
            _ => Ok(effects),
        }
    }
}

/// Commits in one phase. `None`: some of the cells can't be.
fn decide_one_phase(
    state: &State,
    txn: &Prewrite,
    cells: &[Loaded],
    commit_ts: Timestamp,
) -> Option<Decision> {
    let mut decision = Decision::new();
    let mut hashes = Vec::with_capacity(cells.len());
    for cell in cells {
        let hash = latches::hash(&[&cell.key]);
        let read_ts = state
            .readers
            .borrow()
            .read_ts([hash, row_hash(&cell.mutation)], cell.tablet);
        let effects: Result<Vec<Effect>, OnePhaseRejection> =
            one_phase(&cell.view, &cell.mutation, txn, commit_ts, read_ts);
        cell.notified.ok()?;
        let effects = effects.ok()?;
        let commit = notify::Committing::in_one_phase(txn);
        // The decision in two phases notices an engine that can't be read.
        notify::note(state, &mut decision, &cell.key, &commit, &effects).ok()?;
        decision
            .memory
            .versions
            .extend(Version::of_commit(&cell.key, &effects));
        decision.add(state, &cell.key, false, effects);
        hashes.push(hash);
    }
    decision.held = Some((commit_ts, hashes));
    decision.commits = Some(CommitKind::OnePhase);
    decision.answer = Some(answer(state, Vec::new(), true));
    Some(decision)
}

fn answer(state: &State, rejections: Vec<v1::PrewriteRejection>, committed: bool) -> Body {
    Body::Prewrite(v1::PrewriteResponse {
        rejections,
        committed,
        incarnation: state.me.incarnation,
        // Set when the batch is durable.
        min_commit_ts: 0,
    })
}

/// The hash that marks a read of a row.
fn row_hash(mutation: &Mutation) -> u64 {
    let cell = &mutation.cell;
    latches::hash(&[&key::row_bound(cell.table, &cell.row)])
}
