//! The processes of a run: servers that are started again when they die, and clients with workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;
use percolator_protocol::oracle::Settings;

use crate::disk::SimDisk;
use crate::invariants::errors;
use crate::library::Library;
use crate::moves;
use crate::mutation::Mutation;
use crate::plan::{Fault, Plan};
use crate::recorder::{Recorder, Session};
use crate::rng::{Dice, Rng};
use crate::servers::master::{self, Master};
use crate::servers::oracle::{self, Oracle};
use crate::servers::register::RegisterStore;
use crate::servers::replica::Replicated;
use crate::servers::tablet::{self, Tablet};
use crate::transport::Highest;
use crate::workloads::{TableSpec, Workload, names, past};
use crate::world::{NodeId, World};

/// How long a sync takes, about, on a disk that is well.
pub const SYNC: Duration = Duration::from_millis(2);
/// How long a worker pauses that has little to do, about.
const CALM_THINK: Duration = Duration::from_millis(100);

/// Everything that runs.
pub struct Cluster {
    /// What the run is to be.
    pub plan: Plan,
    /// The oracles.
    pub oracles: Vec<Arc<Oracle>>,
    /// The registers of those that are several.
    pub store: Option<Arc<RegisterStore>>,
    /// The masters.
    pub masters: Vec<Arc<Master>>,
    /// The tablet servers, each where it was started last.
    pub(crate) tablets: Vec<Mutex<Arc<Tablet>>>,
    /// Processes of those that were started elsewhere since.
    pub(crate) left_behind: Mutex<Vec<NodeId>>,
    /// Tablet servers, by number, about which the master is being told that they are to have no tablets, or may have some.
    pub(crate) draining: Mutex<BTreeSet<usize>>,
    /// Tablet servers that run on older folders, by number: as they are to be again.
    pub(crate) set_aside: Mutex<BTreeMap<usize, Arc<Tablet>>>,
    /// Tablet servers as they are with their own folders, which have each other's now.
    pub(crate) swapped: Mutex<BTreeMap<usize, Arc<Tablet>>>,
    /// What workers do.
    pub workloads: Vec<Arc<dyn Workload>>,
    /// What they did.
    pub recorder: Arc<Recorder>,
    /// The names of all workloads that there are.
    names: Vec<&'static str>,
    tables: Vec<TableSpec>,
    pub(crate) clients: Vec<NodeId>,
    /// The client that prepares, and looks in the end.
    pub(crate) keeper: NodeId,
    pub(crate) highest: Highest,
    /// Transactions of each worker that are committed and have written or locked something.
    progress: Vec<Arc<AtomicU64>>,
    /// How many steps of each workload have ended well.
    done: Vec<AtomicU64>,
    /// Workers that work.
    working: AtomicU64,
    /// Those of each client's process.
    here: Vec<Mutex<Arc<AtomicU64>>>,
    stopping: AtomicBool,
    healed: AtomicBool,
    /// Workers have little to do.
    calm: AtomicBool,
    /// How often each process, or burst, was begun: each life has dice of its own.
    lives: Mutex<BTreeMap<String, u64>>,
}

