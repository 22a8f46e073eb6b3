//! One of several masters: the process around `gc-master`'s part in the election, and the directory of the term in which it leads.
//! As `gc-master/src/server.rs` does over a network.

mod host;
mod shown;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use percolator_client::transport::MasterError;
use percolator_gc_master::{
    Candidate, Host as _, NotLeading, PersistError, Serving, Start, StateStore, StoreWaits,
    WaitingRequest,
};
use percolator_protocol::election::{Member, NamedLeader, StateNumber, StateSource};
use percolator_register::Register;
use percolator_server::leadership::beside;
use percolator_server::promises::take_leave;

use crate::messages::{Answer, Ask, Caller};
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::seen::{Seen, ShownState};
use crate::servers::alone::state_waits;
use crate::servers::copies::CopyFile;
pub(super) use crate::servers::elected_master::host::MasterHost;
use crate::servers::master::{Master, address};
use crate::servers::promises::{PromiseFile, PromisePlace};
use crate::servers::register::{MASTERS, STATE};
use crate::servers::replica::Replicated;
use crate::servers::runner_host::{SimRunner, SimRunnerHost};
use crate::world::World;
use tokio::sync::Notify;

/// A process of one of several masters.
pub struct ElectedMaster {
    master: Arc<Master>,
    world: Arc<World>,
    candidate: Arc<Candidate<MasterHost>>,
    state: Arc<dyn Register>,
    replicated: Replicated,
    serving: Serving<MasterHost, SimRunnerHost>,
    /// The state of the register that was read last, and how far it is.
    read: Mutex<Option<(Vec<u8>, ShownState)>>,
    stop: Notify,
    /// It was asked to end in order; another one is started this long after that.
    ends: Mutex<Option<Duration>>,
}

impl ElectedMaster {
    /// Of a process that has begun.
    ///
    /// # Errors
    /// Its folder can't be read now.
    pub(super) fn new(
        master: &Arc<Master>,
        world: &Arc<World>,
        replicated: &Replicated,
    ) -> Result<Self, percolator_server::Error> {
        let (file, record) = PromiseFile::open(&master.disk, &master.dice)?;
        let copies = CopyFile::open(&master.disk)?;
        let incarnation = master.dice.of("incarnations", Rng::next).max(1);
        let member = Member {
            name: master.name(),
            address: address(master.number),
            incarnation,
            // One without a number asks nobody for promises, and gives none.
            replica: if replicated.promises {
                record.replica
            } else {
                0
            },
        };
        // The holder of the folder's lock knows that those before are dead.
        let dead = std::mem::replace(&mut *master.before.lock(), vec![incarnation]);
        let takes: Arc<dyn Fn() -> Duration + Send + Sync> = {
            let (master, world) = (master.clone(), world.clone());
            Arc::new(move || {
                let write = *master.write.lock();
                let hangs = master.hangs_until.lock().saturating_sub(world.now());
                hangs + master.dice.of("records", |rng| rng.about(write))
            })
        };
        let promises = PromisePlace {
            world: world.clone(),
            node: master.node,
            timing: replicated.timing,
            file: Arc::new(file),
            asks_nobody: replicated.mutation == Some(Mutation::PromisesNotAsked),
            takes: takes.clone(),
        };
        let register = |name| replicated.register(world, master.node, name, &master.dice);
        let host = MasterHost {
            master: master.clone(),
            promises,
            copies: Arc::new(copies),
        };
        let leadership = (register(MASTERS), replicated.timing);
        let candidate = Candidate::new(host, (member, dead), leadership, record);
        let candidate = Arc::new(candidate);
        Ok(Self {
            serving: Serving::elected(candidate.clone()),
            candidate,
            state: register(STATE),
            master: master.clone(),
            world: world.clone(),
            replicated: replicated.clone(),
            read: Mutex::default(),
            stop: Notify::new(),
            ends: Mutex::default(),
        })
    }

    fn name(&self) -> &str {
        &self.candidate.member().name
    }

    fn promises(&self) -> &PromisePlace {
        &self.candidate.host().promises
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.master.mutation == Some(mutation)
    }

