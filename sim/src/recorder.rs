//! Transactions of the client library whose every read, write and answer is written down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_client::{Cell, CellName as Name, Client, Error, Outcome, Range, Timestamp, Txn};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::ack_column;

use crate::history::{CellName, End, Op, RangeRead, Record, Write};
use crate::invariants::errors::{self, ConflictSeen};
use crate::invariants::floors_cover::{OpenTransaction, OpenTransactions, Phase};
use crate::invariants::{exact_reads, leases_hold};
use crate::rng::Rng;
use crate::world::World;

/// Keys, where there are few.
const FEW: u64 = 3;

/// Everything that was written down.
#[derive(Default)]
pub struct Recorder {
    records: Mutex<Vec<Record>>,
    conflicts: Mutex<Vec<ConflictSeen>>,
}

impl Recorder {
    /// All records, in the order in which transactions began.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.records.lock())
    }

    /// The conflicts by which transactions were refused.
    pub(crate) fn conflicts(&self) -> Vec<ConflictSeen> {
        self.conflicts.lock().clone()
    }

    /// Looks at all records.
    pub fn look<T>(&self, look: impl FnOnce(&[Record]) -> T) -> T {
        look(&self.records.lock())
    }

    /// How many transactions were recorded.
    pub fn len(&self) -> usize {
        self.records.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a worker works with.
#[derive(Clone)]
pub struct Session {
    /// The world.
    pub world: Arc<World>,
    /// The client library.
    pub client: Client,
    /// What that library's lease has to cover.
    pub open: Arc<OpenTransactions>,
    /// Where transactions are written down.
    pub recorder: Arc<Recorder>,
    /// The worker's name: of the client's process, and of the worker in it.
    pub name: String,
    /// The worker's dice.
    pub rng: Arc<Mutex<Rng>>,
    /// How many of its transactions are committed and have written something or got it for update: reads
    /// alone are no progress.
    pub wrote: Arc<AtomicU64>,
    /// While there are faults, it only reads.
    pub only_reads: bool,
    /// It uses few keys.
    pub few_keys: bool,
    /// Nothing keeps its lease from covering each transaction from its begin to its end.
    pub is_covered: bool,
    /// Nothing fails.
    pub is_healthy: bool,
}

impl Session {
    /// The same with dice of its own.
    #[must_use]
    pub fn with_dice(&self, name: &str) -> Self {
        let rng = self.rng.lock().stream(name);
        Self {
            rng: Arc::new(Mutex::new(rng)),
            ..self.clone()
        }
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.rng.lock().below(end)
    }

    /// One of so many keys; where there are few, one of the first.
    pub fn key(&self, keys: u64) -> u64 {
        let key = self.below(keys);
        if self.few_keys { key % FEW } else { key }
    }

    /// Begins a transaction now.
    ///
    /// # Errors
    /// The client library's.
    pub async fn begin(&self) -> Result<Recorded, Error> {
        let began_us = self.world.now_us();
        let txn = self.client.begin().await?;
        Ok(self.record(txn, began_us, true))
    }

    /// Begins a transaction at an older snapshot.
    ///
    /// # Errors
    /// The client library's.
    pub async fn begin_at(&self, snapshot: Timestamp) -> Result<Recorded, Error> {
        let began_us = self.world.now_us();
        let txn = self.client.begin_at(snapshot).await?;
        Ok(self.record(txn, began_us, false))
    }

    /// Makes a table, unless it is there.
    ///
    /// # Errors
    /// The client library's.
    pub async fn make_table(&self, name: &str, cuts: &[Bytes]) -> Result<(), Error> {
        match self.client.create_table(name, cuts).await {
            Ok(()) | Err(Error::AlreadyExists(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What became of a transaction whose answer was lost, as far as it can be found out.
    async fn outcome(&self, start_ts: Timestamp, primary: &Cell) -> End {
        // A stream of its own: what the worker does next doesn't depend on which answers get lost.
        let mut rng = Rng::new(start_ts.as_u64(), "outcome");
        for _ in 0..rng.below(4) {
            match self.client.outcome(start_ts, primary).await {
                Ok(Outcome::Committed(commit_ts)) => return End::Committed(commit_ts),
                Ok(Outcome::RolledBack) => return End::Aborted("it was rolled back".to_owned()),
                Ok(Outcome::Pending | Outcome::Forgotten) | Err(_) => {}
            }
            let pause = rng.about(Duration::from_millis(300));
            self.world.sleep(pause).await;
        }
        End::Unknown
    }

    fn record(&self, txn: Txn, began_us: u64, fresh: bool) -> Recorded {
        let start_ts = txn.start_ts();
        let mut records = self.recorder.records.lock();
        records.push(Record {
            client: self.name.clone(),
            began_us,
            ended_us: u64::MAX,
            start_ts,
            fresh,
            ops: Vec::new(),
            lost: false,
            end: End::Open,
        });
        Recorded {
            open: self.open.hold(start_ts, Phase::Open),
            txn,
            at: records.len() - 1,
            is_fresh: fresh,
            session: self.clone(),
        }
    }
}

/// A transaction that is written down.
pub struct Recorded {
    open: OpenTransaction,
    txn: Txn,
    at: usize,
    /// Its snapshot was taken for it.
    is_fresh: bool,
    session: Session,
}

impl Recorded {
    /// Its snapshot.
    pub fn start_ts(&self) -> Timestamp {
        self.txn.start_ts()
    }

    fn note(&self, note: impl FnOnce(&mut Record)) {
        note(&mut self.session.recorder.records.lock()[self.at]);
    }

    /// What a call has come to; a refusal must be one that may be.
    fn seen<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|error| leases_hold::look(&self.session, self.is_fresh, error))
    }

    fn read(&self, cell: CellName, value: Option<Bytes>) {
        self.note(|record| record.ops.push(Op::Read { cell, value }));
    }

    fn wrote(&self, cell: CellName, value: Option<Bytes>, is_lock: bool) {
        let write = Write {
            cell,
            value,
            is_lock,
        };
        self.note(|record| {
            // What was written before is not undone by getting it for update.
            let is_own = |op: &Op| matches!(op, Op::Write(own) if own.cell == write.cell);
            if !is_lock || !record.ops.iter().any(is_own) {
                record.ops.push(Op::Write(write));
            }
        });
    }

    /// As the client library's.
    ///
    /// # Errors
    /// The client library's, as of all others here.
    pub async fn get(&self, table: &str, row: &str, column: &str) -> Result<Option<Bytes>, Error> {
        let value = self.seen(self.txn.get(table, row, column).await)?;
        self.read(name(table, row, column), value.clone());
        Ok(value)
    }

    /// As the client library's.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn batch_get(&self, cells: &[Name<'_>]) -> Result<Vec<Option<Bytes>>, Error> {
        let values = self.seen(self.txn.batch_get(cells).await)?;
        for ((table, row, column), value) in cells.iter().zip(&values) {
            let cell = CellName {
                table: (*table).to_owned(),
                row: Bytes::copy_from_slice(row),
                column: Bytes::copy_from_slice(column),
            };
            self.read(cell, value.clone());
        }
        Ok(values)
    }

    /// As the client library's.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_for_update(
        &self,
        table: &str,
        row: &str,
        column: &str,
    ) -> Result<Option<Bytes>, Error> {
        let value = self.seen(self.txn.get_for_update(table, row, column).await)?;
        let cell = name(table, row, column);
        self.read(cell.clone(), value.clone());
        self.wrote(cell, None, true);
        Ok(value)
    }

    /// As the client library's.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn acknowledge(
        &self,
        table: &str,
        row: &str,
        column: &str,
    ) -> Result<Option<Bytes>, Error> {
        let value = self.seen(self.txn.acknowledge(table, row, column).await)?;
        self.read(name(table, row, column), value.clone());
        let ack = CellName {
            column: ack_column(column.as_bytes()),
            ..name(table, row, column)
        };
        if !mutants::on(Mutant::AckForgotten) {
            self.wrote(ack, None, true);
        }
        Ok(value)
    }

    /// As the client library's.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn ready(&self) -> Result<(), Error> {
        self.seen(self.txn.ready().await)
    }

    /// As the client library's.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn put(
        &self,
        table: &str,
        row: &str,
        column: &str,
        value: impl Into<Bytes>,
    ) -> Result<(), Error> {
        let value = value.into();
        self.txn.put(table, row, column, value.clone())?;
        self.wrote(name(table, row, column), Some(value), false);
        Ok(())
    }

    /// As the client library's.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn delete(&self, table: &str, row: &str, column: &str) -> Result<(), Error> {
        self.txn.delete(table, row, column)?;
        self.wrote(name(table, row, column), None, false);
        Ok(())
    }

    /// The cells of a range of rows: row, column, value. Sometimes the first of them are read once more.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn scan(
        &self,
        table: &str,
        start: &str,
        end: &str,
        reverse: bool,
    ) -> Result<Vec<(Bytes, Bytes, Bytes)>, Error> {
        let range = Range::rows(start.to_owned(), end.to_owned());
        let range = if reverse { range.reverse() } else { range };
        let cells = self.collect(table, range.clone()).await?;
        // A stream of its own: what the worker does next doesn't depend on it.
        let all = cells.len() as u64;
        let mut rng = Rng::new(self.start_ts().as_u64() ^ all, "limit");
        if rng.below(4) == 0 {
            let most = rng.below(all + 2) as usize;
            let first = self.collect(table, range.limit(most as u64)).await?;
            if first != cells[..most.min(cells.len())] {
                let why = format!(
                    "a scan of {table} from {start:?} to {end:?} with a limit of {most} gave {first:?}, and without {cells:?}"
                );
                self.session.world.fail(exact_reads::NAME, why);
            }
        }
        let range = RangeRead {
            table: table.to_owned(),
            start: Bytes::copy_from_slice(start.as_bytes()),
            end: Bytes::copy_from_slice(end.as_bytes()),
            cells: cells.clone(),
        };
        self.note(|record| record.ops.push(Op::Scan(range)));
        Ok(cells)
    }

    async fn collect(
        &self,
        table: &str,
        range: Range,
    ) -> Result<Vec<(Bytes, Bytes, Bytes)>, Error> {
        let scan = self.seen(self.txn.scan(table, range).await)?;
        let entries = self.seen(scan.collect().await)?;
        let cells = entries.into_iter();
        Ok(cells
            .map(|entry| (entry.row, entry.column, entry.value))
            .collect())
    }

    /// As the client library's.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn commit(self) -> Result<Timestamp, Error> {
        let (world, recorder) = (self.session.world.clone(), self.session.recorder.clone());
        let (at, who, start_ts) = (self.at, self.session.name.clone(), self.start_ts());
        let mut has_written = false;
        self.note(|record| {
            has_written = record.writes().next().is_some();
            (record.lost, record.end) = (true, End::Unknown);
        });
        let (session, is_fresh) = (self.session.clone(), self.is_fresh);
        let committing = session.open.hold(start_ts, Phase::Committing);
        drop(self.open);
        let result = self.txn.commit().await;
        drop(committing);
        if let Err(error) = &result {
            leases_hold::look(&session, is_fresh, error);
            errors::unknown(&session, error);
            let conflict = errors::conflict(&session, start_ts, error);
            recorder.conflicts.lock().extend(conflict);
        }
        if result.is_ok() && has_written {
            session.wrote.fetch_add(1, Ordering::Relaxed);
        }
        let end = match &result {
            Ok(commit_ts) => End::Committed(*commit_ts),
            Err(Error::Unknown {
                start_ts, primary, ..
            }) => session.outcome(*start_ts, primary).await,
            Err(error) => End::Aborted(error.to_string()),
        };
        world.note(|| format!("{who}: transaction {start_ts} is {end}"));
        let record = &mut recorder.records.lock()[at];
        record.lost = matches!(result, Err(Error::Unknown { .. }));
        record.end = end;
        record.ended_us = world.now_us();
        result
    }
}

fn name(table: &str, row: &str, column: &str) -> CellName {
    CellName {
        table: table.to_owned(),
        row: Bytes::copy_from_slice(row.as_bytes()),
        column: Bytes::copy_from_slice(column.as_bytes()),
    }
}
