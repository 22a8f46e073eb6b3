//! What a tablet server has left of what it says that it has resolved.

use percolator_engine::{Column, Direction, Engine};
use percolator_protocol::types::{Cell, Lock, Tablet, Timestamp, key};
use percolator_wire::v1;

use crate::seen::Seen;

/// What is left of the locks of a transaction that committed, where its server says that they are resolved.
pub(super) fn left(
    engine: &dyn Engine,
    tablet: &Tablet,
    asked: v1::ResolveRequest,
    answer: &v1::ResolveResponse,
) -> Option<Seen<'static>> {
    if asked.commit_ts == 0 {
        return None;
    }
    let key_of = |name: v1::CellName| {
        let cell = Cell::from(name);
        key::cell(cell.table, &cell.row, &cell.column)
    };
    let table = tablet.table;
    let rows = tablet.rows.within(&asked.start_row, &asked.end_row);
    let start = match asked.after {
        Some(after) => key::behind_cell(key_of(after)),
        None => key::row_bound(table, &rows.start),
    };
    let end = match answer.resume.clone() {
        Some(last) => key::behind_cell(key_of(last)),
        None => key::rows_end(table, &rows.end),
    };
    let start_ts = Timestamp::from_u64(asked.start_ts);
    let mut left = Vec::new();
    // A device that answers with errors says nothing.
    for pair in engine
        .scan(Column::Lock, &start, &end, Direction::Forward)
        .ok()?
    {
        let (key, lock) = pair.ok()?;
        if Lock::decode(lock).ok()?.start_ts == start_ts {
            left.push(key::decode_cell(&key).ok()?);
        }
    }
    Some(Seen::Resolved { start_ts, left })
}
