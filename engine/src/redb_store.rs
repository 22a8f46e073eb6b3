//! redb 4 as a store: copy-on-write B-trees in one file, a tree for each column.
//!
//! Each `apply` is one transaction of redb. Most of them are not durable: their pages stay in redb's write
//! buffer. A durable commit follows after about [`UNSYNCED_BYTES`] of changed pages, and at the end of a
//! checkpoint. Until then redb can't reuse the pages of the last durable state, so rarer durable commits make a
//! larger file: 400,000 rows of 130 bytes took 51 MiB, and after random puts 60 MiB (64 MiB unsynced: 68 MiB).
//!
//! Memory: `cache_bytes` bounds redb's page cache, of which up to half is the write buffer. On top of it come
//! some 50 bytes a cached page, the map of free pages (about 64 KiB for each GiB of the file), and 8 bytes for
//! each page that was freed since the last durable commit.
//!
//! Disk: the file doubles in length when it grows (above 4 GiB it grows by 4 GiB), as a hole. Only pages that
//! were written take room, and [`Store::size_bytes`] counts those. Free pages are reused after the next durable
//! commit. The file gets shorter only when its end is free. It is never compacted.
//!
//! After an unclean stop redb loads the map of free pages that the last durable commit wrote ("quick repair").
//! That took 0.5 ms for 257 MiB; a full repair, which reads the whole file up to three times, took 283 ms from
//! the kernel's cache. Quick repair costs a second sync and the map with every durable commit, some tenth of
//! the time of random puts.
//!
//! redb verifies the checksums of its pages only in a full repair, and panics on some damage. So each value is
//! followed by a checksum of its key and itself, and a panic of redb becomes an [`Error::Store`]. Damage to a
//! branch page or to a count may still hide keys.

mod leaves;

