//! The world of a real client: servers over TCP, the machine's monotonic clock, its randomness, tokio.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_protocol::types::{Timestamp, TraceParent};
use percolator_telemetry::who;
use percolator_wire::v1;

use crate::cluster::Cluster;
use crate::collection::{GcChange, GcLockPage, GcSettings, GcStatus, ProxyIntroduction, TxnOwner};
use crate::connection::Connection;
use crate::convert::malformed_response;
use crate::master::{Master, Repetition, traced};
use crate::oracle::OracleClient;
use crate::rebuild::{MasterRebuild, RebuiltMaster};
use crate::relays::Relays;
use crate::transport::{Apart, BoxFuture, Lost, MasterError, Replaced, Transport};

pub(crate) struct Network {
    master: Arc<Master>,
    oracle: OracleClient,
    connections: Mutex<HashMap<String, Arc<Connection>>>,
    request_timeout: Duration,
    started: Instant,
}

impl Network {
    /// Connects with the first use. `master`: HOST:PORT, or several of these with commas between. `request_timeout`: how long a caller waits
    /// for a timestamp.
    pub(crate) fn new(master: &str, request_timeout: Duration) -> Result<Self, String> {
        Self::through(master, &[], request_timeout)
    }

    /// [`Self::new`], with timestamps from one of these relays, HOST:PORT each, as long as one answers.
    pub(crate) fn through(
        master: &str,
        relays: &[String],
        request_timeout: Duration,
    ) -> Result<Self, String> {
        let master = Arc::new(Master::new(master)?);
        let oracle = {
            let (master, relays) = (master.clone(), Relays::new(relays));
            let place = move || {
                let (master, relays) = (master.clone(), relays.clone());
                async move {
                    let oracles = v1::DirectoryRequest { oracles_only: true };
                    let listing = master.directory(oracles, None).await;
                    let listing = listing.map_err(MasterError::into_message)?;
                    let cluster = Cluster::try_from(listing);
                    let cluster = cluster.map_err(|error| error.to_string())?;
                    crate::oracle::places(&cluster)
                        .map(|oracles| relays.before(oracles))
                        .ok_or_else(|| "no oracle has reported to the master yet".into())
                }
                .boxed()
            };
            // A little less, so that it is still there to say what was wrong.
            OracleClient::with_deadline(place, request_timeout * 9 / 10)
        };
        Ok(Self {
            master,
            oracle,
            connections: Mutex::default(),
            request_timeout,
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
        self.master.address()
    }

    pub(crate) async fn gc_status(&self) -> Result<GcStatus, MasterError> {
        let request = v1::GcStatusRequest {};
        let asked = self
            .master
            .ask(Repetition::Harmless, |mut client| async move {
                client.gc_status(request).await
            });
        asked.await?.try_into().map_err(malformed_response)
    }

    pub(crate) async fn introduce_proxy(
        &self,
        introduction: ProxyIntroduction,
    ) -> Result<(), MasterError> {
        let request = v1::IntroduceProxyRequest::from(introduction);
        let asked = self.master.ask(Repetition::Harmless, |mut client| {
            let request = request.clone();
            async move { client.introduce_proxy(request).await }
        });
        asked.await.map(drop)
    }

    pub(crate) async fn set_gc(&self, change: GcChange) -> Result<GcSettings, MasterError> {
        let request = v1::SetGcRequest::from(change);
        let asked = self
            .master
            .ask(Repetition::Harmless, |mut client| async move {
                client.set_gc(request).await
            });
        asked.await.map(GcSettings::from)
    }

    pub(crate) async fn rebuild(
        &self,
        rebuild: MasterRebuild,
    ) -> Result<RebuiltMaster, MasterError> {
        let request = v1::RebuildRequest::from(rebuild);
        let asked = self.master.ask(Repetition::Matters, |mut client| {
            let request = request.clone();
            async move { client.rebuild(request).await }
        });
        asked.await?.try_into().map_err(malformed_response)
    }

    pub(crate) async fn transactions(&self, limit: u32) -> Result<GcLockPage, MasterError> {
        let request = v1::TransactionsRequest { limit };
        let asked = self
            .master
            .ask(Repetition::Harmless, |mut client| async move {
                client.transactions(request).await
            });
        asked.await?.try_into().map_err(malformed_response)
    }

    pub(crate) async fn release_gc_lock(
        &self,
        start_ts: Timestamp,
    ) -> Result<Vec<TxnOwner>, MasterError> {
        let request = v1::ReleaseGcLockRequest {
            start_ts: start_ts.as_u64(),
        };
        let asked = self
            .master
            .ask(Repetition::Matters, |mut client| async move {
                client.release_gc_lock(request).await
            });
        let owners = asked.await?.owners.into_iter();
        Ok(owners.map(TxnOwner::from).collect())
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

    fn timestamp(&self, trace: Option<TraceParent>) -> BoxFuture<'_, Result<Timestamp, Lost>> {
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
        trace: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::DirectoryResponse, MasterError>> {
        let everything = v1::DirectoryRequest::default();
        self.master.directory(everything, trace).boxed()
    }

    fn locate(
        &self,
        request: v1::LocateRequest,
        trace: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::LocateResponse, MasterError>> {
        self.master.locate(request, trace).boxed()
    }

    fn session(
        &self,
        request: v1::SessionRequest,
        trace: Option<TraceParent>,
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
        let (master, request_timeout) = (self.master.addresses(), self.request_timeout);
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
                if let (Ok(work), Ok(network)) =
                    (receiver.recv(), Self::new(&master, request_timeout))
                {
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