impl Cluster {
    /// Makes the processes, and starts the servers.
    pub fn start(world: &Arc<World>, plan: Plan, workloads: Vec<Arc<dyn Workload>>) -> Arc<Self> {
        let rng = |name: &str| Rng::new(plan.seed, name);
        let replicas = &plan.replicas;
        let name = |several: bool, one, first| if several { first } else { one };
        let master_node = world.add_node(name(replicas.masters > 1, "master", "master-0"));
        let oracle_node = world.add_node(name(replicas.oracles > 1, "oracle", "tso-0"));
        let highest = Highest::default();
        let tablets: Vec<Mutex<Arc<Tablet>>> = (0..plan.tablet_servers)
            .map(|number| {
                let name = format!("tablet-{number}");
                let node = world.add_node(&name);
                world.network.lock().listen(&tablet::address(&name), node);
                let highest = highest.clone();
                let tablet = new_tablet(name, node, master_node, highest, &plan);
                Mutex::new(Arc::new(tablet))
            })
            .collect();
        let here = (0..plan.clients).map(|_| Mutex::default()).collect();
        let clients = (0..plan.clients)
            .map(|number| world.add_node(&format!("client-{number}")))
            .collect();
        let keeper = world.add_node("keeper");
        let store = plan.replicas.are_several().then(|| {
            let node = world.add_node("register");
            Arc::new(RegisterStore::new(node, Dice::new(rng("register"))))
        });
        let replicated = store.as_ref().map(|store| Replicated {
            store: store.clone(),
            timing: plan.replicas.timing,
            timeout: plan.replicas.timeout,
            oracles: Arc::default(),
            promises: plan.replicas.promises,
            mutation: plan.mutation,
        });
        let oracles = new_oracles(
            world,
            &plan,
            (master_node, oracle_node),
            replicated.as_ref(),
        );
        let masters = new_masters(world, &plan, master_node, replicated.as_ref(), &highest);
        let cluster = Arc::new(Self {
            progress: (0..plan.clients * plan.workers)
                .map(|_| Arc::default())
                .collect(),
            plan,
            oracles,
            store,
            masters,
            tablets,
            left_behind: Mutex::default(),
            draining: Mutex::default(),
            set_aside: Mutex::default(),
            swapped: Mutex::default(),
            names: names(&workloads),
            done: workloads.iter().map(|_| AtomicU64::new(0)).collect(),
            tables: workloads
                .iter()
                .flat_map(|workload| workload.tables())
                .collect(),
            workloads,
            recorder: Arc::default(),
            clients,
            keeper,
            highest,
            working: AtomicU64::new(0),
            here,
            stopping: AtomicBool::new(false),
            healed: AtomicBool::new(false),
            calm: AtomicBool::new(false),
            lives: Mutex::default(),
        });
        cluster.break_disks();
        cluster.boot(world);
        cluster
    }

    fn boot(&self, world: &Arc<World>) {
        if let Some(store) = &self.store {
            store.boot(world);
        }
        for master in &self.masters {
            master.boot(world);
        }
        for oracle in &self.oracles {
            oracle.boot(world);
        }
        let at_first = self.plan.tablet_servers_at_first();
        for tablet in self.tablets().into_iter().take(at_first) {
            tablet.boot(world);
        }
        world.start(self.keeper, None, Box::new(|_| {}));
    }

    /// The tablet servers, where they are now.
    pub fn tablets(&self) -> Vec<Arc<Tablet>> {
        let tablets = self.tablets.iter();
        tablets.map(|tablet| tablet.lock().clone()).collect()
    }

    pub(crate) fn tablet(&self, number: usize) -> Arc<Tablet> {
        self.tablets[number].lock().clone()
    }

    /// A client's process.
    pub fn client_node(&self, client: usize) -> NodeId {
        self.clients[client]
    }

    /// Kills a client, which is started again after this time.
    pub fn kill_client(self: &Arc<Self>, world: &Arc<World>, client: usize, down: Duration) {
        let node = self.clients[client];
        if !world.is_up(node) {
            return;
        }
        let name = world.name(node);
        world.note(|| format!("{name} is killed"));
        world.kill(node, false);
        let cluster = self.clone();
        world.at(
            down,
            Box::new(move |world| cluster.start_client(world, client)),
        );
    }

    /// Starts all clients.
    pub fn start_clients(self: &Arc<Self>, world: &Arc<World>) {
        for client in 0..self.clients.len() {
            self.start_client(world, client);
        }
    }