use std::{
    fmt, io,
    os::unix::fs::MetadataExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use redb::{
    Builder, Database, DatabaseError, Durability, ReadOnlyTable, ReadableDatabase, StorageError,
    TableDefinition, TableError,
};

use crate::{
    Batch, Column, Direction, Error, Key, Value,
    backend::{CHUNK_BYTES, Checkpoint, PageSize, StepHook, Store},
    disk::{create_folder, free_bytes, sync_folder},
    read::{bounds, is_empty_range},
};

use leaves::{FILLER_BYTES, Op, PAGE, leaves};

/// The database within the store's folder.
pub(crate) const FILE: &str = "data.redb";
/// The length of redb's magic number, in bytes, which is written last when the file is made.
pub(crate) const FIRST_BYTES: u64 = 9;

/// After so many bytes of changed pages, as [`changed_bytes`] estimates them, a commit is durable. Half of it is
/// written for random puts, which took 8 ms.
const UNSYNCED_BYTES: u64 = 32 << 20;
/// Free space below which nothing is brought into redb, in bytes: its map of free pages, and other trees of its own.
const ROOM_BYTES: u64 = 8 << 20;
/// Below so much more free space what is not durable yet is made durable with each step, in bytes: before others, such as
/// the log, take the room that it needs.
const EARLY_BYTES: u64 = 16 << 20;
/// Pages that a change of one key may copy: a leaf and the branch above it. Higher branches are shared.
const CHANGED_PER_OP: u64 = 2 * 4096;
/// A large value takes pages for up to twice its length.
const CHANGED_PER_BYTE: u64 = 2;

/// Puts and deletes in one step of a checkpoint: some 80 us. With 16 each put takes half as long again, because of what
/// a commit costs; with 256 a tenth less.
const STEP_OPS: usize = 64;

/// Length of the checksum behind each value, in bytes.
const CHECKSUM_BYTES: usize = 4;

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// A redb database.
pub struct RedbStore {
    path: PathBuf,
    /// The columns as of the last `apply`. To open a read transaction and a table for each read would double what a
    /// read costs. Dropped before the database, whose close can then cut the file.
    tables: RwLock<Arc<[Table; Column::ALL.len()]>>,
    db: Database,
    /// The estimated size of the changes since the last durable commit, in bytes.
    unsynced: AtomicU64,
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl RedbStore {
    /// Opens the database in `path`; made if it is not there. `cache_bytes`: see the module.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<RedbStore, Error> {
        create_folder(path).map_err(Error::io("create the folder", path))?;
        let db = open_database(path, cache_bytes)?;
        let store = Self::on(db, path)?;
        sync_folder(path).map_err(Error::io("sync the folder", path))?;
        Ok(store)
    }

    /// The same on something else than a file, for tests. `path` names it in messages.
    pub fn open_on(
        backend: impl redb::StorageBackend,
        path: &Path,
        cache_bytes: usize,
    ) -> Result<RedbStore, Error> {
        let db = guarded(path, || {
            let mut builder = Builder::new();
            Ok(builder
                .set_cache_size(cache_bytes)
                .create_with_backend(backend)?)
        })?;
        Self::on(db, path)
    }

    fn on(db: Database, path: &Path) -> Result<RedbStore, Error> {
        let tables = guarded(path, || {
            match open_tables(&db) {
                Err(redb::Error::TableDoesNotExist(_)) => {}
                tables => return tables,
            }
            let mut created = db.begin_write()?;
            created.set_quick_repair(true);
            for column in Column::ALL {
                created.open_table(definition(column))?;
            }
            created.commit()?;
            open_tables(&db)
        })?;
        Ok(RedbStore {
            path: path.to_owned(),
            tables: RwLock::new(Arc::new(tables)),
            db,
            unsynced: AtomicU64::new(0),
        })
    }

    fn guarded<T>(&self, run: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, Error> {
        guarded(&self.path, run)
    }

    fn tables(&self) -> Arc<[Table; Column::ALL.len()]> {
        self.tables.read().clone()
    }

    /// A transaction that applies the batches, if any; durable or not.
    fn commit(&self, group: &[Batch], durability: Durability) -> Result<(), Error> {
        let tables = self.guarded(|| {
            let mut transaction = self.db.begin_write()?;
            transaction.set_durability(durability)?;
            transaction.set_quick_repair(matches!(durability, Durability::Immediate));
            let mut stored = Vec::new();
            for column in Column::ALL {
                let mut ops = group.iter().flat_map(Batch::ops);
                if !ops.any(|(of, ..)| of == column) {
                    continue;
                }
                let mut table = transaction.open_table(definition(column))?;
                let ops = group.iter().flat_map(Batch::ops);
                let ops = ops.filter(|(of, ..)| *of == column);
                let ops: Vec<_> = ops.map(|(_, key, value)| (key, value)).collect();
                let mut carry_out = |(key, value): Op<'_>, filler: usize| {
                    match value {
                        Some(value) => {
                            stored.clear();
                            stored.extend_from_slice(value);
                            stored.extend_from_slice(&checksum(key, value));
                            stored.resize(stored.len() + filler, 0);
                            table.insert(&key[..], &stored[..])?;
                        }
                        None => drop(table.remove(&key[..])?),
                    }
                    Ok::<_, redb::Error>(())
                };
                for run in leaves(&ops) {
                    if let [others @ .., last] = run {
                        if !others.is_empty() && last.1.is_some() {
                            carry_out(*last, FILLER_BYTES)?;
                        }
                        for op in others.iter().rev() {
                            carry_out(*op, 0)?;
                        }
                        carry_out(*last, 0)?;
                    }
                }
            }
            transaction.commit()?;
            open_tables(&self.db)
        })?;
        *self.tables.write() = Arc::new(tables);
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        self.commit(&[], Durability::Immediate)?;
        self.unsynced.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Whether `bytes` more can be changed and made durable, by the free space; true where that is not known.
    fn has_room(&self, bytes: u64) -> bool {
        let needed = self.unsynced.load(Ordering::Relaxed) + bytes + ROOM_BYTES;
        free_bytes(&self.path).map_or(true, |free| free >= needed)
    }

    fn full(&self, bytes: u64) -> Error {
        Error::Full {
            path: self.path.clone(),
            needed_bytes: self.unsynced.load(Ordering::Relaxed) + bytes,
            reserve_bytes: ROOM_BYTES,
        }
    }
}

fn definition(column: Column) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(column.name())
}

/// The columns as they are now. They keep the pages that they refer to from being reused.
fn open_tables(db: &Database) -> Result<[Table; Column::ALL.len()], redb::Error> {
    let at = db.begin_read()?;
    let open = |column| -> Result<Table, TableError> { at.open_table(definition(column)) };
    let [meta, lock, write, data, garbage, notify] = Column::ALL;
    Ok([
        open(meta)?,
        open(lock)?,
        open(write)?,
        open(data)?,
        open(garbage)?,
        open(notify)?,
    ])
}

/// Waits for a predecessor: a process forked off it by another thread holds a copy of its lock until it runs its
/// own program. Our own lock says that no other process has the file.
fn open_database(path: &Path, cache_bytes: u64) -> Result<Database, Error> {
    const PAUSE: Duration = Duration::from_millis(2);
    const TRIES: u32 = 2500;
    let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
    for _ in 0..TRIES {
        let opened = guarded(path, || {
            match Builder::new()
                .set_cache_size(cache_bytes)
                .create(path.join(FILE))
            {
                Err(DatabaseError::DatabaseAlreadyOpen) => Ok(None),
                opened => Ok(Some(opened?)),
            }
        })?;
        match opened {
            Some(db) => return Ok(db),
            None => std::thread::sleep(PAUSE),
        }
    }
    Err(Error::Locked {
        path: path.to_owned(),
        holder: None,
    })
}

/// Runs a call of redb, which panics on some damaged files.
fn guarded<T>(path: &Path, run: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, Error> {
    // After a panic redb's own state is poisoned, and it refuses what comes.
    let (damaged, detail) = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => (
            matches!(error, redb::Error::Corrupted(_)),
            error.to_string(),
        ),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            let detail = format!("it panicked: {}", text.unwrap_or("no message"));
            (true, detail)
        }
    };
    Err(Error::Store {
        damaged,
        engine: "redb",
        path: path.to_owned(),
        detail,
    })
}

