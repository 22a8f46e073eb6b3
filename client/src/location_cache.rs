//! Where tablets are, as far as this client has asked: located at the master when they are needed, and again when a server
//! says otherwise.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId, Tablet};

/// The tables and tablets that the master has located for this client.
#[derive(Debug, Default)]
pub(crate) struct LocationCache {
    tables: HashMap<TableId, KnownTable>,
    /// Those that are not being deleted. A name is free as soon as its table is.
    by_name: HashMap<String, TableId>,
    deleted: HashSet<TableId>,
    /// Of each table, by start_row.
    tablets: HashMap<TableId, BTreeMap<Bytes, LocatedTablet>>,
    /// By address: the last incarnation of the tablet server there that the master has named.
    incarnations: HashMap<Arc<str>, u64>,
}

/// A table, as the master has named it.
#[derive(Clone, Debug)]
pub(crate) struct KnownTable {
    pub(crate) id: TableId,
    pub(crate) name: String,
    /// Every tablet is at its owner.
    pub(crate) ready: bool,
    pub(crate) deleting: bool,
}

/// A tablet and its owner's place.
#[derive(Clone, Debug)]
pub(crate) struct LocatedTablet {
    pub(crate) tablet: Tablet,
    /// The owner's stable name; empty: unknown.
    pub(crate) server: String,
    /// Empty: the master knows none.
    pub(crate) address: Arc<str>,
    /// The owner's incarnation, if it is known.
    pub(crate) incarnation: Option<u64>,
}

/// The master's response to a request for tables by name and for rows.
#[derive(Debug, Default)]
pub(crate) struct LocateResult {
    pub(crate) tables: Vec<KnownTable>,
    pub(crate) tablets: Vec<LocatedTablet>,
    pub(crate) deleted_tables: Vec<TableId>,
}

/// A tablet as requests name it, and its server's address.
#[derive(Clone, Debug)]
pub(crate) struct TabletTarget {
    pub(crate) id: u64,
    pub(crate) epoch: u64,
    pub(crate) address: Arc<str>,
    pub(crate) start_row: Bytes,
    pub(crate) end_row: Bytes,
}

/// A cell whose place isn't known.
#[derive(Clone, Debug)]
pub(crate) struct UnknownLocation(pub(crate) String);

/// A row whose tablet is to be located.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowQuery {
    pub(crate) table: TableId,
    pub(crate) row: Bytes,
    /// The tablet with the last row before this one is meant; where it is empty, the table's last one.
    pub(crate) before: bool,
}

impl RowQuery {
    /// The tablet that has this row.
    pub(crate) fn of(table: TableId, row: &Bytes) -> Self {
        Self {
            table,
            row: row.clone(),
            before: false,
        }
    }
}

impl LocationCache {
    /// Takes in what the master has located. `names`: those that it was asked for.
    pub(crate) fn learn(&mut self, names: &[String], result: LocateResult) {
        for name in names {
            self.forget_name(name);
        }
        for id in result.deleted_tables {
            self.deleted.insert(id);
            self.tablets.remove(&id);
            if let Some(table) = self.tables.remove(&id) {
                self.free_name(&table.name, id);
            }
        }
        for table in result.tables {
            if table.deleting {
                self.free_name(&table.name, table.id);
            } else {
                self.by_name.insert(table.name.clone(), table.id);
            }
            self.tables.insert(table.id, table);
        }
        for located in result.tablets {
            self.place(located);
        }
    }

    /// Takes in the tablets of the server at this address that a tablet of its own was split or merged into.
    pub(crate) fn learn_cut(&mut self, address: &str, tablets: Vec<Tablet>) {
        let server = tablets.first().and_then(|first| {
            let mut known = self.tablets.get(&first.table)?.values();
            let known = known.find(|known| known.tablet.id == first.id)?;
            Some(known.server.clone())
        });
        self.place_all(&server.unwrap_or_default(), None, address, tablets);
    }

    /// Takes in the tablets that were handed over to this incarnation of a server.
    pub(crate) fn learn_move(
        &mut self,
        server: &str,
        incarnation: u64,
        address: &str,
        mut tablets: Vec<Tablet>,
    ) {
        tablets.retain(|tablet| {
            let known = self.tablets.get(&tablet.table);
            let mut known = known.into_iter().flat_map(BTreeMap::values);
            // It has gone on from there.
            !known.any(|it| it.tablet.id == tablet.id && it.tablet.epoch > tablet.epoch)
        });
        let incarnation = Some(incarnation).filter(|incarnation| *incarnation != 0);
        self.place_all(server, incarnation, address, tablets);
    }

