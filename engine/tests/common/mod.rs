//! A disk in memory that fails on request, and what the tests of the log share.

pub(crate) mod tmpfs;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use percolator_engine::{
    Backend, Batch, Checkpoints, Column, Durable, EngineKind, Error, MemoryStore, Options,
    Versioned,
    disk::{Disk, DiskFile},
};

/// The content of the disk, and the failures to inject.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Bytes that still fit; above it an append writes what fits and fails.
    pub(crate) room: Option<usize>,
    pub(crate) free_bytes: Option<u64>,
    /// The old content of the next file, which is written over.
    pub(crate) left_over: Vec<u8>,
    pub(crate) fail_syncs: bool,
    pub(crate) fail_truncates: bool,
    /// Syncs of the folder find no room.
    pub(crate) is_full_for_names: bool,
    pub(crate) syncs: usize,
}

/// A disk in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultyDisk(Arc<Mutex<State>>);

struct FaultyFile {
    disk: FaultyDisk,
    name: String,
    len: usize,
}

impl FaultyDisk {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the disk")
    }

    /// A disk with these files, and no faults.
    pub(crate) fn with(files: BTreeMap<String, Vec<u8>>) -> FaultyDisk {
        let disk = FaultyDisk::default();
        disk.state().files = files;
        disk
    }
}

impl Disk for FaultyDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        let content = std::mem::take(&mut state.left_over);
        let previous = state.files.insert(name.to_owned(), content);
        assert_eq!(previous, None, "{name} was there");
        Ok(Box::new(FaultyFile {
            disk: self.clone(),
            name: name.to_owned(),
            len: 0,
        }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.state().files[name].clone())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().files.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state().files.remove(name);
        Ok(())
    }

    fn rewrite(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.syncs += 1;
        let file = state.files.get_mut(name).expect("the file");
        *file = content.to_vec();
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        if self.state().is_full_for_names {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(self.state().free_bytes)
    }
}

impl DiskFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let fits = state.room.unwrap_or(bytes.len()).min(bytes.len());
        let file = state.files.get_mut(&self.name).expect("the file");
        let end = self.len + fits;
        if file.len() < end {
            file.resize(end, 0);
        }
        file[self.len..end].copy_from_slice(&bytes[..fits]);
        self.len = end;
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync_data(&mut self) -> io::Result<Duration> {
        let mut state = self.disk.state();
        state.syncs += 1;
        if state.fail_syncs {
            return Err(io::Error::other("the device is gone"));
        }
        Ok(Duration::ZERO)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.fail_truncates {
            return Err(io::Error::other("the device is gone"));
        }
        let file = state.files.get_mut(&self.name).expect("the file");
        file.truncate(len as usize);
        self.len = len as usize;
        Ok(())
    }
}

pub(crate) fn options(segment_bytes: u64) -> Options {
    Options {
        segment_bytes,
        reserve_bytes: 0,
        last_reserve_bytes: 0,
        ..Options::new(EngineKind::Memory, "tablet-0")
    }
}

/// The path of the log in messages.
pub(crate) fn log_path() -> &'static Path {
    Path::new("/somewhere/log")
}

pub(crate) fn open_with<B: Backend>(
    disk: &FaultyDisk,
    backend: B,
    options: &Options,
) -> Result<Durable<B>, Error> {
    let disk = Arc::new(disk.clone());
    Durable::open(disk, log_path(), backend, options, Checkpoints::AT_ONCE)
}

pub(crate) fn memory() -> Versioned<MemoryStore> {
    Versioned::new(MemoryStore::default(), 1 << 20)
}

pub(crate) type MemoryEngine = Durable<Versioned<MemoryStore>>;

pub(crate) fn open(disk: &FaultyDisk, segment_bytes: u64) -> Result<MemoryEngine, Error> {
    open_with(disk, memory(), &options(segment_bytes))
}

pub(crate) fn put(key: &str, value: &str) -> Batch {
    let mut batch = Batch::default();
    batch.put(Column::Data, key.to_owned(), value.to_owned());
    batch
}
