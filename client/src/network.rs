//! The world of a real client: servers over TCP, the machine's monotonic clock, its randomness, tokio.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_protocol::types::Timestamp;
use percolator_telemetry::who;
use percolator_wire::v1;
use percolator_wire::v1::master_client::MasterClient;
use percolator_wire::{MasterAddresses, NoMasterAddress, leader_of};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::connection::{Connection, Why, failed, is_of_the_way, why_status};
use crate::oracle::OracleClient;
use crate::relays::Relays;
use crate::ticker::STANDS_STILL;
use crate::transport::{Apart, BoxFuture, Lost, MasterError, OneCluster, Replaced, Transport};

/// The master answers within this, or is asked again.
const MASTER_TIMEOUT: Duration = Duration::from_secs(5);
/// One of several masters that doesn't answer a request which takes no time is given up after this.
const TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(2);
/// A connection must be made within this.
const CONNECT: Duration = Duration::from_secs(2);
/// The same where another address can be tried: that of a pod which is gone answers nothing at all.
const CONNECT_TO_SEVERAL: Duration = Duration::from_millis(500);
/// A connection to a master on which something waits is tried so often,
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// and given up if there is no answer for so long: its process stands still, or its network is cut. A master that is only busy
/// answers these.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause when all masters were asked, and none leads.
const NO_LEADER_PAUSE: Duration = Duration::from_millis(50);
/// A directory may be this large: some hundred thousand tablets.
const DIRECTORY_BYTES_MAX: usize = 256 << 20;

pub(crate) struct Network {
    master: Arc<Master>,
    oracle: OracleClient,
    connections: Mutex<HashMap<String, Arc<Connection>>>,
    patience: Duration,
    started: Instant,
}

/// The way to the master, or to the one of several that leads. Clients ask it so rarely, most of them three times a minute,
/// that none keeps a connection: the master would have as many as there are clients, at 23 KiB each.
struct Master {
    addresses: Mutex<MasterAddresses>,
    cluster: OneCluster,
    /// Those who ask at a time share one, to this address.
    shared: Mutex<(String, Weak<MasterClient<Channel>>)>,
    /// How long one of several is waited for: twice as long after each silence, as the directory of a large cluster takes
    /// its time.
    timeout_of_several: Mutex<Duration>,
}

/// What a request does that is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repetition {
    /// The same as once. A master that doesn't answer is given up soon, if there are several.
    Harmless,
    /// Something else. It goes to another master only if the first one has surely done nothing, and may take long.
    Matters,
}

impl Master {
    fn client(&self, address: &str) -> Result<Arc<MasterClient<Channel>>, MasterError> {
        let mut shared = self.shared.lock();
        if shared.0 == address
            && let Some(client) = shared.1.upgrade()
        {
            return Ok(client);
        }
        let connect = if self.addresses.lock().may_pass(address) {
            CONNECT_TO_SEVERAL
        } else {
            CONNECT
        };
        let endpoint = endpoint(address)?.connect_timeout(connect);
        let client = MasterClient::new(endpoint.connect_lazy());
        let client = Arc::new(client.max_decoding_message_size(DIRECTORY_BYTES_MAX));
        *shared = (address.to_owned(), Arc::downgrade(&client));
        Ok(client)
    }

