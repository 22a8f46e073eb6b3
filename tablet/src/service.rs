//! The runner on a network: clients' streams, the master's commands, heartbeats and time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc as thread_channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::Obstacle;
use percolator_engine::Batch;
use percolator_engine::free_bytes;
use percolator_protocol::types::{Tablet, Timestamp};
use percolator_server::{Probe, StallWatch, boot_time, heartbeat};
use percolator_telemetry::Limited;
use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;
use percolator_wire::v1::tablets_server::Tablets;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tonic::{Request, Response, Status, Streaming};

use crate::core::{Asker, Core, Facts, TabletCommand};
use crate::metrics::Metrics;
use crate::mover::Arrivals;
use crate::outbox::{Outbox, Packs};
use crate::resolver::OwnLocks;
use crate::runner::{Host, MasterCommand, NotReady, Runner};
use crate::{MoveCall, MoveResponse, ServerLocation, Unanswered};

/// Requests of one message that are handled before the server checks whether the client takes responses.
const REQUESTS_AT_A_TIME: usize = 64;
/// How often a server that has to stop checks whether others have its tablets.
const STOPPING_PAUSE: Duration = Duration::from_millis(20);
/// A client that takes no responses for this long is cut off.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
static SLOW_CLIENTS: Limited = Limited::new();

/// The runner's network and disk.
struct Network {
    sinks: HashMap<Asker, Sink>,
    next_asker: Asker,
    groups: thread_channel::Sender<Arc<Vec<Batch>>>,
    stop: watch::Sender<Option<String>>,
    sooner: Arc<Notify>,
}

/// Where a caller's responses go.
enum Sink {
    Stream(Arc<Outbox>),
    Once(oneshot::Sender<v1::Response>),
}

impl Network {
    fn add(&mut self, sink: Sink) -> Asker {
        self.next_asker += 1;
        self.sinks.insert(self.next_asker, sink);
        self.next_asker
    }
}

impl Host for Network {
    fn answer(&mut self, to: Asker, response: v1::Response) {
        match self.sinks.get(&to) {
            Some(Sink::Stream(outbox)) => outbox.push(response),
            Some(Sink::Once(_)) => {
                if let Some(Sink::Once(sender)) = self.sinks.remove(&to) {
                    let _ = sender.send(response);
                }
            }
            // The client has gone.
            None => {}
        }
    }

    fn commit(&mut self, group: Arc<Vec<Batch>>) {
        // The committer ends only after this sender.
        let _ = self.groups.send(group);
    }

    fn tick_sooner(&mut self) {
        self.sooner.notify_one();
    }

    fn stop(&mut self, failure: &str) {
        self.stop.send_replace(Some(failure.to_owned()));
    }
}

/// The state that all connections share.
pub(crate) struct Shared {
    runner: Mutex<Runner<Network>>,
    /// The runner's, for callers that can't wait for the runner.
    cluster_id: Arc<OnceLock<String>>,
    /// Notified when the next tick has to come sooner.
    sooner: Arc<Notify>,
    stall: StallWatch,
    pub(crate) metrics: Arc<Metrics>,
}

impl Shared {
    /// Over a core, whose groups go here.
    pub(crate) fn new(
        core: Core,
        cluster_id: Option<String>,
        groups: thread_channel::Sender<Arc<Vec<Batch>>>,
        stop: watch::Sender<Option<String>>,
        stall: StallWatch,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let sooner = Arc::new(Notify::new());
        let network = Network {
            sinks: HashMap::new(),
            next_asker: 0,
            groups,
            stop,
            sooner: sooner.clone(),
        };
        let runner = Runner::new(core, cluster_id, network, boot_time());
        Arc::new(Self {
            cluster_id: runner.cluster_id().clone(),
            runner: Mutex::new(runner),
            sooner,
            stall,
            metrics,
        })
    }

    /// Carries out what opening the core has left to do.
    pub(crate) fn begin(&self) {
        self.runner.lock().begin(boot_time());
    }

    /// The cluster that this server belongs to, once it is known.
    pub(crate) fn cluster_id(&self) -> Option<&String> {
        self.cluster_id.get()
    }

