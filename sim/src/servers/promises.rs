//! Promises between the replicas of one register: the record in the folder, and the rounds. As `server/src/promises` has them
//! over a network.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use percolator_protocol::election::{PromiseCall, PromiseRecord, PromiseRequest, Timing};
use percolator_server::SmallFile;
use percolator_server::promises::{IntroducedStandby, Promiser, load_record, store_record};
use tokio::sync::Mutex;

use crate::disk::SimDisk;
use crate::messages::{Answer, Ask, Caller};
use crate::rng::{Dice, Rng};
use crate::servers::STEPS;
use crate::world::{NodeId, World};

/// A promise that takes so many rounds is given up.
const CALL_ROUNDS: u32 = 3;
/// A standby introduces itself each so many rounds.
const INTRODUCTION_ROUNDS: u64 = 5;

/// The record of the promises in a folder, for one process.
pub(super) struct PromiseFile {
    disk: SimDisk,
    /// What the file holds; none after a write that failed. Writes take turns.
    durable: Mutex<Option<PromiseRecord>>,
    writing: parking_lot::Mutex<Option<PromiseRecord>>,
}

impl PromiseFile {
    /// Reads the record of a folder, or begins one.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn open(
        disk: &SimDisk,
        dice: &Dice,
    ) -> Result<(Self, PromiseRecord), percolator_server::Error> {
        let record = load_record(&file(disk), || dice.of("replicas", Rng::next))?;
        let promises = Self {
            disk: disk.clone(),
            durable: Mutex::new(Some(record)),
            writing: parking_lot::Mutex::default(),
        };
        Ok((promises, record))
    }

    /// Makes the newest record durable, which takes so long, and returns it. None: the folder doesn't take it.
    async fn keep(
        &self,
        world: &Arc<World>,
        takes: Duration,
        replica: &impl Promiser,
    ) -> Option<PromiseRecord> {
        let mut durable = self.durable.lock().await;
        let newest = replica.record()?;
        if *durable == Some(newest) {
            return Some(newest);
        }
        *durable = None;
        *self.writing.lock() = Some(newest);
        world.sleep(takes).await;
        *self.writing.lock() = None;
        store_record(&file(&self.disk), &newest).ok()?;
        *durable = Some(newest);
        Some(newest)
    }

    /// The process is killed: a write that is under way may have begun.
    pub(super) fn killed(&self) {
        if let Some(record) = self.writing.lock().take() {
            self.disk.die_within(STEPS);
            // Nobody is there to hear of it.
            let _ = store_record(&file(&self.disk), &record);
        }
    }
}

fn file(disk: &SimDisk) -> SmallFile {
    SmallFile::on(Arc::new(disk.clone()), "promises")
}

/// What a process needs to take part in promises.
#[derive(Clone)]
pub(super) struct PromisePlace {
    pub(super) world: Arc<World>,
    pub(super) node: NodeId,
    pub(super) timing: Timing,
    pub(super) file: Arc<PromiseFile>,
    /// No promise is asked for: a mutant.
    pub(super) asks_nobody: bool,
    /// How long a write takes.
    pub(super) takes: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl PromisePlace {
    /// Asks the others while this one leads, and introduces this one otherwise.
    pub(super) async fn run<P: Promiser>(&self, replica: &Arc<P>) -> Infallible {
        let every = Duration::from_millis(self.timing.promise_ms);
        let mut rounds = 0;
        loop {
            {
                let begun = pin!(replica.term_begun());
                select(self.world.sleep_on(self.node, every), begun).await;
            }
            self.round(replica, every * CALL_ROUNDS);
            // At set times, whether or not a leader is known then: one that is missed comes late, as one that is lost does.
            if rounds % INTRODUCTION_ROUNDS == 0 {
                self.introduce(&**replica, every * CALL_ROUNDS);
            }
            rounds += 1;
        }
    }

    fn round<P: Promiser>(&self, replica: &Arc<P>, timeout: Duration) {
        let Some(round) = replica.ask_promises() else {
            return;
        };
        // While its disk hangs, no further writes wait for it.
        if self.file.writing.lock().is_none() {
            let (place, replica) = (self.clone(), replica.clone());
            let keeping = async move {
                if let Some(record) = place.keep(&*replica).await {
                    replica.kept(&record);
                }
            };
            self.world.spawn(self.node, keeping.boxed());
        }
        if self.asks_nobody {
            return;
        }
        for call in round.calls {
            let (place, replica) = (self.clone(), replica.clone());
            let asking = async move {
                if place.ask(&call, Ask::Promise(call.request), timeout).await {
                    replica.promised(&call);
                }
            };
            self.world.spawn(self.node, asking.boxed());
        }
    }

    /// Asks a peer for a promise; whether it has promised.
    pub(super) async fn ask(&self, call: &PromiseCall, ask: Ask, timeout: Duration) -> bool {
        let to = self.world.network.lock().at(&call.address);
        let Some(to) = to else { return false };
        let asked = self.world.call(self.node, to, ask, timeout).await;
        matches!(asked, Ok(Answer::Promised(true)))
    }

    fn introduce(&self, replica: &impl Promiser, timeout: Duration) {
        let Some(introduction) = replica.introduction() else {
            return;
        };
        let to = self.world.network.lock().at(&introduction.leader);
        let Some(to) = to else { return };
        let ask = Ask::Introduce(introduction.standby);
        let asked = self.world.call(self.node, to, ask, timeout);
        self.world.spawn(self.node, asked.map(drop).boxed());
    }

    /// Makes the newest record durable, and returns it. None: the folder doesn't take it.
    pub(super) async fn keep(&self, replica: &impl Promiser) -> Option<PromiseRecord> {
        self.file.keep(&self.world, (self.takes)(), replica).await
    }

    /// A peer asks for a promise.
    pub(super) fn promise<P: Promiser>(
        &self,
        replica: &Arc<P>,
        caller: Caller,
        request: &PromiseRequest,
    ) {
        if replica.promise(request).is_none() {
            return self.reply(caller, false);
        }
        // It is bound already. The leader may count on it when a later start of this process would know it as well.
        let (place, replica) = (self.clone(), replica.clone());
        let keeping = async move {
            let kept = place.keep(&*replica).await;
            place.reply(caller, kept.is_some());
        };
        self.world.spawn(self.node, keeping.boxed());
    }

    /// A standby has introduced itself.
    pub(super) fn introduced(
        &self,
        replica: &impl Promiser,
        caller: Caller,
        standby: &IntroducedStandby,
    ) {
        replica.introduced(standby);
        self.reply(caller, true);
    }

    pub(super) fn reply(&self, caller: Caller, promised: bool) {
        self.world
            .reply(self.node, caller, Answer::Promised(promised));
    }
}
