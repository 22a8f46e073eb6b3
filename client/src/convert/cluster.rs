//! What the master lists of a cluster.

use std::collections::HashMap;
use std::time::Duration;

use percolator_wire::{Malformed, v1};

use super::collect;
use crate::cluster::{
    Cluster, IntroducedProxy, ReportedServer, ServerFailure, ServerRole, StandbyMaster, Table,
    Tablet,
};
use crate::location_cache::KnownTable;

impl TryFrom<v1::Role> for ServerRole {
    type Error = Malformed;

    fn try_from(role: v1::Role) -> Result<Self, Malformed> {
        match role {
            v1::Role::Oracle => Ok(Self::Oracle),
            v1::Role::Tablet => Ok(Self::Tablet),
            v1::Role::Unspecified => Err(Malformed("a server without a role")),
        }
    }
}

impl TryFrom<v1::ServerInfo> for ReportedServer {
    type Error = Malformed;

    fn try_from(info: v1::ServerInfo) -> Result<Self, Malformed> {
        Ok(Self {
            role: info.role().try_into()?,
            server: info.server,
            address: info.address,
            alive: info.alive,
            incarnation: Some(info.incarnation).filter(|incarnation| *incarnation != 0),
            silence: info.silent_ms.map(Duration::from_millis),
            lost_tablets: info.lost_tablets,
            disk_stalled: Duration::from_millis(info.disk_stalled_ms.into()),
            metrics_address: info.metrics_address,
            failure: (info.failures > 0).then(|| ServerFailure {
                times: info.failures,
                reason: info.failure,
                ago: Duration::from_millis(info.failed_ms_ago),
            }),
            leads_term: info.leads_term,
            takeover: info.takeover_ms.map(Duration::from_millis),
            draining: info.draining,
            drained: info.drained,
            stopping: info.stopping,
            tablets: info.tablets,
            bytes: info.bytes,
            load: info.load,
            without_room: info.without_room,
            waits_for: info.waits_for,
        })
    }
}

impl From<v1::StandbyMaster> for StandbyMaster {
    fn from(master: v1::StandbyMaster) -> Self {
        Self {
            server: master.server,
            address: master.address,
            alive: master.alive,
            silence: Duration::from_millis(master.silent_ms),
        }
    }
}

impl From<v1::ProxyInfo> for IntroducedProxy {
    fn from(proxy: v1::ProxyInfo) -> Self {
        Self {
            server: proxy.server,
            address: proxy.address,
            metrics_address: proxy.metrics_address,
            alive: proxy.alive,
            silence: Duration::from_millis(proxy.silent_ms),
            known: Duration::from_millis(proxy.known_ms),
        }
    }
}

impl TryFrom<v1::DirectoryResponse> for Cluster {
    type Error = Malformed;

    fn try_from(listing: v1::DirectoryResponse) -> Result<Self, Malformed> {
        let servers: Vec<ReportedServer> = collect(listing.servers)?;
        let by_name: HashMap<&str, &ReportedServer> =
            servers.iter().map(|it| (&*it.server, it)).collect();
        let mut tablets: HashMap<u32, Vec<Tablet>> = HashMap::new();
        for place in listing.tablets {
            let owner = by_name.get(&*place.server).copied();
            let (table, tablet) = tablet(place, owner)?;
            tablets.entry(table).or_default().push(tablet);
        }
        let tables = listing.tables.into_iter().map(|info| {
            let tablets = tablets.remove(&info.id).unwrap_or_default();
            table(info, tablets)
        });
        let mut tables = tables.collect::<Result<Vec<Table>, _>>()?;
        tables.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Ok(Self {
            id: listing.cluster_id,
            master: listing.master,
            master_term: listing.master_term,
            master_metrics_address: listing.master_metrics_address,
            master_takeover: listing.master_takeover_ms.map(Duration::from_millis),
            standby_masters: listing
                .standby_masters
                .into_iter()
                .map(StandbyMaster::from)
                .collect(),
            proxies: listing
                .proxies
                .into_iter()
                .map(IntroducedProxy::from)
                .collect(),
            masters_expected: listing.masters_expected,
            oracles_expected: listing.oracles_expected,
            servers,
            tablet_servers_expected: listing.tablet_servers_expected,
            tables,
        })
    }
}