    /// The durable state of the server, as heartbeats have it.
    pub(crate) fn report(&self) -> v1::HeartbeatRequest {
        self.runner.lock().core().report()
    }

    /// The facts about the server, after all counts are published.
    pub(crate) fn facts(&self) -> Facts {
        let runner = self.runner.lock();
        runner.core().probe().flush();
        runner.core().facts()
    }

    /// Answers requests whose groups the committer has made durable, until it ends.
    pub(crate) async fn answer_committed(
        self: Arc<Self>,
        mut committed: mpsc::UnboundedReceiver<Result<(), percolator_engine::Error>>,
    ) {
        while let Some(result) = committed.recv().await {
            self.runner.lock().committed(boot_time(), result);
        }
    }

    /// Lets the core's time pass.
    pub(crate) async fn tick(self: Arc<Self>) {
        loop {
            let next = self.runner.lock().next_tick();
            let _ = tokio::time::timeout(next, self.sooner.notified()).await;
            self.runner.lock().tick(boot_time());
        }
    }

    /// Sends heartbeats, and carries out their responses, until the master refuses this server. The server stores in `folder` to
    /// which cluster it belongs.
    pub(crate) fn heartbeats(
        self: Arc<Self>,
        beat: heartbeat::Options,
        folder: Option<PathBuf>,
    ) -> impl Future<Output = Result<(), percolator_server::Error>> {
        let (report, adopt, known) = (self.clone(), self.clone(), self);
        let volume = folder.clone();
        heartbeat::run(
            beat,
            move || v1::HeartbeatRequest {
                disk_stalled_ms: report.stall.stalled_ms(),
                free_bytes: volume.as_deref().and_then(|it| free_bytes(it).ok()),
                ..report.runner.lock().heartbeat(boot_time())
            },
            move |cluster_id| -> Result<(), percolator_engine::Error> {
                if let Some(folder) = &folder {
                    percolator_engine::adopt_cluster(folder, cluster_id)?;
                }
                adopt.runner.lock().adopted(cluster_id);
                Ok(())
            },
            move |response| {
                known.metrics.master_has_answered();
                known
                    .runner
                    .lock()
                    .heartbeat_answered(boot_time(), response);
            },
            std::future::pending(),
        )
    }

    /// Waits until other servers have this server's tablets, for at most `longest`.
    pub(crate) async fn move_tablets_off(&self, longest: Duration) {
        if longest.is_zero() || self.cluster_id().is_none() {
            return;
        }
        let had = {
            let mut runner = self.runner.lock();
            runner.stop_when_empty(boot_time());
            runner.core().tablet_count()
        };
        let emptied = async {
            while !self.runner.lock().may_stop(boot_time()) {
                tokio::time::sleep(STOPPING_PAUSE).await;
            }
        };
        let began = boot_time();
        let in_time = tokio::time::timeout(longest, emptied).await.is_ok();
        let took_ms = boot_time().saturating_sub(began).as_millis();
        match self.runner.lock().core().tablet_count() {
            0 if had == 0 => tracing::info!(took_ms, "this server stops, and had no tablets"),
            0 => tracing::info!(took_ms, "others have the tablets: this server stops"),
            tablets => tracing::warn!(
                tablets,
                took_ms,
                in_time,
                "this server stops with tablets: they are away until it has started again"
            ),
        }
    }

    /// Whether the server passes a probe of Kubernetes. Before the master has accepted it, it is not ready.
    pub(crate) fn passes(&self, probe: Probe) -> bool {
        match probe {
            Probe::Lives => self.cluster_id().is_some(),
            Probe::Ready => self.ready().is_ok(),
        }
    }

    /// How long the disk has stalled.
    pub(crate) fn stalled(&self) -> Duration {
        self.stall.stalled().unwrap_or_default()
    }

