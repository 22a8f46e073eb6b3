//! Loads records, a batch a transaction: reads the old rows, writes what differs, data and index
//! together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use percolator_client::{CellName, Client, Error, Range, Txn};
use serde::Serialize;
use tokio::sync::{Notify, mpsc};

use super::IndexArg;
use super::diff::{Change, Diff};
use super::reader::Item;
use super::records::Record;
use super::source::Bad;
use crate::retries::{Retries, may_pass};

/// Bytes of records in one transaction; a single record may be larger.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// What has been done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// Records that are in.
    pub(crate) rows: u64,
    pub(crate) new: u64,
    pub(crate) changed: u64,
    pub(crate) unchanged: u64,
    /// Records that a later one of the same key, in the same transaction, replaced.
    pub(crate) replaced: u64,
    /// Index entries written and removed.
    pub(crate) index_entries: u64,
    pub(crate) index_entries_removed: u64,
    /// Records that are not in, because their row is that of another kind of key.
    pub(crate) refused: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.new += other.new;
        self.changed += other.changed;
        self.unchanged += other.unchanged;
        self.replaced += other.replaced;
        self.index_entries += other.index_entries;
        self.index_entries_removed += other.index_entries_removed;
        self.refused += other.refused;
    }
}

/// Why a lane ended early.
#[derive(Debug)]
pub(crate) struct Failure {
    /// First and last line of the transaction that failed.
    pub(crate) lines: (u64, u64),
    pub(crate) error: Error,
}

impl Failure {
    fn of(batch: &[Item], error: Error) -> Self {
        let lines = batch.iter().map(|item| item.record.line);
        Self {
            lines: (lines.clone().min().unwrap_or(0), lines.max().unwrap_or(0)),
            error,
        }
    }
}

/// What all lanes share.
pub(crate) struct Loader<'a> {
    pub(crate) client: &'a Client,
    /// The one transaction of an atomic import.
    pub(crate) whole: Option<Txn>,
    pub(crate) table: &'a str,
    /// The field whose value is the row.
    pub(crate) key: &'a str,
    pub(crate) indexes: &'a [IndexArg],
    /// Whether any record had the field of each index.
    pub(crate) met: Vec<AtomicBool>,
    /// Of each index, whether rows had its field before, and don't have it any more.
    pub(crate) had: Vec<AtomicBool>,
    /// Go on behind records that can't be loaded.
    pub(crate) skip_bad: bool,
    pub(crate) batch_rows: usize,
    pub(crate) retries: Retries,
    pub(crate) counts: Mutex<Counts>,
    pub(crate) stopped: AtomicBool,
    pub(crate) wake: Notify,
    pub(crate) say: &'a (dyn Fn(&str) + Sync),
    /// Takes what is wrong with a record that is passed over.
    pub(crate) complain: &'a (dyn Fn(Bad) + Sync),
}

