//! An oracle's process around `tso::granting`. One that is alone has its limit in its folder, which the shipped keeper extends. One
//! of several takes part in an election (`elected_oracle`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_protocol::election::mutants::{self, ElectionMutant};
use percolator_protocol::election::{Member, OracleReplica, PromiseRecord, RoleKind};
use percolator_protocol::oracle::{Now, Settings};
use percolator_server::{DurableValue, SmallFile};
use percolator_tso::core::{Core, Store};
use percolator_tso::granting::{Granting, Reply};
use percolator_tso::{Keeper, LimitHost};
use percolator_wire::v1;
use tokio::sync::Notify;

use crate::disk::SimDisk;
use crate::messages::{Answer, Ask, Caller};
use crate::mutation::Mutation;
use crate::rng::{Dice, Rng};
use crate::seen::Seen;
use crate::servers::elected_oracle::{OracleHost, Part};
use crate::servers::promises::{PromiseFile, PromisePlace};
use crate::servers::register::ORACLES;
use crate::servers::replica::Replicated;
use crate::servers::{Lives, STEPS, Way, cant_read, exit, heartbeats};
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
    /// No write of what one of several keeps in its folder ends before.
    pub hangs_until: Mutex<Duration>,
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
    pub(super) state: Mutex<State>,
    /// A request waits for a limit.
    pub(super) exhausted: Notify,
    /// It hands over, and takes part in the election no more.
    pub(super) stop: Notify,
}

pub(super) struct State {
    pub(super) granting: Granting,
    pub(super) waiting: Vec<(Caller, u32)>,
    /// A limit that is being written.
    pub(super) writing: Option<Store>,
    /// The master has accepted this process.
    pub(super) is_accepted: bool,
    /// By the register's value; 0: it is alone, or has not read it yet.
    pub(super) register_id: u64,
    /// What the clock said when it was read last.
    pub(super) last_clock: Now,
    /// Another process is started so long after this one was asked to end.
    pub(super) down: Duration,
}

impl Oracle {
    /// This start, as the other oracles know it.
    fn member(&self, incarnation: u64, replica: u64) -> Member {
        Member {
            name: self.name.clone(),
            address: address(&self.name),
            incarnation,
            replica,
        }
    }

    /// Begins one that is alone. None: its folder can't be read now, or the run has failed.
    fn begin_alone(self: &Arc<Self>, world: &Arc<World>) -> Option<Granting> {
        let stored = match self.limit().load() {
            Ok(stored) => stored,
            Err(error) => {
                let oracle = self.clone();
                cant_read(world, self.node, &error, move |world| oracle.boot(world));
                return None;
            }
        };
        match Core::recover(stored.as_deref(), self.now(world), self.settings) {
            Ok(mut core) => {
                core.obey_master();
                Some(Granting::Alone(core))
            }
            Err(error) => {
                world.fail("the oracle starts", error.to_string());
                None
            }
        }
    }

    /// Begins the part of one of several in their election. None: its folder can't be read now.
    fn begin_replica(
        self: &Arc<Self>,
        world: &Arc<World>,
        replicated: &Replicated,
        incarnation: u64,
    ) -> Option<(Granting, PromisePlace, PromiseRecord)> {
        let own = Arc::downgrade(self);
        {
            let mut oracles = replicated.oracles.lock();
            if !oracles.iter().any(|known| known.ptr_eq(&own)) {
                oracles.push(own);
            }
        }
        let (file, record) = match PromiseFile::open(&self.disk, &self.dice) {
            Ok(opened) => opened,
            Err(error) => {
                let oracle = self.clone();
                cant_read(world, self.node, &error, move |world| oracle.boot(world));
                return None;
            }
        };
        // One without a number asks nobody for promises, and gives none.
        let number = if replicated.promises {
            record.replica
        } else {
            0
        };
        let member = self.member(incarnation, number);
        let (dead, timing) = (self.lives.dead(), replicated.timing);
        let mut replica = OracleReplica::new(member, dead, timing, self.settings);
        replica.restore(self.now(world), record);
        let (oracle, clock) = (self.clone(), world.clone());
        let takes = move || {
            let write = *oracle.write.lock();
            let hangs = oracle.hangs_until.lock().saturating_sub(clock.now());
            hangs + oracle.dice.of("records", |rng| rng.about(write))
        };
        let place = PromisePlace {
            world: world.clone(),
            node: self.node,
            timing,
            file: Arc::new(file),
            asks_nobody: replicated.mutation == Some(Mutation::PromisesNotAsked),
            takes: Arc::new(takes),
        };
        Some((Granting::Replica(Box::new(replica)), place, record))
    }

