//! Locks of transactions that began below a point. They are resolved while records still show how the transactions ended
//! (`protocol::safe_point`).

use percolator_engine::{Column, Direction, Engine};
use percolator_protocol::types::{Cell, Lock, Timestamp, key};
use percolator_wire::{met_lock, v1};

use crate::Error;
use crate::Refusal;
use crate::leaving::KeyRange;
use crate::state::State;
use crate::store;

/// The bytes of cells' names after which a page ends.
const BYTES_MAX: usize = 1 << 20;
/// The most locks that one page reads, so that no request waits long behind it.
const SEEN_MAX: usize = 512;
/// The most locks that one search reads. There is at most one search for each chunk of a tablet.
const SEARCHED_MAX: usize = 4096;

/// The next of these locks, for a client's request.
pub(crate) fn list(
    state: &State,
    request: v1::LocksBelowRequest,
) -> Result<v1::LocksBelowResponse, Refusal> {
    // Another server's locks are not the requested ones.
    state.check_addressee(request.to.map(Into::into))?;
    Ok(page(
        state,
        Timestamp::from_u64(request.below),
        request.after,
    )?)
}

/// The result of a search for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockSearch {
    Found,
    Nothing,
    /// The search has ended at its limit.
    Unfinished,
}

/// Whether a transaction that began below this has a durable lock in these rows.
pub(crate) fn search(
    engine: &dyn Engine,
    rows: &KeyRange,
    below: Timestamp,
) -> Result<LockSearch, Error> {
    let pairs = engine.scan(Column::Lock, &rows.start, &rows.end, Direction::Forward)?;
    for (seen, pair) in (1..).zip(pairs) {
        let (_, record) = pair?;
        if Lock::decode(record)?.start_ts < below {
            return Ok(LockSearch::Found);
        }
        if seen >= SEARCHED_MAX {
            return Ok(LockSearch::Unfinished);
        }
    }
    Ok(LockSearch::Nothing)
}

/// The next of these locks, behind this cell. Locks that are decided and not durable yet are not among them, and need not be:
/// their prewrite is not answered, so that the transaction has not committed.
pub(crate) fn page(
    state: &State,
    below: Timestamp,
    after: Option<v1::CellName>,
) -> Result<v1::LocksBelowResponse, Error> {
    let start = match after {
        Some(after) => key::behind_cell(store::cell_key(&Cell::from(after))),
        None => Vec::new(),
    };
    let mut page = v1::LocksBelowResponse::default();
    let mut bytes = 0;
    let pairs = state
        .engine
        .scan(Column::Lock, &start, &[], Direction::Forward)?;
    for (seen, pair) in (1..).zip(pairs) {
        let (key, record) = pair?;
        let lock = Lock::decode(record)?;
        let is_asked_for = lock.start_ts < below;
        if is_asked_for || seen >= SEEN_MAX {
            let cell = key::decode_cell(&key)?;
            // The locks of a table that is being deleted are removed with it.
            if is_asked_for && state.tablets.holding(&key)? != 0 {
                bytes += cell.row.len() + cell.column.len();
                bytes += lock.primary.row.len() + lock.primary.column.len();
                page.locks.push(met_lock(&cell, &lock));
            }
            if seen >= SEEN_MAX || bytes >= BYTES_MAX {
                page.resume = Some((&cell).into());
                break;
            }
        }
    }
    Ok(page)
}
