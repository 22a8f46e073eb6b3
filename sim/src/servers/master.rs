//! A master's process: the shipped directory, its steps and what makes its state durable, and around them what the runner and the
//! service of `gc-master` do over a network. One that is alone has its state in its folder (`alone`), one of several in a register
//! (`elected_master`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use parking_lot::Mutex;
use percolator_client::OracleClient;
use percolator_client::transport::MasterError;
use percolator_gc_master::{
    Acted, Awaited, COMMAND_TIMEOUT, Command, Directory, Heartbeat, Pending, Refusal, Settings,
    Start, StoredState, create_table, delete_table, directory_response, drain_servers, drive,
    locate, merge_table, move_tablet, session, set_gc, split_table,
};
use percolator_tablet::runner::MasterCommand;
use percolator_wire::v1;

use crate::disk::SimDisk;
use crate::messages::{Answer, Ask};
use crate::mutation::Mutation;
use crate::rng::{Dice, Rng};
use crate::seen::Seen;
use crate::servers::commands::command_of;
use crate::servers::elected_master::ElectedMaster;
use crate::servers::replica::Replicated;
use crate::servers::served::{ServedDirectory, Shared};
use crate::servers::{alone, exit};
use crate::transport::{Highest, SimTransport};
use crate::world::{NodeId, World};

/// Where the others reach a master.
pub fn address(number: usize) -> String {
    format!("master-{number}:7400")
}

/// A master: what outlives its processes.
pub struct Master {
    /// Which of them it is.
    pub number: usize,
    /// Its process.
    pub node: NodeId,
    /// Its folder.
    pub disk: SimDisk,
    /// Ids, and when it dies.
    pub dice: Dice,
    /// Deaths right before or after its state is durable, of a million writes.
    pub die_ppm: Mutex<u32>,
    /// How long a write of the state into its folder takes.
    pub write: Mutex<Duration>,
    /// No write of what one of several keeps in its folder ends before.
    pub hangs_until: Mutex<Duration>,
    /// The cluster has begun: a master without a state has lost it.
    pub begun: AtomicBool,
    /// The cluster's id.
    pub cluster_id: Mutex<Option<String>>,
    /// The names of its tablet servers, as far as they have joined.
    pub tablet_servers: Mutex<Vec<String>>,
    /// How long versions are kept; a process has what it was started with.
    pub settings: Mutex<Settings>,
    /// What timestamps are checked against.
    pub highest: Highest,
    /// Every tablet is given to a second server too: for a mutation.
    pub two_owners: bool,
    /// What is wrong on purpose.
    pub mutation: Option<Mutation>,
    /// None: it is alone.
    pub replicated: Option<Replicated>,
    /// Incarnations of one of several that had its folder.
    pub before: Mutex<Vec<u64>>,
    /// The process of one of several that runs.
    pub elected: Mutex<Option<Arc<ElectedMaster>>>,
}

impl Master {
    /// Its stable name.
    pub fn name(&self) -> String {
        format!("master-{}", self.number)
    }

    pub(super) fn random(&self) -> u128 {
        let half = || u128::from(self.dice.of("ids", Rng::next));
        half() << 64 | half()
    }

    /// A new directory, and what it wants to be durable before it is served. None: the run has failed.
    pub(super) fn begin_directory(
        &self,
        world: &Arc<World>,
        start: Start,
    ) -> Option<(Shared, Option<Vec<u8>>)> {
        let settings = *self.settings.lock();
        match Directory::open(start, settings, self.random()) {
            Ok(mut directory) => {
                let begun = directory.take_effects().persist;
                let started = world.mono(self.node);
                Some((ServedDirectory::new(directory, started), begun))
            }
            Err(error) => {
                world.fail("the master starts", error.to_string());
                None
            }
        }
    }

    /// Ends this process, unless it has ended already; another one is started after this time.
    pub(super) fn end(self: &Arc<Self>, world: &Arc<World>, down: Duration) {
        let (master, life) = (self.clone(), world.life(self.node));
        let end = move |world: &Arc<World>| {
            if world.is_up(master.node) && world.life(master.node) == life {
                world.kill(master.node, false);
                let boot = move |world: &Arc<World>| master.boot(world);
                world.at(down, Box::new(boot));
            }
        };
        world.at(Duration::ZERO, Box::new(end));
    }

    /// Starts the process.
    pub fn boot(self: &Arc<Self>, world: &Arc<World>) {
        if let Some(replicated) = &self.replicated {
            return self.boot_elected(world, replicated);
        }
        self.boot_alone(world);
    }

    /// Whether one that is alone has a state: what is lost is rebuilt some time later. Several have it in their register.
    pub fn has_state(&self) -> bool {
        self.replicated.is_some() || self.own_state().is_some()
    }

    /// The state in the folder of one that is alone.
    pub fn own_state(&self) -> Option<Vec<u8>> {
        let found = alone::file(self.disk.copy()).load().ok()??;
        Some(StoredState::decode(found.value)?.state)
    }

