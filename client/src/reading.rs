//! What a transaction does to read: asks the cells' servers, gets past locks, and remembers rows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use percolator_protocol::txn::MetLock;
use percolator_protocol::types::{Cell, TableId, Timestamp};
use percolator_wire::v1::get_result::Result as GetResult;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use percolator_wire::{Malformed, v1};

use crate::attempts::Attempt;
use crate::location_cache::RowQuery;
use crate::resolver::{malformed, unexpected};
use crate::router::{CallError, Deadline};
use crate::txn::{CellName, Inner};
use crate::{Error, Txn};

/// Transactions whose locks a reader ignores from now on; the primaries of forgotten ones are asked again.
const BYPASS_MAX: usize = 2048;
/// Rows that a transaction remembers to have read a cell of.
const TOUCHED_ROWS_MAX: usize = 1024;
/// Rows whose every cell a transaction keeps once it has read two of them; their bytes; and those of all transactions of a client.
const CACHED_ROWS_MAX: usize = 1024;
const CACHED_BYTES_MAX: usize = 8 << 20;
const CACHED_BYTES_MAX_OF_ALL: usize = 64 << 20;

/// Where one cell of a row was read, the others are likely to be read next: the second one fetches the whole row.
pub(crate) struct RowCache {
    /// By their hashes: a row that only seems to have been read is fetched whole.
    touched: HashSet<u64>,
    whole: HashMap<(TableId, Bytes), HashMap<Bytes, Bytes>>,
    /// There was no room for a row: the others are read cell by cell.
    full: bool,
    /// Of the cells that are kept.
    bytes: usize,
    /// The same of all transactions of the client.
    of_all: Arc<AtomicUsize>,
}

impl RowCache {
    pub(crate) fn new(of_all: Arc<AtomicUsize>) -> Self {
        Self {
            touched: HashSet::default(),
            whole: HashMap::default(),
            full: false,
            bytes: 0,
            of_all,
        }
    }

    /// Notes that a cell of the row is read; true: another one was read before, and there is room for the row.
    pub(crate) fn touch(&mut self, table: TableId, row: &Bytes) -> bool {
        if self.touched.len() >= TOUCHED_ROWS_MAX {
            self.touched.clear();
        }
        let hash = self.touched.hasher().hash_one((table, row));
        !self.touched.insert(hash) && !self.full
    }

