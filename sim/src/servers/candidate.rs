//! One of several masters: its part in the election, and the directory of the term in which it leads. As
//! `gc-master/src/leadership.rs`, `server.rs` and `runner.rs` do over a network.

mod promising;
mod shown;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use parking_lot::{Mutex, MutexGuard};
use percolator_client::transport::MasterError;
use percolator_gc_master::{PersistError, Start, StateStore, StoreClock, StoreWaits};
use percolator_protocol::election::mutants::{self, ElectionMutant};
use percolator_protocol::election::{
    Command, MasterReplica, Member, NamedLeader, RoleKind, StateNumber, StateSource,
    StoredLeadership, SwapResult,
};
use percolator_register::{BoxFuture, Register, SwapError};
use percolator_server::leadership;
use tokio::sync::Notify;

use crate::messages::{Answer, Caller};
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::servers::copies::CopyFile;
use crate::servers::master::{Master, address};
use crate::servers::oracle::WRITE;
use crate::servers::promises::{PromiseFile, PromisePlace};
use crate::servers::register::{MASTERS, STATE};
use crate::servers::replica::Replicated;
use crate::servers::served::Shared;
use crate::watch::Seen;
use crate::world::{NodeId, World};

/// A leader that finds the state of a later term waits so long to hear that it leads no more.
const STATE_OF_LATER_TERM: Duration = Duration::from_secs(1);
/// How long a register of the state that doesn't answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A process's part in the election.
pub struct Candidate {
    master: Arc<Master>,
    world: Arc<World>,
    replica: Mutex<MasterReplica>,
    promises: PromisePlace,
    copies: CopyFile,
    /// A term of it has begun: its folder is to keep that, and the others are to promise.
    begun: Notify,
    begun_term: Mutex<Option<u64>>,
    leadership: Arc<dyn Register>,
    state: Arc<dyn Register>,
    replicated: Replicated,
    member: Member,
    /// The directory of this master's term.
    current: Mutex<Option<(u64, Shared)>>,
    stop: Notify,
    down: Mutex<Duration>,
}

/// The clock of a master's process.
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

