//! An oracle's process: `tso::granting`, and around it what `tso/src/keeper.rs`, `leadership.rs` and `service.rs` do. One
//! that is alone has its limit in its folder. Of several, `server::leadership` runs each one's part of the election.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use parking_lot::Mutex;
use percolator_protocol::election::mutants::{self, ElectionMutant};
use percolator_protocol::election::{
    Command, Leadership, Member, OracleReplica, RoleKind, StoredLeadership, SwapResult,
};
use percolator_protocol::oracle::{Now, Settings};
use percolator_protocol::types::Timestamp;
use percolator_register::{Register, SwapError};
use percolator_server::{DurableValue, SmallFile, leadership};
use percolator_tso::core::{Core, Store};
use percolator_tso::granting::{Granting, Reply};
use percolator_wire::v1;
use tokio::sync::Notify;

use crate::disk::SimDisk;
use crate::messages::{Answer, Ask, Caller};
use crate::rng::{Dice, Rng};
use crate::servers::register::ORACLES;
use crate::servers::replica::Replicated;
use crate::servers::{Lives, STEPS, Way, cant_read, exit, heartbeats};
use crate::watch::Seen;
use crate::world::{NodeId, World};

/// Where clients reach an oracle.
pub fn address(name: &str) -> String {
    format!("{name}:7401")
}
/// How long a write of the limit takes on a disk that is well.
pub const WRITE: Duration = Duration::from_millis(4);

/// An oracle: what outlives its processes.
pub struct Oracle {
    /// Its process.
    pub node: NodeId,
    /// Its stable name.
    pub name: String,
    /// The master's process.
    pub master: NodeId,
    /// Its folder.
    pub disk: SimDisk,
    /// Its bounds.
    pub settings: Settings,
    /// How long a write of the limit takes, about.
    pub write: Mutex<Duration>,
    /// Processes that had its folder.
    pub lives: Arc<Lives>,
    /// The cluster that one of several belongs to, as its folder has it.
    pub cluster_id: Mutex<Option<String>>,
    /// Incarnations, and how long the disk takes.
    pub dice: Dice,
    /// None: it is alone.
    pub replicated: Option<Replicated>,
    /// The process that runs.
    pub running: Mutex<Option<Arc<Running>>>,
}

/// What a process has in memory.
pub struct Running {
    state: Mutex<State>,
    /// A request waits for a limit.
    exhausted: Notify,
    /// It hands over, and takes part in the election no more.
    stop: Notify,
}

struct State {
    granting: Granting,
    waiting: Vec<(Caller, u32)>,
    /// A limit that is being written.
    writing: Option<Store>,
    /// The master has accepted this process.
    is_accepted: bool,
    /// By the register's value; 0: it is alone, or has not read it yet.
    register_id: u64,
    /// What the clock said when it was read last.
    last_clock: Now,
    /// Another process is started so long after this one was told to end.
    down: Duration,
}

impl Oracle {
    /// This start, as the other oracles know it. It takes no promises, and gives none.
    fn member(&self, incarnation: u64) -> Member {
        Member {
            name: self.name.clone(),
            address: address(&self.name),
            incarnation,
            replica: 0,
        }
    }