    /// Asks it; the connection ends with the last of those who ask. While no master leads, those that are known are asked
    /// again, for as long as one is waited for.
    async fn ask<T, F>(
        &self,
        repetition: Repetition,
        ask: impl Fn(MasterClient<Channel>) -> F,
    ) -> Result<T, MasterError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let (began, mut asked) = (Instant::now(), 0);
        loop {
            let address = self.addresses.lock().current().to_owned();
            let error = match self.ask_at(&address, repetition, &ask).await {
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::Final(error)) => return Err(error),
                Err(NoAnswer::AskAgain(error)) => error,
            };
            // A standby's answer shows that there are several.
            let masters = self.addresses.lock().count();
            if masters == 1 || began.elapsed() >= MASTER_TIMEOUT {
                return Err(error);
            }
            asked += 1;
            // A standby, and the leader that it names.
            if asked % (masters + 1) == 0 {
                tokio::time::sleep(NO_LEADER_PAUSE).await;
            }
        }
    }

    async fn ask_at<T, F>(
        &self,
        address: &str,
        repetition: Repetition,
        ask: impl Fn(MasterClient<Channel>) -> F,
    ) -> Result<T, NoAnswer>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let began = Instant::now();
        let is_alone = !self.addresses.lock().are_several();
        let timeout = match repetition {
            Repetition::Harmless if !is_alone => *self.timeout_of_several.lock(),
            // The connection's own timer is one of the runtime that made it, which may stand still.
            Repetition::Harmless | Repetition::Matters => 2 * MASTER_TIMEOUT,
        };
        let client = self.client(address).map_err(NoAnswer::Final)?;
        let asked = tokio::time::timeout(timeout, ask((*client).clone())).await;
        let silent = |error, was_sent| {
            let now = Instant::now();
            self.addresses.lock().no_answer(address, began, now);
            if was_sent && repetition == Repetition::Matters {
                NoAnswer::Final(error)
            } else {
                NoAnswer::AskAgain(error)
            }
        };
        let status = match asked {
            Ok(Ok(answer)) => {
                *self.timeout_of_several.lock() = TIMEOUT_OF_SEVERAL;
                return Ok(answer.into_inner());
            }
            Ok(Err(status)) => status,
            Err(_) => {
                *self.timeout_of_several.lock() = (2 * timeout).min(2 * MASTER_TIMEOUT);
                *self.shared.lock() = (String::new(), Weak::new());
                let why = if is_alone {
                    STANDS_STILL.to_owned()
                } else {
                    failed("master", address, &Why::Silent(timeout))
                };
                return Err(silent(MasterError::Unavailable(why), true));
            }
        };
        let error = MasterError::of(address, &status);
        if let Some(leader) = leader_of(&status) {
            let mut addresses = self.addresses.lock();
            addresses.not_leading(address, leader.as_ref(), Instant::now());
            return Err(NoAnswer::AskAgain(error));
        }
        // What a server has answered has no source.
        if matches!(error, MasterError::Unavailable(_)) && is_of_the_way(&status) {
            return Err(silent(error, !is_unconnected(&status)));
        }
        Err(NoAnswer::Final(error))
    }

    async fn directory(
        &self,
        request: v1::DirectoryRequest,
        trace: Option<v1::TraceContext>,
    ) -> Result<v1::DirectoryResponse, MasterError> {
        let asked = self.ask(Repetition::Harmless, |mut client| async move {
            client.directory(traced(request, trace)).await
        });
        let directory = asked.await?;
        self.cluster.check(&directory.cluster_id)?;
        Ok(directory)
    }

    async fn locate(
        &self,
        request: v1::LocateRequest,
        trace: Option<v1::TraceContext>,
    ) -> Result<v1::LocateResponse, MasterError> {
        let asked = self.ask(Repetition::Harmless, |mut client| {
            let request = traced(request.clone(), trace);
            async move { client.locate(request).await }
        });
        let located = asked.await?;
        self.cluster.check(&located.cluster_id)?;
        Ok(located)
    }
}

/// Why a master has no answer.
enum NoAnswer {
    /// Another one may have one.
    AskAgain(MasterError),
    /// The caller has to decide.
    Final(MasterError),
}

fn endpoint(address: &str) -> Result<Endpoint, MasterError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|_| {
        let text = address.to_owned();
        MasterError::Invalid(NoMasterAddress { text }.to_string())
    })?;
    Ok(endpoint
        .timeout(MASTER_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .tcp_nodelay(true))
}

impl Network {
    /// Connects with the first use. `master`: HOST:PORT, or several of these with commas between. `patience`: how long a caller waits
    /// for a timestamp.
    pub(crate) fn new(master: &str, patience: Duration) -> Result<Self, String> {
        Self::through(master, &[], patience)
    }

    /// [`Self::new`], with timestamps from one of these relays, HOST:PORT each, as long as one answers.
    pub(crate) fn through(
        master: &str,
        relays: &[String],
        patience: Duration,
    ) -> Result<Self, String> {
        let addresses: MasterAddresses = master
            .parse()
            .map_err(|error: NoMasterAddress| error.to_string())?;
        // What is no host is said at once.
        endpoint(addresses.current()).map_err(crate::router::master_message)?;
        let master = Arc::new(Master {
            addresses: Mutex::new(addresses),
            cluster: OneCluster::default(),
            shared: Mutex::default(),
            timeout_of_several: Mutex::new(TIMEOUT_OF_SEVERAL),
        });
        let oracle = {
            let (master, relays) = (master.clone(), Relays::new(relays));
            let place = move || {
                let (master, relays) = (master.clone(), relays.clone());
                async move {
                    let oracles = v1::DirectoryRequest { oracles_only: true };
                    let directory = master.directory(oracles, None).await;
                    let directory = directory.map_err(crate::router::master_message)?;
                    crate::oracle::places(&directory)
                        .map(|oracles| relays.before(oracles))
                        .ok_or_else(|| "no oracle has reported to the master yet".into())
                }
                .boxed()
            };
            // A little less, so that it is still there to say what was wrong.
            OracleClient::with_deadline(place, patience * 9 / 10)
        };
        Ok(Self {
            master,
            oracle,
            connections: Mutex::default(),
            patience,
            started: Instant::now(),
        })
    }

