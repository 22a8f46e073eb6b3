//! Pre-images of changed keys, for as long as a live snapshot needs them.

use std::collections::{BTreeMap, VecDeque};

use crate::{Column, Error, Key, Value};

/// A key and what it held before a change (nothing, or a value).
pub(super) type PreImage = (Column, Key, Option<Value>);

/// Of one key: the version of a change, and what it held before.
type Entries = Vec<(u64, Option<Value>)>;

/// The overhead of a pre-image besides its bytes: the nodes of the map and of the queue.
const OVERHEAD_BYTES: u64 = 160;

/// The version of the store, who holds which, and the pre-images.
#[derive(Debug)]
pub(super) struct History {
    /// Counts changes. A snapshot taken at version v sees all changes up to v.
    version: u64,
    /// Of each key, (version of the change, what it held before), in order of version: a snapshot
    /// taken at v finds its value in the first entry above v.
    columns: [BTreeMap<Key, Entries>; Column::ALL.len()],
    /// The same entries in order of version, to forget them.
    queue: VecDeque<(u64, Column, Key)>,
    bytes: u64,
    limit_bytes: u64,
    /// Number of snapshots at each version.
    live: BTreeMap<u64, u64>,
    /// Snapshots below it are too old.
    floor: u64,
    /// The reason why the store may hold a part of a batch.
    broken: Option<String>,
}

impl History {
    pub(super) fn new(limit_bytes: u64) -> History {
        History {
            version: 0,
            columns: Default::default(),
            queue: VecDeque::new(),
            bytes: 0,
            limit_bytes,
            live: BTreeMap::new(),
            floor: 0,
            broken: None,
        }
    }

    /// True if a change has to bring pre-images.
    pub(super) fn is_saving(&self) -> bool {
        self.newest().is_some()
    }

    /// Number of snapshots alive, the too old ones too.
    pub(super) fn live(&self) -> u64 {
        self.live.values().sum()
    }

    /// A snapshot is taken: its version.
    pub(super) fn hold(&mut self) -> u64 {
        *self.live.entry(self.version).or_default() += 1;
        self.version
    }

    /// The snapshot is gone.
    pub(super) fn release(&mut self, version: u64) {
        if let Some(count) = self.live.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                self.live.remove(&version);
                self.forget();
            }
        }
    }

    /// The store is about to change, from what `saved` holds (if anybody wants it).
    pub(super) fn next_version(&mut self, saved: Vec<PreImage>) {
        self.version += 1;
        let Some(newest) = self.newest() else {
            return;
        };
        for (column, key, value) in saved {
            let entries = self.columns[column.index()].entry(key.clone()).or_default();
            // All snapshots there are find an entry already.
            if entries.last().is_some_and(|(version, _)| *version > newest) {
                continue;
            }
            self.bytes += cost(&key, &value);
            entries.push((self.version, value));
            self.queue.push_back((self.version, column, key));
        }
        while self.bytes > self.limit_bytes {
            let Some(oldest) = self.oldest() else {
                break;
            };
            self.floor = oldest + 1;
            self.forget();
        }
    }

    /// The value of `key` at `version`; `None` if it has not changed since.
    pub(super) fn at(&self, version: u64, column: Column, key: &[u8]) -> Option<Option<Value>> {
        let entries = self.columns[column.index()].get(key)?;
        pick(entries, version).cloned()
    }

    /// The keys in `[start, end)` (empty `end`: all from `start`) that have changed since `version`,
    /// with what they held.
    pub(super) fn changed<'a>(
        &'a self,
        version: u64,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> impl Iterator<Item = (&'a Key, &'a Option<Value>)> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let end = if end.is_empty() {
            Unbounded
        } else {
            Excluded(end)
        };
        self.columns[column.index()]
            .range::<[u8], _>((Included(start), end))
            .filter_map(move |(key, entries)| Some((key, pick(entries, version)?)))
    }

    /// The store failed in the middle of a change.
    pub(super) fn break_off(&mut self, cause: String) {
        self.broken = Some(cause);
    }

    /// Refuses if the store may hold a batch in part.
    pub(super) fn check_whole(&self) -> Result<(), Error> {
        match &self.broken {
            Some(cause) => Err(Error::Poisoned {
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Refuses if the store may hold a batch in part, or the snapshot is too old.
    pub(super) fn check_readable(&self, version: Option<u64>) -> Result<(), Error> {
        self.check_whole()?;
        match version {
            Some(version) if version < self.floor => Err(Error::SnapshotTooOld {
                limit_bytes: self.limit_bytes,
            }),
            _ => Ok(()),
        }
    }

    fn newest(&self) -> Option<u64> {
        let (version, _) = self.live.last_key_value()?;
        (*version >= self.floor).then_some(*version)
    }

    fn oldest(&self) -> Option<u64> {
        self.live
            .range(self.floor..)
            .next()
            .map(|(version, _)| *version)
    }

    /// Drops the entries that no snapshot reads: those at or below the oldest.
    fn forget(&mut self) {
        let oldest = self.oldest().unwrap_or(u64::MAX);
        while self
            .queue
            .front()
            .is_some_and(|(version, ..)| *version <= oldest)
        {
            let Some((version, column, key)) = self.queue.pop_front() else {
                break;
            };
            let map = &mut self.columns[column.index()];
            if let Some(entries) = map.get_mut(&key) {
                entries.retain(|(other, value)| {
                    let keep = *other != version;
                    if !keep {
                        self.bytes -= cost(&key, value);
                    }
                    keep
                });
                if entries.is_empty() {
                    map.remove(&key);
                }
            }
        }
    }
}

fn pick(entries: &[(u64, Option<Value>)], version: u64) -> Option<&Option<Value>> {
    entries
        .iter()
        .find(|(changed, _)| *changed > version)
        .map(|(_, value)| value)
}

fn cost(key: &Key, value: &Option<Value>) -> u64 {
    OVERHEAD_BYTES + (key.len() + value.as_ref().map_or(0, Value::len)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_snapshot_needs_is_forgotten_though_there_always_is_one() {
        let mut history = History::new(1 << 20);
        let mut held = history.hold();
        for at in 0..100_u64 {
            let key = Key::from(at.to_be_bytes().to_vec());
            history.next_version(vec![(Column::Data, key, Some(Value::from_static(b"v")))]);
            // Each is taken before the one before it has gone.
            let next = history.hold();
            history.release(held);
            held = next;
            assert!(
                history.queue.len() <= 1,
                "{} after {at}",
                history.queue.len()
            );
        }
        history.release(held);
        assert_eq!((history.queue.len(), history.bytes), (0, 0));
    }
}