    /// Whether this master answers now.
    pub(super) fn serves(&self) -> bool {
        self.serving.runner().is_ok()
    }

    /// The term in which this master serves, if it could go on now without its register.
    pub(super) fn promised_term(&self) -> Option<u64> {
        let now_ms = self.candidate.host().now_ms();
        let is_promised = self.candidate.replica().is_promised(now_ms);
        let term = self.candidate.leading_term().ok()?;
        (is_promised && self.serves()).then_some(term)
    }

    /// Whether this master has shown what the register may not have.
    pub(super) fn is_ahead(&self) -> bool {
        self.candidate.replica().is_ahead()
    }

    /// The process is killed.
    pub(super) fn killed(&self) {
        self.promises().file.killed();
        self.candidate.host().copies.killed();
    }

    /// The directory that answers a request. `waits`: the request may wait for tablet servers.
    ///
    /// # Errors
    /// The master that leads, if it is known.
    pub(super) fn admit(
        &self,
        waits: bool,
    ) -> Result<(Arc<SimRunner>, Option<WaitingRequest<'_>>), Option<NamedLeader>> {
        let admitted = if waits {
            let admitted = self.serving.runner_to_wait();
            admitted.map(|(runner, waiting)| (runner, Some(waiting)))
        } else {
            self.serving.runner().map(|runner| (runner, None))
        };
        let admitted = match (admitted, self.serving.current()) {
            (Err(_), Some(runner))
                if self.has(Mutation::StandbyAnswers) && self.candidate.leading_term().is_err() =>
            {
                Ok((runner, None))
            }
            (admitted, _) => admitted,
        };
        match admitted {
            Ok(admitted) => {
                self.see_led(admitted.0.term());
                Ok(admitted)
            }
            Err(NotLeading::Standby(leader)) => Err(leader),
            Err(NotLeading::RightEnded | NotLeading::Stopping) => Err(None),
        }
    }

    fn see_led(&self, term: u64) {
        let (role, server) = ("master", self.name());
        self.world.see(&Seen::Led { role, server, term });
        let stored = self.replicated.store.state();
        let stored_term = stored.map_or(0, |stored| stored.number.term);
        self.world.see(&Seen::ServedState { term, stored_term });
    }

    /// Whether it was asked to end in order: it serves until it is drained, which takes a while.
    pub(super) fn is_ending(&self) -> bool {
        self.ends.lock().is_some()
    }

    /// Asks it to end in order.
    pub(super) fn hand_over(&self, down: Duration) {
        *self.ends.lock() = Some(down);
        self.stop.notify_one();
    }

    /// Takes part until the process is asked to end; then it hands over, and ends.
    async fn run(self: Arc<Self>) {
        {
            let electing = pin!(self.candidate.run());
            let promising = pin!(self.promises().run(&self.candidate));
            let mut part = select(electing, promising);
            {
                let leading = pin!(self.lead_again_and_again());
                let stop = async {
                    self.stop.notified().await;
                    self.serving.drain().await;
                };
                select(&mut part, select(leading, pin!(stop))).await;
            }
            self.serving.set(None);
            beside(part, self.serving.hand_over()).await;
        }
        take_leave(&self.candidate, self.promises()).await;
        let down = self.ends.lock().unwrap_or_default();
        self.master.end(&self.world, down);
    }

    /// Begins the state of a new cluster, and serves in each term in which this master leads; never ends.
    async fn lead_again_and_again(self: &Arc<Self>) {
        self.begin_state().await;
        loop {
            let term = self.candidate.standing().leads().await;
            let failed = {
                let leads_no_more = pin!(self.candidate.standing().leads_no_more(term));
                let lead = pin!(self.lead(term));
                matches!(select(leads_no_more, lead).await, Either::Right(_))
            };
            if !self.has(Mutation::StandbyAnswers) {
                self.serving.set(None);
            }
            if failed {
                let name = self.name();
                self.world
                    .note(|| format!("{name} gives its leadership up"));
                self.candidate.resign().await;
            }
        }
    }

