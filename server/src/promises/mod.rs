//! Promises between the replicas of one register: by these the leader goes on while the register is away.
//!
//! `protocol::election` decides. Here are the messages, the record in the folder, and the rounds. It must not know what a
//! replica does: the oracle and the master are a [`Promiser`] each.

mod folder;
mod rounds;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::election::{
    CopyRequest, Election, Peer, PromiseCall, PromiseRecord, PromiseRequest, PromiseRound, Timing,
};
use percolator_protocol::types::Timestamp;
use percolator_wire::v1::promises_client::PromisesClient;
use percolator_wire::v1::promises_server::{Promises, PromisesServer};
use percolator_wire::{check_cluster, of_cluster, v1};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::{Folder, boot_time};

pub use folder::{PromiseFolder, load_record, store_record, write_in_turn};
pub use rounds::{PromiseHost, RecordKeeper, keep_copy, promise, take_leave, take_part};

/// A promise that takes longer is asked for again: it would hardly count any more.
const CALL_TIMEOUT: Duration = Duration::from_millis(600);
/// A connection is tried so often,
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// and given up if there is no answer for so long.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// The most bytes of a request without a state.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// How a standby introduces itself to the leader, or a replica takes leave of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The address of the other one.
    pub to: String,
    /// The replica.
    pub replica: IntroducedReplica,
}

/// A replica, as it introduces itself or takes leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntroducedReplica {
    /// The id in the register's value.
    pub register: u64,
    /// Its stable name.
    pub server: String,
    /// Its folder, and where it is asked for promises.
    pub peer: Peer,
    /// It ends: a standby is none any more, and a leader has handed over.
    pub is_leaving: bool,
}

impl IntroducedReplica {
    /// Of this election, if it knows its register.
    fn of(election: &Election) -> Option<Self> {
        let member = election.member();
        Some(Self {
            register: election.register()?,
            server: member.name.clone(),
            peer: Peer {
                replica: member.replica,
                address: member.address.clone(),
            },
            is_leaving: false,
        })
    }
}

impl Introduction {
    /// Of a standby to its leader.
    fn to_leader(election: &Election) -> Option<Self> {
        Some(Self {
            to: election.introduces_to()?.to_owned(),
            replica: IntroducedReplica::of(election)?,
        })
    }

    /// Of a replica that ends, to all that are to know it.
    fn leave_takings(election: &Election) -> Vec<Self> {
        let Some(own) = IntroducedReplica::of(election) else {
            return Vec::new();
        };
        let leaving = IntroducedReplica {
            is_leaving: true,
            ..own
        };
        let others = election.take_leave_of().into_iter();
        let takings = others.map(|to| Self {
            to,
            replica: leaving.clone(),
        });
        takings.collect()
    }
}

/// What the right of a leader rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaderRight {
    /// It may act as the leader.
    pub leads: bool,
    /// It leads by promises alone.
    pub is_by_promises: bool,
}

/// A replica of a role that leads by promises. Each method reads the clock.
pub trait Promiser: Send + Sync + 'static {
    /// What one is called in messages: "oracle" or "master".
    const ROLE: &'static str;
    /// The most bytes of a state whose copies its folder keeps; 0: it keeps none.
    const COPY_BYTES_MAX: usize;

    /// What its folder is to keep; none if it is alone.
    fn record(&self) -> Option<PromiseRecord>;

    /// Begins a round of promises, if it leads.
    fn ask_promises(&self) -> Option<PromiseRound>;

    /// Its own folder has the record of a round.
    fn kept(&self, record: &PromiseRecord);

    /// A peer has promised.
    fn promised(&self, call: &PromiseCall);

    /// A peer asks for a promise. None: it doesn't promise.
    fn promise(&self, request: &PromiseRequest) -> Option<PromiseRecord>;

    /// Looks at its part in the election; none if it is alone.
    fn election<T>(&self, read: impl FnOnce(&Election) -> T) -> Option<T>;

    /// A replica has introduced itself or has taken leave. It may be one of another register.
    fn introduced(&self, other: &IntroducedReplica);

    /// What its right rests on now.
    fn right(&self) -> LeaderRight;

    /// Ends when a term of it has begun, for one caller at a time.
    fn term_begun(&self) -> impl Future<Output = ()> + Send;

    /// This became of a promise: a value of the label `result` of its metric.
    fn count_promise(&self, result: &'static str);

    /// A peer asks for a promise, and to keep a copy of this state. It is durable when this ends.
    fn keep_copy(
        &self,
        request: &CopyRequest,
        state: Vec<u8>,
    ) -> impl Future<Output = Result<(), PromiseRefusal>> + Send;
}