    fn start_client(self: &Arc<Self>, world: &Arc<World>, client: usize) {
        let node = self.clients[client];
        if world.is_up(node) || self.is_stopping() {
            return;
        }
        let here = Arc::new(AtomicU64::new(0));
        let at_kill = {
            let (cluster, here) = (self.clone(), here.clone());
            Box::new(move |_: &Arc<World>| {
                let gone = here.swap(0, Ordering::Relaxed);
                cluster.working.fetch_sub(gone, Ordering::Relaxed);
            })
        };
        world.start(node, None, at_kill);
        let life = self.life(&format!("client-{client}"));
        let library = self.library(world, node, &life);
        for worker in 0..self.plan.workers {
            let name = format!("client-{client}.{worker}");
            let number = client * self.plan.workers + worker;
            let session = Session {
                // Of those that only read, the client never hears that a server has moved.
                only_reads: self.plan.has(Fault::TwoProcesses)
                    && client > 0
                    && client + 1 == self.clients.len(),
                wrote: self.progress[number].clone(),
                ..self.session(world, library.clone(), name, &life)
            };
            self.start_worker(node, &here, session, None);
        }
        *self.here[client].lock() = here;
    }

    /// Starts a worker in a client's process, where `here` counts them.
    fn start_worker(
        self: &Arc<Self>,
        node: NodeId,
        here: &Arc<AtomicU64>,
        session: Session,
        until: Option<Duration>,
    ) {
        self.working.fetch_add(1, Ordering::Relaxed);
        here.fetch_add(1, Ordering::Relaxed);
        let (cluster, here) = (self.clone(), here.clone());
        let world = session.world.clone();
        let work = async move {
            cluster.work(&session, until).await;
            session.client.settle().await;
            here.fetch_sub(1, Ordering::Relaxed);
            cluster.working.fetch_sub(1, Ordering::Relaxed);
        };
        world.spawn(node, work.boxed());
    }

    /// So many more workers for a moment, in a client.
    pub fn burst(self: &Arc<Self>, world: &Arc<World>, client: usize, workers: usize) {
        let node = self.clients[client];
        if !world.is_up(node) || self.is_stopping() {
            return;
        }
        let here = self.here[client].lock().clone();
        world.note(|| format!("a burst of {workers} workers"));
        let life = self.life("burst");
        let library = self.library(world, node, &life);
        for worker in 0..workers {
            let name = format!("{life}.{worker}");
            let session = self.session(world, library.clone(), name, &life);
            let until = world.now() + Duration::from_millis(300);
            self.start_worker(node, &here, session, Some(until));
        }
    }

    async fn work(&self, session: &Session, until: Option<Duration>) {
        let [choices, pasts, pauses, turns, settles] =
            ["choices", "pasts", "pauses", "turns", "settles"].map(|name| session.with_dice(name));
        let mut begun = vec![0_u64; self.workloads.len()];
        let mut snapshots = Vec::new();
        let mut attempts = session.client.attempts();
        let over = || until.is_some_and(|until| session.world.now() >= until);
        while !self.is_stopping() && !over() {
            let (began, mut doing) = (session.world.now(), "a look at the past".to_owned());
            let result = if session.only_reads && !self.is_healed() {
                let newest = *self.highest.lock();
                past::read(&pasts, &self.tables, &[newest]).await
            } else if !snapshots.is_empty() && pasts.below(12) == 0 {
                past::read(&pasts, &self.tables, &snapshots).await
            } else {
                let chosen = self.choose(&choices);
                let workload = &self.workloads[chosen];
                // What a worker does of one workload is the same whichever others there are, and however the steps
                // before have ended.
                begun[chosen] += 1;
                let name = format!("{} {}", workload.name(), begun[chosen]);
                let (dice, ends) = (
                    session.with_dice(&name),
                    session.with_dice(&format!("{name} ends")),
                );
                doing = name;
                let step = workload.step(&dice);
                let ended = if ends.below(25) == 0 {
                    self.give_up(&ends, step).await
                } else {
                    step.await
                };
                self.done[chosen].fetch_add(u64::from(ended.is_ok()), Ordering::Relaxed);
                ended
            };
            // Behind them some servers are killed on purpose.
            if !self.is_stopping() && !session.world.has_outage.load(Ordering::Relaxed) {
                let took = session.world.now() - began;
                errors::look(session, &doing, result.as_ref().copied(), took);
            }
            if pasts.below(12) == 0 {
                snapshots.push(*self.highest.lock());
            }
            let mut goes_on = false;
            if let Err(error) = result {
                session.world.note(|| format!("{}: {error}", session.name));
                let began = *self.highest.lock();
                goes_on = turns.below(2) == 0 && attempts.again(began, &error).await;
            }
            if settles.below(30) == 0 {
                // Other workers of this process go on.
                session.client.settle().await;
            }
            if !goes_on {
                attempts = session.client.attempts();
            }
            // Nobody asks without a pause: an application does something too.
            let think = if self.calm.load(Ordering::Relaxed) {
                self.plan.think.max(CALM_THINK)
            } else {
                self.plan.think
            };
            let pause = pauses.rng.lock().about(think);
            session.world.sleep(pause).await;
        }
    }

