//! Locks of transactions that began below a point, which are to be resolved while somebody knows what became of them
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
/// Locks that one page looks at: nobody waits long behind it.
const SEEN_MAX: usize = 512;
/// The same of a search, of which there is one for a chunk of a tablet at the most.
const SEARCHED_MAX: usize = 4096;

/// The next of these locks, for somebody who asked this server.
pub(crate) fn list(
    state: &State,
    request: v1::LocksBelowRequest,
) -> Result<v1::LocksBelowResponse, Refusal> {
    // Another server's locks are not the ones that were asked for.
    state.check_addressee(request.to.map(Into::into))?;
    Ok(page(
        state,
        Timestamp::from_u64(request.below),
        request.after,
    )?)
}

/// What a search for locks has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockSearch {
    Found,
    Nothing,
    /// There are so many that it has ended before.
    Unfinished,
}

/// Whether a transaction that began below this has a lock in these rows, by what is durable.
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

/// The next of these locks, behind this cell. What is decided and not yet durable is not among them, and need not be: its
/// prewrite is not answered yet, so its transaction has not committed.
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
            // The locks of a table that is being deleted go with it.
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