impl Loader<'_> {
    /// No lane begins another transaction.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.wake.notify_waiters();
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Loads what comes down a lane, until its end or until it's stopped.
    pub(crate) async fn lane(&self, mut items: mpsc::Receiver<Item>) -> Result<(), Failure> {
        let mut next = None;
        while let Some(batch) = self.batch(&mut items, &mut next).await {
            let counts = match &self.whole {
                Some(whole) => self.load_into(whole, &batch).await?,
                None => self.load(&batch).await?,
            };
            self.counts.lock().add(&counts);
        }
        Ok(())
    }

    /// The next records for one transaction; `next` is one that was too many for the last ones. `None`: that was
    /// all, or the lane is stopped.
    async fn batch(
        &self,
        items: &mut mpsc::Receiver<Item>,
        next: &mut Option<Item>,
    ) -> Option<Vec<Item>> {
        let wake = self.wake.notified();
        if self.stopped() {
            return None;
        }
        let first = match next.take() {
            Some(item) => Some(item),
            None => tokio::select! {
                biased;
                () = wake => return None,
                item = items.recv() => item,
            },
        };
        let first = first?;
        let mut bytes = first.record.size();
        let mut batch = vec![first];
        while batch.len() < self.batch_rows
            && bytes < BATCH_BYTES_MAX
            && let Ok(item) = items.try_recv()
        {
            let size = item.record.size();
            if bytes + size > BATCH_BYTES_MAX {
                *next = Some(item);
                break;
            }
            bytes += size;
            batch.push(item);
        }
        Some(batch)
    }

    /// Loads records into the one transaction of an atomic import. Nothing is tried again: what was written of it
    /// before is gone with it.
    async fn load_into(&self, whole: &Txn, batch: &[Item]) -> Result<Counts, Failure> {
        let records = last_of_each_key(batch.iter().map(|item| &item.record));
        let written = async {
            let written = self.write(whole, &records).await?;
            whole.ready().await?;
            Ok(written)
        };
        match written.await {
            Ok((counts, refused)) => {
                self.retries.progress();
                Ok(self.counted(counts, refused, batch.len(), records.len()))
            }
            Err(error) => Err(Failure::of(batch, error)),
        }
    }

    /// Counts a batch of so many records, of which so many were not replaced by others of it.
    fn counted(&self, counts: Counts, refused: Vec<Bad>, all: usize, kept: usize) -> Counts {
        let mut counts = counts;
        counts.refused = refused.len() as u64;
        counts.rows = all as u64 - counts.refused;
        refused.into_iter().for_each(self.complain);
        counts.replaced = (all - kept) as u64;
        counts
    }

    async fn load(&self, batch: &[Item]) -> Result<Counts, Failure> {
        let records = last_of_each_key(batch.iter().map(|item| &item.record));
        let records = &records[..];
        loop {
            let loaded = self
                .client
                .transact(|txn| async move { self.write(&txn, records).await })
                .await;
            let error = match loaded {
                Ok((counts, refused)) => {
                    self.retries.progress();
                    return Ok(self.counted(counts, refused, batch.len(), records.len()));
                }
                Err(error) => error,
            };
            // Whatever became of it: loading the same once more is harmless.
            let again = may_pass(&error)
                || matches!(
                    error,
                    Error::Unknown { .. } | Error::Conflict(_) | Error::NoSnapshot { .. }
                );
            let result = if again {
                self.retries.wait(error, self.say).await
            } else {
                Err(error)
            };
            result.map_err(|error| Failure::of(batch, error))?;
        }
    }

    /// Writes what differs. Counts all but `rows`, `replaced` and `refused`, which are those that it gives back.
    async fn write(&self, txn: &Txn, records: &[&Record]) -> Result<(Counts, Vec<Bad>), Error> {
        for (index, met) in self.indexes.iter().zip(&self.met) {
            let has = |record: &&Record| record.fields.contains_key(index.field.as_bytes());
            if !met.load(Ordering::Relaxed) && records.iter().any(has) {
                met.store(true, Ordering::Relaxed);
            }
        }
        let indexes = self.indexes;
        // The client sends the scans of a server together.
        let read = try_join_all(records.iter().map(|record| async {
            let mut diff = Diff::new(record, indexes);
            let mut anothers = None;
            let mut old = txn.scan(self.table, Range::row(&record.key)).await?;
            while let Some(cell) = old.next().await? {
                let why = record.is_anothers(self.key, &cell.column, &cell.value);
                anothers = anothers.or(why);
                diff.old(cell.column, &cell.value);
            }
            Ok::<_, Error>(match anothers {
                Some(why) => Err(Bad::at(record.line, why)),
                None => Ok(diff),
            })
        }))
        .await?;
        let mut diffs = Vec::with_capacity(read.len());
        let mut refused = Vec::new();
        for read in read {
            match read {
                Ok(diff) => diffs.push(diff),
                Err(bad) if self.skip_bad => refused.push(bad),
                Err(bad) => {
                    return Err(Error::application(format!(
                        "line {}: {}",
                        bad.line, bad.why
                    )));
                }
            }
        }
        for (at, _) in diffs.iter().flat_map(Diff::stale) {
            self.had[*at].store(true, Ordering::Relaxed);
        }
        let counts = write(txn, self.table, indexes, &diffs).await?;
        Ok((counts, refused))
    }
}

/// The records, without those that a later one of the same key replaces.
fn last_of_each_key<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<&'a Record> {
    let mut places: HashMap<&Bytes, usize> = HashMap::new();
    let mut last: Vec<&Record> = Vec::new();
    for record in records {
        match places.get(&record.key) {
            Some(place) => last[*place] = record,
            None => {
                places.insert(&record.key, last.len());
                last.push(record);
            }
        }
    }
    last
}

async fn write(
    txn: &Txn,
    table: &str,
    indexes: &[IndexArg],
    diffs: &[Diff<'_>],
) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    let mut kept = Vec::new();
    for diff in diffs {
        let key = &diff.record().key;
        match diff.change() {
            Change::New => counts.new += 1,
            Change::Changed => counts.changed += 1,
            Change::Unchanged => counts.unchanged += 1,
        }
        // There need not be room for all of a batch, nor of one row.
        for (column, value) in diff.puts() {
            txn.ready().await?;
            txn.put(table, key, column, value.clone())?;
        }
        for column in diff.gone() {
            txn.ready().await?;
            txn.delete(table, key, column)?;
        }
        for (at, entry) in diff.stale() {
            txn.ready().await?;
            txn.delete(&indexes[*at].table, entry, "")?;
            counts.index_entries_removed += 1;
        }
        for (at, entry, same) in diff.entries() {
            if same {
                kept.push((at, entry, key));
            } else {
                txn.ready().await?;
                txn.put(&indexes[at].table, &entry, "", "")?;
                counts.index_entries += 1;
            }
        }
    }

    // Entries of cells that haven't changed are there, unless the rows were loaded without the index.
    let names: Vec<CellName<'_>> = kept
        .iter()
        .map(|(at, entry, _)| (indexes[*at].table.as_str(), &entry[..], &b""[..]))
        .collect();
    let there = txn.batch_get(&names).await?;
    for ((at, entry, key), there) in kept.iter().zip(there) {
        if there.is_none() {
            // Nothing of the row is written, so that its cell has to be held: another transaction may
            // be changing it.
            txn.ready().await?;
            txn.get_for_update(table, key, &indexes[*at].field).await?;
            txn.put(&indexes[*at].table, entry, "", "")?;
            counts.index_entries += 1;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::records::Twin;

    #[test]
    fn of_one_key_the_last_record_wins() {
        let record = |line, key: &'static str| Record {
            line,
            key: key.into(),
            twin: Twin::None,
            fields: Default::default(),
        };
        let records = [
            record(1, "a"),
            record(2, "b"),
            record(3, "a"),
            record(4, "c"),
        ];
        let lines: Vec<u64> = last_of_each_key(records.iter())
            .iter()
            .map(|record| record.line)
            .collect();
        assert_eq!(lines, [3, 2, 4]);
    }
}
