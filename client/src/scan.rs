//! Scans: the cells of a range of rows, tablet after tablet, with the transaction's own writes among
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::limits::BUFFERED_CELL_BYTES;
use percolator_protocol::types::{Cell, TableId};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::Error;
use crate::attempts::Attempt;
use crate::index::index_row;
use crate::location_cache::prefix_end;
use crate::location_cache::{RowQuery, TabletTarget};
use crate::own::OwnWrite;
use crate::resolver::unexpected;
use crate::retry::Retry;
use crate::router::{CallError, Deadline};
use crate::txn::Inner;

/// Cells asked for at a time.
const PAGE_CELLS: u32 = 1024;

/// A range of rows. `Range::default()` is the whole table.
#[derive(Clone, Debug, Default)]
pub struct Range {
    start: Bytes,
    end: Bytes,
    reverse: bool,
    limit: Option<u64>,
    limit_rows: Option<u64>,
}

impl Range {
    /// Every row.
    pub fn all() -> Self {
        Self::default()
    }

    /// Rows from `start` on, up to and without `end`; an empty `end`: to the table's end.
    pub fn rows(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self {
            start: start.into(),
            end: end.into(),
            ..Self::default()
        }
    }

    /// Rows that start with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let prefix = prefix.into();
        let end = prefix_end(&prefix);
        Self::rows(prefix, end)
    }

    /// The entries of a secondary index at this value, whose rows [`index_row`](crate::index_row) has made:
    /// [`split_index_row`](crate::split_index_row) says which rows they point at.
    pub fn index_value(value: impl AsRef<[u8]>) -> Self {
        Self::prefix(index_row(value.as_ref(), b""))
    }

    /// The cells of one row.
    pub fn row(row: impl AsRef<[u8]>) -> Self {
        let row = row.as_ref();
        Self::rows(row.to_vec(), [row, b"\0"].concat())
    }

    /// From the end to the start.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// At most this many cells.
    #[must_use]
    pub fn limit(mut self, cells: u64) -> Self {
        self.limit = Some(cells);
        self
    }

    /// At most the cells of this many rows.
    #[must_use]
    pub fn limit_rows(mut self, rows: u64) -> Self {
        self.limit_rows = Some(rows);
        self
    }

    pub(crate) fn start(&self) -> &Bytes {
        &self.start
    }

    pub(crate) fn contains(&self, row: &[u8]) -> bool {
        row >= &self.start[..] && (self.end.is_empty() || row < &self.end[..])
    }
}

/// A cell with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The row.
    pub row: Bytes,
    /// The column.
    pub column: Bytes,
    /// The value.
    pub value: Bytes,
}

/// A scan under way. It holds one page of cells at a time.
pub struct Scan {
    txn: Arc<Inner>,
    table: TableId,
    range: Range,
    left: u64,
    /// Rows that may still begin.
    rows_left: u64,
    /// The row of the last cell.
    row: Option<Bytes>,
    page: VecDeque<Entry>,
    own: BTreeMap<(Bytes, Bytes), OwnWrite>,
    /// Go on behind this cell.
    after: Option<v1::CellName>,
    /// Where the next tablet starts (forward) or ends (reverse).
    at: Bytes,
    exhausted: bool,
}

impl Scan {
    pub(crate) fn new(
        txn: Arc<Inner>,
        table: TableId,
        range: Range,
        own: BTreeMap<(Bytes, Bytes), OwnWrite>,
    ) -> Self {
        Self {
            txn,
            table,
            left: range.limit.unwrap_or(u64::MAX),
            rows_left: range.limit_rows.unwrap_or(u64::MAX),
            row: None,
            at: if range.reverse {
                range.end.clone()
            } else {
                range.start.clone()
            },
            exhausted: !range.end.is_empty() && range.start >= range.end,
            range,
            page: VecDeque::new(),
            own,
            after: None,
        }
    }

    /// What it holds of the transaction's own writes, in bytes as [`Txn::buffered_bytes`](crate::Txn::buffered_bytes) counts them:
    /// those of its range, as they were when it began, whatever is written in their place.
    pub fn own_bytes(&self) -> usize {
        let bytes = |((row, column), own): (&(Bytes, Bytes), &OwnWrite)| {
            let value_bytes = match own {
                OwnWrite::Value(value) => value.len(),
                OwnWrite::Deleted => 0,
            };
            row.len() + column.len() + value_bytes + BUFFERED_CELL_BYTES
        };
        self.own.iter().map(bytes).sum()
    }

