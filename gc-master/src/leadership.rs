//! Which of several masters serves: the election over their register, and the directory of the term in which this one leads.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use percolator_protocol::election::{
    Command, MasterReplica, Member, PromiseRecord, RoleKind, StoredLeadership, SwapResult, Timing,
};
use percolator_register::{Register, SwapError};
use percolator_server::leadership::RegisterOutage;
use percolator_server::{boot_time, leadership};
use tokio::sync::{Notify, watch};
use tonic::Status;

use crate::copies::CopyFile;
use crate::metrics::{Metrics, ShownRight};
use crate::runner::Runner;
use crate::standbys::Standbys;

/// A hand-over is given up after so long; a standby takes over without one.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// The directory that answers requests at the moment, if this master may answer any.
pub(crate) struct Serving {
    /// None if this master is alone.
    candidate: Option<Arc<Candidate>>,
    current: RwLock<Option<Arc<Runner>>>,
}

/// This master's part in the election.
pub(crate) struct Candidate {
    replica: Mutex<MasterReplica>,
    register: Arc<dyn Register>,
    /// Of its state, in its folder.
    pub(crate) copies: CopyFile,
    timing: Timing,
    member: Member,
    /// The term in which this master leads, whether or not its right has ended for the moment.
    leads: watch::Sender<Option<u64>>,
    /// A term of it has begun: its folder is to keep that, and the others are to promise.
    pub(crate) begun: Notify,
    outage: RegisterOutage,
    /// The other masters, as far as this one has heard of them.
    pub(crate) standbys: Standbys,
    pub(crate) metrics: Arc<Metrics>,
}

/// What is logged when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoggedElection {
    role: RoleKind,
    term: u64,
    leader: Option<Member>,
}

impl Serving {
    /// Of a master that is alone, and serves this directory.
    pub(crate) fn alone(runner: Arc<Runner>) -> Self {
        Self {
            candidate: None,
            current: RwLock::new(Some(runner)),
        }
    }

    /// Of one of several masters.
    pub(crate) fn elected(candidate: Arc<Candidate>) -> Self {
        Self {
            candidate: Some(candidate),
            current: RwLock::default(),
        }
    }

    pub(crate) fn candidate(&self) -> Option<&Arc<Candidate>> {
        self.candidate.as_ref()
    }

    /// The directory to ask. To be called when the request was read: the clock that decides is read here, and the request
    /// was outstanding then. So a pause at any later moment is harmless.
    ///
    /// # Errors
    /// The answer of a master that doesn't lead.
    pub(crate) fn runner(&self) -> Result<Arc<Runner>, Status> {
        let current = || self.current.read().clone();
        let Some(candidate) = &self.candidate else {
            return current().ok_or_else(|| Status::unavailable("the master is stopping"));
        };
        let term = candidate.leading_term()?;
        // A leader that still reads the state answers as one that doesn't lead yet.
        current()
            .filter(|runner| runner.term() == term)
            .ok_or_else(|| percolator_wire::not_leader("master", None))
    }

    /// The directory, whether or not it may be asked.
    pub(crate) fn current(&self) -> Option<Arc<Runner>> {
        self.current.read().clone()
    }

    /// Requests go to this directory, or to none. The one before answers nothing any more.
    pub(crate) fn set(&self, runner: Option<Arc<Runner>>) {
        let before = std::mem::replace(&mut *self.current.write(), runner);
        if let Some(before) = before {
            before.close();
        }
    }

    /// Why nobody is answered, if so. A standby that sees its leader renew its right is as it should be.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let Some(candidate) = &self.candidate else {
            return Ok(());
        };
        match self.runner() {
            Ok(_) => Ok(()),
            Err(_) if candidate.has_live_leader() => Ok(()),
            Err(status) => Err(status.message().to_owned()),
        }
    }

    /// Stops answering, and lets another master take over at once, if there are several.
    pub(crate) async fn hand_over(&self) {
        if let Some(candidate) = &self.candidate {
            candidate.hand_over().await;
        }
    }
}

impl Candidate {
    /// `dead`: earlier starts that surely answer nobody any more. `record`: what its folder keeps of promises.
    pub(crate) fn new(
        (member, dead): (Member, Vec<u64>),
        (register, timing): (Arc<dyn Register>, Timing),
        (record, copies): (PromiseRecord, CopyFile),
        metrics: Arc<Metrics>,
    ) -> Self {
        metrics.leadership.show(RoleKind::Standby, 0, false);
        let mut replica = MasterReplica::new(member.clone(), dead, timing);
        replica.restore(boot_ms(), record);
        Self {
            replica: Mutex::new(replica),
            register,
            copies,
            timing,
            outage: RegisterOutage::default(),
            standbys: Standbys::new(member.name.clone()),
            member,
            leads: watch::Sender::default(),
            begun: Notify::new(),
            metrics,
        }
    }

