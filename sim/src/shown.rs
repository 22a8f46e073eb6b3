//! Near the end of a run: what people are shown of the cluster agrees with what there is. Tablets may still be moved, so that it has to agree
//! at some moment, and within a bound.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::{Cluster as Shown, Error, ServerRole, Table, Tablet};
use percolator_engine::Column;
use percolator_protocol::types::{Cell, TableId, Timestamp, key};

use crate::cluster::Cluster;
use crate::recorder::Session;
use crate::run::keeper;
use crate::world::World;

/// The columns whose keys and values count as the size of a tablet.
const COUNTED: [Column; 2] = [Column::Write, Column::Data];
/// A size is an estimate, which counts what is written twice as twice until a walk finds out: it may be higher than what there is. It is not lower,
/// but for what is rounded off.
const SIZE_PART: u64 = 2;
const SIZE_BYTES: u64 = 4 << 10;
/// No oracle has handed out a timestamp that lies so far ahead.
const AHEAD: Duration = Duration::from_secs(86_400);

/// Tables, tablets, servers, and what became of transactions.
pub(crate) fn shown(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    keeper(world, cluster, "showing the cluster as it is", |session| {
        async move {
            let shown = session.client.cluster().await?;
            match difference(&session.world, &shown) {
                Some(wrong) => Err(Error::Invalid(wrong)),
                None => nobody_began_in_the_future(&session, &shown).await,
            }
        }
        .boxed()
    });
    world.failure().is_none()
}

/// Where what is shown isn't so.
fn difference(world: &World, shown: &Shown) -> Option<String> {
    let tables = shown.tables.iter().filter(|table| !table.deleting);
    let mut owned: BTreeMap<&str, u64> = BTreeMap::new();
    for tablet in shown.tables.iter().flat_map(|table| &table.tablets) {
        *owned.entry(&tablet.server).or_default() += 1;
    }
    let of_tables = tables.clone().find_map(cut_wrongly);
    let of_tablets = || {
        let mut tablets = tables.flat_map(|table| table.tablets.iter().map(move |it| (table, it)));
        tablets.find_map(|(table, tablet)| held_otherwise(world, table, tablet))
    };
    let of_servers = || {
        let mut servers = shown.servers.iter();
        servers.find_map(|server| {
            let name = &server.server;
            let counted = owned.get(&**name).copied().unwrap_or_default();
            let is_tablet_server = server.role == ServerRole::Tablet;
            if !server.alive {
                Some(format!("{name} counts as down"))
            } else if !server.lost_tablets.is_empty() {
                Some(format!("{name} has lost {:?}", server.lost_tablets))
            } else if is_tablet_server && server.tablets != counted {
                let has = server.tablets;
                Some(format!(
                    "{name} has {has} tablets, and {counted} are listed"
                ))
            } else {
                None
            }
        })
    };
    of_tables.or_else(of_tablets).or_else(of_servers)
}

/// The tablets of a table are in order, with each row in one of them.
fn cut_wrongly(table: &Table) -> Option<String> {
    let name = &table.name;
    let (Some(first), Some(last)) = (table.tablets.first(), table.tablets.last()) else {
        return Some(format!("{name} has no tablet"));
    };
    if !first.start_row.is_empty() || !last.end_row.is_empty() {
        return Some(format!("{name} lacks its first rows, or its last ones"));
    }
    let mut pairs = table.tablets.windows(2);
    let gap = pairs.find(|pair| pair[0].end_row != pair[1].start_row)?;
    let (end, start) = (&gap[0].end_row, &gap[1].start_row);
    Some(format!("{name}: {start:?} follows the rows before {end:?}"))
}

/// A tablet is at the server that has its rows, and has no more bytes than are shown, about.
fn held_otherwise(world: &World, table: &Table, tablet: &Tablet) -> Option<String> {
    let watch = world.watch.lock();
    let id = TableId(table.id);
    let start = key::row_bound(id, &tablet.start_row);
    let end = key::rows_end(id, &tablet.end_row);
    let Some(holding) = watch.holdings().find(|it| it.server == tablet.server) else {
        return Some(format!("tablet {} is at {}", tablet.id, tablet.server));
    };
    if holding.owned.at(&start).is_none_or(|it| it.end != end) {
        let (tablet, server) = (tablet.id, &tablet.server);
        return Some(format!(
            "{server} doesn't have tablet {tablet} of {}",
            table.name
        ));
    }
    let pairs = COUNTED.iter().flat_map(|column| {
        let from = (*column, start.clone().into());
        let to = (*column, end.clone().into());
        holding.content.range(from..to)
    });
    let bytes: usize = pairs.map(|((_, key), value)| key.len() + value.len()).sum();
    let (bytes, shown) = (bytes as u64, tablet.bytes);
    (bytes > SIZE_PART * shown + SIZE_BYTES).then(|| {
        let (tablet, table) = (tablet.id, &table.name);
        format!("tablet {tablet} of {table} has {bytes} bytes, and {shown} are shown")
    })
}

/// Nobody can have begun at a timestamp that was not handed out, and anyone who asks is answered so.
async fn nobody_began_in_the_future(session: &Session, shown: &Shown) -> Result<(), Error> {
    let Some(table) = shown.tables.iter().find(|table| table.ready) else {
        return Ok(());
    };
    let now = session.client.timestamp().await?;
    let ahead = u64::try_from(AHEAD.as_millis()).unwrap_or(u64::MAX);
    let future = Timestamp::from_millis(now.physical_ms() + ahead);
    let nowhere = Cell::new(TableId(table.id), "nobody", "writes here");
    match session.client.outcome(future, &nowhere).await {
        Err(Error::NoTransaction { .. }) => Ok(()),
        Err(error) => Err(error),
        Ok(other) => Err(Error::Invalid(format!(
            "a transaction that begins tomorrow is {other:?}"
        ))),
    }
}