/// Why a replica doesn't promise, or keeps no copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseRefusal {
    /// It doesn't promise, or knows a later leader's.
    Refused,
    /// Its folder doesn't take it.
    Failed(String),
}

/// A replica's part in promises, over the network.
pub struct PromiseTask<P> {
    replica: Arc<P>,
    host: NetworkHost,
    every: Duration,
}

impl<P> fmt::Debug for PromiseTask<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromiseTask")
            .field("promises", &self.host.promises)
            .finish_non_exhaustive()
    }
}

impl<P: Promiser> PromiseTask<P> {
    /// Of this replica, whose record is in this folder.
    pub fn new(
        replica: Arc<P>,
        promises: Arc<PromiseFolder>,
        folder: Arc<Folder>,
        timing: Timing,
    ) -> Self {
        let channels = Mutex::default();
        Self {
            replica,
            host: NetworkHost {
                promises,
                folder,
                channels,
            },
            every: Duration::from_millis(timing.promise_ms),
        }
    }

    /// See [`take_part`].
    pub async fn run(&self) -> Infallible {
        take_part(&self.replica, &self.host, self.every).await
    }

    /// See [`take_leave`].
    pub async fn take_leave(&self) {
        take_leave(&self.replica, &self.host).await;
    }
}

/// The network, and a server's folder.
struct NetworkHost {
    promises: Arc<PromiseFolder>,
    folder: Arc<Folder>,
    channels: Mutex<Channels>,
}

impl NetworkHost {
    fn client(&self, address: &str) -> Option<PromisesClient<Channel>> {
        self.channels.lock().of(address).map(PromisesClient::new)
    }

    fn of_cluster<T>(&self, message: T) -> Request<T> {
        of_cluster(message, &self.folder.cluster_id().unwrap_or_default())
    }
}

impl RecordKeeper for NetworkHost {
    async fn keep<P: Promiser>(&self, replica: &Arc<P>) -> Result<PromiseRecord, String> {
        self.promises.keep(replica).await
    }
}

impl PromiseHost for NetworkHost {
    fn now(&self) -> Duration {
        boot_time()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn keep_connections(&self, addresses: &[&str]) {
        self.channels.lock().retain(addresses);
    }

    async fn ask(&self, call: &PromiseCall) -> Result<(), String> {
        let client = self.client(&call.address);
        let mut client = client.ok_or_else(|| format!("{:?} is no address", call.address))?;
        let request = self.of_cluster(message(&call.request));
        let asked = client.promise(request).await;
        asked.map(drop).map_err(|status| status.to_string())
    }

    async fn introduce(&self, introduction: Introduction) {
        if let Some(mut client) = self.client(&introduction.to) {
            let request = self.of_cluster(introduce(introduction.replica));
            let _ = client.introduce(request).await;
        }
    }
}

fn introduce(replica: IntroducedReplica) -> v1::IntroduceRequest {
    v1::IntroduceRequest {
        register: replica.register,
        replica: replica.peer.replica,
        address: replica.peer.address,
        server: replica.server,
        leaving: replica.is_leaving,
    }
}

fn message(request: &PromiseRequest) -> v1::PromiseRequest {
    v1::PromiseRequest {
        register: request.register,
        to: request.to,
        term: request.term,
        incarnation: request.incarnation,
        limit: request.limit.as_u64(),
    }
}

fn request(message: &v1::PromiseRequest) -> PromiseRequest {
    PromiseRequest {
        register: message.register,
        to: message.to,
        term: message.term,
        incarnation: message.incarnation,
        limit: Timestamp::from_u64(message.limit),
    }
}

/// Asks a peer to promise, and to keep a copy of a state. Its folder has it when this succeeds, within `timeout`.
///
/// # Errors
/// The peer's, or that of the way there.
pub async fn send_copy(
    call: &PromiseCall,
    number: u64,
    state: Vec<u8>,
    timeout: Duration,
) -> Result<(), Status> {
    let channel = channel(&call.address, timeout)
        .ok_or_else(|| Status::invalid_argument(format!("{:?} is no address", call.address)))?;
    let request = v1::KeepCopyRequest {
        promise: Some(message(&call.request)),
        number,
        state: state.into(),
    };
    PromisesClient::new(channel)
        .keep_copy(request)
        .await
        .map(drop)
}

/// A connection that is made when it is first used; none to what is no address.
///
/// When the network was cut and is back, a connection of before stays silent for as long as it was cut, because the system waits
/// longer and longer before it sends again. So one that answers no ping is given up.
fn channel(address: &str, timeout: Duration) -> Option<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    let endpoint = endpoint
        .connect_timeout(timeout)
        .timeout(timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    Some(endpoint.connect_lazy())
}

/// Connections to other replicas, by address.
#[derive(Debug, Default)]
struct Channels(HashMap<String, Channel>);

impl Channels {
    /// See [`channel`].
    fn of(&mut self, address: &str) -> Option<Channel> {
        if let Some(channel) = self.0.get(address) {
            return Some(channel.clone());
        }
        let channel = channel(address, CALL_TIMEOUT)?;
        self.0.insert(address.to_owned(), channel.clone());
        Some(channel)
    }

