//! Runs the directory: its state in a register, its requests and commands over gRPC. One of several masters does so while it
//! leads.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use percolator_client::TimestampClient;
use percolator_protocol::election::StateNumber;
use percolator_server::leadership;
use percolator_server::promises::{PromiseService, PromiseTask};
use percolator_server::{Beside, Folder, GrpcService, Probe, RegisterLocation};
use percolator_telemetry::endpoint::{self, Pages};
use percolator_telemetry::otlp::{self, Exporter};
use percolator_wire::v1::master_server::MasterServer;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::Status;

use crate::core::{Directory, Settings};
use crate::error::Error;
use crate::facts::Facts;
use crate::joining::JoinedMaster;
use crate::leadership::{NetworkServing, Replica, names_cluster};
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::runner_host::{self, NetworkRunner};
use crate::service::Service;
use crate::settings::Manifest;
use crate::startup::{self, Opened, StateLocation, read_manifest};
use crate::stored::{PersistError, StateStore};

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
    /// Where the others reach it, HOST:PORT; without it, where it listens.
    pub advertise: Option<String>,
    /// The registers that it shares with other masters, of which one leads; without it, it is alone, and its state is in
    /// its folder.
    pub register: Option<RegisterLocation>,
    /// Its stable name, for example "master-0".
    pub server: String,
    /// Begin a new cluster if the folder is empty. Without this, an empty folder means that the
    /// state was lost: the master then refuses all servers until the state is rebuilt.
    pub new_cluster: bool,
    /// What may be set.
    pub settings: Settings,
    /// The manifest's part about garbage collection as a file ([`Manifest::decode`]), read every second.
    pub manifest: Option<PathBuf>,
}

/// How often a master that leads without a state checks whether there is one.
const STATE_POLL: Duration = Duration::from_secs(2);
/// How often the manifest's file is read.
const MANIFEST_POLL: Duration = Duration::from_secs(1);

/// A master that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    endpoint: Option<endpoint::Listener>,
    exporter: Option<Exporter>,
    metrics: Arc<Metrics>,
    options: Options,
    folder: Arc<Folder>,
    state: StateLocation,
    serving: Arc<NetworkServing>,
    /// Of a master that is alone: its directory, and where its changes go.
    alone: Option<(Arc<NetworkRunner>, StateStore)>,
    /// Of one of several masters.
    joined: Option<JoinedMaster>,
}

/// The role in the folder's identity.
const ROLE: &str = "master";
/// Room for what may come to the state with its next change. It is written beside the last one, before that goes.
const ROOM_BYTES: u64 = 256 << 10;
/// How long requests may go on after the master was asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest heartbeat: a hundred thousand tablets with short rows, and then some.
const REQUEST_BYTES_MAX: usize = 64 << 20;

