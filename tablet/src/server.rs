//! The runner on a network: one thread serves requests where it reads them, one makes groups durable.

use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use percolator_client::{LockResolver, TabletPeers};
use percolator_engine::{Engine, EngineKind};
use percolator_server::{Incarnation, StallWatch, advertised, heartbeat};
use percolator_telemetry::endpoint;
use percolator_telemetry::otlp::Exporter;
use percolator_wire::v1;
use percolator_wire::v1::tablets_server::TabletsServer;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

use crate::committer::Committer;
use crate::core::Core;
use crate::meter::Meter;
use crate::metrics::Metrics;
use crate::mover::get_tablets;
use crate::options::Options;
use crate::pages::pages;
use crate::resolver::resolve_locks;
use crate::service::{Service, Shared};
use crate::trace::Traces;
use crate::{Error, Limits, ServerIncarnation};

/// The most bytes of a message of requests: one request at its limit, and its envelope.
const MESSAGE_BYTES_MAX: usize = 24 << 20;
/// The bytes of the log between two checkpoints of the engine. The buffer in front of the engine takes two to three times this much
/// memory, and twice that during a checkpoint.
const LOG_SEGMENT_BYTES: u64 = 16 << 20;
/// Cells of large transactions in a second for each processor: beside them reads take little longer than alone, on two
/// processors that three servers and their clients share.
const LARGE_CELLS_A_SECOND: u32 = 800;
/// A connection to another tablet server is closed after this without a response.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);
/// When the server stops, requests under way may end within this.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);

