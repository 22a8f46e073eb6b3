//! sled 0.34 as a store.
//!
//! All columns lie in one tree, behind a prefix byte: one order of changes, and one set of pages to
//! cache. A batch is made atomic above sled: for readers by the gate of [`crate::Versioned`], over a
//! crash by the log, which holds each batch before sled does.
//!
//! sled's own flush calls sync_file_range, which flushes neither the file's length nor the device's
//! cache; a checkpoint therefore syncs sled's files itself. Between checkpoints sled moves pages and
//! uses freed segments of its file again, trusting that flush: on a device with a volatile cache a
//! power loss in just that moment may damage the store beyond what the log replays (in the usual case
//! the log's sync, on the same file system, flushes sled's writes along). A checkpoint that takes its time
//! has many such moments. Where power losses are to be expected, take redb.
//!
//! sled keeps up to 16 entries in a page and writes a page whole after every few changes of it, however large
//! its values: with values of 4 MB a change of their neighbour costs 64 MB. So a long value lies in pieces,
//! behind all columns, and its own entry only says how many bytes they have together.
//!
//! Memory: `cache_bytes` bounds only the pages sled keeps unpacked. The table of all pages, and the
//! pointers to where their pieces lie, come on top and grow with the data.

use std::{
    collections::HashSet,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use sled::IVec;

use crate::{
    Batch, Column, Direction, Error, Key, Value,
    backend::{CHUNK_BYTES, Checkpoint, StepHook, Store},
    disk::{free_bytes, sync_folder},
    read::is_empty_range,
};

/// Values of more bytes lie in pieces of at most so many: a page of 16 of them fits into sled's log, and is no
/// file of its own.
const PIECE_BYTES: usize = 4 << 10;
/// In front of the keys of pieces; no column has it.
const PIECES: u8 = 0xf0;
/// The first byte of an entry that holds its value, and of one whose value lies in pieces.
const WHOLE: u8 = 0;
const CUT: u8 = 1;

/// The most bytes that sled writes for each byte of a change, about: pieces of pages, and whole pages now and then.
const WRITTEN_PER_BYTE: u64 = 4;
/// Free space below which nothing is brought into sled, in bytes: its buffers, and what it writes in the
/// background, when it moves pages.
const ROOM_BYTES: u64 = 8 << 20;
/// Free space below which sled isn't flushed, in bytes: what it holds back, and the trees of its own that a new one has. Less
/// than the above, so that what was brought into it can become durable, and then leave the log.
const FLUSH_ROOM_BYTES: u64 = 2 << 20;

/// sled's file of pages.
pub(crate) const FILE: &str = "db";

/// A sled database.
#[derive(Debug)]
pub struct SledStore {
    path: PathBuf,
    db: sled::Db,
    tree: sled::Tree,
    /// Files of large values ("blobs", never changed once written) that were synced already.
    synced_blobs: Mutex<HashSet<std::ffi::OsString>>,
    /// Held while a value that may lie in pieces changes, and shared by who puts one together: a checkpoint goes on beside
    /// readers of the same keys.
    changing: RwLock<()>,
}

impl SledStore {
    /// Opens the database in `path`; made if it is not there. `cache_bytes`: see the module.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<SledStore, Error> {
        wait_for_predecessor(path)?;
        let fail = |error: sled::Error| store_error(path, &error);
        let db = sled::Config::new()
            .path(path)
            .cache_capacity(cache_bytes)
            // Nothing depends on sled's flushes but checkpoints, which ask for them.
            .flush_every_ms(None)
            .open()
            .map_err(fail)?;
        let tree = db.open_tree("percolator").map_err(fail)?;
        Ok(SledStore {
            path: path.to_owned(),
            db,
            tree,
            synced_blobs: Mutex::default(),
            changing: RwLock::default(),
        })
    }

    fn fail(&self) -> impl Fn(sled::Error) -> Error + '_ {
        |error| store_error(&self.path, &error)
    }

    /// Keeps values of the column as they are meanwhile: entries that were found, and their pieces.
    fn keep(&self, column: Column) -> Option<RwLockReadGuard<'_, ()>> {
        in_pieces(column).then(|| self.changing.read())
    }

    fn range(&self, column: Column, start: &[u8], end: &[u8]) -> sled::Iter {
        let from = key(column, start);
        let to = if end.is_empty() {
            IVec::from(&[column.prefix() + 1])
        } else {
            key(column, end)
        };
        self.tree.range(from..to)
    }

    fn pair(&self, column: Column, (key, entry): (IVec, IVec)) -> Result<(Key, Value), Error> {
        let name = Key::copy_from_slice(&key[1..]);
        let value = self.value(column, &name, entry)?;
        Ok((name, value))
    }

    /// The entry as it lies in the tree, with its value put together again.
    fn value(&self, column: Column, name: &[u8], entry: IVec) -> Result<Value, Error> {
        if !in_pieces(column) {
            return Ok(bytes(entry));
        }
        match (entry.first(), pieces(&entry)) {
            (Some(&WHOLE), _) => Ok(Bytes::copy_from_slice(&entry[1..])),
            (_, Some(count)) => {
                let mut value = Vec::new();
                for number in 0..count {
                    let piece = self.tree.get(piece_key(name, number));
                    let piece = piece.map_err(self.fail())?;
                    value.extend_from_slice(&piece.ok_or_else(|| self.damaged(name))?);
                }
                Ok(value.into())
            }
            _ => Err(self.damaged(name)),
        }
    }

    fn check_free(&self, needed_bytes: u64, reserve_bytes: u64) -> Result<(), Error> {
        match free_bytes(&self.path) {
            Ok(free) if free < needed_bytes.saturating_add(reserve_bytes) => Err(Error::Full {
                path: self.path.clone(),
                needed_bytes,
                reserve_bytes,
            }),
            // A disk that doesn't know reports an error when it is written to.
            _ => Ok(()),
        }
    }

    fn damaged(&self, name: &[u8]) -> Error {
        let detail = format!("the value of {} is not whole", name.escape_ascii());
        Error::Store {
            damaged: true,
            engine: "sled",
            path: self.path.clone(),
            detail,
        }
    }

    /// Puts or deletes a value that may lie in pieces, or has. Until the last step the entry names every piece
    /// there is, so that nothing is left lying when it is done again after a crash.
    fn change(&self, key: IVec, name: &[u8], value: Option<&Value>) -> sled::Result<()> {
        let _changing = self.changing.write();
        let before = self
            .tree
            .get(&key)?
            .as_deref()
            .and_then(pieces)
            .unwrap_or(0);
        let cut = value.filter(|value| value.len() > PIECE_BYTES);
        let mut after = 0;
        for piece in cut.iter().flat_map(|value| value.chunks(PIECE_BYTES)) {
            self.tree.insert(piece_key(name, after), piece)?;
            after += 1;
        }
        for number in after..before {
            self.tree.remove(piece_key(name, number))?;
        }
        match (value, cut) {
            (None, _) => self.tree.remove(key)?,
            (Some(_), Some(cut)) => {
                let len = u32::try_from(cut.len()).map_err(|_| {
                    sled::Error::Unsupported("a value of more than 4 GiB".to_owned())
                })?;
                let mut entry = vec![CUT];
                entry.extend_from_slice(&len.to_be_bytes());
                self.tree.insert(key, entry)?
            }
            (Some(value), None) => {
                let mut entry = Vec::with_capacity(1 + value.len());
                entry.push(WHOLE);
                entry.extend_from_slice(value);
                self.tree.insert(key, entry)?
            }
        };
        Ok(())
    }

    fn sync_files(&self) -> io::Result<()> {
        let mut synced = self.synced_blobs.lock();
        let mut there = HashSet::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                sync_if_there(&entry.path())?;
            }
        }
        let blobs = self.path.join("blobs");
        if blobs.is_dir() {
            for entry in fs::read_dir(&blobs)? {
                let name = entry?.file_name();
                if !synced.contains(&name) {
                    sync_if_there(&blobs.join(&name))?;
                }
                there.insert(name);
            }
            sync_folder(&blobs)?;
        }
        *synced = there;
        sync_folder(&self.path)
    }
}

