//! A store as small as can be: one ordered map a column, in the stored forms of keys and records, and
//! the rules run against it as a tablet server runs them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::ControlFlow;

use bytes::Bytes;
use percolator_protocol::actions::{
    AlreadyCommitted, CellView, Collected, CommitRejection, NotThePrimary, OnePhaseRejection,
    Prewrite, PrewriteRejection, Read, ScanEnd, Snapshot, Status, StatusQuery, check_status,
    commit, gc, get, keep_alive, min_commit_ts, one_phase, prewrite, resolve, rollback,
    scan_forward, scan_reverse,
};
use percolator_protocol::safe_point::Points;
use percolator_protocol::txn::{Ending, MetLock};
use percolator_protocol::types::{Cell, Effect, Lock, Mutation, Timestamp, Write, key};

/// The result of a read of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    Value(Bytes),
    Absent,
    Locked(Lock),
    RolledBack,
}

/// The range of a scan.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct ScanRange {
    /// From this cell on.
    pub(crate) from: Option<Cell>,
    /// To below this cell.
    pub(crate) to: Option<Cell>,
    pub(crate) reverse: bool,
    pub(crate) limit: Option<usize>,
}

/// One record of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Lock(Lock),
    Write(Timestamp, Write),
    Data(Timestamp, Bytes),
}

type Column = BTreeMap<Vec<u8>, Bytes>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    lock: Column,
    write: Column,
    data: Column,
    /// The highest snapshots that have read: a cell, and everything.
    read: RefCell<(BTreeMap<Cell, Timestamp>, Timestamp)>,
}

/// By their rows; who has read them is no part of that.
impl PartialEq for Store {
    fn eq(&self, other: &Self) -> bool {
        (&self.lock, &self.write, &self.data) == (&other.lock, &other.write, &other.data)
    }
}

fn cell_key(cell: &Cell) -> Vec<u8> {
    key::cell(cell.table, &cell.row, &cell.column)
}

fn version_key(cell: &Cell, ts: Timestamp) -> Vec<u8> {
    key::version(cell_key(cell), ts)
}

