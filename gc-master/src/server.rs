//! Runs the directory: its state in a file, its requests and commands over gRPC.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percolator_client::OracleClient;
use percolator_server::{DurableValue, Folder, SmallFile};
use percolator_telemetry::endpoint::{self, Pages};
use percolator_telemetry::otlp::{self, Exporter};
use percolator_wire::v1::master_server::MasterServer;
use tokio::net::TcpListener;

use crate::core::{Directory, Settings};
use crate::driver::drive;
use crate::events::Start;
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::runner::Runner;
use crate::service::Service;
use crate::settings::Manifest;
use crate::state::StateError;

/// What a master needs to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its own folder; it is created if it's missing.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where to show metrics and health; without it, nowhere. Port 0 picks a free one.
    pub metrics_listen: Option<SocketAddr>,
    /// Where to send spans of what clients trace; without it, nowhere.
    pub traces: Option<otlp::Settings>,
    /// Its stable name, for example "gc-master-0".
    pub server: String,
    /// Begin a new cluster if the folder is empty. Without this, an empty folder means that the
    /// state was lost: the master then waits for a server that knows the cluster.
    pub new_cluster: bool,
    /// What may be set.
    pub settings: Settings,
    /// The file with what the manifest says of garbage collection ([`Manifest::decode`]), looked at every second.
    pub manifest: Option<PathBuf>,
}

