//! At most one of commit and rollback stands for a transaction (ARCHITECTURE, "What always holds", 1):
//! on a cell, and, of a committed transaction, on all cells, at one commit_ts. No record is ever changed
//! into another one.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use percolator_protocol::types::{Timestamp, WriteKind};

use super::Invariant;
use crate::watch::Change;

#[derive(Default)]
pub(super) struct OneOutcome {
    committed: HashMap<Timestamp, Timestamp>,
    rolled_back: HashSet<(Timestamp, Bytes)>,
    committed_cells: HashSet<(Timestamp, Bytes)>,
}

impl Invariant for OneOutcome {
    fn name(&self) -> &'static str {
        "one outcome"
    }

    fn changed(&mut self, change: &Change) -> Result<(), String> {
        let Change::PutWrite {
            cell,
            ts,
            write,
            old,
        } = change
        else {
            return Ok(());
        };
        let start_ts = write.start_ts;
        if let Some(old) = old
            && old.start_ts != start_ts
            && old.kind != WriteKind::Rollback
        {
            return Err(format!(
                "the record of {} at {ts} was replaced by that of {start_ts}",
                old.start_ts
            ));
        }
        if write.kind == WriteKind::Rollback {
            let key = (start_ts, cell.clone());
            if self.committed_cells.contains(&key) {
                return Err(format!(
                    "transaction {start_ts} was rolled back on a cell where it had committed"
                ));
            }
            self.rolled_back.insert(key);
            return Ok(());
        }
        let key = (start_ts, cell.clone());
        if self.rolled_back.contains(&key) {
            return Err(format!(
                "transaction {start_ts} was committed at {ts} on a cell where it was rolled back"
            ));
        }
        self.committed_cells.insert(key);
        match self.committed.insert(start_ts, *ts) {
            Some(other) if other != *ts => Err(format!(
                "transaction {start_ts} was committed at {other} and at {ts}"
            )),
            _ => Ok(()),
        }
    }
}
