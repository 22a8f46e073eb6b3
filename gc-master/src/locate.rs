//! Where rows are, for clients: they ask for the rows that they need, so that what it costs doesn't grow with the cluster.

use std::collections::{BTreeMap, BTreeSet};

use percolator_wire::v1;

use crate::convert::{table_info, tablet_info};
use crate::core::Directory;
use crate::refusal::Refusal;
use crate::state::DirectoryState;

/// The most names, rows, and tablets ahead that one request asks for.
pub(crate) const LOCATED_MAX: usize = 100;

/// The tablets of these rows, and their owners' addresses.
///
/// # Errors
/// [`Refusal::NoState`] and [`Refusal::TooManyToLocate`].
pub fn locate(
    directory: &Directory,
    request: &v1::LocateRequest,
) -> Result<v1::LocateResponse, Refusal> {
    let ahead = usize::try_from(request.ahead).unwrap_or(usize::MAX);
    let most = ahead.max(request.names.len()).max(request.rows.len());
    if most > LOCATED_MAX {
        return Err(Refusal::TooManyToLocate { asked: most });
    }
    let state = directory.state()?;
    let mut deleted = BTreeSet::new();
    let mut response = v1::LocateResponse {
        cluster_id: state.cluster_id.clone(),
        ..v1::LocateResponse::default()
    };
    let placements = directory.tablets();
    let count = 1 + ahead;
    let mut tables = BTreeSet::new();
    let mut tablets = BTreeMap::new();
    for table in request
        .names
        .iter()
        .filter_map(|name| state.table_named(name))
    {
        tables.insert(table);
        tablets.extend(placements.from_row(table, &[]).take(count));
    }
    for row in &request.rows {
        let table = row.table_id;
        // Some of its tablets may be gone, and those of a server that is away are still known: no lock of a transaction that committed
        // has its primary there any more.
        if state.is_gone(table) || state.may_drop(table) {
            deleted.insert(table);
        } else if state.tables.contains_key(&table) {
            tables.insert(table);
            if row.before {
                tablets.extend(placements.before_row(table, &row.row).take(count));
            } else {
                tablets.extend(placements.from_row(table, &row.row).take(count));
            }
        }
    }
    let tablets = tablets.into_iter();
    response.tablets = tablets
        .map(|(id, tablet)| located(directory, state, id, tablet))
        .collect();
    response.deleted_tables = deleted.into_iter().collect();
    let info = |id: u32| Some(table_info(id, state.tables.get(&id)?));
    response.tables = tables.into_iter().filter_map(info).collect();
    Ok(response)
}

fn located(
    directory: &Directory,
    state: &DirectoryState,
    id: u64,
    tablet: &crate::state::Placement,
) -> v1::LocatedTablet {
    let server = state.servers.get(&tablet.owner);
    v1::LocatedTablet {
        tablet: Some(tablet_info(state, id, tablet)),
        server: tablet.owner.clone(),
        address: server.map_or_else(String::new, |server| server.address.clone()),
        incarnation: directory.incarnation(&tablet.owner),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::Settings;
    use crate::events::{Heartbeat, Start};
    use crate::state::Role;

    /// A table with a tablet for each of the letters from b to y as its last row's end.
    fn directory() -> (Directory, u32) {
        let now = Duration::from_secs(3_600);
        let mut directory = Directory::open(Start::NewCluster, Settings::default(), 7).unwrap();
        for server in ["tablet-0", "tablet-1"] {
            let beat = Heartbeat::first(Role::Tablet, server, format!("{server}:1"));
            directory.heartbeat(now, beat).unwrap();
        }
        let cuts: Vec<Vec<u8>> = (b'b'..=b'y').map(|cut| vec![cut]).collect();
        let id = directory.create_table(now, "t", &cuts).unwrap();
        (directory, id)
    }

    fn starts(response: &v1::LocateResponse) -> Vec<String> {
        let tablets = response.tablets.iter().flat_map(|it| &it.tablet);
        let start = |it: &v1::TabletInfo| String::from_utf8_lossy(&it.start_row).into_owned();
        tablets.map(start).collect()
    }

    fn row(table_id: u32, row: &'static str, before: bool) -> v1::RowToLocate {
        v1::RowToLocate {
            table_id,
            row: row.into(),
            before,
        }
    }

    #[test]
    fn a_row_is_answered_with_its_tablet_and_those_behind() {
        let (directory, table) = directory();
        let ask = |rows: &[v1::RowToLocate], ahead| {
            let request = v1::LocateRequest {
                rows: rows.to_vec(),
                ahead,
                ..v1::LocateRequest::default()
            };
            locate(&directory, &request).unwrap()
        };
        let response = ask(&[row(table, "fx", false)], 2);
        assert_eq!(starts(&response), ["f", "g", "h"]);
        assert_eq!(response.tables[0].name, "t");
        assert!(response.tablets.iter().all(|it| !it.address.is_empty()));
        assert_eq!(starts(&ask(&[row(table, "z", false)], 2)), ["y"]);
        // Each once.
        let rows = [
            row(table, "f", false),
            row(table, "fy", false),
            row(table, "", false),
        ];
        assert_eq!(starts(&ask(&rows, 0)), ["", "f"]);
        // The one that ends there, and those before.
        assert_eq!(starts(&ask(&[row(table, "f", true)], 1)), ["d", "e"]);
        assert_eq!(starts(&ask(&[row(table, "fx", true)], 1)), ["e", "f"]);
        assert_eq!(starts(&ask(&[row(table, "", true)], 0)), ["y"]);
        // Of tables that aren't there, those that were.
        let response = ask(&[row(table - 1, "", false), row(table + 1, "", false)], 0);
        assert_eq!(response.deleted_tables, [table - 1]);
        assert!(response.tables.is_empty() && response.tablets.is_empty());
    }

    #[test]
    fn names_are_answered_and_too_much_is_refused() {
        let (directory, table) = directory();
        let request = v1::LocateRequest {
            names: vec!["t".into(), "u".into()],
            ..v1::LocateRequest::default()
        };
        let response = locate(&directory, &request).unwrap();
        let tables: Vec<_> = response
            .tables
            .iter()
            .map(|it| (it.id, &*it.name))
            .collect();
        assert_eq!(tables, [(table, "t")]);
        let request = v1::LocateRequest {
            rows: vec![row(table, "", false); LOCATED_MAX + 1],
            ..v1::LocateRequest::default()
        };
        let refused = locate(&directory, &request).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "101 names, rows or tablets ahead are asked for at a time, and 100 may be"
        );
    }
}
