//! A commit record lies above its transaction's start (paper, section 2.1: a snapshot doesn't see its own
//! commit), a rollback record stands at it.

use percolator_protocol::types::WriteKind;

use super::Invariant;
use crate::watch::Change;

pub(super) struct CommitAboveStart;

impl Invariant for CommitAboveStart {
    fn name(&self) -> &'static str {
        "commit above start"
    }

    fn changed(&mut self, change: &Change) -> Result<(), String> {
        let Change::PutWrite { ts, write, .. } = change else {
            return Ok(());
        };
        let start_ts = write.start_ts;
        match write.kind {
            WriteKind::Rollback if *ts != start_ts => {
                Err(format!("the rollback of {start_ts} stands at {ts}"))
            }
            WriteKind::Rollback => Ok(()),
            _ if *ts <= start_ts => Err(format!("transaction {start_ts} is committed at {ts}")),
            _ => Ok(()),
        }
    }
}
