//! One run: a cluster is started and loaded, things fail while clients work, everything is mended, and
//! then it has to be well again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::transport::BoxFuture;
use percolator_client::{Error, Table};
use percolator_protocol::types::acknowledged_column;

use crate::cluster::Cluster;
use crate::dead_server;
use crate::followed::Follower;
use crate::history::{Record, forget_others};
use crate::invariants::{errors, liveness};
use crate::lost_folder::lost_folder;
use crate::mutation;
use crate::nemesis;
use crate::network::Network;
use crate::orphan;
use crate::plan::Plan;
use crate::recorder::Session;
use crate::replaced::replaced;
use crate::rng::Rng;
use crate::servers::register::RegisterStore;
use crate::shown::shown;
use crate::trace::{Keep, Trace};
use crate::verified::verified;
use crate::workloads::{self, Workload, tagged};
use crate::world::{Failure, World};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// What happened.
    pub trace: Trace,
    /// The world's time at the end.
    pub simulated: Duration,
    /// What clients did.
    pub history: Vec<Record>,
    /// Terms of several oracles and masters that have begun.
    pub takeovers: u64,
    /// Those of masters that began with a copy in a folder.
    pub from_copies: u64,
}

impl Outcome {
    /// How many transactions were told to commit, and had no answer.
    pub fn lost_answers(&self) -> usize {
        self.history.iter().filter(|record| record.lost).count()
    }
}

thread_local! {
    /// Where and why this thread panicked.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics of runs are kept, not printed: they are failures with a trace. To be called once, before the
/// first run.
pub fn keep_panics() {
    panic::set_hook(Box::new(|info| {
        PANIC.set(Some(info.to_string()));
    }));
}

/// Carries out a plan.
pub fn run(plan: &Plan, keep: Keep) -> Outcome {
    carried_out(plan, keep, Arc::default())
}

/// The same until somebody sets `cut`, after which there is no outcome.
pub fn run_until(plan: &Plan, keep: Keep, cut: Arc<AtomicBool>) -> Option<Outcome> {
    let outcome = carried_out(plan, keep, cut.clone());
    (!cut.load(Ordering::Relaxed)).then_some(outcome)
}

fn carried_out(plan: &Plan, keep: Keep, cut: Arc<AtomicBool>) -> Outcome {
    mutation::begin(plan.mutation);
    let network = Network::new(Rng::new(plan.seed, "network"));
    let world = World::new(plan, network, Trace::new(keep), cut);
    let (mut history, mut store) = (Vec::new(), None::<Arc<RegisterStore>>);
    PANIC.set(None);
    // Whatever a panic leaves behind is dropped with the world.
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        carry_out(&world, plan, &mut history, &mut store)
    }));
    if result.is_err() {
        let why = PANIC.take().unwrap_or_else(|| "a panic".to_owned());
        world.fail("an assertion of the shipped code", why.replace('\n', " "));
    }
    let store = store.as_ref();
    let outcome = Outcome {
        failure: world.failure(),
        trace: world.take_trace(),
        simulated: world.now(),
        history,
        takeovers: store.map_or(0, |store| store.takeovers()),
        from_copies: store.map_or(0, |store| store.from_copies()),
    };
    world.end();
    outcome
}

fn carry_out(
    world: &Arc<World>,
    plan: &Plan,
    history: &mut Vec<Record>,
    store: &mut Option<Arc<RegisterStore>>,
) {
    let all = workloads::all();
    let chosen: Vec<Arc<dyn Workload>> = plan
        .workloads
        .iter()
        .filter_map(|name| all.iter().find(|workload| workload.name() == *name))
        .cloned()
        .collect();
    let cluster = Cluster::start(world, plan.clone(), chosen);
    store.clone_from(&cluster.store);
    let steps = prepare(world, &cluster)
        && disturb(world, &cluster)
        && recover(world, &cluster)
        && clear(world, &cluster)
        && look(world, &cluster)
        && write_everywhere(world, &cluster)
        && orphan::reads(world, &cluster)
        // What nobody has read of it.
        && clear(world, &cluster)
        && verified(world, &cluster)
        && shown(world, &cluster);
    *history = cluster.recorder.take();
    if steps && let Some(wrong) = errors::wrong(&cluster.recorder.conflicts(), history) {
        world.fail(errors::NAME, wrong);
        return;
    }
    if !steps {
        return;
    }
    // Collection starts from what is stored, or from what servers remember that have run for longer.
    let restarts_first = Rng::new(plan.seed, "restarts").below(2) == 0;
    if restarts_first {
        restart(world, &cluster);
    }
    let tables = keeper(world, &cluster, "naming tables", |session| {
        async move {
            let tables = session.client.tables().await?;
            Ok(tables
                .into_iter()
                .map(|table| (table.name, table.id))
                .collect::<BTreeMap<_, _>>())
        }
        .boxed()
    });
    let Some(mut tables) = tables else { return };
    let workloads = &cluster.workloads;
    tables.retain(|name, _| !workloads.iter().any(|workload| workload.is_left_out(name)));
    forget_others(history, &tables);
    let ended = world.watch.lock().end(history, &tables);
    if let Err((invariant, detail)) = ended {
        world.fail(invariant, detail);
        return;
    }
    if !collects(world, &cluster, tables.keys().next()) {
        return;
    }
    if !restarts_first {
        restart(world, &cluster);
    }
    let _ = world.failure().is_none() && replaced(world, &cluster) && lost_folder(world, &cluster);
}