    /// The next cell; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Invalid`].
    pub async fn next(&mut self) -> Result<Option<Entry>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        loop {
            while self.page.is_empty() && !self.exhausted {
                self.fetch().await?;
            }
            // The transaction's own writes go in between, and instead of what was there.
            let own = if self.range.reverse {
                self.own.last_entry()
            } else {
                self.own.first_entry()
            };
            let from_page = match (self.page.front(), &own) {
                (None, None) => return Ok(None),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some(entry), Some(own)) => {
                    let cell = (&entry.row, &entry.column);
                    let key = (&own.key().0, &own.key().1);
                    if cell == key {
                        self.page.pop_front();
                        continue;
                    }
                    (cell < key) != self.range.reverse
                }
            };
            let entry = if from_page {
                self.page.pop_front()
            } else {
                own.and_then(|own| match own.remove_entry() {
                    ((row, column), OwnWrite::Value(value)) => Some(Entry { row, column, value }),
                    (_, OwnWrite::Deleted) => None,
                })
            };
            if let Some(entry) = entry {
                if self.row.as_ref() != Some(&entry.row) {
                    if self.rows_left == 0 {
                        self.left = 0;
                        return Ok(None);
                    }
                    self.rows_left -= 1;
                    self.row = Some(entry.row.clone());
                }
                self.left -= 1;
                return Ok(Some(entry));
            }
        }
    }

    /// Every cell that is left.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn collect(mut self) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        while let Some(entry) = self.next().await? {
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The cells that are left as a stream, which ends behind an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Entry, Error>> + Send {
        stream::try_unfold(self, |mut scan| async move {
            let entry = scan.next().await?;
            Ok(entry.map(|entry| (entry, scan)))
        })
    }

    async fn fetch(&mut self) -> Result<(), Error> {
        let router = &self.txn.router;
        let deadline = router.deadline(self.txn.options.request_timeout);
        let mut retry = Retry::new(router, deadline);
        loop {
            let wanted = self.wanted();
            let (tablet, attempt) = match router.place(&wanted, deadline).await {
                Ok(tablet) => {
                    let attempt = router.send_to(&tablet, self.request(), deadline).await;
                    (Some(tablet), attempt)
                }
                Err(no_place) => (None, Attempt::Again(no_place.0)),
            };
            let last = match (tablet, attempt) {
                (Some(tablet), Attempt::Done(Body::Scan(response))) => {
                    return self.take(&tablet, response, deadline).await;
                }
                (_, Attempt::Done(_)) => return Err(self.txn.failed(deadline, unexpected())),
                (_, Attempt::Invalid(why)) => return Err(Error::Invalid(why)),
                (_, Attempt::TooOld(too_old)) => {
                    return Err(self.txn.doomed_by(Error::TooOld(too_old)));
                }
                (_, Attempt::Frozen(_)) => {
                    let error = CallError::BeingDeleted(self.table);
                    return Err(deadline.error(&*router.world.transport, "scanning", error));
                }
                (_, attempt) => attempt.into(),
            };
            let error = match retry.pause_and_locate(last, vec![wanted]).await {
                Ok(()) if router.locations().deleted(self.table) => CallError::Deleted(self.table),
                Ok(()) => continue,
                Err(gave_up) => gave_up,
            };
            return Err(deadline.error(&*router.world.transport, "scanning", error));
        }
    }

    /// The tablet to go on in: that of the last cell, while there may be more of it. It may have been split since, so that
    /// the rows where it began are another one's.
    fn wanted(&self) -> RowQuery {
        let before = self.range.reverse;
        let last = self.after.as_ref().map(|cell| &cell.row);
        let last = last.filter(|_| !mutants::on(Mutant::ScanGoesBack));
        let row = match last {
            // The last row before the one that follows it.
            Some(row) if before => [row, &b"\0"[..]].concat().into(),
            Some(row) => row.clone(),
            None => self.at.clone(),
        };
        RowQuery {
            table: self.table,
            row,
            before,
        }
    }

    fn request(&self) -> Ask {
        let (start_ts, bypass) = self.txn.snapshot();
        // Own deletions hide cells, so that more than `left` may be needed; the next page has them.
        let limit = u32::try_from(self.left).unwrap_or(u32::MAX).min(PAGE_CELLS);
        // Not from the range's edge on: what was passed may be the same tablet's now, merged with this one.
        let (mut start_row, mut end_row) = (self.range.start.clone(), self.range.end.clone());
        if !mutants::on(Mutant::ScanGoesBack) {
            let edge = if self.range.reverse {
                &mut end_row
            } else {
                &mut start_row
            };
            edge.clone_from(&self.at);
        }
        Ask::Scan(v1::ScanRequest {
            start_ts,
            bypass,
            start_row,
            end_row,
            limit,
            reverse: self.range.reverse,
            after: self.after.clone(),
            own: self.txn.is_large(),
            ..v1::ScanRequest::default()
        })
    }

    async fn take(
        &mut self,
        tablet: &TabletTarget,
        response: v1::ScanResponse,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if let Some(cell) = response.rolled_back {
            return Err(self.txn.rolled_back(cell.into()));
        }
        if self.txn.is_large() {
            self.txn.still_open()?;
        }
        if let Some(last) = response.cells.last() {
            let last = Cell::new(self.table, last.row.clone(), last.column.clone());
            self.after = Some((&last).into());
        }
        self.page
            .extend(response.cells.into_iter().map(|cell| Entry {
                row: cell.row,
                column: cell.column,
                value: cell.value,
            }));
        if !response.locked.is_empty() {
            return self.txn.get_past(response.locked, deadline).await;
        }
        if !response.done {
            self.after = response.resume.or(self.after.take());
            return Ok(());
        }
        self.after = None;
        let (edge, range_edge) = if self.range.reverse {
            (&tablet.start_row, &self.range.start)
        } else {
            (&tablet.end_row, &self.range.end)
        };
        let beyond = if self.range.reverse {
            edge <= range_edge
        } else {
            !range_edge.is_empty() && edge >= range_edge
        };
        if edge.is_empty() || beyond {
            self.exhausted = true;
        } else {
            self.at = edge.clone();
        }
        Ok(())
    }
}
