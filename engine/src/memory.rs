//! Maps in memory: for tests, and for the simulator, which puts a log on a simulated disk before it.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use crate::{
    Batch, Column, Direction, Error, Key, Value,
    backend::{CHUNK_BYTES, Checkpoint, StepHook, Store},
    read::{bounds, is_empty_range},
};

/// One map a column.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    columns: [BTreeMap<Key, Value>; Column::ALL.len()],
    size_bytes: u64,
}

// Each put or delete is made under the lock.
impl crate::ConcurrentStore for MemoryStore {}

impl Store for MemoryStore {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        Ok(self.inner.read().columns[column.index()].get(key).cloned())
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
        let inner = self.inner.read();
        let mut range = inner.columns[column.index()].range::<[u8], _>(bounds(start, end));
        let mut bytes = 0;
        for _ in 0..limit {
            let pair = match direction {
                Direction::Forward => range.next(),
                Direction::Reverse => range.next_back(),
            };
            let Some((key, value)) = pair else {
                return Ok(true);
            };
            into.push((key.clone(), value.clone()));
            bytes += key.len() + value.len();
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
        let inner = self.inner.read();
        let pair = inner.columns[column.index()]
            .range::<[u8], _>(bounds(start, end))
            .next();
        Ok(pair.map(|(key, value)| (key.clone(), value.clone())))
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        let mut inner = self.inner.write();
        for (column, key, value) in group.iter().flat_map(Batch::ops) {
            let map = &mut inner.columns[column.index()];
            let old = match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
            let size = |value: &Value| (key.len() + value.len()) as u64;
            inner.size_bytes += value.map_or(0, size);
            inner.size_bytes -= old.as_ref().map_or(0, size);
        }
        Ok(())
    }

    fn checkpoint(&self, _rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        Ok(Checkpoint::Volatile)
    }

    fn size_bytes(&self) -> u64 {
        self.inner.read().size_bytes
    }
}
