//! Tablets are handed over from server to server while clients go on, and while anything else happens.

use std::sync::Arc;

use futures_util::FutureExt;
use percolator_client::Error;

use crate::cluster::Cluster;
use crate::recorder::Session;
use crate::world::World;

/// Hands one over.
pub(crate) fn move_one(world: &Arc<World>, cluster: &Arc<Cluster>, whom: u64, way: u64) {
    let (node, session) = cluster.keeper_session(world);
    let servers = cluster.plan.tablet_servers as u64;
    let moving = async move {
        if let Err(error) = hand_over(&session, servers, whom, way).await {
            session
                .world
                .note(|| format!("no tablet is handed over: {error}"));
        }
    };
    world.spawn(node, moving.boxed());
}

async fn hand_over(session: &Session, servers: u64, whom: u64, way: u64) -> Result<(), Error> {
    let tables = session.client.tables().await?;
    let ready = tables.into_iter().filter(|table| table.ready);
    let mut tablets: Vec<_> = ready.flat_map(|table| table.tablets).collect();
    if tablets.is_empty() {
        return Ok(());
    }
    let tablet = tablets.swap_remove((whom % tablets.len() as u64) as usize);
    let to = format!("tablet-{}", way % servers);
    if to == tablet.server {
        return Ok(());
    }
    session.client.move_tablet(tablet.id, &to).await?;
    let id = tablet.id;
    session.world.note(|| format!("{to} has tablet {id}"));
    Ok(())
}