    fn place_all(
        &mut self,
        server: &str,
        incarnation: Option<u64>,
        address: &str,
        tablets: Vec<Tablet>,
    ) {
        let address: Arc<str> = address.into();
        for tablet in tablets {
            self.place(LocatedTablet {
                tablet,
                server: server.to_owned(),
                address: address.clone(),
                incarnation,
            });
        }
    }

    /// Whose name this is has to be asked anew.
    pub(crate) fn forget_name(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    fn free_name(&mut self, name: &str, id: TableId) {
        if self.by_name.get(name) == Some(&id) {
            self.by_name.remove(name);
        }
    }

    /// Enters a tablet. Others of its table that have some of its rows were there before it.
    fn place(&mut self, located: LocatedTablet) {
        if let Some(incarnation) = located.incarnation
            && !located.address.is_empty()
        {
            self.incarnations
                .insert(located.address.clone(), incarnation);
        }
        let tablet = &located.tablet;
        let (start, end) = (tablet.rows.start.clone(), tablet.rows.end.clone());
        let places = self.tablets.entry(tablet.table).or_default();
        let before = places.range::<Bytes, _>(..&start).next_back();
        let reaches_in = |known: &LocatedTablet| {
            let reaches = &known.tablet.rows.end;
            reaches.is_empty() || *reaches > start
        };
        let before = before.filter(|(_, place)| reaches_in(place));
        let mut overlapped: Vec<Bytes> = before.map(|(row, _)| row.clone()).into_iter().collect();
        let upper = if end.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(&end)
        };
        let within = places.range::<Bytes, _>((Bound::Included(&start), upper));
        overlapped.extend(within.map(|(row, _)| row.clone()));
        for row in overlapped {
            places.remove(&row);
        }
        places.insert(start, located);
    }

    /// The table of this name, if it is ready.
    pub(crate) fn table(&self, name: &str) -> Option<TableId> {
        self.table_named(name)
            .filter(|table| table.ready)
            .map(|table| table.id)
    }

    /// The table of this name, if it is not being deleted.
    pub(crate) fn table_named(&self, name: &str) -> Option<&KnownTable> {
        self.tables.get(self.by_name.get(name)?)
    }

    /// What a table is called; its number, where that isn't known.
    pub(crate) fn named(&self, table: TableId) -> String {
        let name = self.name(table).map(str::to_owned);
        name.unwrap_or_else(|| format!("number {}", table.0))
    }

    fn name(&self, table: TableId) -> Option<&str> {
        self.tables.get(&table).map(|known| known.name.as_str())
    }

    /// A cell for people to read, and for commands to take: as its own text, with the table's name for its number. Where the
    /// name isn't known, or could be a number itself, it stays the number.
    pub(crate) fn text(&self, cell: &Cell) -> String {
        let text = cell.to_string();
        let name = self.name(cell.table).filter(|name| !is_number(name));
        match (name, text.split_once('/')) {
            (Some(name), Some((_, rest))) => format!("{name}/{rest}"),
            _ => text,
        }
    }

    /// Whether the master has named this table.
    pub(crate) fn knows(&self, table: TableId) -> bool {
        self.tables.contains_key(&table)
    }

    /// Whether the table is being deleted: its tablets say how transactions ended, and serve nothing else.
    pub(crate) fn being_deleted(&self, table: TableId) -> bool {
        self.tables.get(&table).is_some_and(|known| known.deleting)
    }

    /// Whether the table was there once and is gone for good.
    pub(crate) fn deleted(&self, table: TableId) -> bool {
        self.deleted.contains(&table)
    }

    /// The tablets of a table that are known, ordered by start_row.
    pub(crate) fn tablets(&self, table: TableId) -> impl Iterator<Item = &Tablet> {
        let places = self.tablets.get(&table).into_iter();
        places.flatten().map(|(_, place)| &place.tablet)
    }

