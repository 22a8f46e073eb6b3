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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use percolator_protocol::types::{Timestamp, Write};

    use super::*;

    fn seen(write: Write, ts: u64) -> Result<(), String> {
        CommitAboveStart.changed(&Change::PutWrite {
            cell: Bytes::from_static(b"cell"),
            ts: Timestamp::from_u64(ts),
            write,
            old: None,
        })
    }

    fn put(start_ts: u64) -> Write {
        Write {
            kind: WriteKind::Put,
            ..Write::rollback(Timestamp::from_u64(start_ts))
        }
    }

    #[test]
    fn a_commit_lies_above_its_start() {
        assert_eq!(seen(put(5), 6), Ok(()));
        for ts in [4, 5] {
            let broken = seen(put(5), ts).expect_err("it doesn't lie above 5");
            assert!(broken.contains("is committed at"), "{broken}");
        }
    }

    #[test]
    fn a_rollback_stands_at_its_start() {
        assert_eq!(seen(Write::rollback(Timestamp::from_u64(5)), 5), Ok(()));
        for ts in [4, 6] {
            let broken = seen(Write::rollback(Timestamp::from_u64(5)), ts).expect_err("it isn't 5");
            assert!(broken.contains("stands at"), "{broken}");
        }
    }
}