    fn connection(&self, address: &str) -> Arc<Connection> {
        let mut connections = self.connections.lock();
        if let Some(known) = connections.get(address)
            && !known.is_lost()
        {
            return known.clone();
        }
        let cluster_id = self.master.cluster.id().unwrap_or_default();
        let connection = Connection::open(address, cluster_id.to_owned());
        connections.insert(address.to_owned(), connection.clone());
        connection
    }
}

impl Network {
    /// The master that is asked.
    pub(crate) fn master_address(&self) -> String {
        self.master.addresses.lock().current().to_owned()
    }

    pub(crate) async fn gc_status(&self) -> Result<v1::GcStatusResponse, MasterError> {
        let request = v1::GcStatusRequest {};
        let master = &self.master;
        master
            .ask(Repetition::Harmless, |mut client| async move {
                client.gc_status(request).await
            })
            .await
    }

    pub(crate) async fn set_gc(
        &self,
        request: v1::SetGcRequest,
    ) -> Result<v1::SetGcResponse, MasterError> {
        let master = &self.master;
        master
            .ask(Repetition::Harmless, |mut client| async move {
                client.set_gc(request).await
            })
            .await
    }

    pub(crate) async fn rebuild(
        &self,
        request: v1::RebuildRequest,
    ) -> Result<v1::RebuildResponse, MasterError> {
        let master = &self.master;
        master
            .ask(Repetition::Matters, |mut client| {
                let request = request.clone();
                async move { client.rebuild(request).await }
            })
            .await
    }

    pub(crate) async fn transactions(
        &self,
        limit: u32,
    ) -> Result<v1::TransactionsResponse, MasterError> {
        let request = v1::TransactionsRequest { limit };
        let master = &self.master;
        master
            .ask(Repetition::Harmless, |mut client| async move {
                client.transactions(request).await
            })
            .await
    }

    pub(crate) async fn release_gc_lock(
        &self,
        start_ts: Timestamp,
    ) -> Result<v1::ReleaseGcLockResponse, MasterError> {
        let request = v1::ReleaseGcLockRequest {
            start_ts: start_ts.as_u64(),
        };
        let master = &self.master;
        master
            .ask(Repetition::Matters, |mut client| async move {
                client.release_gc_lock(request).await
            })
            .await
    }
}

/// Whether the request of this status has surely never left: there is no connection.
fn is_unconnected(status: &tonic::Status) -> bool {
    let source = std::error::Error::source(status);
    std::iter::successors(source, |error| error.source())
        .any(|error| error.downcast_ref::<tonic::ConnectError>().is_some())
}

/// A request that says in which trace it is, if in one.
fn traced<T>(request: T, trace: Option<v1::TraceContext>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(request);
    let header = trace.and_then(|trace| trace.header().parse().ok());
    if let Some(header) = header {
        request
            .metadata_mut()
            .insert(v1::TraceContext::HEADER, header);
    }
    request
}

impl MasterError {
    /// Of what the master at this address answered.
    pub fn of(address: &str, status: &tonic::Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument | Code::FailedPrecondition => Self::Invalid(message),
            Code::AlreadyExists => Self::AlreadyExists(message),
            Code::NotFound => Self::NotFound(message),
            Code::Unimplemented => Self::Invalid(format!(
                "the server at {address} is not a master; `percolator up` shows where the master is"
            )),
            _ => {
                let has_expired = status.message() == tonic::TimeoutExpired(()).to_string();
                let silence = if has_expired {
                    MASTER_TIMEOUT
                } else {
                    PING_INTERVAL + PING_TIMEOUT
                };
                let why = why_status(status, silence);
                Self::Unavailable(failed("master", address, &why))
            }
        }
    }
}

