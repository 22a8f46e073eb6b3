//! Where tablets are: asked of the master once, cached, and asked again when a server says otherwise.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId};
use percolator_wire::v1;

/// What the master said, arranged for look-ups.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    pub(crate) cluster_id: String,
    pub(crate) servers: Vec<v1::ServerInfo>,
    /// The master's name, and where it shows metrics; empty: nowhere.
    pub(crate) master: (String, String),
    pub(crate) tablet_servers_expected: u32,
    pub(crate) tables: BTreeMap<TableId, v1::TableInfo>,
    /// Those that are not being deleted. A name is free as soon as its table is.
    by_name: HashMap<String, TableId>,
    complete_below: u32,
    deleted: HashSet<TableId>,
    /// Of each table, ordered by start_row.
    tablets: HashMap<TableId, Vec<Place>>,
}

/// A tablet, and where it is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) tablet: v1::TabletInfo,
    pub(crate) server: String,
    /// `None`: the master knows none.
    address: Option<String>,
}

/// Cells of one server, for one request.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) address: String,
    pub(crate) tablets: Vec<v1::TabletRef>,
    /// Which of the caller's cells, and how the request names them.
    pub(crate) cells: Vec<(usize, v1::CellRef)>,
}

/// A cell whose place isn't known.
#[derive(Clone, Debug)]
pub(crate) struct NoPlace(pub(crate) String);

impl Directory {
    pub(crate) fn new(response: v1::DirectoryResponse) -> Self {
        let addresses: HashMap<&str, &str> = response
            .servers
            .iter()
            .map(|server| (server.server.as_str(), server.address.as_str()))
            .collect();
        let mut tablets: HashMap<TableId, Vec<Place>> = HashMap::new();
        for place in response.tablets {
            if let Some(tablet) = place.tablet {
                let places = tablets.entry(TableId(tablet.table_id)).or_default();
                places.push(Place {
                    tablet,
                    address: addresses.get(&*place.server).map(|&address| address.into()),
                    server: place.server,
                });
            }
        }
        for places in tablets.values_mut() {
            places.sort_by(|a, b| a.tablet.start_row.cmp(&b.tablet.start_row));
        }
        Self {
            cluster_id: response.cluster_id,
            servers: response.servers,
            master: (response.master, response.master_metrics_address),
            tablet_servers_expected: response.tablet_servers_expected,
            complete_below: response.complete_below,
            deleted: response.deleted_tables.into_iter().map(TableId).collect(),
            by_name: response
                .tables
                .iter()
                .filter(|table| table.state() != v1::TableState::Deleting)
                .map(|table| (table.name.clone(), TableId(table.id)))
                .collect(),
            tables: response
                .tables
                .into_iter()
                .map(|table| (TableId(table.id), table))
                .collect(),
            tablets,
        }
    }

    /// The table of this name, if it is not being deleted.
    pub(crate) fn table_named(&self, name: &str) -> Option<&v1::TableInfo> {
        self.tables.get(self.by_name.get(name)?)
    }

    /// The tables of this name that are being deleted.
    pub(crate) fn deleting_named(&self, name: &str) -> impl Iterator<Item = &v1::TableInfo> {
        let is_meant = move |table: &&v1::TableInfo| {
            table.name == name && table.state() == v1::TableState::Deleting
        };
        self.tables.values().filter(is_meant)
    }

    /// Whether a tablet of this table, which is being deleted, isn't frozen yet, or is lost.
    pub(crate) fn waits_to_be_frozen(&self, table: TableId) -> bool {
        let is_lost = |id: u64| {
            let mut servers = self.servers.iter();
            servers.any(|server| server.lost_tablets.contains(&id))
        };
        let mut tablets = self.tablets(table).iter().map(|place| &place.tablet);
        tablets.any(|tablet| tablet.state() != v1::TabletState::Frozen || is_lost(tablet.id))
    }

