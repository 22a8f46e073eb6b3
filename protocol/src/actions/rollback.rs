//! Rollback: removes the lock and its value, and leaves a record that stops a late prewrite.

use super::{CellView, OwnRecord};
use crate::mutants::{self, Mutant};
use crate::types::{Effect, Timestamp, Write, WriteKind};

/// The transaction has committed this cell, so it can't be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyCommitted {
    /// When it committed.
    pub commit_ts: Timestamp,
}

/// Rolls the transaction back on this cell, also where it never came. Doing it twice is harmless;
/// other transactions' locks stay.
///
/// # Errors
/// It has committed here.
pub fn rollback(view: &CellView, start_ts: Timestamp) -> Result<Vec<Effect>, AlreadyCommitted> {
    let mut effects = Vec::new();
    match view.own {
        OwnRecord::Committed(commit_ts) => return Err(AlreadyCommitted { commit_ts }),
        OwnRecord::RolledBack => {}
        OwnRecord::None if mutants::on(Mutant::NoRollbackRecord) => {}
        OwnRecord::None => {
            let record = match &view.at_start {
                // Another transaction committed at exactly this start_ts: its record carries ours.
                Some(at_start) => {
                    debug_assert!(at_start.kind != WriteKind::Rollback);
                    Write {
                        overlapped_rollback: true,
                        ..at_start.clone()
                    }
                }
                None => Write::rollback(start_ts),
            };
            effects.push(Effect::PutWrite(start_ts, record));
        }
    }
    // Also beside a record that is there already, should a store have both.
    let any_lock = view
        .lock
        .as_ref()
        .filter(|_| mutants::on(Mutant::RollbackOfOthers));
    if let Some(lock) = view.own_lock(start_ts).or(any_lock) {
        effects.push(Effect::DeleteLock);
        if lock.has_long_value() {
            effects.push(Effect::DeleteData(start_ts));
        }
    }
    Ok(effects)
}