/// Why a master can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the folder, the file, the address or the serving.
    #[error(transparent)]
    Server(#[from] percolator_server::Error),
    /// Metrics can't be shown.
    #[error(transparent)]
    Metrics(#[from] endpoint::Error),
    /// Traces can't be sent.
    #[error(transparent)]
    Traces(#[from] otlp::Error),
    /// Of reaching itself, as its servers' client.
    #[error(transparent)]
    Itself(percolator_client::Error),
    /// The state is not one of this program.
    #[error("{}: {cause}", .path.display())]
    State {
        /// The file that holds it.
        path: PathBuf,
        /// What is wrong with it.
        cause: StateError,
    },
    /// The file with what the manifest says can't be read, or says something else.
    #[error("{}, which --manifest names: {cause}", .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// How often the file with what the manifest says is read.
const MANIFEST_EVERY: Duration = Duration::from_secs(1);

/// A master that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    endpoint: Option<endpoint::Listener>,
    exporter: Option<Exporter>,
    metrics: Arc<Metrics>,
    runner: Arc<Runner>,
    manifest: Option<PathBuf>,
    data_dir: PathBuf,
    server: String,
}

/// The role in the folder's identity.
const ROLE: &str = "master";
/// The file in the folder that holds the state.
const STATE_FILE: &str = "directory";
/// How long requests may go on after the master was asked to stop.
const GRACE: Duration = Duration::from_secs(2);
/// The longest heartbeat: a hundred thousand tablets with short rows, and then some.
const REQUEST_BYTES_MAX: usize = 64 << 20;

impl Server {
    /// Reads the state and listens. What the state must hold by now is durable when this returns.
    ///
    /// # Errors
    /// Of the folder, the state and the address.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let folder = Folder::open(&options.data_dir, ROLE, &options.server, None)?;
        let file = SmallFile::new(folder.path().join(STATE_FILE));
        let start = match file.load()? {
            Some(bytes) => Start::State(bytes),
            None => match folder.cluster_id() {
                None if options.new_cluster => Start::NewCluster,
                cluster_id => Start::Rebuild { cluster_id },
            },
        };
        let mut directory =
            Directory::open(start, options.settings, rand::random()).map_err(|cause| {
                Error::State {
                    path: file.path().to_owned(),
                    cause,
                }
            })?;
        if let Some(path) = &options.manifest {
            directory.take_manifest(read_manifest(path)?);
        }
        if let Err(waiting) = directory.state() {
            tracing::warn!("{waiting}");
        }
        let metrics = Arc::new(Metrics::new().map_err(endpoint::Error::Metrics)?);
        let runner = Runner::new(directory, file, folder, metrics.clone())?;
        let (listener, address) = percolator_server::listen(options.listen)?;
        let endpoint = options.metrics_listen.map(endpoint::listen).transpose()?;
        let export = |traces| Exporter::of_server(traces, "gc-master", &options.server);
        let exporter = options.traces.as_ref().map(export).transpose()?;
        Ok(Self {
            listener,
            address,
            endpoint,
            exporter,
            metrics,
            runner,
            manifest: options.manifest,
            data_dir: options.data_dir,
            server: options.server,
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
    /// Of serving; and when the state can't be made durable: what was decided is not known to be
    /// true then, so the master stops.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let metrics_address = self.metrics_address();
        let pages = pages(&self.metrics, &self.runner, self.data_dir);
        let _endpoint = self
            .endpoint
            .map(|listener| listener.serve(pages))
            .transpose()?;
        let measured = Measured {
            service: Service::new(self.runner.clone(), self.server, metrics_address),
            metrics: self.metrics.clone(),
            tracer: self.exporter.as_ref().map(Exporter::tracer),
        };
        let service = MasterServer::new(measured).max_decoding_message_size(REQUEST_BYTES_MAX);
        let failed = self.runner.clone();
        let stop = async {
            tokio::select! {
                () = shutdown => {}
                () = failed.failed() => {}
            }
        };
        let watching = watch_manifest(self.manifest, self.runner.clone());
        let runner = self.runner.clone();
        let oracle = OracleClient::connect(&self.address.to_string()).map_err(Error::Itself)?;
        let collecting = async {
            drive(&oracle, |time| {
                let stepped = runner.step(|directory, now| {
                    directory.collect(now, time);
                    directory.collection_pause()
                });
                stepped.ok()
            })
            .await;
            std::future::pending().await
        };
        tokio::select! {
            served = percolator_server::serve(self.listener, service, GRACE, stop) => served?,
            () = collecting => {}
            () = watching => {}
        }
        match self.runner.take_failure() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// What the master shows of itself.
fn pages(metrics: &Arc<Metrics>, runner: &Arc<Runner>, folder: PathBuf) -> Pages {
    // It isn't kept alive by that.
    let (watched, asked) = (Arc::downgrade(runner), Arc::downgrade(runner));
    let shown = metrics.clone();
    Pages {
        registry: metrics.registry.clone(),
        role: "gc-master",
        refresh: Box::new(move || {
            shown.show_volume(&folder);
            // One that is stopping has nothing more to tell.
            let runner = watched.upgrade();
            if let Some(Ok(facts)) = runner.map(|runner| runner.look(Directory::facts)) {
                shown.show(&facts);
            }
        }),
        ready: Box::new(move || {
            let runner = asked.upgrade().ok_or("the master is stopping")?;
            match runner.look(|directory, _| directory.state().map(drop)) {
                Ok(Ok(())) => runner.writable(),
                Ok(Err(waits)) => Err(waits.to_string()),
                Err(stopping) => Err(stopping.message().to_owned()),
            }
        }),
        healthy: Box::new(|| Ok(())),
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let read = std::fs::read(path).map_err(Into::into);
    read.and_then(|bytes| Manifest::decode(&bytes).map_err(Into::into))
        .map_err(|cause| Error::Manifest {
            path: path.to_owned(),
            cause,
        })
}

/// Reads the file again and again: administrators change it without a restart. What it said last counts
/// as long as it can't be read.
async fn watch_manifest(path: Option<PathBuf>, runner: Arc<Runner>) {
    let Some(path) = path else {
        return std::future::pending().await;
    };
    let mut last = None;
    let mut told = String::new();
    loop {
        match read_manifest(&path) {
            Ok(manifest) if last.as_ref() != Some(&manifest) => {
                tracing::info!(
                    retention_ms = manifest.retention_ms,
                    max_hold_ms = manifest.max_hold_ms,
                    paused = manifest.paused,
                    tablet_servers = manifest.tablet_servers,
                    "what the manifest says"
                );
                told.clear();
                last = Some(manifest.clone());
                let taken = runner.step(|directory, _| directory.take_manifest(manifest));
                if taken.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => {
                let error = error.to_string();
                if told != error {
                    tracing::warn!(error, "what the manifest said last goes on to count");
                    told = error;
                }
            }
        }
        tokio::time::sleep(MANIFEST_EVERY).await;
    }
}
