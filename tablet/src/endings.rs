//! Decides how a transaction's cells end: they are committed or rolled back, or their locks are kept alive. Reports how a
//! transaction ended.

use percolator_protocol::actions::{self, StatusQuery};
use percolator_protocol::types::{Cell, Timestamp};
use percolator_wire::v1::response::Body;
use percolator_wire::{commit_response, v1};

use crate::decision::Decision;
use crate::places::Place;
use crate::state::State;
use crate::store::{self, Version};
use crate::{Refusal, notify};

pub(crate) fn status(state: &State, query: &StatusQuery, cell: &Cell) -> Result<Decision, Refusal> {
    let key = store::cell_key(cell);
    let view = state.recalled(&key, query.start_ts, None)?;
    let (effects, status) = actions::check_status(&view, query, cell)
        .map_err(|not| Refusal::Invalid(not.to_string()))?;
    let mut decision = Decision::answered(Body::CheckStatus(status.into()));
    decision.add(state, &key, view.lock.is_some(), effects);
    Ok(decision)
}

pub(crate) fn keep_alive(
    state: &State,
    cell: &Cell,
    start_ts: Timestamp,
    ttl_ms: u64,
) -> Result<Decision, Refusal> {
    let key = store::cell_key(cell);
    let view = state.view(&key, start_ts, None)?;
    let (effects, ttl_ms) = actions::keep_alive(&view, start_ts, ttl_ms);
    let mut decision = Decision::answered(Body::KeepAlive(v1::KeepAliveResponse {
        alive: ttl_ms.is_some(),
        ttl_ms: ttl_ms.unwrap_or_default(),
    }));
    decision.add(state, &key, view.lock.is_some(), effects);
    Ok(decision)
}

pub(crate) fn commit(
    state: &State,
    refs: &[v1::TabletRef],
    start_ts: Timestamp,
    commit_ts: Timestamp,
    places: &[Place],
) -> Result<Decision, Refusal> {
    state.lease.admit(commit_ts)?;
    let mut decision = Decision::new();
    let mut result = Ok(());
    // Each cell is decided by itself: a late copy for a secondary shows nothing about the others.
    for (index, place) in places.iter().enumerate() {
        let cell = state.cell(refs, place)?;
        let key = store::cell_key(&cell);
        let mut view = state.recalled(&key, start_ts, Some(commit_ts))?;
        let lock = view.lock.take();
        view.lock = lock.map(|lock| state.lease.promised(lock, &cell));
        let (effects, outcome) = actions::commit(&view, start_ts, commit_ts);
        decision.note_primary(&view, start_ts, &cell, &effects);
        decision
            .memory
            .versions
            .extend(Version::of_commit(&key, &effects));
        notify::note(
            state,
            &mut decision,
            &key,
            &notify::Committing::locked(start_ts, view.lock.as_ref()),
            &effects,
        )?;
        decision.add(state, &key, view.lock.is_some(), effects);
        if let Err(rejection) = outcome
            && result.is_ok()
        {
            result = Err((index as u32, rejection));
        }
    }
    decision.answer = Some(Body::Commit(commit_response(result)));
    Ok(decision)
}

pub(crate) fn rollback(
    state: &State,
    refs: &[v1::TabletRef],
    start_ts: Timestamp,
    places: &[Place],
) -> Result<Decision, Refusal> {
    let mut decision = Decision::new();
    for place in places {
        let key = store::cell_key(&state.cell_to_decide(refs, place)?);
        let view = state.recalled(&key, start_ts, None)?;
        match actions::rollback(&view, start_ts) {
            Ok(effects) => decision.add(state, &key, view.lock.is_some(), effects),
            Err(already) => {
                return Ok(Decision::answered(Body::Rollback(v1::RollbackResponse {
                    committed: Some(v1::Committed {
                        commit_ts: already.commit_ts.as_u64(),
                    }),
                })));
            }
        }
    }
    decision.answer = Some(Body::Rollback(v1::RollbackResponse { committed: None }));
    Ok(decision)
}
