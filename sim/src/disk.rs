//! A device that forgets what wasn't synced, tears the last write, answers with errors, is full or slow;
//! and the one small value that the oracle and the master keep.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_engine::disk::{Disk, DiskFile};

use crate::rng::Rng;

/// A folder on a simulated device; clones share it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// How much space is left on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// More than anybody needs.
    Plenty,
    /// So many bytes.
    Left(u64),
    /// None, and that shows only when something is written.
    NoneAndDoesNotTell,
}

struct State {
    files: BTreeMap<String, File>,
    rng: Rng,
    /// Operations that fail, of a million.
    error_ppm: u32,
    space: Space,
    /// So many operations from now the machine dies: that one is done in part, later ones not at all.
    dies_after: Option<u64>,
    /// Says that it has synced, and hasn't: for a mutation.
    lies: bool,
}

#[derive(Clone, Default)]
struct File {
    content: Vec<u8>,
    /// Bytes from the start that are on the device.
    synced: usize,
    /// Its name is on the device.
    linked: bool,
    /// It was removed, and that isn't on the device.
    removed: bool,
}

impl SimDisk {
    /// An empty folder.
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: BTreeMap::new(),
            rng,
            error_ppm: 0,
            space: Space::Plenty,
            dies_after: None,
            lies: false,
        })))
    }

    /// From now on so many operations of a million fail, and there is so much space.
    pub fn set_faults(&self, error_ppm: u32, space: Space) {
        let mut state = self.0.lock();
        state.error_ppm = error_ppm;
        state.space = space;
    }

    /// The machine dies in the middle of what comes next.
    pub fn die_soon(&self) {
        let mut state = self.0.lock();
        state.dies_after = Some(state.rng.below(3));
    }

    /// From now on syncs are claimed and not done.
    pub fn lie(&self) {
        self.0.lock().lies = true;
    }

    /// The machine has lost its power, and has it again: what wasn't synced is gone, or there in part,
    /// or there.
    pub fn crash(&self) {
        let mut state = self.0.lock();
        let State { files, rng, .. } = &mut *state;
        files.retain(|_, file| {
            if file.removed {
                file.removed = false;
                // A removal that wasn't synced may have happened.
                if rng.below(2) == 0 {
                    return false;
                }
            }
            if !file.linked && rng.below(2) == 0 {
                return false;
            }
            let tail = file.content.len() - file.synced;
            if tail > 0 {
                let kept = file.synced + rng.below(tail as u64 + 1) as usize;
                match rng.below(4) {
                    // Nothing of it came to the device.
                    0 => file.content.truncate(file.synced),
                    // All of it did.
                    1 => {}
                    // The length did, and a part of the content.
                    2 => file.content[kept..].fill(0),
                    _ => file.content.truncate(kept),
                }
            }
            file.synced = file.content.len();
            file.linked = true;
            true
        });
        state.dies_after = None;
    }

    /// What the files hold, in bytes.
    pub fn size_bytes(&self) -> u64 {
        let state = self.0.lock();
        state
            .files
            .values()
            .map(|file| file.content.len() as u64)
            .sum()
    }
}

impl State {
    /// Whether the operation is done, is done in part and fails, or fails.
    fn begin(&mut self) -> io::Result<()> {
        match &mut self.dies_after {
            Some(0) => return Err(io::Error::other("the machine has died")),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.rng.chance(self.error_ppm) {
            return Err(io::Error::other("the device answered with an error"));
        }
        Ok(())
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        self.files
            .get_mut(name)
            .filter(|file| !file.removed)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.begin()?;
        if state.file(name).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(name.to_owned(), File::default());
        Ok(Box::new(Open {
            disk: self.clone(),
            name: name.to_owned(),
        }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut state = self.0.lock();
        state.begin()?;
        Ok(state.file(name)?.content.clone())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.0.lock();
        state.begin()?;
        let there = state.files.iter().filter(|(_, file)| !file.removed);
        Ok(there.map(|(name, _)| name.clone()).collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.begin()?;
        state.file(name)?.removed = true;
        Ok(())
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.begin()?;
        let file = state.file(name)?;
        file.content.truncate(len as usize);
        file.synced = file.content.len();
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.begin()?;
        state.files.retain(|_, file| !file.removed);
        for file in state.files.values_mut() {
            file.linked = true;
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let state = self.0.lock();
        Ok(match state.space {
            Space::Plenty => Some(1 << 40),
            Space::Left(bytes) => Some(bytes),
            Space::NoneAndDoesNotTell => None,
        })
    }
}

struct Open {
    disk: SimDisk,
    name: String,
}

impl DiskFile for Open {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        let begun = match state.begin() {
            Ok(()) if state.space == Space::NoneAndDoesNotTell => {
                Err(io::ErrorKind::StorageFull.into())
            }
            begun => begun,
        };
        let written = match begun {
            Ok(()) => bytes.len(),
            Err(_) => state.rng.below(bytes.len() as u64 + 1) as usize,
        };
        let file = state.file(&self.name)?;
        file.content.extend_from_slice(&bytes[..written]);
        begun
    }

    fn sync_data(&mut self) -> io::Result<Duration> {
        let mut state = self.disk.0.lock();
        state.begin()?;
        let lies = state.lies;
        let file = state.file(&self.name)?;
        if !lies {
            file.synced = file.content.len();
        }
        Ok(Duration::ZERO)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.begin()?;
        let file = state.file(&self.name)?;
        file.content.truncate(len as usize);
        file.synced = file.synced.min(file.content.len());
        Ok(())
    }
}

/// One small durable value: what a file that is replaced as a whole keeps.
#[derive(Clone)]
pub struct SimTruth(Arc<Mutex<Value>>);

struct Value {
    stored: Option<Vec<u8>>,
    rng: Rng,
    error_ppm: u32,
    lies: bool,
}

impl SimTruth {
    /// Nothing is stored yet.
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(Value {
            stored: None,
            rng,
            error_ppm: 0,
            lies: false,
        })))
    }

    /// From now on so many writes of a million fail.
    pub fn set_faults(&self, error_ppm: u32) {
        self.0.lock().error_ppm = error_ppm;
    }

    /// From now on writes are claimed and not done.
    pub fn lie(&self) {
        self.0.lock().lies = true;
    }

    /// What is stored.
    pub fn load(&self) -> Option<Vec<u8>> {
        self.0.lock().stored.clone()
    }

    /// Stores a value. After an error it may or may not be stored.
    ///
    /// # Errors
    /// As the device likes.
    pub fn store(&self, value: &[u8]) -> Result<(), String> {
        let mut state = self.0.lock();
        let ppm = state.error_ppm;
        let failed = state.rng.chance(ppm);
        let written = !failed || state.rng.below(2) == 0;
        if written && !state.lies {
            state.stored = Some(value.to_vec());
        }
        if failed {
            return Err("the device answered with an error".to_owned());
        }
        Ok(())
    }

    /// What is stored is lost.
    pub fn lose(&self) {
        self.0.lock().stored = None;
    }

    /// The process dies while it stores a value: it is stored, or it isn't.
    pub fn store_dying(&self, value: &[u8]) {
        let mut state = self.0.lock();
        if state.rng.below(2) == 0 && !state.lies {
            state.stored = Some(value.to_vec());
        }
    }
}