impl Candidate {
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
        let mut replica = MasterReplica::new(member.clone(), dead, replicated.timing);
        replica.restore(now_ms(world, master.node), record);
        let takes = {
            let master = master.clone();
            move || master.dice.of("records", |rng| rng.about(WRITE))
        };
        let promises = PromisePlace {
            world: world.clone(),
            node: master.node,
            timing: replicated.timing,
            file: Arc::new(file),
            asks_nobody: replicated.mutation == Some(Mutation::PromisesNotAsked),
            takes: Arc::new(takes),
        };
        let register = |name| replicated.register(world, master.node, name, &master.dice);
        Ok(Self {
            replica: Mutex::new(replica),
            promises,
            copies,
            begun: Notify::new(),
            begun_term: Mutex::default(),
            leadership: register(MASTERS),
            state: register(STATE),
            master: master.clone(),
            world: world.clone(),
            replicated: replicated.clone(),
            member,
            current: Mutex::default(),
            stop: Notify::new(),
            down: Mutex::default(),
        })
    }

    fn now_ms(&self) -> u64 {
        now_ms(&self.world, self.master.node)
    }

    fn replica(&self) -> MutexGuard<'_, MasterReplica> {
        self.replica.lock()
    }

    /// Whether this master may act as the leader now.
    fn may_act(&self) -> bool {
        self.replica().leads(self.now_ms())
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.master.mutation == Some(mutation)
    }

    /// The term in which this master leads now.
    fn leading_term(&self) -> Option<u64> {
        let replica = self.replica();
        let leads = replica.leads(self.now_ms())
            || replica.role() == RoleKind::Leader && mutants::on(ElectionMutant::RightNeverEnds);
        leads.then(|| replica.term())
    }

    /// Whether this master answers now.
    pub(super) fn serves(&self) -> bool {
        let term = self.leading_term();
        let current = self.current.lock();
        term.is_some() && current.as_ref().map(|(term, _)| *term) == term
    }

    /// The term in which this master serves, if it could go on now without its register.
    pub(super) fn promised_term(&self) -> Option<u64> {
        let is_promised = self.replica().is_promised(self.now_ms());
        self.leading_term().filter(|_| is_promised && self.serves())
    }

    /// Whether the register may lack what this master has shown.
    pub(super) fn is_ahead(&self) -> bool {
        self.replica().is_ahead()
    }

    /// The process is killed.
    pub(super) fn killed(&self) {
        self.promises.file.killed();
        self.copies.killed();
    }

    /// The directory to ask, for a request that was read.
    ///
    /// # Errors
    /// The master that leads, if it is known.
    pub(super) fn directory(&self) -> Result<(u64, Shared), Option<NamedLeader>> {
        let term = self.leading_term();
        let current = self.current.lock().clone();
        match (term, current) {
            (Some(term), Some((of, shared))) if term == of => {
                self.see_led(term);
                Ok((term, shared))
            }
            (None, Some((of, shared))) if self.has(Mutation::StandbyAnswers) => {
                self.see_led(of);
                Ok((of, shared))
            }
            (Some(_), _) => Err(None),
            (None, _) => {
                let leader = self.replica().named_leader(self.now_ms());
                Err(leader)
            }
        }
    }

    fn see_led(&self, term: u64) {
        let (role, server) = ("master", &*self.member.name);
        self.world.see(&Seen::Led { role, server, term });
        let stored = self.replicated.store.state();
        let stored_term = stored.map_or(0, |stored| stored.number.term);
        self.world.see(&Seen::ServedState { term, stored_term });
    }

    /// Told to end in order.
    pub(super) fn hand_over(&self, down: Duration) {
        *self.down.lock() = down;
        self.stop.notify_one();
    }

    /// Takes part until the process is told to end; then it hands over, and ends.
    pub(super) async fn run(self: Arc<Self>) {
        {
            let electing = pin!(self.elect());
            let leading = pin!(self.lead_again_and_again());
            let promising = pin!(self.promises.run(&self));
            let stop = pin!(self.stop.notified());
            select(select(select(electing, leading), promising), stop).await;
        }
        self.set(None);
        {
            let now_ms = self.now_ms();
            let mut replica = self.replica();
            replica.hand_over();
            replica.abandon(now_ms);
        }
        let node = self.master.node;
        let left = async {
            while self.replica().role() != RoleKind::Left {
                leadership::drive(&*self.leadership, &*self).await;
                self.world.sleep_on(node, self.replicated.poll()).await;
            }
        };
        let given_up = self.world.sleep_on(node, self.replicated.hand_over_max());
        select(pin!(left), given_up).await;
        let down = *self.down.lock();
        self.master.end(&self.world, down);
    }

    async fn elect(&self) {
        loop {
            leadership::drive(&*self.leadership, self).await;
            let poll = self.replicated.poll();
            self.world.sleep_on(self.master.node, poll).await;
        }
    }

    /// Begins the state of a new cluster, and serves in each term in which this master leads; never ends.
    async fn lead_again_and_again(self: &Arc<Self>) {
        let (node, poll) = (self.master.node, self.replicated.poll());
        self.begin_state().await;
        loop {
            let role_term = self.role_term();
            let Some(term) = role_term else {
                self.world.sleep_on(node, poll).await;
                continue;
            };
            let leads_no_more = async {
                loop {
                    self.world.sleep_on(node, poll).await;
                    if self.role_term() != Some(term) {
                        return;
                    }
                }
            };
            let lead = pin!(self.lead(term));
            let failed = match select(pin!(leads_no_more), lead).await {
                Either::Left(_) => false,
                Either::Right(_) => true,
            };
            if !self.has(Mutation::StandbyAnswers) {
                self.set(None);
            }
            if failed {
                self.resign().await;
            }
        }
    }

    /// The term in which this master leads, whether or not its right has ended for the moment.
    fn role_term(&self) -> Option<u64> {
        let replica = self.replica();
        (replica.role() == RoleKind::Leader).then(|| replica.term())
    }

    fn set(&self, next: Option<(u64, Shared)>) {
        let before = std::mem::replace(&mut *self.current.lock(), next);
        if let Some((_, before)) = before {
            before.close();
        }
    }

    /// Serves in one term. Ends when it can't.
    async fn lead(self: &Arc<Self>, term: u64) {
        let Some((store, shared)) = self.open(term).await else {
            return;
        };
        self.replica().stored(StateNumber { term, number: 0 });
        self.set(Some((term, shared.clone())));
        self.master.collect(&self.world, &shared);
        let writing = pin!(self.write(store, term, &shared));
        let copying = pin!(self.copy_what_waits(term, &shared));
        select(writing, copying).await;
    }

    /// Begins a directory with the stored state, or with the copy in its folder if that is later, and makes that this term's:
    /// from then on each late write of an earlier leader is a conflict. None: the register can't be asked.
    async fn open(&self, term: u64) -> Option<(StateStore, Shared)> {
        let (node, poll) = (self.master.node, self.replicated.poll());
        loop {
            let copy = self.own_copy().await.ok()?;
            let (state, waits) = (self.state.clone(), self.waits());
            let (mut store, stored) = StateStore::load(state, term, waits).await.ok()?;
            let in_register = stored.as_ref().map(|stored| stored.number);
            let in_folder = copy.as_ref().map(|copy| copy.number);
            let (number, bytes) = match (StateNumber::take_over(in_register, in_folder), copy) {
                (StateSource::Copy, Some(copy)) => {
                    self.replicated.store.begun_from_copy();
                    (copy.number, copy.state.to_vec())
                }
                _ => {
                    let stored = stored?;
                    (stored.number, stored.state)
                }
            };
            if number.term > term {
                self.world.sleep_on(node, STATE_OF_LATER_TERM).await;
            }
            while !self.replica().may_store_state(self.now_ms()) {
                self.world.sleep_on(node, poll).await;
            }
            let opened = shown::state_of(&bytes);
            let shared = self
                .master
                .begin_directory(&self.world, Start::State(bytes))?;
            if let Some(bytes) = shared.take_begun()
                && !self.has(Mutation::StateNotSwapped)
            {
                match store.store(0, &bytes).await {
                    Ok(()) => {}
                    // The last write of the leader before: it counts.
                    Err(PersistError::Superseded) => continue,
                    Err(_) => return None,
                }
            }
            self.world.see(&Seen::OpenedState {
                term,
                number,
                state: opened?,
            });
            return Some((store, shared));
        }
    }

    /// The state after so many changes is durable: the next leader goes on from it, or from a later one.
    fn durable(&self, term: u64, changes: u64, shared: &Shared) {
        let number = changes;
        self.world
            .see(&Seen::DurableState(StateNumber { term, number }));
        shared.durable(changes);
    }

    /// Writes each new state, until one can't be made durable.
    async fn write(&self, mut store: StateStore, term: u64, shared: &Shared) {
        loop {
            let Some((changes, bytes)) = shared.take_newest() else {
                shared.written.notified().await;
                continue;
            };
            match store.store(changes, &bytes).await {
                // The folders of all masters that could take over have it, or a later one; or nobody is answered now, and the
                // right to answer may come back.
                Err(error) if error.passes() && (shared.is_durable(changes) || !self.may_act()) => {
                    shared.write_again();
                    continue;
                }
                Err(_) => return,
                Ok(()) => {}
            }
            let number = changes;
            self.replica().stored(StateNumber { term, number });
            self.durable(term, changes, shared);
        }
    }

    fn waits(&self) -> StoreWaits {
        let clock = NodeClock {
            world: self.world.clone(),
            node: self.master.node,
        };
        StoreWaits {
            clock: Arc::new(clock),
            retry: Duration::from_millis(self.replicated.timing.retry_ms),
            retry_max: RETRY_MAX,
        }
    }

    /// The state of a new cluster, unless another master was first.
    async fn begin_state(&self) {
        loop {
            let loaded = StateStore::load(self.state.clone(), 0, self.waits()).await;
            match loaded {
                Ok((_, Some(_))) => return,
                Ok((mut store, None)) => {
                    let begun = self
                        .master
                        .begin_directory(&self.world, Start::NewCluster)
                        .and_then(|begun| begun.take_begun());
                    if let Some(bytes) = begun {
                        let _ = store.store(0, &bytes).await;
                    }
                }
                Err(_) => {}
            }
            let retry = Duration::from_millis(self.replicated.timing.retry_ms);
            self.world.sleep_on(self.master.node, retry).await;
        }
    }

    /// Gives the leadership up, and takes part again when another master had time to take over.
    async fn resign(&self) {
        let node = self.master.node;
        let name = &self.member.name;
        self.world
            .note(|| format!("{name} gives its leadership up"));
        self.replica().hand_over();
        let left = async {
            while self.replica().role() != RoleKind::Left {
                self.world.sleep_on(node, self.replicated.poll()).await;
            }
        };
        let given_up = self.world.sleep_on(node, self.replicated.hand_over_max());
        select(pin!(left), given_up).await;
        let takeover = Duration::from_millis(self.replicated.timing.takeover_ms);
        self.world.sleep_on(node, takeover).await;
        let now_ms = self.now_ms();
        let mut replica = self.replica();
        let dead = vec![
            self.member.incarnation,
            replica.election().member().incarnation,
        ];
        let incarnation = self.master.dice.of("incarnations", Rng::next).max(1);
        self.master.before.lock().push(incarnation);
        let member = Member {
            incarnation,
            ..self.member.clone()
        };
        let record = replica.record();
        *replica = MasterReplica::new(member, dead, self.replicated.timing);
        replica.restore(now_ms, record);
    }
}

