//! What the master knows of a cluster, for people and for tools.

use std::collections::HashMap;
use std::time::Duration;

use percolator_wire::v1;

use crate::Bytes;

/// A cluster, as the master has it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its id.
    pub id: String,
    /// The master's name.
    pub master: String,
    /// The term in which the master leads, of several; 0: it is alone.
    pub master_term: u64,
    /// Where the master shows metrics, as it listens: an unspecified address stands for its host. Empty: nowhere.
    pub master_metrics_address: String,
    /// How long it took that master to take over from another one, when it did so last.
    pub master_takeover: Option<Duration>,
    /// The other masters, as far as the one that leads has heard of them.
    pub standby_masters: Vec<v1::StandbyMaster>,
    /// The proxies that have introduced themselves to the master lately, by name.
    pub proxies: Vec<v1::ProxyInfo>,
    /// How many masters the manifest has; 0: the master was not told.
    pub masters_expected: u32,
    /// The same of oracles.
    pub oracles_expected: u32,
    /// The servers that have reported to the master, but for itself.
    pub servers: Vec<v1::ServerInfo>,
    /// How many tablet servers the manifest has; 0: the master was not told.
    pub tablet_servers_expected: u32,
    /// The tables, by name and number: one that is being deleted may have the name of another one.
    pub tables: Vec<Table>,
}

/// A table, as the master has it.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Whether every tablet is in place.
    pub ready: bool,
    /// Whether it is being deleted: nobody can use it, and its rows go when the safe point has passed its deletion.
    pub deleting: bool,
    /// Its tablets, in order.
    pub tablets: Vec<Tablet>,
}

/// A tablet, as the master has it.
#[derive(Clone, Debug)]
pub struct Tablet {
    /// Its number.
    pub id: u64,
    /// Its first row.
    pub start_row: Bytes,
    /// The row behind its last one; empty: none.
    pub end_row: Bytes,
    /// How often it has changed.
    pub epoch: u64,
    /// Its owner.
    pub server: String,
    /// Whether the owner has sent the master a sign of life lately.
    pub server_alive: bool,
    /// How long ago the last one was. `None`: the master has had none since it was started.
    pub server_silence: Option<Duration>,
    /// The server that is getting it, if one is, and how many bytes of keys and values that one has.
    pub moving_to: Option<(String, u64)>,
    /// Bytes of keys and values of all versions, about.
    pub bytes: u64,
    /// Cells that are read or written a second, about, if these are many.
    pub load: u64,
}

impl Cluster {
    pub(crate) fn new(listing: v1::DirectoryResponse) -> Self {
        let servers: HashMap<&str, &v1::ServerInfo> =
            listing.servers.iter().map(|it| (&*it.server, it)).collect();
        let mut tablets: HashMap<u32, Vec<Tablet>> = HashMap::new();
        for place in &listing.tablets {
            if let Some(info) = &place.tablet {
                let owner = servers.get(&*place.server).copied();
                let of_table = tablets.entry(info.table_id).or_default();
                of_table.push(tablet(info, place, owner));
            }
        }
        let mut tables: Vec<Table> = listing
            .tables
            .iter()
            .map(|info| table(info, tablets.remove(&info.id).unwrap_or_default()))
            .collect();
        tables.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Self {
            id: listing.cluster_id,
            master: listing.master,
            master_term: listing.master_term,
            master_takeover: listing.master_takeover_ms.map(Duration::from_millis),
            standby_masters: listing.standby_masters,
            proxies: listing.proxies,
            masters_expected: listing.masters_expected,
            oracles_expected: listing.oracles_expected,
            master_metrics_address: listing.master_metrics_address,
            servers: listing.servers,
            tablet_servers_expected: listing.tablet_servers_expected,
            tables,
        }
    }
}

fn table(info: &v1::TableInfo, mut tablets: Vec<Tablet>) -> Table {
    tablets.sort_by(|a, b| a.start_row.cmp(&b.start_row));
    Table {
        name: info.name.clone(),
        id: info.id,
        ready: info.state() == v1::TableState::Ready,
        deleting: info.state() == v1::TableState::Deleting,
        tablets,
    }
}

fn tablet(
    info: &v1::TabletInfo,
    place: &v1::TabletPlace,
    owner: Option<&v1::ServerInfo>,
) -> Tablet {
    Tablet {
        id: info.id,
        start_row: info.start_row.clone(),
        end_row: info.end_row.clone(),
        epoch: info.epoch,
        server: place.server.clone(),
        moving_to: (!place.moving_to.is_empty())
            .then(|| (place.moving_to.clone(), place.moved_bytes)),
        bytes: place.bytes,
        load: place.load,
        server_alive: owner.is_some_and(|owner| owner.alive),
        server_silence: owner
            .and_then(|owner| owner.silent_ms)
            .map(Duration::from_millis),
    }
}

/// The ids of the tables of this name that are to be deleted: those whose deletion waits for something, rather than
/// another one. `None`: there's none.
pub(crate) fn ids_to_delete(
    listing: &v1::DirectoryResponse,
    name: &str,
    accept_data_loss: bool,
) -> Option<Vec<u32>> {
    let named: Vec<_> = listing.tables.iter().filter(|it| it.name == name).collect();
    let is_deleting = |table: &&v1::TableInfo| table.state() == v1::TableState::Deleting;
    let ids = |tables: &mut dyn Iterator<Item = &v1::TableInfo>| -> Vec<u32> {
        tables.map(|table| table.id).collect()
    };
    let deleting = || named.iter().copied().filter(is_deleting);
    let waiting = ids(&mut deleting().filter(|table| waits_to_be_frozen(listing, table.id)));
    if !waiting.is_empty() {
        return Some(waiting);
    }
    let given_up = ids(&mut deleting().filter(|_| accept_data_loss));
    let live = named.iter().find(|table| !is_deleting(table));
    // What is given up is rather something that waits, for reasons that only the master knows, than a table that lacks nothing.
    let is_meant = |table: &v1::TableInfo| given_up.is_empty() || lacks_any(listing, table.id);
    match live {
        Some(table) if is_meant(table) => Some(vec![table.id]),
        _ => Some(given_up).filter(|ids| !ids.is_empty()),
    }
}

