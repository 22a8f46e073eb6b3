//! A store on a simulated device, for the shipped buffer, snapshots and log in front of it: what a
//! checkpoint has brought there stays; of what came after, a crash leaves some and not the rest, in no
//! order. That is what redb and sled are taken for.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use percolator_engine::{
    Batch, Checkpoint, Column, ConcurrentStore, Direction, Error, Key, StepHook, Store, Value,
};

use crate::disk::SimDisk;
use crate::rng::Rng;

/// A chunk of a scan ends when it has passed this many bytes.
const CHUNK_BYTES: usize = 4 << 10;

type Content = BTreeMap<(Column, Key), Value>;

/// What is on the device, and what may be.
#[derive(Debug, Default)]
pub struct Image {
    durable: Content,
    /// Changes since the last checkpoint.
    loose: Vec<(Column, Key, Option<Value>)>,
    /// What is said of checkpoints that isn't so: for a mutation.
    pub lies: Option<CheckpointLie>,
}

/// What is said of a checkpoint that isn't so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointLie {
    /// It is made, where nothing was brought to the device.
    Nothing,
    /// It is made, where it was broken off.
    BrokenOff,
}

impl Image {
    /// Of what no checkpoint has brought to the device one half is there, and the other half never will be.
    fn give_up(&mut self) {
        for (number, (column, key, value)) in
            std::mem::take(&mut self.loose).into_iter().enumerate()
        {
            if number % 2 == 0 {
                set(&mut self.durable, column, key, value);
            }
        }
    }

    /// What is surely on the device.
    pub fn copy(&self) -> Self {
        Self {
            durable: self.durable.clone(),
            loose: Vec::new(),
            lies: self.lies,
        }
    }

    /// Everything is lost.
    pub fn lose(&mut self) {
        self.durable.clear();
        self.loose.clear();
    }

    /// The machine has lost its power: some of the loose changes have come to the device.
    pub fn crash(&mut self, rng: &mut Rng) {
        let likely = rng.below(4);
        for (column, key, value) in std::mem::take(&mut self.loose) {
            if rng.below(3) < likely {
                set(&mut self.durable, column, key, value);
            }
        }
    }
}

fn set(content: &mut Content, column: Column, key: Key, value: Option<Value>) {
    match value {
        Some(value) => content.insert((column, key), value),
        None => content.remove(&(column, key)),
    };
}

/// The store of one process.
pub struct SimStore {
    disk: SimDisk,
    image: Arc<Mutex<Image>>,
    live: Mutex<Content>,
}

impl SimStore {
    /// What is on the device.
    pub fn open(disk: SimDisk, image: Arc<Mutex<Image>>) -> Self {
        let live = image.lock().durable.clone();
        Self {
            disk,
            image,
            live: Mutex::new(live),
        }
    }

    fn operate(&self) -> Result<(), Error> {
        self.disk.operate().map_err(|cause| Error::Io {
            action: "write to",
            path: "store".into(),
            cause: Arc::new(cause),
        })
    }
}

// Each put or delete is made under the lock.
impl ConcurrentStore for SimStore {}

impl Store for SimStore {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        let key = (column, Key::copy_from_slice(key));
        Ok(self.live.lock().get(&key).cloned())
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
        let live = self.live.lock();
        let from = (column, Key::copy_from_slice(start));
        let mut range = live
            .range(from..)
            .take_while(|((other, key), _)| *other == column && (end.is_empty() || key[..] < *end));
        let mut bytes = 0;
        let mut take = |((_, key), value): (&(Column, Key), &Value)| {
            into.push((key.clone(), value.clone()));
            bytes += key.len() + value.len();
            bytes >= CHUNK_BYTES
        };
        if direction == Direction::Reverse {
            let pairs: Vec<_> = range.collect();
            for (at, pair) in pairs.iter().rev().enumerate() {
                if at == limit || take(*pair) {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        for _ in 0..limit {
            match range.next() {
                None => return Ok(true),
                Some(pair) if take(pair) => break,
                Some(_) => {}
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
        let live = self.live.lock();
        let from = (column, Key::copy_from_slice(start));
        let first = live
            .range(from..)
            .next()
            .filter(|((other, key), _)| *other == column && (end.is_empty() || key[..] < *end));
        Ok(first.map(|((_, key), value)| (key.clone(), value.clone())))
    }

    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let needed_bytes = bytes as u64;
        match self.disk.space() {
            Some(space) if space < needed_bytes => Err(Error::Full {
                path: "store".into(),
                needed_bytes,
                reserve_bytes: 0,
            }),
            _ => Ok(()),
        }
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        self.operate()?;
        let (mut live, mut image) = (self.live.lock(), self.image.lock());
        for (column, key, value) in group.iter().flat_map(Batch::ops) {
            set(&mut live, column, key.clone(), value.cloned());
            image.loose.push((column, key.clone(), value.cloned()));
        }
        Ok(())
    }

    fn checkpoint(&self, _rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        let operated = self.operate();
        let mut image = self.image.lock();
        // As a sync of a file that fails: what was on its way is there, or never will be.
        if operated.is_err() {
            image.give_up();
        }
        operated?;
        if image.lies == Some(CheckpointLie::Nothing) {
            return Ok(Checkpoint::Durable);
        }
        let Image { durable, loose, .. } = &mut *image;
        for (column, key, value) in loose.drain(..) {
            set(durable, column, key, value);
        }
        Ok(Checkpoint::Durable)
    }

    fn size_bytes(&self) -> u64 {
        let live = self.live.lock();
        live.iter()
            .map(|((_, key), value)| (key.len() + value.len()) as u64)
            .sum()
    }
}

/// A store with what is said of its checkpoints.
pub struct Claimed<S> {
    store: S,
    image: Arc<Mutex<Image>>,
}

impl<S> Claimed<S> {
    /// What is said stands in the image.
    pub fn new(store: S, image: Arc<Mutex<Image>>) -> Self {
        Self { store, image }
    }
}

impl<S: Store> Store for Claimed<S> {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.store.get(column, key)
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
        self.store.chunk(column, start, end, direction, limit, into)
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.store.first(column, start, end)
    }

    fn wait_for_room(&self) {
        self.store.wait_for_room();
    }

    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        self.store.check_room(bytes)
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        self.store.apply(group)
    }

    fn checkpoint(&self, rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        let made = self.store.checkpoint(rest)?;
        let lies = self.image.lock().lies == Some(CheckpointLie::BrokenOff);
        Ok(if lies { Checkpoint::Durable } else { made })
    }

    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }
}