impl Server {
    /// Reads the state and listens. What the state must hold by now is durable when this returns.
    ///
    /// # Errors
    /// Of the folder, the state and the address.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let folder = Folder::open(&options.data_dir, ROLE, &options.server, None)?;
        let folder = Arc::new(folder);
        let metrics = Arc::new(Metrics::new().map_err(endpoint::Error::Metrics)?);
        let (listener, address) = percolator_server::listen(options.listen)?;
        let endpoint = options.metrics_listen.map(endpoint::listen).transpose()?;
        let export = |traces| Exporter::of_server(traces, "master", &options.server);
        let exporter = options.traces.as_ref().map(export).transpose()?;
        let (state, serving, alone, joined) = match &options.register {
            None => {
                let state = StateLocation::alone(&folder);
                let opened = state.open(0, (&options, &folder), None).await?;
                let (runner, store, _) = open_runner(opened, 0, &folder, metrics.clone()).await?;
                let serving = NetworkServing::alone(runner.clone());
                (state, serving, Some((runner, store)), None)
            }
            Some(register) => {
                let shown = metrics.clone();
                let (state, candidate, joined) =
                    JoinedMaster::open(register, &options, &folder, address, shown).await?;
                (
                    state,
                    NetworkServing::elected(candidate),
                    None,
                    Some(joined),
                )
            }
        };
        Ok(Self {
            listener,
            address,
            endpoint,
            exporter,
            metrics,
            options,
            folder,
            state,
            serving: Arc::new(serving),
            alone,
            joined,
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

    /// What it serves.
    fn service(&self) -> impl GrpcService + use<> {
        let measured = Measured {
            service: Service::new(
                self.serving.clone(),
                self.folder.clone(),
                self.options.server.clone(),
                self.metrics_address(),
            ),
            metrics: self.metrics.clone(),
            tracer: self.exporter.as_ref().map(Exporter::tracer),
        };
        let service = MasterServer::new(measured).max_decoding_message_size(REQUEST_BYTES_MAX);
        let promises = self.joined.as_ref().map(|joined| joined.promises.clone());
        let replica = self.serving.candidate().cloned().zip(promises);
        let promises = PromiseService::server(replica, self.folder.clone());
        let service = Beside::new(service, promises);
        names_cluster(service, self.folder.clone(), self.serving.clone())
    }

    /// Serves until `shutdown` ends.
    ///
    /// # Errors
    /// Of serving; and when a master that is alone can't make its state durable: what was decided is not known to be
    /// true then, so the master stops. One of several becomes a standby then.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let service = self.service();
        let Self {
            listener,
            address,
            endpoint,
            exporter: _exporter,
            metrics,
            options,
            folder,
            state,
            serving,
            alone,
            joined,
        } = self;
        let file = state.file.clone();
        let pages = pages(&metrics, &serving, folder.path().to_owned(), file);
        let _endpoint = endpoint.map(|listener| listener.serve(pages)).transpose()?;
        // Of several masters the next one is restarted only when this one could take over, or leads.
        let asked = serving.clone();
        let passes = move |probe| match probe {
            Probe::Ready => asked.not_ready().is_none(),
            Probe::Lives => true,
        };
        let terms = Terms {
            options,
            address,
            folder,
            state,
            metrics,
            serving: serving.clone(),
            joined,
        };
        match alone {
            Some((runner, store)) => {
                let (fail, failed) = oneshot::channel::<()>();
                let stop = async {
                    tokio::select! {
                        () = shutdown => {}
                        _ = failed => {}
                    }
                };
                let served =
                    percolator_server::serve_when(listener, service, passes, STOP_TIMEOUT, stop);
                let mut serving = pin!(served);
                // What is asked while it stops is still made durable.
                tokio::select! {
                    served = &mut serving => Ok(served?),
                    error = Box::pin(terms.serve(&runner, store)) => {
                        let _ = fail.send(());
                        serving.await?;
                        Err(error)
                    }
                }
            }
            None => {
                let mut failure = None;
                let stop = async {
                    // On the heap: a future moves over the stacks of all that wait for it.
                    let mut part = Box::pin(terms.take_part()).fuse();
                    tokio::select! {
                        () = async { shutdown.await; serving.drain().await } => {}
                        error = &mut part => failure = Some(error),
                        error = Box::pin(terms.lead_terms()) => failure = Some(error),
                    }
                    // While connections are open: clients are sent to the next leader.
                    serving.set(None);
                    leadership::beside(part, serving.hand_over()).await;
                    terms.take_leave().await;
                };
                percolator_server::serve_when(listener, service, passes, STOP_TIMEOUT, stop)
                    .await?;
                failure.map_or(Ok(()), Err)
            }
        }
    }
}

/// What a master needs to serve a directory.
struct Terms {
    options: Options,
    address: SocketAddr,
    folder: Arc<Folder>,
    state: StateLocation,
    metrics: Arc<Metrics>,
    serving: Arc<NetworkServing>,
    joined: Option<JoinedMaster>,
}

impl Terms {
    /// Drives a directory, and makes its changes durable. Ends when that fails.
    async fn serve(&self, runner: &Arc<NetworkRunner>, store: StateStore) -> Error {
        let candidate = self.serving.candidate().map(|it| &**it);
        let oracle = match TimestampClient::connect(&self.address.to_string()) {
            Ok(oracle) => oracle,
            Err(error) => return Error::Itself(error),
        };
        tokio::select! {
            error = Box::pin(runner.serve(store, candidate, &oracle)) => error.into(),
            never = watch_manifest(self.options.manifest.clone(), runner) => match never {},
            error = self.finds_state(runner) => error.into(),
        }
    }

