//! What a tablet server says is resolved is: of a transaction that has committed no lock is left between where a
//! request began to look and where its answer says that it ended. (All of its locks were in place before it
//! committed, so that none comes later.)

use percolator_protocol::types::{Cell, Timestamp};

use super::Invariant;

pub(super) struct Resolved;

impl Invariant for Resolved {
    fn name(&self) -> &'static str {
        "resolved is resolved"
    }

    fn resolved(&mut self, start_ts: Timestamp, left: &[Cell]) -> Result<(), String> {
        match left.first() {
            Some(cell) => Err(format!(
                "the locks of transaction {start_ts} are said to be resolved, and {} are left, the first on {cell}",
                left.len()
            )),
            None => Ok(()),
        }
    }
}
