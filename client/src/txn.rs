//! A transaction: reads at one snapshot, writes buffered until the commit, or until they are too many
//! (`large`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::limits::{BUFFERED_CELL_BYTES, TRANSACTION_BYTES_MAX};
use percolator_protocol::types::{Cell, Chain, LockKind, Mutation, TableId, Timestamp};
use tokio::sync::{Notify, mpsc};

use crate::commit::Commit;
use crate::doom::Doom;
use crate::error::Conflict;
use crate::kind::TxnKind;
use crate::large::{Command, Driver};
use crate::options::Options;
use crate::own::{OwnWrite, Write, check_value, checked_cell};
use crate::pinned::PinnedTables;
use crate::reading::RowCache;
use crate::router::Router;
use crate::scan::{Range, Scan};
use crate::session::GcLockGuard;
use crate::{Error, large, metrics, trace};

/// The name of a cell: table, row, column.
pub type CellName<'a> = (&'a str, &'a [u8], &'a [u8]);

/// A transaction. Its reads see everything committed at or below its start_ts, and its own writes. It
/// can be cloned and used from several tasks; dropping it before the commit rolls it back.
#[derive(Clone)]
pub struct Txn {
    pub(crate) inner: Arc<Inner>,
    /// Somebody else commits it.
    is_lent: bool,
}

pub(crate) struct Inner {
    pub(crate) router: Arc<Router>,
    pub(crate) options: Options,
    pub(crate) start_ts: Timestamp,
    kind: TxnKind,
    began: Duration,
    pub(crate) tables: Arc<PinnedTables>,
    pub(crate) writes: Mutex<Writes>,
    /// It has begun to flush: its own locks may be met.
    large: AtomicBool,
    /// Notified when a flush is in place, or the transaction has failed.
    room: Notify,
    pub(crate) bypass: Mutex<Vec<Timestamp>>,
    pub(crate) rows: Mutex<RowCache>,
    /// The barrier of collection is kept below it until it ends.
    held: Mutex<Option<GcLockGuard>>,
    pub(crate) chain: OnceLock<Chain>,
}

/// By table, row and column.
pub(crate) type Tables = BTreeMap<String, BTreeMap<(Bytes, Bytes), Write>>;

#[derive(Default)]
pub(crate) struct Writes {
    pub(crate) cells: Tables,
    pub(crate) bytes: usize,
    /// What is being flushed, and its bytes.
    pub(crate) flushing: Option<(Arc<Tables>, usize)>,
    /// Notifies those who flush, once something was.
    commands: Option<mpsc::UnboundedSender<Command>>,
    /// The error that ended the transaction, for the next call.
    failed: Option<Error>,
    /// It can't commit any more, whatever became of the error that said so.
    doom: Option<Doom>,
    ended: bool,
}

impl Txn {
    /// `asked`: when the timestamp was asked for. It is no older than that, and locks' ttl counts from it.
    pub(crate) fn new(
        router: Arc<Router>,
        options: Options,
        start_ts: Timestamp,
        asked: Duration,
        held: GcLockGuard,
    ) -> Self {
        Self::begin(router, options, start_ts, asked, held, TxnKind::Full)
    }

