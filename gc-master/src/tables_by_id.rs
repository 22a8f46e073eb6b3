//! The tables of a cluster by id, with an index of their names: clients locate rows by the name of a table, which must not visit
//! all tables.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::{Index, RangeFrom};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::state::TableRecord;

/// Tables by id. A table keeps its name.
#[derive(Clone, Debug, Default)]
pub struct TablesById {
    by_id: BTreeMap<u32, TableRecord>,
    /// The ids of tables with this name. Of these at most one isn't being deleted.
    by_name: BTreeMap<String, BTreeSet<u32>>,
}

impl TablesById {
    /// The table with this id.
    pub fn get(&self, id: &u32) -> Option<&TableRecord> {
        self.by_id.get(id)
    }

    /// The same, to be changed in all but its name.
    pub fn get_mut(&mut self, id: &u32) -> Option<&mut TableRecord> {
        self.by_id.get_mut(id)
    }

    /// The tables with this name, by id.
    pub fn named(&self, name: &str) -> impl Iterator<Item = (u32, &TableRecord)> {
        let ids = self.by_name.get(name).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.by_id.get(id)?)))
    }

    /// Whether there is a table with this id.
    pub fn contains_key(&self, id: &u32) -> bool {
        self.by_id.contains_key(id)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds a table, or replaces the one with this id.
    pub fn insert(&mut self, id: u32, table: TableRecord) {
        self.remove(&id);
        self.by_name
            .entry(table.name.clone())
            .or_default()
            .insert(id);
        self.by_id.insert(id, table);
    }

    /// Removes a table.
    pub fn remove(&mut self, id: &u32) -> Option<TableRecord> {
        let table = self.by_id.remove(id)?;
        if let btree_map::Entry::Occupied(mut ids) = self.by_name.entry(table.name.clone()) {
            ids.get_mut().remove(id);
            if ids.get().is_empty() {
                ids.remove();
            }
        }
        Some(table)
    }

    /// All of them, in order.
    pub fn iter(&self) -> btree_map::Iter<'_, u32, TableRecord> {
        self.by_id.iter()
    }

    /// Those from this id on, in order.
    pub fn range(&self, ids: RangeFrom<u32>) -> btree_map::Range<'_, u32, TableRecord> {
        self.by_id.range(ids)
    }

    /// Their ids, in order.
    pub fn keys(&self) -> btree_map::Keys<'_, u32, TableRecord> {
        self.by_id.keys()
    }

    /// The same without ids.
    pub fn values(&self) -> btree_map::Values<'_, u32, TableRecord> {
        self.by_id.values()
    }
}

impl PartialEq for TablesById {
    fn eq(&self, other: &Self) -> bool {
        self.by_id == other.by_id
    }
}

impl Eq for TablesById {}

impl Index<&u32> for TablesById {
    type Output = TableRecord;

    fn index(&self, id: &u32) -> &TableRecord {
        &self.by_id[id]
    }
}

impl<'a> IntoIterator for &'a TablesById {
    type Item = (&'a u32, &'a TableRecord);
    type IntoIter = btree_map::Iter<'a, u32, TableRecord>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_id.iter()
    }
}

/// To be changed in all but their names.
impl<'a> IntoIterator for &'a mut TablesById {
    type Item = (&'a u32, &'a mut TableRecord);
    type IntoIter = btree_map::IterMut<'a, u32, TableRecord>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_id.iter_mut()
    }
}

impl FromIterator<(u32, TableRecord)> for TablesById {
    fn from_iter<I: IntoIterator<Item = (u32, TableRecord)>>(all: I) -> Self {
        let mut tables = Self::default();
        for (id, table) in all {
            tables.insert(id, table);
        }
        tables
    }
}

impl Serialize for TablesById {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.by_id.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TablesById {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = BTreeMap::<u32, TableRecord>::deserialize(deserializer)?;
        Ok(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::TableState;

    #[test]
    fn tables_are_found_by_their_name() {
        let table = |name: &str, state| TableRecord {
            name: name.to_owned(),
            state,
            drop_at: None,
            given_up: false,
        };
        let mut tables: TablesById = [
            (7, table("b", TableState::Ready)),
            (3, table("a", TableState::Deleting)),
            (5, table("a", TableState::Ready)),
        ]
        .into_iter()
        .collect();
        let named = |tables: &TablesById, name| -> Vec<u32> {
            tables.named(name).map(|(id, _)| id).collect()
        };
        assert_eq!(named(&tables, "a"), [3, 5]);
        assert_eq!(named(&tables, "c"), [0_u32; 0]);
        tables.insert(5, table("c", TableState::Ready));
        assert_eq!(named(&tables, "a"), [3]);
        assert_eq!(named(&tables, "c"), [5]);
        let written = serde_json::to_vec(&tables).unwrap();
        let read: TablesById = serde_json::from_slice(&written).unwrap();
        assert_eq!(read, tables);
        assert_eq!(named(&read, "c"), [5]);
        assert_eq!(tables.remove(&3).map(|it| it.name), Some("a".to_owned()));
        assert_eq!(tables.remove(&3), None);
        assert_eq!(named(&tables, "a"), [0_u32; 0]);
        assert_eq!((tables.len(), tables.by_name.len()), (2, 2));
    }
}