/// Whether a tablet of this table is lost, or some of its rows lie in none.
fn lacks_any(listing: &v1::DirectoryResponse, table: u32) -> bool {
    let mut reached = Some(&[][..]);
    let mut tablets: Vec<&v1::TabletInfo> = tablets_of(listing, table).collect();
    tablets.sort_by(|a, b| a.start_row.cmp(&b.start_row));
    for tablet in tablets {
        if reached != Some(&tablet.start_row[..]) || is_lost(listing, tablet.id) {
            return true;
        }
        reached = Some(&tablet.end_row[..]).filter(|end| !end.is_empty());
    }
    reached.is_some()
}

fn tablets_of(
    listing: &v1::DirectoryResponse,
    table: u32,
) -> impl Iterator<Item = &v1::TabletInfo> {
    let tablets = listing.tablets.iter().flat_map(|place| &place.tablet);
    tablets.filter(move |tablet| tablet.table_id == table)
}

fn is_lost(listing: &v1::DirectoryResponse, tablet: u64) -> bool {
    let mut servers = listing.servers.iter();
    servers.any(|server| server.lost_tablets.contains(&tablet))
}

/// Whether a tablet of this table, which is being deleted, isn't frozen yet, or is lost.
fn waits_to_be_frozen(listing: &v1::DirectoryResponse, table: u32) -> bool {
    let mut tablets = tablets_of(listing, table);
    tablets.any(|tablet| tablet.state() != v1::TabletState::Frozen || is_lost(listing, tablet.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First rows, and those behind the last.
    type Rows = &'static [(&'static str, &'static str)];

    /// Tables named "t": their ids, states, and the rows of their tablets.
    fn listing(tables: &[(u32, v1::TableState, Rows)]) -> v1::DirectoryResponse {
        let mut listing = v1::DirectoryResponse::default();
        let mut ids = 1..;
        for (table_id, state, tablets) in tables {
            listing.tables.push(v1::TableInfo {
                id: *table_id,
                name: "t".into(),
                state: (*state).into(),
            });
            let frozen = if *state == v1::TableState::Deleting {
                v1::TabletState::Frozen
            } else {
                v1::TabletState::Serving
            };
            for (start_row, end_row) in *tablets {
                let tablet = v1::TabletInfo {
                    id: ids.next().unwrap_or_default(),
                    table_id: *table_id,
                    start_row: (*start_row).into(),
                    end_row: (*end_row).into(),
                    state: frozen.into(),
                    ..v1::TabletInfo::default()
                };
                listing.tablets.push(v1::TabletPlace {
                    tablet: Some(tablet),
                    server: "tablet-0".into(),
                    ..v1::TabletPlace::default()
                });
            }
        }
        listing
    }

    #[test]
    fn the_tablets_of_a_table_are_in_the_order_of_their_rows() {
        // The second half was split off last.
        let listing = listing(&[(
            5,
            v1::TableState::Ready,
            &[("", "g"), ("t", ""), ("g", "t")],
        )]);
        let cluster = Cluster::new(listing);
        let rows = cluster.tables[0].tablets.iter().map(|it| &it.start_row[..]);
        assert_eq!(rows.collect::<Vec<_>>(), [&b""[..], b"g", b"t"]);
    }

    #[test]
    fn a_tablet_that_moves_says_how_much_of_it_has_moved() {
        let mut place = v1::TabletPlace {
            server: "tablet-0".into(),
            moving_to: "tablet-1".into(),
            moved_bytes: 5,
            bytes: 9,
            ..v1::TabletPlace::default()
        };
        let info = v1::TabletInfo::default();
        let moves = tablet(&info, &place, None);
        assert_eq!(moves.moving_to, Some(("tablet-1".into(), 5)));
        assert_eq!(moves.bytes, 9);
        place.moving_to.clear();
        assert_eq!(tablet(&info, &place, None).moving_to, None);
    }

    #[test]
    fn a_whole_table_is_not_given_up_for_one_that_is_being_deleted() {
        use v1::TableState::{Deleting, Ready};
        let whole: Rows = &[("", "m"), ("m", "")];
        let partly: Rows = &[("m", "")];
        for (tables, deleted, given_up) in [
            (&[(5, Ready, whole)][..], Some(5), Some(5)),
            (&[(5, Deleting, whole), (9, Ready, whole)], Some(9), Some(5)),
            (
                &[(5, Deleting, partly), (9, Ready, whole)],
                Some(9),
                Some(5),
            ),
            (
                &[(5, Deleting, partly), (9, Ready, partly)],
                Some(9),
                Some(9),
            ),
            (&[(5, Deleting, partly)], None, Some(5)),
            (&[], None, None),
        ] {
            let listing = listing(tables);
            let meant = |accept_data_loss| ids_to_delete(&listing, "t", accept_data_loss);
            assert_eq!(meant(false), deleted.map(|id| vec![id]), "{tables:?}");
            assert_eq!(meant(true), given_up.map(|id| vec![id]), "{tables:?}");
        }
    }
}
