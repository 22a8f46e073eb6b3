//! Carries out what the directory decides: makes its state durable, then sends its commands and answers.
//!
//! A step acts in memory, and leaves the new state to the one task that writes ([`Runner::persist`]). That writes the newest
//! state only, so that steps that come meanwhile share a write. What a step has found is shown when the state that it
//! has seen is durable, and at once if that is so already.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::election::StateNumber;
use percolator_server::Folder;
use percolator_telemetry::Limited;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use crate::commands::{Channels, send};
use crate::core::Directory;
use crate::durability::{Closed, Durable, persist};
use crate::events::{Command, Note};
use crate::leadership::Replica;
use crate::metrics::Metrics;
use crate::served::{Acted, Served};
use crate::stored::{PersistError, StateStore};

/// Servers that disagree say so with each heartbeat.
static NOTES: Limited = Limited::new();
static MOVES: Limited = Limited::new();

/// A directory that is being served, with its connections.
pub(crate) struct Runner {
    /// Of this leadership; 0: the master is alone.
    term: u64,
    served: Served,
    channels: Mutex<Channels>,
    started: Instant,
    metrics: Arc<Metrics>,
}

/// What a step has found, not to be shown before the state that it has seen is durable.
#[must_use]
struct Unshown<R> {
    result: R,
    changes: u64,
}

impl Runner {
    /// Makes durable what the directory wants from the beginning, and says whether it wants anything: a master without a state has
    /// none to begin with. For one of several masters this also makes each late write of an earlier leader a conflict.
    pub(crate) async fn open(
        mut directory: Directory,
        store: &mut StateStore,
        term: u64,
        folder: &Folder,
        metrics: Arc<Metrics>,
    ) -> Result<(Arc<Self>, bool), PersistError> {
        let effects = directory.take_effects();
        effects.notes.iter().for_each(log);
        let is_stored = effects.persist.is_some();
        if let Some(bytes) = effects.persist {
            store.store(0, &bytes).await?;
        }
        adopt_cluster(folder, &directory)?;
        let runner = Arc::new(Self {
            term,
            served: Served::new(directory),
            channels: Mutex::default(),
            started: Instant::now(),
            metrics,
        });
        Ok((runner, is_stored))
    }

    /// In which term this directory is served.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Makes each new state durable, until one can't be; never ends before. When this is dropped, nothing is shown any more.
    pub(crate) async fn persist(
        &self,
        store: StateStore,
        folder: &Folder,
        candidate: Option<&Replica>,
    ) -> PersistError {
        let directory = PersistedRunner {
            runner: self,
            folder,
        };
        persist(&directory, store, candidate).await
    }

    /// Nothing of this directory is shown from now on, and it changes no more.
    pub(crate) fn close(&self) {
        self.served.durability().close();
    }

    /// One step of the directory, with its effects. The state is durable when this returns.
    pub(crate) async fn step<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Result<R, Status> {
        let unshown = self.act(act)?;
        self.show(unshown).await
    }