/// The cost of a change in pages of redb, in bytes: an upper bound, except for large trees' highest branches.
fn changed_bytes(ops: usize, bytes: usize) -> u64 {
    (ops as u64 * CHANGED_PER_OP).saturating_add((bytes as u64).saturating_mul(CHANGED_PER_BYTE))
}

fn checksum(key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    crc32c::crc32c_append(crc32c::crc32c(key), value).to_le_bytes()
}

/// The value within what is stored for `key`.
fn checked(key: &[u8], stored: &[u8]) -> Result<Value, StorageError> {
    match stored.split_last_chunk() {
        Some((value, sum)) if *sum == checksum(key, value) => Ok(Value::copy_from_slice(value)),
        _ => Err(StorageError::Corrupted(format!(
            "the value of {} is not what was written",
            key.escape_ascii()
        ))),
    }
}

// A transaction is seen as a whole, when `tables` is replaced.
impl crate::ConcurrentStore for RedbStore {}

impl Store for RedbStore {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        let tables = self.tables();
        self.guarded(|| {
            let found = tables[column.index()].get(key)?;
            let value = found.map(|stored| checked(key, stored.value()));
            Ok(value.transpose()?)
        })
    }

    fn chunk(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
        limit: usize,
        into: &mut Vec<(Key, Value)>,
    ) -> Result<bool, Error> {
        if is_empty_range(start, end) {
            return Ok(true);
        }
        let tables = self.tables();
        self.guarded(|| {
            let mut range = tables[column.index()].range::<&[u8]>(bounds(start, end))?;
            let mut bytes = 0;
            for _ in 0..limit {
                let found = match direction {
                    Direction::Forward => range.next(),
                    Direction::Reverse => range.next_back(),
                };
                let Some((key, stored)) = found.transpose()? else {
                    return Ok(true);
                };
                let key = Key::copy_from_slice(key.value());
                let value = checked(&key, stored.value())?;
                bytes += key.len() + value.len();
                into.push((key, value));
                if bytes >= CHUNK_BYTES {
                    break;
                }
            }
            Ok(false)
        })
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        let mut found = Vec::new();
        self.chunk(column, start, end, Direction::Forward, 1, &mut found)?;
        Ok(found.pop())
    }

    fn page(&self) -> Option<PageSize> {
        Some(PAGE)
    }

    fn step_ops(&self) -> usize {
        STEP_OPS
    }

    /// A write of a durable commit that finds no room leaves redb refusing everything until it is opened anew.
    /// Changes that are not durable yet need room as well.
    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let needed = changed_bytes(STEP_OPS, bytes);
        let unsynced = self.unsynced.load(Ordering::Relaxed);
        if unsynced > 0 && !self.has_room(needed + EARLY_BYTES) && self.has_room(0) {
            self.sync()?;
        }
        if self.has_room(needed) {
            Ok(())
        } else {
            Err(self.full(needed))
        }
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        let ops = group.iter().map(Batch::len).sum();
        let bytes = group.iter().map(Batch::size_bytes).sum();
        let changed = changed_bytes(ops, bytes);
        if self.unsynced.fetch_add(changed, Ordering::Relaxed) + changed < UNSYNCED_BYTES {
            return self.commit(group, Durability::None);
        }
        self.commit(group, Durability::Immediate)?;
        self.unsynced.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn checkpoint(&self, _rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        if !self.has_room(0) {
            return Err(self.full(0));
        }
        self.sync()?;
        Ok(Checkpoint::Durable)
    }

    fn size_bytes(&self) -> u64 {
        const BLOCK_BYTES: u64 = 512;
        let found: io::Result<_> = self.path.join(FILE).metadata();
        // Only a figure. Not the file's length: see the module.
        found.map_or(0, |found| found.blocks() * BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, ops::ControlFlow};

    use super::*;

    const NAMES: u32 = 4000;

    fn open(folder: &Path) -> Result<RedbStore, Error> {
        RedbStore::open(folder, 1 << 20)
    }

    fn put(store: &RedbStore, name: &str, value: Vec<u8>) {
        let mut batch = Batch::default();
        batch.put(Column::Data, name.to_owned(), value);
        store.apply(&[batch]).expect("applied");
    }

    fn checkpoint(store: &RedbStore) {
        let made = store.checkpoint(&|_| ControlFlow::Continue(()));
        assert_eq!(made.expect("made"), Checkpoint::Durable);
    }

    fn name(number: u32) -> String {
        format!("name {number:05}")
    }

    fn value(number: u32) -> Vec<u8> {
        vec![number as u8; 10 + number as usize % 90]
    }

    /// Reads everything, in order and by key; panics at a pair that was never written.
    fn read_all(store: &RedbStore) -> Result<(), Error> {
        let mut found = Vec::new();
        let limit = 2 * NAMES as usize;
        store.chunk(
            Column::Data,
            &[],
            &[],
            Direction::Forward,
            limit,
            &mut found,
        )?;
        for (key, found) in &found {
            let text = std::str::from_utf8(key).expect("a name");
            let number = text
                .strip_prefix("name ")
                .and_then(|text| text.parse().ok());
            assert_eq!(**found, value(number.expect("a name")), "{text}");
        }
        for number in (0..NAMES).step_by(7) {
            if let Some(found) = store.get(Column::Data, name(number).as_bytes())? {
                assert_eq!(*found, value(number), "{number}");
            }
        }
        Ok(())
    }

    #[test]
    fn damage_is_an_error_or_changes_nothing_that_is_read() {
        const ROUNDS: u32 = 300;
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path()).expect("a store");
        for number in 0..NAMES {
            put(&store, &name(number), value(number));
        }
        checkpoint(&store);
        drop(store);
        let file = folder.path().join(FILE);
        let sound = fs::read(&file).expect("the file");
        let mut refused = 0;
        let mut random = 1_u64;
        for _ in 0..ROUNDS {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695);
            let mut damaged = sound.clone();
            let at = (random >> 20) as usize % damaged.len();
            damaged[at] ^= 1 << (random >> 60 & 7);
            fs::write(&file, &damaged).expect("written");
            match open(folder.path()).and_then(|store| read_all(&store)) {
                Ok(()) => {}
                Err(Error::Store { engine: "redb", .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        // Nearly half of the file are free pages.
        assert!(refused > ROUNDS / 3, "{refused} of {ROUNDS}");
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        for content in [b"something else".repeat(1000), vec![0; 4096]] {
            let folder = tempfile::tempdir().expect("a folder");
            fs::write(folder.path().join(FILE), content).expect("written");
            let refused = open(folder.path()).expect_err("refused");
            assert!(matches!(refused, Error::Store { .. }), "{refused}");
        }
    }

    #[test]
    fn neighbours_of_long_values_cost_little() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path()).expect("a store");
        for number in 0..4 {
            put(&store, &format!("a{number}"), vec![1; 4 << 20]);
        }
        for number in 0..5_000 {
            put(&store, &format!("b{number}"), vec![1; 10]);
        }
        checkpoint(&store);
        let mib = store.size_bytes() >> 20;
        assert!(mib < 128, "16 MiB of values take {mib} MiB");
    }

    #[test]
    fn what_is_overwritten_makes_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path()).expect("a store");
        let mut first = 0;
        for round in 0..8 {
            for number in 0..20_000 {
                put(&store, &name(number), vec![round; 100]);
            }
            checkpoint(&store);
            first = if round == 1 {
                store.size_bytes()
            } else {
                first
            };
        }
        let (last, first) = (store.size_bytes() >> 20, first >> 20);
        assert!(last <= first + first / 2, "{first} MiB, then {last} MiB");
    }
}
