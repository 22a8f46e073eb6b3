//! The acknowledgement of a change, as a part of a transaction.

use bytes::Bytes;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Cell, LockKind, ack_column};
use percolator_wire::v1;

use super::Change;
use crate::convert::trace_context;
use crate::trace::Trace;
use crate::txn::Inner;
use crate::{Error, Txn};

impl Txn {
    /// Acknowledges a change of an observed cell, as the transaction of an observer does. The commit fails with
    /// [`Conflict::NotNotified`](crate::Conflict::NotNotified) unless the change waits, and was made before this transaction's snapshot: of all
    /// transactions that acknowledge it one commits.
    ///
    /// Reads the cell: its value, as [`Self::get`]. A transaction that acknowledges a change without reading the cell before it
    /// commits could miss one.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn acknowledge(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<Option<Bytes>, Error> {
        let (row, column) = (row.as_ref(), column.as_ref());
        let table_id = self.inner.table(table).await?;
        let cell = Cell::new(
            table_id,
            Bytes::copy_from_slice(row),
            Bytes::copy_from_slice(column),
        );
        // As the servers have it, whatever this transaction has written itself.
        let value = self.inner.read(vec![cell]).await?.pop().flatten();
        if mutants::on(Mutant::AckForgotten) {
            return Ok(value);
        }
        let ack = ack_column(column);
        self.inner
            .write(table, row, &ack, LockKind::Lock, Bytes::new())?;
        Ok(value)
    }

    /// Makes the transaction a run for this change: what it writes to observed columns is one run deeper in the chain of the
    /// change ([`Change::chain`]), so that loops of observers are found. Called before the first write; only the first call
    /// counts.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Timeout`].
    pub async fn follow(&self, change: &Change) -> Result<(), Error> {
        let table = self.inner.table(&change.table).await?;
        let chain = change.chain.then(table, &change.column);
        // It has followed another one.
        let _ = self.inner.chain.set(chain);
        Ok(())
    }
}

impl Inner {
    /// The runs of observers that it comes from, and its trace, for a request.
    pub(crate) fn chain(&self) -> Option<v1::Chain> {
        let chain = self.chain.get().map(v1::Chain::from);
        let trace = trace_context(self.router.trace.as_ref().and_then(Trace::context));
        if trace.is_none() {
            return chain;
        }
        Some(v1::Chain {
            trace,
            ..chain.unwrap_or_default()
        })
    }
}
