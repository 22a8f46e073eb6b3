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
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::connection::{Connection, failed, why_status};
use crate::oracle::OracleClient;
use crate::ticker::STANDS_STILL;
use crate::transport::{Apart, BoxFuture, Lost, MasterError, OneCluster, Replaced, Transport};

/// The master answers within this, or is asked again.
const MASTER_TIMEOUT: Duration = Duration::from_secs(5);
/// A directory may be this large: some hundred thousand tablets.
const DIRECTORY_BYTES_MAX: usize = 256 << 20;

pub(crate) struct Network {
    master: Arc<Master>,
    oracle: OracleClient,
    connections: Mutex<HashMap<String, Arc<Connection>>>,
    patience: Duration,
    started: Instant,
}

/// The way to the master. Clients ask it so rarely, most of them three times a minute, that none keeps a connection: the
/// master would have as many as there are clients, at 23 KiB each.
struct Master {
    address: String,
    endpoint: Endpoint,
    cluster: OneCluster,
    /// Those who ask at a time share one.
    shared: Mutex<Weak<MasterClient<Channel>>>,
}

impl Master {
    fn client(&self) -> Arc<MasterClient<Channel>> {
        let mut shared = self.shared.lock();
        if let Some(client) = shared.upgrade() {
            return client;
        }
        let client = MasterClient::new(self.endpoint.connect_lazy());
        let client = Arc::new(client.max_decoding_message_size(DIRECTORY_BYTES_MAX));
        *shared = Arc::downgrade(&client);
        client
    }

    /// Asks it; the connection ends with the last of those who ask.
    async fn ask<T, F>(
        &self,
        ask: impl FnOnce(MasterClient<Channel>) -> F,
    ) -> Result<T, MasterError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let client = self.client();
        // The connection's own timer is one of the runtime that made it, which may stand still.
        let asked = tokio::time::timeout(2 * MASTER_TIMEOUT, ask((*client).clone()));
        match asked.await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(MasterError::of(&self.address, &status)),
            Err(_) => {
                *self.shared.lock() = Weak::new();
                Err(MasterError::Unavailable(STANDS_STILL.to_owned()))
            }
        }
    }

    async fn directory(
        &self,
        request: v1::DirectoryRequest,
        trace: Option<v1::TraceContext>,
    ) -> Result<v1::DirectoryResponse, MasterError> {
        let request = traced(request, trace);
        let directory = self
            .ask(|mut client| async move { client.directory(request).await })
            .await?;
        let cluster_id = directory.cluster_id.clone();
        self.cluster.check(&cluster_id, directory)
    }

    async fn locate(
        &self,
        request: v1::LocateRequest,
        trace: Option<v1::TraceContext>,
    ) -> Result<v1::LocateResponse, MasterError> {
        let request = traced(request, trace);
        let located = self
            .ask(|mut client| async move { client.locate(request).await })
            .await?;
        let cluster_id = located.cluster_id.clone();
        self.cluster.check(&cluster_id, located)
    }
}

impl Network {
    /// Connects with the first use.
    ///
    /// `patience`: how long a caller waits for a timestamp.
    pub(crate) fn new(master: &str, patience: Duration) -> Result<Self, String> {
        let no_address = || {
            format!(
                "{master:?} is no address of a master: it is written HOST:PORT, as in 127.0.0.1:7400, \
                 master.example:7400 or [::1]:7400"
            )
        };
        if !is_address(master) {
            return Err(no_address());
        }
        let endpoint = Endpoint::from_shared(format!("http://{master}"))
            .map_err(|_| no_address())?
            .connect_timeout(Duration::from_secs(2))
            .timeout(MASTER_TIMEOUT)
            .tcp_nodelay(true);
        let master = Arc::new(Master {
            address: master.to_owned(),
            endpoint,
            cluster: OneCluster::default(),
            shared: Mutex::default(),
        });
        let oracle = {
            let master = master.clone();
            let place = move || {
                let master = master.clone();
                async move {
                    let oracles = v1::DirectoryRequest { oracles_only: true };
                    let directory = master.directory(oracles, None).await;
                    let directory = directory.map_err(crate::router::master_message)?;
                    crate::oracle::places(&directory)
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
    pub(crate) async fn gc_status(&self) -> Result<v1::GcStatusResponse, MasterError> {
        let request = v1::GcStatusRequest {};
        let master = &self.master;
        master
            .ask(|mut client| async move { client.gc_status(request).await })
            .await
    }

    pub(crate) async fn set_gc(
        &self,
        request: v1::SetGcRequest,
    ) -> Result<v1::SetGcResponse, MasterError> {
        let master = &self.master;
        master
            .ask(|mut client| async move { client.set_gc(request).await })
            .await
    }

    pub(crate) async fn transactions(
        &self,
        limit: u32,
    ) -> Result<v1::TransactionsResponse, MasterError> {
        let request = v1::TransactionsRequest { limit };
        let master = &self.master;
        master
            .ask(|mut client| async move { client.transactions(request).await })
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
            .ask(|mut client| async move { client.release_gc_lock(request).await })
            .await
    }
}

/// Whether it's HOST:PORT, an IPv6 address in brackets.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .map_or(!host.contains([':', '/', '@', '[', ']']), |ipv6| {
                ipv6.parse::<std::net::Ipv6Addr>().is_ok()
            });
        !host.is_empty() && bare && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
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
                let why = why_status(status, MASTER_TIMEOUT);
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
        let request = traced(request, trace);
        let asked = self
            .master
            .ask(|mut client| async move { client.session(request).await });
        asked
            .map(|told| self.master.cluster.check_session(told?))
            .boxed()
    }

    fn create_table(
        &self,
        request: v1::CreateTableRequest,
    ) -> BoxFuture<'_, Result<v1::CreateTableResponse, MasterError>> {
        let asked = self
            .master
            .ask(|mut client| async move { client.create_table(request).await });
        asked.boxed()
    }

    fn delete_table(
        &self,
        request: v1::DeleteTableRequest,
    ) -> BoxFuture<'_, Result<v1::DeleteTableResponse, MasterError>> {
        let asked = self
            .master
            .ask(|mut client| async move { client.delete_table(request).await });
        asked.boxed()
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
        let (master, patience) = (self.master.address.clone(), self.patience);
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
