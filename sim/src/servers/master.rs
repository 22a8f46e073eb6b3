//! A master's process around the shipped runner of a directory. One that is alone has its state in its folder (`alone`), one of
//! several in a register (`elected_master`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::TimestampClient;
use percolator_client::transport::MasterError;
use percolator_gc_master::{
    Directory, RequestError, Settings, Start, StoredState, directory_response,
};
use percolator_wire::v1;

use crate::disk::SimDisk;
use crate::messages::{Answer, Ask};
use crate::mutation::Mutation;
use crate::rng::{Dice, Rng};
use crate::servers::elected_master::ElectedMaster;
use crate::servers::replica::Replicated;
use crate::servers::runner_host::{SimRunner, SimRunnerHost};
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

    /// A new directory. None: the run has failed.
    pub(super) fn begin_directory(&self, world: &Arc<World>, start: Start) -> Option<Directory> {
        let settings = *self.settings.lock();
        match Directory::open(start, settings, self.random()) {
            Ok(directory) => Some(directory),
            Err(error) => {
                world.fail("the master starts", error.to_string());
                None
            }
        }
    }

    /// This process, for the runner of a directory.
    pub(super) fn runner_host(self: &Arc<Self>, world: &Arc<World>) -> SimRunnerHost {
        SimRunnerHost {
            master: self.clone(),
            world: world.clone(),
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

    /// The response to a request. None: the directory was closed before it could be shown, or this is no request to a master.
    pub(super) async fn answer(&self, runner: Arc<SimRunner>, ask: Ask) -> Option<Answer> {
        match ask {
            Ask::Heartbeat(beat) => answer_of(runner.heartbeat(*beat).await, Answer::Heartbeat),
            Ask::Directory => {
                let request = v1::DirectoryRequest::default();
                answer_of(runner.directory(request).await, Answer::Directory)
            }
            Ask::Locate(request) => {
                let mut located = runner.clone().locate(request).await;
                if let Ok(response) = &mut located {
                    self.name_others(&runner, response);
                }
                answer_of(located, Answer::Located)
            }
            Ask::Session(request) => answer_of(runner.session(request).await, Answer::Session),
            Ask::CreateTable(request) => {
                answer_of(runner.create_table(request).await, Answer::TableCreated)
            }
            Ask::DeleteTable(request) => {
                answer_of(runner.delete_table(request).await, Answer::TableDeleted)
            }
            Ask::SplitTable(request) => {
                answer_of(runner.split_table(request).await, Answer::TableSplit)
            }
            Ask::MergeTable(request) => {
                answer_of(runner.merge_table(request).await, Answer::TableMerged)
            }
            Ask::MoveTablet(request) => {
                answer_of(runner.move_tablet(request).await, Answer::TabletMoved)
            }
            Ask::DrainServers(request) => {
                let drained = runner.drain_servers(request).await;
                answer_of(drained.map(Box::new), Answer::ServersDrained)
            }
            Ask::SetGc(request) => answer_of(runner.set_gc(request).await, Answer::GcSet),
            Ask::Command(_)
            | Ask::Tablet(_)
            | Ask::Timestamps(_)
            | Ask::Promise(_)
            | Ask::KeepCopy { .. }
            | Ask::Introduce(_)
            | Ask::Register { .. } => None,
        }
    }

    /// A client of the oracle, for the time by which garbage is collected.
    pub(super) fn oracle_client(&self, world: &Arc<World>) -> TimestampClient {
        TimestampClient::over(Arc::new(SimTransport::of_server(
            world,
            self.node,
            self.node,
            Rng::new(self.dice.of("oracle clients", Rng::next), "oracle client"),
            self.highest.clone(),
        )))
    }

    /// Sometimes names another owner for each tablet than the one that it has: a mutant.
    fn name_others(&self, runner: &SimRunner, response: &mut v1::LocateResponse) {
        if !self.two_owners || self.dice.of("owners", |rng| rng.below(2)) != 0 {
            return;
        }
        let Ok(directory) = runner.read_unshown(directory_response) else {
            return;
        };
        for place in &mut response.tablets {
            let other = if place.server == "tablet-0" {
                "tablet-1"
            } else {
                "tablet-0"
            };
            if let Some(other) = directory.servers.iter().find(|it| it.server == other) {
                place.server.clone_from(&other.server);
                place.address.clone_from(&other.address);
                place.incarnation = other.incarnation;
            }
        }
    }

    /// Ends the process; it is started again.
    pub fn exit(self: &Arc<Self>, world: &Arc<World>, why: &str) {
        let master = self.clone();
        exit(world, self.node, why, move |world| master.boot(world));
    }
}

/// As a client over the network has it.
fn answer_of<R>(
    result: Result<R, RequestError>,
    answer: impl FnOnce(R) -> Answer,
) -> Option<Answer> {
    match result {
        Ok(response) => Some(answer(response)),
        Err(RequestError::Refused(refusal)) => {
            let refused = MasterError::of("master-0", &refusal.into());
            Some(Answer::Refused(refused))
        }
        Err(RequestError::Closed) => None,
    }
}
