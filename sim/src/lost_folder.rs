//! The very last of a run: a tablet server comes back with an empty folder. It says that its tablets are lost, nobody is
//! told that their rows were never written, and it is ready again when their tables are given up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use percolator_client::Error;
use percolator_tablet::runner::NotReady;

use crate::cluster::Cluster;
use crate::invariants::LOST_FOLDER as NAME;
use crate::plan::Fault;
use crate::recorder::Session;
use crate::rng::{Dice, Rng};
use crate::run::keeper;
use crate::seen::Seen;
use crate::servers::tablet::Tablet;
use crate::trace::shown;
use crate::world::World;

/// A table of several tablets, and what lies in a row of each.
const TABLE: &str = "lost";
const CUTS: [&[u8]; 2] = [b"h", b"q"];
const ROWS: [&str; 3] = ["a", "k", "s"];
const COLUMN: &str = "c";
const VALUE: &str = "written";
/// A master that is killed is away for so long.
const MASTER_DOWN: Duration = Duration::from_secs(3);
/// The server says how it is within this.
const BOUND: Duration = Duration::from_secs(60);

/// Whether the run goes on.
pub(crate) fn lost_folder(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    if !cluster.plan.has(Fault::LoseFolder) {
        return true;
    }
    let Some(owners) = keeper(world, cluster, "writing to one table", |session| {
        async move { write(&session).await }.boxed()
    }) else {
        return false;
    };
    let owner = owners[0].clone();
    let tablets = cluster.tablets();
    let number = tablets.iter().position(|tablet| tablet.name == owner);
    let number = number.expect("a tablet's owner is a tablet server");
    // Where tablets are is soft state of the master: also one that did not run meanwhile has to notice.
    let restarts = cluster
        .tablet(number)
        .dice
        .of("master", |dice| dice.below(3));
    let kill_master = || cluster.kill_masters(world, MASTER_DOWN);
    if restarts == 1 {
        kill_master();
    }
    cluster.lose_folder(world, number);
    let is_lost = |ready: &Result<(), NotReady>| matches!(ready, Err(NotReady::DataLost { .. }));
    if !becomes(world, cluster, number, "that its tablets are lost", is_lost) {
        return false;
    }
    if restarts == 2 {
        kill_master();
        world.run(world.now() + 2 * MASTER_DOWN, || false);
        if !becomes(
            world,
            cluster,
            number,
            "that its tablets are lost, to another start of the master",
            is_lost,
        ) {
            return false;
        }
    }
    let lost = owner.clone();
    let read = keeper(world, cluster, "reading what is left", move |session| {
        let (owners, lost) = (owners.clone(), lost.clone());
        async move { read(&session, &owners, &lost).await }.boxed()
    });
    if read.is_none() || world.failure().is_some() {
        return false;
    }
    let given_up = keeper(world, cluster, "giving up what is lost", move |session| {
        let owner = owner.clone();
        async move { give_up(&session, &owner).await }.boxed()
    });
    given_up.is_some() && becomes(world, cluster, number, "that it is ready", Result::is_ok)
}

/// Writes a row to each tablet. Their owners.
async fn write(session: &Session) -> Result<Vec<String>, Error> {
    session
        .make_table(TABLE, &CUTS.map(Bytes::from_static))
        .await?;
    let txn = session.client.begin().await?;
    for row in ROWS {
        txn.put(TABLE, row, COLUMN, VALUE)?;
    }
    txn.commit().await?;
    session.client.settle().await;
    let tables = session.client.tables().await?;
    let table = tables.into_iter().find(|table| table.name == TABLE);
    let tablets = table.map(|table| table.tablets).unwrap_or_default();
    Ok(tablets.into_iter().map(|tablet| tablet.server).collect())
}

