//! Locks that have to be cleared while somebody knows what became of their transactions: those of a table's
//! transactions in other tables, before the table goes; those of transactions that began below a point, before
//! what is below it is collected.

use percolator_engine::{Column, Direction};
use percolator_protocol::types::{Cell, Lock, TableId, Timestamp, key};
use percolator_wire::{met_lock, v1};

use crate::state::State;
use crate::store;
use crate::work::invalid;
use crate::{Error, Refusal};

/// The bytes of cells' names after which an answer ends.
const BYTES_MAX: usize = 1 << 20;
/// Locks that one request looks at: nobody waits long behind it.
const SEEN_MAX: usize = 512;

/// The next of these locks. What is decided and not yet durable is not among them, and need not be: its
/// prewrite is not answered yet, so its transaction has not committed.
pub(crate) fn list(
    state: &State,
    request: v1::LocksOfRequest,
) -> Result<v1::LocksOfResponse, Refusal> {
    // Another server's locks are not the ones that were asked for.
    state.check_addressee(request.to)?;
    let of = Some(TableId(request.primary_table)).filter(|table| table.0 != 0);
    let below = Some(Timestamp::from_u64(request.below)).filter(|ts| *ts != Timestamp::ZERO);
    if of.is_none() && below.is_none() {
        return Err(invalid("the locks of no table, below no timestamp"));
    }
    let start = match request.after {
        Some(after) => key::behind_cell(store::cell_key(&Cell::from(after))),
        None => Vec::new(),
    };
    let mut response = v1::LocksOfResponse::default();
    let mut bytes = 0;
    let pairs = state
        .engine
        .scan(Column::Lock, &start, &[], Direction::Forward)
        .map_err(Error::from)?;
    for (seen, pair) in (1..).zip(pairs) {
        let (key, record) = pair.map_err(Error::from)?;
        let lock = Lock::decode(record).map_err(Error::from)?;
        let is_asked_for = of.is_none_or(|of| lock.primary.table == of)
            && below.is_none_or(|below| lock.start_ts < below);
        if is_asked_for || seen >= SEEN_MAX {
            let cell = key::decode_cell(&key).map_err(Error::from)?;
            // A table's own locks go with it, and so do those in another table that is being deleted.
            if is_asked_for && Some(cell.table) != of && state.tablets.holding(&key)? != 0 {
                bytes += cell.row.len() + cell.column.len();
                bytes += lock.primary.row.len() + lock.primary.column.len();
                response.locks.push(met_lock(&cell, &lock));
            }
            if seen >= SEEN_MAX || bytes >= BYTES_MAX {
                response.resume = Some((&cell).into());
                break;
            }
        }
    }
    Ok(response)
}
