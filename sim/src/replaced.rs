//! The very last of a run: the cluster is deleted and another one made at its addresses, with tables of the same names,
//! while a client of the first goes on. It is told so, and writes nothing to the second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::{Error, Timestamp};

use crate::cluster::Cluster;
use crate::invariants::NEW_CLUSTER as NAME;
use crate::plan::Fault;
use crate::recorder::Session;
use crate::run::keeper;
use crate::seen::Seen;
use crate::servers::tablet::Tablet;
use crate::watch::Watch;
use crate::world::World;

/// A table of both clusters, and what lies in it.
const TABLE: &str = "replaced";
const ROW: &str = "r";
const COLUMN: &str = "c";
const OURS: &str = "the second cluster's";
/// How long the first one's client goes on beside the second cluster.
const BESIDE: Duration = Duration::from_secs(3);
/// Between two of its transactions.
const PAUSE: Duration = Duration::from_millis(50);

/// What the first cluster's client was told last.
type Told = Arc<Mutex<Option<Error>>>;

/// Whether the run goes on.
pub(crate) fn replaced(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    if !cluster.plan.has(Fault::NewCluster) {
        return true;
    }
    let (node, old) = cluster.keeper_session(world);
    let is_known = Arc::new(AtomicBool::new(false));
    let told = Told::default();
    world.spawn(node, go_on(old, is_known.clone(), told.clone()).boxed());
    let made = |session: Session| async move { session.make_table(TABLE, &[]).await }.boxed();
    if keeper(world, cluster, "making a table", made).is_none() {
        return false;
    }
    if !world.run(world.now() + BESIDE, || is_known.load(Ordering::Relaxed)) {
        // It couldn't write to its own cluster: whether that serves was looked at before.
        return world.failure().is_none();
    }
    make_another(world, cluster);
    let begun = keeper(world, cluster, "making another cluster", move |session| {
        async move {
            made(session.clone()).await?;
            let txn = session.client.begin().await?;
            txn.put(TABLE, ROW, COLUMN, OURS)?;
            txn.commit().await?;
            session.client.settle().await;
            Ok(())
        }
        .boxed()
    });
    if begun.is_none() {
        return false;
    }
    world.run(world.now() + BESIDE, || false);
    // A transaction that was under way may end with an unknown outcome, as late as its request timeout, and then with the reason.
    let last = || told.lock().as_ref().map(Error::to_string);
    let is_told = || last().is_some_and(|last| last.contains("was replaced"));
    if !world.run(world.now() + cluster.plan.request_timeout + BESIDE, is_told) {
        let last = last();
        world.fail(
            NAME,
            format!("a client of another cluster was told {last:?}"),
        );
    }
    let found = keeper(world, cluster, "reading another cluster", |session| {
        async move {
            let txn = session.client.begin().await?;
            txn.get(TABLE, ROW, COLUMN).await
        }
        .boxed()
    });
    if let Some(found) = found
        && found.as_deref() != Some(OURS.as_bytes())
    {
        world.fail(NAME, format!("a cluster that has {OURS:?} has {found:?}"));
    }
    world.failure().is_none()
}

/// A client of the first cluster, which knows no other.
async fn go_on(session: Session, is_known: Arc<AtomicBool>, told: Told) {
    loop {
        let wrote = async {
            let txn = session.client.begin().await?;
            txn.put(TABLE, ROW, COLUMN, "the first cluster's")?;
            txn.commit().await.map(drop)
        };
        match wrote.await {
            Ok(()) => {
                is_known.store(true, Ordering::Relaxed);
                *told.lock() = None;
            }
            Err(error) => *told.lock() = Some(error),
        }
        session.world.sleep(PAUSE).await;
    }
}

fn make_another(world: &Arc<World>, cluster: &Arc<Cluster>) {
    world.note(|| "the cluster is deleted, and another one made".to_owned());
    for server in 0..cluster.servers() {
        world.kill(cluster.server_node(server), false);
    }
    // Of the other one nothing is known yet.
    *world.watch.lock() = Watch::new(cluster.plan.only);
    world.see(&Seen::RetentionAsked(cluster.plan.retention));
    *cluster.highest.lock() = Timestamp::ZERO;
    for master in &cluster.masters {
        master.disk.lose();
        master.begun.store(false, Ordering::Relaxed);
        *master.cluster_id.lock() = None;
        master.before.lock().clear();
    }
    if let Some(store) = &cluster.store {
        store.clear();
    }
    for oracle in &cluster.oracles {
        oracle.disk.lose();
        oracle.lives.forget();
        *oracle.cluster_id.lock() = None;
    }
    for tablet in cluster.tablets() {
        tablet.forget();
    }
    for master in &cluster.masters {
        master.boot(world);
    }
    for oracle in &cluster.oracles {
        oracle.boot(world);
    }
    for tablet in cluster.tablets() {
        tablet.boot(world);
    }
}

impl Tablet {
    /// Its folder is lost.
    fn forget(&self) {
        self.disk.lose();
        if let Some(image) = &self.image {
            image.lock().lose();
        }
        *self.cluster_id.lock() = None;
        self.maybe.lock().clear();
        self.lives.forget();
    }
}
