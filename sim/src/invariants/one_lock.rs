//! A cell has at most one lock (paper, section 2.2): nobody's lock is replaced by another transaction's. A
//! transaction may write its own lock again: a keep-alive and a reader's promise change what it says, and a large
//! one's later flush its value, but never an earlier one's.

use super::Invariant;
use crate::watch::Change;

pub(super) struct OneLock;

impl Invariant for OneLock {
    fn name(&self) -> &'static str {
        "one lock a cell"
    }

    fn changed(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::PutLock {
                lock,
                old: Some(old),
                ..
            } if lock.start_ts != old.start_ts => Err(format!(
                "the lock of transaction {} was replaced by that of {}",
                old.start_ts, lock.start_ts
            )),
            Change::PutLock {
                lock,
                old: Some(old),
                ..
            } if lock.generation < old.generation => Err(format!(
                "flush {} of transaction {} was overwritten by its flush {}",
                old.generation, lock.start_ts, lock.generation
            )),
            _ => Ok(()),
        }
    }
}