    /// The table of this name, where it is ready.
    pub(crate) fn table(&self, name: &str) -> Option<TableId> {
        self.table_named(name)
            .filter(|table| table.state() == v1::TableState::Ready)
            .map(|table| TableId(table.id))
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

    /// Whether the table is on its way out: its tablets tell what became of transactions, and no more.
    pub(crate) fn being_deleted(&self, table: TableId) -> bool {
        let known = self.tables.get(&table);
        known.is_some_and(|known| known.state() == v1::TableState::Deleting)
    }

    /// Whether the table was there once and is gone for good.
    pub(crate) fn deleted(&self, table: TableId) -> bool {
        (table.0 < self.complete_below || self.deleted.contains(&table))
            && !self.tables.contains_key(&table)
    }

    /// The tablets of a table, ordered by start_row.
    pub(crate) fn tablets(&self, table: TableId) -> &[Place] {
        self.tablets.get(&table).map_or(&[], Vec::as_slice)
    }

    /// Which start of the tablet server at this address the master has heard of last.
    pub(crate) fn life(&self, address: &str) -> Option<u64> {
        let is_it = |server: &&v1::ServerInfo| {
            server.role() == v1::Role::Tablet && server.address == address
        };
        let server = self.servers.iter().find(is_it)?;
        (server.incarnation != 0).then_some(server.incarnation)
    }

    /// What the master knows of the server with this name.
    pub(crate) fn server(&self, name: &str) -> Option<&v1::ServerInfo> {
        self.servers.iter().find(|server| server.server == name)
    }

    /// The tablet that holds the row, and its server's address.
    pub(crate) fn locate(
        &self,
        table: TableId,
        row: &[u8],
    ) -> Result<(&v1::TabletInfo, &str), NoPlace> {
        let places = self.tablets(table);
        let behind = places.partition_point(|place| &place.tablet.start_row[..] <= row);
        let place = behind
            .checked_sub(1)
            .and_then(|at| places.get(at))
            // A master that has lost its state knows a part of the tablets for a moment.
            .filter(|place| {
                let end_row = &place.tablet.end_row;
                end_row.is_empty() || row < &end_row[..]
            })
            .ok_or_else(|| NoPlace(no_tablet(table, row)))?;
        place.located()
    }

    /// The tablet of a scan's next step: the one that holds `row`, or that ends at it for a reverse
    /// scan (an empty row: the table's end).
    pub(crate) fn locate_reverse(
        &self,
        table: TableId,
        end_row: &[u8],
    ) -> Result<(&v1::TabletInfo, &str), NoPlace> {
        let places = self.tablets(table);
        let behind = if end_row.is_empty() {
            places.len()
        } else {
            places.partition_point(|place| &place.tablet.start_row[..] < end_row)
        };
        let place = behind
            .checked_sub(1)
            .and_then(|at| places.get(at))
            .filter(|place| {
                let reaches = &place.tablet.end_row;
                reaches.is_empty() || (!end_row.is_empty() && &reaches[..] >= end_row)
            })
            .ok_or_else(|| NoPlace(no_tablet(table, end_row)))?;
        place.located()
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
            let (tablet, address) = self.locate(cell.table, &cell.row)?;
            let size = bytes(index) + cell.row.len() + cell.column.len();
            let at = open
                .iter()
                .position(|(group, _)| group.address == address)
                .unwrap_or_else(|| {
                    open.push((
                        Group {
                            address: address.to_owned(),
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
                    address: address.to_owned(),
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
    fn located(&self) -> Result<(&v1::TabletInfo, &str), NoPlace> {
        match &self.address {
            Some(address) => Ok((&self.tablet, address)),
            None => Err(NoPlace(format!(
                "the master knows no address of server {}",
                self.server
            ))),
        }
    }
}

/// Commands that take a table's name or its number take this for a number.
fn is_number(name: &str) -> bool {
    name.parse::<u32>().is_ok()
}

fn no_tablet(table: TableId, row: &[u8]) -> String {
    format!(
        "the master knows no tablet of table {} for row {}",
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

    /// A table of which the master knows the rows before b and those from d on, as it does for a moment
    /// when it has lost its state and not heard from every server.
    fn with_a_gap() -> Directory {
        let tablet = |id, start_row: &'static str, end_row: &'static str| v1::TabletPlace {
            tablet: Some(v1::TabletInfo {
                id,
                table_id: 1,
                start_row: start_row.into(),
                end_row: end_row.into(),
                epoch: 1,
                ..v1::TabletInfo::default()
            }),
            server: "tablet-0".to_owned(),
        };
        Directory::new(v1::DirectoryResponse {
            servers: vec![v1::ServerInfo {
                server: "tablet-0".to_owned(),
                address: "here:1".to_owned(),
                ..v1::ServerInfo::default()
            }],
            tablets: vec![tablet(2, "d", "f"), tablet(1, "", "b")],
            ..v1::DirectoryResponse::default()
        })
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
        let at = |row: &str| {
            let located = directory.locate(TableId(1), row.as_bytes());
            located.ok().map(|(tablet, _)| tablet.id)
        };
        assert_eq!(["a", "d", "e"].map(at), [Some(1), Some(2), Some(2)]);
        assert_eq!(["b", "c", "f", "z"].map(at), [None; 4]);
    }

    #[test]
    fn a_reverse_scan_does_not_begin_below_a_gap() {
        let directory = with_a_gap();
        let at = |end_row: &str| {
            let located = directory.locate_reverse(TableId(1), end_row.as_bytes());
            located.ok().map(|(tablet, _)| tablet.id)
        };
        assert_eq!(
            ["a", "b", "e", "f"].map(at),
            [Some(1), Some(1), Some(2), Some(2)]
        );
        assert_eq!(["", "c", "d", "g"].map(at), [None; 4]);
    }
}
