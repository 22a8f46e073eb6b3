//! A master's process over a network, as its runner uses it: connections to tablet servers, log, metrics and folder.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use percolator_protocol::election::StateNumber;
use percolator_server::Folder;
use percolator_telemetry::Limited;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use crate::command_sender::{Channels, send};
use crate::core::Directory;
use crate::durability::Closed;
use crate::events::{Command, Done, Note};
use crate::metrics::Metrics;
use crate::runner::{RequestError, Runner, RunnerHost};
use crate::stored::{PersistError, StateStore};

/// Servers that disagree are reported with each heartbeat.
static NOTES: Limited = Limited::new();
static MOVES: Limited = Limited::new();

/// A directory that is served over a network.
pub(crate) type NetworkRunner = Runner<NetworkRunnerHost>;

/// The process of a master that serves.
pub(crate) struct NetworkRunnerHost {
    channels: Mutex<Channels>,
    epoch: Instant,
    folder: Arc<Folder>,
    metrics: Arc<Metrics>,
}

impl NetworkRunnerHost {
    fn channel(&self, runner: &NetworkRunner, address: &str) -> Option<Channel> {
        let mut channels = self.channels.lock();
        runner.read_unshown(|directory, _| {
            // Not at each new connection: what one costs doesn't grow with the cluster.
            if let Ok(state) = directory.state()
                && channels.len() > 2 * state.servers.len()
            {
                let servers = state.servers.values();
                channels.keep(&servers.map(|server| &*server.address).collect());
            }
        });
        channels.of(address)
    }
}

impl RunnerHost for NetworkRunnerHost {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    async fn send(&self, runner: &NetworkRunner, command: &Command) -> Result<Done, String> {
        let channel = self.channel(runner, &command.address);
        let outcome = send(channel, command).await;
        self.metrics.commanded(outcome.is_ok());
        outcome
    }

    fn log(&self, note: &Note) {
        log(note);
    }

    fn written(&self, state: &[u8], is_stored: bool, took: Duration) {
        self.metrics.persisted(state, is_stored, took);
    }

    fn becomes_durable(&self, directory: &Directory, _: StateNumber) -> Result<(), PersistError> {
        adopt_cluster(&self.folder, directory)
    }
}

/// Makes the first state of a directory durable, and says whether it has one. See [`Runner::open`].
pub(crate) async fn open_runner(
    directory: Directory,
    store: &mut StateStore,
    term: u64,
    folder: &Arc<Folder>,
    metrics: Arc<Metrics>,
) -> Result<(Arc<NetworkRunner>, bool), PersistError> {
    let host = NetworkRunnerHost {
        channels: Mutex::default(),
        epoch: Instant::now(),
        folder: folder.clone(),
        metrics,
    };
    let opened = Runner::open(directory, store, term, host).await?;
    opened
        .0
        .read_unshown(|directory, _| adopt_cluster(folder, directory))?;
    Ok(opened)
}

impl From<Closed> for Status {
    /// Not the response of a standby, which has done nothing: here the caller has to ask.
    fn from(_: Closed) -> Self {
        Self::unavailable(
            "the master has stopped serving before its state was durable: the request may have been carried out, or not",
        )
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(refusal) => refusal.into(),
            RequestError::Closed => Closed.into(),
        }
    }
}

/// Makes the folder this cluster's, before the master names the cluster to anyone.
fn adopt_cluster(folder: &Folder, directory: &Directory) -> Result<(), PersistError> {
    let cluster_id = directory.state().map(|state| &state.cluster_id);
    match cluster_id {
        Ok(cluster_id) if folder.cluster_id().as_ref() != Some(cluster_id) => folder
            .adopt_cluster(cluster_id)
            .map_err(|error| PersistError::Folder(Arc::new(error))),
        _ => Ok(()),
    }
}