    /// Not to be held while anything is waited for.
    pub(crate) fn replica(&self) -> MutexGuard<'_, MasterReplica> {
        self.replica.lock()
    }

    /// Whether this master may act as the leader now.
    pub(crate) fn may_act(&self) -> bool {
        self.replica().leads(boot_ms())
    }

    fn has_live_leader(&self) -> bool {
        self.replica().election().has_live_leader(boot_ms())
    }

    /// Takes part in the election; never ends.
    pub(crate) async fn run(&self) {
        let mut logged = None;
        loop {
            self.drive(&mut logged).await;
            tokio::time::sleep(self.poll()).await;
        }
    }

    /// The term in which this master leads now.
    ///
    /// # Errors
    /// The answer of a master that may not act: it names the one that leads, if that is known.
    fn leading_term(&self) -> Result<u64, Status> {
        let now_ms = boot_ms();
        let replica = self.replica();
        if replica.leads(now_ms) {
            return Ok(replica.term());
        }
        if replica.role() == RoleKind::Leader {
            return Err(percolator_wire::right_ended("master"));
        }
        let leader = replica.named_leader(now_ms);
        Err(percolator_wire::not_leader("master", leader.as_ref()))
    }

    /// Waits until this master leads, and returns the term.
    pub(crate) async fn leads(&self) -> u64 {
        let mut leads = self.leads.subscribe();
        // The sender lives in here, so that this can't fail.
        let term = leads.wait_for(Option::is_some).await.map(|term| *term);
        match term {
            Ok(Some(term)) => term,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Waits until this master doesn't lead in this term any more.
    pub(crate) async fn leads_no_more(&self, term: u64) {
        let mut leads = self.leads.subscribe();
        let _ = leads.wait_for(|leads| *leads != Some(term)).await;
    }

    /// Gives the leadership up, and takes part again after another master had time to take over.
    pub(crate) async fn resign(&self) {
        self.replica().hand_over();
        let left = async {
            while self.replica().role() != RoleKind::Left {
                tokio::time::sleep(self.poll()).await;
            }
        };
        if tokio::time::timeout(HAND_OVER_MAX, left).await.is_err() {
            tracing::warn!(
                "that this master leads no more is not durable: another one takes over in some seconds"
            );
        }
        tokio::time::sleep(Duration::from_millis(self.timing.takeover_ms)).await;
        // Its swaps may be under way: it takes part as another start, for which this one is dead.
        let mut replica = self.replica();
        let dead = vec![
            self.member.incarnation,
            replica.election().member().incarnation,
        ];
        let member = Member {
            incarnation: rand::random::<u64>().max(1),
            ..self.member.clone()
        };
        let record = replica.record();
        *replica = MasterReplica::new(member, dead, self.timing);
        replica.restore(boot_ms(), record);
    }

    /// To be called when [`Self::run`] has ended.
    async fn hand_over(&self) {
        {
            let mut replica = self.replica();
            if replica.is_ahead() {
                tracing::warn!(
                    "the register doesn't have the newest state: nothing is handed over, and a master whose folder has a copy takes \
                     over in some seconds"
                );
            }
            replica.hand_over();
            replica.abandon(boot_ms());
        }
        let left = async {
            let mut logged = None;
            loop {
                self.drive(&mut logged).await;
                if self.replica().role() == RoleKind::Left {
                    return;
                }
                tokio::time::sleep(self.poll()).await;
            }
        };
        if tokio::time::timeout(HAND_OVER_MAX, left).await.is_err() {
            tracing::warn!(
                "the hand-over is not durable: another master takes over in some seconds"
            );
        }
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    pub(crate) fn poll(&self) -> Duration {
        Duration::from_millis(self.timing.poll_ms)
    }

    /// Carries out all commands that are due.
    async fn drive(&self, logged: &mut Option<LoggedElection>) {
        leadership::drive(&*self.register, self).await;
        self.publish();
        let state = {
            let replica = self.replica();
            let election = replica.election();
            LoggedElection {
                role: election.role(),
                term: election.term(),
                leader: election.leader().cloned(),
            }
        };
        if logged.as_ref() != Some(&state) {
            log(&state);
            *logged = Some(state);
        }
    }

    fn publish(&self) {
        let term = {
            let replica = self.replica();
            let (role, term) = (replica.role(), replica.term());
            let metrics = &self.metrics.leadership;
            metrics.show(role, term, replica.leads(boot_ms()));
            (role == RoleKind::Leader).then_some(term)
        };
        let is_new = self.leads.send_if_modified(|leads| {
            let is_new = *leads != term;
            *leads = term;
            is_new
        });
        if is_new && term.is_some() {
            self.begun.notify_one();
        }
    }

    /// Brings the metrics up to date.
    pub(crate) fn show(&self) {
        let now_ms = boot_ms();
        let right = {
            let replica = self.replica();
            ShownRight {
                is_promised: replica.is_promised(now_ms),
                is_by_promises: replica.election().leads_by_promises(now_ms),
                is_ahead: replica.is_ahead(),
            }
        };
        self.metrics.show_right(right);
    }
}

impl leadership::Replica for Candidate {
    fn poll(&self) -> Option<Command> {
        self.replica().poll(boot_ms())
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        self.outage.loaded("masters", &result);
        let result = result.map_err(drop);
        let mut replica = self.replica();
        let found = result.as_ref().ok().and_then(Option::as_ref);
        let own = replica.election().member().incarnation;
        self.metrics.leadership.loaded(found, own);
        let now_ms = boot_ms();
        if let Some(found) = found {
            self.standbys.loaded(now_ms, found);
        }
        replica.loaded(now_ms, result);
        drop(replica);
        self.publish();
    }

    fn swapped(&self, result: SwapResult, cause: Option<&SwapError>, _: Duration) {
        if let Some(error) = cause {
            tracing::debug!(%error, "a swap of the masters' register");
        }
        self.replica().swapped(boot_ms(), result);
        self.publish();
    }
}

/// A monotonic clock that goes on while the machine sleeps.
pub(crate) fn boot_ms() -> u64 {
    u64::try_from(boot_time().as_millis()).unwrap_or(u64::MAX)
}

fn log(state: &LoggedElection) {
    let LoggedElection { role, term, leader } = state;
    match role {
        RoleKind::Leader => tracing::info!(term, "this master leads"),
        RoleKind::Standby => {
            let leader = leader.as_ref().map(|leader| leader.address.as_str());
            tracing::info!(term, leader, "this master is a standby");
        }
        RoleKind::Candidate | RoleKind::HandingOver | RoleKind::Left => {}
    }
}