    /// Starts the process.
    pub fn boot(self: &Arc<Self>, world: &Arc<World>) {
        let incarnation = self.dice.of("incarnations", Rng::next).max(1);
        let granting = match &self.replicated {
            None => {
                let stored = match self.limit().load() {
                    Ok(stored) => stored,
                    Err(error) => {
                        let oracle = self.clone();
                        let again = move |world: &Arc<World>| oracle.boot(world);
                        return cant_read(world, self.node, &error, again);
                    }
                };
                let now = self.now(world);
                let mut core = match Core::recover(stored.as_deref(), now, self.settings) {
                    Ok(core) => core,
                    Err(error) => return world.fail("the oracle starts", error.to_string()),
                };
                core.obey_master();
                Granting::Alone(core)
            }
            Some(replicated) => {
                let member = self.member(incarnation);
                let (dead, timing) = (self.lives.dead(), replicated.timing);
                let replica = OracleReplica::new(member, dead, timing, self.settings);
                Granting::Replica(Box::new(replica))
            }
        };
        let running = Arc::new(Running {
            state: Mutex::new(State {
                granting,
                waiting: Vec::new(),
                writing: None,
                is_accepted: false,
                register_id: 0,
                last_clock: self.now(world),
                down: Duration::ZERO,
            }),
            exhausted: Notify::new(),
            stop: Notify::new(),
        });
        let handler = {
            let (oracle, running) = (self.clone(), running.clone());
            Arc::new(move |world: &Arc<World>, caller, ask| {
                if let Ask::Timestamps(count) = ask {
                    oracle.request(world, &running, caller, count);
                }
            })
        };
        let at_kill = {
            let (oracle, running) = (self.clone(), running.clone());
            Box::new(move |_: &Arc<World>| {
                *oracle.running.lock() = None;
                if let Some(store) = running.state.lock().writing.take() {
                    oracle.disk.die_within(STEPS);
                    // Nobody is there to hear of it.
                    let _ = oracle.limit().store(&store.value());
                }
                oracle.disk.crash();
            })
        };
        world.start(self.node, Some(handler), at_kill);
        *self.running.lock() = Some(running.clone());
        match &self.replicated {
            None => {
                self.keep(world, running.clone());
                self.beat(world, running, incarnation);
            }
            Some(replicated) => {
                let part = Part {
                    oracle: self.clone(),
                    world: world.clone(),
                    register: replicated.register(world, self.node, ORACLES, &self.dice),
                    replicated: replicated.clone(),
                    running,
                };
                world.spawn(self.node, part.run(incarnation).boxed());
            }
        }
    }

    /// Stores limits in the folder before they are reached.
    fn keep(self: &Arc<Self>, world: &Arc<World>, running: Arc<Running>) {
        let (oracle, world2) = (self.clone(), world.clone());
        let keeper = async move {
            let interval = Duration::from_millis((oracle.settings.window_ms / 8).max(1));
            loop {
                oracle.extend(&world2, &running).await;
                world2.sleep_on(oracle.node, interval).await;
            }
        };
        world.spawn(self.node, keeper.boxed());
    }

    /// Sends heartbeats, and takes in what the master answers.
    fn beat(self: &Arc<Self>, world: &Arc<World>, running: Arc<Running>, incarnation: u64) {
        let sent_ms = Arc::new(Mutex::new(0));
        let beat = {
            let (oracle, world, running) = (self.clone(), world.clone(), running.clone());
            let sent_ms = sent_ms.clone();
            move || {
                let now = oracle.now(&world);
                *sent_ms.lock() = now.mono_ms;
                let mut state = running.state.lock();
                let reached = state.granting.reached(now);
                let replica = state.granting.replica();
                let leads = replica.filter(|it| it.leads(now)).map(|it| it.term());
                v1::HeartbeatRequest {
                    cluster_id: oracle.cluster_id.lock().clone().unwrap_or_default(),
                    role: v1::Role::Oracle.into(),
                    server: oracle.name.clone(),
                    address: address(&oracle.name),
                    incarnation,
                    high_ts: reached.limit.as_u64(),
                    time: reached.time.as_u64(),
                    oracle_register: state.register_id,
                    leads_term: leads.unwrap_or(0),
                    ..v1::HeartbeatRequest::default()
                }
            }
        };
        let learn = {
            let (oracle, world) = (self.clone(), world.clone());
            move |told: &v1::HeartbeatResponse| {
                let above = Timestamp::from_u64(told.timestamps_above);
                let sent_ms = *sent_ms.lock();
                {
                    let mut state = running.state.lock();
                    let lease_ms = told.lease_ms.into();
                    state.granting.heard(sent_ms, lease_ms, above);
                    state.is_accepted = true;
                }
                oracle.answer_waiting(&world, &running);
            }
        };
        let adopt = {
            let oracle = self.clone();
            move |id: &str| {
                if oracle.replicated.is_some() {
                    *oracle.cluster_id.lock() = Some(id.to_owned());
                }
            }
        };
        let refused = {
            let (oracle, world) = (self.clone(), world.clone());
            move |why: &str| oracle.exit(&world, why)
        };
        let beats = heartbeats(
            world.clone(),
            Way {
                from: self.node,
                to: self.master,
            },
            self.lives.clone(),
            beat,
            adopt,
            learn,
            refused,
        );
        world.spawn(self.node, beats.boxed());
    }

    fn limit(&self) -> SmallFile {
        SmallFile::on(Arc::new(self.disk.clone()), "limit")
    }

