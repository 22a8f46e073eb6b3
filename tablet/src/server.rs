//! The core on a network: one thread serves requests where it reads them, one makes groups durable.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc as thread_channel;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolator_engine::{Batch, Engine, EngineKind};
use percolator_protocol::types::Timestamp;
use percolator_server::{Life, Probe, StallWatch, heartbeat};
use percolator_telemetry::Limited;
use percolator_telemetry::endpoint::{self, DATA_LOST};
use percolator_telemetry::otlp::Exporter;
use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;
use percolator_wire::v1::tablets_server::{Tablets, TabletsServer};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tonic::{Request, Response, Status, Streaming};

use crate::committer::Committer;
use crate::core::{Asker, Core, Facts, Order, Reply};
use crate::lapse::Lapse;
use crate::meter::Meter;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::outbox::{Outbox, Packs};
use crate::pages::pages;
use crate::trace::Traces;
use crate::{Error, Limits};

/// A message of requests may be this large: one request at its limit, and its envelope.
const MESSAGE_BYTES_MAX: usize = 24 << 20;
/// What the log holds between two checkpoints of the engine: what is buffered in memory in
/// front of it, two to three times this much with its overhead, and twice that during a checkpoint.
const LOG_SEGMENT_BYTES: u64 = 16 << 20;
/// Requests of one message that are handled before it is looked whether their answers are taken.
const REQUESTS_AT_A_TIME: usize = 64;
/// Cells of large transactions in a second for each processor: beside them reads take little longer than alone, on two
/// processors that three servers and their clients share.
const LARGE_CELLS_A_SECOND: u32 = 800;
/// A client that doesn't take its answers for this long is cut off.
const STUCK: Duration = Duration::from_secs(30);
static CUT: Limited = Limited::new();
/// Requests under way may end within this when the server stops.
const GRACE: Duration = Duration::from_millis(200);

/// A tablet server that listens.
pub struct Server {
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
    endpoint: Option<endpoint::Listener>,
    exporter: Option<Exporter>,
    metrics: Arc<Metrics>,
    engine: Arc<dyn Engine>,
    life: Life,
    core: Core,
}

