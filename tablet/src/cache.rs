//! The newest committed versions of cells that are read: most reads are of these, and an engine takes some microseconds to find
//! one.
//!
//! An entry is the same as in the engine, after all groups that were answered. A cell that may be locked is not looked up here:
//! the engine may have its commit before that is answered.

use std::cell::Cell;

use bytes::Bytes;
use percolator_protocol::types::{Timestamp, Write, WriteKind};

/// The assumed bytes of an entry, from which the number of slots follows.
const ENTRY_BYTES: u64 = 256;
/// Larger versions are not cached, in bytes of key and value. With its head and its slot an entry takes at most twice the
/// assumed bytes.
const ENTRY_BYTES_MAX: usize = 2 * ENTRY_BYTES as usize - HEAD_BYTES - size_of::<Slot>();
/// Slots of a set. With one slot each, a sixth of 100,000 cells in 256Ki slots would evict each other.
const WAYS: usize = 4;
/// The head of an entry: commit_ts, start_ts, the kind of the record, and the key's length.
const HEAD_BYTES: usize = 8 + 8 + 1 + 2;

/// A table of sets of a few entries. A new entry evicts one of its set.
#[derive(Debug)]
pub(crate) struct CellCache {
    sets: Vec<[Slot; WAYS]>,
    next_victim: usize,
    /// The bytes of all entries.
    entries_bytes: usize,
    /// Reads that found their cell's version here, and others.
    found: Cell<u64>,
    not_found: Cell<u64>,
}

/// A slot of the table. The hash is beside the pointer, so that a look-up reads the memory of one entry, not of four.
#[derive(Debug, Default)]
struct Slot {
    hash: u64,
    /// One allocation: head, key, value.
    entry: Option<Box<[u8]>>,
}

impl Slot {
    fn size_bytes(&self) -> usize {
        self.entry.as_ref().map_or(0, |entry| entry.len())
    }
}

/// A cell's newest version.
pub(crate) struct Newest<'a> {
    pub(crate) commit_ts: Timestamp,
    entry: &'a [u8],
    key_bytes: usize,
}

impl CellCache {
    /// A cache that takes about this many bytes, twice as many at the most.
    pub(crate) fn new(bytes: u64) -> Self {
        let slots = usize::try_from(bytes / ENTRY_BYTES).unwrap_or(usize::MAX >> 8);
        let sets = (slots.max(WAYS) / WAYS + 1).next_power_of_two() / 2;
        Self {
            sets: std::iter::repeat_with(Default::default)
                .take(sets)
                .collect(),
            next_victim: 0,
            entries_bytes: 0,
            found: Cell::new(0),
            not_found: Cell::new(0),
        }
    }

