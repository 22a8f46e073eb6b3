//! A cell has at most one lock (paper, section 2.2): nobody's lock is replaced by another transaction's. A
//! transaction may write its own lock again: a keep-alive and a reader's promise change what it says.

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
            _ => Ok(()),
        }
    }
}