    pub(crate) fn begin(
        router: Arc<Router>,
        options: Options,
        start_ts: Timestamp,
        began: Duration,
        held: GcLockGuard,
        kind: TxnKind,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                rows: Mutex::new(RowCache::new(router.world.cached_bytes.clone())),
                router,
                options,
                start_ts,
                kind,
                began,
                tables: Arc::default(),
                writes: Mutex::default(),
                large: AtomicBool::new(false),
                room: Notify::new(),
                bypass: Mutex::default(),
                held: Mutex::new(Some(held.begun(start_ts))),
                chain: OnceLock::new(),
            }),
            is_lent: false,
        }
    }

    /// For a closure whose caller commits the transaction.
    pub(crate) fn lent(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            is_lent: true,
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
        if inner.is_large() {
            let cell = Cell::new(table, row, Bytes::copy_from_slice(column));
            return Ok(inner.read(vec![cell]).await?.pop().flatten());
        }
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

    /// Waits until there is room for more writes: a transaction of any size may be written, by anyone who calls this
    /// now and then between its writes. A large one is flushed meanwhile, and rolled back as soon as that meets a
    /// conflict.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn ready(&self) -> Result<(), Error> {
        let inner = &*self.inner;
        loop {
            let room = inner.room.notified();
            {
                let mut writes = inner.writes.lock();
                inner.check_open(&mut writes)?;
                let full = writes.bytes >= inner.options.flushed_at();
                if !full || writes.flushing.is_none() {
                    return Ok(());
                }
            }
            room.await;
        }
    }

    /// Whether such a cell can be written, for those who want to know it of several before they write the first.
    ///
    /// # Errors
    /// [`Error::Invalid`] over a limit.
    pub fn check_write(
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        checked_cell(row.as_ref(), column.as_ref())?;
        check_value(value.as_ref())
    }

    /// Sets the cell's value at the commit.
    ///
    /// # Errors
    /// [`Error::Invalid`] over a limit; [`Error::Ended`]. Where a flush has failed, why: as [`Self::commit`].
    pub fn put(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<(), Error> {
        let value = value.into();
        check_value(&value)?;
        self.inner
            .write(table, row.as_ref(), column.as_ref(), LockKind::Put, value)
    }

    /// Deletes the cell at the commit.
    ///
    /// # Errors
    /// As [`Self::put`].
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
        let (router, start_ts) = (self.inner.router.clone(), self.inner.start_ts);
        metrics::counted(&router, start_ts, self.commit_uncounted()).await
    }

    async fn commit_uncounted(self) -> Result<Timestamp, Error> {
        if self.is_lent {
            return Err(Error::Invalid(
                "transact commits this transaction when its closure has ended well: end the closure instead".into(),
            ));
        }
        let inner = self.inner;
        inner.kind.check_commits()?;
        let (writes, commands) = {
            let mut writes = inner.writes.lock();
            inner.check_open(&mut writes)?;
            writes.ended = true;
            (std::mem::take(&mut writes.cells), writes.commands.take())
        };
        if let Some(commands) = commands {
            let held = inner.held.lock().take();
            let failed = || Err(inner.writes.lock().failed.take().unwrap_or(Error::Ended));
            return large::commit(commands, writes, held)
                .await
                .unwrap_or_else(failed);
        }
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
        if let Some(metrics) = inner.router.metrics() {
            metrics.commit_cells.observe(mutations.len() as f64);
        }
        let held = inner.held.lock().take();
        let confirmed = inner.router.confirm(inner.start_ts).await;
        confirmed.map_err(Error::TooOld)?;
        Commit {
            deadline: inner.router.deadline(inner.options.request_timeout),
            router: inner.router.clone(),
            start_ts: inner.start_ts,
            began: inner.began,
            mutations,
            chain: inner.chain(),
            flush: None,
            ttl_ms: inner.options.lock_ttl_ms(),
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
        if let Some(commands) = writes.commands.take() {
            let _ = commands.send(Command::Rollback(self.inner.router.in_background()));
        }
        self.inner.held.lock().take();
    }

    /// What it has written and no server has taken yet, in bytes as [`Options::buffer_bytes`](crate::Options::buffer_bytes)
    /// counts them.
    pub fn buffered_bytes(&self) -> usize {
        let writes = self.inner.writes.lock();
        let flushing = writes.flushing.as_ref().map_or(0, |(_, bytes)| *bytes);
        flushing + writes.bytes
    }

    /// The transaction in its trace, where it is sampled: the value of a W3C `traceparent` header, for requests that an
    /// application makes because of it.
    pub fn traceparent(&self) -> Option<String> {
        let context = self.inner.router.trace.as_ref()?.context()?;
        Some(trace::header(context))
    }
}

impl Inner {
    fn check_open(&self, writes: &mut Writes) -> Result<(), Error> {
        if let Some(error) = writes.failed.take() {
            return Err(error);
        }
        if writes.ended {
            Err(Error::Ended)
        } else {
            Ok(())
        }
    }

    /// Ends it: what it has written.
    pub(crate) fn end_with_cells(&self) -> Result<Tables, Error> {
        let mut writes = self.writes.lock();
        self.check_open(&mut writes)?;
        writes.ended = true;
        Ok(std::mem::take(&mut writes.cells))
    }

    /// Whether the servers may have locks of the transaction.
    pub(crate) fn is_large(&self) -> bool {
        self.large.load(Ordering::Relaxed)
    }

    /// What was read with one's own locks is right as long as nobody has ended the transaction meanwhile.
    pub(crate) fn still_open(&self) -> Result<(), Error> {
        self.check_open(&mut self.writes.lock())
    }

    /// The error of a call, which the application may turn into one of its own: whether the transaction is to be begun again
    /// is kept.
    pub(crate) fn doomed_by(&self, error: Error) -> Error {
        if let Some(doom) = Doom::by(&error) {
            self.writes.lock().doom.get_or_insert(doom);
        }
        error
    }

    pub(crate) fn doom(&self) -> Option<Doom> {
        self.writes.lock().doom.clone()
    }

    /// A read has found that the transaction was rolled back on this cell.
    pub(crate) fn rolled_back(&self, cell: Cell) -> Error {
        let error = Error::Conflict(Conflict::RolledBack { cell });
        self.fail(None);
        self.doomed_by(error)
    }

    /// The transaction can't go on; the next call says so.
    pub(crate) fn failed_with(&self, error: Error) {
        self.fail(Some(self.doomed_by(error)));
    }

    fn fail(&self, error: Option<Error>) {
        let mut writes = self.writes.lock();
        writes.ended = true;
        writes.failed = error.or(writes.failed.take());
        writes.cells.clear();
        writes.flushing = None;
        writes.commands = None;
        drop(writes);
        self.room.notify_waiters();
    }