    /// The newest committed put or delete of the cell, if it is cached.
    pub(crate) fn newest(&self, hash: u64, cell_key: &[u8]) -> Option<Newest<'_>> {
        self.sets[self.set(hash)]
            .iter()
            .filter(|slot| slot.hash == hash)
            .filter_map(|slot| Newest::read(slot.entry.as_deref()?))
            .find(|newest| newest.key() == cell_key)
    }

    /// Caches the cell's newest committed put or delete. An older one than the cached one changes nothing.
    pub(crate) fn learn(
        &mut self,
        hash: u64,
        cell_key: &[u8],
        commit_ts: Timestamp,
        write: &Write,
    ) {
        let set = self.set(hash);
        let known = self.newest(hash, cell_key);
        if known
            .as_ref()
            .is_some_and(|known| known.commit_ts > commit_ts)
        {
            return;
        }
        let same = known
            .is_some()
            .then(|| self.position(set, hash, cell_key))
            .flatten();
        let value = write.short_value.as_deref();
        if cell_key.len() + value.map_or(0, <[u8]>::len) > ENTRY_BYTES_MAX {
            // The cached version of the cell isn't the newest any more.
            if let Some(same) = same {
                self.put(set, same, Slot::default());
            }
            return;
        }
        let free = || self.sets[set].iter().position(|slot| slot.entry.is_none());
        let at = same.or_else(free).unwrap_or_else(|| {
            self.next_victim = (self.next_victim + 1) % WAYS;
            self.next_victim
        });
        let entry = Some(entry(cell_key, commit_ts, write));
        self.put(set, at, Slot { hash, entry });
    }

    /// Removes the cell.
    pub(crate) fn forget(&mut self, hash: u64, cell_key: &[u8]) {
        let set = self.set(hash);
        if let Some(at) = self.position(set, hash, cell_key) {
            self.put(set, at, Slot::default());
        }
    }

    fn position(&self, set: usize, hash: u64, cell_key: &[u8]) -> Option<usize> {
        let is_cell = |slot: &Slot| {
            let known = slot.entry.as_deref().and_then(Newest::read);
            slot.hash == hash && known.is_some_and(|known| known.key() == cell_key)
        };
        self.sets[set].iter().position(is_cell)
    }

    fn put(&mut self, set: usize, at: usize, slot: Slot) {
        self.entries_bytes += slot.size_bytes();
        let before = std::mem::replace(&mut self.sets[set][at], slot);
        self.entries_bytes -= before.size_bytes();
    }

    /// Counts a read, and whether it hit the cache.
    pub(crate) fn count(&self, found: bool) {
        let counter = if found { &self.found } else { &self.not_found };
        counter.set(counter.get() + 1);
    }

    /// Hits and misses.
    pub(crate) fn lookups(&self) -> (u64, u64) {
        (self.found.get(), self.not_found.get())
    }

    /// The bytes of the table and its entries.
    pub(crate) fn bytes(&self) -> usize {
        self.sets.len() * size_of::<[Slot; WAYS]>() + self.entries_bytes
    }

    /// The same, counted anew.
    pub(crate) fn size_bytes(&self) -> usize {
        let entries = self.sets.iter().flatten().map(Slot::size_bytes);
        self.sets.len() * size_of::<[Slot; WAYS]>() + entries.sum::<usize>()
    }

    fn set(&self, hash: u64) -> usize {
        // The number of sets is a power of two.
        hash as usize & (self.sets.len() - 1)
    }
}

fn entry(cell_key: &[u8], commit_ts: Timestamp, write: &Write) -> Box<[u8]> {
    let value = write.short_value.as_deref();
    let mut entry = Vec::with_capacity(HEAD_BYTES + cell_key.len() + value.map_or(0, <[u8]>::len));
    entry.extend_from_slice(&commit_ts.as_u64().to_le_bytes());
    entry.extend_from_slice(&write.start_ts.as_u64().to_le_bytes());
    entry.push(
        u8::from(write.kind == WriteKind::Put)
            | u8::from(value.is_some()) << 1
            | u8::from(write.overlapped_rollback) << 2,
    );
    // At most ENTRY_BYTES_MAX.
    entry.extend_from_slice(&(cell_key.len() as u16).to_le_bytes());
    entry.extend_from_slice(cell_key);
    entry.extend_from_slice(value.unwrap_or_default());
    entry.into_boxed_slice()
}

impl<'a> Newest<'a> {
    fn read(entry: &'a [u8]) -> Option<Self> {
        let (commit_ts, rest) = entry.split_first_chunk()?;
        let key_bytes = rest.get(9..)?.first_chunk()?;
        Some(Self {
            commit_ts: Timestamp::from_u64(u64::from_le_bytes(*commit_ts)),
            entry,
            key_bytes: u16::from_le_bytes(*key_bytes).into(),
        })
    }