    /// One step of the directory, with its effects. What it has found may be shown when this returns. `None`: it may not
    /// be shown, as the process has died over it, or leads no more.
    pub(super) async fn step<R>(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        early: bool,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Option<R> {
        let (result, changes) = self.act(world, running, act)?;
        if !early {
            let durability = running.served.durability();
            durability.shown(changes).await.ok()?;
        }
        Some(result)
    }

    /// One step of the directory, and after how many changes it may be shown.
    fn act<R>(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Option<(R, u64)> {
        let acted = running.served.act(|directory| {
            let now = world.mono(self.node).saturating_sub(running.started);
            let result = act(directory, now);
            world.see(&Seen::MasterHolds(directory.held()));
            result
        });
        let Acted {
            result,
            changes,
            commands,
            notes,
        } = acted.ok()?;
        for note in &notes {
            world.note(|| format!("master: {note}"));
        }
        for command in commands {
            let (master, world2, running) = (self.clone(), world.clone(), running.clone());
            let sending = async move {
                if running.served.durability().shown(changes).await.is_ok() {
                    master.dispatch(&world2, &running, command);
                }
            };
            world.spawn(self.node, sending.boxed());
        }
        Some((result, changes))
    }

    fn dispatch(self: &Arc<Self>, world: &Arc<World>, running: &Shared, command: Command) {
        let tablet_command = command_of(&command.action);
        let meant = v1::Addressee {
            server: command.server.clone(),
            incarnation: command.incarnation,
        };
        let Some(to) = world.network.lock().at(&command.address) else {
            return;
        };
        if self.two_owners {
            let other = if &*world.name(to) == "tablet-0" {
                "tablet-1"
            } else {
                "tablet-0"
            };
            let meant = v1::Addressee {
                server: other.to_owned(),
                incarnation: running.served.look(|it| it.incarnation(other)).0,
            };
            let node = world.network.lock().at(&super::tablet::address(other));
            if let Some(node) = node {
                let ask = Ask::Command(MasterCommand {
                    cluster_id: command.cluster_id.clone(),
                    to: Some(meant),
                    command: tablet_command.clone(),
                });
                let asked = world.call(self.node, node, ask, COMMAND_TIMEOUT);
                world.spawn(self.node, asked.map(drop).boxed());
            }
        }
        let ask = Ask::Command(MasterCommand {
            cluster_id: command.cluster_id.clone(),
            to: Some(meant),
            command: tablet_command,
        });
        let asked = world.call(self.node, to, ask, COMMAND_TIMEOUT);
        let (master, world2, running) = (self.clone(), world.clone(), running.clone());
        let finish = async move {
            let outcome = match asked.await {
                Ok(Answer::Done(outcome)) => outcome,
                Ok(_) => Err("another question was answered".to_owned()),
                Err(lost) => Err(lost.why),
            };
            master.act(&world2, &running, |directory, now| {
                directory.finished(now, &command, outcome);
            });
        };
        world.spawn(self.node, finish.boxed());
    }

    /// The answer to a request. `early`: also if what it shows isn't durable, for a mutation.
    pub(super) async fn answer(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        ask: Ask,
        early: bool,
    ) -> Option<Answer> {
        match ask {
            Ask::Heartbeat(beat) => self.heartbeat(world, running, *beat, early).await,
            Ask::Directory => self.directory(world, running, early).await,
            Ask::Locate(request) => self.locate(world, running, &request, early).await,
            Ask::Session(request) => self.session(world, running, request, early).await,
            Ask::CreateTable(request) => self.create_table(world, running, request, early).await,
            Ask::DeleteTable(request) => self.delete_table(world, running, request, early).await,
            Ask::SplitTable(request) => {
                let split = self
                    .finish(world, running, early, split_table(request))
                    .await?;
                Some(split.map_or_else(refused, Answer::TableSplit))
            }
            Ask::MergeTable(request) => {
                let merged = self
                    .finish(world, running, early, merge_table(request))
                    .await?;
                Some(merged.map_or_else(refused, Answer::TableMerged))
            }
            Ask::MoveTablet(request) => {
                let moved = self
                    .finish(world, running, early, move_tablet(request))
                    .await?;
                Some(moved.map_or_else(refused, Answer::TabletMoved))
            }
            Ask::DrainServers(request) => {
                let drained = self.step(world, running, early, |directory, now| {
                    drain_servers(directory, now, &request)
                });
                let drained = drained.await?.map(Box::new);
                Some(drained.map_or_else(refused, Answer::ServersDrained))
            }
            Ask::SetGc(request) => {
                let set = self.step(world, running, early, |directory, _| {
                    set_gc(directory, &request)
                });
                Some(set.await?.map_or_else(refused, Answer::GcSet))
            }
            Ask::Command(_)
            | Ask::Tablet(_)
            | Ask::Timestamps(_)
            | Ask::Promise(_)
            | Ask::KeepCopy { .. }
            | Ask::Introduce(_)
            | Ask::Register { .. } => None,
        }
    }

    async fn heartbeat(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        beat: v1::HeartbeatRequest,
        early: bool,
    ) -> Option<Answer> {
        let heard = self.step(world, running, early, |directory, now| {
            let beat = Heartbeat::try_from(beat)?;
            directory.heartbeat(now, beat)
        });
        let heard = heard.await?;
        Some(match heard {
            Ok(heard) => Answer::Heartbeat(heard.into()),
            Err(refusal) => refused(refusal),
        })
    }

    async fn session(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        request: v1::SessionRequest,
        early: bool,
    ) -> Option<Answer> {
        let renewed = self.step(world, running, early, |directory, now| {
            session(directory, now, request)
        });
        let renewed = renewed.await?;
        Some(match renewed {
            Ok(told) => Answer::Session(told),
            Err(refusal) => refused(refusal),
        })
    }

    /// Moves the points of collection, for ever.
    pub(super) fn collect(self: &Arc<Self>, world: &Arc<World>, running: &Shared) {
        let oracle = OracleClient::over(Arc::new(SimTransport::of_server(
            world,
            self.node,
            self.node,
            Rng::new(self.dice.of("oracle clients", Rng::next), "oracle client"),
            self.highest.clone(),
        )));
        let (master, world2, running) = (self.clone(), world.clone(), running.clone());
        let collecting = async move {
            let step = |time| {
                let stepped = master.act(&world2, &running, |directory, now| {
                    directory.collect(now, time);
                    directory.collection_pause()
                });
                stepped.map(|(pause, _)| pause)
            };
            drive(&oracle, step).await;
        };
        world.spawn(self.node, collecting.boxed());
    }

    async fn directory(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        early: bool,
    ) -> Option<Answer> {
        let looked = self.step(world, running, early, |directory, now| {
            directory_response(directory, now)
        });
        let looked = looked.await?;
        Some(match looked {
            Ok(response) => Answer::Directory(response),
            Err(refusal) => refused(refusal),
        })
    }

    async fn locate(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        request: &v1::LocateRequest,
        early: bool,
    ) -> Option<Answer> {
        let looked = self.step(world, running, early, |directory, now| {
            let mut response = locate(directory, request)?;
            if self.two_owners && self.dice.of("owners", |rng| rng.below(2)) == 0 {
                let servers = directory_response(directory, now)?.servers;
                name_others(&mut response, &servers);
            }
            Ok::<_, Refusal>(response)
        });
        let looked = looked.await?;
        Some(match looked {
            Ok(response) => Answer::Located(response),
            Err(refusal) => refused(refusal),
        })
    }

    /// Goes on with a request until it is done. `None`: the process has died over it.
    async fn finish<R>(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        early: bool,
        mut go_on: impl Awaited<R>,
    ) -> Option<Result<R, Refusal>> {
        loop {
            // It is woken by what has happened since, as at the service of the server.
            let progressed = pin!(running.served.durability().progressed());
            match self.step(world, running, early, &mut go_on).await? {
                Ok(Pending::Done(response)) => return Some(Ok(response)),
                Ok(Pending::Wait { until }) => {
                    let now = world.mono(self.node).saturating_sub(running.started);
                    let over = pin!(world.sleep(until.saturating_sub(now)));
                    select(progressed, over).await;
                }
                Err(refusal) => return Some(Err(refusal)),
            }
        }
    }

    async fn create_table(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        request: v1::CreateTableRequest,
        early: bool,
    ) -> Option<Answer> {
        let created = self
            .finish(world, running, early, create_table(request))
            .await?;
        Some(created.map_or_else(refused, Answer::TableCreated))
    }

    async fn delete_table(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Shared,
        request: v1::DeleteTableRequest,
        early: bool,
    ) -> Option<Answer> {
        let removed = self
            .finish(world, running, early, delete_table(request))
            .await?;
        Some(removed.map_or_else(refused, Answer::TableDeleted))
    }

    /// Ends the process; it is started again.
    pub fn exit(self: &Arc<Self>, world: &Arc<World>, why: &str) {
        let master = self.clone();
        exit(world, self.node, why, move |world| master.boot(world));
    }
}

/// Names another owner for each tablet than the one that it has.
fn name_others(response: &mut v1::LocateResponse, servers: &[v1::ServerInfo]) {
    for place in &mut response.tablets {
        let other = if place.server == "tablet-0" {
            "tablet-1"
        } else {
            "tablet-0"
        };
        if let Some(other) = servers.iter().find(|it| it.server == other) {
            place.server.clone_from(&other.server);
            place.address.clone_from(&other.address);
            place.incarnation = other.incarnation;
        }
    }
}

/// As a client over the network has it.
fn refused(refusal: Refusal) -> Answer {
    Answer::Refused(MasterError::of("master-0", &refusal.into()))
}
