//! One of several masters: its part in the election over their register, and the copies of its state in the folders of all. Over
//! a [`Host`], which is a process with a network, or one of the simulator.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all, select};
use parking_lot::{Mutex, MutexGuard};
use percolator_protocol::election::mutants::{self, ElectionMutant};
use percolator_protocol::election::{
    Command, CopyRequest, Election, MasterReplica, Member, NamedLeader, PromiseCall, PromiseRecord,
    PromiseRequest, PromiseRound, RoleKind, StateNumber, StoredLeadership, SwapResult, Timing,
};
use percolator_register::{Register, SwapError};
use percolator_server::SmallFile;
use percolator_server::leadership::{self, Standing};
use percolator_server::promises::{IntroducedReplica, LeaderRight, PromiseRefusal, Promiser};
use tokio::sync::Notify;

/// A state that the register has not taken is copied after so many rounds of promises: 500 ms of the shipped times.
const REGISTER_TIMEOUT_ROUNDS: f64 = 2.5;

/// What one of several masters has around what it decides.
pub trait Host: Send + Sync + 'static {
    /// By a clock that never goes back, and goes on while the machine sleeps.
    fn now_ms(&self) -> u64;

    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// A number that no start of a master has had. Not 0.
    fn new_incarnation(&self) -> u64;

    /// Asks a peer to promise, and to keep a copy of the state of this number. Its folder has it when this succeeds.
    ///
    /// # Errors
    /// Why it may not have it.
    fn send_copy(
        &self,
        call: &PromiseCall,
        number: u64,
        state: &Arc<Vec<u8>>,
    ) -> impl Future<Output = Result<(), String>> + Send;

    /// Keeps a copy of a state of this register in this master's folder, also if nobody waits for it any more. It is durable when
    /// this succeeds.
    ///
    /// # Errors
    /// The folder has a later leader's, or doesn't take it.
    fn keep_copy(
        &self,
        register: u64,
        number: StateNumber,
        state: Arc<Vec<u8>>,
    ) -> impl Future<Output = Result<(), PromiseRefusal>> + Send;

    /// The copy of a state of this register in this master's folder.
    ///
    /// # Errors
    /// It can't be read.
    fn load_copy(
        &self,
        register: u64,
    ) -> impl Future<Output = Result<Option<(StateNumber, Vec<u8>)>, percolator_server::Error>> + Send;

    /// What this master is in the election may have changed.
    fn elected(&self, _now_ms: u64, _replica: &MasterReplica) {}

    /// A load of the register has ended.
    fn loaded(
        &self,
        _now_ms: u64,
        _replica: &MasterReplica,
        _result: &Result<Option<StoredLeadership>, String>,
    ) {
    }

    /// A replica of the same register has introduced itself, or ends.
    fn introduced(&self, _now_ms: u64, _other: &IntroducedReplica) {}

    /// This became of a promise: see [`Promiser::count_promise`].
    fn count_promise(&self, _result: &'static str) {}
}

/// Why a master answers nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotLeading {
    /// It leads, and its right has ended for the moment.
    RightEnded,
    /// It is a standby of this leader, if that is known.
    Standby(Option<NamedLeader>),
    /// It is alone, and stops.
    Stopping,
}

/// A master's part in the election.
pub struct Candidate<H> {
    host: H,
    replica: Mutex<MasterReplica>,
    register: Arc<dyn Register>,
    timing: Timing,
    member: Member,
    standing: Standing,
    /// Its folder has kept a record.
    kept: Notify,
}

impl<H: Host> Candidate<H> {
    /// `dead`: earlier starts that surely answer nobody any more. `record`: what its folder keeps of promises.
    pub fn new(
        host: H,
        (member, dead): (Member, Vec<u64>),
        (register, timing): (Arc<dyn Register>, Timing),
        record: PromiseRecord,
    ) -> Self {
        let now_ms = host.now_ms();
        let mut replica = MasterReplica::new(member.clone(), dead, timing);
        replica.restore(now_ms, record);
        Self {
            host,
            replica: Mutex::new(replica),
            register,
            timing,
            member,
            standing: Standing::default(),
            kept: Notify::new(),
        }
    }

    /// What is around it.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// This start of the master, unless it has resigned since.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// The times of the election.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// How often it checks whether a command is due.
    fn poll(&self) -> Duration {
        Duration::from_millis(self.timing.poll_ms)
    }

    /// A hand-over is given up after so long; a standby takes over without one.
    fn hand_over_max(&self) -> Duration {
        Duration::from_millis(self.timing.right_ms)
    }