    fn retain(&mut self, addresses: &[&str]) {
        self.0.retain(|known, _| addresses.contains(&&**known));
    }
}

/// Answers other replicas.
pub struct PromiseService<P> {
    /// None if this server is alone.
    replica: Option<(Arc<P>, Arc<PromiseFolder>)>,
    folder: Arc<Folder>,
}

impl<P> fmt::Debug for PromiseService<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromiseService").finish_non_exhaustive()
    }
}

impl<P: Promiser> PromiseService<P> {
    /// Of this replica with its record, as a service of gRPC; none: of a server that is alone.
    pub fn server(
        replica: Option<(Arc<P>, Arc<PromiseFolder>)>,
        folder: Arc<Folder>,
    ) -> PromisesServer<Self> {
        PromisesServer::new(Self { replica, folder })
            .max_decoding_message_size(REQUEST_BYTES_MAX + P::COPY_BYTES_MAX)
    }

    fn check<T>(&self, request: Request<T>) -> Result<T, Status> {
        let ours = self.folder.cluster_id();
        check_cluster(request.metadata(), ours.as_deref())?;
        Ok(request.into_inner())
    }

    fn replica(&self) -> Result<(&Arc<P>, &PromiseFolder), Status> {
        let replica = self.replica.as_ref();
        let alone = || {
            let role = P::ROLE;
            Status::failed_precondition(format!("this {role} has no register, and can't take over"))
        };
        replica
            .map(|(replica, promises)| (replica, &**promises))
            .ok_or_else(alone)
    }
}

fn refused<P: Promiser>(refusal: PromiseRefusal) -> Status {
    match refusal {
        PromiseRefusal::Refused => Status::failed_precondition(format!(
            "this {} does not promise: it leads, takes over or ends, or knows a later leader",
            P::ROLE
        )),
        PromiseRefusal::Failed(error) => Status::unavailable(error),
    }
}

#[tonic::async_trait]
impl<P: Promiser> Promises for PromiseService<P> {
    async fn promise(
        &self,
        request: Request<v1::PromiseRequest>,
    ) -> Result<Response<v1::PromiseResponse>, Status> {
        let message = self.check(request)?;
        let (replica, promises) = self.replica()?;
        let promised = promise(replica, promises, &self::request(&message)).await;
        promised.map_err(refused::<P>)?;
        Ok(Response::new(v1::PromiseResponse {}))
    }

    async fn keep_copy(
        &self,
        request: Request<v1::KeepCopyRequest>,
    ) -> Result<Response<v1::KeepCopyResponse>, Status> {
        let v1::KeepCopyRequest {
            promise: asked,
            number,
            state,
        } = self.check(request)?;
        let (replica, promises) = self.replica()?;
        let asked = asked.ok_or_else(|| Status::invalid_argument("a copy without a promise"))?;
        let request = CopyRequest {
            promise: self::request(&asked),
            number,
        };
        let kept = keep_copy(replica, promises, &request, state.into()).await;
        kept.map_err(refused::<P>)?;
        Ok(Response::new(v1::KeepCopyResponse {}))
    }

    async fn introduce(
        &self,
        request: Request<v1::IntroduceRequest>,
    ) -> Result<Response<v1::IntroduceResponse>, Status> {
        let message = self.check(request)?;
        let other = IntroducedReplica {
            register: message.register,
            server: message.server,
            peer: Peer {
                replica: message.replica,
                address: message.address,
            },
            is_leaving: message.leaving,
        };
        if let Some((replica, _)) = &self.replica {
            replica.introduced(&other);
        }
        Ok(Response::new(v1::IntroduceResponse {}))
    }
}
