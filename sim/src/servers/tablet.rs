//! A tablet server's process: the shipped runner and core over the shipped write-ahead log, on a simulated device and a
//! simulated network.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_engine::{
    Batch, Buffered, Checkpoints, Column, Direction, Durable, Engine, EngineKind, Error,
    MemoryStore, Options, Versioned,
};
use percolator_protocol::types::Tablet as Owned;
use percolator_tablet::core::{Asker, Core};
use percolator_tablet::runner::Runner;
use percolator_tablet::{Limits, ServerIncarnation};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::disk::SimDisk;
use crate::invariants;
use crate::messages::{Answer, Ask, Caller};
use crate::rng::{Dice, Rng};
use crate::seen::Seen;
use crate::servers::around::Around;
use crate::servers::asked::Asked;
use crate::servers::resolved::left;
use crate::servers::{Lives, Way, arrivals, exit, heartbeats, own_locks, stall};
use crate::store::{Claimed, Image, SimStore};
use crate::transport::{Highest, SimTransport};
use crate::world::{NodeId, World};

/// Small, so that there are many segments.
const SEGMENT_BYTES: u64 = 32 << 10;
/// Free space that is kept for what ends transactions, and for nothing.
pub const RESERVE_BYTES: u64 = 1 << 20;
/// The part of it that is kept for nothing.
pub const LAST_RESERVE_BYTES: u64 = 64 << 10;
/// Changes that are kept in memory between two checkpoints.
const BUFFER_BYTES: usize = 64 << 10;
/// Old values for snapshots, which the server holds for one request.
const HISTORY_BYTES: u64 = 1 << 20;

/// A tablet server: what outlives its processes.
pub struct Tablet {
    /// Its process.
    pub node: NodeId,
    /// The master's process.
    pub master: NodeId,
    /// Its stable name.
    pub name: String,
    /// Where clients reach it.
    pub address: String,
    /// Its folder.
    pub disk: SimDisk,
    /// Its store, where it has one besides the log.
    pub image: Option<Arc<Mutex<Image>>>,
    /// Incarnations, and how long the disk takes.
    pub dice: Dice,
    /// How long a sync takes, about.
    pub sync: Mutex<Duration>,
    /// What it holds at the most.
    pub limits: Limits,
    /// How long it waits for a disk that hangs.
    pub stall_max: Duration,
    /// How long a group that the engine has is not yet known to be durable, at most, in microseconds.
    pub window_us: u64,
    /// The cluster's id, once it is known.
    pub cluster_id: Mutex<Option<String>>,
    /// Processes that had its folder.
    pub lives: Arc<Lives>,
    /// What was on its way to the disk when the process died.
    pub maybe: Mutex<Vec<Batch>>,
    /// The process, while it runs.
    pub running: Mutex<Option<Shared>>,
    /// What timestamps are checked against.
    pub highest: Highest,
    /// Another process has its folder.
    pub retired: AtomicBool,
    /// Its folder is an older one: what it has says nothing of what is durable.
    pub older: bool,
    /// Each batch goes to the disk in two parts: for a mutation.
    pub tears: bool,
    /// Nobody watches whether the disk hangs: for a mutation.
    pub waits_for_ever: bool,
    /// Nobody looks whose its folder is: for a mutation.
    pub takes_any_folder: bool,
}

/// A process.
pub struct Running {
    pub(crate) runner: Runner<Around>,
    engine: Arc<dyn Engine>,
    askers: BTreeMap<Asker, (Caller, Asked)>,
    /// Requests to resolve locks, that aren't answered.
    resolves: BTreeMap<Asker, (Owned, v1::ResolveRequest)>,
    next_asker: Asker,
    /// Its tablets, as the invariants know them.
    owned: Vec<v1::TabletInfo>,
    pub(super) committing: Option<Arc<Vec<Batch>>>,
    /// A master has accepted it.
    is_accepted: bool,
    /// Groups that went to the disk.
    pub(super) groups: u64,
    /// The disk takes nothing more from this process, and refuses nothing.
    pub(super) hangs: bool,
    /// Who waits for the next tick.
    ticks: Option<Waker>,
}