impl Server {
    /// Opens the folder and listens. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// The folder or the address can't be had.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let (listener, address) = percolator_server::listen(options.listen)?;
        let endpoint = options.metrics_listen.map(endpoint::listen).transpose()?;
        let metrics = Metrics::new(options.cache_bytes).map_err(endpoint::Error::Metrics)?;
        let metrics = Arc::new(metrics);
        let mut engine_options =
            percolator_engine::Options::new(options.engine, options.server.clone());
        // A part is for the newest versions of cells, in front of the engine.
        engine_options.cache_bytes = options.cache_bytes - options.cache_bytes / 4;
        engine_options.segment_bytes = LOG_SEGMENT_BYTES;
        // A limit of the container counts.
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        let limits = Limits {
            cache_bytes: options.cache_bytes / 4,
            index_garbage: options.index_garbage,
            large_cells_a_second: LARGE_CELLS_A_SECOND.saturating_mul(processors),
            ..Limits::default()
        };
        // As later: one that belongs to no cluster yet has nothing to recover either. What is wrong with the folder, who
        // opens it says.
        let lives = percolator_engine::identity(&options.data_dir)
            .ok()
            .flatten()
            .is_some_and(|identity| identity.cluster_id.is_some());
        let (engine, life, mut core) =
            percolator_server::while_recovering(&listener, lives, || {
                let engine: Arc<dyn Engine> =
                    Arc::from(percolator_engine::open(&options.data_dir, &engine_options)?);
                // The engine holds the folder's lock.
                let life = match options.engine {
                    EngineKind::Memory => Life::without_folder(),
                    _ => Life::begin(&options.data_dir, percolator_engine::LOCK_FILE),
                };
                let me = v1::Addressee {
                    server: options.server.clone(),
                    incarnation: life.incarnation,
                };
                let core = Core::open(engine.clone(), limits, options.raw, me)?;
                Ok::<_, Error>((engine, life, core))
            })??;
        let torn_bytes = engine.stats().torn_bytes;
        if torn_bytes > 0 {
            tracing::warn!(
                torn_bytes,
                "the last record of the log was not whole, and was dropped: nobody was answered with it"
            );
        }
        let export = |traces| Exporter::of_server(traces, "tablet", &options.server);
        let exporter = options.traces.as_ref().map(export).transpose()?;
        let tracer = exporter.as_ref().map(Exporter::tracer);
        let traces = Traces::new(tracer, options.slow_request);
        // Where nobody sees it, nothing is measured.
        if endpoint.is_some() || traces.is_some() {
            core.watch(Box::new(Meter::new(metrics.clone(), traces)));
        }
        Ok(Self {
            options,
            listener,
            address,
            endpoint,
            exporter,
            metrics,
            engine,
            life,
            core,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it shows metrics and health, if it does.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(endpoint::Listener::address)
    }

    /// Serves until `shutdown` ends.
    ///
    /// # Errors
    /// The master refuses this server, or the disk lost a write.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let Self {
            options,
            listener,
            address,
            endpoint,
            exporter: _exporter,
            metrics,
            engine,
            life,
            core,
        } = self;
        let metrics_address = endpoint.as_ref().map(endpoint::Listener::address);
        let stall = StallWatch::default();
        let Committer { groups, committed } = Committer::start(
            &options.server,
            engine.clone(),
            metrics.clone(),
            stall.clone(),
        )?;
        let cluster_id = percolator_engine::identity(&options.data_dir)?
            .and_then(|identity| identity.cluster_id);
        let (stop, stopped) = watch::channel(None::<String>);
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(core)),
            groups,
            cluster_id: Mutex::new(cluster_id.clone()),
            lost: Mutex::new(Vec::new()),
            stop,
            stall: stall.clone(),
            waits: Notify::new(),
            metrics,
        });
        let pages = pages(&shared, &engine, options.data_dir.clone());
        let _endpoint = endpoint.map(|listener| listener.serve(pages)).transpose()?;
        let service = TabletsServer::new(Service(shared.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(usize::MAX);
        let beat = heartbeat::Options {
            master: options.master.clone(),
            role: v1::Role::Tablet,
            server: options.server.clone(),
            address: options.advertise.unwrap_or_else(|| address.to_string()),
            metrics_address,
            cluster_id,
            life,
        };
        let leaving = beat.clone();
        let folder = (options.engine != EngineKind::Memory).then(|| options.data_dir.clone());
        let heartbeats = shared.clone().heartbeats(beat, folder);
        let (mut failed, lives) = (stopped.clone(), engine.clone());
        let ending = async move {
            tokio::select! {
                () = shutdown => None,
                failure = failed.wait_for(Option::is_some) => {
                    failure.ok().and_then(|failure| failure.clone())
                }
                stalled = stall.exceeds(options.disk_stall_max, || lives.signs_of_life()) => Some(stalled),
            }
        };
        let (ended, end) = oneshot::channel();
        let known = Arc::downgrade(&shared);
        let passes = move |probe| known.upgrade().is_some_and(|shared| shared.passes(probe));
        let serving = percolator_server::serve_when(listener, service, passes, GRACE, async move {
            let _ = ended.send(ending.await);
        });
        shared.with(|_| {});
        let result = tokio::select! {
            result = serving => result.map_err(Error::from),
            result = heartbeats => result.map_err(Error::from),
            () = shared.clone().answer_committed(committed) => Ok(()),
            () = shared.clone().tick() => Ok(()),
        };
        let failure = end.await.ok().flatten();
        let (last, cluster_id) = (
            shared.state.lock().core.report(),
            shared.cluster_id.lock().clone(),
        );
        drop(shared);
        // The committer ends when the last holder of its channel does; it doesn't hold up the end.
        let close = tokio::task::spawn_blocking(move || engine.close());
        if let Some(failure) = failure {
            // What was answered is durable, and nothing more is.
            let last = v1::HeartbeatRequest {
                failure: failure.clone(),
                ..last
            };
            heartbeat::leave(&leaving, cluster_id, last).await;
            return Err(Error::Stopped(failure));
        }
        result?;
        // What is left for the store, the next start has from the log.
        if let Ok(Ok(closed)) = tokio::time::timeout(options.disk_stall_max, close).await {
            closed?;
        }
        // Nobody is answered any more, and all that was is in the folder.
        heartbeat::leave(&leaving, cluster_id, last).await;
        Ok(())
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
    groups: thread_channel::Sender<Arc<Vec<Batch>>>,
    /// The cluster that this server belongs to, once it is known.
    cluster_id: Mutex<Option<String>>,
    /// Tablets that were here, as the master said last, and aren't any more.
    lost: Mutex<Vec<u64>>,
    stop: watch::Sender<Option<String>>,
    stall: StallWatch,
    /// The next tick is to be sooner than was said.
    waits: Notify,
    pub(crate) metrics: Arc<Metrics>,
}

struct State {
    core: Core,
    sinks: HashMap<Asker, Sink>,
    next_asker: Asker,
    /// Answers that are to be sent; kept for its room.
    replies: Vec<Reply>,
    /// What the core said last.
    next_tick: Duration,
    lapse: Lapse,
}

/// Where an asker's answers go.
enum Sink {
    Stream(Arc<Outbox>),
    Once(oneshot::Sender<v1::Response>),
}

impl State {
    fn new(core: Core) -> Self {
        Self {
            core,
            sinks: HashMap::new(),
            next_asker: 0,
            replies: Vec::new(),
            next_tick: Duration::MAX,
            lapse: Lapse::default(),
        }
    }

    fn add(&mut self, sink: Sink) -> Asker {
        self.next_asker += 1;
        self.sinks.insert(self.next_asker, sink);
        self.next_asker
    }
}

impl Shared {
    /// Lets the core do something, sends the answers that come of it, and the next group to the disk.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        if state.lapse.is_due() {
            state.core.lapse();
        }
        let result = act(&mut state);
        let mut replies = std::mem::take(&mut state.replies);
        for reply in replies.drain(..) {
            match state.sinks.get(&reply.to) {
                Some(Sink::Stream(outbox)) => outbox.push(reply.response),
                Some(Sink::Once(_)) => {
                    if let Some(Sink::Once(sender)) = state.sinks.remove(&reply.to) {
                        let _ = sender.send(reply.response);
                    }
                }
                // The client has gone.
                None => {}
            }
        }
        state.replies = replies;
        state.core.probe().turn_ended();
        if let Some(group) = state.core.take_group() {
            // The committer lives as long as this sender.
            let _ = self.groups.send(group);
        }
        if state.core.next_tick() < state.next_tick {
            self.waits.notify_one();
        }
        if let Some(failure) = state.core.failed() {
            let failure = failure.to_owned();
            self.stop.send_if_modified(|stop| {
                let new = stop.is_none();
                stop.get_or_insert(failure);
                new
            });
        }
        result
    }

    /// Answers what the committer has made durable, until it ends.
    async fn answer_committed(
        self: Arc<Self>,
        mut committed: mpsc::UnboundedReceiver<Result<(), percolator_engine::Error>>,
    ) {
        while let Some(result) = committed.recv().await {
            self.with(|state| state.core.committed(result, &mut state.replies));
        }
    }

    /// Lets the core's time pass.
    async fn tick(self: Arc<Self>) {
        let mut last = Instant::now();
        loop {
            let wakes = tokio::time::timeout(self.next_tick(), self.waits.notified());
            let _ = wakes.await;
            let elapsed = last.elapsed();
            last += elapsed;
            self.with(|state| state.core.tick(elapsed, &mut state.replies));
        }
    }

    /// Sends heartbeats, and does what their answers say, until the master refuses this server.
    fn heartbeats(
        self: Arc<Self>,
        beat: heartbeat::Options,
        folder: Option<PathBuf>,
    ) -> impl Future<Output = Result<(), percolator_server::Error>> {
        let (report, adopt, known) = (self.clone(), self.clone(), self);
        heartbeat::run(
            beat,
            move || {
                let mut state = report.state.lock();
                state.lapse.sends();
                v1::HeartbeatRequest {
                    disk_stalled_ms: report.stall.stalled_ms(),
                    ..state.core.report()
                }
            },
            move |cluster_id| -> Result<(), percolator_engine::Error> {
                if let Some(folder) = &folder {
                    percolator_engine::adopt_cluster(folder, cluster_id)?;
                }
                *adopt.cluster_id.lock() = Some(cluster_id.to_owned());
                Ok(())
            },
            move |told| {
                known.metrics.heard_master();
                known.with(|state| {
                    state.lapse.heard(told.lease_ms);
                    let State { core, replies, .. } = state;
                    core.lease(told.into());
                    core.meet(&told.tablet_servers, replies);
                    core.keep(told.gc, replies);
                    core.reach(told.into(), replies);
                    known.lost(core.lacks(&told.missing_tablets));
                });
            },
            std::future::pending(),
        )
    }

    /// Until the master has taken this server for its cluster's, nobody is sent here.
    fn passes(&self, probe: Probe) -> bool {
        match probe {
            Probe::Lives => self.cluster_id.lock().is_some(),
            Probe::Ready => self.ready().is_ok(),
        }
    }

    /// When the core is to be ticked.
    fn next_tick(&self) -> Duration {
        let mut state = self.state.lock();
        state.next_tick = state.core.next_tick();
        state.next_tick
    }

    /// How the server is, with all that was measured until now.
    pub(crate) fn facts(&self) -> Facts {
        let state = self.state.lock();
        state.core.probe().flush();
        state.core.facts()
    }

    /// Takes in which tablets are lost now.
    fn lost(&self, tablets: Vec<u64>) {
        let mut lost = self.lost.lock();
        if *lost != tablets {
            if !tablets.is_empty() {
                tracing::error!(?tablets, "tablets that were here are lost, with their rows");
            }
            *lost = tablets;
        }
    }

    /// How long the disk has stalled.
    pub(crate) fn stalled(&self) -> Duration {
        self.stall.stalled().unwrap_or_default()
    }

    /// Why nobody should be sent here, if so.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.cluster_id.lock().is_none() {
            return Err("the master has not told yet to which cluster this server belongs".into());
        }
        // Before the core is asked, which may wait for that disk.
        self.stall.check()?;
        if let Some(failure) = self.state.lock().core.failed() {
            return Err(format!("the disk failed: {failure}"));
        }
        let lost = self.lost.lock();
        match &lost[..] {
            [] => Ok(()),
            [first, ..] => Err(format!(
                "{DATA_LOST}{} tablets that were here are not any more, {first} among them, and nor are their rows: bring \
                 this server's folder or volume back, or give up the tables that they belong to (`percolator table list \
                 --tablets` names them) by `percolator table delete`",
                lost.len()
            )),
        }
    }

    /// Carries out an order of the master's, and waits until it is durable.
    async fn order(
        &self,
        cluster_id: &str,
        meant: Option<v1::Addressee>,
        order: Order,
    ) -> Result<(), Status> {
        let ours = self.cluster_id.lock().clone();
        if ours.as_deref() != Some(cluster_id) {
            return Err(Status::failed_precondition(format!(
                "this server belongs to cluster {}, the order is cluster {cluster_id}'s",
                ours.as_deref().unwrap_or("(none yet)")
            )));
        }
        let (sender, receiver) = oneshot::channel();
        self.with(|state| {
            let to = state.add(Sink::Once(sender));
            state.core.probe().turn_began(self.metrics.now());
            let State { core, replies, .. } = state;
            core.order(to, 0, meant, order, replies);
        });
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
            _ => Ok(()),
        }
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl Tablets for Service {
    type ServeStream = Packs;

    async fn serve(
        &self,
        request: Request<Streaming<v1::RequestPack>>,
    ) -> Result<Response<Packs>, Status> {
        percolator_wire::check_cluster(request.metadata(), self.0.cluster_id.lock().as_deref())?;
        let outbox = Arc::new(Outbox::default());
        let asker = self.0.state.lock().add(Sink::Stream(outbox.clone()));
        let packs = Packs(outbox.clone());
        let shared = self.0.clone();
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            shared.metrics.streams.inc();
            'stream: while let Ok(Some(pack)) = requests.message().await {
                let came = shared.metrics.now();
                let mut requests = pack.requests.into_iter().peekable();
                while requests.peek().is_some() {
                    shared.with(|state| {
                        state.core.probe().turn_began(came);
                        for request in requests.by_ref().take(REQUESTS_AT_A_TIME) {
                            state.core.request(asker, request, &mut state.replies);
                        }
                    });
                    if tokio::time::timeout(STUCK, outbox.room()).await.is_err() {
                        if let Some(left_out) = CUT.admit() {
                            tracing::warn!(
                                left_out,
                                "a client took no answers for {STUCK:?}: its stream is cut"
                            );
                        }
                        shared.metrics.stuck_streams.inc();
                        outbox.clear();
                        break 'stream;
                    }
                }
            }
            shared.metrics.streams.dec();
            shared.state.lock().sinks.remove(&asker);
            outbox.close();
        });
        Ok(Response::new(packs))
    }

    async fn create_tablet(
        &self,
        request: Request<v1::CreateTabletRequest>,
    ) -> Result<Response<v1::CreateTabletResponse>, Status> {
        let request = request.into_inner();
        let tablet = request
            .tablet
            .ok_or_else(|| Status::invalid_argument("an order without a tablet"))?;
        let made = request.made;
        let barrier = Timestamp::from_u64(request.barrier);
        self.0
            .order(
                &request.cluster_id,
                request.to,
                Order::Create {
                    tablet,
                    made,
                    barrier,
                },
            )
            .await?;
        Ok(Response::new(v1::CreateTabletResponse {}))
    }

    async fn drop_tablet(
        &self,
        request: Request<v1::DropTabletRequest>,
    ) -> Result<Response<v1::DropTabletResponse>, Status> {
        let request = request.into_inner();
        let (id, table) = (request.tablet_id, request.table_id);
        self.0
            .order(&request.cluster_id, request.to, Order::Drop { id, table })
            .await?;
        Ok(Response::new(v1::DropTabletResponse {}))
    }
}
