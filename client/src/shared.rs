//! A transaction that several clients share: each reads at its snapshot and buffers what it writes, and one of them commits what
//! all have written. Its user, such as the proxy, decides which clients join and when it is committed.

use bytes::Bytes;
use percolator_protocol::types::{LockKind, TableId, Timestamp};

use crate::kind::TxnKind;
use crate::{Client, Error, Txn};

/// What a participant has written, when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffered {
    /// In the order of tables, rows and columns.
    pub writes: Vec<BufferedWrite>,
    /// The tables that it has used, by their names.
    pub tables: Vec<(String, TableId)>,
}

/// A cell that a transaction has written, or got for update, and what it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferedWrite {
    /// The table's name.
    pub table: String,
    /// The row.
    pub row: Bytes,
    /// The column.
    pub column: Bytes,
    /// What the commit does.
    pub change: BufferedChange,
}

/// What a commit does with a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferedChange {
    /// It gets this value.
    Put(Bytes),
    /// It has no value any more.
    Delete,
    /// It stays as it is; the commit fails if another transaction has changed it since the snapshot.
    Lock,
}

/// The reason why the writes of a participant are not added.
#[derive(Debug)]
pub enum NotAdded {
    /// The transaction has this cell from somebody else: a table, a row and a column.
    Twice(String, Bytes, Bytes),
    /// The participant has used a table of this name that was deleted, and another one has its name: half of what was read and
    /// written would be of either.
    Replaced(String),
    /// As for [`Txn::put`].
    Failed(Error),
}

impl Client {
    /// Joins a transaction that another client has begun: reads see its snapshot, and what was written here. Nothing is
    /// committed by this one: [`Txn::end_with_buffered`] has what it has written, for the other client's [`Txn::add`]. It is never
    /// flushed. The other client's lease keeps what can be seen at the snapshot.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`] if no oracle has handed out the timestamp.
    pub async fn join(&self, start_ts: Timestamp) -> Result<Txn, Error> {
        self.begin_earlier(start_ts, TxnKind::Participant).await
    }

    pub(crate) async fn begin_earlier(
        &self,
        snapshot: Timestamp,
        kind: TxnKind,
    ) -> Result<Txn, Error> {
        let now = self.timestamp().await?;
        let why = if snapshot.physical_ms() == 0 {
            "no oracle has handed it out: a timestamp is a time in milliseconds, times 2^18, as `put` says it".to_owned()
        } else if snapshot > now {
            format!("it lies in the future: the oracle is at {now}")
        } else {
            let router = self.traced().unwrap_or_else(|| self.router.clone());
            if let Some(trace) = &router.trace {
                trace.begun(snapshot);
            }
            let held = router.hold();
            let began = router.world.transport.now();
            return Ok(Txn::begin(
                router,
                self.options,
                snapshot,
                began,
                held,
                kind,
            ));
        };
        Err(Error::NoSnapshot {
            asked: snapshot,
            why,
        })
    }
}

impl Txn {
    /// The commit fails if another transaction changes the cell meanwhile: [`Self::get_for_update`] without the value.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn lock(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let (row, column) = (row.as_ref(), column.as_ref());
        self.inner
            .write(table, row, column, LockKind::Lock, Bytes::new())
    }

    /// Ends a participant, and returns what it has written. Calls that are under way write nothing any more: they get
    /// [`Error::Ended`].
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn end_with_buffered(&self) -> Result<Buffered, Error> {
        let mut writes = Vec::new();
        for (table, cells) in self.inner.end_with_cells()? {
            for ((row, column), write) in cells {
                writes.push(BufferedWrite {
                    table: table.clone(),
                    row,
                    column,
                    change: match write.kind {
                        LockKind::Put => BufferedChange::Put(write.value),
                        LockKind::Delete => BufferedChange::Delete,
                        LockKind::Lock => BufferedChange::Lock,
                    },
                });
            }
        }
        Ok(Buffered {
            writes,
            tables: self.inner.tables.all(),
        })
    }

    /// From now on these tables have these names, for the transaction.
    ///
    /// # Errors
    /// The name of a table that is another one here.
    pub fn pin(&self, tables: &[(String, TableId)]) -> Result<(), String> {
        let other =
            |(name, table): &&(String, TableId)| self.inner.tables.pin(name, *table) != *table;
        match tables.iter().find(other) {
            Some((name, _)) => Err(name.clone()),
            None => Ok(()),
        }
    }

    /// Whether nobody has written what a participant has. All of it is compared before any is written: that may be flushed.
    fn check_apart(&self, written: &Buffered) -> Result<(), NotAdded> {
        let writes = self.inner.writes.lock();
        if self.inner.is_large() {
            let why = "a transaction that has flushed what was written in it takes no participant's writes: begin it with larger buffer_bytes";
            return Err(NotAdded::Failed(Error::Invalid(why.into())));
        }
        for write in &written.writes {
            let place = (write.row.clone(), write.column.clone());
            let known = writes.cells.get(&write.table);
            let known = known.and_then(|cells| cells.get(&place)).map(|it| it.kind);
            let kind = kind_of(&write.change);
            if known.is_some_and(|known| known != LockKind::Lock || kind != LockKind::Lock) {
                let (row, column) = place;
                return Err(NotAdded::Twice(write.table.clone(), row, column));
            }
        }
        Ok(())
    }

    /// Writes what a participant has written. A cell that two have got for update, and neither has written, is no mistake. A transaction
    /// that has flushed ([`Options::buffer_bytes`](crate::Options::buffer_bytes)) takes nothing any more: what servers have of it is not
    /// compared with.
    ///
    /// # Errors
    /// [`NotAdded`]: the transaction is to be rolled back then, as a part of the writes may be in it.
    pub fn add(&self, written: Buffered) -> Result<(), NotAdded> {
        self.pin(&written.tables).map_err(NotAdded::Replaced)?;
        self.check_apart(&written)?;
        for write in written.writes {
            let kind = kind_of(&write.change);
            let BufferedWrite {
                table, row, column, ..
            } = write;
            let value = match write.change {
                BufferedChange::Put(value) => value,
                BufferedChange::Delete | BufferedChange::Lock => Bytes::new(),
            };
            let written = self.inner.write(&table, &row, &column, kind, value);
            written.map_err(NotAdded::Failed)?;
        }
        Ok(())
    }
}

fn kind_of(change: &BufferedChange) -> LockKind {
    match change {
        BufferedChange::Put(_) => LockKind::Put,
        BufferedChange::Delete => LockKind::Delete,
        BufferedChange::Lock => LockKind::Lock,
    }
}