pub(super) type Shared = Arc<Mutex<Running>>;

impl Tablet {
    /// Starts the process; where its device answers with errors, again a little later.
    pub fn boot(self: &Arc<Self>, world: &Arc<World>) {
        if self.is_retired() {
            return;
        }
        world.held_back.lock().started(*self.highest.lock());
        // What the master hears of is what the core goes by.
        let incarnation = self.dice.of("incarnations", Rng::next);
        let (engine, core) = match self.open(incarnation) {
            Ok(opened) => opened,
            Err(error @ Error::Corrupt { .. }) => return world.fail("durable", error.to_string()),
            Err(error) => {
                let name = &self.name;
                world.note(|| format!("{name} can't start: {error}"));
                let tablet = self.clone();
                self.died();
                world.at(super::RESTART, Box::new(move |world| tablet.boot(world)));
                return;
            }
        };
        let maybe = std::mem::take(&mut *self.maybe.lock());
        self.see(
            world,
            &Seen::Reopened {
                server: &self.name,
                engine: &*engine,
                maybe: &maybe,
            },
        );
        let report = core.report();
        self.see_owned(world, &report);
        self.see_points(world, &report);
        let around = Around::new(world.clone(), self.limits);
        let cluster_id = self.cluster_id.lock().clone();
        let running = Arc::new(Mutex::new(Running {
            runner: Runner::new(core, cluster_id, around, world.mono(self.node)),
            engine,
            askers: BTreeMap::new(),
            resolves: BTreeMap::new(),
            next_asker: 0,
            owned: report.tablets,
            committing: None,
            is_accepted: false,
            groups: 0,
            hangs: false,
            ticks: None,
        }));
        self.run(world, running, incarnation);
    }

    /// Begins with what a process does.
    fn run(self: &Arc<Self>, world: &Arc<World>, running: Shared, incarnation: u64) {
        *self.running.lock() = Some(running.clone());
        let handler = {
            let (tablet, running) = (self.clone(), running.clone());
            Arc::new(move |world: &Arc<World>, caller, ask| {
                tablet.handle(world, &running, caller, ask);
            })
        };
        let at_kill = {
            let tablet = self.clone();
            Box::new(move |world: &Arc<World>| {
                tablet.look_at_locks(world);
                tablet.died();
            })
        };
        world.start(self.node, Some(handler), at_kill);
        self.act(world, &running, Runner::begin);
        let ticks = self.clone().tick(world.clone(), running.clone());
        world.spawn(self.node, ticks.boxed());
        if !self.waits_for_ever {
            let watch = stall::watch(world.clone(), self.clone(), running.clone());
            world.spawn(self.node, watch.boxed());
        }
        own_locks::resolve(self.clone(), world, running.clone());
        arrivals::get(self.clone(), world, running.clone());
        self.beat(world, running, incarnation);
    }

    /// Tells the process to end, if it runs: see [`Runner::stop_when_empty`].
    pub(crate) fn stop_when_empty(self: &Arc<Self>, world: &Arc<World>) {
        let running = self.running.lock().clone();
        if let Some(running) = running {
            self.act(world, &running, Runner::stop_when_empty);
        }
    }

    /// Whether it runs, and nothing keeps it from its end.
    pub(crate) fn may_stop(&self, world: &Arc<World>) -> bool {
        let now = world.mono(self.node);
        let running = self.running.lock().clone();
        running.is_some_and(|running| running.lock().runner.may_stop(now))
    }

    /// What it asks others with.
    pub(super) fn transport(&self, world: &Arc<World>, purpose: &'static str) -> Arc<SimTransport> {
        let rng = Rng::new(self.dice.of(purpose, Rng::next), purpose);
        Arc::new(SimTransport::of_server(
            world,
            self.node,
            self.master,
            rng,
            self.highest.clone(),
        ))
    }