/// A tablet server that listens.
pub struct Server {
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
    endpoint: Option<endpoint::Listener>,
    exporter: Option<Exporter>,
    metrics: Arc<Metrics>,
    engine: Arc<dyn Engine>,
    incarnation: Incarnation,
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
        // A server that belongs to no cluster has nothing to recover. To open the folder shows what is wrong with it.
        let is_member = percolator_engine::identity(&options.data_dir)
            .ok()
            .flatten()
            .is_some_and(|identity| identity.cluster_id.is_some());
        let (engine, incarnation, mut core) =
            percolator_server::while_recovering(&listener, is_member, || {
                let engine: Arc<dyn Engine> =
                    Arc::from(percolator_engine::open(&options.data_dir, &engine_options)?);
                // The engine holds the folder's lock.
                let incarnation = match options.engine {
                    EngineKind::Memory => Incarnation::without_folder(),
                    _ => Incarnation::begin(&options.data_dir, percolator_engine::LOCK_FILE),
                };
                let me = ServerIncarnation {
                    server: options.server.clone(),
                    incarnation: incarnation.incarnation,
                };
                let core = Core::open(engine.clone(), limits, options.raw, me)?;
                Ok::<_, Error>((engine, incarnation, core))
            })??;
        let torn_bytes = engine.stats().torn_bytes;
        if torn_bytes > 0 {
            tracing::warn!(
                torn_bytes,
                "the last record of the log was torn, and was dropped: no request was answered with it"
            );
        }
        let export = |traces| Exporter::of_server(traces, "tablet", &options.server);
        let exporter = options.traces.as_ref().map(export).transpose()?;
        let tracer = exporter.as_ref().map(Exporter::tracer);
        let traces = Traces::new(tracer, options.slow_request);
        // Without an endpoint and traces nothing reads the measurements.
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
            incarnation,
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
            incarnation,
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
        let shared = Shared::new(
            core,
            cluster_id.clone(),
            groups,
            stop,
            stall.clone(),
            metrics,
        );
        let pages = pages(&shared, &engine, options.data_dir.clone());
        let _endpoint = endpoint.map(|listener| listener.serve(pages)).transpose()?;
        let service = TabletsServer::new(Service(shared.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(usize::MAX);
        let beat = heartbeat::Options {
            master: options.master.clone(),
            role: v1::Role::Tablet,
            server: options.server.clone(),
            address: advertised(options.advertise.as_deref(), address)?,
            metrics_address,
            cluster_id,
            process: incarnation,
        };
        let leaving = beat.clone();
        let tasks = background_tasks(&beat.master, shared.clone(), committed)?;
        let folder = (options.engine != EngineKind::Memory).then(|| options.data_dir.clone());
        let heartbeats = shared.clone().heartbeats(beat, folder);
        let stalled = stalled(stall, options.disk_stall_max, engine.clone());
        let drained = drained(shutdown, shared.clone(), options.drain_on_stop);
        let ending = ending(drained, stopped, stalled);
        let (ended, end) = oneshot::channel();
        let known = Arc::downgrade(&shared);
        let passes = move |probe| known.upgrade().is_some_and(|shared| shared.passes(probe));
        let ending = async move {
            let _ = ended.send(ending.await);
        };
        let serving =
            percolator_server::serve_when(listener, service, passes, SHUTDOWN_TIMEOUT, ending);
        shared.begin();
        let result = tokio::select! {
            result = serving => result.map_err(Error::from),
            result = heartbeats => result.map_err(Error::from),
            () = tasks => Ok(()),
        };
        let ended = match end.await.ok().flatten() {
            Some(failure) => Err(Error::Stopped(failure)),
            None => result,
        };
        leave(ended, shared, engine, leaving, options.disk_stall_max).await
    }
}

/// The tasks beside the requests. They go on for ever.
fn background_tasks(
    master: &str,
    shared: Arc<Shared>,
    committed: mpsc::UnboundedReceiver<Result<(), percolator_engine::Error>>,
) -> Result<impl Future<Output = ()> + use<>, Error> {
    let resolver = LockResolver::connect(master).map_err(Error::Master)?;
    let peers = TabletPeers::connect(master, PEER_TIMEOUT).map_err(Error::Master)?;
    Ok(async move {
        tokio::select! {
            () = shared.clone().answer_committed(committed) => {}
            () = shared.clone().tick() => {}
            () = resolve_locks(&resolver, &shared) => {}
            () = get_tablets(&peers, &shared) => {}
        }
    })
}

/// Waits for the shutdown, and then until other servers have the tablets, for at most `longest`.
async fn drained(shutdown: impl Future<Output = ()>, shared: Arc<Shared>, longest: Duration) {
    shutdown.await;
    shared.move_tablets_off(longest).await;
}

/// Waits until the disk has stalled for `longest`. Returns the failure.
async fn stalled(stall: StallWatch, longest: Duration, engine: Arc<dyn Engine>) -> String {
    stall.exceeds(longest, || engine.signs_of_life()).await
}

/// Waits until the server is drained, or its disk has failed or stalls. Returns the failure.
async fn ending(
    drained: impl Future<Output = ()>,
    mut stopped: watch::Receiver<Option<String>>,
    stalled: impl Future<Output = String>,
) -> Option<String> {
    tokio::select! {
        () = drained => None,
        failure = stopped.wait_for(Option::is_some) => {
            failure.ok().and_then(|failure| failure.clone())
        }
        failure = stalled => Some(failure),
    }
}

/// Gives the lease and the folder back after this end of the server, unless that takes too long.
async fn leave(
    ended: Result<(), Error>,
    shared: Arc<Shared>,
    engine: Arc<dyn Engine>,
    leaving: heartbeat::Options,
    stall_max: Duration,
) -> Result<(), Error> {
    let (mut last, cluster_id) = (shared.report(), shared.cluster_id().cloned());
    drop(shared);
    // The committer ends when the last holder of its channel does; it doesn't hold up the end.
    let close = tokio::task::spawn_blocking(move || engine.close());
    if let Err(Error::Stopped(failure)) = &ended {
        // All that was answered is durable, and nothing else is.
        last.failure.clone_from(failure);
        heartbeat::leave(&leaving, cluster_id, last).await;
        return ended;
    }
    ended?;
    // The next start replays from the log what the store doesn't have.
    if let Ok(Ok(closed)) = tokio::time::timeout(stall_max, close).await {
        closed?;
    }
    // No request is answered any more, and the folder has all that was answered.
    heartbeat::leave(&leaving, cluster_id, last).await;
    Ok(())
}
