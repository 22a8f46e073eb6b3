//! Where tablets are, as far as this client has asked: located at the master when they are needed, and again when a server
//! says otherwise.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId};
use percolator_wire::v1;

/// What the master has said of tables and tablets, arranged for look-ups.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    tables: HashMap<TableId, v1::TableInfo>,
    /// Those that are not being deleted. A name is free as soon as its table is.
    by_name: HashMap<String, TableId>,
    deleted: HashSet<TableId>,
    /// Of each table, by start_row.
    tablets: HashMap<TableId, BTreeMap<Bytes, Place>>,
    /// By address: which start of the tablet server there the master has heard of last.
    incarnations: HashMap<Arc<str>, u64>,
}

/// A tablet, and where it is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) tablet: v1::TabletInfo,
    server: String,
    /// Empty: the master knows none.
    address: Arc<str>,
}

/// A tablet as requests name it, and its server's address.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) id: u64,
    pub(crate) epoch: u64,
    pub(crate) address: Arc<str>,
    pub(crate) start_row: Bytes,
    pub(crate) end_row: Bytes,
}

/// Cells of one server, for one request.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) address: Arc<str>,
    pub(crate) tablets: Vec<v1::TabletRef>,
    /// Which of the caller's cells, and how the request names them.
    pub(crate) cells: Vec<(usize, v1::CellRef)>,
}

/// A cell whose place isn't known.
#[derive(Clone, Debug)]
pub(crate) struct NoPlace(pub(crate) String);

/// A row whose tablet is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) table: TableId,
    pub(crate) row: Bytes,
    /// The tablet with the last row before this one is meant; where it is empty, the table's last one.
    pub(crate) before: bool,
}

impl Wanted {
    /// The tablet that has this row.
    pub(crate) fn of(table: TableId, row: &Bytes) -> Self {
        Self {
            table,
            row: row.clone(),
            before: false,
        }
    }
}

impl Directory {
    /// Takes in what the master has answered. `names`: those that it was asked for.
    pub(crate) fn learn(&mut self, names: &[String], response: v1::LocateResponse) {
        for name in names {
            self.forget_name(name);
        }
        for id in response.deleted_tables.into_iter().map(TableId) {
            self.deleted.insert(id);
            self.tablets.remove(&id);
            if let Some(table) = self.tables.remove(&id) {
                self.free_name(&table.name, id);
            }
        }
        for table in response.tables {
            let id = TableId(table.id);
            if table.state() == v1::TableState::Deleting {
                self.free_name(&table.name, id);
            } else {
                self.by_name.insert(table.name.clone(), id);
            }
            self.tables.insert(id, table);
        }
        for located in response.tablets {
            self.place(located);
        }
    }

    /// Takes in the tablets of the server at this address that a tablet of its own was split or merged into.
    pub(crate) fn learn_cut(&mut self, address: &str, tablets: Vec<v1::TabletInfo>) {
        let server = tablets.first().and_then(|first| {
            let known = self.tablets.get(&TableId(first.table_id))?;
            let mut places = known.values();
            let place = places.find(|place| place.tablet.id == first.id)?;
            Some(place.server.clone())
        });
        let at = v1::Addressee {
            server: server.unwrap_or_default(),
            incarnation: 0,
        };
        self.place_all(&at, address, tablets.into_iter());
    }

    /// Takes in the tablets that were handed over to this server.
    pub(crate) fn learn_move(
        &mut self,
        to: &v1::Addressee,
        address: &str,
        mut tablets: Vec<v1::TabletInfo>,
    ) {
        tablets.retain(|tablet| {
            let known = self.tablets.get(&TableId(tablet.table_id));
            let mut places = known.into_iter().flat_map(BTreeMap::values);
            // It has gone on from there.
            let is_newer = |it: &Place| it.tablet.id == tablet.id && it.tablet.epoch > tablet.epoch;
            !places.any(is_newer)
        });
        self.place_all(to, address, tablets.into_iter());
    }