    /// One of the run's workloads, drawn of all that there are: without one of them the others are chosen as before.
    fn choose(&self, choices: &Session) -> usize {
        loop {
            let name = choices.rng.lock().pick(&self.names);
            let ours = |workload: &Arc<dyn Workload>| workload.name() == *name;
            if let Some(chosen) = self.workloads.iter().position(ours) {
                return chosen;
            }
        }
    }

    /// An application that doesn't wait for the end of what it does, at some time or other.
    async fn give_up(
        &self,
        session: &Session,
        step: BoxFuture<'_, Result<(), Error>>,
    ) -> Result<(), Error> {
        let waits = session.rng.lock().about(Duration::from_millis(8));
        match select(step, session.world.sleep(waits)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(Error::Ended),
        }
    }

    /// A session of the process that prepares and looks.
    pub fn keeper_session(self: &Arc<Self>, world: &Arc<World>) -> (NodeId, Session) {
        let life = self.life("keeper");
        let library = self.library(world, self.keeper, &life);
        let session = self.session(world, library, "keeper".to_owned(), &life);
        (self.keeper, session)
    }

    /// A session of a client's process that has come to its end, or is started for it.
    pub fn last_session(self: &Arc<Self>, world: &Arc<World>) -> (NodeId, Session) {
        let node = self.clients[0];
        if !world.is_up(node) {
            world.start(node, None, Box::new(|_| {}));
        }
        let life = self.life("client-0");
        let library = self.library(world, node, &life);
        let session = self.session(world, library, "client-0.last".to_owned(), &life);
        (node, session)
    }

    /// A name for the next life of a process, or burst.
    pub(crate) fn life(&self, name: &str) -> String {
        let mut lives = self.lives.lock();
        let life = lives.entry(name.to_owned()).or_default();
        *life += 1;
        format!("{name}-{life}")
    }

    fn session(&self, world: &Arc<World>, library: Library, name: String, life: &str) -> Session {
        let rng = Rng::new(self.plan.seed, &format!("session {name} of {life}"));
        Session {
            world: world.clone(),
            client: library.client,
            open: library.open,
            recorder: self.recorder.clone(),
            rng: Arc::new(Mutex::new(rng)),
            name,
            only_reads: false,
            few_keys: self.plan.few_keys,
            is_covered: self.plan.covers_all(),
            is_healthy: self.plan.is_healthy(),
            wrote: Arc::default(),
        }
    }

    /// How many transactions of each worker are committed and have written or locked something.
    pub fn progress(&self) -> Vec<u64> {
        self.progress
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }

    /// How many steps of each workload have ended well, with its name.
    pub fn done(&self) -> Vec<(&'static str, u64)> {
        let names = self.workloads.iter().map(|workload| workload.name());
        let done = self.done.iter().map(|done| done.load(Ordering::Relaxed));
        names.zip(done).collect()
    }

    /// Workers that still work.
    pub fn working(&self) -> u64 {
        self.working.load(Ordering::Relaxed)
    }