/// Collection goes on while somebody follows this table, and then while a server is down.
fn collects(world: &Arc<World>, cluster: &Arc<Cluster>, table: Option<&String>) -> bool {
    let follower = table.and_then(|table| Follower::begin(world, cluster, table));
    let collects = world.failure().is_none() && liveness::collection(world, cluster);
    if let Some(follower) = follower {
        follower.end(world);
    }
    collects && dead_server::collection_goes_on(world, cluster)
}

/// Kills every tablet server: what is durable is what comes back.
fn restart(world: &Arc<World>, cluster: &Arc<Cluster>) {
    for server in cluster.tablet_numbers() {
        cluster.kill_server(world, server, Duration::ZERO, false);
    }
    world.run(world.now() + Duration::from_secs(1), || false);
}

fn prepare(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    let workloads = cluster.workloads.clone();
    keeper(world, cluster, "preparing", move |session| {
        let workloads = workloads.clone();
        async move {
            for workload in &workloads {
                for (table, cuts) in workload.tables() {
                    let cuts: Vec<_> = cuts.into_iter().map(bytes::Bytes::from).collect();
                    session.make_table(table, &cuts).await?;
                }
                workload.load(&session).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .is_some()
}

fn disturb(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    cluster.start_clients(world);
    nemesis::begin(world, cluster);
    world.run(world.now() + cluster.plan.faulty, || false);
    world.failure().is_none()
}

fn recover(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    cluster.set_healed();
    nemesis::heal(world, cluster);
    let goes_on = liveness::leader(world, cluster)
        && liveness::progress(world, cluster)
        && liveness::outage(world, cluster);
    if !goes_on {
        return false;
    }
    cluster.stop();
    liveness::ends(world, cluster)
}

/// Every lock goes when somebody meets it. What does not end is a failure, and where liveness isn't looked at, the run
/// goes on.
fn clear(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    keeper(world, cluster, "clearing locks", |session| {
        async move {
            let (deleting, tables): (Vec<Table>, Vec<Table>) = session
                .client
                .cluster()
                .await?
                .tables
                .into_iter()
                .partition(|table| table.deleting);
            loop {
                let mut locked = session.world.watch.lock().locked();
                // They go with the table.
                locked.retain(|(cell, _)| deleting.iter().all(|table| table.id != cell.table.0));
                let Some((cell, _)) = locked.first() else {
                    return Ok(());
                };
                let Some(table) = tables.iter().find(|table| table.id == cell.table.0) else {
                    return Err(Error::Invalid(format!("{cell} lies in no table")));
                };
                let txn = session.client.begin().await?;
                txn.get_for_update(&table.name, &cell.row, &cell.column)
                    .await?;
                // Where its owner counts as alive, later.
                if txn.commit().await.is_err() {
                    session.world.sleep(Duration::from_millis(200)).await;
                } else if let Some(column) = acknowledged_column(&cell.column) {
                    // To lock that cell was to acknowledge a change, for which nobody has run.
                    let rows = [cell.row.clone()];
                    session.client.notify(&table.name, column, &rows).await?;
                }
                session.client.settle().await;
            }
        }
        .boxed()
    });
    world.failure().is_none()
}

fn look(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    let workloads = cluster.workloads.clone();
    keeper(world, cluster, "looking", move |session| {
        let workloads = workloads.clone();
        async move {
            for workload in &workloads {
                if let Some(wrong) = workload.check(&session).await? {
                    let name = workload.invariants().first().copied();
                    session.world.fail(name.unwrap_or(workload.name()), wrong);
                }
            }
            session.client.settle().await;
            Ok(())
        }
        .boxed()
    });
    world.failure().is_none()
}

/// Every tablet of every table takes writes: workers may have been lucky in where they wrote. After all
/// else was looked at, because no workload expects these rows.
fn write_everywhere(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    keeper(world, cluster, "writing to every tablet", |session| {
        async move {
            let tables = session.client.tables().await?;
            for table in &tables {
                for tablet in &table.tablets {
                    let row = format!("{}!", String::from_utf8_lossy(&tablet.start_row));
                    let txn = session.begin().await?;
                    txn.put(&table.name, &row, "keeper", tagged(1, &session))?;
                    txn.commit().await?;
                }
            }
            session.client.settle().await;
            Ok(())
        }
        .boxed()
    });
    world.failure().is_none()
}

/// Has something done by the client that sees to things, again where it fails, within a bound.
pub(crate) fn keeper<T: Send + 'static>(
    world: &Arc<World>,
    cluster: &Arc<Cluster>,
    doing: &'static str,
    work: impl Fn(Session) -> BoxFuture<'static, Result<T, Error>> + Send + 'static,
) -> Option<T> {
    let result = Arc::new(Mutex::new(None));
    let done = Arc::new(AtomicBool::new(false));
    let last = Arc::new(Mutex::new(String::new()));
    let (node, session) = cluster.keeper_session(world);
    let task = {
        let (result, done, last) = (result.clone(), done.clone(), last.clone());
        async move {
            loop {
                match work(session.clone()).await {
                    Ok(value) => break *result.lock() = Some(value),
                    Err(error) => *last.lock() = error.to_string(),
                }
                session.world.sleep(Duration::from_millis(100)).await;
            }
            done.store(true, Ordering::Relaxed);
        }
    };
    world.spawn(node, task.boxed());
    let is_done = || done.load(Ordering::Relaxed);
    if !liveness::serves(world, cluster, doing, is_done, || last.lock().clone()) {
        return None;
    }
    Option::take(&mut result.lock())
}