    /// Starts the process.
    pub fn boot(self: &Arc<Self>, world: &Arc<World>) {
        let incarnation = self.dice.of("incarnations", Rng::next).max(1);
        let (granting, promises) = match &self.replicated {
            None => match self.begin_alone(world) {
                Some(granting) => (granting, None),
                None => return,
            },
            Some(replicated) => {
                let begun = self.begin_replica(world, replicated, incarnation);
                let Some((granting, place, record)) = begun else {
                    return;
                };
                (granting, Some((replicated, place, record)))
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
        let part = promises.map(|(replicated, promises, record)| {
            let host = OracleHost {
                oracle: self.clone(),
                world: world.clone(),
                running: running.clone(),
            };
            let register = replicated.register(world, self.node, ORACLES, &self.dice);
            let kept = (promises, record.register);
            Arc::new(Part::new(host, register, replicated, kept))
        });
        let handler = {
            let (oracle, running, part) = (self.clone(), running.clone(), part.clone());
            Arc::new(move |world: &Arc<World>, caller, ask| match (ask, &part) {
                (Ask::Timestamps(count), _) => oracle.request(world, &running, caller, count),
                (ask, Some(part)) => part.answer(caller, &ask),
                _ => {}
            })
        };
        let at_kill = {
            let (oracle, running, part) = (self.clone(), running.clone(), part.clone());
            Box::new(move |_: &Arc<World>| {
                *oracle.running.lock() = None;
                if let Some(part) = part {
                    part.promises.file.killed();
                }
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
        match part {
            None => {
                let keeping = self.clone().keep(world.clone(), running, incarnation);
                world.spawn(self.node, keeping.boxed());
            }
            Some(part) => world.spawn(self.node, part.run(incarnation).boxed()),
        }
    }

    /// Stores limits of one that is alone before they are reached. The first one is durable before the first heartbeat.
    async fn keep(self: Arc<Self>, world: Arc<World>, running: Arc<Running>, incarnation: u64) {
        let limit = SimLimit {
            oracle: self.clone(),
            world: world.clone(),
            running: running.clone(),
        };
        let keeper = Keeper::new(limit, self.settings.window_ms);
        if let Err(error) = keeper.extend().await {
            return self.exit(&world, &error.to_string());
        }
        self.beat(&world, running, incarnation);
        keeper.run().await;
    }

    /// Sends heartbeats, and takes in what the master answers.
    pub(super) fn beat(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: Arc<Running>,
        incarnation: u64,
    ) {
        let sent_ms = Arc::new(Mutex::new(0));
        let beat = {
            let (oracle, world, running) = (self.clone(), world.clone(), running.clone());
            let sent_ms = sent_ms.clone();
            move || {
                let now = oracle.now(&world);
                *sent_ms.lock() = now.mono_ms;
                let mut state = running.state.lock();
                let register = state.register_id;
                v1::HeartbeatRequest {
                    cluster_id: oracle.cluster_id.lock().clone().unwrap_or_default(),
                    role: v1::Role::Oracle.into(),
                    server: oracle.name.clone(),
                    address: address(&oracle.name),
                    incarnation,
                    ..state.granting.report(now, register)
                }
            }
        };
        let learn = {
            let (oracle, world) = (self.clone(), world.clone());
            move |response: &v1::HeartbeatResponse| {
                let sent_ms = *sent_ms.lock();
                let bounds = {
                    let mut state = running.state.lock();
                    state.is_accepted = true;
                    state.granting.take_response(sent_ms, response)
                };
                if oracle.replicated.is_none() {
                    world.see(&Seen::Bounded(bounds.commits_above));
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

    pub(super) fn now(&self, world: &Arc<World>) -> Now {
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

    /// The term in which this one of several leads now.
    fn leading_term(&self, world: &Arc<World>) -> Option<u64> {
        let running = self.running.lock().clone()?;
        let now = self.now(world);
        let mut state = running.state.lock();
        let replica = state.granting.replica()?;
        let leads = replica.leads(now)
            || replica.role() == RoleKind::Leader && mutants::on(ElectionMutant::RightNeverEnds);
        leads.then(|| replica.term())
    }

    /// The term of a leader that could go on now without its register.
    pub fn promised_term(&self, world: &Arc<World>) -> Option<u64> {
        let running = self.running.lock().clone()?;
        let now = self.now(world);
        let mut state = running.state.lock();
        let replica = state.granting.replica()?;
        (replica.leads(now) && replica.is_promised(now)).then(|| replica.term())
    }

    /// A request has come.
    fn request(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Arc<Running>,
        caller: Caller,
        count: u32,
    ) {
        if self.answer(world, running, caller, count) {
            running.exhausted.notify_one();
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
            Ok(Reply::Begins) => {
                running.state.lock().waiting.push((caller, count));
                false
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

    /// If this one would answer now, no other oracle would, in an earlier term.
    pub(super) fn look_at_others(&self, world: &Arc<World>) {
        let Some((replicated, own_term)) = self.replicated.as_ref().zip(self.leading_term(world))
        else {
            return;
        };
        world.see(&Seen::Led {
            role: "oracle",
            server: &self.name,
            term: own_term,
        });
        let oracles = replicated.oracles.lock().clone();
        for oracle in oracles.iter().filter_map(Weak::upgrade) {
            let term = oracle.leading_term(world);
            if let Some(term) = term.filter(|term| *term < own_term) {
                let (role, server) = ("oracle", &*oracle.name);
                world.note(|| format!("{server} would answer in term {term}"));
                world.see(&Seen::Led { role, server, term });
            }
        }
    }

    pub(super) fn answer_waiting(self: &Arc<Self>, world: &Arc<World>, running: &Arc<Running>) {
        let waiting = std::mem::take(&mut running.state.lock().waiting);
        for (caller, count) in waiting {
            if self.replicated.is_some() {
                self.answer(world, running, caller, count);
            } else {
                self.request(world, running, caller, count);
            }
        }
    }

    /// The process is asked to end in order: SIGTERM. It hands over, ends, and is started again after this time. One that is
    /// alone has nothing to hand over.
    pub fn hand_over(&self, world: &Arc<World>, down: Duration) {
        if let (Some(running), Some(_)) = (&*self.running.lock(), &self.replicated) {
            world.note(|| format!("{} is asked to end", self.name));
            running.state.lock().down = down;
            running.stop.notify_one();
        }
    }

    /// Ends this process, unless it has ended already; another one is started after this time.
    pub(super) fn end(self: &Arc<Self>, world: &Arc<World>, down: Duration) {
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

/// The limit of one that is alone, in its folder.
struct SimLimit {
    oracle: Arc<Oracle>,
    world: Arc<World>,
    running: Arc<Running>,
}

impl LimitHost for SimLimit {
    fn store(&self) -> Option<Store> {
        let now = self.oracle.now(&self.world);
        self.running.state.lock().granting.store(now)
    }

    async fn write(&self, store: Store) -> Result<(), percolator_server::Error> {
        self.running.state.lock().writing = Some(store);
        let takes = {
            let write = *self.oracle.write.lock();
            self.oracle.dice.of("writes", |rng| rng.about(write))
        };
        self.world.sleep(takes).await;
        self.running.state.lock().writing = None;
        self.oracle.limit().store(&store.value())
    }

    fn stored(&self, store: Store) {
        let now = self.oracle.now(&self.world);
        self.running.state.lock().granting.stored(now, store);
        self.oracle.answer_waiting(&self.world, &self.running);
    }

    fn not_stored(&self, _: String) {
        self.running.state.lock().granting.not_stored();
    }

    async fn sleep(&self, duration: Duration) {
        self.world.sleep_on(self.oracle.node, duration).await;
    }

    async fn exhausted(&self) {
        self.running.exhausted.notified().await;
    }
}
