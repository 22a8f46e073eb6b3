//! A master's process over a network, as its part in the election uses it: folder, connections, log and metrics.

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
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderValue};
use tower::util::MapResponse;

use crate::candidate::{Candidate, Host, NotLeading};
use crate::copies::CopyFile;
use crate::metrics::{Metrics, ShownRight};
use crate::runner_host::NetworkRunnerHost;
use crate::serving::Serving;
use crate::standbys::Standbys;

/// A copy that takes longer is sent again.
const COPY_TIMEOUT: Duration = Duration::from_secs(2);
/// One of several masters, over a network.
pub(crate) type Replica = Candidate<NetworkHost>;

/// What a master over a network serves.
pub(crate) type NetworkServing = Serving<NetworkHost, NetworkRunnerHost>;

/// The same service, whose answers say which cluster this folder's is, and where all masters are.
pub(crate) fn names_cluster(
    service: impl GrpcService,
    folder: Arc<Folder>,
    serving: Arc<NetworkServing>,
) -> impl GrpcService {
    MapResponse::new(service, move |mut response: http::Response<Body>| {
        let cluster_id = folder.cluster_id().map(HeaderValue::try_from);
        if let Some(Ok(cluster_id)) = cluster_id {
            response.headers_mut().insert(CLUSTER, cluster_id);
        }
        let masters = serving.candidate().and_then(|it| it.host().masters());
        if let Some(masters) = masters {
            response.headers_mut().insert(MASTERS, masters);
        }
        response
    })
}

impl From<NotLeading> for Status {
    fn from(why: NotLeading) -> Self {
        match why {
            NotLeading::RightEnded => percolator_wire::right_ended("master"),
            NotLeading::Standby(leader) => percolator_wire::not_leader("master", leader.as_ref()),
            NotLeading::Stopping => Self::unavailable("the master is stopping"),
        }
    }
}

/// The process of one of several masters, with its network, its folder and what it shows.
pub(crate) struct NetworkHost {
    /// Of its state, in its folder.
    copies: CopyFile,
    outage: RegisterOutage,
    logged: Mutex<Option<LoggedElection>>,
    /// The other masters, as far as this one knows them.
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

    /// Where all masters are that this one knows.
    fn masters(&self) -> Option<HeaderValue> {
        self.masters.read().clone()
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
