//! Which of several masters serves: the directory of the term in which this one leads, and what a process over a network is to
//! its part in the election.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use percolator_protocol::election::{
    MasterReplica, Member, PromiseCall, RoleKind, StateNumber, StoredLeadership,
};
use percolator_server::leadership::RegisterOutage;
use percolator_server::promises::{IntroducedReplica, PromiseRefusal, send_copy};
use percolator_server::{Folder, GrpcService, boot_time};
use percolator_wire::{CLUSTER, MASTERS, v1};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderValue};
use tower::util::MapResponse;

use crate::candidate::{Candidate, Host, NotLeading};
use crate::copies::CopyFile;
use crate::core::Directory;
use crate::metrics::{Metrics, ShownRight};
use crate::runner::Runner;
use crate::standbys::Standbys;

/// A copy that takes longer is sent again.
const COPY_TIMEOUT: Duration = Duration::from_secs(2);
/// A planned end waits so long for requests that wait for tablet servers: well below the request timeout of those who are refused meanwhile.
const DRAINED_WITHIN: Duration = Duration::from_secs(2);

/// One of several masters, over a network.
pub(crate) type Replica = Candidate<NetworkHost>;

/// The directory that answers requests at the moment, if this master may answer any.
pub(crate) struct Serving {
    /// None if this master is alone.
    candidate: Option<Arc<Replica>>,
    current: RwLock<Option<Arc<Runner>>>,
    admits: Mutex<Admission>,
    /// How many requests wait for tablet servers.
    waiting: watch::Sender<usize>,
}

/// A planned end waits so long for servers to hear of it: more than the interval of their heartbeats.
const ANNOUNCED_WITHIN: Duration = Duration::from_millis(700);
/// How often it is looked whether they have.
const ANNOUNCED_POLL: Duration = Duration::from_millis(10);

/// Which requests a master takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// All.
    All,
    /// It is about to end: those alone that wait for nobody.
    Immediate,
    /// None: those before are being made durable.
    Nothing,
}

