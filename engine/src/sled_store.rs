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
//! the log's sync, on the same file system, flushes sled's writes along). Where power losses are to be
//! expected, take fjall.
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
use parking_lot::Mutex;
use sled::IVec;

use crate::{
    Batch, Column, Direction, Error, Key, Value,
    backend::{CHUNK_BYTES, Checkpoint, Rest, Store},
    disk::{free_bytes, sync_folder},
    read::is_empty_range,
};

/// What sled writes at most for each byte of a change, about: pieces of pages, and whole pages now and then.
const WRITTEN_PER_BYTE: u64 = 4;
/// Free space below which nothing is brought into sled, in bytes: its buffers, and what it writes in the
/// background, when it moves pages.
const ROOM_BYTES: u64 = 8 << 20;

/// A sled database.
#[derive(Debug)]
pub struct SledStore {
    path: PathBuf,
    db: sled::Db,
    tree: sled::Tree,
    /// Files of large values ("blobs", never changed once written) that were synced already.
    synced_blobs: Mutex<HashSet<std::ffi::OsString>>,
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
        })
    }

    fn fail(&self) -> impl Fn(sled::Error) -> Error + '_ {
        |error| store_error(&self.path, &error)
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

fn pair((key, value): (IVec, IVec)) -> (Key, Value) {
    (Key::copy_from_slice(&key[1..]), bytes(value))
}

// sled's trees are made for concurrent use; a put or delete is seen as a whole.
impl crate::ConcurrentStore for SledStore {}

impl Store for SledStore {
    fn get(&self, column: Column, name: &[u8]) -> Result<Option<Value>, Error> {
        let value = self.tree.get(key(column, name)).map_err(self.fail())?;
        Ok(value.map(bytes))
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
            let (key, value) = pair(found.map_err(self.fail())?);
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
        let found = self.range(column, start, end).next().transpose();
        Ok(found.map_err(self.fail())?.map(pair))
    }

    /// A write that finds no room leaves sled refusing everything until it is opened anew.
    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let needed_bytes = (bytes as u64).saturating_mul(WRITTEN_PER_BYTE);
        match free_bytes(&self.path) {
            Ok(free) if free < needed_bytes.saturating_add(ROOM_BYTES) => Err(Error::Full {
                path: self.path.clone(),
                needed_bytes,
                reserve_bytes: ROOM_BYTES,
            }),
            // A disk that can't tell answers when it is written to.
            _ => Ok(()),
        }
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        // The gate keeps readers out meanwhile, and after a crash the log replays the whole group: sled's
        // own batch would only add its cost, and a lock around every read of sled from then on.
        for (column, name, value) in group.iter().flat_map(Batch::ops) {
            let key = key(column, name);
            match value {
                Some(value) => self.tree.insert(key, &value[..]),
                None => self.tree.remove(key),
            }
            .map_err(self.fail())?;
        }
        Ok(())
    }

    fn checkpoint(&self, _rest: Rest<'_>) -> Result<Checkpoint, Error> {
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
