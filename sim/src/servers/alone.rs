//! A master that is alone: the process around its directory, and the register of the state in its folder, which is the shipped
//! file on its device. As `gc-master/src/server.rs` has it.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use percolator_gc_master::{Candidate, PersistError, Start, StateStore, StoreClock, StoreWaits};
use percolator_register::{
    BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedFile, VersionedValue,
    WriteId,
};

use crate::disk::SimDisk;
use crate::messages::{Ask, Caller};
use crate::rng::Rng;
use crate::servers::RESTART;
use crate::servers::elected_master::MasterHost;
use crate::servers::master::Master;
use crate::servers::runner_host::SimRunner;
use crate::servers::under_way::UnderWay;
use crate::world::{NodeId, World};

/// The pause after a request that the register did not carry out.
const RETRY: Duration = Duration::from_millis(100);
/// How long a register of the state that doesn't answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Operations of a swap of the file, at most: a process may die between any two of them, and behind the last.
const SWAP_STEPS: u64 = 10;

/// A swap.
type Swap = (Option<RegisterVersion>, Vec<u8>, WriteId);

/// The register of one process.
pub(super) struct OwnState {
    world: Arc<World>,
    master: Arc<Master>,
    file: VersionedFile,
    swapping: UnderWay<Swap>,
}

impl fmt::Debug for OwnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnState")
    }
}

/// The file in the folder on this device.
pub(super) fn file(disk: SimDisk) -> VersionedFile {
    VersionedFile::on(Arc::new(disk), "directory")
}

impl OwnState {
    pub(super) fn new(world: &Arc<World>, master: &Arc<Master>) -> Self {
        Self {
            world: world.clone(),
            master: master.clone(),
            file: file(master.disk.clone()),
            swapping: UnderWay::default(),
        }
    }

    /// The process is killed: a swap that is under way may have begun.
    pub(super) fn killed(&self) {
        self.swapping
            .killed(&self.master.disk, SWAP_STEPS, |(expected, value, write)| {
                let _ = self.file.swap(expected, &value, write);
            });
    }

    async fn swap_in_time(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> Result<RegisterVersion, SwapError> {
        let (master, world) = (&self.master, &self.world);
        let number = || u128::from(master.dice.of("writes", Rng::next));
        let write = WriteId((number() << 64 | number()).to_le_bytes());
        let write_takes = *master.write.lock();
        let takes = master.dice.of("records", |rng| rng.about(write_takes));
        let waits = world.sleep_on(master.node, takes);
        let swap = (expected, value, write);
        let (expected, value, write) = self.swapping.wait(swap, waits).await;
        let ppm = *master.die_ppm.lock();
        if master.dice.of("deaths", |rng| rng.chance(ppm)) {
            master.disk.die_within(SWAP_STEPS);
            let _ = self.file.swap(expected, &value, write);
            master.exit(world, "it dies while it stores its state");
            return std::future::pending().await;
        }
        self.file.swap(expected, &value, write)
    }
}

impl Master {
    /// Starts the process of one that is alone.
    pub(super) fn boot_alone(self: &Arc<Self>, world: &Arc<World>) {
        let state = Arc::new(OwnState::new(world, self));
        let waits = state_waits(world, self.node, RETRY);
        let loaded = StateStore::load(state.clone(), 0, waits).now_or_never();
        let (store, stored) = match loaded.expect("a file is read at once") {
            Ok(loaded) => loaded,
            Err(PersistError::Load(LoadError::Unavailable { .. })) => {
                let (master, name) = (self.clone(), self.name());
                world.note(|| format!("{name} can't start now"));
                world.at(RESTART, Box::new(move |world| master.boot(world)));
                return;
            }
            Err(error) => return world.fail("durable", error.to_string()),
        };
        let start = match stored {
            Some(stored) => Start::State(stored.state),
            None if !self.begun.load(Ordering::Relaxed) => Start::NewCluster,
            // Its folder was lost with the state, or not.
            None => Start::NoState {
                cluster_id: self
                    .cluster_id
                    .lock()
                    .clone()
                    .filter(|_| self.random() & 1 == 0),
            },
        };
        // Nobody is answered before the state is durable.
        let serving = Arc::new(OnceLock::new());
        let handler = {
            let (master, serving) = (self.clone(), serving.clone());
            Arc::new(move |world: &Arc<World>, caller, ask| {
                if let Some(runner) = serving.get() {
                    master.handle(world, runner, caller, ask);
                }
            })
        };
        let at_kill = {
            let master = self.clone();
            Box::new(move |_: &Arc<World>| {
                state.killed();
                master.disk.crash();
            })
        };
        world.start(self.node, Some(handler), at_kill);
        let serve = self.clone().serve(world.clone(), store, start, serving);
        world.spawn(self.node, serve.boxed());
    }

    fn handle(
        self: &Arc<Self>,
        world: &Arc<World>,
        runner: &Arc<SimRunner>,
        caller: Caller,
        ask: Ask,
    ) {
        let (master, world2, runner) = (self.clone(), world.clone(), runner.clone());
        let answer = async move {
            // Otherwise the process has died over it.
            if let Some(answer) = master.answer(runner, ask).await {
                world2.reply(master.node, caller, answer);
            }
        };
        world.spawn(self.node, answer.boxed());
    }

    async fn serve(
        self: Arc<Self>,
        world: Arc<World>,
        mut store: StateStore,
        start: Start,
        serving: Arc<OnceLock<Arc<SimRunner>>>,
    ) {
        let is_lost = matches!(start, Start::NoState { .. });
        let Some(directory) = self.begin_directory(&world, start) else {
            return;
        };
        let host = self.runner_host(&world);
        let error = match SimRunner::open(directory, &mut store, 0, host).await {
            Ok((runner, _)) => {
                self.begun.store(true, Ordering::Relaxed);
                runner.read_unshown(|directory, _| {
                    if let Ok(state) = directory.state() {
                        *self.cluster_id.lock() = Some(state.cluster_id.clone());
                    }
                });
                if is_lost {
                    self.rebuild(&world, &runner);
                }
                let oracle = self.oracle_client(&world);
                let _ = serving.set(runner.clone());
                let candidate = None::<&Candidate<MasterHost>>;
                runner.serve(store, candidate, &oracle).await
            }
            Err(error) => error,
        };
        self.exit(&world, &format!("its state is not durable: {error}"));
    }
}

impl Register for OwnState {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        std::future::ready(self.file.load()).boxed()
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
        self.swap_in_time(expected, value).boxed()
    }
}

/// How a process waits for the register of the state, which is asked again after this pause.
pub(super) fn state_waits(world: &Arc<World>, node: NodeId, retry: Duration) -> StoreWaits {
    let world = world.clone();
    StoreWaits {
        clock: Arc::new(NodeClock { world, node }),
        retry,
        retry_max: RETRY_MAX,
    }
}

/// The clock of a process.
struct NodeClock {
    world: Arc<World>,
    node: NodeId,
}

impl StoreClock for NodeClock {
    fn now(&self) -> Duration {
        self.world.mono(self.node)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        self.world.sleep_on(self.node, duration).boxed()
    }
}
