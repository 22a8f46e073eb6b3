//! A transaction: reads at one snapshot, writes buffered until the commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_protocol::txn::MetLock;
use percolator_protocol::types::limits::{TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX};
use percolator_protocol::types::{Cell, LockKind, Mutation, TableId, Timestamp, key};
use percolator_wire::v1;
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::Error;
use crate::client::Options;
use crate::commit::Commit;
use crate::resolver::{malformed, unexpected};
use crate::router::{Attempt, CallError, Deadline, Router};
use crate::scan::{Range, Scan};

/// The name of a cell: table, row, column.
pub type CellName<'a> = (&'a str, &'a [u8], &'a [u8]);

/// Transactions whose locks a reader remembers to look through; forgotten ones are asked about again.
const BYPASS_MAX: usize = 2048;
/// Rows that a transaction remembers to have read a cell of.
const TOUCHED_ROWS_MAX: usize = 16_384;
/// Rows whose every cell a transaction keeps once it has read two of them.
const CACHED_ROWS_MAX: usize = 1024;

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
    began: Duration,
    writes: Mutex<Writes>,
    bypass: Mutex<Vec<Timestamp>>,
    rows: Mutex<RowCache>,
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

/// Where one cell of a row was read, the others are likely to be read next (mission B12): the second
/// one fetches the whole row.
#[derive(Default)]
struct RowCache {
    touched: HashSet<(TableId, Bytes)>,
    whole: HashMap<(TableId, Bytes), HashMap<Bytes, Bytes>>,
}

impl RowCache {
    /// Notes that a cell of the row is read; true: another one was read before.
    fn touch(&mut self, table: TableId, row: &Bytes) -> bool {
        if self.touched.len() >= TOUCHED_ROWS_MAX {
            self.touched.clear();
        }
        !self.touched.insert((table, row.clone()))
    }
}

impl Txn {
    pub(crate) fn new(router: Arc<Router>, options: Options, start_ts: Timestamp) -> Self {
        let began = router.transport.now();
        Self {
            inner: Arc::new(Inner {
                router,
                options,
                start_ts,
                began,
                writes: Mutex::default(),
                bypass: Mutex::default(),
                rows: Mutex::default(),
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
            return inner.whole_row(table, row, column).await;
        }
        let cell = Cell::new(table, row, Bytes::copy_from_slice(column));
        let mut values = inner.read(vec![cell]).await?;
        Ok(values.pop().flatten())
    }

    /// The values of several cells, in the same order, with one request a server.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn batch_get(&self, cells: &[CellName<'_>]) -> Result<Vec<Option<Bytes>>, Error> {
        let inner = &*self.inner;
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
            return Ok(inner.start_ts);
        }
        if let Some(why) = mutations
            .iter()
            .find_map(|mutation| mutation.cell.invalid())
        {
            return Err(Error::Invalid(why));
        }
        Commit {
            deadline: inner.router.deadline(inner.options.patience),
            router: inner.router.clone(),
            start_ts: inner.start_ts,
            began: inner.began,
            mutations,
            ttl_ms: u64::try_from(inner.options.lock_ttl.as_millis()).unwrap_or(u64::MAX / 2),
            last_seen: Mutex::default(),
        }
        .run()
        .await
    }

    /// Ends the transaction without writing anything.
    pub fn rollback(self) {
        let mut writes = self.inner.writes.lock();
        writes.ended = true;
        writes.cells.clear();
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
        if let Some(table) = self.router.directory().table(name) {
            return Ok(table);
        }
        let deadline = self.router.deadline(self.options.patience);
        self.router.table(name, deadline).await
    }