    fn now(&self, world: &Arc<World>) -> Now {
        world.clock(self.node, |clock, now_us| Now {
            unix_ms: clock.wall_us(now_us) / 1_000,
            mono_ms: clock.mono_us(now_us) / 1_000,
        })
    }

    /// Whether this process leads now, by its own clock; one that is alone does.
    pub fn leads(&self, world: &Arc<World>) -> bool {
        let Some(running) = self.running.lock().clone() else {
            return false;
        };
        let now = self.now(world);
        let mut state = running.state.lock();
        state
            .granting
            .replica()
            .is_none_or(|replica| replica.leads(now))
    }

    /// A request has come.
    fn request(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Arc<Running>,
        caller: Caller,
        count: u32,
    ) {
        if !self.answer(world, running, caller, count) {
            return;
        }
        if self.replicated.is_some() {
            running.exhausted.notify_one();
        } else {
            let (oracle, world2, running) = (self.clone(), world.clone(), running.clone());
            let extend = async move { oracle.extend(&world2, &running).await };
            world.spawn(self.node, extend.boxed());
        }
    }

    /// Answers a request, or lets it wait for a limit; whether it waits.
    fn answer(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Arc<Running>,
        caller: Caller,
        count: u32,
    ) -> bool {
        let (reply, term) = {
            let mut state = running.state.lock();
            if self.replicated.is_some() && !state.is_accepted {
                // Nobody connects before that.
                state.waiting.push((caller, count));
                return false;
            }
            let now = self.now(world);
            let clock = if mutants::on(ElectionMutant::ClockBeforeRequest) {
                state.last_clock
            } else {
                now
            };
            state.last_clock = now;
            let reply = state.granting.request(clock, count);
            let replica = state.granting.replica();
            (reply, replica.map(|replica| replica.term()))
        };
        match reply {
            Ok(Reply::Granted(granted)) => {
                if let Some(term) = term {
                    let (role, server) = ("oracle", &*self.name);
                    world.see(&Seen::Led { role, server, term });
                }
                world.see(&Seen::Granted(granted));
                world.reply(self.node, caller, Answer::Timestamps(granted));
                false
            }
            Ok(Reply::Wait) => {
                running.state.lock().waiting.push((caller, count));
                true
            }
            Ok(Reply::NotLeader(leader)) => {
                world.reply(self.node, caller, Answer::NotLeader(leader));
                false
            }
            Ok(Reply::RightEnded) => {
                world.reply(self.node, caller, Answer::NotLeader(None));
                false
            }
            Err(refused) => {
                world.fail("the oracle answers", refused.to_string());
                false
            }
        }
    }

    fn answer_waiting(self: &Arc<Self>, world: &Arc<World>, running: &Arc<Running>) {
        let waiting = std::mem::take(&mut running.state.lock().waiting);
        for (caller, count) in waiting {
            if self.replicated.is_some() {
                self.answer(world, running, caller, count);
            } else {
                self.request(world, running, caller, count);
            }
        }
    }

    /// Makes a limit durable in the folder, if one is due, and answers those who waited for it.
    async fn extend(self: &Arc<Self>, world: &Arc<World>, running: &Arc<Running>) {
        let store = {
            let mut state = running.state.lock();
            let Some(store) = state.granting.store(self.now(world)) else {
                return;
            };
            state.writing = Some(store);
            store
        };
        let takes = {
            let write = *self.write.lock();
            self.dice.of("writes", |rng| rng.about(write))
        };
        world.sleep(takes).await;
        running.state.lock().writing = None;
        match self.limit().store(&store.value()) {
            Ok(()) => {
                let now = self.now(world);
                running.state.lock().granting.stored(now, store);
            }
            Err(_) => {
                running.state.lock().granting.not_stored();
                // Anyone who waits is answered with the next look.
                return;
            }
        }
        self.answer_waiting(world, running);
    }

    /// The process is told to end in order: SIGTERM. It hands over, ends, and is started again after this time. One that is
    /// alone has nothing to hand over.
    pub fn hand_over(&self, world: &Arc<World>, down: Duration) {
        if let (Some(running), Some(_)) = (&*self.running.lock(), &self.replicated) {
            world.note(|| format!("{} is told to end", self.name));
            running.state.lock().down = down;
            running.stop.notify_one();
        }
    }