    /// Serves in one term. Ends when it can't.
    async fn lead(self: &Arc<Self>, term: u64) {
        let Some((store, runner)) = self.open(term).await else {
            return;
        };
        self.candidate.stored(StateNumber { term, number: 0 });
        self.serving.set(Some(runner.clone()));
        let oracle = self.master.oracle_client(&self.world);
        runner.serve(store, Some(&*self.candidate), &oracle).await;
    }

    /// Begins a directory with the stored state, or with the copy in its folder if that is later, and makes that this term's:
    /// from then on each late write of an earlier leader is a conflict. None: the register can't be asked.
    async fn open(&self, term: u64) -> Option<(StateStore, Arc<SimRunner>)> {
        loop {
            let copy = self.candidate.own_copy().await.ok()?;
            let (state, waits) = (self.state.clone(), self.waits());
            let loaded = StateStore::load_newest(state, term, waits, copy).await;
            let (mut store, stored, source) = loaded.ok()?;
            let stored = stored?;
            if source == StateSource::Copy {
                self.replicated.store.begun_from_copy();
            }
            let number = stored.number;
            self.candidate.may_store_state(term, number.term).await;
            let opened = shown::state_of(&stored.state);
            let start = Start::State(stored.state);
            let mut directory = self.master.begin_directory(&self.world, start)?;
            let host = self.master.runner_host(&self.world);
            if self.has(Mutation::StateNotSwapped) {
                directory.take_effects();
                self.see_opened(term, number, opened?);
                return Some((store, SimRunner::new(directory, term, host)));
            }
            match SimRunner::open(directory, &mut store, term, host).await {
                Ok((runner, _)) => {
                    self.see_opened(term, number, opened?);
                    return Some((store, runner));
                }
                // The last write of the leader before: it counts.
                Err(PersistError::Superseded) => {}
                Err(_) => return None,
            }
        }
    }

    fn see_opened(&self, term: u64, number: StateNumber, state: ShownState) {
        self.world.see(&Seen::OpenedState {
            term,
            number,
            state,
        });
    }

    fn waits(&self) -> StoreWaits {
        let retry = Duration::from_millis(self.replicated.timing.retry_ms);
        state_waits(&self.world, self.master.node, retry)
    }

    /// The state of a new cluster, unless another master was first.
    async fn begin_state(&self) {
        loop {
            let loaded = StateStore::load(self.state.clone(), 0, self.waits()).await;
            match loaded {
                Ok((_, Some(_))) => return,
                Ok((mut store, None)) => {
                    let begun = self.master.begin_directory(&self.world, Start::NewCluster);
                    let begun = begun.map(|mut directory| directory.take_effects());
                    if let Some(bytes) = begun.and_then(|effects| effects.persist) {
                        let _ = store.store(0, &bytes).await;
                    }
                }
                Err(_) => {}
            }
            let retry = Duration::from_millis(self.replicated.timing.retry_ms);
            self.world.sleep_on(self.master.node, retry).await;
        }
    }
}

impl ElectedMaster {
    /// Answers when it is done. What was asked of a directory that is served no more may have been done, or not.
    pub(super) fn answer_later(
        &self,
        caller: Caller,
        work: impl Future<Output = Option<Answer>> + Send + 'static,
    ) {
        let (world, node) = (self.world.clone(), self.master.node);
        let answer = async move {
            let closed = || {
                let why = "the master has stopped serving before its state was durable";
                Answer::Refused(MasterError::Unavailable(why.to_owned()))
            };
            let answer = work.await.unwrap_or_else(closed);
            world.reply(node, caller, answer);
        };
        self.world.spawn(node, answer.boxed());
    }

    /// Another master asks for a promise or for a copy, or introduces itself. False: it asks something else.
    pub(super) fn answer_peer(&self, caller: Caller, ask: &Ask) -> bool {
        self.promises().answer(&self.candidate, caller, ask)
    }

    /// Begins.
    pub(super) fn begin(self: &Arc<Self>) {
        let (world, node) = (self.world.clone(), self.master.node);
        world.spawn(node, self.clone().run().boxed());
    }
}
