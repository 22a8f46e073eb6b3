//! A transaction: reads at one snapshot, writes buffered until the commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::limits::{TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX};
use percolator_protocol::types::{Cell, LockKind, Mutation, TableId, Timestamp};

use crate::Error;
use crate::client::Options;
use crate::commit::Commit;
use crate::reading::RowCache;
use crate::router::Router;
use crate::scan::{Range, Scan};
use crate::session::Held;

/// The name of a cell: table, row, column.
pub type CellName<'a> = (&'a str, &'a [u8], &'a [u8]);

/// A transaction. Its reads see everything committed at or below its start_ts, and its own writes. It
/// can be cloned and used from several tasks; dropping it before the commit rolls it back.
#[derive(Clone)]
pub struct Txn {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) router: Arc<Router>,
    pub(crate) options: Options,
    pub(crate) start_ts: Timestamp,
    only_reads: bool,
    began: Duration,
    writes: Mutex<Writes>,
    pub(crate) bypass: Mutex<Vec<Timestamp>>,
    pub(crate) rows: Mutex<RowCache>,
    /// The barrier of collection is kept below it until it ends.
    held: Mutex<Option<Held>>,
}

#[derive(Default)]
pub(crate) struct Writes {
    /// By table, row and column.
    cells: BTreeMap<String, BTreeMap<(Bytes, Bytes), Write>>,
    bytes: usize,
    ended: bool,
}

struct Write {
    kind: LockKind,
    value: Bytes,
}

/// A cell that the transaction has written, as its reads see it.
#[derive(Clone, Debug)]
pub(crate) enum OwnWrite {
    Value(Bytes),
    Deleted,
}

impl Txn {
    pub(crate) fn new(
        router: Arc<Router>,
        options: Options,
        start_ts: Timestamp,
        held: Held,
    ) -> Self {
        Self::begin(router, options, start_ts, held, false)
    }

    /// At a snapshot that somebody chose.
    pub(crate) fn only_reading(
        router: Arc<Router>,
        options: Options,
        snapshot: Timestamp,
        held: Held,
    ) -> Self {
        Self::begin(router, options, snapshot, held, true)
    }

    fn begin(
        router: Arc<Router>,
        options: Options,
        start_ts: Timestamp,
        held: Held,
        only_reads: bool,
    ) -> Self {
        let began = router.transport.now();
        Self {
            inner: Arc::new(Inner {
                router,
                options,
                start_ts,
                only_reads,
                began,
                writes: Mutex::default(),
                bypass: Mutex::default(),
                rows: Mutex::default(),
                held: Mutex::new(Some(held.begun(start_ts))),
            }),
        }
    }

    /// The transaction's snapshot, and its name.
    pub fn start_ts(&self) -> Timestamp {
        self.inner.start_ts
    }

    /// The cell's value; `None` where it has none.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Timeout`], [`Error::Invalid`], [`Error::Ended`].
    pub async fn get(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<Option<Bytes>, Error> {
        let (row, column) = (row.as_ref(), column.as_ref());
        let inner = &*self.inner;
        if let Some(own) = inner.own(table, row, column)? {
            return Ok(own.value());
        }
        let table = inner.table(table).await?;
        let row = Bytes::copy_from_slice(row);
        if let Some(found) = inner.cached(table, &row, column) {
            return Ok(found);
        }
        if inner.rows.lock().touch(table, &row) {
            return Box::pin(inner.whole_row(table, row, column)).await;
        }
        inner
            .read_one(table, row, Bytes::copy_from_slice(column))
            .await
    }

    /// The values of several cells, in the same order, with one request a server.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn batch_get(&self, cells: &[CellName<'_>]) -> Result<Vec<Option<Bytes>>, Error> {
        let inner = &*self.inner;
        if let [(table, row, column)] = cells {
            let value = match inner.own(table, row, column)? {
                Some(own) => own.value(),
                None => {
                    let table = inner.table(table).await?;
                    let (row, column) =
                        (Bytes::copy_from_slice(row), Bytes::copy_from_slice(column));
                    inner.read_one(table, row, column).await?
                }
            };
            return Ok(vec![value]);
        }
        let mut values = vec![None; cells.len()];
        let mut asked = Vec::new();
        let mut places = Vec::new();
        for (at, (table, row, column)) in cells.iter().enumerate() {
            if let Some(own) = inner.own(table, row, column)? {
                values[at] = own.value();
                continue;
            }
            let table = inner.table(table).await?;
            asked.push(Cell::new(
                table,
                Bytes::copy_from_slice(row),
                Bytes::copy_from_slice(column),
            ));
            places.push(at);
        }
        for (at, value) in places.into_iter().zip(inner.read(asked).await?) {
            values[at] = value;
        }
        Ok(values)
    }