    /// The names of the tables that these tablets belong to.
    pub(crate) fn tables_of(&self, tablets: &[u64]) -> Vec<&str> {
        let is_one = |table: &TableId| self.tablets(*table).any(|it| tablets.contains(&it.id));
        let tables = self.tablets.keys().filter(|table| is_one(table));
        tables.filter_map(|table| self.name(*table)).collect()
    }

    /// The last incarnation of the tablet server at this address that the master has named.
    pub(crate) fn incarnation(&self, address: &str) -> Option<u64> {
        self.incarnations.get(address).copied()
    }

    /// The tablet of a row, and its server's address.
    pub(crate) fn locate(&self, query: &RowQuery) -> Result<TabletTarget, UnknownLocation> {
        let place = if query.before {
            self.place_before(query.table, &query.row)
        } else {
            self.place_of(query.table, &query.row)
        };
        let place = place.ok_or_else(|| UnknownLocation(no_tablet(query.table, &query.row)))?;
        let address = place.address()?.clone();
        Ok(TabletTarget {
            id: place.tablet.id,
            epoch: place.tablet.epoch,
            address,
            start_row: place.tablet.rows.start.clone(),
            end_row: place.tablet.rows.end.clone(),
        })
    }

    /// The tablet that has a cell, and its server's address.
    pub(crate) fn owner_of(&self, cell: &Cell) -> Result<(&Tablet, &Arc<str>), UnknownLocation> {
        let located = self.place_of(cell.table, &cell.row);
        let located = located.ok_or_else(|| UnknownLocation(no_tablet(cell.table, &cell.row)))?;
        Ok((&located.tablet, located.address()?))
    }

    /// Whether there is nothing to ask of a row: its tablet is known, or its table is gone.
    pub(crate) fn settles(&self, query: &RowQuery) -> bool {
        self.locate(query).is_ok() || self.deleted(query.table)
    }

    /// The tablet that has this row, if it is known.
    fn place_of(&self, table: TableId, row: &[u8]) -> Option<&LocatedTablet> {
        let up_to = (Bound::Unbounded, Bound::Included(row));
        let (_, place) = self
            .tablets
            .get(&table)?
            .range::<[u8], _>(up_to)
            .next_back()?;
        let end_row = &place.tablet.rows.end;
        (end_row.is_empty() || row < &end_row[..]).then_some(place)
    }

    /// The tablet of a reverse scan's next step: the one that has rows just before `end_row`; where that is empty, the last one.
    fn place_before(&self, table: TableId, end_row: &[u8]) -> Option<&LocatedTablet> {
        let upper = if end_row.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(end_row)
        };
        let places = self.tablets.get(&table)?;
        let (_, place) = places
            .range::<[u8], _>((Bound::Unbounded, upper))
            .next_back()?;
        let reaches = &place.tablet.rows.end;
        let covers = reaches.is_empty() || (!end_row.is_empty() && &reaches[..] >= end_row);
        covers.then_some(place)
    }
}

impl LocatedTablet {
    fn address(&self) -> Result<&Arc<str>, UnknownLocation> {
        if self.address.is_empty() {
            let server = &self.server;
            let why = format!("the master knows no address of server {server}");
            return Err(UnknownLocation(why));
        }
        Ok(&self.address)
    }
}

/// Commands that take a table's name or its number take this for a number.
fn is_number(name: &str) -> bool {
    name.parse::<u32>().is_ok()
}

fn no_tablet(table: TableId, row: &[u8]) -> String {
    format!(
        "no tablet server that reports to the master has row {1} of table {0}",
        table.0,
        percolator_protocol::types::escape(row)
    )
}

