//! A device that forgets what wasn't synced, tears the last write, writes files over older ones, answers
//! with errors, is full or slow.
//!
//! A sync that fails may have brought some of what was written to the device, and the system may take the rest for
//! written: it is still read, no later sync brings it there, and a crash takes it (Rebello et al., "Can Applications
//! Recover from fsync Failures?", 2020). Only what is written anew is synced again.

mod small_files;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolator_engine::disk::{Disk, DiskFile, Pause};

use crate::rng::Rng;

/// A folder on a simulated device; clones share it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>, Arc<AtomicBool>);

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
    files: BTreeMap<u64, File>,
    next_file: u64,
    /// Which files there are, by name.
    names: BTreeMap<String, u64>,
    /// Which there are on the device, and what was changed since then.
    names_synced: BTreeMap<String, u64>,
    renamed: Vec<Renamed>,
    /// Files that are removed are written over, as those of the operating system's folders are.
    reuses: bool,
    /// What a crash leaves, and when in the middle of something a machine dies.
    crashes: Rng,
    /// Which operations fail, and how much of them is done.
    errors: Rng,
    /// Operations that fail, of a million.
    error_ppm: u32,
    space: Space,
    /// So many operations from now the machine dies: that one is done in part, later ones not at all.
    dies_after: Option<u64>,
    /// Says that it has done it, and hasn't: for a mutation.
    lies: Option<Lie>,
}

/// What a device claims and doesn't do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// To bring content onto the device.
    Sync,
    /// To bring onto the device which files there are.
    Folder,
    /// To cut a file.
    Cut,
    /// To write a file anew: it is only cut and synced.
    Rewrite,
    /// To bring content onto the device, where that has failed: it is tried again, and that is believed.
    SyncAgain,
}

/// A change of which files there are.
#[derive(Clone)]
enum Renamed {
    Made(String, u64),
    Moved(String, String),
    Removed(String),
}

#[derive(Clone, Default)]
struct File {
    content: Vec<u8>,
    /// What is on the device for sure.
    synced: Vec<u8>,
    /// Where the sectors begin that the device doesn't have, and that no sync brings there.
    given_up: BTreeSet<usize>,
}

impl File {
    /// What a sync brings to the device.
    fn reachable(&self) -> Vec<u8> {
        let mut reachable = self.content.clone();
        for start in &self.given_up {
            for at in sector(*start, reachable.len()) {
                reachable[at] = self.synced.get(at).copied().unwrap_or_default();
            }
        }
        reachable
    }

    /// All that a sync brings to the device is there.
    fn sync(&mut self) {
        if self.given_up.is_empty() {
            self.synced.clone_from(&self.content);
        } else {
            self.synced = self.reachable();
        }
    }

    /// A sync fails: of what is new, some comes to the device and the rest is given up, or all is as it was.
    fn fail_sync(&mut self, rng: &mut Rng) {
        if rng.below(3) == 0 {
            return;
        }
        let reachable = self.reachable();
        self.synced.resize(reachable.len(), 0);
        for start in (0..reachable.len()).step_by(SECTOR_BYTES) {
            let place = sector(start, reachable.len());
            if reachable[place.clone()] == self.synced[place.clone()] {
                continue;
            }
            if rng.below(2) == 0 {
                self.synced[place.clone()].copy_from_slice(&reachable[place]);
            } else {
                self.given_up.insert(start);
            }
        }
    }

    /// This was written: it will be synced, as will the rest of its sectors.
    fn changed(&mut self, written: Range<usize>) {
        self.given_up
            .retain(|start| start + SECTOR_BYTES <= written.start || *start >= written.end);
    }
}

fn sector(start: usize, len: usize) -> Range<usize> {
    start.min(len)..(start + SECTOR_BYTES).min(len)
}

/// A device writes as much at once.
const SECTOR_BYTES: usize = 512;
/// The file that the next one is made of (`engine/src/disk.rs`).
const SPARE: &str = "spare";

impl SimDisk {
    /// What [`Self::space`] says where there is enough.
    const PLENTY: Option<u64> = Some(1 << 40);

    /// An empty folder.
    pub fn new(rng: &Rng) -> Self {
        Self(
            Arc::new(Mutex::new(State {
                files: BTreeMap::new(),
                next_file: 0,
                names: BTreeMap::new(),
                names_synced: BTreeMap::new(),
                renamed: Vec::new(),
                reuses: rng.stream("reuses").below(3) > 0,
                crashes: rng.stream("crashes"),
                errors: rng.stream("errors"),
                error_ppm: 0,
                space: Space::Plenty,
                dies_after: None,
                lies: None,
            })),
            Arc::default(),
        )
    }

    /// The same folder, for a process of another machine. Anyone who had it before can't reach it any more.
    pub fn move_away(&self) -> Self {
        // What was not synced is in that machine's memory.
        self.crash();
        self.1.store(true, Ordering::Relaxed);
        Self(self.0.clone(), Arc::default())
    }

