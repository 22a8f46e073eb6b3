//! The newest committed version of cells that are read: most reads are of these, and an engine takes
//! some microseconds to find one.
//!
//! What is in here is what the engine holds, as far as every group that was answered goes. A cell that
//! may be locked is not looked up here: its commit may be in the engine and not be answered yet.

use bytes::Bytes;
use percolator_protocol::types::{Timestamp, Write};

/// Larger ones are left to the engine, in bytes of key and value.
const ENTRY_BYTES_MAX: usize = 512;
/// What an entry is reckoned to take, in bytes, when the number of slots is chosen.
const ENTRY_BYTES: u64 = 256;

/// A table of one entry a slot; a newcomer takes the place of whoever has its slot.
#[derive(Debug)]
pub(crate) struct CellCache {
    slots: Vec<Option<Box<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    cell_key: Bytes,
    commit_ts: Timestamp,
    write: Write,
}

impl CellCache {
    /// A cache that takes about this many bytes, twice as many at the most.
    pub(crate) fn new(bytes: u64) -> Self {
        let slots = usize::try_from(bytes / ENTRY_BYTES).unwrap_or(usize::MAX >> 8);
        let slots = (slots.max(1) + 1).next_power_of_two() / 2;
        Self {
            slots: std::iter::repeat_with(|| None).take(slots).collect(),
        }
    }

    /// The newest committed put or delete of the cell, where it is known.
    pub(crate) fn newest(&self, hash: u64, cell_key: &[u8]) -> Option<(Timestamp, &Write)> {
        let entry = self.slots[self.slot(hash)].as_deref()?;
        (entry.cell_key[..] == *cell_key).then_some((entry.commit_ts, &entry.write))
    }

    /// The cell's newest committed put or delete is this one. An older one than is known changes
    /// nothing.
    pub(crate) fn learn(&mut self, hash: u64, cell_key: Bytes, commit_ts: Timestamp, write: Write) {
        let slot = self.slot(hash);
        let same = self.slots[slot]
            .as_deref()
            .filter(|entry| entry.cell_key == cell_key);
        if same.is_some_and(|entry| entry.commit_ts > commit_ts) {
            return;
        }
        let bytes = cell_key.len() + write.short_value.as_ref().map_or(0, Bytes::len);
        if bytes > ENTRY_BYTES_MAX {
            // What is known of the cell isn't its newest version any more.
            if same.is_some() {
                self.slots[slot] = None;
            }
            return;
        }
        self.slots[slot] = Some(Box::new(Entry {
            cell_key,
            commit_ts,
            write,
        }));
    }

    fn slot(&self, hash: u64) -> usize {
        // A power of two of slots.
        hash as usize & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::WriteKind;

    use super::*;

    fn write(value: &'static str) -> Write {
        Write {
            kind: WriteKind::Put,
            start_ts: Timestamp::from_u64(1),
            short_value: Some(value.into()),
            overlapped_rollback: false,
        }
    }

    fn newest(cache: &CellCache, hash: u64, key: &'static str) -> Option<u64> {
        let (commit_ts, _) = cache.newest(hash, key.as_bytes())?;
        Some(commit_ts.as_u64())
    }

    #[test]
    fn newer_versions_replace_older_ones_and_cells_each_other() {
        let mut cache = CellCache::new(1024);
        let ts = Timestamp::from_u64;
        cache.learn(1, "a".into(), ts(5), write("x"));
        cache.learn(1, "a".into(), ts(4), write("late"));
        assert_eq!(newest(&cache, 1, "a"), Some(5));
        assert_eq!(newest(&cache, 1, "b"), None, "the same hash, another cell");
        cache.learn(1, "b".into(), ts(3), write("y"));
        assert_eq!(newest(&cache, 1, "a"), None);
        assert_eq!(newest(&cache, 1, "b"), Some(3));
    }

    #[test]
    fn a_version_too_large_to_keep_drops_the_older_one() {
        let mut cache = CellCache::new(1024);
        cache.learn(1, "a".into(), Timestamp::from_u64(5), write("x"));
        let large = Write {
            short_value: Some(vec![0; 1000].into()),
            ..write("")
        };
        cache.learn(1, "a".into(), Timestamp::from_u64(6), large);
        assert_eq!(newest(&cache, 1, "a"), None);
    }
}