    /// Workers end with what they do now.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// No more faults.
    pub fn set_healed(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    /// Whether there are no more faults.
    pub fn is_healed(&self) -> bool {
        self.healed.load(Ordering::Relaxed)
    }

    /// Whether workers have little to do from now on: where it matters who leads, and not what is written.
    pub(crate) fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// One oracle that is alone, or several of a register.
fn new_oracles(
    world: &Arc<World>,
    plan: &Plan,
    (master, first): (NodeId, NodeId),
    replicated: Option<&Replicated>,
) -> Vec<Arc<Oracle>> {
    let rng = |name: &str| Rng::new(plan.seed, name);
    let window_ms = [50, 400, 3_000][rng("window").below(3) as usize];
    let oracle = |number: usize| {
        let name = format!("tso-{number}");
        let (stream, node) = match number {
            0 => ("oracle", first),
            _ => (name.as_str(), world.add_node(&name)),
        };
        world.network.lock().listen(&oracle::address(&name), node);
        Arc::new(Oracle {
            node,
            master,
            disk: SimDisk::new(&rng(&format!("{stream}'s disk"))),
            settings: Settings {
                window_ms,
                // Its clock jumps by hours, again and again.
                stopped_ms_max: 365 * 24 * 60 * 60 * 1_000,
                ..Settings::default()
            },
            lives: Arc::default(),
            write: Mutex::new(oracle::WRITE),
            hangs_until: Mutex::default(),
            dice: Dice::new(rng(stream)),
            replicated: replicated.filter(|_| plan.replicas.oracles > 1).cloned(),
            running: Mutex::new(None),
            cluster_id: Mutex::new(None),
            name,
        })
    };
    (0..plan.replicas.oracles).map(oracle).collect()
}

/// A master that is alone, or several of a register.
fn new_masters(
    world: &Arc<World>,
    plan: &Plan,
    first: NodeId,
    replicated: Option<&Replicated>,
    highest: &Highest,
) -> Vec<Arc<Master>> {
    let rng = |name: &str| Rng::new(plan.seed, name);
    let master = |number: usize| {
        let name = format!("master-{number}");
        let (stream, node) = match number {
            0 => ("master", first),
            _ => (name.as_str(), world.add_node(&name)),
        };
        let address = master::address(number);
        world.network.lock().listen(&address, node);
        Arc::new(Master {
            number,
            node,
            disk: SimDisk::new(&rng(&format!("{stream}'s disk"))),
            dice: Dice::new(rng(stream)),
            die_ppm: Mutex::new(0),
            write: Mutex::new(oracle::WRITE),
            hangs_until: Mutex::default(),
            begun: AtomicBool::new(false),
            cluster_id: Mutex::new(None),
            tablet_servers: Mutex::new(
                (0..plan.tablet_servers_at_first())
                    .map(|number| format!("tablet-{number}"))
                    .collect(),
            ),
            settings: Mutex::new(moves::settings(plan)),
            highest: highest.clone(),
            two_owners: plan.mutation == Some(Mutation::TwoOwners),
            mutation: plan.mutation,
            replicated: replicated.filter(|_| plan.replicas.masters > 1).cloned(),
            before: Mutex::default(),
            elected: Mutex::new(None),
        })
    };
    (0..plan.replicas.masters).map(master).collect()
}

fn new_tablet(name: String, node: NodeId, master: NodeId, highest: Highest, plan: &Plan) -> Tablet {
    let rng = |name: &str| Rng::new(plan.seed, name);
    Tablet {
        node,
        master,
        image: (rng("stores").below(2) == 0).then(Arc::default),
        disk: SimDisk::new(&rng(&format!("{name}'s disk"))),
        dice: Dice::new(rng(&name)),
        address: tablet::address(&name),
        highest,
        retired: AtomicBool::new(false),
        name,
        sync: Mutex::new(SYNC),
        limits: plan.limits,
        stall_max: plan.stall_max,
        window_us: plan.window_us,
        cluster_id: Mutex::new(None),
        lives: Arc::default(),
        maybe: Mutex::default(),
        running: Mutex::new(None),
        older: false,
        tears: plan.mutation == Some(Mutation::TornBatch),
        waits_for_ever: plan.mutation == Some(Mutation::StallIgnored),
        takes_any_folder: plan.mutation == Some(Mutation::FolderOfAnotherTaken),
    }
}