    /// Lets the core's time pass.
    async fn tick(self: Arc<Self>, world: Arc<World>, running: Shared) {
        loop {
            let next = {
                let mut state = running.lock();
                state.runner.host().is_sooner = false;
                state.runner.next_tick()
            };
            let mut sleep = world.sleep_on(self.node, next);
            poll_fn(|context| {
                let mut state = running.lock();
                if state.runner.host().is_sooner {
                    return Poll::Ready(());
                }
                state.ticks = Some(context.waker().clone());
                drop(state);
                sleep.poll_unpin(context)
            })
            .await;
            self.act(&world, &running, Runner::tick);
        }
    }

    fn beat(self: &Arc<Self>, world: &Arc<World>, running: Shared, incarnation: u64) {
        let (tablet, world2, beating) = (self.clone(), world.clone(), running.clone());
        let beat = move || v1::HeartbeatRequest {
            cluster_id: tablet.cluster_id.lock().clone().unwrap_or_default(),
            role: v1::Role::Tablet.into(),
            server: tablet.name.clone(),
            address: tablet.address.clone(),
            incarnation,
            ..beating.lock().runner.heartbeat(world2.mono(tablet.node))
        };
        let (tablet, adopting) = (self.clone(), running.clone());
        let adopt = move |id: &str| {
            tablet
                .cluster_id
                .lock()
                .get_or_insert_with(|| id.to_owned());
            adopting.lock().runner.adopted(id);
        };
        let (tablet, world2) = (self.clone(), world.clone());
        let learn = move |told: &v1::HeartbeatResponse| {
            running.lock().is_accepted = true;
            tablet.act(&world2, &running, |runner, now| {
                runner.heartbeat_answered(now, told);
            });
        };
        let (tablet, world2) = (self.clone(), world.clone());
        let refused = move |why: &str| tablet.exit(&world2, why);
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

    /// Of this process: at once, or step by step with commits between them, in which it may be killed.
    fn checkpoints(&self) -> Checkpoints {
        match self.dice.of("checkpoints", |rng| rng.below(6)) {
            0..3 => Checkpoints::AT_ONCE,
            more => Checkpoints::Inline {
                steps: more as u32 - 2,
            },
        }
    }

    fn open(&self, incarnation: u64) -> Result<(Arc<dyn Engine>, Core), Error> {
        let options = Options {
            segment_bytes: SEGMENT_BYTES,
            reserve_bytes: RESERVE_BYTES,
            last_reserve_bytes: LAST_RESERVE_BYTES,
            ..Options::new(EngineKind::Memory, self.name.clone())
        };
        if !self.takes_any_folder {
            self.claim_folder(&options)?;
        }
        let disk = Arc::new(self.disk.clone());
        let log = Path::new("log");
        // With a store the log is cut off at checkpoints; without one it is all there is.
        let engine: Arc<dyn Engine> = match &self.image {
            Some(image) => {
                let store = SimStore::open(self.disk.clone(), image.clone());
                let store = Buffered::new(store, BUFFER_BYTES)?;
                let store = Versioned::new(Claimed::new(store, image.clone()), HISTORY_BYTES);
                let checkpoints = self.checkpoints();
                Arc::new(Durable::open(disk, log, store, &options, checkpoints)?)
            }
            None => {
                let store = Versioned::new(MemoryStore::default(), HISTORY_BYTES);
                Arc::new(Durable::open(
                    disk,
                    log,
                    store,
                    &options,
                    Checkpoints::AT_ONCE,
                )?)
            }
        };
        let me = ServerIncarnation {
            server: self.name.clone(),
            incarnation,
        };
        match Core::open(engine.clone(), self.limits, false, me) {
            Ok(core) => Ok((engine, core)),
            Err(percolator_tablet::Error::Engine(error)) => Err(error),
            Err(error) => Err(Error::Corrupt {
                path: "log".into(),
                offset: 0,
                detail: error.to_string(),
            }),
        }
    }

    fn handle(self: &Arc<Self>, world: &Arc<World>, running: &Shared, caller: Caller, ask: Ask) {
        let from = {
            let mut state = running.lock();
            state.next_asker += 1;
            state.next_asker
        };
        match ask {
            Ask::Tablet(request) => {
                {
                    let mut state = running.lock();
                    state.askers.insert(from, (caller, Asked::Request));
                    if let (Some(v1::request::Body::Resolve(resolve)), [tablet]) =
                        (&request.body, &request.tablets[..])
                    {
                        // It may be another one's rows as well when this is answered.
                        let owned = state.runner.core().tablet(tablet.id).cloned();
                        if let Some(owned) = owned.filter(|owned| owned.epoch == tablet.epoch) {
                            state.resolves.insert(from, (owned, resolve.clone()));
                        }
                    }
                }
                self.act(world, running, |runner, now| {
                    runner.requests(now, 0, from, std::iter::once(request));
                });
            }
            Ask::Command(command) => {
                let asked = Asked::Command(command.command.cuts());
                running.lock().askers.insert(from, (caller, asked));
                let taken = self.act(world, running, |runner, now| {
                    runner.command(now, 0, from, command)
                });
                if let Err(other) = taken {
                    running.lock().askers.remove(&from);
                    let refused = Answer::Done(Err(other.to_string()));
                    world.reply(self.node, caller, refused);
                }
            }
            _ => {}
        }
    }

    /// Lets the runner do something, and does what it wants done then.
    pub(super) fn act<R>(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        act: impl FnOnce(&mut Runner<Around>, Duration) -> R,
    ) -> R {
        let mut state = running.lock();
        let result = act(&mut state.runner, world.mono(self.node));
        let mut sent = Vec::new();
        for (to, response) in std::mem::take(&mut state.runner.host().answers) {
            if let Some(asker) = state.askers.remove(&to) {
                self.see_answer(world, &mut state, to, &response);
                sent.push((asker, response));
            }
        }
        let group = state.runner.host().group.take();
        if group.is_some() {
            world.see(&Seen::Holds {
                held: state.runner.core().usage(),
                limits: &self.limits,
            });
            state.committing.clone_from(&group);
            state.groups += 1;
        }
        let is_sooner = state.runner.host().is_sooner;
        let ticks = state.ticks.take_if(|_| is_sooner);
        let failure = state.runner.host().failure.take();
        let core = state.runner.core();
        let answers = sent.into_iter();
        let answers =
            answers.map(|((caller, asked), response)| (caller, asked.answer(core, response)));
        let answers: Vec<_> = answers.collect();
        drop(state);
        if let Some(ticks) = ticks {
            ticks.wake();
        }
        for (caller, answer) in answers {
            world.reply(self.node, caller, answer);
        }
        if let Some(group) = group {
            let (tablet, world2, running) = (self.clone(), world.clone(), running.clone());
            let commit = async move { tablet.commit(&world2, &running, group).await };
            world.spawn(self.node, commit.boxed());
        }
        if let Some(failure) = failure {
            stall::end_after_failure(self, world, &failure);
        }
        result
    }

    fn see_answer(&self, world: &World, state: &mut Running, to: Asker, response: &v1::Response) {
        if let Some((tablet, request)) = state.resolves.remove(&to)
            && let Some(Body::Resolve(resolved)) = &response.body
            && let Some(seen) = left(&*state.engine, &tablet, request, resolved)
        {
            world.see(&seen);
        }
        world.see(&Seen::Answered {
            response,
            limits: &self.limits,
        });
    }

    async fn commit(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        group: Arc<Vec<Batch>>,
    ) {
        let takes = {
            let sync = *self.sync.lock();
            self.dice.of("syncs", |rng| rng.about(sync))
        };
        world.sleep(takes).await;
        if self.is_retired() || running.lock().hangs {
            // A volume that is taken away hangs too, as one over a network does: the process hears of nothing.
            return std::future::pending().await;
        }
        let (engine, is_accepted) = {
            let running = running.lock();
            (running.engine.clone(), running.is_accepted)
        };
        if !is_accepted {
            let why = format!("{} writes before a master has accepted it", self.name);
            world.fail(invariants::ACCEPTED, why);
        }
        let mut result = Ok(());
        for part in self.parts(&group) {
            result = result.and_then(|()| engine.commit(&part));
        }
        match &result {
            Ok(()) => self.see(
                world,
                &Seen::Durable {
                    server: &self.name,
                    group: &group,
                },
            ),
            Err(Error::Full { .. }) => {}
            Err(_) => *self.maybe.lock() = group.to_vec(),
        }
        // What it holds now the disk knows of; the core doesn't yet, and serves reads meanwhile.
        running.lock().committing = None;
        let window_us = self.dice.of("windows", |rng| {
            let most_us = self.window_us >> rng.below(8);
            rng.below(most_us + 1)
        });
        world.sleep(Duration::from_micros(window_us)).await;
        let report = self.act(world, running, |runner, now| {
            runner.committed(now, result);
            let report = runner.core().report();
            if !self.is_retired() {
                self.see_points(world, &report);
            }
            report
        });
        let owned = std::mem::replace(&mut running.lock().owned, report.tablets.clone());
        if owned != report.tablets {
            self.see_owned(world, &report);
        }
    }

    /// What goes to the engine together.
    fn parts(&self, group: &[Batch]) -> Vec<Vec<Batch>> {
        if !self.tears {
            return vec![group.to_vec()];
        }
        let single = |(column, key, value): (_, &bytes::Bytes, Option<&bytes::Bytes>)| {
            let mut batch = Batch::default();
            match value {
                Some(value) => batch.put(column, key.clone(), value.clone()),
                None => batch.delete(column, key.clone()),
            }
            vec![batch]
        };
        group.iter().flat_map(Batch::ops).map(single).collect()
    }

    /// Where nothing is under way, memory and disk have to agree on what is locked.
    fn look_at_locks(&self, world: &Arc<World>) {
        let Some(running) = self.running.lock().clone() else {
            return;
        };
        let state = running.lock();
        let held = state.runner.core().usage();
        let idle = state.committing.is_none() && held.group.count + held.decided.count == 0;
        if state.runner.core().failed().is_some() || !idle {
            return;
        }
        // Its device may have failed by now.
        let Ok(stored) = state
            .engine
            .scan(Column::Lock, &[], &[], Direction::Forward)
        else {
            return;
        };
        world.see(&Seen::Locks {
            counted: state.runner.core().locks(),
            stored: stored.count(),
        });
    }

    /// The process is dead: what was on its way to the disk has come there in part, and what the disk
    /// hadn't synced is lost, if the machine is dead too.
    fn died(&self) {
        if let Some(running) = self.running.lock().take() {
            let mut state = running.lock();
            if let Some(group) = state.committing.take() {
                self.disk.die_within(3);
                for part in self.parts(&group) {
                    // Nobody is there to hear of it.
                    let _ = state.engine.commit(&part);
                }
                *self.maybe.lock() = group.to_vec();
            }
        }
        // The machine dies with the process, or goes on.
        match self.dice.of("machines", |rng| rng.below(2)) {
            0 => self.disk.crash(),
            _ => self.disk.process_died(),
        }
        if let Some(image) = self.image.as_ref().filter(|_| !self.is_retired()) {
            self.dice.of("crashes", |rng| image.lock().crash(rng));
        }
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    fn see(&self, world: &World, seen: &Seen<'_>) {
        if !self.older {
            world.see(seen);
        }
    }

    fn see_owned(&self, world: &World, report: &v1::HeartbeatRequest) {
        let (server, tablets) = (&*self.name, &*report.tablets);
        self.see(world, &Seen::Owns { server, tablets });
    }

    fn see_points(&self, world: &World, report: &v1::HeartbeatRequest) {
        let (server, points) = (&*self.name, report.into());
        let time = (!world.has_paced_clocks()).then(|| world.now());
        let seen = Seen::Points {
            server,
            points,
            time,
        };
        self.see(world, &seen);
    }

    /// Ends the process; it is started again.
    pub fn exit(self: &Arc<Self>, world: &Arc<World>, why: &str) {
        let tablet = self.clone();
        exit(world, self.node, why, move |world| tablet.boot(world));
    }
}

/// Where clients reach a tablet server.
pub fn address(name: &str) -> String {
    format!("{name}:7402")
}