    /// Why the server is not ready, if so.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.cluster_id().is_none() {
            return Err(NotReady::NoCluster.to_string());
        }
        // The runner, whose lock comes next, may wait for that disk.
        self.stall.check()?;
        let ready = self.runner.lock().ready();
        ready.map_err(|why| why.to_string())
    }

    /// Carries out a command of the master, and waits until it is durable. Returns the number of durable groups, and the tablets
    /// that a split or a merge has made.
    async fn command(&self, command: MasterCommand) -> Result<(u64, Vec<v1::TabletInfo>), Status> {
        let cuts = command.command.cuts();
        let (sender, receiver) = oneshot::channel();
        {
            let mut runner = self.runner.lock();
            let from = runner.host().add(Sink::Once(sender));
            let taken = runner.command(boot_time(), self.metrics.now(), from, command);
            if let Err(other) = taken {
                runner.host().sinks.remove(&from);
                return Err(Status::failed_precondition(other.to_string()));
            }
        }
        let response = receiver
            .await
            .map_err(|_| Status::unavailable("the server is stopping"))?;
        match response.body {
            Some(Body::Error(error)) => Err(match error.kind {
                Some(Kind::Invalid(why)) => Status::invalid_argument(why),
                Some(Kind::OtherServer(other)) => Status::failed_precondition(other.to_string()),
                Some(Kind::Busy(why)) => Status::unavailable(why),
                Some(Kind::Failed(failed)) => Status::internal(failed.message),
                _ => Status::internal("not carried out"),
            }),
            _ => {
                let runner = self.runner.lock();
                let known = cuts.iter().filter_map(|id| runner.core().tablet(*id));
                let tablets = known.cloned().map(Into::into).collect();
                Ok((runner.core().groups(), tablets))
            }
        }
    }

    /// Takes a client's requests until it goes, or takes no responses.
    async fn serve(&self, from: Asker, outbox: &Outbox, mut packs: Streaming<v1::RequestPack>) {
        while let Ok(Some(pack)) = packs.message().await {
            let came = self.metrics.now();
            let mut requests = pack.requests.into_iter().peekable();
            while requests.peek().is_some() {
                self.runner.lock().requests(
                    boot_time(),
                    came,
                    from,
                    requests.by_ref().take(REQUESTS_AT_A_TIME),
                );
                let taken = tokio::time::timeout(SLOW_CLIENT_TIMEOUT, outbox.room());
                if taken.await.is_err() {
                    if let Some(left_out) = SLOW_CLIENTS.admit() {
                        tracing::warn!(
                            left_out,
                            "a client took no answers for {SLOW_CLIENT_TIMEOUT:?}: its stream is cut"
                        );
                    }
                    self.metrics.slow_clients.inc();
                    return outbox.clear();
                }
            }
        }
    }
}

impl OwnLocks for Arc<Shared> {
    fn next_to_resolve(&self) -> Option<Timestamp> {
        self.runner.lock().next_to_resolve()
    }

    fn locks_below(
        &self,
        below: Timestamp,
        after: Option<v1::CellName>,
    ) -> Result<v1::LocksBelowResponse, String> {
        self.runner.lock().locks_below(below, after)
    }

    fn resolved(&self, below: Timestamp, result: Result<(), Obstacle>) {
        self.metrics.resolved_locks(result.is_ok());
        self.runner.lock().resolved(boot_time(), below, result);
    }
}

impl Arrivals for Arc<Shared> {
    fn next_call(&self) -> Option<MoveCall> {
        self.runner.lock().next_call(boot_time())
    }

    fn is_arriving(&self) -> bool {
        self.runner.lock().is_arriving()
    }

    fn asked(&self, call: &MoveCall, result: Result<MoveResponse, Unanswered>) {
        self.runner.lock().asked(boot_time(), call, result);
    }
}