/// What others have is still there; of what is lost nobody is told anything.
async fn read(session: &Session, owners: &[String], lost: &str) -> Result<(), Error> {
    for (row, owner) in ROWS.iter().zip(owners) {
        let txn = session.client.begin().await?;
        let read = txn.get(TABLE, row, COLUMN).await;
        match read {
            Ok(found) if owner == lost => {
                let found = found.map(|found| String::from_utf8_lossy(&found).into_owned());
                let wrong = format!("row {row:?} of {lost}, which lost its folder, is {found:?}");
                session.world.fail(NAME, wrong);
            }
            Ok(Some(found)) if found == VALUE => {}
            Ok(found) => {
                let wrong = format!("row {row:?} of {owner}, which lost nothing, is {found:?}");
                session.world.fail(NAME, wrong);
            }
            Err(_) if owner == lost => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Deletes every table of which the server had a tablet.
async fn give_up(session: &Session, owner: &str) -> Result<(), Error> {
    let tables = session.client.cluster().await?.tables;
    let had = |table: &&percolator_client::Table| {
        let mut owners = table.tablets.iter().map(|tablet| &tablet.server);
        owners.any(|server| server == owner)
    };
    let had: Vec<_> = tables.iter().filter(had).collect();
    let is_meant = |table: &percolator_client::Table| table.name == TABLE;
    if tables.iter().any(is_meant) && !had.iter().any(|table| is_meant(table)) {
        // It has just begun, and hasn't heard all servers: the server says what it was told by the one before.
        let why = "the master doesn't know yet what is lost";
        return Err(Error::Unavailable(why.to_owned()));
    }
    let is_deleting = |name: &str| had.iter().any(|table| table.name == name && table.deleting);
    for table in had
        .iter()
        .filter(|table| !table.deleting && is_deleting(&table.name))
    {
        // What is being deleted is given up first, so this one has to be deleted as well. It waits for what is lost.
        let _ = session.client.delete_table(&table.name).await;
    }
    let names: BTreeSet<&str> = had.iter().map(|it| it.name.as_str()).collect();
    // At once: none of them goes before the others are given up.
    let deleted = names
        .into_iter()
        .map(|name| session.client.delete_lost_table(name));
    join_all(deleted).await.into_iter().collect()
}

/// Whether the server says this within the bound.
fn becomes(
    world: &Arc<World>,
    cluster: &Arc<Cluster>,
    number: usize,
    what: &str,
    is_it: impl Fn(&Result<(), NotReady>) -> bool,
) -> bool {
    let tablet = cluster.tablet(number);
    let says = || tablet.ready().is_some_and(|ready| is_it(&ready));
    if world.run(world.now() + BOUND, says) {
        return true;
    }
    if world.failure().is_none() {
        let (name, says) = (&tablet.name, tablet.ready());
        let wrong = format!(
            "{name} lost its folder, and did not say {what} within {}; it says {says:?}",
            shown(BOUND)
        );
        world.fail(NAME, wrong);
    }
    false
}

impl Cluster {
    /// Somebody has removed a server that is drained, and starts one of its name.
    pub(crate) fn replace_drained(&self, world: &Arc<World>, number: usize) {
        if !self.is_healed() {
            let server = &self.tablet(number).name;
            let emptied = |before: &Tablet| Tablet {
                older: false,
                ..before.emptied()
            };
            world.see(&Seen::Removed { server });
            self.replace(world, number, emptied);
        }
    }

    fn lose_folder(&self, world: &Arc<World>, number: usize) {
        self.replace(world, number, Tablet::emptied);
    }

    fn replace(&self, world: &Arc<World>, number: usize, emptied: impl FnOnce(&Tablet) -> Tablet) {
        let before = self.tablet(number);
        let name = &before.name;
        world.note(|| format!("{name} comes back with an empty folder"));
        world.kill(before.node, false);
        before.retired.store(true, Ordering::Relaxed);
        let after = Arc::new(emptied(&before));
        *self.tablets[number].lock() = after.clone();
        after.boot(world);
    }
}

impl Tablet {
    /// Whether anybody should be sent here, if it runs.
    fn ready(&self) -> Option<Result<(), NotReady>> {
        let running = self.running.lock().clone()?;
        let ready = running.lock().runner.ready();
        Some(ready)
    }

    /// With an empty folder: what it has then says nothing of what was durable.
    fn emptied(&self) -> Self {
        let disk = self.disk.copy();
        disk.lose();
        let image = self.image.as_ref().map(|image| {
            let mut image = image.lock().copy();
            image.lose();
            Arc::new(Mutex::new(image))
        });
        let dice = Dice::new(Rng::new(self.dice.of("emptied", Rng::next), "emptied"));
        Self {
            cluster_id: Mutex::default(),
            older: true,
            ..self.on(disk, image, dice)
        }
    }
}