    /// A copy of the folder, as a loss of power would leave it now, on a device that is well.
    pub fn copy(&self) -> Self {
        let state = self.0.lock();
        let copy = Self(
            Arc::new(Mutex::new(State {
                files: state.files.clone(),
                next_file: state.next_file,
                names: state.names.clone(),
                names_synced: state.names_synced.clone(),
                renamed: state.renamed.clone(),
                reuses: state.reuses,
                crashes: state.crashes.stream("copy"),
                errors: state.errors.stream("copy"),
                error_ppm: 0,
                space: Space::Plenty,
                dies_after: None,
                lies: state.lies,
            })),
            Arc::default(),
        );
        drop(state);
        copy.crash();
        copy
    }

    fn is_gone(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }

    /// Whether an operation is done, is done in part and fails, or fails.
    fn begin(&self, state: &mut State) -> io::Result<()> {
        self.check_here()?;
        state.begin()
    }

    fn check_here(&self) -> io::Result<()> {
        if self.is_gone() {
            Err(io::Error::other("the device is at another machine"))
        } else {
            Ok(())
        }
    }

    /// From now on so many operations of a million fail.
    pub fn set_error_ppm(&self, error_ppm: u32) {
        self.0.lock().error_ppm = error_ppm;
    }

    /// From now on there is so much space.
    pub fn set_space(&self, space: Space) {
        self.0.lock().space = space;
    }

    /// The machine dies in the middle of the next so many operations.
    pub fn die_within(&self, operations: u64) {
        if self.is_gone() {
            return;
        }
        let mut state = self.0.lock();
        state.dies_after = Some(state.crashes.below(operations));
    }

    /// Every file is lost.
    pub fn lose(&self) {
        let mut state = self.0.lock();
        state.files.clear();
        state.names.clear();
        state.names_synced.clear();
        state.renamed.clear();
    }

    /// From now on this is claimed and not done.
    pub fn lie(&self, lie: Lie) {
        self.0.lock().lies = Some(lie);
    }

    /// The machine has lost its power, and has it again: what wasn't synced is gone, or there in part,
    /// or there.
    pub fn crash(&self) {
        if self.is_gone() {
            return;
        }
        let mut state = self.0.lock();
        let State {
            files,
            names,
            names_synced,
            renamed,
            crashes: rng,
            ..
        } = &mut *state;
        for change in renamed.drain(..) {
            if rng.below(2) == 0 {
                change.apply(names_synced);
            }
        }
        names.clone_from(names_synced);
        files.retain(|file, _| names.values().any(|named| named == file));
        for file in files.values_mut() {
            if file.content != file.synced {
                file.content = torn(&file.synced, &file.reachable(), rng);
                file.synced.clone_from(&file.content);
            }
            file.given_up.clear();
        }
        state.dies_after = None;
    }

    /// The process that used it is dead, and the machine is not: what was written is still read, synced or not.
    pub fn process_died(&self) {
        if self.is_gone() {
            return;
        }
        self.0.lock().dies_after = None;
    }

    /// One operation of somebody else's on the device.
    ///
    /// # Errors
    /// As the device likes.
    pub fn operate(&self) -> io::Result<()> {
        self.begin(&mut self.0.lock())
    }

    /// Free space, in bytes, where the device tells.
    pub fn space(&self) -> Option<u64> {
        match self.0.lock().space {
            Space::Plenty => Self::PLENTY,
            Space::Left(bytes) => Some(bytes),
            Space::NoneAndDoesNotTell => None,
        }
    }
}

/// What a crash leaves of a file that was `old` on the device and was being written to be `new`.
fn torn(old: &[u8], new: &[u8], rng: &mut Rng) -> Vec<u8> {
    let in_order = match rng.below(4) {
        0 => return old.to_vec(),
        1 => return new.to_vec(),
        way => way == 2,
    };
    let (short, long) = (old.len().min(new.len()), old.len().max(new.len()));
    let len = match rng.below(3) {
        0 => old.len(),
        1 => new.len(),
        _ => short + rng.below((long - short) as u64 + 1) as usize,
    };
    // The length may have come there without the content.
    let mut left = vec![0; len];
    let kept = len.min(old.len());
    left[..kept].copy_from_slice(&old[..kept]);
    let written: Vec<usize> = (0..new.len().min(len)).step_by(SECTOR_BYTES).collect();
    let sector = |start: usize| start..(start + SECTOR_BYTES).min(new.len()).min(len);
    let changed: Vec<usize> = written
        .into_iter()
        .filter(|start| left[sector(*start)] != new[sector(*start)])
        .collect();
    let until = rng.below(changed.len() as u64 + 1) as usize;
    for (at, start) in changed.into_iter().enumerate() {
        let arrived = if in_order {
            at < until
        } else {
            rng.below(2) == 0
        };
        if arrived {
            left[sector(start)].copy_from_slice(&new[sector(start)]);
        }
    }
    left
}