    /// What decides. Not to be held while anything is waited for.
    pub fn replica(&self) -> MutexGuard<'_, MasterReplica> {
        self.replica.lock()
    }

    /// Whether this master may act as the leader now.
    pub fn may_act(&self) -> bool {
        self.replica().leads(self.host.now_ms())
    }

    /// The term in which this master leads now. To be called when a request was read: the clock that decides is read here, and
    /// the request was outstanding then, so that a pause at any later moment is harmless.
    ///
    /// # Errors
    /// It may not answer.
    pub fn leading_term(&self) -> Result<u64, NotLeading> {
        let now_ms = self.host.now_ms();
        let replica = self.replica();
        let is_leader = replica.role() == RoleKind::Leader;
        if replica.leads(now_ms) || is_leader && mutants::on(ElectionMutant::RightNeverEnds) {
            return Ok(replica.term());
        }
        if is_leader {
            return Err(NotLeading::RightEnded);
        }
        Err(NotLeading::Standby(replica.named_leader(now_ms)))
    }

    /// Takes part in the election; never ends.
    pub async fn run(&self) -> Infallible {
        loop {
            self.drive().await;
            let hurried = pin!(self.standing.hurried());
            select(pin!(self.host.sleep(self.poll())), hurried).await;
        }
    }

    /// Carries out all commands that are due.
    async fn drive(&self) {
        leadership::drive(&*self.register, self).await;
        self.publish();
    }

    /// What it is in its election.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Gives the leadership up, and takes part again after another master had time to take over. [`Self::run`] goes on meanwhile.
    pub async fn resign(&self) {
        self.leave().await;
        let takeover = Duration::from_millis(self.timing.takeover_ms);
        self.host.sleep(takeover).await;
        // Its swaps may be under way: it takes part as another start, for which this one is dead.
        let now_ms = self.host.now_ms();
        let mut replica = self.replica();
        let dead = vec![
            self.member.incarnation,
            replica.election().member().incarnation,
        ];
        let member = Member {
            incarnation: self.host.new_incarnation(),
            ..self.member.clone()
        };
        let record = replica.record();
        *replica = MasterReplica::new(member, dead, self.timing);
        replica.restore(now_ms, record);
    }

    /// Lets another master take over at once. [`Self::run`] goes on meanwhile.
    pub async fn hand_over(&self) {
        if self.replica().is_ahead() {
            tracing::warn!(
                "the register doesn't have the newest state: nothing is handed over, and a master whose folder has a copy takes \
                 over in some seconds"
            );
        }
        self.leave().await;
    }

    async fn leave(&self) {
        self.replica().hand_over();
        self.publish();
        let given_up = self.host.sleep(self.hand_over_max());
        if !self.standing.is_left_before(given_up).await {
            tracing::warn!(
                "the hand-over is not durable: another master takes over in some seconds"
            );
        }
    }

    fn publish(&self) {
        let now_ms = self.host.now_ms();
        let (role, term) = {
            let replica = self.replica();
            self.host.elected(now_ms, &replica);
            (replica.role(), replica.term())
        };
        self.standing.show(role, term);
    }
}

impl<H: Host> leadership::Replica for Candidate<H> {
    fn poll(&self) -> Option<Command> {
        self.replica().poll(self.host.now_ms())
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        let now_ms = self.host.now_ms();
        {
            let mut replica = self.replica();
            self.host.loaded(now_ms, &replica, &result);
            replica.loaded(now_ms, result.map_err(drop));
        }
        self.publish();
    }

    fn swapped(&self, result: SwapResult, cause: Option<&SwapError>, _: Duration) {
        if let Some(error) = cause {
            tracing::debug!(%error, "a swap of the masters' register");
        }
        self.replica().swapped(self.host.now_ms(), result);
        self.publish();
    }
}

