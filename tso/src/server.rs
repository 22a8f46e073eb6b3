//! The server: the core, bound to a folder, an address and a clock.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use percolator_protocol::oracle::Settings;
use percolator_server::promises::{PromiseFolder, PromiseService, PromiseTask};
use percolator_server::{
    Beside, DurableValue, Folder, GrpcService, Incarnation, Probe, RegisterLocation, SmallFile,
    advertised, folder, listen, serve_when,
};
use percolator_server::{heartbeat, leadership};
use percolator_telemetry::endpoint::{self, Pages};
use percolator_telemetry::otlp::{self, Exporter};
use percolator_wire::v1::oracle_server::OracleServer;
use percolator_wire::v1::{HeartbeatRequest, HeartbeatResponse, Role};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Error;
use crate::clock::{Clock, SystemClock};
use crate::core::{Core, StartError};
use crate::granting::Granting;
use crate::joining::JoinedReplica;
use crate::keeper::{FolderLimit, Keeper};
use crate::leadership::{LeadershipTask, Replica};
use crate::metrics::Metrics;
use crate::service::{Service, Shared};

/// The name of the oracle's role in a folder's identity.
const ROLE: &str = "oracle";
/// The file of the durable limit.
const LIMIT: &str = "limit";
/// A request is a few bytes.
const REQUEST_BYTES_MAX: usize = 1024;
/// Answers take microseconds: what is under way when the server stops is done in this time.
const STOP_TIMEOUT: Duration = Duration::from_millis(50);

/// How an oracle is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its folder; created if it's missing.
    pub data_dir: PathBuf,
    /// Where it listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where to show metrics and health; without it, nowhere. Port 0 picks a free one.
    pub metrics_listen: Option<SocketAddr>,
    /// Where to send spans of what clients trace; without it, nowhere.
    pub traces: Option<otlp::Settings>,
    /// Where clients reach it, HOST:PORT; without it, where it listens.
    pub advertise: Option<String>,
    /// Where the master is, HOST:PORT, or several of these with commas between; without it the oracle serves alone, and sends no
    /// heartbeats.
    pub master: Option<String>,
    /// The register that it shares with other oracles, of which one leads; without it, it is alone, and its limit is in
    /// its folder.
    pub register: Option<RegisterLocation>,
    /// Its stable name.
    pub server: String,
    /// How far ahead of use the limit is made durable, in milliseconds, and what clocks may do.
    pub settings: Settings,
    /// How long a request waits for a limit to be durable before it's refused as unavailable.
    pub wait_max: Duration,
    /// A disk that takes no limit for so long ends the oracle, so that another one can take its place.
    pub disk_stall_max: Duration,
}

impl Options {
    /// The defaults around a folder: any free port of this machine alone, the name "tso-0", the
    /// rule's own settings, waits of up to 5 s.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            metrics_listen: None,
            traces: None,
            advertise: None,
            master: None,
            register: None,
            server: "tso-0".to_owned(),
            settings: Settings::default(),
            wait_max: Duration::from_secs(5),
            disk_stall_max: Duration::from_secs(30),
        }
    }
}

/// An oracle that listens, and serves once [`Self::run`] is polled.
#[derive(Debug)]
pub struct Server {
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
    metrics: Option<endpoint::Listener>,
    exporter: Option<Exporter>,
    advertised: String,
    folder: Arc<Folder>,
    process: Incarnation,
    /// Nothing is handed out before that: the oracle before may be alive, and its last limit counts.
    waits: Duration,
    /// 0: it is alone.
    register_id: u64,
    background: Background,
    /// Of one of several oracles.
    promises: Option<(Arc<Replica>, Arc<PromiseFolder>)>,
    shared: Arc<Shared>,
}

/// What makes limits durable.
#[derive(Debug)]
enum Background {
    /// In the folder, for an oracle that is alone.
    Keeper(Keeper<FolderLimit>),
    /// In the register, and in the folders of all oracles.
    Leadership(LeadershipTask, PromiseTask<Replica>),
}

