//! The observed columns of this server's tablets.
//!
//! Each tablet has a record of its own, which goes where the tablet goes. Both parts of a split have it, a merged tablet has
//! those of both, and a receiver gets it with the last chunk. All tablets of a table descend from those that it was created
//! with: once each of them has the column, every later one has it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::key;

use crate::tablets::{self, Tablets};
use crate::{Error, stored};

const PREFIX: &[u8] = b"observed/";
const PREFIX_END: &[u8] = b"observed0";

/// The observed columns of tablets, by id.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    tablets: BTreeMap<u64, ObservedTablet>,
    /// The endings of observed cells' keys, by table: most commits are on other cells.
    endings: BTreeMap<u32, BTreeSet<Vec<u8>>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ObservedTablet {
    table: u32,
    columns: BTreeSet<Bytes>,
}

impl Observed {
    /// Reads the records.
    pub(crate) fn load(engine: &dyn Engine) -> Result<Self, Error> {
        let mut observed = Self::default();
        for pair in engine.scan(Column::Meta, PREFIX, PREFIX_END, Direction::Forward)? {
            let (key, value) = pair?;
            let malformed = |detail| Error::MetaKey {
                key: key.to_vec(),
                detail,
            };
            let id = key[PREFIX.len()..].try_into();
            let id = id.map_err(|_| malformed("a tablet's id has 8 bytes"))?;
            let (table, columns) = stored::decode_observed(value)
                .ok_or_else(|| malformed("the observed columns of a tablet can't be read"))?;
            let columns = columns.into_iter().collect();
            let tablet = ObservedTablet { table, columns };
            observed.tablets.insert(u64::from_be_bytes(id), tablet);
        }
        observed.find_endings();
        Ok(observed)
    }

    /// Whether no column is observed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tablets.is_empty()
    }

    /// Whether a cell with this key may be observed, or be one for acknowledgements.
    pub(crate) fn may_observe(&self, cell_key: &[u8]) -> bool {
        let Some(table) = cell_key.first_chunk().filter(|_| !self.endings.is_empty()) else {
            return false;
        };
        let endings = self.endings.get(&u32::from_be_bytes(*table));
        endings.is_some_and(|endings| endings.iter().any(|ending| cell_key.ends_with(ending)))
    }

    fn find_endings(&mut self) {
        self.endings.clear();
        for ObservedTablet { table, columns } in self.tablets.values() {
            let endings = self.endings.entry(*table).or_default();
            for column in columns {
                // The column of its acknowledgements ends with its name.
                let mut ending = Vec::new();
                key::push_component(&mut ending, column);
                endings.insert(ending);
            }
        }
    }

    /// Whether this column of the tablet is observed.
    pub(crate) fn has(&self, tablet: u64, column: &[u8]) -> bool {
        let known = self.tablets.get(&tablet);
        known.is_some_and(|known| known.columns.contains(column))
    }

    /// The tablet that the cell with this key lies in, and its column, if that is observed.
    pub(crate) fn place_of(
        &self,
        tablets: &Tablets,
        cell_key: &[u8],
    ) -> Result<Option<(u64, Bytes)>, Error> {
        if !self.may_observe(cell_key) {
            return Ok(None);
        }
        let cell = key::decode_cell(cell_key)?;
        let tablet = tablets.owning(cell.table.0, &cell.row);
        let tablet = tablet.filter(|tablet| self.has(tablet.id, &cell.column));
        Ok(tablet.map(|tablet| (tablet.id, cell.column)))
    }

    /// The observed columns of a tablet.
    pub(crate) fn columns(&self, tablet: u64) -> Vec<Bytes> {
        let known = self.tablets.get(&tablet);
        known.map_or_else(Vec::new, |known| known.columns.iter().cloned().collect())
    }

    /// Sets the observed columns of the tablet.
    pub(crate) fn set(&mut self, tablet: u64, table: u32, columns: Vec<Bytes>) {
        if columns.is_empty() {
            self.tablets.remove(&tablet);
        } else {
            let columns = columns.into_iter().collect();
            self.tablets
                .insert(tablet, ObservedTablet { table, columns });
        }
        self.find_endings();
    }

    /// Adds an observed column.
    pub(crate) fn add(&mut self, tablet: u64, table: u32, column: Bytes) {
        let mut columns = self.columns(tablet);
        columns.push(column);
        self.set(tablet, table, columns);
    }

    /// Removes an observed column.
    pub(crate) fn remove(&mut self, tablet: u64, table: u32, column: &[u8]) {
        let mut columns = self.columns(tablet);
        columns.retain(|known| known != column);
        self.set(tablet, table, columns);
    }

    /// Gives the second part of a split tablet the columns of the first.
    pub(crate) fn split(&mut self, first: u64, second: u64) {
        if let Some(known) = self.tablets.get(&first).cloned()
            && !mutants::on(Mutant::SplitForgetsObserved)
        {
            self.tablets.insert(second, known);
        }
    }

    /// Gives the merged tablet the columns of both.
    pub(crate) fn merge(&mut self, first: u64, second: u64, table: u32) {
        let columns = self.merged(first, second);
        self.set(second, table, Vec::new());
        self.set(first, table, columns);
    }

    /// The observed columns of both tablets.
    pub(crate) fn merged(&self, first: u64, second: u64) -> Vec<Bytes> {
        let both: BTreeSet<Bytes> = [first, second]
            .into_iter()
            .flat_map(|id| self.columns(id))
            .collect();
        both.into_iter().collect()
    }

    /// Removes a tablet that is not here any more.
    pub(crate) fn forget(&mut self, tablet: u64) {
        self.set(tablet, 0, Vec::new());
    }
}

/// Stores the observed columns of the tablet with the batch.
pub(crate) fn put_record(batch: &mut Batch, tablet: u64, table: u32, columns: Vec<Bytes>) {
    let key = tablets::key(PREFIX, tablet);
    if columns.is_empty() {
        batch.delete(Column::Meta, key);
    } else {
        batch.put(Column::Meta, key, stored::encode_observed(table, columns));
    }
}

/// Removes the tablet's record with the batch, if there is one.
pub(crate) fn remove_record(batch: &mut Batch, observed: &Observed, tablet: u64) {
    if observed.tablets.contains_key(&tablet) {
        put_record(batch, tablet, 0, Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::{TableId, ack_column};

    use super::*;

    #[test]
    fn parts_and_merged_tablets_have_what_was_observed_before() {
        let mut observed = Observed::default();
        assert!(!observed.may_observe(&5_u32.to_be_bytes()));
        observed.add(1, 5, Bytes::from("a"));
        observed.split(1, 2);
        observed.add(2, 5, Bytes::from("b"));
        assert!(observed.has(2, b"a") && observed.has(2, b"b") && !observed.has(1, b"b"));
        observed.merge(1, 2, 5);
        assert!(observed.has(1, b"b") && !observed.has(2, b"a"));
        let may = |observed: &Observed, table, column: &[u8]| {
            observed.may_observe(&key::cell(TableId(table), b"row", column))
        };
        assert!(may(&observed, 5, b"a") && may(&observed, 5, &ack_column(b"b")));
        assert!(!may(&observed, 5, b"c") && !may(&observed, 6, b"a"));
        observed.remove(1, 5, b"b");
        assert!(!may(&observed, 5, b"b"));
        assert!(observed.has(1, b"a") && !observed.has(1, b"b"));
        observed.forget(1);
        assert!(observed.is_empty() && !may(&observed, 5, b"a"));
    }
}