    /// One of several masters that leads without a state finds one in the register: a person has restored it, or what an earlier leader
    /// rebuilt came late. The next leader begins with it.
    async fn finds_state(&self, runner: &NetworkRunner) -> PersistError {
        let has_none = || {
            let state = runner.read_for_metrics(|directory, _| directory.state().is_err());
            state.unwrap_or_default()
        };
        while self.joined.is_some() && has_none() {
            tokio::time::sleep(STATE_POLL).await;
            // Rebuilt here meanwhile, it is this master's own.
            if self.state.is_stored().await && has_none() {
                return PersistError::Superseded;
            }
        }
        std::future::pending().await
    }

    /// Takes part in the election. Ends if this master may not begin to.
    async fn take_part(&self) -> Error {
        let Some((candidate, joined)) = self.serving.candidate().zip(self.joined.as_ref()) else {
            return std::future::pending().await;
        };
        let electing = async {
            if joined.begins_late {
                startup::begin_shared_state(&self.state, &self.options, &self.folder).await?;
            }
            Ok::<Infallible, Error>(candidate.run().await)
        };
        let promises = self.promise_task(candidate, joined);
        tokio::select! {
            never = promises.run() => match never {},
            begun = electing => match begun {
                Err(error) => error,
            },
        }
    }

    /// Serves in each term in which this master leads. Ends if the state is none that this master can read.
    async fn lead_terms(&self) -> Error {
        let Some(candidate) = self.serving.candidate() else {
            return std::future::pending().await;
        };
        loop {
            let term = candidate.standing().leads().await;
            let failed = tokio::select! {
                () = candidate.standing().leads_no_more(term) => None,
                failed = self.lead(term) => Some(failed),
            };
            self.serving.set(None);
            self.metrics.show(&Facts::default());
            match failed {
                None => {}
                // Another leadership wouldn't help.
                Some(
                    error @ (Error::State { .. }
                    | Error::Manifest { .. }
                    | Error::Persist(PersistError::NoState { .. } | PersistError::Folder(_))),
                ) => return error,
                Some(error) => {
                    tracing::error!(%error, term, "this master gives its leadership up");
                    candidate.resign().await;
                }
            }
        }
    }

    fn promise_task(
        &self,
        candidate: &Arc<Replica>,
        joined: &JoinedMaster,
    ) -> PromiseTask<Replica> {
        let (replica, promises) = (candidate.clone(), joined.promises.clone());
        PromiseTask::new(replica, promises, self.folder.clone(), candidate.timing())
    }

    /// Says that it has ended: a standby to the leader, and one that has handed over to the standbys.
    async fn take_leave(&self) {
        if let Some((candidate, joined)) = self.serving.candidate().zip(self.joined.as_ref()) {
            self.promise_task(candidate, joined).take_leave().await;
        }
    }

    /// Serves in one term. Ends when it can't.
    async fn lead(&self, term: u64) -> Error {
        let candidate = self.serving.candidate().map(|it| &**it);
        let opened = async {
            loop {
                let copy = match candidate {
                    Some(candidate) => {
                        let within = Duration::from_millis(candidate.timing().right_ms);
                        let copy = tokio::time::timeout(within, candidate.own_copy()).await;
                        copy.map_err(|_| Error::FolderHangs { within })??
                    }
                    None => None,
                };
                let from = (&self.options, &*self.folder);
                let opened = self.state.open(term, from, copy).await?;
                if opened.is_copy {
                    tracing::info!(
                        term,
                        of_term = opened.stored_term,
                        "this master goes on from the copy of the state in its folder: the register's is older"
                    );
                }
                if let Some(candidate) = candidate {
                    candidate.may_store_state(term, opened.stored_term).await;
                }
                let metrics = self.metrics.clone();
                match open_runner(opened, term, &self.folder, metrics).await {
                    // The last write of the leader before: it counts.
                    Err(Error::Persist(PersistError::Superseded)) => {}
                    opened => return opened,
                }
            }
        };
        let (runner, store, is_stored) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return error,
        };
        // Until the register has a state of this term, no copy is a match for it.
        if let Some(candidate) = candidate.filter(|_| is_stored) {
            candidate.stored(StateNumber { term, number: 0 });
        }
        if let Some(joined) = &self.joined {
            // No other start of this folder is in the register.
            joined.process.accepted();
        }
        self.serving.set(Some(runner.clone()));
        self.serve(&runner, store).await
    }
}