impl Background {
    /// Never ends otherwise.
    ///
    /// # Errors
    /// As [`LeadershipTask::run`].
    async fn run(&self) -> Result<Infallible, Error> {
        match self {
            Self::Keeper(keeper) => Ok(keeper.run().await),
            Self::Leadership(leadership, promises) => {
                tokio::select! {
                    result = leadership.run() => result,
                    never = promises.run() => match never {},
                }
            }
        }
    }

    /// Lets another oracle take over, if there are several.
    async fn hand_over(&self) {
        if let Self::Leadership(leadership, promises) = self {
            leadership.hand_over(promises).await;
        }
    }
}

impl Server {
    /// Takes the folder, makes the first limit durable, and listens.
    ///
    /// # Errors
    /// [`Error`]: the folder is another's, the limit is damaged or missing, the clock is beyond
    /// belief, the address is taken.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        Self::bind_with(options, Arc::new(SystemClock), |file| Arc::new(file)).await
    }

    /// The same with another clock, and with something between the oracle and its file.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub async fn bind_with(
        options: Options,
        clock: Arc<dyn Clock>,
        truth: impl FnOnce(SmallFile) -> Arc<dyn DurableValue + Send + Sync>,
    ) -> Result<Self, Error> {
        let folder = Folder::open(&options.data_dir, ROLE, &options.server, None)?;
        let folder = Arc::new(folder);
        let process = Incarnation::begin(folder.path(), folder::LOCK);
        let file = SmallFile::new(folder.path().join(LIMIT));
        let (listener, address) = listen(options.listen)?;
        let metrics = options.metrics_listen.map(endpoint::listen).transpose()?;
        let is_missing = options.advertise.is_none() && options.master.is_some();
        if is_missing && address.ip().is_unspecified() {
            return Err(Error::AdvertiseMissing { address });
        }
        let advertised = advertised(options.advertise.as_deref(), address)?;
        let window_ms = options.settings.window_ms;
        let counters = Metrics::new(window_ms).map_err(endpoint::Error::Metrics)?;
        let export = |traces| Exporter::of_server(traces, "tso", &options.server);
        let exporter = options.traces.as_ref().map(export).transpose()?;
        let tracer = exporter.as_ref().map(Exporter::tracer);
        let (mut register_id, mut promises) = (0, None);
        let (background, shared, waits) = match &options.register {
            None => {
                let path = file.path().to_owned();
                let truth = truth(file);
                let (core, waits) = recover(&options, &folder, &process, &*truth, &path, &*clock)?;
                let core = Granting::Alone(core);
                let shared = Arc::new(Shared::new(core, clock, counters, tracer));
                let limit = FolderLimit {
                    shared: shared.clone(),
                    file: truth,
                    folder: folder.clone(),
                };
                let keeper = Keeper::new(limit, window_ms);
                // The first limit is durable before the first heartbeat: the master names the cluster in its response.
                keeper.extend().await?;
                (Background::Keeper(keeper), shared, waits)
            }
            Some(location) => {
                let limit = (&folder, file);
                let start = (&process, &*advertised);
                let joined = JoinedReplica::open(location, &options, limit, start, clock.now());
                let joined = joined.await?;
                register_id = joined.register_id;
                let replica = Granting::Replica(Box::new(joined.replica));
                let shared = Arc::new(Shared::new(replica, clock, counters, tracer));
                let (timing, folder) = (joined.timing, folder.clone());
                let elected = Replica::new(shared.clone(), joined.register, timing);
                let elected = Arc::new(elected);
                promises = Some((elected.clone(), joined.promises.clone()));
                let asking = PromiseTask::new(elected.clone(), joined.promises, folder, timing);
                let leadership = LeadershipTask::new(elected, process.incarnation, joined.late);
                let background = Background::Leadership(leadership, asking);
                (background, shared, Duration::ZERO)
            }
        };
        Ok(Self {
            options,
            listener,
            address,
            metrics,
            exporter,
            advertised,
            folder,
            process,
            waits,
            register_id,
            background,
            promises,
            shared,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it shows metrics and health, if it does.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(endpoint::Listener::address)
    }

    /// What it serves.
    fn service(&self) -> impl GrpcService + use<> {
        let folder = self.folder.clone();
        let service = Service::new(self.shared.clone(), folder.clone(), self.options.wait_max);
        let service = OracleServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX);
        Beside::new(
            service,
            PromiseService::server(self.promises.clone(), folder),
        )
    }

    /// Whether a health check passes. Of several oracles the next one is restarted only when this one could take over, or leads.
    fn probes(&self) -> impl Fn(Probe) -> bool + Clone + Send + Sync + use<> {
        let (shared, has_register) = (self.shared.clone(), self.promises.is_some());
        move |probe| match probe {
            Probe::Ready if has_register => shared.ready().is_ok(),
            Probe::Ready | Probe::Lives => true,
        }
    }

    /// Its heartbeats, if it has a master.
    fn heartbeat_options(&self) -> Option<heartbeat::Options> {
        let master = self.options.master.clone()?;
        Some(heartbeat::Options {
            master,
            role: Role::Oracle,
            server: self.options.server.clone(),
            address: self.advertised.clone(),
            metrics_address: self.metrics_address(),
            cluster_id: self.folder.cluster_id(),
            process: self.process.clone(),
        })
    }

    /// Serves until `shutdown` ends, or the master refuses this oracle. An oracle that
    /// has a master and belongs to no cluster yet answers no request until the master has named its cluster.
    ///
    /// # Errors
    /// [`Error::Server`]: the transport failed, or the master refuses.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let (service, passes) = (self.service(), self.probes());
        let beat = self.heartbeat_options();
        let Self {
            options,
            listener,
            address,
            metrics,
            exporter: _exporter,
            advertised,
            folder,
            waits,
            register_id,
            background,
            shared,
            ..
        } = self;
        let stall = shared.stall.clone();
        let (shown, data) = (shared.clone(), folder.path().to_owned());
        // Also one that knows its cluster: another one may have taken its place since, and serves.
        let (adopted, mut is_adopted) = watch::channel(options.master.is_none());
        if options.master.is_some() {
            shared.obey_master();
        }
        let pages = pages(shown, is_adopted.clone(), data);
        let _endpoint = metrics.map(|listener| listener.serve(pages)).transpose()?;
        let beating = Beating {
            shared: shared.clone(),
            register_id,
            sent_ms: AtomicU64::new(0),
        };
        let report = || beating.report();
        let beats = async {
            let Some(beat) = beat.clone() else {
                return std::future::pending().await;
            };
            let adopt = |id: &str| folder.adopt_cluster(id);
            let learn = |response: &HeartbeatResponse| {
                beating.take_response(response);
                let _ = adopted.send(true);
            };
            heartbeat::run(beat, &report, adopt, learn, std::future::pending()).await
        };
        let mut beats = pin!(beats);
        let mut shutdown = pin!(shutdown);
        // Anyone who connects waits until the master has taken this oracle for its own: one that has lost its
        // folder must hand out nothing.
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            result = &mut beats => return Ok(result?),
            _ = async {
                tokio::time::sleep(waits).await;
                is_adopted.wait_for(|adopted| *adopted).await.map(drop)
            } => {}
        }
        tracing::info!(%address, advertised, "the oracle serves");
        let (mut ended, mut failed, mut stopped) = (Ok(()), None, None);
        serve_when(listener, service, passes, STOP_TIMEOUT, async {
            let mut part = pin!(background.run().fuse());
            tokio::select! {
                () = &mut shutdown => {}
                result = &mut beats => ended = result,
                result = &mut part => failed = result.err(),
                stalled = stall.exceeds(options.disk_stall_max, || 0) => stopped = Some(stalled),
            }
            // While connections are open: clients are sent to the next leader.
            leadership::beside(part, background.hand_over()).await;
        })
        .await?;
        ended?;
        if let Some(beat) = &beat {
            heartbeat::leave(beat, folder.cluster_id(), report()).await;
        }
        let failed = failed.or(stopped.map(Error::DiskStalled));
        failed.map_or(Ok(()), Err)
    }
}