    fn own(&self, table: &str, row: &[u8], column: &[u8]) -> Result<Option<OwnWrite>, Error> {
        let writes = self.writes.lock();
        self.check_open(&writes)?;
        let Some(cells) = writes.cells.get(table) else {
            return Ok(None);
        };
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

    fn cached(&self, table: TableId, row: &Bytes, column: &[u8]) -> Option<Option<Bytes>> {
        let rows = self.rows.lock();
        if rows.whole.is_empty() {
            return None;
        }
        let cells = rows.whole.get(&(table, row.clone()))?;
        Some(cells.get(column).cloned())
    }

    /// Fetches a whole row, keeps it, and returns one cell's value.
    async fn whole_row(
        &self,
        table: TableId,
        row: Bytes,
        column: &[u8],
    ) -> Result<Option<Bytes>, Error> {
        let Some(cells) = self.read_row(table, row.clone()).await? else {
            // Too large to be kept, so its cells are read one by one.
            let cell = Cell::new(table, row, Bytes::copy_from_slice(column));
            return Ok(self.read(vec![cell]).await?.pop().flatten());
        };
        let cells: HashMap<Bytes, Bytes> = cells.into_iter().collect();
        let value = cells.get(column).cloned();
        let mut rows = self.rows.lock();
        if rows.whole.len() < CACHED_ROWS_MAX {
            rows.whole.insert((table, row), cells);
        }
        Ok(value)
    }

    /// The cells of a row; `None` where they're too large for one answer.
    async fn read_row(
        &self,
        table: TableId,
        row: Bytes,
    ) -> Result<Option<Vec<(Bytes, Bytes)>>, Error> {
        let deadline = self.router.deadline(self.options.patience);
        let cell = Cell::new(table, row, Bytes::new());
        loop {
            let (start_ts, bypass) = self.snapshot();
            let build = |cell| {
                Ask::Get(v1::GetRequest {
                    start_ts,
                    bypass: bypass.clone(),
                    cells: vec![cell],
                    whole_rows: true,
                })
            };
            let body = self.router.call_one(&cell, &build, deadline).await;
            let Body::Get(response) = body.map_err(|error| self.failed(deadline, error))? else {
                return Err(self.failed(deadline, unexpected()));
            };
            if response.truncated {
                return Ok(None);
            }
            let mut cells = Vec::with_capacity(response.results.len());
            let mut met = Vec::new();
            for result in response.results {
                match result.result {
                    Some(Got::Found(found)) => {
                        cells.push((found.cell.unwrap_or_default().column, found.value));
                    }
                    Some(Got::Locked(locked)) => met.push(locked),
                    Some(Got::Absent(_)) | None => {}
                }
            }
            if met.is_empty() {
                return Ok(Some(cells));
            }
            self.get_past(met).await?;
        }
    }

    /// Asks for one cell once, without what several cells, locks and lost answers need. `None`: it takes
    /// the long way.
    async fn read_one(&self, cell: &Cell) -> Option<Option<Bytes>> {
        let directory = self.router.directory();
        let (tablet, address) = directory.locate(cell.table, &cell.row).ok()?;
        let refs = vec![v1::TabletRef {
            id: tablet.id,
            epoch: tablet.epoch,
        }];
        let (start_ts, bypass) = self.snapshot();
        let ask = Ask::Get(v1::GetRequest {
            start_ts,
            bypass,
            cells: vec![v1::CellRef {
                tablet: 0,
                row: cell.row.clone(),
                column: cell.column.clone(),
            }],
            whole_rows: false,
        });
        let Attempt::Done(Body::Get(mut response)) = self.router.send(address, refs, ask).await
        else {
            return None;
        };
        match response.results.pop()?.result? {
            Got::Found(found) => Some(Some(found.value)),
            Got::Absent(_) => Some(None),
            Got::Locked(_) => None,
        }
    }

    /// Reads cells, getting past whatever lock is in the way.
    async fn read(&self, cells: Vec<Cell>) -> Result<Vec<Option<Bytes>>, Error> {
        if let [cell] = &cells[..]
            && let Some(value) = self.read_one(cell).await
        {
            return Ok(vec![value]);
        }
        let deadline = self.router.deadline(self.options.patience);
        let mut values = vec![None; cells.len()];
        let mut waiting: Vec<usize> = (0..cells.len()).collect();
        while !waiting.is_empty() {
            let (start_ts, bypass) = self.snapshot();
            let build = |cells: Vec<(usize, v1::CellRef)>| {
                Ask::Get(v1::GetRequest {
                    start_ts,
                    bypass: bypass.clone(),
                    cells: cells.into_iter().map(|(_, cell)| cell).collect(),
                    whole_rows: false,
                })
            };
            let answered = self
                .router
                .call(
                    &|at: usize| cells[at].clone(),
                    std::mem::take(&mut waiting),
                    &|_| 0,
                    &build,
                    deadline,
                )
                .await;
            let mut met = Vec::new();
            for (indices, body) in answered {
                let Body::Get(response) = body.map_err(|error| self.failed(deadline, error))?
                else {
                    return Err(self.failed(deadline, unexpected()));
                };
                let answered = response.results.len();
                if answered == 0 || answered > indices.len() {
                    return Err(self.failed(deadline, unexpected()));
                }
                // What was too much for one answer is asked for again.
                waiting.extend(&indices[answered..]);
                for (at, result) in indices.into_iter().zip(response.results) {
                    match result.result {
                        Some(Got::Found(found)) => values[at] = Some(found.value),
                        Some(Got::Locked(locked)) => {
                            waiting.push(at);
                            met.push(locked);
                        }
                        Some(Got::Absent(_)) | None => {}
                    }
                }
            }
            self.get_past(met).await?;
        }
        Ok(values)
    }

    /// What a read request says of the snapshot.
    pub(crate) fn snapshot(&self) -> (u64, Vec<u64>) {
        let bypass = self.bypass.lock();
        (
            self.start_ts.as_u64(),
            bypass.iter().map(|ts| ts.as_u64()).collect(),
        )
    }

    /// Gets past locks that were met: asks each transaction's primary once.
    pub(crate) async fn get_past(&self, met: Vec<v1::MetLock>) -> Result<(), Error> {
        let deadline = self.router.deadline(self.options.patience);
        let mut by_transaction: BTreeMap<Timestamp, Vec<MetLock>> = BTreeMap::new();
        for met in met {
            let met =
                MetLock::try_from(met).map_err(|error| self.failed(deadline, malformed(error)))?;
            by_transaction
                .entry(met.lock.start_ts)
                .or_default()
                .push(met);
        }
        for (start_ts, met) in by_transaction {
            if self.bypass.lock().contains(&start_ts) {
                continue;
            }
            if let Some(harmless) = self.router.get_past(&met, self.start_ts, deadline).await? {
                let mut bypass = self.bypass.lock();
                if bypass.len() >= BYPASS_MAX {
                    bypass.remove(0);
                }
                bypass.push(harmless);
            }
        }
        Ok(())
    }

    pub(crate) fn failed(&self, deadline: Deadline, error: CallError) -> Error {
        deadline.error(&*self.router.transport, "reading", error)
    }
}

/// A row of a secondary index: the indexed value, then the key of the row it points at, so that rows
/// are ordered by value and those of one value lie together.
pub fn index_row(value: &[u8], row: &[u8]) -> Bytes {
    let mut index = Vec::with_capacity(value.len() + row.len() + 2);
    key::push_component(&mut index, value);
    index.extend_from_slice(row);
    index.into()
}

/// The value and the key in a row of a secondary index; `None` where it isn't one.
pub fn split_index_row(index: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    key::take_component(index).ok()
}