impl Renamed {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Made(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Moved(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Self::Removed(name) => {
                names.remove(name);
            }
        }
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
        if self.errors.chance(self.error_ppm) {
            return Err(io::Error::other("the device answered with an error"));
        }
        Ok(())
    }

    fn number(&self, name: &str) -> io::Result<u64> {
        let file = self.names.get(name).copied();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn file(&mut self, file: u64) -> io::Result<&mut File> {
        let file = self.files.get_mut(&file);
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&mut self, change: Renamed) {
        change.apply(&mut self.names);
        self.renamed.push(change);
    }

    fn make(&mut self, name: &str, content: Vec<u8>) -> u64 {
        let file = self.next_file;
        self.next_file += 1;
        let synced = content.clone();
        let given_up = BTreeSet::new();
        let made = File {
            content,
            synced,
            given_up,
        };
        self.files.insert(file, made);
        self.rename(Renamed::Made(name.to_owned(), file));
        file
    }

    fn wants_spare(&self) -> bool {
        self.reuses && self.space == Space::Plenty && !self.names.contains_key(SPARE)
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = match state.number(SPARE) {
            Ok(spare) => {
                state.rename(Renamed::Moved(SPARE.to_owned(), name.to_owned()));
                spare
            }
            Err(_) => state.make(name, Vec::new()),
        };
        Ok(Box::new(Open {
            disk: self.clone(),
            file,
            len: 0,
        }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        let file = state.number(name)?;
        Ok(state.file(file)?.content.clone())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        Ok(state.names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        state.number(name)?;
        let change = if state.wants_spare() {
            Renamed::Moved(name.to_owned(), SPARE.to_owned())
        } else {
            Renamed::Removed(name.to_owned())
        };
        state.rename(change);
        Ok(())
    }

    fn rewrite(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        let lies = state.lies == Some(Lie::Rewrite);
        let file = state.number(name)?;
        let file = state.file(file)?;
        file.content.truncate(content.len());
        if !lies {
            file.content.copy_from_slice(content);
            file.changed(0..content.len());
        }
        file.sync();
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        if state.lies == Some(Lie::Folder) {
            return Ok(());
        }
        state.names_synced = state.names.clone();
        state.renamed.clear();
        let State { files, names, .. } = &mut *state;
        files.retain(|file, _| names.values().any(|named| named == file));
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(self.space())
    }

    fn prepare(&self, bytes: u64, _rest: Option<Pause<'_>>) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.wants_spare() {
            self.begin(&mut state)?;
            state.make(SPARE, vec![0; bytes as usize]);
        }
        Ok(())
    }
}

struct Open {
    disk: SimDisk,
    file: u64,
    /// How much was appended.
    len: usize,
}

impl DiskFile for Open {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.check_here()?;
        let mut state = self.disk.0.lock();
        let blocks = state.file(self.file)?.content.len();
        let begun = match self.disk.begin(&mut state) {
            // What is written over needs no room.
            Ok(())
                if state.space == Space::NoneAndDoesNotTell && self.len + bytes.len() > blocks =>
            {
                Err(io::ErrorKind::StorageFull.into())
            }
            begun => begun,
        };
        let written = match begun {
            Ok(()) => bytes.len(),
            Err(_) if state.dies_after == Some(0) => {
                state.crashes.below(bytes.len() as u64 + 1) as usize
            }
            Err(_) => state.errors.below(bytes.len() as u64 + 1) as usize,
        };
        let file = state.file(self.file)?;
        let end = self.len + written;
        let content = &mut file.content;
        content.resize(content.len().max(end), 0);
        content[self.len..end].copy_from_slice(&bytes[..written]);
        file.changed(self.len..end);
        if begun.is_ok() {
            self.len = end;
        }
        begun
    }

    fn sync_data(&mut self) -> io::Result<Duration> {
        self.disk.check_here()?;
        let mut state = self.disk.0.lock();
        let begun = self.disk.begin(&mut state);
        let lies = state.lies;
        let State { files, errors, .. } = &mut *state;
        let file = files.get_mut(&self.file).ok_or(io::ErrorKind::NotFound)?;
        if begun.is_err() {
            file.fail_sync(errors);
        }
        match (begun, lies) {
            (Err(error), lies) if lies != Some(Lie::SyncAgain) => return Err(error),
            (_, Some(Lie::Sync)) => {}
            _ => file.sync(),
        }
        Ok(Duration::ZERO)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        self.disk.begin(&mut state)?;
        let lies = state.lies == Some(Lie::Cut);
        let file = state.file(self.file)?;
        if !lies {
            file.content.truncate(len as usize);
        }
        Ok(())
    }
}
