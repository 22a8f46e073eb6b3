//! Snapshots for stores that have none.
//!
//! While snapshots live, a commit first saves what the keys it touches held before (their
//! pre-images); a snapshot reads a key from the pre-images newer than itself, and from the store if
//! there is none. Without a live snapshot nothing is saved.

mod history;
mod scan;

use std::sync::Arc;

use history::History;
use parking_lot::{Mutex, RwLock};
use scan::Chunks;

use crate::{
    Batch, Column, Direction, Error, Key, Read, Scan, Snapshot, Value,
    backend::{Backend, Checkpoint, StepHook, Store},
};

/// Batches are made visible in slices of about this many puts and deletes, so that a large group does
/// not hold up the readers: sled takes some 5 us for each.
const SLICE_OPS: usize = 32;

/// A [`Store`] with snapshots.
#[derive(Debug)]
pub struct Versioned<S> {
    shared: Arc<Shared<S>>,
    /// There is one committer: what it reads before it takes the gate stays true.
    committer: Mutex<()>,
}

#[derive(Debug)]
struct Shared<S> {
    store: S,
    /// Readers of the store hold it shared, changes of the store or of the history exclusively: so
    /// nobody sees a part of a batch, or a store and a history that don't fit.
    gate: RwLock<History>,
}

impl<S: Store> Versioned<S> {
    /// `history_bytes`: see [`crate::Options::history_bytes`].
    pub fn new(store: S, history_bytes: u64) -> Versioned<S> {
        Versioned {
            shared: Arc::new(Shared {
                store,
                gate: RwLock::new(History::new(history_bytes)),
            }),
            committer: Mutex::new(()),
        }
    }

    fn apply_slice(&self, slice: &[Batch]) -> Result<(), Error> {
        let saving = self.shared.gate.read().is_saving();
        // Read outside of the gate, so that readers wait only for what has to be one step.
        let mut saved = if saving {
            self.pre_images(slice)?
        } else {
            Vec::new()
        };
        let mut history = self.shared.gate.write();
        history.check_whole()?;
        if !saving && history.is_saving() {
            saved = self.pre_images(slice)?;
        }
        history.next_version(saved);
        self.shared
            .store
            .apply(slice)
            .inspect_err(|error| history.break_off(error.to_string()))
    }

    fn pre_images(&self, slice: &[Batch]) -> Result<Vec<history::PreImage>, Error> {
        slice
            .iter()
            .flat_map(Batch::ops)
            .map(|(column, key, _)| {
                let value = self.shared.store.get(column, key)?;
                Ok((column, key.clone(), value))
            })
            .collect()
    }
}

impl<S: Store> Read for Versioned<S> {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        let history = self.shared.gate.read();
        history.check_whole()?;
        self.shared.store.get(column, key)
    }

    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error> {
        Ok(Box::new(Chunks::new(
            &self.shared,
            None,
            column,
            start,
            end,
            direction,
        )))
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        let history = self.shared.gate.read();
        history.check_whole()?;
        self.shared.store.first(column, start, end)
    }
}

impl<S: Store> Backend for Versioned<S> {
    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        let _one = self.committer.lock();
        self.shared.store.wait_for_room();
        let mut rest = group;
        while !rest.is_empty() {
            let mut ops = 0;
            let whole = rest
                .iter()
                .take_while(|batch| {
                    let fits = ops < SLICE_OPS;
                    ops += batch.len();
                    fits
                })
                .count();
            let (slice, next) = rest.split_at(whole);
            self.apply_slice(slice)?;
            rest = next;
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        let version = {
            let mut history = self.shared.gate.write();
            history.check_whole()?;
            history.hold()
        };
        Ok(Box::new(HeldSnapshot {
            shared: Arc::clone(&self.shared),
            version,
        }))
    }

    fn checkpoint(&self, rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        self.shared.store.checkpoint(rest)
    }

    fn size_bytes(&self) -> u64 {
        self.shared.store.size_bytes()
    }

    fn live_snapshots(&self) -> u64 {
        self.shared.gate.read().live()
    }
}

/// A snapshot: the version it holds.
struct HeldSnapshot<S: Store> {
    shared: Arc<Shared<S>>,
    version: u64,
}

impl<S: Store> Drop for HeldSnapshot<S> {
    fn drop(&mut self) {
        self.shared.gate.write().release(self.version);
    }
}

impl<S: Store> Snapshot for HeldSnapshot<S> {}

impl<S: Store> Read for HeldSnapshot<S> {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        let history = self.shared.gate.read();
        history.check_readable(Some(self.version))?;
        match history.at(self.version, column, key) {
            Some(value) => Ok(value),
            None => self.shared.store.get(column, key),
        }
    }

    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error> {
        Ok(Box::new(Chunks::new(
            &self.shared,
            Some(self.version),
            column,
            start,
            end,
            direction,
        )))
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        Chunks::new(
            &self.shared,
            Some(self.version),
            column,
            start,
            end,
            Direction::Forward,
        )
        .of_pairs(2)
        .next()
        .transpose()
    }
}
