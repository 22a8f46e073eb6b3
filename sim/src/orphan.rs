//! The last of a run: a client dies at some moment of a transaction, a large one where clients buffer little, and anyone who
//! reads its cells waits no longer than its locks live.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::Error;

use crate::cluster::Cluster;
use crate::invariants::liveness;
use crate::nemesis::SYNC_LONGEST_MS;
use crate::plan::Fault;
use crate::recorder::Session;
use crate::rng::Rng;
use crate::run::keeper;
use crate::workloads::tagged;
use crate::world::World;

/// Of each tablet, so many rows: some flushes of those who buffer least.
const ROWS: u64 = 6;
/// What no workload expects, and looks at.
const COLUMN: &str = "orphan";
/// What it takes, about, where answers take as long as they do.
pub(crate) const LASTS: Duration = Duration::from_millis(60);
/// As long as a pause of the oracle's lasts at the slowest pace that clocks have.
const SLOW_SLEEPS: Duration = Duration::from_secs(4);
/// As long as the longest sync lasts that began on a slow disk.
const SLOW_SYNCS: Duration = Duration::from_millis(6 * SYNC_LONGEST_MS);
/// A reader who was refused, or had to give up, asks again after this.
const AGAIN: Duration = Duration::from_millis(20);

/// What the transaction writes.
#[derive(Clone, Default)]
pub(crate) struct Cells {
    /// Tables, and rows of theirs.
    pub(crate) rows: Vec<(String, Vec<u8>)>,
    /// The server of the first, which is the transaction's primary.
    server: String,
}

/// Rows of every tablet.
async fn cells(session: &Session) -> Result<Cells, Error> {
    let mut tables = session.client.tables().await?;
    tables.sort_by_key(|table| table.id);
    let mut cells = Cells::default();
    for table in &tables {
        for tablet in &table.tablets {
            if cells.rows.is_empty() {
                cells.server.clone_from(&tablet.server);
            }
            cells.rows.extend((0..ROWS).map(|row| {
                let row = [&tablet.start_row[..], format!("!{row}").as_bytes()].concat();
                (table.name.clone(), row)
            }));
        }
    }
    Ok(cells)
}

/// The cells of the cluster as it is. None: the run has failed.
pub(crate) fn named(world: &Arc<World>, cluster: &Arc<Cluster>) -> Option<Cells> {
    keeper(world, cluster, "naming tablets", |session| {
        async move { cells(&session).await }.boxed()
    })
}

/// Writes to this column of all of them.
pub(crate) async fn write(session: &Session, cells: &Cells, column: &str) -> Result<(), Error> {
    let txn = session.begin().await?;
    for (table, row) in &cells.rows {
        let row = String::from_utf8_lossy(row);
        txn.put(table, &row, column, tagged(1, session))?;
        txn.ready().await?;
    }
    txn.commit().await?;
    Ok(())
}

/// Reads it, as often as it takes.
async fn read(session: &Session, table: &str, row: &str) {
    loop {
        let read = async {
            let txn = session.begin().await?;
            txn.get(table, row, COLUMN).await
        };
        match read.await {
            Ok(_) => return,
            Err(error) => session.world.note(|| format!("a reader: {error}")),
        }
        session.world.sleep(AGAIN).await;
    }
}

/// Leaves the transaction behind, and reads its cells.
pub(crate) fn reads(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    let Some(cells) = named(world, cluster) else {
        return false;
    };
    // What sleeps by a clock that went slowly when it began sleeps on by that, here alone, and a sync that began on a slow disk
    // goes on: of the oracle, time hangs on either.
    for (fault, ends) in [
        (Fault::ClockPace, SLOW_SLEEPS),
        (Fault::DiskSlow, SLOW_SYNCS),
    ] {
        if cluster.plan.faults.contains(&fault) {
            world.run(world.now() + ends, || false);
        }
    }
    let (writer, session) = cluster.last_session(world);
    let written = cells.clone();
    let writes = async move {
        // It dies: what becomes of it is for the readers.
        let _ = write(&session, &written, COLUMN).await;
        // Nothing is rolled back or cleared behind it.
        std::future::pending::<()>().await;
    };
    world.spawn(writer, writes.boxed());
    let mut rng = Rng::new(cluster.plan.seed, "orphan");
    let servers = cluster.tablets();
    let deaf = servers.iter().find(|server| server.name == cells.server);
    let deaf = deaf.unwrap_or(&servers[0]).node;
    let cut = |is_cut| world.network.lock().cut(writer, deaf, is_cut);
    let mut a_moment = || {
        let moment = rng.below(LASTS.as_micros() as u64);
        world.run(world.now() + Duration::from_micros(moment), || false);
        rng.below(2) == 0
    };
    // Where its server hears nothing of the primary, or not the last of it, all others wait for its time to be up.
    if cluster.plan.seed.is_multiple_of(2) || a_moment() {
        cut(true);
    }
    a_moment();
    let name = world.name(writer);
    world.note(|| format!("{name} is killed"));
    world.kill(writer, false);
    cut(false);

    let killed = world.now();
    let (reader, session) = cluster.keeper_session(world);
    let (ended, longest) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::<Mutex<Duration>>::default(),
    );
    let readers = cells.rows.len();
    for (table, row) in cells.rows {
        let (session, ended, longest) = (session.clone(), ended.clone(), longest.clone());
        let reads = async move {
            read(&session, &table, &String::from_utf8_lossy(&row)).await;
            *longest.lock() = session.world.now().saturating_sub(killed);
            ended.fetch_add(1, Ordering::Relaxed);
        };
        world.spawn(reader, reads.boxed());
    }
    let all = || ended.load(Ordering::Relaxed) == readers;
    liveness::readers(world, cluster, all, || *longest.lock())
}
