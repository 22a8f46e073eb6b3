//! Tablets are handed over from server to server, and servers are drained, while clients go on, and while anything else happens.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_gc_master::Settings;

use crate::cluster::Cluster;
use crate::plan::{Fault, Plan};
use crate::recorder::Session;
use crate::rng::Rng;
use crate::world::World;

/// Of the master: when it moves, splits and merges tablets by itself.
pub(crate) fn settings(plan: &Plan) -> Settings {
    // As many bytes as a tablet soon has, or a few times more.
    let split_bytes = 4_096 << Rng::new(plan.seed, "split-bytes").below(4);
    // As many cells a second as a tablet soon has, or more; or load doesn't count.
    let split_load = 4 << (2 * Rng::new(plan.seed, "split-load").below(3));
    let counts_load = Rng::new(plan.seed, "counts-load").below(4) > 0;
    Settings {
        retention: plan.retention,
        lease: plan.lease,
        balance: plan.has(Fault::Balance),
        split_bytes,
        split_load: if counts_load { split_load } else { 0 },
        merge_after: Duration::from_millis(1_500),
    }
}

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

/// Drains a tablet server, or lets it have tablets again. One that is drained is replaced now and then, as by somebody who removes
/// it and adds one of its name later.
pub(crate) fn drain_or_undrain(world: &Arc<World>, cluster: &Arc<Cluster>, whom: u64, way: u64) {
    let (node, session) = cluster.keeper_session(world);
    let number = (whom % cluster.plan.tablet_servers as u64) as usize;
    let drain = way.is_multiple_of(2);
    let replaces = drain && (way / 2).is_multiple_of(2) && may_be_replaced(&cluster.plan);
    // Nobody undrains it between the last look at it and its end.
    if !cluster.draining.lock().insert(number) {
        return;
    }
    let (world2, cluster2) = (world.clone(), cluster.clone());
    let draining = async move {
        let server = format!("tablet-{number}");
        let what = if drain { "drained" } else { "undrained" };
        let servers = std::slice::from_ref(&server);
        let drained = session.client.drain_servers(servers, drain).await;
        if replaces && drained.is_ok() && is_drained(&session, &server).await {
            cluster2.replace_drained(&world2, number);
        }
        session.world.note(|| match drained {
            Ok(infos) => {
                let tablets: u64 = infos.iter().map(|info| info.tablets).sum();
                format!("{server} is {what}, with {tablets} tablets")
            }
            Err(error) => format!("{server} is not {what}: {error}"),
        });
        cluster2.draining.lock().remove(&number);
    };
    world.spawn(node, draining.boxed());
}

/// A tablet server gets the signal to end, and is killed when the master says that nothing keeps it, or some seconds later. It comes back
/// with its folder.
pub(crate) fn stop_when_empty(world: &Arc<World>, cluster: &Arc<Cluster>, whom: u64, way: u64) {
    let (node, session) = cluster.keeper_session(world);
    let number = (whom % cluster.plan.tablet_servers as u64) as usize;
    if !cluster.draining.lock().insert(number) {
        return;
    }
    let (world2, cluster2) = (world.clone(), cluster.clone());
    let stopping = async move {
        let tablet = cluster2.tablet(number);
        tablet.stop_when_empty(&world2);
        let mut may_stop = false;
        for _ in 0..40 {
            may_stop = tablet.may_stop(&world2);
            if may_stop {
                break;
            }
            session.world.sleep(Duration::from_millis(100)).await;
        }
        let name = &tablet.name;
        world2.note(|| format!("{name} gets the signal to end, and nothing keeps it: {may_stop}"));
        let down = Duration::from_millis(50 + way % 500);
        cluster2.kill_server(
            &world2,
            cluster2.tablet_numbers().start + number,
            down,
            false,
        );
        cluster2.draining.lock().remove(&number);
    };
    world.spawn(node, stopping.boxed());
}

/// A master that loses its state forgets what it has drained, and servers that run twice, or on older folders, are no servers to be
/// removed.
fn may_be_replaced(plan: &Plan) -> bool {
    let others = [
        Fault::LoseMaster,
        Fault::OlderFolder,
        Fault::SwapFolders,
        Fault::TwoProcesses,
    ];
    !others.into_iter().any(|fault| plan.has(fault))
}

/// Whether the master says within some seconds that the server has no tablets, and never will.
async fn is_drained(session: &Session, server: &str) -> bool {
    for _ in 0..40 {
        let servers = session.client.cluster().await.map(|it| it.servers);
        let mut servers = servers.unwrap_or_default().into_iter();
        if servers.any(|it| it.server == server && it.drained) {
            return true;
        }
        session.world.sleep(Duration::from_millis(100)).await;
    }
    false
}
