//! Resolve: what a transaction that has ended left of itself on a cell, found by its lock alone.
//!
//! A pipelined transaction doesn't remember which cells it has locked, only between which rows they lie. So
//! tablets scan their own locks for those with its start_ts, piece by piece. A cell without such a
//! lock is left as it is: a prewrite that comes later than this leaves a lock that can't be committed, because
//! the primary says that its transaction has ended; anyone who meets it clears it.

use super::{CellView, commit, rollback};
use crate::txn::Ending;
use crate::types::{Effect, Timestamp};

/// Ends the transaction on this cell as its primary has ended, where it holds the cell's lock. `view` was
/// loaded for the ending's commit_ts. Doing it twice is harmless.
pub fn resolve(view: &CellView, start_ts: Timestamp, ending: Ending) -> Vec<Effect> {
    if view.own_lock(start_ts).is_none() {
        return Vec::new();
    }
    match ending {
        Ending::Committed(commit_ts) => commit(view, start_ts, commit_ts).0,
        // Beside a commit's record a lock would be a stray one; committing it again removes it.
        Ending::RolledBack => rollback(view, start_ts).unwrap_or_default(),
    }
}