/// A request that may wait for tablet servers, for as long as the value lives.
pub(crate) struct WaitingRequest<'a>(&'a watch::Sender<usize>);

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl Serving {
    /// Of a master that is alone, and serves this directory.
    pub(crate) fn alone(runner: Arc<Runner>) -> Self {
        Self {
            current: RwLock::new(Some(runner)),
            ..Self::new(None)
        }
    }

    /// Of one of several masters.
    pub(crate) fn elected(candidate: Arc<Replica>) -> Self {
        Self::new(Some(candidate))
    }

    fn new(candidate: Option<Arc<Replica>>) -> Self {
        Self {
            candidate,
            current: RwLock::default(),
            admits: Mutex::new(Admission::All),
            waiting: watch::Sender::default(),
        }
    }

    pub(crate) fn candidate(&self) -> Option<&Arc<Replica>> {
        self.candidate.as_ref()
    }

    /// The directory to ask. To be called when the request was read: see [`Candidate::leading_term`].
    ///
    /// # Errors
    /// The answer of a master that doesn't lead.
    pub(crate) fn runner(&self) -> Result<Arc<Runner>, Status> {
        let current = || self.current.read().clone();
        let Some(candidate) = &self.candidate else {
            return current().ok_or_else(|| Status::unavailable("the master is stopping"));
        };
        let term = candidate.leading_term().map_err(refused)?;
        // A leader that still reads the state answers as one that doesn't lead yet, and one that ends as one that does no more.
        let admits = *self.admits.lock() != Admission::Nothing;
        current()
            .filter(|runner| admits && runner.term() == term)
            .ok_or_else(|| percolator_wire::not_leader("master", None))
    }

    /// As [`Self::runner`], for a request that may wait for tablet servers.
    ///
    /// # Errors
    /// Also when this master is about to end: the next leader is to be asked.
    pub(crate) fn runner_to_wait(&self) -> Result<(Arc<Runner>, WaitingRequest<'_>), Status> {
        let runner = self.runner()?;
        if *self.admits.lock() != Admission::All {
            return Err(percolator_wire::not_leader("master", None));
        }
        self.waiting.send_modify(|waiting| *waiting += 1);
        Ok((runner, WaitingRequest(&self.waiting)))
    }

    /// Before a planned end of one of several masters: servers have heard that they are to send heartbeats often, so that the next leader soon knows
    /// where all tablets are; requests that wait for tablet servers are done, unless that takes long, and all that was changed is durable. Others are answered as long as nobody else could, and are sent to the next leader then.
    pub(crate) async fn drain(&self) {
        let Some((candidate, runner)) = self.candidate.as_ref().zip(self.current()) else {
            return;
        };
        let announced = async {
            while let Ok(false) = runner.step(Directory::announce_end).await {
                tokio::time::sleep(ANNOUNCED_POLL).await;
            }
        };
        // Meanwhile everything goes on.
        let _ = tokio::time::timeout(ANNOUNCED_WITHIN, announced).await;
        *self.admits.lock() = Admission::Immediate;
        let mut waiting = self.waiting.subscribe();
        let none_waits = waiting.wait_for(|waiting| *waiting == 0);
        let _ = tokio::time::timeout(DRAINED_WITHIN, none_waits).await;
        *self.admits.lock() = Admission::Nothing;
        // What isn't durable by then is answered as unknown.
        let right = Duration::from_millis(candidate.timing().right_ms);
        let _ = tokio::time::timeout(right, runner.settled()).await;
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

    /// Where all masters are that this one knows, for the answers of one of several.
    fn masters(&self) -> Option<HeaderValue> {
        self.candidate()?.host().masters.read().clone()
    }

    /// Why nobody is answered, if so. A standby that sees its leader renew its right is as it should be.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let Some(candidate) = &self.candidate else {
            return Ok(());
        };
        match self.runner() {
            Ok(_) => Ok(()),
            Err(_) if candidate.replica().election().has_live_leader(boot_ms()) => Ok(()),
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

/// The same service, whose answers say which cluster this folder's is, and where all masters are.
pub(crate) fn names_cluster(
    service: impl GrpcService,
    folder: Arc<Folder>,
    serving: Arc<Serving>,
) -> impl GrpcService {
    MapResponse::new(service, move |mut response: http::Response<Body>| {
        let cluster_id = folder.cluster_id().map(HeaderValue::try_from);
        if let Some(Ok(cluster_id)) = cluster_id {
            response.headers_mut().insert(CLUSTER, cluster_id);
        }
        if let Some(masters) = serving.masters() {
            response.headers_mut().insert(MASTERS, masters);
        }
        response
    })
}

/// The answer of a master that may not act: it names the one that leads, if that is known.
fn refused(why: NotLeading) -> Status {
    match why {
        NotLeading::RightEnded => percolator_wire::right_ended("master"),
        NotLeading::Standby(leader) => percolator_wire::not_leader("master", leader.as_ref()),
    }
}

/// The process of one of several masters, with its network, its folder and what it shows.
pub(crate) struct NetworkHost {
    /// Of its state, in its folder.
    copies: CopyFile,
    outage: RegisterOutage,
    logged: Mutex<Option<LoggedElection>>,
    /// The other masters, as far as this one has heard of them.
    standbys: Standbys,
    /// The addresses of all, for clients.
    masters: RwLock<Option<HeaderValue>>,
    metrics: Arc<Metrics>,
}

/// What is logged when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoggedElection {
    role: RoleKind,
    term: u64,
    leader: Option<Member>,
}

impl NetworkHost {
    /// Of the master of this name.
    pub(crate) fn new(server: &str, copies: CopyFile, metrics: Arc<Metrics>) -> Self {
        metrics.leadership.show(RoleKind::Standby, 0, false);
        Self {
            copies,
            outage: RegisterOutage::default(),
            logged: Mutex::default(),
            standbys: Standbys::new(server.to_owned()),
            masters: RwLock::default(),
            metrics,
        }
    }

    /// Adds the masters beside this one, which leads.
    pub(crate) fn show_standbys(&self, response: &mut v1::DirectoryResponse) {
        self.standbys.show(boot_ms(), response);
    }

    fn name_masters(&self, addresses: &[&str]) {
        let named = addresses.join(",");
        let is_known = |known: &HeaderValue| known.as_bytes() == named.as_bytes();
        if !self.masters.read().as_ref().is_some_and(is_known) {
            *self.masters.write() = HeaderValue::try_from(named).ok();
        }
    }

    /// How long this master's last takeover took.
    pub(crate) fn last_takeover(&self) -> Option<Duration> {
        self.metrics.leadership.last_takeover()
    }

    /// Brings the metrics of its right up to date.
    pub(crate) fn show_right(&self, replica: &MasterReplica) {
        let now_ms = boot_ms();
        self.metrics.show_right(ShownRight {
            is_promised: replica.is_promised(now_ms),
            is_by_promises: replica.election().leads_by_promises(now_ms),
            is_ahead: replica.is_ahead(),
        });
    }
}

impl Host for NetworkHost {
    fn now_ms(&self) -> u64 {
        boot_ms()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn new_incarnation(&self) -> u64 {
        rand::random::<u64>().max(1)
    }

    async fn send_copy(
        &self,
        call: &PromiseCall,
        number: u64,
        state: &Arc<Vec<u8>>,
    ) -> Result<(), String> {
        let sent = send_copy(call, number, state.to_vec(), COPY_TIMEOUT).await;
        sent.map_err(|status| status.message().to_owned())
    }

    async fn keep_copy(
        &self,
        register: u64,
        number: StateNumber,
        state: Arc<Vec<u8>>,
    ) -> Result<(), PromiseRefusal> {
        self.copies.keep(register, number, state).await
    }

    async fn load_copy(
        &self,
        register: u64,
    ) -> Result<Option<(StateNumber, Vec<u8>)>, percolator_server::Error> {
        self.copies.load(register).await
    }

    fn elected(&self, now_ms: u64, replica: &MasterReplica) {
        let election = replica.election();
        let (role, term) = (replica.role(), replica.term());
        let metrics = &self.metrics.leadership;
        metrics.show(role, term, replica.leads(now_ms));
        self.name_masters(&election.addresses(now_ms));
        let state = LoggedElection {
            role,
            term,
            leader: election.leader().cloned(),
        };
        let mut logged = self.logged.lock();
        if logged.as_ref() != Some(&state) {
            log(&state);
            *logged = Some(state);
        }
    }

    fn loaded(
        &self,
        now_ms: u64,
        replica: &MasterReplica,
        result: &Result<Option<StoredLeadership>, String>,
    ) {
        self.outage.loaded("masters", result);
        let found = result.as_ref().ok().and_then(Option::as_ref);
        let own = replica.election().member().incarnation;
        self.metrics.leadership.loaded(found, own);
        if let Some(found) = found {
            self.standbys.loaded(now_ms, found);
        }
    }

    fn introduced(&self, now_ms: u64, standby: &IntroducedReplica) {
        if standby.is_leaving {
            self.standbys.left(&standby.server);
        } else {
            self.standbys.introduced(now_ms, standby);
        }
    }

    fn count_promise(&self, result: &'static str) {
        self.metrics.promise(result);
    }
}

/// A monotonic clock that goes on while the machine sleeps.
fn boot_ms() -> u64 {
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
