//! The last of some runs: a tablet server dies in the middle of a transaction that writes to all servers, and stays away. Collection
//! doesn't wait for it. When it is back, the transaction is there as a whole or not at all, and the server collects as well.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::Error;

use crate::cluster::Cluster;
use crate::invariants::liveness;
use crate::orphan::{Cells, LASTS, named, write};
use crate::recorder::Session;
use crate::rng::Rng;
use crate::run::keeper;
use crate::world::World;

/// One run of so many.
const ONE_OF: u64 = 3;
/// What nobody else writes.
const COLUMN: &str = "survivor";

/// Whether the run goes on.
pub(crate) fn collection_goes_on(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    let mut rng = Rng::new(cluster.plan.seed, "a dead server");
    if rng.below(ONE_OF) != 0 || cluster.tablets.len() < 2 {
        return true;
    }
    let Some(cells) = named(world, cluster) else {
        return false;
    };
    let (writer, session) = cluster.last_session(world);
    let written = cells.clone();
    let writes = async move {
        if let Err(error) = write(&session, &written, COLUMN).await {
            session
                .world
                .note(|| format!("not written to all: {error}"));
        }
        session.client.settle().await;
    };
    world.spawn(writer, writes.boxed());
    let moment = Duration::from_micros(rng.below(LASTS.as_micros() as u64));
    world.run(world.now() + moment, || false);

    let numbers = cluster.tablet_numbers();
    let dead = numbers.start + rng.below(numbers.len() as u64) as usize;
    let name = cluster.tablet(dead - numbers.start).name.clone();
    world.note(|| format!("{name} is killed, and stays away"));
    world.kill(cluster.server_node(dead), false);
    let past = *cluster.highest.lock();
    if !liveness::others_collect(world, cluster, &name, past) {
        return false;
    }
    cluster.boot_server(world, dead);
    liveness::collected(world, cluster, past) && is_whole(world, cluster, cells)
}

/// Each of the cells is written, or none is.
fn is_whole(world: &Arc<World>, cluster: &Arc<Cluster>, cells: Cells) -> bool {
    let all = cells.rows.len();
    let counted = keeper(world, cluster, "reading what was written", move |session| {
        let cells = cells.clone();
        async move { written(&session, &cells).await }.boxed()
    });
    if let Some(there) = counted
        && there != 0
        && there != all
    {
        let why = format!(
            "{there} of {all} cells are there of a transaction in whose middle a server died"
        );
        world.fail(liveness::COLLECTION, why);
    }
    world.failure().is_none()
}

async fn written(session: &Session, cells: &Cells) -> Result<usize, Error> {
    let txn = session.client.begin().await?;
    let mut there = 0;
    for (table, row) in &cells.rows {
        there += usize::from(txn.get(table, row, COLUMN).await?.is_some());
    }
    Ok(there)
}
