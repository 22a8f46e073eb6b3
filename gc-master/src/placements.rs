//! Where tablets are, by id; and found by their owner and by their rows, so that nothing that happens often looks at all of
//! them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_protocol::types::{Rows, TabletState};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::state::Placement;

/// See the module's head. Stored as a map from ids to placements.
#[derive(Clone, Debug, Default)]
pub struct Placements {
    by_id: BTreeMap<u64, Placement>,
    by_owner: BTreeMap<String, BTreeSet<u64>>,
    /// By table and first row.
    by_rows: BTreeMap<u32, BTreeMap<Bytes, u64>>,
    /// How many placements were looked at one by one, for tests.
    visited: Cell<u64>,
}

impl PartialEq for Placements {
    fn eq(&self, other: &Self) -> bool {
        self.by_id == other.by_id
    }
}

impl Eq for Placements {}

impl Placements {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The tablet with this id.
    pub fn get(&self, id: u64) -> Option<&Placement> {
        self.by_id.get(&id)
    }

    /// Whether there is a tablet with this id.
    pub fn contains(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Placement)> {
        self.by_id.iter().map(|(id, placement)| {
            self.visit();
            (*id, placement)
        })
    }

    /// Those of this table, by their first row.
    pub fn of_table(&self, table: u32) -> impl Iterator<Item = (u64, &Placement)> {
        let ids = self.by_rows.get(&table).into_iter();
        self.named(ids.flat_map(BTreeMap::values))
    }

    /// Those of this owner, by id.
    pub fn of_owner(&self, owner: &str) -> impl Iterator<Item = (u64, &Placement)> {
        self.named(self.by_owner.get(owner).into_iter().flatten())
    }

    /// Those of this table that have one of these rows.
    pub fn overlapping(&self, table: u32, rows: &Rows) -> impl Iterator<Item = (u64, &Placement)> {
        let by_start = self.by_rows.get(&table);
        // The last that begins before these rows may reach into them.
        let before = by_start.and_then(|by_start| by_start.range(..rows.start.clone()).next_back());
        let behind = by_start.map(|by_start| by_start.range(rows.start.clone()..));
        let ids = before.into_iter().chain(behind.into_iter().flatten());
        let rows = rows.clone();
        let found = self.named(ids.map(|(_, id)| id));
        found
            .take_while({
                let rows = rows.clone();
                move |(_, placement)| rows.end.is_empty() || placement.rows.start < rows.end
            })
            .filter(move |(_, placement)| placement.rows.overlaps(&rows))
    }

    /// How many there are of this table's owner.
    pub fn count_of_owner(&self, owner: &str) -> usize {
        self.by_owner.get(owner).map_or(0, BTreeSet::len)
    }

    /// Enters a tablet, in place of what it was before. Others of its table that have some of its rows go.
    pub fn place(&mut self, id: u64, placement: Placement) {
        self.remove(id);
        let overlapped = self.overlapping(placement.table, &placement.rows);
        for other in overlapped.map(|(other, _)| other).collect::<Vec<_>>() {
            self.remove(other);
        }
        self.index(id, &placement);
        self.by_id.insert(id, placement);
    }

    /// Takes a tablet out.
    pub fn remove(&mut self, id: u64) -> Option<Placement> {
        let placement = self.by_id.remove(&id)?;
        if let Some(owned) = self.by_owner.get_mut(&placement.owner) {
            owned.remove(&id);
            if owned.is_empty() {
                self.by_owner.remove(&placement.owner);
            }
        }
        if let Some(by_start) = self.by_rows.get_mut(&placement.table) {
            by_start.remove(&placement.rows.start);
            if by_start.is_empty() {
                self.by_rows.remove(&placement.table);
            }
        }
        Some(placement)
    }

    /// Sets what was last heard of a tablet. Whether that is news.
    pub fn hear(&mut self, id: u64, made: bool, state: TabletState) -> bool {
        let Some(known) = self.by_id.get_mut(&id) else {
            return false;
        };
        let is_news = known.made != made || known.state != state;
        known.made = made;
        known.state = state;
        is_news
    }

