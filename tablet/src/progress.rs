//! The garbage of each tablet: what waits for collection, and what was collected since the start. For metrics and status.

use std::collections::BTreeMap;

use percolator_engine::{Column, Direction, Engine};

use crate::Error;
use crate::index::Entry;
use crate::tablets::Tablets;

/// The most items of the index that are counted at a start: about a second.
const COUNTED_MAX: usize = 1_000_000;

/// The garbage of a tablet that waits, and what was collected since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TabletGarbage {
    /// Items of the index that wait.
    pub(crate) waiting: u64,
    /// Records that were removed.
    pub(crate) records: u64,
    /// Bytes of the keys, and of the values within the records.
    pub(crate) bytes: u64,
}

/// A change of one tablet's garbage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TabletGarbageChange {
    /// New items of the index.
    pub(crate) made: u64,
    /// Finished items.
    pub(crate) done: u64,
    /// Records that were removed.
    pub(crate) records: u64,
    /// Bytes of the keys, and of the values within the records.
    pub(crate) bytes: u64,
}

/// The garbage of tablets, by id; zero: rows of tablets that are not here any more.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    tablets: BTreeMap<u64, TabletGarbage>,
    /// A tablet was split since the index was last empty: the waiting items of each are estimates.
    is_estimate: bool,
}

impl Progress {
    /// Counts the waiting items.
    pub(crate) fn load(engine: &dyn Engine, tablets: &Tablets) -> Result<Self, Error> {
        let mut progress = Self::default();
        let entries = engine.scan(Column::Garbage, &[], &[], Direction::Forward)?;
        let mut counted = 0;
        for pair in entries {
            let (key, value) = pair?;
            let items = Entry::decode(&key, value)?.items;
            for item in &items {
                progress.of(tablets.holding(&item.cell_key)?).waiting += 1;
            }
            counted += items.len();
            if counted >= COUNTED_MAX {
                break;
            }
        }
        Ok(progress)
    }

    fn of(&mut self, tablet: u64) -> &mut TabletGarbage {
        self.tablets.entry(tablet).or_default()
    }

    /// Applies a durable change.
    pub(crate) fn changed(&mut self, tablet: u64, change: TabletGarbageChange) {
        let known = self.of(tablet);
        known.waiting = (known.waiting + change.made).saturating_sub(change.done);
        known.records += change.records;
        known.bytes += change.bytes;
    }

    /// Gives each part of a split tablet half of the waiting items. They are not counted anew, which takes long; the estimate
    /// ends with [`Self::nothing_waits`].
    pub(crate) fn split(&mut self, tablet: u64, sibling: u64) {
        let known = self.of(tablet);
        let half = known.waiting / 2;
        known.waiting -= half;
        self.of(sibling).waiting += half;
        self.is_estimate = true;
    }

    /// Gives the merged tablet the garbage of both.
    pub(crate) fn merge(&mut self, tablet: u64, gone: u64) {
        if let Some(gone) = self.tablets.remove(&gone) {
            let known = self.of(tablet);
            known.waiting += gone.waiting;
            known.records += gone.records;
            known.bytes += gone.bytes;
        }
    }

    /// Gives an arrived tablet the items that were made for it before.
    pub(crate) fn arrived(&mut self, tablet: u64, items: u64) {
        let of_none = self.of(0);
        let items = items.min(of_none.waiting);
        of_none.waiting -= items;
        self.of(tablet).waiting += items;
        // Items from before this start are not counted.
        self.is_estimate = true;
    }

    /// Notes that the index is empty.
    pub(crate) fn nothing_waits(&mut self) {
        for known in self.tablets.values_mut() {
            known.waiting = 0;
        }
        self.is_estimate = false;
    }

    /// Whether waiting items are estimates.
    pub(crate) fn is_estimate(&self) -> bool {
        self.is_estimate
    }

    /// Removes a tablet. Its garbage goes with its rows.
    pub(crate) fn dropped(&mut self, tablet: u64) {
        if let Some(gone) = self.tablets.remove(&tablet) {
            self.changed(
                0,
                TabletGarbageChange {
                    made: gone.waiting,
                    done: 0,
                    records: gone.records,
                    bytes: gone.bytes,
                },
            );
        }
    }

    /// The garbage of each tablet, by id.
    pub(crate) fn tablets(&self) -> impl Iterator<Item = (u64, TabletGarbage)> {
        self.tablets.iter().map(|(id, garbage)| (*id, *garbage))
    }
}