/// Threads of sled may hold its file for a moment after the database was dropped. Our own lock says
/// that no other process has it.
fn wait_for_predecessor(path: &Path) -> Result<(), Error> {
    const PAUSE: Duration = Duration::from_millis(2);
    const TRIES: u32 = 2500;
    let file = path.join("db");
    for _ in 0..TRIES {
        let probe = match File::open(&file) {
            Ok(probe) => probe,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("open", file)(error)),
        };
        match probe.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", file)(error)),
        }
    }
    Err(Error::Locked {
        path: path.to_owned(),
        holder: None,
    })
}

/// sled removes old files whenever it likes.
fn sync_if_there(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => file.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn store_error(path: &Path, error: &sled::Error) -> Error {
    Error::Store {
        damaged: matches!(error, sled::Error::Corruption { .. }),
        engine: "sled",
        path: path.to_owned(),
        detail: error.to_string(),
    }
}

/// The key within the tree. Short ones need no allocation.
fn key(column: Column, key: &[u8]) -> IVec {
    const SHORT: usize = 64;
    if key.len() < SHORT {
        let mut bytes = [0; SHORT];
        bytes[0] = column.prefix();
        bytes[1..=key.len()].copy_from_slice(key);
        IVec::from(&bytes[..=key.len()])
    } else {
        let mut bytes = Vec::with_capacity(1 + key.len());
        bytes.push(column.prefix());
        bytes.extend_from_slice(key);
        IVec::from(bytes)
    }
}

/// Large ones are shared with sled, small ones copied.
fn bytes(value: IVec) -> Bytes {
    const LARGE: usize = 1024;
    if value.len() < LARGE {
        Bytes::copy_from_slice(&value)
    } else {
        Bytes::from_owner(value)
    }
}

/// Whether long values of the column lie in pieces: other columns have none.
fn in_pieces(column: Column) -> bool {
    column == Column::Data
}

/// How many pieces an entry's value has; `None` where it holds the value itself.
fn pieces(entry: &[u8]) -> Option<u32> {
    let (&CUT, len) = entry.split_first()? else {
        return None;
    };
    let len = u32::from_be_bytes(len.try_into().ok()?);
    Some(len.div_ceil(PIECE_BYTES as u32))
}

/// The key of a piece: the numbers have one length, so no two names share one.
fn piece_key(name: &[u8], number: u32) -> IVec {
    let mut bytes = Vec::with_capacity(1 + name.len() + 4);
    bytes.push(PIECES);
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(&number.to_be_bytes());
    IVec::from(bytes)
}

// sled's trees are made for concurrent use; a put or delete of a value in pieces is seen as a whole by the lock.
impl crate::ConcurrentStore for SledStore {}

impl Store for SledStore {
    fn get(&self, column: Column, name: &[u8]) -> Result<Option<Value>, Error> {
        let _kept = self.keep(column);
        let entry = self.tree.get(key(column, name)).map_err(self.fail())?;
        entry
            .map(|entry| self.value(column, name, entry))
            .transpose()
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
        let _kept = self.keep(column);
        let mut range = self.range(column, start, end);
        let mut bytes = 0;
        for _ in 0..limit {
            let found = match direction {
                Direction::Forward => range.next(),
                Direction::Reverse => range.next_back(),
            };
            let Some(found) = found else {
                return Ok(true);
            };
            let (key, value) = self.pair(column, found.map_err(self.fail())?)?;
            bytes += key.len() + value.len();
            into.push((key, value));
            if bytes >= CHUNK_BYTES {
                break;
            }
        }
        Ok(false)
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        if is_empty_range(start, end) {
            return Ok(None);
        }
        let _kept = self.keep(column);
        let found = self.range(column, start, end).next().transpose();
        let found = found.map_err(self.fail())?;
        found.map(|found| self.pair(column, found)).transpose()
    }

    /// A write that finds no room leaves sled refusing everything until it is opened anew.
    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        self.check_free((bytes as u64).saturating_mul(WRITTEN_PER_BYTE), ROOM_BYTES)
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        // The gate keeps readers out meanwhile, and after a crash the log replays the whole group: sled's
        // own batch would only add its cost, and a lock around every read of sled from then on.
        for (column, name, value) in group.iter().flat_map(Batch::ops) {
            let key = key(column, name);
            match value {
                _ if in_pieces(column) => self.change(key, name, value),
                Some(value) => self.tree.insert(key, &value[..]).map(drop),
                None => self.tree.remove(key).map(drop),
            }
            .map_err(self.fail())?;
        }
        Ok(())
    }

    /// Otherwise it writes 512 KiB at a time.
    fn write_out(&self) -> Result<(), Error> {
        self.db.flush().map(drop).map_err(self.fail())
    }

    /// Without room it isn't tried: also where nothing was applied, a new store has something to write.
    fn checkpoint(&self, _rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        self.check_free(0, FLUSH_ROOM_BYTES)?;
        self.db.flush().map_err(self.fail())?;
        self.sync_files()
            .map_err(Error::io("sync sled's files in", &self.path))?;
        Ok(Checkpoint::Durable)
    }

    fn size_bytes(&self) -> u64 {
        // Only a figure: a file that has just gone is none to stop for.
        self.db.size_on_disk().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    fn apply(store: &SledStore, name: &str, value: Option<usize>) {
        let mut batch = Batch::default();
        match value {
            Some(len) => batch.put(Column::Data, name.to_owned(), vec![len as u8; len]),
            None => batch.delete(Column::Data, name.to_owned()),
        }
        store.apply(&[batch]).expect("applied");
    }

    #[test]
    fn pieces_go_with_their_value() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SledStore::open(folder.path(), 1 << 20).expect("a store");
        for (value, entries) in [
            (Some(10), 1),
            (Some(3 * PIECE_BYTES), 4),
            (Some(3 * PIECE_BYTES + 1), 5),
            (Some(PIECE_BYTES + 1), 3),
            (Some(PIECE_BYTES), 1),
            (Some(5 * PIECE_BYTES), 6),
            (None, 0),
            (None, 0),
        ] {
            apply(&store, "name", value);
            assert_eq!(store.tree.len(), entries, "after {value:?}");
            let len = store.get(Column::Data, b"name").expect("a get");
            assert_eq!(len.map(|found| found.len()), value);
        }
        // A delete that a crash cut short is done again: what is left goes.
        apply(&store, "name", Some(5 * PIECE_BYTES));
        for number in 0..3 {
            store
                .tree
                .remove(piece_key(b"name", number))
                .expect("removed");
        }
        let torn = store
            .get(Column::Data, b"name")
            .expect_err("a piece is missing");
        assert!(torn.to_string().contains("name is not whole"), "{torn}");
        apply(&store, "name", None);
        assert_eq!(store.tree.len(), 0);
    }

    /// As a checkpoint brings a delete to sled while others read over its key.
    #[test]
    fn who_reads_beside_a_change_sees_whole_values() {
        const LEN: usize = 64 * PIECE_BYTES;
        let folder = tempfile::tempdir().expect("a folder");
        let store = SledStore::open(folder.path(), 16 << 20).expect("a store");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..200 {
                    apply(&store, "name", Some(LEN));
                    apply(&store, "name", Some(PIECE_BYTES + 1));
                    apply(&store, "name", None);
                }
            });
            while !writer.is_finished() {
                let mut found = Vec::new();
                let all = store.chunk(Column::Data, b"n", b"", Direction::Forward, 10, &mut found);
                all.expect("whole values");
                let got = store.get(Column::Data, b"name").expect("a whole value");
                let first = store.first(Column::Data, b"n", b"").expect("a whole value");
                let first = first.map(|(_, value)| value);
                let values = found.into_iter().map(|(_, value)| value);
                for value in values.chain(got).chain(first) {
                    assert!(
                        [LEN, PIECE_BYTES + 1].contains(&value.len()),
                        "{}",
                        value.len()
                    );
                }
            }
        });
    }

    #[test]
    fn neighbours_of_long_values_cost_little() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SledStore::open(folder.path(), 1 << 20).expect("a store");
        for number in 0..4 {
            apply(&store, &format!("a{number}"), Some(4 << 20));
        }
        for number in 0..5_000 {
            apply(&store, &format!("b{number}"), Some(10));
        }
        store
            .checkpoint(&|_| ControlFlow::Continue(()))
            .expect("made");
        let mib = store.size_bytes() >> 20;
        assert!(mib < 128, "16 MiB of values take {mib} MiB");
    }
}