    fn key(&self) -> &'a [u8] {
        &self.entry[HEAD_BYTES..HEAD_BYTES + self.key_bytes]
    }

    /// The record.
    pub(crate) fn write(&self) -> Write {
        let start_ts = self.entry[8..].first_chunk().copied().unwrap_or_default();
        let flags = self.entry[16];
        Write {
            kind: if flags & 1 == 1 {
                WriteKind::Put
            } else {
                WriteKind::Delete
            },
            start_ts: Timestamp::from_u64(u64::from_le_bytes(start_ts)),
            short_value: (flags & 2 == 2)
                .then(|| Bytes::copy_from_slice(&self.entry[HEAD_BYTES + self.key_bytes..])),
            overlapped_rollback: flags & 4 == 4,
        }
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

    fn newest(cache: &CellCache, hash: u64, key: &str) -> Option<u64> {
        let newest = cache.newest(hash, key.as_bytes())?;
        Some(newest.commit_ts.as_u64())
    }

    #[test]
    fn the_largest_entries_take_twice_as_much_at_the_most() {
        for bytes in [1 << 10, 64 << 10] {
            let mut cache = CellCache::new(bytes);
            for cell in 0..4 * bytes / ENTRY_BYTES {
                let key = [&cell.to_be_bytes()[..], &[b'k'; 300]].concat();
                let write = Write {
                    kind: WriteKind::Put,
                    start_ts: Timestamp::from_u64(1),
                    short_value: Some(vec![b'v'; ENTRY_BYTES_MAX - key.len()].into()),
                    overlapped_rollback: false,
                };
                cache.learn(cell, &key, Timestamp::from_u64(2), &write);
                assert!(cache.newest(cell, &key).is_some());
            }
            assert!(
                cache.bytes() <= 2 * bytes as usize,
                "{} of {bytes}",
                cache.bytes()
            );
        }
    }

    #[test]
    fn newer_versions_replace_older_ones() {
        let mut cache = CellCache::new(1024);
        let ts = Timestamp::from_u64;
        cache.learn(1, b"a", ts(5), &write("x"));
        cache.learn(1, b"a", ts(4), &write("late"));
        assert_eq!(newest(&cache, 1, "a"), Some(5));
        assert_eq!(newest(&cache, 1, "b"), None, "the same hash, another cell");
        cache.learn(1, b"b", ts(3), &write("y"));
        assert_eq!(newest(&cache, 1, "a"), Some(5));
        assert_eq!(newest(&cache, 1, "b"), Some(3));
    }

    #[test]
    fn records_come_back_as_they_were() {
        let mut cache = CellCache::new(1024);
        let records = [
            write("x"),
            write(""),
            Write {
                short_value: None,
                ..write("")
            },
            Write {
                kind: WriteKind::Delete,
                short_value: None,
                overlapped_rollback: true,
                ..write("")
            },
        ];
        for (number, record) in records.iter().enumerate() {
            let ts = Timestamp::from_u64(number as u64);
            cache.learn(7, b"cell", ts, record);
            let newest = cache.newest(7, b"cell").expect("known");
            assert_eq!((newest.commit_ts, &newest.write()), (ts, record));
        }
    }

    #[test]
    fn a_full_set_lets_one_go() {
        let mut cache = CellCache::new(4 * ENTRY_BYTES);
        let keys = ["a", "b", "c", "d", "e"];
        for key in keys {
            cache.learn(3, key.as_bytes(), Timestamp::from_u64(1), &write("x"));
        }
        let known = keys.iter().filter(|key| newest(&cache, 3, key).is_some());
        assert_eq!(known.count(), WAYS);
        assert!(newest(&cache, 3, "e").is_some(), "the newcomer is kept");
        assert_eq!(cache.bytes(), cache.size_bytes());
    }

    #[test]
    fn a_version_too_large_to_keep_drops_the_older_one() {
        let mut cache = CellCache::new(1024);
        cache.learn(1, b"a", Timestamp::from_u64(5), &write("x"));
        let large = Write {
            short_value: Some(vec![0; 1000].into()),
            ..write("")
        };
        cache.learn(1, b"a", Timestamp::from_u64(6), &large);
        assert_eq!(newest(&cache, 1, "a"), None);
        assert_eq!(cache.bytes(), cache.size_bytes());
    }
}