impl Transport for Network {
    fn tablet(
        &self,
        address: &str,
        request: v1::Request,
    ) -> BoxFuture<'_, Result<v1::Response, Lost>> {
        self.connection(address).call(request).boxed()
    }

    fn timestamp(&self, trace: Option<v1::TraceContext>) -> BoxFuture<'_, Result<Timestamp, Lost>> {
        self.oracle
            .traced_timestamp(trace)
            .map(|result| result.map_err(|error| Lost::unknown(error.to_string())))
            .boxed()
    }

    fn oracle(&self) -> Option<&OracleClient> {
        Some(&self.oracle)
    }

    fn cluster_id(&self) -> Option<String> {
        self.master.cluster.id().map(str::to_owned)
    }

    fn directory(
        &self,
        trace: Option<v1::TraceContext>,
    ) -> BoxFuture<'_, Result<v1::DirectoryResponse, MasterError>> {
        let everything = v1::DirectoryRequest::default();
        self.master.directory(everything, trace).boxed()
    }

    fn locate(
        &self,
        request: v1::LocateRequest,
        trace: Option<v1::TraceContext>,
    ) -> BoxFuture<'_, Result<v1::LocateResponse, MasterError>> {
        self.master.locate(request, trace).boxed()
    }

    fn session(
        &self,
        request: v1::SessionRequest,
        trace: Option<v1::TraceContext>,
    ) -> BoxFuture<'_, Result<v1::SessionResponse, MasterError>> {
        async move {
            let asked = self.master.ask(Repetition::Harmless, |mut client| {
                let request = traced(request.clone(), trace);
                async move { client.session(request).await }
            });
            self.master.cluster.check_session(asked.await?)
        }
        .boxed()
    }

    fn create_table(
        &self,
        request: v1::CreateTableRequest,
    ) -> BoxFuture<'_, Result<v1::CreateTableResponse, MasterError>> {
        async move {
            let asked = self.master.ask(Repetition::Matters, |mut client| {
                let request = request.clone();
                async move { client.create_table(request).await }
            });
            asked.await
        }
        .boxed()
    }

    fn delete_table(
        &self,
        request: v1::DeleteTableRequest,
    ) -> BoxFuture<'_, Result<v1::DeleteTableResponse, MasterError>> {
        async move {
            let asked = self.master.ask(Repetition::Matters, |mut client| {
                let request = request.clone();
                async move { client.delete_table(request).await }
            });
            asked.await
        }
        .boxed()
    }

    fn split_table(
        &self,
        request: v1::SplitTableRequest,
    ) -> BoxFuture<'_, Result<v1::SplitTableResponse, MasterError>> {
        async move {
            let asked = self.master.ask(Repetition::Harmless, |mut client| {
                let request = request.clone();
                async move { client.split_table(request).await }
            });
            asked.await
        }
        .boxed()
    }

    fn merge_table(
        &self,
        request: v1::MergeTableRequest,
    ) -> BoxFuture<'_, Result<v1::MergeTableResponse, MasterError>> {
        async move {
            let asked = self.master.ask(Repetition::Harmless, |mut client| {
                let request = request.clone();
                async move { client.merge_table(request).await }
            });
            asked.await
        }
        .boxed()
    }

    fn move_tablet(
        &self,
        request: v1::MoveTabletRequest,
    ) -> BoxFuture<'_, Result<v1::MoveTabletResponse, MasterError>> {
        async move {
            let asked = self.master.ask(Repetition::Harmless, |mut client| {
                let request = request.clone();
                async move { client.move_tablet(request).await }
            });
            asked.await
        }
        .boxed()
    }

    fn drain_servers(
        &self,
        request: v1::DrainServersRequest,
    ) -> BoxFuture<'_, Result<v1::DrainServersResponse, MasterError>> {
        async move {
            let asked = self.master.ask(Repetition::Harmless, |mut client| {
                let request = request.clone();
                async move { client.drain_servers(request).await }
            });
            asked.await
        }
        .boxed()
    }

    fn replaced(&self) -> Option<Replaced> {
        self.master.cluster.replaced()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn lease_clock(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        )
    }

    /// In a thread. An application's runtime may stand still for longer than a lease: a program whose output nobody
    /// reads, on a runtime of one thread, or a task that computes.
    fn spawn_apart(&self, work: Apart) -> Result<(), Apart> {
        let (master, patience) = (self.master.addresses.lock().to_string(), self.patience);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else {
            return Err(work);
        };
        // Where there is no thread to be had, the work is still here.
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Apart>(1);
        let thread = std::thread::Builder::new().name("percolator-lease".into());
        let started = thread.spawn(who::inherited(move || {
            runtime.block_on(async {
                if let (Ok(work), Ok(network)) = (receiver.recv(), Self::new(&master, patience)) {
                    work(Arc::new(network)).await;
                }
            });
        }));
        match started {
            Ok(_) => {
                let _ = sender.send(work);
                Ok(())
            }
            Err(_) => Err(work),
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        tokio::time::sleep(duration).boxed()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }
}