async fn open_runner(
    opened: Opened,
    term: u64,
    folder: &Arc<Folder>,
    metrics: Arc<Metrics>,
) -> Result<(Arc<NetworkRunner>, StateStore, bool), Error> {
    let Opened {
        directory,
        mut store,
        ..
    } = opened;
    if let Err(waiting) = directory.state() {
        tracing::warn!("{waiting}");
    }
    let opened = runner_host::open_runner(directory, &mut store, term, folder, metrics);
    let (runner, is_stored) = opened.await?;
    Ok((runner, store, is_stored))
}

/// What the master shows of itself.
fn pages(
    metrics: &Arc<Metrics>,
    serving: &Arc<NetworkServing>,
    folder: PathBuf,
    state: Option<PathBuf>,
) -> Pages {
    // It isn't kept alive by that.
    let (watched, asked) = (Arc::downgrade(serving), Arc::downgrade(serving));
    let shown = metrics.clone();
    let volume = folder.clone();
    Pages {
        registry: metrics.registry.clone(),
        role: "master",
        refresh: Box::new(move || {
            shown.show_volume(&volume);
            let serving = watched.upgrade();
            if let Some(candidate) = serving.as_ref().and_then(|it| it.candidate()) {
                candidate.host().show_right(&candidate.replica());
            }
            // One that doesn't lead has nothing more to show.
            let runner = serving.and_then(|serving| serving.current());
            if let Some(Ok(facts)) = runner.map(|it| it.read_for_metrics(Directory::facts)) {
                shown.show(&facts);
            }
        }),
        ready: Box::new(move || {
            let serving = asked.upgrade().ok_or("the master is stopping")?;
            if let Some(why) = serving.not_ready() {
                return Err(Status::from(why).message().to_owned());
            }
            let waits = |directory: &Directory, _| directory.state().map(drop);
            match serving.current().map(|it| it.read_for_metrics(waits)) {
                None | Some(Ok(Ok(()))) => writable(state.as_deref(), &folder),
                Some(Ok(Err(waits))) => Err(waits.to_string()),
                Some(Err(closed)) => Err(Status::from(closed).message().to_owned()),
            }
        }),
        healthy: Box::new(|| Ok(())),
    }
}

/// Why the next change could not be made durable, if so: for want of room, before the master has to stop for it.
fn writable(state: Option<&Path>, folder: &Path) -> Result<(), String> {
    let length = state.and_then(|state| std::fs::metadata(state).ok());
    let length = length.map_or(0, |file| file.len());
    let beside = state.and_then(Path::parent).unwrap_or(folder);
    percolator_telemetry::writable(beside, length + ROOM_BYTES)
}

/// Reads the manifest's file again and again: administrators change it without a restart. Its last content counts
/// as long as it can't be read.
async fn watch_manifest(path: Option<PathBuf>, runner: &Arc<NetworkRunner>) -> Infallible {
    let Some(path) = path else {
        return std::future::pending().await;
    };
    let mut last = None;
    let mut logged = String::new();
    loop {
        match read_manifest(&path) {
            Ok(manifest) if last.as_ref() != Some(&manifest) => {
                log_manifest(&manifest);
                logged.clear();
                last = Some(manifest.clone());
                let taken = runner.step_unshown(|directory, _| directory.take_manifest(manifest));
                if taken.is_err() {
                    return std::future::pending().await;
                }
            }
            Ok(_) => {}
            Err(error) => {
                let error = error.to_string();
                if logged != error {
                    tracing::warn!(
                        error,
                        "the manifest can't be read: its last content stays in effect"
                    );
                    logged = error;
                }
            }
        }
        tokio::time::sleep(MANIFEST_POLL).await;
    }
}

fn log_manifest(manifest: &Manifest) {
    tracing::info!(
        retention_ms = manifest.retention_ms,
        max_hold_ms = manifest.max_hold_ms,
        paused = manifest.paused,
        tablet_servers = manifest.tablet_servers,
        "the manifest is in effect"
    );
}
