//! Tablets are split and merged while clients go on: at a row that is there, or where one was split before.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use percolator_client::{Error, Range, Table, Tablet};

use crate::cluster::Cluster;
use crate::recorder::Session;
use crate::world::World;

/// Rows of a table of which one is picked.
const ROWS: u64 = 64;
/// A table with more tablets is merged rather than split.
const TABLETS_MAX: usize = 6;

/// Splits a tablet of some table, or merges two.
pub(crate) fn split_or_merge(world: &Arc<World>, cluster: &Arc<Cluster>, whom: u64, way: u64) {
    let (node, session) = cluster.keeper_session(world);
    let cut = async move {
        // A client of its own: its request timeout is that of the others.
        if let Err(error) = cut(&session, whom, way).await {
            session.world.note(|| format!("no tablet is cut: {error}"));
        }
    };
    world.spawn(node, cut.boxed());
}

async fn cut(session: &Session, whom: u64, way: u64) -> Result<(), Error> {
    let mut tables = session.client.tables().await?;
    tables.retain(|table| table.ready);
    if tables.is_empty() {
        return Ok(());
    }
    let table = tables.swap_remove((whom % tables.len() as u64) as usize);
    // Only two of one server can be merged.
    let pairs = table.tablets.windows(2);
    let mut seconds: Vec<&Tablet> = pairs
        .filter(|pair| pair[0].server == pair[1].server)
        .map(|pair| &pair[1])
        .collect();
    let many = table.tablets.len() > TABLETS_MAX;
    if !seconds.is_empty() && (many || way.is_multiple_of(2)) {
        let second = seconds.swap_remove((way / 2 % seconds.len() as u64) as usize);
        let row = second.start_row.clone();
        session.client.merge_tablets(&table.name, &row).await?;
        session
            .world
            .note(|| format!("{} is merged", at(&table, &row)));
        return Ok(());
    }
    let mut rows = rows(session, &table).await?;
    if rows.is_empty() {
        return Ok(());
    }
    let row = rows.swap_remove((way / 2 % rows.len() as u64) as usize);
    session
        .client
        .split_table(&table.name, std::slice::from_ref(&row))
        .await?;
    session
        .world
        .note(|| format!("{} is split", at(&table, &row)));
    Ok(())
}

/// Some rows that a tablet may be cut at.
async fn rows(session: &Session, table: &Table) -> Result<Vec<Bytes>, Error> {
    let txn = session.client.begin().await?;
    let range = Range::all().limit_rows(ROWS);
    let entries = txn.scan(&table.name, range).await?.collect().await?;
    let mut rows: Vec<Bytes> = entries.into_iter().map(|entry| entry.row).collect();
    rows.dedup();
    rows.retain(|row| !row.is_empty());
    Ok(rows)
}

fn at(table: &Table, row: &[u8]) -> String {
    format!("{} at {}", table.name, String::from_utf8_lossy(row))
}