/// What an oracle reports in its heartbeats.
struct Beating {
    shared: Arc<Shared>,
    register_id: u64,
    /// When the heartbeat under way was sent, by the monotonic clock.
    sent_ms: AtomicU64,
}

impl Beating {
    fn report(&self) -> HeartbeatRequest {
        let (report, now_ms) = self.shared.report(self.register_id);
        self.sent_ms.store(now_ms, Ordering::Relaxed);
        HeartbeatRequest {
            disk_stalled_ms: self.shared.stall.stalled_ms(),
            takeover_ms: self.shared.takeover_ms(),
            ..report
        }
    }

    fn take_response(&self, response: &HeartbeatResponse) {
        let sent_ms = self.sent_ms.load(Ordering::Relaxed);
        self.shared.take_response(sent_ms, response);
    }
}

/// The core of an oracle that is alone, from the limit in its folder, and how long it has to wait.
fn recover(
    options: &Options,
    folder: &Folder,
    process: &Incarnation,
    truth: &(dyn DurableValue + Send + Sync),
    path: &Path,
    clock: &dyn Clock,
) -> Result<(Core, Duration), Error> {
    let path = path.to_owned();
    let stored = truth.load()?;
    if let (None, Some(cluster_id)) = (&stored, folder.cluster_id()) {
        return Err(Error::LimitMissing { path, cluster_id });
    }
    let core = Core::recover(stored.as_deref(), clock.now(), options.settings);
    let core = core.map_err(|error| match error {
        StartError::Recover(cause) => Error::Clock { cause },
        cause @ StartError::NoLimit { .. } => Error::NoLimit { path, cause },
    })?;
    let waits = waits_for(options.settings, stored.is_some(), process);
    Ok((core, waits))
}

