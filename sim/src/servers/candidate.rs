//! One of several masters: its part in the election, and the directory of the term in which it leads. As
//! `gc-master/src/leadership.rs`, `server.rs` and `stored.rs` do over a network.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use percolator_client::transport::MasterError;
use percolator_gc_master::{DirectoryState, Start};
use percolator_protocol::election::mutants::{self, ElectionMutant};
use percolator_protocol::election::{
    Command, Election, Member, NamedLeader, RoleKind, StoredLeadership, SwapResult,
};
use percolator_register::{Register, RegisterVersion, SwapError, SwapOutcome, WriteId};
use percolator_server::leadership;
use percolator_wire::v1;
use tokio::sync::Notify;

use crate::messages::{Answer, Caller};
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::servers::master::{Master, address};
use crate::servers::register::{MASTERS, STATE};
use crate::servers::replica::Replicated;
use crate::servers::served::Shared;
use crate::watch::Seen;
use crate::world::World;

/// A leader that finds the state of a later term waits so long to hear that it leads no more.
const STATE_OF_LATER_TERM: Duration = Duration::from_secs(1);
/// How long a register of the state that doesn't answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A state that was read: its version, the term of its writer, and its bytes.
type Loaded = (RegisterVersion, u64, Vec<u8>);

/// A process's part in the election.
pub struct Candidate {
    master: Arc<Master>,
    world: Arc<World>,
    election: Mutex<Election>,
    leadership: Arc<dyn Register>,
    state: Arc<dyn Register>,
    replicated: Replicated,
    member: Member,
    /// The directory of this master's term.
    current: Mutex<Option<(u64, Shared)>>,
    stop: Notify,
    down: Mutex<Duration>,
}

impl Candidate {
    /// Of a process that has begun.
    pub(super) fn new(master: &Arc<Master>, world: &Arc<World>, replicated: &Replicated) -> Self {
        let incarnation = master.dice.of("incarnations", Rng::next).max(1);
        let member = Member {
            name: master.name(),
            address: address(master.number),
            incarnation,
            replica: 0,
        };
        // The holder of the folder's lock knows that those before are dead.
        let dead = std::mem::replace(&mut *master.before.lock(), vec![incarnation]);
        let register = |name| replicated.register(world, master.node, name, &master.dice);
        Self {
            election: Mutex::new(Election::new(member.clone(), dead, replicated.timing)),
            leadership: register(MASTERS),
            state: register(STATE),
            master: master.clone(),
            world: world.clone(),
            replicated: replicated.clone(),
            member,
            current: Mutex::default(),
            stop: Notify::new(),
            down: Mutex::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.world.mono(self.master.node).as_millis()).unwrap_or(u64::MAX)
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.master.mutation == Some(mutation)
    }

    /// The term in which this master leads now.
    fn leading_term(&self) -> Option<u64> {
        let election = self.election.lock();
        let leads = election.leads(self.now_ms())
            || election.role() == RoleKind::Leader && mutants::on(ElectionMutant::RightNeverEnds);
        leads.then(|| election.term())
    }