    /// How many placements were looked at one by one, for tests.
    pub fn visited(&self) -> u64 {
        self.visited.get()
    }

    fn visit(&self) {
        self.visited.set(self.visited.get() + 1);
    }

    fn named<'a>(
        &'a self,
        ids: impl Iterator<Item = &'a u64>,
    ) -> impl Iterator<Item = (u64, &'a Placement)> {
        ids.filter_map(|id| {
            self.visit();
            Some((*id, self.by_id.get(id)?))
        })
    }

    fn index(&mut self, id: u64, placement: &Placement) {
        let owned = self.by_owner.entry(placement.owner.clone()).or_default();
        owned.insert(id);
        let by_start = self.by_rows.entry(placement.table).or_default();
        by_start.insert(placement.rows.start.clone(), id);
    }
}

impl Serialize for Placements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.by_id.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Placements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let by_id = BTreeMap::<u64, Placement>::deserialize(deserializer)?;
        let mut placements = Self::default();
        for (id, placement) in by_id {
            placements.place(id, placement);
        }
        Ok(placements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(owner: &str, start: &'static str, end: &'static str) -> Placement {
        Placement {
            table: 1,
            rows: Rows {
                start: start.into(),
                end: end.into(),
            },
            epoch: 1,
            owner: owner.into(),
            made: true,
            state: TabletState::Serving,
        }
    }

    fn ids<'a>(found: impl Iterator<Item = (u64, &'a Placement)>) -> Vec<u64> {
        found.map(|(id, _)| id).collect()
    }

    #[test]
    fn tablets_are_found_by_their_owner_and_by_their_rows() {
        let mut placements = Placements::default();
        for (id, owner, start, end) in [(1, "a", "", "g"), (2, "b", "g", "p"), (3, "a", "p", "")] {
            placements.place(id, placement(owner, start, end));
        }
        assert_eq!(ids(placements.of_owner("a")), [1, 3]);
        assert_eq!(ids(placements.of_table(1)), [1, 2, 3]);
        assert_eq!(ids(placements.of_table(2)), [0_u64; 0]);
        let rows = |start: &'static str, end: &'static str| Rows {
            start: start.into(),
            end: end.into(),
        };
        let found = |start, end| ids(placements.overlapping(1, &rows(start, end)));
        assert_eq!(found("h", "i"), [2]);
        assert_eq!(found("a", "g"), [1]);
        assert_eq!(found("f", "h"), [1, 2]);
        assert_eq!(found("", ""), [1, 2, 3]);
        assert_eq!(found("z", ""), [3]);
    }

    #[test]
    fn what_is_placed_takes_the_rows_of_others() {
        let mut placements = Placements::default();
        placements.place(1, placement("a", "", "m"));
        placements.place(2, placement("a", "m", ""));
        placements.place(3, placement("b", "k", "n"));
        assert_eq!(ids(placements.iter()), [3]);
        assert_eq!(placements.count_of_owner("a"), 0);
        // The same one, elsewhere and with other rows.
        placements.place(3, placement("a", "", ""));
        assert_eq!(ids(placements.of_owner("a")), [3]);
        assert_eq!(ids(placements.of_owner("b")), [0_u64; 0]);
        assert_eq!(ids(placements.of_table(1)), [3]);
        assert_eq!(placements.remove(3).map(|it| it.owner), Some("a".into()));
        assert!(placements.is_empty() && placements.by_rows.is_empty());
    }

    #[test]
    fn what_is_stored_is_read_with_its_indexes() {
        let mut placements = Placements::default();
        placements.place(7, placement("a", "", "m"));
        let stored = serde_json::to_vec(&placements).unwrap();
        let read: Placements = serde_json::from_slice(&stored).unwrap();
        assert_eq!(read, placements);
        assert_eq!(ids(read.of_owner("a")), [7]);
    }
}