/// How long an oracle that is alone waits, so that the last limit of one before it that may be alive has expired.
fn waits_for(settings: Settings, has_limit: bool, process: &Incarnation) -> Duration {
    if has_limit && process.replaces.is_empty() {
        Duration::from_millis(settings.wait_ms())
    } else {
        Duration::ZERO
    }
}

fn pages(shown: Arc<Shared>, is_adopted: watch::Receiver<bool>, data: PathBuf) -> Pages {
    let asked = shown.clone();
    Pages {
        registry: shown.metrics.registry.clone(),
        role: "tso",
        refresh: Box::new(move || shown.show(&data)),
        ready: Box::new(move || {
            if *is_adopted.borrow() {
                asked.ready()
            } else {
                Err("the master has not accepted this oracle yet".into())
            }
        }),
        healthy: Box::new(|| Ok(())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit counts for a second at the least, whatever the window is.
    #[test]
    fn an_oracle_before_it_that_may_be_alive_is_waited_for() {
        let short = Settings {
            window_ms: 200,
            ..Settings::default()
        };
        let unknown = Incarnation::without_folder();
        assert_eq!(waits_for(short, true, &unknown), Duration::from_secs(1));
        let long = Settings::default();
        let window = Duration::from_millis(long.window_ms);
        assert!(waits_for(long, true, &unknown) >= window);
        // There was none, or it has surely ended.
        assert_eq!(waits_for(short, false, &unknown), Duration::ZERO);
        let mut proven = unknown;
        proven.replaces.push(7);
        assert_eq!(waits_for(short, true, &proven), Duration::ZERO);
    }
}