    /// The cell's value, and a promise: the commit fails when anybody else has changed the cell, or has
    /// got it for update, since this transaction's snapshot. So a decision made on this value still
    /// holds when it's committed (no write skew on it).
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_for_update(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<Option<Bytes>, Error> {
        let (row, column) = (row.as_ref(), column.as_ref());
        let value = self.get(table, row, column).await?;
        self.inner
            .write(table, row, column, LockKind::Lock, Bytes::new())?;
        Ok(value)
    }

    /// Sets the cell's value at the commit.
    ///
    /// # Errors
    /// [`Error::Invalid`] over a limit; [`Error::Ended`].
    pub fn put(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<(), Error> {
        let value = value.into();
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the value is {} bytes long, the limit is {VALUE_BYTES_MAX}",
                value.len()
            )));
        }
        self.inner
            .write(table, row.as_ref(), column.as_ref(), LockKind::Put, value)
    }

    /// Deletes the cell at the commit.
    ///
    /// # Errors
    /// [`Error::Invalid`] over a limit; [`Error::Ended`].
    pub fn delete(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        self.inner.write(
            table,
            row.as_ref(),
            column.as_ref(),
            LockKind::Delete,
            Bytes::new(),
        )
    }

    /// The cells of a range of rows, in order, page by page as they're taken.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Timeout`], [`Error::Ended`].
    pub async fn scan(&self, table: &str, range: Range) -> Result<Scan, Error> {
        let own = self.inner.own_in(table, &range)?;
        let table = self.inner.table(table).await?;
        Ok(Scan::new(self.inner.clone(), table, range, own))
    }

    /// Whether a table can be used, for those who want to know of a wrong name before the commit does.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Unavailable`].
    pub async fn check_table(&self, table: &str) -> Result<(), Error> {
        self.inner.table(table).await.map(drop)
    }

    /// Commits. Returns the commit_ts, or, where nothing was written, the start_ts.
    ///
    /// # Errors
    /// [`Error::Conflict`]: begin again. [`Error::Unknown`]: ask later. Otherwise nothing of it will be
    /// visible.
    pub async fn commit(self) -> Result<Timestamp, Error> {
        let inner = self.inner;
        let writes = {
            let mut writes = inner.writes.lock();
            inner.check_open(&writes)?;
            writes.ended = true;
            std::mem::take(&mut writes.cells)
        };
        let mut mutations = Vec::new();
        for (table, cells) in writes {
            let table = inner.table(&table).await?;
            mutations.extend(cells.into_iter().map(|((row, column), write)| Mutation {
                cell: Cell::new(table, row, column),
                kind: write.kind,
                value: write.value,
            }));
        }
        if mutations.is_empty() {
            inner.held.lock().take();
            return Ok(inner.start_ts);
        }
        if let Some(why) = mutations
            .iter()
            .find_map(|mutation| mutation.cell.invalid())
        {
            return Err(Error::Invalid(why));
        }
        let transport = &*inner.router.transport;
        let held = inner.held.lock().take();
        let session = &inner.router.session;
        session
            .confirm(inner.start_ts, transport)
            .await
            .map_err(Error::TooOld)?;
        Commit {
            deadline: inner.router.deadline(inner.options.patience),
            router: inner.router.clone(),
            start_ts: inner.start_ts,
            began: inner.began,
            mutations,
            ttl_ms: u64::try_from(inner.options.lock_ttl.as_millis()).unwrap_or(u64::MAX / 2),
            last_seen: Mutex::default(),
            held: Mutex::new(held),
        }
        .run()
        .await
    }

    /// Ends the transaction without writing anything.
    pub fn rollback(self) {
        let mut writes = self.inner.writes.lock();
        writes.ended = true;
        writes.cells.clear();
        self.inner.held.lock().take();
    }
}