    fn place_all(
        &mut self,
        at: &v1::Addressee,
        address: &str,
        tablets: impl Iterator<Item = v1::TabletInfo>,
    ) {
        for tablet in tablets {
            self.place(v1::LocatedTablet {
                tablet: Some(tablet),
                server: at.server.clone(),
                address: address.to_owned(),
                incarnation: at.incarnation,
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
    fn place(&mut self, located: v1::LocatedTablet) {
        let Some(tablet) = located.tablet else { return };
        let address: Arc<str> = located.address.into();
        if !address.is_empty() && located.incarnation != 0 {
            self.incarnations
                .insert(address.clone(), located.incarnation);
        }
        let table = TableId(tablet.table_id);
        let places = self.tablets.entry(table).or_default();
        let (start, end) = (tablet.start_row.clone(), tablet.end_row.clone());
        let before = places.range::<Bytes, _>(..&start).next_back();
        let reaches_in = |place: &Place| {
            let reaches = &place.tablet.end_row;
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
        let place = Place {
            tablet,
            server: located.server,
            address,
        };
        places.insert(start, place);
    }

    /// The table of this name, if it is ready.
    pub(crate) fn table(&self, name: &str) -> Option<TableId> {
        self.table_named(name)
            .filter(|table| table.state() == v1::TableState::Ready)
            .map(|table| TableId(table.id))
    }

    /// The table of this name, if it is not being deleted.
    pub(crate) fn table_named(&self, name: &str) -> Option<&v1::TableInfo> {
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

    /// Whether the table is on its way out: its tablets tell what became of transactions, and no more.
    pub(crate) fn being_deleted(&self, table: TableId) -> bool {
        let known = self.tables.get(&table);
        known.is_some_and(|known| known.state() == v1::TableState::Deleting)
    }

    /// Whether the table was there once and is gone for good.
    pub(crate) fn deleted(&self, table: TableId) -> bool {
        self.deleted.contains(&table)
    }

    /// The tablets of a table that are known, ordered by start_row.
    pub(crate) fn tablets(&self, table: TableId) -> impl Iterator<Item = &v1::TabletInfo> {
        let places = self.tablets.get(&table).into_iter();
        places.flatten().map(|(_, place)| &place.tablet)
    }

    /// The names of the tables that these tablets belong to.
    pub(crate) fn tables_of(&self, tablets: &[u64]) -> Vec<&str> {
        let is_one = |table: &TableId| self.tablets(*table).any(|it| tablets.contains(&it.id));
        let tables = self.tablets.keys().filter(|table| is_one(table));
        tables.filter_map(|table| self.name(*table)).collect()
    }

    /// Which start of the tablet server at this address the master has heard of last.
    pub(crate) fn incarnation(&self, address: &str) -> Option<u64> {
        self.incarnations.get(address).copied()
    }

    /// The tablet that is wanted, and its server's address.
    pub(crate) fn locate(&self, wanted: &Wanted) -> Result<Located, NoPlace> {
        let place = if wanted.before {
            self.place_before(wanted.table, &wanted.row)
        } else {
            self.place_of(wanted.table, &wanted.row)
        };
        let place = place.ok_or_else(|| NoPlace(no_tablet(wanted.table, &wanted.row)))?;
        let address = place.address()?.clone();
        Ok(Located {
            id: place.tablet.id,
            epoch: place.tablet.epoch,
            address,
            start_row: place.tablet.start_row.clone(),
            end_row: place.tablet.end_row.clone(),
        })
    }

    /// Whether there is nothing to ask of a row: its tablet is known, or its table is gone.
    pub(crate) fn settles(&self, wanted: &Wanted) -> bool {
        self.locate(wanted).is_ok() || self.deleted(wanted.table)
    }

    fn place_of(&self, table: TableId, row: &[u8]) -> Option<&Place> {
        let up_to = (Bound::Unbounded, Bound::Included(row));
        let (_, place) = self
            .tablets
            .get(&table)?
            .range::<[u8], _>(up_to)
            .next_back()?;
        let end_row = &place.tablet.end_row;
        (end_row.is_empty() || row < &end_row[..]).then_some(place)
    }

    /// The tablet of a reverse scan's next step: the one that has rows just before `end_row`; where that is empty, the last one.
    fn place_before(&self, table: TableId, end_row: &[u8]) -> Option<&Place> {
        let upper = if end_row.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(end_row)
        };
        let places = self.tablets.get(&table)?;
        let (_, place) = places
            .range::<[u8], _>((Bound::Unbounded, upper))
            .next_back()?;
        let reaches = &place.tablet.end_row;
        let covers = reaches.is_empty() || (!end_row.is_empty() && &reaches[..] >= end_row);
        covers.then_some(place)
    }

    /// Sorts cells by server: one request a server, whatever the number of keys.
    pub(crate) fn group<'a>(
        &self,
        cells: impl Iterator<Item = (usize, &'a Cell)>,
        cells_max: usize,
        bytes_max: usize,
        bytes: impl Fn(usize) -> usize,
    ) -> Result<Vec<Group>, NoPlace> {
        let mut full: Vec<Group> = Vec::new();
        let mut open: Vec<(Group, usize)> = Vec::new();
        for (index, cell) in cells {
            let place = self.place_of(cell.table, &cell.row);
            let place = place.ok_or_else(|| NoPlace(no_tablet(cell.table, &cell.row)))?;
            let (tablet, address) = (&place.tablet, place.address()?);
            let size = bytes(index) + cell.row.len() + cell.column.len();
            let at = open
                .iter()
                .position(|(group, _)| group.address == *address)
                .unwrap_or_else(|| {
                    open.push((
                        Group {
                            address: address.clone(),
                            tablets: Vec::new(),
                            cells: Vec::new(),
                        },
                        0,
                    ));
                    open.len() - 1
                });
            let (group, held) = &mut open[at];
            if group.cells.len() >= cells_max || (*held > 0 && *held + size > bytes_max) {
                let next = Group {
                    address: address.clone(),
                    tablets: Vec::new(),
                    cells: Vec::new(),
                };
                full.push(std::mem::replace(group, next));
                *held = 0;
            }
            *held += size;
            let number = group
                .tablets
                .iter()
                .position(|known| known.id == tablet.id)
                .unwrap_or_else(|| {
                    group.tablets.push(v1::TabletRef {
                        id: tablet.id,
                        epoch: tablet.epoch,
                    });
                    group.tablets.len() - 1
                });
            group.cells.push((
                index,
                v1::CellRef {
                    tablet: number as u32,
                    row: cell.row.clone(),
                    column: cell.column.clone(),
                },
            ));
        }
        full.extend(open.into_iter().map(|(group, _)| group));
        Ok(full)
    }
}

impl Place {
    fn address(&self) -> Result<&Arc<str>, NoPlace> {
        if self.address.is_empty() {
            let server = &self.server;
            let why = format!("the master knows no address of server {server}");
            return Err(NoPlace(why));
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
        "no tablet server that the master hears from has row {1} of table {0}",
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
    use super::*;

    fn tablet(id: u64, start_row: &'static str, end_row: &'static str) -> v1::LocatedTablet {
        v1::LocatedTablet {
            tablet: Some(v1::TabletInfo {
                id,
                table_id: 1,
                start_row: start_row.into(),
                end_row: end_row.into(),
                epoch: 1,
                ..v1::TabletInfo::default()
            }),
            server: "tablet-0".to_owned(),
            address: "here:1".to_owned(),
            incarnation: 3,
        }
    }

    fn learn(directory: &mut Directory, tablets: Vec<v1::LocatedTablet>) {
        let response = v1::LocateResponse {
            tablets,
            ..v1::LocateResponse::default()
        };
        directory.learn(&[], response);
    }

    /// A table of which the rows before b and those from d on are known.
    fn with_a_gap() -> Directory {
        let mut directory = Directory::default();
        learn(
            &mut directory,
            vec![tablet(2, "d", "f"), tablet(1, "", "b")],
        );
        directory
    }

    fn at(directory: &Directory, row: &'static str, before: bool) -> Option<u64> {
        let wanted = Wanted {
            table: TableId(1),
            row: row.into(),
            before,
        };
        directory.locate(&wanted).ok().map(|located| located.id)
    }

    #[test]
    fn a_cell_is_named_with_its_table() {
        let mut directory = with_a_gap();
        let cell = Cell::new(TableId(1), "r/1", "c");
        assert_eq!(directory.text(&cell), "1/r/1:c");
        let mut call_it = |name: &str| {
            let table = v1::TableInfo {
                id: 1,
                name: name.into(),
                ..v1::TableInfo::default()
            };
            directory.tables = [(TableId(1), table)].into();
            directory.text(&cell)
        };
        assert_eq!(call_it("accounts"), "accounts/r/1:c");
        // Who reads it would look for table number 7.
        assert_eq!(call_it("7"), "1/r/1:c");
    }

    #[test]
    fn a_row_in_a_gap_has_no_place() {
        let directory = with_a_gap();
        assert_eq!(
            ["a", "d", "e"].map(|row| at(&directory, row, false)),
            [Some(1), Some(2), Some(2)]
        );
        assert_eq!(
            ["b", "c", "f", "z"].map(|row| at(&directory, row, false)),
            [None; 4]
        );
        assert_eq!(directory.incarnation("here:1"), Some(3));
    }

    #[test]
    fn a_reverse_scan_does_not_begin_below_a_gap() {
        let directory = with_a_gap();
        assert_eq!(
            ["a", "b", "e", "f"].map(|row| at(&directory, row, true)),
            [Some(1), Some(1), Some(2), Some(2)]
        );
        assert_eq!(
            ["", "c", "d", "g"].map(|row| at(&directory, row, true)),
            [None; 4]
        );
    }

    #[test]
    fn what_is_located_takes_the_rows_of_what_was_there_before() {
        let mut directory = with_a_gap();
        learn(&mut directory, vec![tablet(3, "a", "e")]);
        let ids: Vec<u64> = directory.tablets(TableId(1)).map(|it| it.id).collect();
        assert_eq!(ids, [3]);
        // One that was split, as its server says.
        let parts = [tablet(3, "a", "c"), tablet(4, "c", "e")];
        let parts = parts.into_iter().filter_map(|part| part.tablet).collect();
        directory.learn_cut("here:1", parts);
        learn(&mut directory, vec![tablet(5, "", "a"), tablet(6, "e", "")]);
        let ids: Vec<u64> = directory.tablets(TableId(1)).map(|it| it.id).collect();
        assert_eq!(ids, [5, 3, 4, 6]);
    }

    #[test]
    fn a_name_is_of_the_table_that_the_master_named_last() {
        let named = |id, state: v1::TableState| v1::TableInfo {
            id,
            name: "t".into(),
            state: state.into(),
        };
        let mut directory = Directory::default();
        let mut learn = |names: &[String], tables, deleted_tables| {
            let response = v1::LocateResponse {
                tables,
                deleted_tables,
                ..v1::LocateResponse::default()
            };
            directory.learn(names, response);
            directory.table("t")
        };
        let (ready, deleting) = (v1::TableState::Ready, v1::TableState::Deleting);
        let creating = v1::TableState::Creating;
        assert_eq!(learn(&[], vec![named(1, creating)], vec![]), None);
        assert_eq!(learn(&[], vec![named(1, ready)], vec![]), Some(TableId(1)));
        assert_eq!(learn(&[], vec![named(1, deleting)], vec![]), None);
        assert_eq!(learn(&[], vec![named(2, ready)], vec![]), Some(TableId(2)));
        // Of the one before.
        assert_eq!(
            learn(&[], vec![named(1, deleting)], vec![1]),
            Some(TableId(2))
        );
        assert_eq!(learn(&["t".into()], vec![], vec![]), None);
        assert!(directory.deleted(TableId(1)) && !directory.deleted(TableId(2)));
    }
}