    /// Ends this process, unless it has ended already; another one is started after this time.
    fn end(self: &Arc<Self>, world: &Arc<World>, down: Duration) {
        let (oracle, life) = (self.clone(), world.life(self.node));
        let end = move |world: &Arc<World>| {
            if world.is_up(oracle.node) && world.life(oracle.node) == life {
                world.kill(oracle.node, false);
                let boot = move |world: &Arc<World>| oracle.boot(world);
                world.at(down, Box::new(boot));
            }
        };
        world.at(Duration::ZERO, Box::new(end));
    }

    /// Ends the process; it is started again.
    pub fn exit(self: &Arc<Self>, world: &Arc<World>, why: &str) {
        let oracle = self.clone();
        exit(world, self.node, why, move |world| oracle.boot(world));
    }
}

/// A process's part in the election.
struct Part {
    oracle: Arc<Oracle>,
    world: Arc<World>,
    register: Arc<dyn Register>,
    replicated: Replicated,
    running: Arc<Running>,
}

impl Part {
    /// Takes part in the election until the process is told to end; then it hands over, and ends.
    async fn run(self, incarnation: u64) {
        {
            let taking_part = pin!(self.take_part(incarnation));
            let stop = pin!(self.running.stop.notified());
            // The command under way is dropped.
            select(taking_part, stop).await;
        }
        self.replica(|replica, now| {
            replica.hand_over();
            replica.abandon(now);
        });
        let (world, node) = (&self.world, self.oracle.node);
        let left = async {
            while self.replica(|replica, _| replica.role()) != Some(RoleKind::Left) {
                leadership::drive(&*self.register, &self).await;
                self.oracle.answer_waiting(world, &self.running);
                world.sleep_on(node, self.replicated.poll()).await;
            }
        };
        let given_up = world.sleep_on(node, self.replicated.hand_over_max());
        select(pin!(left), given_up).await;
        self.oracle.answer_waiting(world, &self.running);
        let down = self.running.state.lock().down;
        self.oracle.end(world, down);
    }

    /// Never ends.
    async fn take_part(&self, incarnation: u64) {
        let (world, node) = (&self.world, self.oracle.node);
        let poll = self.replicated.poll();
        let register_id = self.begin(incarnation).await;
        self.running.state.lock().register_id = register_id;
        self.oracle.beat(world, self.running.clone(), incarnation);
        // A process of another cluster grants nothing.
        while !self.running.state.lock().is_accepted {
            world.sleep_on(node, poll).await;
        }
        loop {
            leadership::drive(&*self.register, self).await;
            self.oracle.answer_waiting(world, &self.running);
            let exhausted = pin!(self.running.exhausted.notified());
            select(world.sleep_on(node, poll), exhausted).await;
        }
    }

    /// Which register it is. One without a value gets its first one.
    async fn begin(&self, incarnation: u64) -> u64 {
        loop {
            match self.register.load().await {
                Ok(Some(found)) => match Leadership::decode(&found.value) {
                    Ok(value) => return value.register,
                    Err(error) => self.world.fail("the oracle starts", error.to_string()),
                },
                Ok(None) => {
                    let first = Leadership::first(incarnation, Timestamp::ZERO);
                    // Another oracle may be first: a load shows whose value it is.
                    let _ = self.register.swap(None, first.encode()).await;
                    continue;
                }
                Err(_) => {}
            }
            let pause = Duration::from_millis(self.replicated.timing.retry_ms);
            self.world.sleep_on(self.oracle.node, pause).await;
        }
    }

    fn replica<T>(&self, act: impl FnOnce(&mut OracleReplica, Now) -> T) -> Option<T> {
        let now = self.oracle.now(&self.world);
        let mut state = self.running.state.lock();
        state.last_clock = now;
        state.granting.replica().map(|replica| act(replica, now))
    }
}

impl leadership::Replica for Part {
    fn poll(&self) -> Option<Command> {
        self.replica(|replica, now| replica.poll(now)).flatten()
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        self.replica(|replica, now| replica.loaded(now, result.map_err(drop)));
        self.oracle.answer_waiting(&self.world, &self.running);
    }

    fn swapped(&self, result: SwapResult, _: Option<&SwapError>, _: Duration) {
        self.replica(|replica, now| replica.swapped(now, result));
        self.oracle.answer_waiting(&self.world, &self.running);
    }
}
