//! The amount that a server reports of each of its tablets: its size, or its load.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::reports::Amount;

/// An amount of each tablet of a server: bytes, or cells a second.
#[derive(Debug, Default)]
pub(crate) struct Amounts {
    of: BTreeMap<u64, u64>,
    total: u64,
    to_split: BTreeMap<u64, Bytes>,
}

impl Amounts {
    /// Takes in a heartbeat's list. `None`: the amounts are unchanged.
    pub(crate) fn update(&mut self, reported: Option<Vec<Amount>>) {
        let Some(reported) = reported else { return };
        *self = Self::default();
        for Amount {
            tablet,
            amount,
            split_at,
        } in reported
        {
            self.of.insert(tablet, amount);
            self.total = self.total.saturating_add(amount);
            if let Some(row) = split_at {
                self.to_split.insert(tablet, row);
            }
        }
    }

    /// Of all tablets.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Of one tablet.
    pub(crate) fn of_tablet(&self, id: u64) -> Option<u64> {
        self.of.get(&id).copied()
    }

    /// Tablets that can be split, and the row that about half of each lies before.
    pub(crate) fn to_split(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.to_split.iter().map(|(id, row)| (*id, row))
    }

    /// Where this one can be split.
    pub(crate) fn split_at(&self, id: u64) -> Option<&Bytes> {
        self.to_split.get(&id)
    }
}
