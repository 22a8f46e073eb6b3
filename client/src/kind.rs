//! What may be done with a transaction.

use percolator_protocol::types::Timestamp;

use crate::Error;

/// What may be done with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnKind {
    /// Everything.
    Full,
    /// It reads at a snapshot that somebody chose.
    Reads,
    /// It reads and buffers: another client commits.
    Participant,
}

impl TxnKind {
    /// # Errors
    /// It writes nothing.
    pub(crate) fn check_writes(self, start_ts: Timestamp) -> Result<(), Error> {
        if self != Self::Reads {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a transaction at a chosen snapshot, {start_ts}, only reads: begin one without a snapshot to write"
        )))
    }

    /// # Errors
    /// It doesn't commit.
    pub(crate) fn check_commits(self) -> Result<(), Error> {
        if self != Self::Participant {
            return Ok(());
        }
        Err(Error::Invalid(
            "a participant does not commit: the client that began the transaction does, with what Txn::end_with_buffered returns".into(),
        ))
    }
}