/// What it does of its state.
impl<H: Host> Candidate<H> {
    /// The copy in this master's folder, of the register in which it leads.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn own_copy(
        &self,
    ) -> Result<Option<(StateNumber, Vec<u8>)>, percolator_server::Error> {
        let register = self.replica().register();
        match register {
            Some(register) => self.host.load_copy(register).await,
            None => pending().await,
        }
    }

    /// Waits until this leader may swap the state of its term, after a state of another term.
    pub async fn may_store_state(&self, term: u64, stored_term: u64) {
        if stored_term > term {
            // A later leader has written since, so that this one will soon read that it leads no more. If it doesn't, the
            // register of the leadership was begun anew.
            let takeover = Duration::from_millis(self.timing.takeover_ms);
            self.host.sleep(takeover + self.hand_over_max()).await;
        }
        while !self.replica().may_store_state(self.host.now_ms()) {
            let kept = pin!(self.kept.notified());
            select(pin!(self.host.sleep(self.poll())), kept).await;
        }
    }

    /// The register has this state.
    pub fn stored(&self, state: StateNumber) {
        self.replica().stored(state);
    }

    /// How long a state waits for its register before it is copied.
    pub(crate) fn register_timeout(&self) -> Duration {
        if self
            .replica()
            .election()
            .leads_by_promises(self.host.now_ms())
        {
            return Duration::ZERO;
        }
        self.copy_retry().mul_f64(REGISTER_TIMEOUT_ROUNDS)
    }

    /// The pause after copies that did not make a state durable.
    pub(crate) fn copy_retry(&self) -> Duration {
        Duration::from_millis(self.timing.promise_ms)
    }

    /// Waits for so long.
    pub(crate) async fn pause(&self, duration: Duration) {
        self.host.sleep(duration).await;
    }

    /// Makes this state durable in the folders of all masters that could take over, and in this one's. It may be shown when
    /// this succeeds.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) async fn copy(
        &self,
        state: StateNumber,
        bytes: &Arc<Vec<u8>>,
    ) -> Result<(), String> {
        let (register, calls) = {
            let now_ms = self.host.now_ms();
            let replica = self.replica();
            (replica.register(), replica.ask_copies(now_ms))
        };
        let calls = calls.ok_or("not all masters that could take over are known")?;
        let register = register.ok_or("the register was never read")?;
        let missing = Mutex::new(None);
        let others = calls.into_iter().map(|call| {
            let missing = &missing;
            async move {
                match self.host.send_copy(&call, state.number, bytes).await {
                    Ok(()) => {
                        let now_ms = self.host.now_ms();
                        self.replica().copied(now_ms, &call, state.number);
                    }
                    Err(error) => *missing.lock() = Some(format!("{}: {error}", call.address)),
                }
            }
        });
        let own = async {
            let kept = self.host.keep_copy(register, state, bytes.clone()).await;
            if kept.is_ok() {
                self.replica().copied_own(state);
            }
            kept
        };
        let (kept, _) = join(own, join_all(others)).await;
        match kept {
            Ok(()) => {}
            Err(PromiseRefusal::Refused) => return Err("the folder has a later leader's".into()),
            Err(PromiseRefusal::Failed(error)) => return Err(error),
        }
        if self.replica().show_copied(self.host.now_ms(), state) {
            return Ok(());
        }
        let missing = missing.into_inner();
        Err(missing.unwrap_or_else(|| "this master's right has ended".into()))
    }
}

impl<H: Host> Promiser for Candidate<H> {
    const ROLE: &'static str = "master";
    const COPY_BYTES_MAX: usize = SmallFile::VALUE_BYTES_MAX;

    fn record(&self) -> Option<PromiseRecord> {
        Some(self.replica().record())
    }

    fn ask_promises(&self) -> Option<PromiseRound> {
        self.replica().ask_promises(self.host.now_ms())
    }

    fn kept(&self, record: &PromiseRecord) {
        self.replica().kept(record);
        self.kept.notify_one();
    }

    fn promised(&self, call: &PromiseCall) {
        self.replica().promised(self.host.now_ms(), call);
    }

    fn promise(&self, request: &PromiseRequest) -> Option<PromiseRecord> {
        self.replica().promise(self.host.now_ms(), request)
    }

    fn election<T>(&self, read: impl FnOnce(&Election) -> T) -> Option<T> {
        Some(read(self.replica().election()))
    }

    fn introduced(&self, other: &IntroducedReplica) {
        let now_ms = self.host.now_ms();
        let mut replica = self.replica();
        if replica.register() != Some(other.register) {
            return;
        }
        if other.is_leaving {
            replica.leader_has_ended();
            self.standing.hurry();
        } else {
            replica.introduced(now_ms, &other.peer);
        }
        self.host.introduced(now_ms, other);
    }

    fn right(&self) -> LeaderRight {
        let now_ms = self.host.now_ms();
        let replica = self.replica();
        LeaderRight {
            leads: replica.leads(now_ms),
            is_by_promises: replica.election().leads_by_promises(now_ms),
        }
    }

    async fn term_begun(&self) {
        self.standing.term_begun().await;
    }

    fn count_promise(&self, result: &'static str) {
        self.host.count_promise(result);
    }

    async fn keep_copy(&self, request: &CopyRequest, state: Vec<u8>) -> Result<(), PromiseRefusal> {
        let now_ms = self.host.now_ms();
        let promised = self.replica().keep_copy(now_ms, request);
        promised.ok_or(PromiseRefusal::Refused)?;
        let register = request.promise.register;
        let kept = self
            .host
            .keep_copy(register, request.state(), Arc::new(state));
        kept.await
    }
}