    /// One step of which nothing is shown: its effects follow when the state is durable.
    pub(crate) fn step_unshown(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Directory, Duration),
    ) -> Result<(), Status> {
        self.act(act).map(|_| ())
    }

    /// Looks at the directory.
    pub(crate) async fn look<R>(
        &self,
        at: impl FnOnce(&Directory, Duration) -> R,
    ) -> Result<R, Status> {
        let look = |directory: &Directory| at(directory, self.started.elapsed());
        let (result, changes) = self.served.look(look);
        self.show(Unshown { result, changes }).await
    }

    /// Looks at the directory for metrics, on which nobody relies: they may be ahead of the durable state by one write.
    pub(crate) fn look_for_metrics<R>(
        &self,
        at: impl FnOnce(&Directory, Duration) -> R,
    ) -> Result<R, Status> {
        self.served.durability().check().map_err(closed)?;
        let look = |directory: &Directory| at(directory, self.started.elapsed());
        Ok(self.served.look(look).0)
    }

    /// Waits until all that was changed so far is durable, or never will be.
    pub(crate) async fn settled(&self) {
        let durability = self.served.durability();
        let _ = durability.shown(durability.changes()).await;
    }

    /// Ends with the next change after this call that is durable, or of what needs not be.
    pub(crate) fn progressed(&self) -> Notified<'_> {
        self.served.durability().progressed()
    }

    /// When it will be so late, counted from the directory's start.
    pub(crate) fn at(&self, since_start: Duration) -> Instant {
        self.started + since_start
    }

    fn act<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Result<Unshown<R>, Status> {
        let acted = self
            .served
            .act(|directory| act(directory, self.started.elapsed()));
        let Acted {
            result,
            changes,
            commands,
            notes,
        } = acted.map_err(closed)?;
        notes.iter().for_each(log);
        for command in commands {
            let channel = self.channel(&command.address);
            self.dispatch(Unshown {
                result: (channel, command),
                changes,
            });
        }
        Ok(Unshown { result, changes })
    }

    /// Sends a command when its state is durable, and takes its outcome in.
    fn dispatch(self: &Arc<Self>, command: Unshown<(Option<Channel>, Command)>) {
        let runner = self.clone();
        tokio::spawn(async move {
            // A directory that isn't served any more has no use for the outcome.
            let Ok((channel, command)) = runner.show(command).await else {
                return;
            };
            let outcome = send(channel, &command).await;
            runner.metrics.commanded(outcome.is_ok());
            let _ =
                runner.step_unshown(|directory, now| directory.finished(now, &command, outcome));
        });
    }

    /// The result, once the state that it has seen is durable.
    async fn show<R>(&self, unshown: Unshown<R>) -> Result<R, Status> {
        let Unshown { result, changes } = unshown;
        let durability = self.served.durability();
        durability.shown(changes).await.map_err(closed)?;
        Ok(result)
    }

    fn channel(&self, address: &str) -> Option<Channel> {
        let mut channels = self.channels.lock();
        self.served.look(|directory| {
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

/// A runner whose state becomes durable, with the master's folder.
struct PersistedRunner<'a> {
    runner: &'a Runner,
    folder: &'a Folder,
}

impl Durable for PersistedRunner<'_> {
    fn served(&self) -> &Served {
        &self.runner.served
    }

    fn written(&self, state: &[u8], is_stored: bool, took: Duration) {
        self.runner.metrics.persisted(state, is_stored, took);
    }

    fn becomes_durable(&self, _: StateNumber) -> Result<(), PersistError> {
        let adopt = |directory: &Directory| adopt_cluster(self.folder, directory);
        self.runner.served.look(adopt).0
    }
}

/// Not the answer of a standby, by which nothing was done: here the caller has to ask.
fn closed(_: Closed) -> Status {
    Status::unavailable(
        "the master has stopped serving before its state was durable: what was asked for may have been done, or not",
    )
}

/// The master's folder is this cluster's, before anybody hears of the cluster.
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
        // Once in a life of the master.
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
    use crate::settings::Change;
    use crate::stored::StoreWaits;

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
        runner: Arc<Runner>,
        store: StateStore,
        folder: Folder,
        _place: tempfile::TempDir,
    }

    impl Fixture {
        async fn new(fails: bool) -> Self {
            let place = tempfile::tempdir().unwrap();
            let folder = Folder::open(place.path(), "master", "master-0", None).unwrap();
            let register = Arc::new(GatedRegister {
                swaps: Semaphore::new(1),
                values: Mutex::default(),
                fails,
            });
            let loaded =
                StateStore::load(register.clone(), 1, StoreWaits::up_to(Duration::ZERO)).await;
            let (mut store, _) = loaded.unwrap();
            let directory = Directory::open(Start::NewCluster, Settings::default(), 1).unwrap();
            let metrics = Arc::new(Metrics::new().unwrap());
            let runner = Runner::open(directory, &mut store, 1, &folder, metrics).await;
            Self {
                register,
                runner: runner.unwrap().0,
                store,
                folder,
                _place: place,
            }
        }
    }

    /// A step that changes the durable state.
    async fn set_retention(runner: &Arc<Runner>, minutes: u64) -> Result<(), Status> {
        let change = Change {
            retention: Some(Duration::from_secs(60 * minutes)),
            ..Change::default()
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
            folder,
            _place,
        } = Fixture::new(false).await;
        let runner = &runner;
        let mut persisting = pin!(runner.persist(store, &folder, None));
        // Nothing is to be written: it doesn't wait for the device.
        assert!(poll!(pin!(runner.step(|_, _| ()))).is_ready());
        let mut first = pin!(set_retention(runner, 1));
        assert!(poll!(&mut first).is_pending());
        // The first write is under way from here on.
        assert!(poll!(&mut persisting).is_pending());
        let mut second = pin!(set_retention(runner, 2));
        let mut third = pin!(set_retention(runner, 3));
        // This one changes nothing, and has seen what the third has changed.
        let mut looked = pin!(runner.look(|directory, _| directory.state().is_ok()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert!(poll!(&mut looked).is_pending());
        register.swaps.add_permits(1);
        assert!(poll!(&mut persisting).is_pending());
        assert!(matches!(poll!(&mut first), Poll::Ready(Ok(()))));
        assert!(poll!(&mut second).is_pending() && poll!(&mut looked).is_pending());
        register.swaps.add_permits(1);
        assert!(poll!(&mut persisting).is_pending());
        assert!(matches!(poll!(&mut second), Poll::Ready(Ok(()))));
        assert!(matches!(poll!(&mut third), Poll::Ready(Ok(()))));
        assert!(matches!(poll!(&mut looked), Poll::Ready(Ok(true))));
        // The first one was the directory's beginning.
        assert_eq!(register.values.lock().len(), 3);
    }

    /// The register has none of its term then, and no copy may count.
    #[tokio::test]
    async fn a_master_without_a_state_stores_none() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path(), "master", "master-0", None).unwrap();
        let register = Arc::new(GatedRegister {
            swaps: Semaphore::new(1),
            values: Mutex::default(),
            fails: false,
        });
        let waits = StoreWaits::up_to(Duration::ZERO);
        let loaded = StateStore::load(register.clone(), 2, waits).await;
        let (mut store, _) = loaded.unwrap();
        let start = Start::NoState { cluster_id: None };
        let directory = Directory::open(start, Settings::default(), 1).unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let opened = Runner::open(directory, &mut store, 2, &folder, metrics).await;
        let (_, is_stored) = opened.unwrap();
        assert!(!is_stored && register.values.lock().is_empty());
    }

    #[tokio::test]
    async fn connections_to_servers_that_are_gone_go() {
        let runner = Fixture::new(false).await.runner;
        for port in 7_000..7_010 {
            assert!(runner.channel(&format!("127.0.0.1:{port}")).is_some());
        }
        // The cluster has no servers.
        assert_eq!(runner.channels.lock().len(), 1);
    }

    #[tokio::test]
    async fn of_a_state_that_is_not_durable_nothing_is_shown() {
        let fixture = Fixture::new(true).await;
        let runner = fixture.runner.clone();
        let mut persisting = pin!(runner.persist(fixture.store, &fixture.folder, None));
        let mut changed = pin!(set_retention(&runner, 1));
        let mut looked = pin!(runner.look(|_, _| ()));
        assert!(poll!(&mut changed).is_pending() && poll!(&mut looked).is_pending());
        fixture.register.swaps.add_permits(1);
        let Poll::Ready(error) = poll!(&mut persisting) else {
            panic!("it goes on");
        };
        assert!(error.to_string().contains("no room"), "{error}");
        assert!(matches!(poll!(&mut changed), Poll::Ready(Err(_))));
        assert!(matches!(poll!(&mut looked), Poll::Ready(Err(_))));
        runner.look(|_, _| ()).await.unwrap_err();
        runner.step(|_, _| ()).await.unwrap_err();
        runner.look_for_metrics(|_, _| ()).unwrap_err();
    }
}