    /// A flush is in place.
    pub(crate) fn flushed(&self) {
        let mut writes = self.writes.lock();
        writes.flushing = None;
        self.flush_if_full(&mut writes);
        drop(writes);
        self.room.notify_waiters();
    }

    fn flush_if_full(&self, writes: &mut Writes) {
        if writes.bytes < self.options.flushed_at() || writes.flushing.is_some() || writes.ended {
            return;
        }
        if let Some(commands) = &writes.commands {
            let tables = Arc::new(std::mem::take(&mut writes.cells));
            writes.flushing = Some((tables.clone(), std::mem::take(&mut writes.bytes)));
            // Should nobody take it any more, then the transaction has failed, and that is said.
            let _ = commands.send(Command::Flush(tables));
        }
    }

    pub(crate) async fn table(&self, name: &str) -> Result<TableId, Error> {
        let request_timeout = self.options.request_timeout;
        self.tables.table(&self.router, name, request_timeout).await
    }

    pub(crate) fn own(
        &self,
        table: &str,
        row: &[u8],
        column: &[u8],
    ) -> Result<Option<OwnWrite>, Error> {
        let mut writes = self.writes.lock();
        self.check_open(&mut writes)?;
        let flushing = writes.flushing.as_ref();
        let flushing = flushing.and_then(|(tables, _)| tables.get(table));
        let cells = writes.cells.get(table);
        if cells.is_none() && flushing.is_none() {
            return Ok(None);
        }
        if mutants::on(Mutant::OwnWritesNotRead) {
            return Ok(None);
        }
        // The map's key is a pair that owns its parts.
        let key = (Bytes::copy_from_slice(row), Bytes::copy_from_slice(column));
        let newest_first = cells.into_iter().chain(flushing);
        let mut own = newest_first.filter_map(|cells| cells.get(&key)?.seen());
        Ok(own.next())
    }

    /// The transaction's own writes in a range, in order, that are still here.
    fn own_in(
        &self,
        table: &str,
        range: &Range,
    ) -> Result<BTreeMap<(Bytes, Bytes), OwnWrite>, Error> {
        let mut writes = self.writes.lock();
        self.check_open(&mut writes)?;
        if mutants::on(Mutant::OwnWritesNotScanned) {
            return Ok(BTreeMap::new());
        }
        let flushing = writes.flushing.as_ref();
        let flushing = flushing.and_then(|(tables, _)| tables.get(table));
        let oldest_first = flushing.into_iter().chain(writes.cells.get(table));
        let in_range = oldest_first.flat_map(|cells| {
            cells
                .range((range.start().clone(), Bytes::new())..)
                .take_while(|((row, _), _)| range.contains(row))
        });
        Ok(in_range
            .filter_map(|(cell, write)| Some((cell.clone(), write.seen()?)))
            .collect())
    }

    pub(crate) fn write(
        self: &Arc<Self>,
        table: &str,
        row: &[u8],
        column: &[u8],
        kind: LockKind,
        value: Bytes,
    ) -> Result<(), Error> {
        self.kind.check_writes(self.start_ts)?;
        let cell = checked_cell(row, column)?;
        self.tables.pin_known(&self.router, table);
        let mut writes = self.writes.lock();
        let writes = &mut *writes;
        self.check_open(writes)?;
        let size = |value: &Bytes| row.len() + column.len() + value.len() + BUFFERED_CELL_BYTES;
        let flushing = writes.flushing.as_ref().map_or(0, |(_, bytes)| *bytes);
        let held = flushing + writes.bytes + size(&value);
        if held > TRANSACTION_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the transaction holds {held} bytes that no server has taken yet, the limit is {TRANSACTION_BYTES_MAX}; wait for room between the writes (Txn::ready)"
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
        writes.bytes += size(&value);
        if let Some(old) = cells.insert(place, Write { kind, value }) {
            writes.bytes = writes.bytes.saturating_sub(size(&old.value));
        }
        let is_full = writes.bytes >= self.options.flushed_at() && writes.flushing.is_none();
        if is_full && self.kind != TxnKind::Participant {
            self.begin_to_flush(writes);
        }
        Ok(())
    }

    fn begin_to_flush(self: &Arc<Self>, writes: &mut Writes) {
        if writes.commands.is_none() {
            let (commands, receiver) = mpsc::unbounded_channel();
            writes.commands = Some(commands);
            self.large.store(true, Ordering::Relaxed);
            let driver = Driver {
                txn: Arc::downgrade(self),
                router: self.router.clone(),
                options: self.options,
                start_ts: self.start_ts,
                began: self.began,
                tables: self.tables.clone(),
                chain: self.chain(),
            };
            self.router
                .world
                .transport
                .spawn(driver.run(receiver).boxed());
        }
        self.flush_if_full(writes);
    }
}