/// The gRPC service.
pub(crate) struct Service(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl Tablets for Service {
    type ServeStream = Packs;

    async fn serve(
        &self,
        request: Request<Streaming<v1::RequestPack>>,
    ) -> Result<Response<Packs>, Status> {
        let ours = self.0.cluster_id().map(String::as_str);
        percolator_wire::check_cluster(request.metadata(), ours)?;
        let outbox = Arc::new(Outbox::default());
        let sink = Sink::Stream(outbox.clone());
        let from = self.0.runner.lock().host().add(sink);
        let packs = Packs(outbox.clone());
        let shared = self.0.clone();
        tokio::spawn(async move {
            shared.metrics.streams.inc();
            shared.serve(from, &outbox, request.into_inner()).await;
            shared.metrics.streams.dec();
            shared.runner.lock().host().sinks.remove(&from);
            outbox.close();
        });
        Ok(Response::new(packs))
    }

    async fn create_tablet(
        &self,
        request: Request<v1::CreateTabletRequest>,
    ) -> Result<Response<v1::CreateTabletResponse>, Status> {
        let request = request.into_inner();
        let tablet = read_tablet(request.tablet)?;
        let command = MasterCommand {
            cluster_id: request.cluster_id,
            to: request.to.map(Into::into),
            command: TabletCommand::Create {
                tablet,
                made: request.made,
                barrier: Timestamp::from_u64(request.barrier),
            },
        };
        let (groups, _) = self.0.command(command).await?;
        Ok(Response::new(v1::CreateTabletResponse { groups }))
    }

    async fn split_tablet(
        &self,
        request: Request<v1::SplitTabletRequest>,
    ) -> Result<Response<v1::SplitTabletResponse>, Status> {
        let request = request.into_inner();
        let tablet = named(request.tablet)?;
        let command = MasterCommand {
            cluster_id: request.cluster_id,
            to: request.to.map(Into::into),
            command: TabletCommand::Split {
                id: tablet.id,
                epoch: tablet.epoch,
                row: request.row,
                sibling: request.sibling_id,
            },
        };
        let (groups, tablets) = self.0.command(command).await?;
        Ok(Response::new(v1::SplitTabletResponse { groups, tablets }))
    }

    async fn merge_tablets(
        &self,
        request: Request<v1::MergeTabletsRequest>,
    ) -> Result<Response<v1::MergeTabletsResponse>, Status> {
        let request = request.into_inner();
        let (first, second) = (named(request.tablet)?, named(request.next)?);
        let command = MasterCommand {
            cluster_id: request.cluster_id,
            to: request.to.map(Into::into),
            command: TabletCommand::Merge {
                first: (first.id, first.epoch),
                second: (second.id, second.epoch),
            },
        };
        let (groups, mut tablets) = self.0.command(command).await?;
        let tablet = tablets.pop();
        Ok(Response::new(v1::MergeTabletsResponse { groups, tablet }))
    }

    async fn import_tablet(
        &self,
        request: Request<v1::ImportTabletRequest>,
    ) -> Result<Response<v1::ImportTabletResponse>, Status> {
        let request = request.into_inner();
        let command = MasterCommand {
            cluster_id: request.cluster_id,
            to: request.to.map(Into::into),
            command: TabletCommand::Import {
                tablet: read_tablet(request.tablet)?,
                from: read_owner(request.from)?,
                address: request.address,
            },
        };
        let (groups, _) = self.0.command(command).await?;
        Ok(Response::new(v1::ImportTabletResponse { groups }))
    }

    async fn drop_tablet(
        &self,
        request: Request<v1::DropTabletRequest>,
    ) -> Result<Response<v1::DropTabletResponse>, Status> {
        let request = request.into_inner();
        let command = MasterCommand {
            cluster_id: request.cluster_id,
            to: request.to.map(Into::into),
            command: TabletCommand::Drop {
                id: request.tablet_id,
                table: request.table_id,
            },
        };
        let (groups, _) = self.0.command(command).await?;
        Ok(Response::new(v1::DropTabletResponse { groups }))
    }
}

fn read_tablet(tablet: Option<v1::TabletInfo>) -> Result<Tablet, Status> {
    let tablet = tablet.ok_or_else(|| Status::invalid_argument("a command without a tablet"))?;
    Tablet::try_from(tablet).map_err(|malformed| Status::invalid_argument(malformed.to_string()))
}

fn read_owner(owner: Option<v1::MovedTo>) -> Result<ServerLocation, Status> {
    let owner = owner.ok_or_else(|| Status::invalid_argument("a command without an owner"))?;
    ServerLocation::try_from(owner)
        .map_err(|malformed| Status::invalid_argument(malformed.to_string()))
}

fn named(tablet: Option<v1::TabletRef>) -> Result<v1::TabletRef, Status> {
    tablet.ok_or_else(|| Status::invalid_argument("a command without a tablet"))
}
