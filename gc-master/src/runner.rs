//! Serves a directory: the steps of its requests, its commands, and the state that has to be durable before a result is shown. It
//! needs no socket and no clock: the server and the simulator each bring a [`RunnerHost`].
//!
//! A step acts in memory, and leaves the new state to the one task that writes ([`Runner::persist`]). That task writes only the
//! newest state, so that concurrent steps share a write. The result of a step is returned when the state that the step has read is
//! durable.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select};
use parking_lot::Mutex;
use percolator_client::TimestampClient;
use percolator_protocol::election::StateNumber;
use tokio::sync::futures::Notified;

use crate::candidate::{Candidate, Host};
use crate::core::Directory;
use crate::driver::drive;
use crate::durability::{Closed, Durability};
use crate::events::{Command, Done, Note};
use crate::pending::Pending;
use crate::refusal::Refusal;
use crate::requests::Awaited;
use crate::stored::{PersistError, StateStore};

/// The process around a [`Runner`]: its clock, its tasks, its network and its folder.
pub trait RunnerHost: Send + Sync + Sized + 'static {
    /// The time of a clock that never goes back.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// Runs a task beside the caller.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Sends a command to its tablet server, and returns its response.
    ///
    /// # Errors
    /// Why it may not have been carried out.
    fn send(
        &self,
        runner: &Runner<Self>,
        command: &Command,
    ) -> impl Future<Output = Result<Done, String>> + Send;

    /// Logs an event of the directory.
    fn log(&self, note: &Note);

    /// Observes the directory after each step.
    fn stepped(&self, _directory: &Directory) {}

    /// Counts a write of the state to the register.
    fn written(&self, _state: &[u8], _is_stored: bool, _took: Duration) {}

    /// This state of the directory is durable, and about to be shown.
    ///
    /// # Errors
    /// It may not be shown.
    fn becomes_durable(
        &self,
        directory: &Directory,
        number: StateNumber,
    ) -> Result<(), PersistError>;

    /// Whether results are returned before they are durable: a mutant of the simulator.
    fn shows_early(&self) -> bool {
        false
    }
}

/// Why a request has no response.
#[derive(Debug)]
pub enum RequestError {
    /// The directory refuses it.
    Refused(Refusal),
    /// The master has stopped serving: the request may have been carried out, or not.
    Closed,
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Closed> for RequestError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// A directory that is served in one term.
pub struct Runner<H> {
    host: H,
    /// 0: the master is alone.
    term: u64,
    /// When the directory began, by the host's clock.
    started: Duration,
    directory: Mutex<Directory>,
    durability: Durability,
}

impl<H: RunnerHost> Runner<H> {
    /// Makes the first state of a directory durable, and says whether it has one. For one of several masters this also makes each
    /// late write of an earlier leader a conflict.
    ///
    /// # Errors
    /// The register doesn't take the state.
    pub async fn open(
        mut directory: Directory,
        store: &mut StateStore,
        term: u64,
        host: H,
    ) -> Result<(Arc<Self>, bool), PersistError> {
        let effects = directory.take_effects();
        effects.notes.iter().for_each(|note| host.log(note));
        let is_stored = effects.persist.is_some();
        if let Some(bytes) = effects.persist {
            store.store(0, &bytes).await?;
        }
        Ok((Self::new(directory, term, host), is_stored))
    }

    /// Serves a directory whose effects were carried out.
    pub fn new(directory: Directory, term: u64, host: H) -> Arc<Self> {
        Arc::new(Self {
            term,
            started: host.now(),
            host,
            directory: Mutex::new(directory),
            durability: Durability::default(),
        })
    }

    /// The process around it.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The term in which the directory is served.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// How far the state is durable.
    pub(crate) fn durability(&self) -> &Durability {
        &self.durability
    }

    /// The state in bytes, and the number of changes that led to it. None if there is no state.
    pub(crate) fn newest(&self) -> Option<(u64, Vec<u8>)> {
        let directory = self.directory.lock();
        Some((self.durability.changes(), directory.encoded()?))
    }

    /// From now on no result is returned, and nothing changes.
    pub fn close(&self) {
        self.durability.close();
    }

    /// Waits until all changes so far are durable, or never will be.
    pub(crate) async fn settled(&self) {
        let _ = self.durability.shown(self.durability.changes()).await;
    }