fn table(info: v1::TableInfo, mut tablets: Vec<Tablet>) -> Result<Table, Malformed> {
    tablets.sort_by(|a, b| a.start_row.cmp(&b.start_row));
    let known = KnownTable::try_from(info)?;
    Ok(Table {
        name: known.name,
        id: known.id.0,
        ready: known.ready,
        deleting: known.deleting,
        tablets,
    })
}

/// The tablet, and the id of its table.
fn tablet(
    place: v1::TabletPlace,
    owner: Option<&ReportedServer>,
) -> Result<(u32, Tablet), Malformed> {
    let info = place.tablet.ok_or(Malformed("a place of no tablet"))?;
    let tablet = Tablet {
        id: info.id,
        frozen: match info.state() {
            v1::TabletState::Serving => false,
            v1::TabletState::Frozen => true,
            v1::TabletState::Unspecified => return Err(Malformed("a tablet without a state")),
        },
        start_row: info.start_row,
        end_row: info.end_row,
        epoch: info.epoch,
        server: place.server,
        server_alive: owner.is_some_and(|owner| owner.alive),
        server_silence: owner.and_then(|owner| owner.silence),
        moving_to: (!place.moving_to.is_empty()).then_some((place.moving_to, place.moved_bytes)),
        bytes: place.bytes,
        load: place.load,
    };
    Ok((info.table_id, tablet))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(start_row: &'static str, end_row: &'static str) -> v1::TabletPlace {
        v1::TabletPlace {
            tablet: Some(v1::TabletInfo {
                id: 1,
                table_id: 5,
                start_row: start_row.into(),
                end_row: end_row.into(),
                state: v1::TabletState::Serving.into(),
                ..v1::TabletInfo::default()
            }),
            server: "tablet-0".into(),
            ..v1::TabletPlace::default()
        }
    }

    fn listing() -> v1::DirectoryResponse {
        v1::DirectoryResponse {
            tables: vec![v1::TableInfo {
                id: 5,
                name: "t".into(),
                state: v1::TableState::Ready.into(),
            }],
            // The second half was split off last.
            tablets: vec![place("", "g"), place("t", ""), place("g", "t")],
            servers: vec![v1::ServerInfo {
                role: v1::Role::Tablet.into(),
                server: "tablet-0".into(),
                silent_ms: Some(7),
                ..v1::ServerInfo::default()
            }],
            ..v1::DirectoryResponse::default()
        }
    }

    #[test]
    fn the_tablets_of_a_table_are_in_the_order_of_their_rows() {
        let cluster = Cluster::try_from(listing()).unwrap();
        let tablets = &cluster.tables[0].tablets;
        let rows = tablets.iter().map(|it| &it.start_row[..]);
        assert_eq!(rows.collect::<Vec<_>>(), [&b""[..], b"g", b"t"]);
        let silence = tablets[0].server_silence;
        assert_eq!(silence, Some(Duration::from_millis(7)), "the owner's");
    }

    #[test]
    fn a_listing_that_lacks_a_part_is_refused() {
        let refused = |change: fn(&mut v1::DirectoryResponse)| {
            let mut listing = listing();
            change(&mut listing);
            Cluster::try_from(listing).expect_err("malformed").0
        };
        assert_eq!(
            refused(|it| it.tablets[0].tablet = None),
            "a place of no tablet"
        );
        assert_eq!(
            refused(|it| it.servers[0].role = 0),
            "a server without a role"
        );
        assert_eq!(
            refused(|it| it.tables[0].state = 0),
            "a table without a state"
        );
    }

    #[test]
    fn a_tablet_that_moves_says_how_much_of_it_has_moved() {
        let mut place = v1::TabletPlace {
            moving_to: "tablet-1".into(),
            moved_bytes: 5,
            bytes: 9,
            ..place("", "")
        };
        let (table, moves) = tablet(place.clone(), None).unwrap();
        assert_eq!(moves.moving_to, Some(("tablet-1".into(), 5)));
        assert_eq!((table, moves.bytes), (5, 9));
        place.moving_to.clear();
        assert_eq!(tablet(place, None).unwrap().1.moving_to, None);
    }
}