impl leadership::Replica for Candidate {
    fn poll(&self) -> Option<Command> {
        let now_ms = self.now_ms();
        self.replica().poll(now_ms)
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        let now_ms = self.now_ms();
        self.replica().loaded(now_ms, result.map_err(drop));
        self.follow_term();
    }

    fn swapped(&self, result: SwapResult, _: Option<&SwapError>, _: Duration) {
        let now_ms = self.now_ms();
        self.replica().swapped(now_ms, result);
        self.follow_term();
    }
}

impl Candidate {
    /// Whether a term has begun: the others are to promise, and the folder is to keep it.
    fn follow_term(&self) {
        let leads = self.role_term();
        let before = std::mem::replace(&mut *self.begun_term.lock(), leads);
        if leads.is_some() && leads != before {
            self.begun.notify_one();
        }
    }
}

fn now_ms(world: &Arc<World>, node: NodeId) -> u64 {
    u64::try_from(world.mono(node).as_millis()).unwrap_or(u64::MAX)
}

impl Candidate {
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

    /// Whether it may show what isn't durable: for a mutation.
    pub(super) fn shows_early(&self) -> bool {
        self.has(Mutation::ShownBeforeDurable)
    }

    /// Begins.
    pub(super) fn begin(self: &Arc<Self>) {
        let (world, node) = (self.world.clone(), self.master.node);
        world.spawn(node, self.clone().run().boxed());
    }
}