    /// Ends with the next change after this call that is durable, or that needs no write.
    pub fn progressed(&self) -> Notified<'_> {
        self.durability.progressed()
    }

    /// Takes one step. The state that it has read is durable when this returns.
    pub async fn step<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Result<R, Closed> {
        let (result, changes) = self.act(act)?;
        self.show(changes).await?;
        Ok(result)
    }

    /// Takes one step whose result leaves this process only with a later state: its commands follow when the state is durable.
    pub fn step_unshown<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Result<R, Closed> {
        Ok(self.act(act)?.0)
    }

    /// Reads the directory. The state that was read is durable when this returns.
    pub async fn read<R>(&self, read: impl FnOnce(&Directory, Duration) -> R) -> Result<R, Closed> {
        let (result, changes) = {
            let directory = self.directory.lock();
            (read(&directory, self.elapsed()), self.durability.changes())
        };
        self.show(changes).await?;
        Ok(result)
    }

    /// Reads the directory for use within this process and for metrics: the state may be ahead of the durable one.
    pub fn read_unshown<R>(&self, read: impl FnOnce(&Directory, Duration) -> R) -> R {
        read(&self.directory.lock(), self.elapsed())
    }

    /// The same for metrics.
    pub(crate) fn read_for_metrics<R>(
        &self,
        read: impl FnOnce(&Directory, Duration) -> R,
    ) -> Result<R, Closed> {
        self.durability.check()?;
        Ok(self.read_unshown(read))
    }

    /// Takes the steps of a request until it is done.
    pub(crate) async fn finish<R>(
        self: &Arc<Self>,
        mut go_on: impl Awaited<R>,
    ) -> Result<R, RequestError> {
        loop {
            let progressed = pin!(self.progressed());
            match self.step(&mut go_on).await?? {
                Pending::Done(response) => return Ok(response),
                Pending::Wait { until } => {
                    let until = until.saturating_sub(self.elapsed());
                    select(progressed, pin!(self.host.sleep(until))).await;
                }
            }
        }
    }

    /// Makes changes durable, and moves the read barrier and the safe point by the time of this oracle. Ends when a state can't be
    /// made durable; the directory is closed then, or when this is dropped.
    pub async fn serve<C: Host>(
        self: &Arc<Self>,
        store: StateStore,
        candidate: Option<&Candidate<C>>,
        oracle: &TimestampClient,
    ) -> PersistError {
        let collecting = async {
            let step = |time| {
                let stepped = self.step_unshown(|directory, now| {
                    directory.collect(now, time);
                    directory.collection_pause()
                });
                stepped.ok()
            };
            drive(oracle, step).await;
            std::future::pending().await
        };
        let persisting = pin!(self.persist(store, candidate));
        select(persisting, pin!(collecting)).await.factor_first().0
    }

    /// The directory's time.
    fn elapsed(&self) -> Duration {
        self.host.now().saturating_sub(self.started)
    }

    /// Takes one step, and returns its result with the number of changes that must be durable before it is shown.
    fn act<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Result<(R, u64), Closed> {
        let (result, changes, effects) = {
            let mut directory = self.directory.lock();
            self.durability.check()?;
            let result = act(&mut directory, self.elapsed());
            self.host.stepped(&directory);
            let effects = directory.take_effects_unencoded();
            if effects.has_changed {
                self.durability.changed();
            }
            if effects.wakes {
                // No write follows a change of soft state: requests that wait for it would sleep on.
                self.durability.wake();
            }
            (result, self.durability.changes(), effects)
        };
        effects.notes.iter().for_each(|note| self.host.log(note));
        for command in effects.commands {
            self.dispatch(command, changes);
        }
        Ok((result, changes))
    }

    /// Sends a command when its state is durable, and takes its outcome in.
    fn dispatch(self: &Arc<Self>, command: Command, changes: u64) {
        let runner = self.clone();
        let sending = async move {
            // A directory that is closed has no use for the outcome.
            if runner.durability.shown(changes).await.is_err() {
                return;
            }
            let outcome = runner.host.send(&runner, &command).await;
            let _ =
                runner.step_unshown(|directory, now| directory.finished(now, &command, outcome));
        };
        self.host.spawn(sending.boxed());
    }

    async fn show(&self, changes: u64) -> Result<(), Closed> {
        if self.host.shows_early() {
            return Ok(());
        }
        self.durability.shown(changes).await
    }
}
