//! Promises between the replicas of one register, as `server/src/promises` has them: here are the simulated network and folder.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_protocol::election::{PromiseCall, PromiseRecord, Timing};
use percolator_server::SmallFile;
use percolator_server::promises::{
    Introduction, PromiseHost, PromiseRefusal, Promiser, RecordKeeper, keep_copy, load_record,
    promise, store_record, take_part,
};
use tokio::sync::{Mutex, oneshot};

use crate::disk::SimDisk;
use crate::messages::{Answer, Ask, Caller};
use crate::rng::{Dice, Rng};
use crate::servers::STEPS;
use crate::servers::under_way::UnderWay;
use crate::world::{NodeId, World};

/// A promise that takes so many rounds is given up.
const CALL_ROUNDS: u32 = 3;

/// The record of the promises in a folder, for one process.
pub(super) struct PromiseFile {
    disk: SimDisk,
    /// What the file holds; none after a write that failed. Writes take turns.
    durable: Mutex<Option<PromiseRecord>>,
    writing: UnderWay<PromiseRecord>,
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
            writing: UnderWay::default(),
        };
        Ok((promises, record))
    }

    /// Makes the newest record durable, which takes so long from its turn on, and returns it. None: the folder doesn't take it.
    async fn keep(
        &self,
        world: &Arc<World>,
        takes: &(dyn Fn() -> Duration + Send + Sync),
        replica: &impl Promiser,
    ) -> Option<PromiseRecord> {
        let mut durable = self.durable.lock().await;
        let newest = replica.record()?;
        if *durable == Some(newest) {
            return Some(newest);
        }
        *durable = None;
        self.writing.wait(newest, world.sleep(takes())).await;
        store_record(&file(&self.disk), &newest).ok()?;
        *durable = Some(newest);
        Some(newest)
    }

    /// The process is killed: a write that is under way may have begun.
    pub(super) fn killed(&self) {
        self.writing.killed(&self.disk, STEPS, |record| {
            let _ = store_record(&file(&self.disk), &record);
        });
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
        take_part(replica, self, self.every()).await
    }

    fn every(&self) -> Duration {
        Duration::from_millis(self.timing.promise_ms)
    }

    /// Asks a peer for what it answers with a promise.
    ///
    /// # Errors
    /// It doesn't promise, or doesn't answer.
    pub(super) async fn ask_peer(
        &self,
        address: &str,
        ask: Ask,
        timeout: Duration,
    ) -> Result<(), String> {
        let to = self.world.network.lock().at(address);
        let to = to.ok_or("nobody is there")?;
        match self.world.call(self.node, to, ask, timeout).await {
            Ok(Answer::Promised(true)) => Ok(()),
            _ => Err("no promise".to_owned()),
        }
    }

    /// Another replica asks for a promise or for a copy, or introduces itself. False: it asks something else.
    pub(super) fn answer<P: Promiser>(&self, replica: &Arc<P>, caller: Caller, ask: &Ask) -> bool {
        let (place, replica) = (self.clone(), replica.clone());
        match ask.clone() {
            Ask::Promise(request) => {
                self.reply_after(
                    caller,
                    async move { promise(&replica, &place, &request).await },
                )
            }
            Ask::KeepCopy { request, state } => self.reply_after(caller, async move {
                keep_copy(&replica, &place, &request, state.to_vec()).await
            }),
            Ask::Introduce(standby) => {
                replica.introduced(&standby);
                self.reply(caller, true);
            }
            _ => return false,
        }
        true
    }

    fn reply_after(
        &self,
        caller: Caller,
        promised: impl Future<Output = Result<(), PromiseRefusal>> + Send + 'static,
    ) {
        let place = self.clone();
        let answering = async move { place.reply(caller, promised.await.is_ok()) };
        self.world.spawn(self.node, answering.boxed());
    }

    fn reply(&self, caller: Caller, promised: bool) {
        self.world
            .reply(self.node, caller, Answer::Promised(promised));
    }
}

impl RecordKeeper for PromisePlace {
    async fn keep<P: Promiser>(&self, replica: &Arc<P>) -> Result<PromiseRecord, String> {
        let (done, kept) = oneshot::channel();
        let (place, replica) = (self.clone(), replica.clone());
        let keeping = async move {
            let kept = place.file.keep(&place.world, &*place.takes, &*replica);
            let kept = kept.await;
            // Perhaps nobody waits for it any more.
            let _ = done.send(kept);
        };
        self.world.spawn(self.node, keeping.boxed());
        let kept = kept.await.ok().flatten();
        kept.ok_or_else(|| "the folder doesn't take it".to_owned())
    }
}

impl PromiseHost for PromisePlace {
    fn now(&self) -> Duration {
        self.world.mono(self.node)
    }

    async fn sleep(&self, duration: Duration) {
        self.world.sleep_on(self.node, duration).await;
    }

    async fn ask(&self, call: &PromiseCall) -> Result<(), String> {
        if self.asks_nobody {
            return Err("nobody is asked".to_owned());
        }
        let (ask, timeout) = (Ask::Promise(call.request), self.every() * CALL_ROUNDS);
        self.ask_peer(&call.address, ask, timeout).await
    }

    async fn introduce(&self, introduction: Introduction) {
        let ask = Ask::Introduce(introduction.replica);
        let timeout = self.every() * CALL_ROUNDS;
        // It is sent again.
        let _ = self.ask_peer(&introduction.to, ask, timeout).await;
    }
}