/// The end of the rows that start with `prefix`; empty where there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::new()
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::{Rows, TabletState};

    use super::*;

    fn tablet(id: u64, start_row: &'static str, end_row: &'static str) -> LocatedTablet {
        LocatedTablet {
            tablet: Tablet {
                id,
                table: TableId(1),
                table_name: "t".to_owned(),
                rows: Rows {
                    start: start_row.into(),
                    end: end_row.into(),
                },
                epoch: 1,
                state: TabletState::Serving,
            },
            server: "tablet-0".to_owned(),
            address: "here:1".into(),
            incarnation: Some(3),
        }
    }

    fn table(id: u32, name: &str, ready: bool, deleting: bool) -> KnownTable {
        KnownTable {
            id: TableId(id),
            name: name.to_owned(),
            ready,
            deleting,
        }
    }

    fn learn(cache: &mut LocationCache, tablets: Vec<LocatedTablet>) {
        let result = LocateResult {
            tablets,
            ..LocateResult::default()
        };
        cache.learn(&[], result);
    }

    /// A table of which the rows before b and those from d on are known.
    fn with_a_gap() -> LocationCache {
        let mut locations = LocationCache::default();
        learn(
            &mut locations,
            vec![tablet(2, "d", "f"), tablet(1, "", "b")],
        );
        locations
    }

    fn at(locations: &LocationCache, row: &'static str, before: bool) -> Option<u64> {
        let query = RowQuery {
            table: TableId(1),
            row: row.into(),
            before,
        };
        locations.locate(&query).ok().map(|located| located.id)
    }

    #[test]
    fn a_cell_is_named_with_its_table() {
        let mut locations = with_a_gap();
        let cell = Cell::new(TableId(1), "r/1", "c");
        assert_eq!(locations.text(&cell), "1/r/1:c");
        let mut call_it = |name: &str| {
            locations.tables = [(TableId(1), table(1, name, true, false))].into();
            locations.text(&cell)
        };
        assert_eq!(call_it("accounts"), "accounts/r/1:c");
        // It would be read as table number 7.
        assert_eq!(call_it("7"), "1/r/1:c");
    }

    #[test]
    fn a_row_in_a_gap_has_no_place() {
        let locations = with_a_gap();
        assert_eq!(
            ["a", "d", "e"].map(|row| at(&locations, row, false)),
            [Some(1), Some(2), Some(2)]
        );
        assert_eq!(
            ["b", "c", "f", "z"].map(|row| at(&locations, row, false)),
            [None; 4]
        );
        assert_eq!(locations.incarnation("here:1"), Some(3));
    }

    #[test]
    fn a_reverse_scan_does_not_begin_below_a_gap() {
        let locations = with_a_gap();
        assert_eq!(
            ["a", "b", "e", "f"].map(|row| at(&locations, row, true)),
            [Some(1), Some(1), Some(2), Some(2)]
        );
        assert_eq!(
            ["", "c", "d", "g"].map(|row| at(&locations, row, true)),
            [None; 4]
        );
    }

    #[test]
    fn what_is_located_takes_the_rows_of_what_was_there_before() {
        let mut locations = with_a_gap();
        learn(&mut locations, vec![tablet(3, "a", "e")]);
        let ids: Vec<u64> = locations.tablets(TableId(1)).map(|it| it.id).collect();
        assert_eq!(ids, [3]);
        // One that was split, as its server says.
        let parts = [tablet(3, "a", "c"), tablet(4, "c", "e")];
        let parts = parts.into_iter().map(|part| part.tablet).collect();
        locations.learn_cut("here:1", parts);
        learn(&mut locations, vec![tablet(5, "", "a"), tablet(6, "e", "")]);
        let ids: Vec<u64> = locations.tablets(TableId(1)).map(|it| it.id).collect();
        assert_eq!(ids, [5, 3, 4, 6]);
    }

    #[test]
    fn a_name_is_of_the_table_that_the_master_named_last() {
        let mut locations = LocationCache::default();
        let mut learn = |names: &[String], tables, deleted_tables| {
            let result = LocateResult {
                tables,
                deleted_tables,
                ..LocateResult::default()
            };
            locations.learn(names, result);
            locations.table("t")
        };
        let ready = |id| vec![table(id, "t", true, false)];
        let deleting = |id| vec![table(id, "t", false, true)];
        let creating = vec![table(1, "t", false, false)];
        assert_eq!(learn(&[], creating, vec![]), None);
        assert_eq!(learn(&[], ready(1), vec![]), Some(TableId(1)));
        assert_eq!(learn(&[], deleting(1), vec![]), None);
        assert_eq!(learn(&[], ready(2), vec![]), Some(TableId(2)));
        // Of the one before.
        let deleted = learn(&[], deleting(1), vec![TableId(1)]);
        assert_eq!(deleted, Some(TableId(2)));
        assert_eq!(learn(&["t".into()], vec![], vec![]), None);
        assert!(locations.deleted(TableId(1)) && !locations.deleted(TableId(2)));
    }
}
