//! fjall 3 as a store: a log-structured merge tree a column.
//!
//! A keyspace a column, so that the short-lived locks are compacted apart from the data; a batch over
//! keyspaces is atomic. fjall has a journal of its own, which is left to the operating system's
//! buffers: our log is what makes a commit durable, and a checkpoint syncs the journal.
//!
//! Memory: `cache_bytes` of blocks, plus for each column up to 16 MiB being written and as
//! much being flushed, plus filters and indices (about 2 bytes a key).

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use crate::{
    Batch, Column, Direction, Error, Key, Read, Scan, Snapshot, Value,
    backend::{Backend, Checkpoint, Rest},
    read::is_empty_range,
};

/// Size at which what was written to a column goes to disk, in bytes.
const MEMTABLE_BYTES: u64 = 16 << 20;

/// Journals of fjall's own that may pile up, in bytes: they are read at open. fjall takes no less.
const JOURNAL_BYTES: u64 = 64 << 20;

/// A fjall database.
pub struct FjallStore {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    db: Database,
    columns: [Keyspace; Column::ALL.len()],
    live: AtomicU64,
}

impl FjallStore {
    /// Opens the database in `path`; made if it is not there. `cache_bytes`: see the module.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<FjallStore, Error> {
        let fail = |error: fjall::Error| store_error(path, &error);
        let db = Database::builder(path)
            .cache_size(cache_bytes)
            .max_journaling_size(JOURNAL_BYTES)
            .manual_journal_persist(true)
            .worker_threads(1)
            .open()
            .map_err(fail)?;
        let keyspace = |column: Column| {
            db.keyspace(column.name(), || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(MEMTABLE_BYTES)
                    .manual_journal_persist(true)
            })
            .map_err(fail)
        };
        let [meta, lock, write, data, garbage] = Column::ALL;
        let columns = [
            keyspace(meta)?,
            keyspace(lock)?,
            keyspace(write)?,
            keyspace(data)?,
            keyspace(garbage)?,
        ];
        Ok(FjallStore {
            shared: Arc::new(Shared {
                path: path.to_owned(),
                db,
                columns,
                live: AtomicU64::new(0),
            }),
        })
    }
}

impl Shared {
    fn fail(&self) -> impl Fn(fjall::Error) -> Error + '_ {
        |error| store_error(&self.path, &error)
    }

    fn column(&self, column: Column) -> &Keyspace {
        &self.columns[column.index()]
    }

    fn get(
        &self,
        at: &fjall::Snapshot,
        column: Column,
        key: &[u8],
    ) -> Result<Option<Value>, Error> {
        let value = at.get(self.column(column), key).map_err(self.fail())?;
        Ok(value.map(Value::from))
    }

    fn iter(&self, at: &fjall::Snapshot, column: Column, start: &[u8], end: &[u8]) -> fjall::Iter {
        let column = self.column(column);
        if end.is_empty() {
            at.range(column, start..)
        } else {
            at.range(column, start..end)
        }
    }

    fn scan<'a>(
        &'a self,
        at: &fjall::Snapshot,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Scan<'a> {
        if is_empty_range(start, end) {
            return Box::new(std::iter::empty());
        }
        let iter = self.iter(at, column, start, end);
        let pair = |guard| pair(guard).map_err(self.fail());
        match direction {
            Direction::Forward => Box::new(iter.map(pair)),
            Direction::Reverse => Box::new(iter.rev().map(pair)),
        }
    }

    fn first(
        &self,
        at: &fjall::Snapshot,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        if is_empty_range(start, end) {
            return Ok(None);
        }
        let found = self.iter(at, column, start, end).next();
        found.map(pair).transpose().map_err(self.fail())
    }
}

fn pair(guard: fjall::Guard) -> Result<(Key, Value), fjall::Error> {
    let (key, value) = guard.into_inner()?;
    Ok((key.into(), value.into()))
}

fn store_error(path: &Path, error: &fjall::Error) -> Error {
    Error::Store {
        engine: "fjall",
        path: path.to_owned(),
        detail: error.to_string(),
    }
}

/// Every read goes through a snapshot: a read at "now" could see a batch that is being applied.
impl Read for FjallStore {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.shared.get(&self.shared.db.snapshot(), column, key)
    }

    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error> {
        let at = self.shared.db.snapshot();
        Ok(self.shared.scan(&at, column, start, end, direction))
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.shared
            .first(&self.shared.db.snapshot(), column, start, end)
    }
}

impl Backend for FjallStore {
    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        let ops = group.iter().map(Batch::len).sum();
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.shared.db.clone(), ops);
        for (column, key, value) in group.iter().flat_map(Batch::ops) {
            let column = self.shared.column(column);
            match value {
                Some(value) => batch.insert(column, key.clone(), value.clone()),
                None => batch.remove(column, key.clone()),
            }
        }
        batch.commit().map_err(self.shared.fail())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.shared.live.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Held {
            at: self.shared.db.snapshot(),
            shared: Arc::clone(&self.shared),
        }))
    }

    fn checkpoint(&self, _rest: Rest<'_>) -> Result<Checkpoint, Error> {
        self.shared
            .db
            .persist(PersistMode::SyncAll)
            .map_err(self.shared.fail())?;
        Ok(Checkpoint::Durable)
    }

    fn size_bytes(&self) -> u64 {
        // Only a figure: a file that has just gone is none to stop for.
        self.shared.db.disk_space().unwrap_or(0)
    }

    fn live_snapshots(&self) -> u64 {
        self.shared.live.load(Ordering::Relaxed)
    }
}

struct Held {
    shared: Arc<Shared>,
    at: fjall::Snapshot,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Snapshot for Held {}

impl Read for Held {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.shared.get(&self.at, column, key)
    }

    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error> {
        Ok(self.shared.scan(&self.at, column, start, end, direction))
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.shared.first(&self.at, column, start, end)
    }
}