fn versions<'a>(
    column: &'a Column,
    cell: &[u8],
) -> impl Iterator<Item = (Timestamp, &'a Bytes)> + use<'a> {
    let newest = key::version(cell.to_vec(), Timestamp::MAX);
    column
        .range(newest..key::behind_cell(cell.to_vec()))
        .map(|(key, value)| (key::split_version(key).expect("a version").1, value))
}

impl Store {
    pub(crate) fn lock(&self, cell: &Cell) -> Option<Lock> {
        let record = self.lock.get(&cell_key(cell))?;
        Some(Lock::decode(record.clone()).expect("a lock"))
    }

    /// The cell's write records, newest first.
    pub(crate) fn writes(&self, cell: &Cell) -> impl Iterator<Item = (Timestamp, Write)> + use<'_> {
        versions(&self.write, &cell_key(cell)).map(|(ts, record)| {
            (
                ts,
                Write::decode(ts, record.clone()).expect("a write record"),
            )
        })
    }

    pub(crate) fn locks(&self) -> Vec<MetLock> {
        let locks = self.lock.iter().map(|(key, record)| MetLock {
            cell: key::decode_cell(key).expect("a cell"),
            lock: Lock::decode(record.clone()).expect("a lock"),
        });
        locks.collect()
    }

    /// The cell as far as the transaction is concerned.
    pub(crate) fn view(
        &self,
        cell: &Cell,
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> CellView {
        let records = self.writes(cell).map(Ok::<_, Infallible>);
        let Ok(view) = CellView::load(self.lock(cell), start_ts, commit_ts, records);
        view
    }

    pub(crate) fn put_row(&mut self, cell: &Cell, row: Row) {
        match row {
            Row::Lock(lock) => self.lock.insert(cell_key(cell), lock.encode().into()),
            Row::Write(ts, write) => {
                let key = version_key(cell, ts);
                self.write.insert(key, write.encode(ts).into())
            }
            Row::Data(ts, value) => self.data.insert(version_key(cell, ts), value),
        };
    }

    fn apply(&mut self, cell: &Cell, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::PutLock(lock) => self.put_row(cell, Row::Lock(lock)),
                Effect::DeleteLock => {
                    let lock = self.lock.remove(&cell_key(cell));
                    assert!(lock.is_some(), "a lock that isn't there was removed");
                }
                Effect::PutWrite(ts, write) => self.put_row(cell, Row::Write(ts, write)),
                Effect::DeleteWrite(ts) => {
                    let write = self.write.remove(&version_key(cell, ts));
                    assert!(write.is_some(), "a record that isn't there was removed");
                }
                Effect::PutData(ts, value) => self.put_row(cell, Row::Data(ts, value)),
                Effect::DeleteData(ts) => {
                    let value = self.data.remove(&version_key(cell, ts));
                    assert!(value.is_some(), "a value that isn't there was removed");
                }
            }
        }
    }

    /// Every record, by cell: lock, write records, long values.
    pub(crate) fn rows(&self) -> Vec<(Cell, Row)> {
        let mut cells: Vec<Vec<u8>> = self.lock.keys().cloned().collect();
        for key in self.write.keys().chain(self.data.keys()) {
            cells.push(key::split_version(key).expect("a version").0.to_vec());
        }
        cells.sort();
        cells.dedup();
        let mut rows = Vec::new();
        for key in cells {
            let cell = key::decode_cell(&key).expect("a cell");
            let lock = self.lock(&cell).map(Row::Lock);
            let writes = self.writes(&cell).map(|(ts, write)| Row::Write(ts, write));
            let values = versions(&self.data, &key).map(|(ts, value)| Row::Data(ts, value.clone()));
            let all = lock.into_iter().chain(writes).chain(values);
            rows.extend(all.map(|row| (cell.clone(), row)));
        }
        rows
    }

    /// Forgets what was read so far: it was read by a test.
    pub(crate) fn forget_reads(&self) {
        self.read.take();
    }

    /// No snapshot above this one has read the cell.
    fn read_ts(&self, cell: &Cell) -> Timestamp {
        let (cells, all) = &*self.read.borrow();
        cells.get(cell).copied().unwrap_or_default().max(*all)
    }

    /// One request: all of the mutations, or none. The least commit_ts, if all are in place.
    pub(crate) fn prewrite(
        &mut self,
        txn: &Prewrite,
        mutations: &[Mutation],
    ) -> Result<Timestamp, Vec<(Cell, PrewriteRejection)>> {
        let mut least = txn.start_ts.next();
        let mut decided = Vec::new();
        let mut rejections = Vec::new();
        for mutation in mutations {
            let view = self.view(&mutation.cell, txn.start_ts, None);
            let read_ts = self.read_ts(&mutation.cell);
            least = least.max(min_commit_ts(txn.start_ts, read_ts));
            match prewrite(&view, mutation, txn, read_ts) {
                Ok(effects) => decided.push((&mutation.cell, effects)),
                Err(rejection) => rejections.push((mutation.cell.clone(), rejection)),
            }
        }
        if !rejections.is_empty() {
            return Err(rejections);
        }
        for (cell, effects) in decided {
            self.apply(cell, effects);
        }
        Ok(least)
    }

    /// One request: all of the mutations, or none, whose rejections are returned then. `Ok(None)`: they
    /// are committed at `commit_ts`; otherwise prewritten, with the least commit_ts.
    pub(crate) fn one_phase(
        &mut self,
        txn: &Prewrite,
        mutations: &[Mutation],
        commit_ts: Timestamp,
    ) -> Result<Option<Timestamp>, Vec<(Cell, PrewriteRejection)>> {
        let decide = |mutation: &Mutation| -> Result<Vec<Effect>, OnePhaseRejection> {
            let view = self.view(&mutation.cell, txn.start_ts, Some(commit_ts));
            one_phase(
                &view,
                mutation,
                txn,
                commit_ts,
                self.read_ts(&mutation.cell),
            )
        };
        let decided: Result<Vec<Vec<Effect>>, OnePhaseRejection> =
            mutations.iter().map(decide).collect();
        let Ok(decided) = decided else {
            return self.prewrite(txn, mutations).map(Some);
        };
        for (mutation, effects) in mutations.iter().zip(decided) {
            self.apply(&mutation.cell, effects);
        }
        Ok(None)
    }

    pub(crate) fn commit(
        &mut self,
        start_ts: Timestamp,
        commit_ts: Timestamp,
        cell: &Cell,
    ) -> Result<(), CommitRejection> {
        let view = self.view(cell, start_ts, Some(commit_ts));
        let (effects, result) = commit(&view, start_ts, commit_ts);
        self.apply(cell, effects);
        result
    }

    pub(crate) fn rollback(
        &mut self,
        start_ts: Timestamp,
        cell: &Cell,
    ) -> Result<(), AlreadyCommitted> {
        let effects = rollback(&self.view(cell, start_ts, None), start_ts)?;
        self.apply(cell, effects);
        Ok(())
    }

    /// Resolves so many locks of the transaction at the most, from this cell on: which, and whether there may be
    /// more.
    pub(crate) fn resolve(
        &mut self,
        start_ts: Timestamp,
        ending: Ending,
        from: Option<&Cell>,
        limit: usize,
    ) -> (Vec<Cell>, bool) {
        let locks = self.locks().into_iter();
        let own = locks.filter(|met| met.lock.start_ts == start_ts);
        let mut cells: Vec<Cell> = own
            .map(|met| met.cell)
            .filter(|cell| from.is_none_or(|from| cell >= from))
            .collect();
        let more = cells.len() > limit;
        cells.truncate(limit);
        for cell in &cells {
            let commit_ts = match ending {
                Ending::Committed(commit_ts) => Some(commit_ts),
                Ending::RolledBack => None,
            };
            let view = self.view(cell, start_ts, commit_ts);
            self.apply(cell, resolve(&view, start_ts, ending));
        }
        (cells, more)
    }

    pub(crate) fn check_status(
        &mut self,
        primary: &Cell,
        query: &StatusQuery,
    ) -> Result<Status, NotThePrimary> {
        let view = self.view(primary, query.start_ts, None);
        let (effects, status) = check_status(&view, query, primary)?;
        self.apply(primary, effects);
        Ok(status)
    }

    pub(crate) fn keep_alive(
        &mut self,
        primary: &Cell,
        start_ts: Timestamp,
        ttl_ms: u64,
    ) -> Option<u64> {
        let view = self.view(primary, start_ts, None);
        let (effects, ttl_ms) = keep_alive(&view, start_ts, ttl_ms);
        self.apply(primary, effects);
        ttl_ms
    }

    /// Collects one cell, at most about `most` records of it.
    pub(crate) fn gc(&mut self, points: Points, cell: &Cell, most: usize) -> Collected {
        let Ok(collected) = gc(points, self.writes(cell).map(Ok::<_, Infallible>), most);
        self.apply(cell, collected.effects.clone());
        collected
    }

    pub(crate) fn get(&self, snapshot: Snapshot<'_>, cell: &Cell) -> ReadResult {
        let mark = &mut self.read.borrow_mut().0;
        let mark = mark.entry(cell.clone()).or_default();
        *mark = (*mark).max(snapshot.ts);
        let records = self.writes(cell).map(Ok::<_, Infallible>);
        let Ok(read) = get(snapshot, self.lock(cell).as_ref(), records);
        self.seen(cell, read)
    }

    fn seen(&self, cell: &Cell, read: Read) -> ReadResult {
        match read {
            Read::Value(value) => ReadResult::Value(value),
            Read::Long(start_ts) => match self.data.get(&version_key(cell, start_ts)) {
                Some(value) => ReadResult::Value(value.clone()),
                None => panic!("the long value {cell} data@{start_ts} is missing"),
            },
            Read::Absent => ReadResult::Absent,
            Read::Locked(lock) => ReadResult::Locked(lock),
            Read::RolledBack => ReadResult::RolledBack,
        }
    }

    pub(crate) fn scan(
        &self,
        snapshot: Snapshot<'_>,
        range: &ScanRange,
    ) -> (Vec<(Cell, Bytes)>, ScanEnd<Cell>) {
        let mark = &mut self.read.borrow_mut().1;
        *mark = (*mark).max(snapshot.ts);
        let from = range.from.as_ref().map_or(Vec::new(), cell_key);
        let to = range.to.as_ref().map_or(vec![0xff; 32], cell_key);
        let decode = |key: &[u8]| key::decode_cell(key).expect("a cell");
        let records = self.write.range(from.clone()..to.clone());
        let records = records.map(|(key, record)| {
            let (cell, ts) = key::split_version(key).expect("a version");
            let write = Write::decode(ts, record.clone()).expect("a write record");
            Ok::<_, Infallible>((cell.to_vec(), ts, write))
        });
        let locks = self.lock.range(from..to);
        let locks = locks.map(|(key, record)| {
            let lock = Lock::decode(record.clone()).expect("a lock");
            Ok::<_, Infallible>((key.clone(), lock))
        });
        let mut found = Vec::new();
        let limit = range.limit.unwrap_or(usize::MAX);
        let emit = |key: Vec<u8>, read| {
            let cell = decode(&key);
            let ReadResult::Value(value) = self.seen(&cell, read) else {
                panic!("{cell} was emitted without a value");
            };
            found.push((cell, value));
            if found.len() >= limit {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let Ok(end) = if range.reverse {
            scan_reverse(snapshot, records.rev(), locks.rev(), emit)
        } else {
            scan_forward(snapshot, records, locks, emit)
        };
        let end = match end {
            ScanEnd::Done => ScanEnd::Done,
            ScanEnd::Stopped => ScanEnd::Stopped,
            ScanEnd::Locked(key, lock) => ScanEnd::Locked(decode(&key), lock),
            ScanEnd::RolledBack(key) => ScanEnd::RolledBack(decode(&key)),
        };
        (found, end)
    }
}