    /// Keeps the cells of a row, where there is room.
    fn keep(&mut self, table: TableId, row: Bytes, cells: &HashMap<Bytes, Bytes>) {
        let sizes = cells
            .iter()
            .map(|(column, value)| column.len() + value.len());
        let bytes = row.len() + sizes.sum::<usize>();
        if self.whole.len() >= CACHED_ROWS_MAX
            || self.bytes + bytes > CACHED_BYTES_MAX
            || self.of_all.load(Ordering::Relaxed) + bytes > CACHED_BYTES_MAX_OF_ALL
        {
            self.full = true;
            return;
        }
        // What was received lies in one piece with other responses.
        let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let cells = cells
            .iter()
            .map(|(column, value)| (own(column), own(value)));
        let before = self.whole.insert((table, row), cells.collect());
        // Two reads of the row at a time.
        if before.is_none() {
            self.bytes += bytes;
            self.of_all.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for RowCache {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The request for the values of these cells; `own`: of a large transaction, which has locks there.
fn get_request(start_ts: u64, bypass: Vec<u64>, cells: Vec<v1::CellRef>, own: bool) -> Ask {
    Ask::Get(v1::GetRequest {
        start_ts,
        bypass,
        cells,
        whole_rows: false,
        own,
    })
}

/// For those who don't count what arrives.
fn uncounted(_bytes: usize) -> Result<(), Error> {
    Ok(())
}

impl Txn {
    /// The values of several cells, in the same order, with one request a server.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn batch_get(&self, cells: &[CellName<'_>]) -> Result<Vec<Option<Bytes>>, Error> {
        self.batch_get_counted(cells, uncounted).await
    }

    /// [`Self::batch_get`], for those who bound what they hold: `count` gets the bytes of values as they arrive, before more of
    /// them are asked for, and its error ends the call.
    ///
    /// # Errors
    /// As [`Self::get`], and those of `count`.
    pub async fn batch_get_counted<E: From<Error>>(
        &self,
        cells: &[CellName<'_>],
        mut count: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Vec<Option<Bytes>>, E> {
        let inner = &*self.inner;
        if let [(table, row, column)] = cells
            && !inner.is_large()
        {
            let value = match inner.own(table, row, column)? {
                Some(own) => own.value(),
                None => {
                    let table = inner.table(table).await?;
                    let (row, column) =
                        (Bytes::copy_from_slice(row), Bytes::copy_from_slice(column));
                    inner.read_one(table, row, column).await?
                }
            };
            count(value.as_ref().map_or(0, Bytes::len))?;
            return Ok(vec![value]);
        }
        let mut values = vec![None; cells.len()];
        let mut asked = Vec::new();
        let mut places = Vec::new();
        for (at, (table, row, column)) in cells.iter().enumerate() {
            if let Some(own) = inner.own(table, row, column)? {
                values[at] = own.value();
                count(values[at].as_ref().map_or(0, Bytes::len))?;
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
        let deadline = inner.router.deadline(inner.options.request_timeout);
        let read = inner.read_by(asked, deadline, &mut count).await?;
        for (at, value) in places.into_iter().zip(read) {
            values[at] = value;
        }
        Ok(values)
    }
}

impl Inner {
    pub(crate) fn cached(
        &self,
        table: TableId,
        row: &Bytes,
        column: &[u8],
    ) -> Option<Option<Bytes>> {
        let rows = self.rows.lock();
        if rows.whole.is_empty() {
            return None;
        }
        let cells = rows.whole.get(&(table, row.clone()))?;
        Some(cells.get(column).cloned())
    }

    /// Fetches a whole row, keeps it, and returns one cell's value.
    pub(crate) async fn whole_row(
        &self,
        table: TableId,
        row: Bytes,
        column: &[u8],
    ) -> Result<Option<Bytes>, Error> {
        let Some(cells) = self.read_row(table, row.clone()).await? else {
            // Too large to be kept, so its cells are read one by one.
            return self
                .read_one(table, row, Bytes::copy_from_slice(column))
                .await;
        };
        let cells: HashMap<Bytes, Bytes> = cells.into_iter().collect();
        let value = cells.get(column).cloned();
        self.rows.lock().keep(table, row, &cells);
        Ok(value)
    }

    /// The cells of a row; `None` where they're too large for one response.
    async fn read_row(
        &self,
        table: TableId,
        row: Bytes,
    ) -> Result<Option<Vec<(Bytes, Bytes)>>, Error> {
        let deadline = self.router.deadline(self.options.request_timeout);
        let cell = Cell::new(table, row, Bytes::new());
        loop {
            let (start_ts, bypass) = self.snapshot();
            let build = |cell| {
                Ask::Get(v1::GetRequest {
                    start_ts,
                    bypass: bypass.clone(),
                    cells: vec![cell],
                    whole_rows: true,
                    own: false,
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
                    Some(GetResult::Found(found)) => {
                        let cell = found.cell.ok_or(Malformed("a value without a cell"));
                        let cell = cell.map_err(|error| self.failed(deadline, malformed(error)))?;
                        cells.push((cell.column, found.value));
                    }
                    Some(GetResult::Locked(locked)) => met.push(locked),
                    Some(GetResult::Absent(_) | GetResult::RolledBack(_)) | None => {}
                }
            }
            if met.is_empty() {
                return Ok(Some(cells));
            }
            self.get_past(met, deadline).await?;
        }
    }

    /// Reads one cell, getting past whatever lock is in the way.
    pub(crate) async fn read_one(
        &self,
        table: TableId,
        row: Bytes,
        column: Bytes,
    ) -> Result<Option<Bytes>, Error> {
        let deadline = self.router.deadline(self.options.request_timeout);
        let attempt = self.ask_once(table, &row, &column, deadline).await;
        match attempt {
            Some(Attempt::Done(Body::GetOne(response))) if response.locked.is_none() => {
                return Ok(response.value);
            }
            Some(
                Attempt::Again(why)
                | Attempt::Busy(why)
                | Attempt::Moved(why)
                | Attempt::Lost(why)
                | Attempt::NeverSent(why),
            ) if deadline.passed(&*self.router.world.transport) => {
                return Err(self.failed(deadline, CallError::GaveUp(why)));
            }
            Some(Attempt::Damaged(why)) => {
                return Err(self.failed(deadline, CallError::GaveUp(why)));
            }
            _ => {}
        }
        let cells = vec![Cell::new(table, row, column)];
        // In a box, so that the usual read's future stays small.
        let mut values = Box::pin(self.read_by(cells, deadline, &mut uncounted)).await?;
        Ok(values.pop().flatten())
    }

    /// Asks for one cell once, without what several cells, locks and lost responses need. `None`: nobody is
    /// known to serve it.
    async fn ask_once(
        &self,
        table: TableId,
        row: &Bytes,
        column: &Bytes,
        deadline: Deadline,
    ) -> Option<Attempt> {
        let tablet = self
            .router
            .locations()
            .locate(&RowQuery::of(table, row))
            .ok()?;
        let (start_ts, bypass) = self.snapshot();
        let ask = Ask::GetOne(v1::GetOneRequest {
            tablet_id: tablet.id,
            epoch: tablet.epoch,
            start_ts,
            row: row.clone(),
            column: column.clone(),
            bypass,
        });
        let sent = self.router.send(&tablet.address, Vec::new(), ask, deadline);
        Some(sent.await)
    }

    /// Reads cells, getting past whatever lock is in the way.
    pub(crate) async fn read(&self, cells: Vec<Cell>) -> Result<Vec<Option<Bytes>>, Error> {
        let deadline = self.router.deadline(self.options.request_timeout);
        self.read_by(cells, deadline, &mut uncounted).await
    }

    /// [`Self::read`], by a deadline. `count`: as of [`Txn::batch_get_counted`].
    async fn read_by<E: From<Error>>(
        &self,
        cells: Vec<Cell>,
        mut deadline: Deadline,
        count: &mut impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Vec<Option<Bytes>>, E> {
        let mut values = vec![None; cells.len()];
        let mut waiting: Vec<usize> = (0..cells.len()).collect();
        let own = self.is_large();
        while !waiting.is_empty() {
            let (start_ts, bypass) = self.snapshot();
            let build = |cells: Vec<(usize, v1::CellRef)>| {
                let cells = cells.into_iter().map(|(_, cell)| cell).collect();
                get_request(start_ts, bypass.clone(), cells, own)
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
            let (mut met, mut bytes) = (Vec::new(), 0);
            for (indices, body) in answered {
                let Body::Get(response) = body.map_err(|error| self.failed(deadline, error))?
                else {
                    return Err(self.failed(deadline, unexpected()).into());
                };
                let answered = response.results.len();
                if answered == 0 || answered > indices.len() {
                    return Err(self.failed(deadline, unexpected()).into());
                }
                // What was too much for one response is asked for again.
                waiting.extend(&indices[answered..]);
                for (at, result) in indices.into_iter().zip(response.results) {
                    match result.result {
                        Some(GetResult::Found(found)) => {
                            bytes += found.value.len();
                            values[at] = Some(found.value);
                        }
                        Some(GetResult::Locked(locked)) => {
                            waiting.push(at);
                            met.push(locked);
                        }
                        Some(GetResult::RolledBack(_)) => {
                            return Err(self.rolled_back(cells[at].clone()).into());
                        }
                        Some(GetResult::Absent(_)) | None => {}
                    }
                }
            }
            count(bytes)?;
            if met.is_empty() && !waiting.is_empty() {
                // Servers that send one large piece after the other aren't away.
                deadline = self.router.deadline(self.options.request_timeout);
            }
            self.get_past(met, deadline).await?;
        }
        if own {
            self.still_open()?;
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
    pub(crate) async fn get_past(
        &self,
        met: Vec<v1::MetLock>,
        deadline: Deadline,
    ) -> Result<(), Error> {
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
        let error = deadline.error(&*self.router.world.transport, "reading", error);
        self.doomed_by(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: usize) -> HashMap<Bytes, Bytes> {
        [(Bytes::from("c"), vec![0; bytes].into())].into()
    }

    #[test]
    fn kept_rows_are_bounded_for_each_transaction_and_in_all() {
        let of_all = Arc::new(AtomicUsize::new(0));
        let fill = |cache: &mut RowCache| {
            for number in 0..2 * CACHED_ROWS_MAX {
                cache.keep(TableId(1), number.to_string().into(), &row(1 << 20));
            }
        };
        let mut caches = Vec::new();
        for _ in 0..20 {
            let mut cache = RowCache::new(of_all.clone());
            fill(&mut cache);
            assert!(cache.bytes <= CACHED_BYTES_MAX, "{}", cache.bytes);
            // The others cost no more than what is asked for.
            let row = Bytes::from("row");
            assert!(!cache.touch(TableId(1), &row) && !cache.touch(TableId(1), &row));
            caches.push(cache);
        }
        assert_eq!(caches[0].whole.len(), 7);
        let all = of_all.load(Ordering::Relaxed);
        assert!((CACHED_BYTES_MAX_OF_ALL / 2..=CACHED_BYTES_MAX_OF_ALL).contains(&all));
        // A row that is read twice at a time counts once.
        let before = caches[0].bytes;
        caches[0].keep(TableId(1), "0".into(), &row(10));
        assert_eq!(caches[0].bytes, before);
        drop(caches);
        assert_eq!(of_all.load(Ordering::Relaxed), 0);
        let mut cache = RowCache::new(of_all);
        fill(&mut cache);
        assert_eq!(cache.whole.len(), 7);
    }
}