    /// Whether this master answers now.
    pub(super) fn serves(&self) -> bool {
        let term = self.leading_term();
        let current = self.current.lock();
        term.is_some() && current.as_ref().map(|(term, _)| *term) == term
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
                let election = self.election.lock();
                Err(election.named_leader(self.now_ms()))
            }
        }
    }

    fn see_led(&self, term: u64) {
        let (role, server) = ("master", &*self.member.name);
        self.world.see(&Seen::Led { role, server, term });
        let stored_term = self
            .replicated
            .store
            .state()
            .map_or(0, |(stored_term, _)| stored_term);
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
            let stop = pin!(self.stop.notified());
            select(select(electing, leading), stop).await;
        }
        self.set(None);
        {
            let mut election = self.election.lock();
            election.hand_over();
            election.abandon(self.now_ms());
        }
        let node = self.master.node;
        let left = async {
            while self.election.lock().role() != RoleKind::Left {
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
    async fn lead_again_and_again(&self) {
        let (node, poll) = (self.master.node, self.replicated.poll());
        self.begin_state().await;
        loop {
            let role_term = {
                let election = self.election.lock();
                (election.role() == RoleKind::Leader).then(|| election.term())
            };
            let Some(term) = role_term else {
                self.world.sleep_on(node, poll).await;
                continue;
            };
            let leads_no_more = async {
                loop {
                    self.world.sleep_on(node, poll).await;
                    let election = self.election.lock();
                    if election.role() != RoleKind::Leader || election.term() != term {
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

    fn set(&self, next: Option<(u64, Shared)>) {
        let before = std::mem::replace(&mut *self.current.lock(), next);
        if let Some((_, before)) = before {
            before.close();
        }
    }

    /// Serves in one term. Ends when it can't.
    async fn lead(&self, term: u64) {
        let Some((mut version, shared)) = self.open(term).await else {
            return;
        };
        self.set(Some((term, shared.clone())));
        self.master.collect(&self.world, &shared);
        loop {
            let Some((changes, bytes)) = shared.take_newest() else {
                shared.written.notified().await;
                continue;
            };
            match self.store(version, term, changes, &bytes).await {
                Some(stored) => version = stored,
                None => return,
            }
            shared.durable(changes);
        }
    }

    /// Begins a directory with the stored state, and makes that this term's: from then on each late write of an earlier
    /// leader is a conflict. None: the register can't be asked.
    async fn open(&self, term: u64) -> Option<(RegisterVersion, Shared)> {
        loop {
            let (version, stored_term, bytes) = self.load().await.ok()??;
            if stored_term > term {
                self.world
                    .sleep_on(self.master.node, STATE_OF_LATER_TERM)
                    .await;
            }
            let shared = self
                .master
                .begin_directory(&self.world, Start::State(bytes))?;
            let Some(bytes) = shared.take_begun() else {
                return Some((version, shared));
            };
            if self.has(Mutation::StateNotSwapped) {
                return Some((version, shared));
            }
            let value = encode(term, &bytes);
            match self.state.swap(Some(version), value).await {
                Ok(version) => return Some((version, shared)),
                // The last write of the leader before: it counts.
                Err(SwapError::Conflict { .. }) => {}
                Err(_) => return None,
            }
        }
    }

    /// The state of a new cluster, unless another master was first.
    async fn begin_state(&self) {
        loop {
            match self.load().await {
                Ok(Some(_)) => return,
                Ok(None) => {
                    let begun = self
                        .master
                        .begin_directory(&self.world, Start::NewCluster)
                        .and_then(|begun| begun.take_begun());
                    if let Some(bytes) = begun {
                        let _ = self.state.swap(None, encode(0, &bytes)).await;
                    }
                }
                Err(()) => {}
            }
            let retry = Duration::from_millis(self.replicated.timing.retry_ms);
            self.world.sleep_on(self.master.node, retry).await;
        }
    }

    async fn load(&self) -> Result<Option<Loaded>, ()> {
        let found = self.state.load().await.map_err(drop)?;
        Ok(found.map(|found| {
            let (term, bytes) = decode(&found.value);
            (found.version, term, bytes.to_vec())
        }))
    }

    /// Replaces the state. None: it may be durable or not, or another leader has written since.
    async fn store(
        &self,
        version: RegisterVersion,
        term: u64,
        number: u64,
        bytes: &[u8],
    ) -> Option<RegisterVersion> {
        let node = self.master.node;
        let deadline = self.world.mono(node) + RETRY_MAX;
        let mut undecided: Vec<WriteId> = Vec::new();
        let retry = || {
            let retry = Duration::from_millis(self.replicated.timing.retry_ms);
            self.world.sleep_on(node, retry)
        };
        loop {
            match self.state.swap(Some(version), encode(term, bytes)).await {
                Ok(version) => return Some(version),
                Err(SwapError::Unknown { write, .. }) => undecided.push(write),
                Err(SwapError::Conflict { .. }) if !undecided.is_empty() => {}
                Err(SwapError::Unavailable { .. }) if self.world.mono(node) < deadline => {
                    retry().await;
                    continue;
                }
                Err(_) => return None,
            }
            let name = &self.member.name;
            self.world
                .note(|| format!("{name} asks what became of change {number}"));
            let found = loop {
                match self.state.load().await {
                    Ok(found) => break found,
                    Err(_) if self.world.mono(node) >= deadline => return None,
                    Err(_) => retry().await,
                }
            };
            // All of them store the same.
            let outcomes = undecided
                .iter()
                .map(|write| SwapOutcome::of(*write, Some(version), found.as_ref()));
            let mut happened = outcomes.clone().filter_map(|outcome| match outcome {
                SwapOutcome::Happened(version) => Some(version),
                SwapOutcome::Undecided | SwapOutcome::Superseded => None,
            });
            if let Some(version) = happened.next() {
                return Some(version);
            }
            let mut outcomes = outcomes;
            if outcomes.any(|outcome| outcome == SwapOutcome::Superseded)
                || self.world.mono(node) >= deadline
            {
                return None;
            }
        }
    }

    /// Gives the leadership up, and takes part again when another master had time to take over.
    async fn resign(&self) {
        let node = self.master.node;
        let name = &self.member.name;
        self.world
            .note(|| format!("{name} gives its leadership up"));
        self.election.lock().hand_over();
        let left = async {
            while self.election.lock().role() != RoleKind::Left {
                self.world.sleep_on(node, self.replicated.poll()).await;
            }
        };
        let given_up = self.world.sleep_on(node, self.replicated.hand_over_max());
        select(pin!(left), given_up).await;
        let takeover = Duration::from_millis(self.replicated.timing.takeover_ms);
        self.world.sleep_on(node, takeover).await;
        let mut election = self.election.lock();
        let dead = vec![self.member.incarnation, election.member().incarnation];
        let incarnation = self.master.dice.of("incarnations", Rng::next).max(1);
        self.master.before.lock().push(incarnation);
        let member = Member {
            incarnation,
            ..self.member.clone()
        };
        *election = Election::new(member, dead, self.replicated.timing);
    }
}

impl leadership::Replica for Candidate {
    fn poll(&self) -> Option<Command> {
        self.election.lock().poll(self.now_ms())
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        let now_ms = self.now_ms();
        self.election.lock().loaded(now_ms, result.map_err(drop));
    }

    fn swapped(&self, result: SwapResult, _: Option<&SwapError>, _: Duration) {
        let now_ms = self.now_ms();
        self.election.lock().swapped(now_ms, result);
    }
}

/// A state with the term of its writer.
fn encode(term: u64, state: &[u8]) -> Vec<u8> {
    [&term.to_le_bytes()[..], state].concat()
}

/// The term of a state's writer, and the state.
pub(crate) fn decode(value: &[u8]) -> (u64, &[u8]) {
    let (term, state) = value.split_at(value.len().min(8));
    let term = term.try_into().map_or(0, u64::from_le_bytes);
    (term, state)
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

impl Master {
    /// What one of several shows in this term is durable.
    pub(super) fn check_shown(&self, world: &Arc<World>, term: u64, answer: &Answer) {
        let stored = self.replicated.as_ref().and_then(|it| it.store.state());
        // A later leader has begun with what was durable then.
        let Some((_, bytes)) = stored.filter(|(stored, _)| *stored == term) else {
            return;
        };
        let Ok(state) = DirectoryState::decode(&bytes) else {
            return world.fail("the master starts", "its state can't be read");
        };
        let missing = match answer {
            Answer::Heartbeat(told) if told.barrier > state.gc.barrier => "a barrier",
            Answer::Heartbeat(told) if told.safe_point > state.gc.safe_point => "a safe point",
            Answer::Session(told) if told.barrier > state.gc.barrier => "a barrier",
            Answer::TableCreated(created) if !has_table(&state, created) => "a table",
            _ => return,
        };
        let server = &self.name();
        world.see(&Seen::ShownEarly { server, missing });
    }
}

fn has_table(state: &DirectoryState, created: &v1::CreateTableResponse) -> bool {
    let id = created.table.as_ref().map(|table| table.id);
    id.is_none_or(|id| state.tables.contains_key(&id))
}
