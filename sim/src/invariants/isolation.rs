//! Snapshot isolation, by the graph of who depended on whom (Adya, "Weak Consistency", 1999; see
//! `percolator-history`): with the timestamps that clients were told, and from what they saw alone; both
//! with the times at which they asked and were answered.

use percolator_history::{Transaction, check};

use super::Invariant;
use crate::end::End;
use crate::export::export;

pub(super) struct Isolation;

impl Invariant for Isolation {
    fn name(&self) -> &'static str {
        "snapshot isolation"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        let mut history = export(end.history);
        explained(&history)?;
        for transaction in &mut history {
            (transaction.start_ts, transaction.commit_ts) = (None, None);
        }
        explained(&history)
    }
}

fn explained(history: &[Transaction]) -> Result<(), String> {
    match check(history).anomaly {
        Some(anomaly) => Err(anomaly.to_string()),
        None => Ok(()),
    }
}
