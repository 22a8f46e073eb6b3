//! An engine without a log: nothing is kept.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    Batch, Column, Direction, Engine, Error, Key, MemoryStore, Read, Scan, Snapshot, Stats, Value,
    Versioned, backend::Backend, engine::check_group,
};

/// The memory engine: what is committed is gone with the process.
#[derive(Debug)]
pub struct MemoryEngine {
    backend: Versioned<MemoryStore>,
    closed: AtomicBool,
}

impl MemoryEngine {
    /// An empty engine. `history_bytes`: see [`crate::Options::history_bytes`].
    pub fn new(history_bytes: u64) -> MemoryEngine {
        MemoryEngine {
            backend: Versioned::new(MemoryStore::default(), history_bytes),
            closed: AtomicBool::new(false),
        }
    }
}

impl Read for MemoryEngine {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.backend.get(column, key)
    }

    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error> {
        self.backend.scan(column, start, end, direction)
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.backend.first(column, start, end)
    }
}

impl Engine for MemoryEngine {
    fn commit(&self, group: &[Batch]) -> Result<(), Error> {
        check_group(group)?;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.backend.apply(group)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.backend.snapshot()
    }

    fn stats(&self) -> Stats {
        Stats {
            size_bytes: self.backend.size_bytes(),
            snapshots: self.backend.live_snapshots(),
            ..Stats::default()
        }
    }

    fn close(&self) -> Result<(), Error> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
