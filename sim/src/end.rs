//! What the invariants are told when the run is over.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::types::{Cell, DecodeError, Lock, Timestamp, Write, WriteKind, key};

use crate::history::Record;
use crate::owned::Owned;
use crate::watch::Content;

/// What is known when the run is over.
pub struct End<'a> {
    /// What clients did and were told.
    pub history: &'a [Record],
    /// The tables' numbers by name.
    pub tables: &'a BTreeMap<String, u32>,
    /// What the servers hold, and what they have collected.
    pub store: &'a Store,
    /// What each server holds.
    pub(crate) contents: &'a BTreeMap<String, Content>,
    /// The tablets that each has.
    pub owned: &'a BTreeMap<String, Owned>,
}

/// A committed version of a cell.
#[derive(Clone, Debug)]
pub struct Version {
    /// When it was committed.
    pub commit_ts: Timestamp,
    /// By whom.
    pub start_ts: Timestamp,
    /// What it says.
    pub kind: WriteKind,
    /// Its value; none unless it is a put.
    pub value: Option<Bytes>,
}

/// What all servers hold together.
#[derive(Debug, Default)]
pub struct Store {
    /// Committed versions of each cell, oldest first.
    pub versions: BTreeMap<Cell, Vec<Version>>,
    /// Cells that a transaction was rolled back on.
    pub rollbacks: BTreeMap<Timestamp, Vec<Cell>>,
    /// Locks.
    pub locks: Vec<(Cell, Lock)>,
}

impl Store {
    /// All that this content holds.
    ///
    /// # Errors
    /// A record that can't be read.
    pub(crate) fn read(content: &Content) -> Result<Self, String> {
        let mut store = Self::default();
        for ((column, key), value) in content {
            store
                .add(content, *column, key, value)
                .map_err(|error| error.to_string())?;
        }
        for versions in store.versions.values_mut() {
            versions.sort_by_key(|version| version.commit_ts);
        }
        Ok(store)
    }

    fn add(
        &mut self,
        content: &Content,
        column: Column,
        key: &Bytes,
        value: &Bytes,
    ) -> Result<(), DecodeError> {
        match column {
            Column::Lock => {
                let lock = Lock::decode(value.clone())?;
                self.locks.push((key::decode_cell(key)?, lock));
            }
            Column::Write => {
                let (cell_key, ts) = key::split_version(key)?;
                let write = Write::decode(ts, value.clone())?;
                let cell = key::decode_cell(cell_key)?;
                if write.kind == WriteKind::Rollback || write.overlapped_rollback {
                    self.rollbacks.entry(ts).or_default().push(cell.clone());
                }
                if write.kind != WriteKind::Rollback {
                    let value = match (write.kind, write.short_value) {
                        (WriteKind::Put, None) => {
                            let data = key::version(cell_key.to_vec(), write.start_ts);
                            content.get(&(Column::Data, data.into())).cloned()
                        }
                        (WriteKind::Put, short) => short,
                        _ => None,
                    };
                    self.versions.entry(cell).or_default().push(Version {
                        commit_ts: ts,
                        start_ts: write.start_ts,
                        kind: write.kind,
                        value,
                    });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The value of a cell at a snapshot.
    pub fn value_at(&self, cell: &Cell, snapshot: Timestamp) -> Option<&Bytes> {
        let versions = self.versions.get(cell)?;
        versions
            .iter()
            .rev()
            .filter(|version| version.commit_ts <= snapshot)
            .find(|version| matches!(version.kind, WriteKind::Put | WriteKind::Delete))?
            .value
            .as_ref()
    }
}