impl OwnWrite {
    pub(crate) fn value(self) -> Option<Bytes> {
        match self {
            Self::Value(value) => Some(value),
            Self::Deleted => None,
        }
    }
}

impl Write {
    /// What the transaction itself reads; `None`: what was there before.
    fn seen(&self) -> Option<OwnWrite> {
        match self.kind {
            LockKind::Put => Some(OwnWrite::Value(self.value.clone())),
            LockKind::Delete => Some(OwnWrite::Deleted),
            LockKind::Lock => None,
        }
    }
}

impl Inner {
    fn check_open(&self, writes: &Writes) -> Result<(), Error> {
        if writes.ended {
            Err(Error::Ended)
        } else {
            Ok(())
        }
    }

    async fn table(&self, name: &str) -> Result<TableId, Error> {
        self.router.table(name, self.options.patience).await
    }

    fn own(&self, table: &str, row: &[u8], column: &[u8]) -> Result<Option<OwnWrite>, Error> {
        let writes = self.writes.lock();
        self.check_open(&writes)?;
        let Some(cells) = writes.cells.get(table) else {
            return Ok(None);
        };
        if mutants::on(Mutant::OwnWritesNotRead) {
            return Ok(None);
        }
        // The map's key is a pair that owns its parts.
        let key = (Bytes::copy_from_slice(row), Bytes::copy_from_slice(column));
        Ok(cells.get(&key).and_then(Write::seen))
    }

    /// The transaction's own writes in a range, in order.
    fn own_in(
        &self,
        table: &str,
        range: &Range,
    ) -> Result<BTreeMap<(Bytes, Bytes), OwnWrite>, Error> {
        let writes = self.writes.lock();
        self.check_open(&writes)?;
        let Some(cells) = writes.cells.get(table) else {
            return Ok(BTreeMap::new());
        };
        if mutants::on(Mutant::OwnWritesNotScanned) {
            return Ok(BTreeMap::new());
        }
        Ok(cells
            .range((range.start().clone(), Bytes::new())..)
            .take_while(|((row, _), _)| range.contains(row))
            .filter_map(|(cell, write)| Some((cell.clone(), write.seen()?)))
            .collect())
    }

    fn write(
        &self,
        table: &str,
        row: &[u8],
        column: &[u8],
        kind: LockKind,
        value: Bytes,
    ) -> Result<(), Error> {
        if self.only_reads {
            return Err(Error::Invalid(format!(
                "a transaction at a chosen snapshot, {}, only reads: begin one without a snapshot to write",
                self.start_ts
            )));
        }
        let cell = Cell::new(
            TableId(0),
            Bytes::copy_from_slice(row),
            Bytes::copy_from_slice(column),
        );
        if let Some(why) = cell.invalid() {
            return Err(Error::Invalid(why));
        }
        let mut writes = self.writes.lock();
        let writes = &mut *writes;
        self.check_open(writes)?;
        let size = row.len() + column.len() + value.len();
        if writes.bytes + size > TRANSACTION_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the transaction holds {} bytes, the limit is {TRANSACTION_BYTES_MAX}; commit in smaller parts",
                writes.bytes + size
            )));
        }
        let cells = match writes.cells.get_mut(table) {
            Some(cells) => cells,
            None => writes.cells.entry(table.to_owned()).or_default(),
        };
        let place = (cell.row, cell.column);
        // Getting for update what was put before doesn't undo the put; it is as strong.
        if kind == LockKind::Lock && cells.contains_key(&place) {
            return Ok(());
        }
        writes.bytes += size;
        if let Some(old) = cells.insert(place, Write { kind, value }) {
            writes.bytes = writes
                .bytes
                .saturating_sub(row.len() + column.len() + old.value.len());
        }
        Ok(())
    }
}