fn log(note: &Note) {
    match note {
        // Once in an incarnation of the master.
        Note::Rebuilt { .. } => tracing::warn!("{note}"),
        Note::Departed { .. } => tracing::info!("{note}"),
        Note::MoveBegan { .. } => {
            if let Some(left_out) = MOVES.admit() {
                tracing::info!(left_out, "{note}");
            }
        }
        Note::MoveEnded { .. }
        | Note::WithoutRoom { .. }
        | Note::Conflict { .. }
        | Note::Missing { .. }
        | Note::Failed { .. } => {
            if let Some(left_out) = NOTES.admit() {
                tracing::warn!(left_out, "{note}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use futures_util::poll;
    use percolator_register::{
        BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedValue, WriteId,
    };
    use tokio::sync::Semaphore;

    use super::*;
    use crate::core::Settings;
    use crate::events::Start;
    use crate::leadership::Replica;
    use crate::settings::SettingsChange;
    use crate::stored::StoreWaits;

    const NONE: Option<&Replica> = None;

    /// A register in memory that swaps when it is allowed to.
    #[derive(Debug)]
    struct GatedRegister {
        swaps: Semaphore,
        values: Mutex<Vec<Vec<u8>>>,
        fails: bool,
    }

    impl Register for GatedRegister {
        fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
            let values = self.values.lock();
            let found = values.last().map(|value| VersionedValue {
                value: value.clone(),
                version: RegisterVersion(values.len() as u64),
                write: WriteId([0; 16]),
            });
            Box::pin(std::future::ready(Ok(found)))
        }

        fn swap(
            &self,
            _: Option<RegisterVersion>,
            value: Vec<u8>,
        ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
            Box::pin(async move {
                self.swaps.acquire().await.unwrap().forget();
                let mut values = self.values.lock();
                if self.fails && !values.is_empty() {
                    return Err(SwapError::Refused {
                        register: "it".to_owned(),
                        reason: "no room".to_owned(),
                    });
                }
                values.push(value);
                Ok(RegisterVersion(values.len() as u64))
            })
        }
    }

    struct Fixture {
        register: Arc<GatedRegister>,
        runner: Arc<NetworkRunner>,
        store: StateStore,
        /// The directory's first state is in the register.
        is_stored: bool,
        _place: tempfile::TempDir,
    }

    impl Fixture {
        /// The first master of a new cluster. `fails`: its register refuses all states but the first one.
        async fn new(fails: bool) -> Self {
            Self::open(Start::NewCluster, 1, fails).await
        }

        async fn open(start: Start, term: u64, fails: bool) -> Self {
            let place = tempfile::tempdir().unwrap();
            let folder = Folder::open(place.path(), "master", "master-0", None).unwrap();
            let folder = Arc::new(folder);
            let register = Arc::new(GatedRegister {
                swaps: Semaphore::new(1),
                values: Mutex::default(),
                fails,
            });
            let waits = StoreWaits::up_to(Duration::ZERO);
            let loaded = StateStore::load(register.clone(), term, waits).await;
            let (mut store, _) = loaded.unwrap();
            let directory = Directory::open(start, Settings::default(), 1).unwrap();
            let metrics = Arc::new(Metrics::new().unwrap());
            let opened = open_runner(directory, &mut store, term, &folder, metrics).await;
            let (runner, is_stored) = opened.unwrap();
            Self {
                register,
                runner,
                store,
                is_stored,
                _place: place,
            }
        }
    }

    /// A step that changes the durable state.
    async fn set_retention(runner: &Arc<NetworkRunner>, minutes: u64) -> Result<(), Status> {
        let change = SettingsChange {
            retention: Some(Duration::from_secs(60 * minutes)),
            ..SettingsChange::default()
        };
        let set = runner.step(|directory, _| directory.set_collection(change));
        set.await?.map_err(Status::from)
    }

    #[tokio::test]
    async fn answers_wait_for_their_own_state_and_share_writes() {
        let Fixture {
            register,
            runner,
            store,
            _place,
            ..
        } = Fixture::new(false).await;
        let runner = &runner;
        let mut persisting = pin!(runner.persist(store, NONE));
        // Nothing is to be written: it doesn't wait for the device.
        assert!(poll!(pin!(runner.step(|_, _| ()))).is_ready());
        let mut first = pin!(set_retention(runner, 1));
        assert!(poll!(&mut first).is_pending());
        // The first write is under way from here on.
        assert!(poll!(&mut persisting).is_pending());
        let mut second = pin!(set_retention(runner, 2));
        let mut third = pin!(set_retention(runner, 3));
        // This one changes nothing, and has seen what the third has changed.
        let mut read = pin!(runner.read(|directory, _| directory.state().is_ok()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert!(poll!(&mut read).is_pending());
        register.swaps.add_permits(1);
        assert!(poll!(&mut persisting).is_pending());
        assert!(matches!(poll!(&mut first), Poll::Ready(Ok(()))));
        assert!(poll!(&mut second).is_pending() && poll!(&mut read).is_pending());
        register.swaps.add_permits(1);
        assert!(poll!(&mut persisting).is_pending());
        assert!(matches!(poll!(&mut second), Poll::Ready(Ok(()))));
        assert!(matches!(poll!(&mut third), Poll::Ready(Ok(()))));
        assert!(matches!(poll!(&mut read), Poll::Ready(Ok(true))));
        // The first one was the directory's beginning.
        assert_eq!(register.values.lock().len(), 3);
    }

    /// The register has none of its term then, and no copy may count.
    #[tokio::test]
    async fn a_master_without_a_state_stores_none() {
        let start = Start::NoState { cluster_id: None };
        let fixture = Fixture::open(start, 2, false).await;
        assert!(!fixture.is_stored && fixture.register.values.lock().is_empty());
    }

    #[tokio::test]
    async fn connections_to_servers_that_are_gone_go() {
        let runner = Fixture::new(false).await.runner;
        for port in 7_000..7_010 {
            assert!(
                runner
                    .host()
                    .channel(&runner, &format!("127.0.0.1:{port}"))
                    .is_some()
            );
        }
        // The cluster has no servers.
        assert_eq!(runner.host().channels.lock().len(), 1);
    }

    #[tokio::test]
    async fn of_a_state_that_is_not_durable_nothing_is_shown() {
        let fixture = Fixture::new(true).await;
        let runner = fixture.runner.clone();
        let mut persisting = pin!(runner.persist(fixture.store, NONE));
        let mut changed = pin!(set_retention(&runner, 1));
        let mut read = pin!(runner.read(|_, _| ()));
        assert!(poll!(&mut changed).is_pending() && poll!(&mut read).is_pending());
        fixture.register.swaps.add_permits(1);
        let Poll::Ready(error) = poll!(&mut persisting) else {
            panic!("it goes on");
        };
        assert!(error.to_string().contains("no room"), "{error}");
        assert!(matches!(poll!(&mut changed), Poll::Ready(Err(_))));
        assert!(matches!(poll!(&mut read), Poll::Ready(Err(_))));
        runner.read(|_, _| ()).await.unwrap_err();
        runner.step(|_, _| ()).await.unwrap_err();
        runner.read_for_metrics(|_, _| ()).unwrap_err();
    }
}
