//! Carries out what the directory decides: makes its state durable, then sends its commands.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use percolator_server::{DurableValue, Error, Folder, SmallFile};
use percolator_telemetry::Limited;
use percolator_wire::v1;
use percolator_wire::v1::tablets_client::TabletsClient;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::core::Directory;
use crate::events::{Action, Command, Note};
use crate::metrics::Metrics;

/// A tablet server must answer a command within this, or it is asked again.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Room for what may come to the state with its next change. It is written beside the last one, before that goes.
const ROOM_BYTES: u64 = 256 << 10;

/// Servers that disagree say so with each heartbeat.
static NOTES: Limited = Limited::new();
static TAKEN_OVER: Limited = Limited::new();

/// The directory with its file and its connections.
pub(crate) struct Runner {
    state: Mutex<State>,
    /// Counts the changes of the durable state, and the failure.
    changed: watch::Sender<u64>,
    started: Instant,
    metrics: Arc<Metrics>,
}

struct State {
    directory: Directory,
    file: SmallFile,
    folder: Folder,
    /// By address.
    channels: HashMap<String, Channel>,
    /// The state in memory may be ahead of the durable one: nothing of it may be shown.
    is_failed: bool,
    failure: Option<Error>,
}

impl Runner {
    /// Makes durable what the directory wants from the beginning.
    pub(crate) fn new(
        mut directory: Directory,
        file: SmallFile,
        folder: Folder,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, Error> {
        let effects = directory.take_effects();
        effects.notes.iter().for_each(log);
        if let Some(bytes) = effects.persist {
            file.store(&bytes)?;
        }
        if let Ok(state) = directory.state() {
            folder.adopt_cluster(&state.cluster_id)?;
        }
        Ok(Arc::new(Self {
            state: Mutex::new(State {
                directory,
                file,
                folder,
                channels: HashMap::new(),
                is_failed: false,
                failure: None,
            }),
            changed: watch::Sender::new(0),
            started: Instant::now(),
            metrics,
        }))
    }

    /// One step of the directory, with its effects. The state is durable when this returns: it
    /// writes the file on this thread, so that nobody sees anything in between.
    pub(crate) fn step<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Directory, Duration) -> R,
    ) -> Result<R, Status> {
        let mut state = self.state();
        state.check()?;
        let result = act(&mut state.directory, self.started.elapsed());
        let effects = state.directory.take_effects();
        effects.notes.iter().for_each(log);
        if let Some(bytes) = &effects.persist {
            let since = std::time::Instant::now();
            let persisted = state.persist(bytes);
            self.metrics.persisted(bytes, persisted.is_ok(), since);
            self.changed.send_modify(|changes| *changes += 1);
            if let Err(error) = persisted {
                tracing::error!(%error, "the state can't be made durable: stopping");
                state.is_failed = true;
                state.failure = Some(error);
                state.check()?;
            }
        }
        if effects.has_frozen {
            self.changed.send_modify(|changes| *changes += 1);
        }
        for command in effects.commands {
            let channel = state.channel(&command.address);
            self.dispatch(channel, command);
        }
        Ok(result)
    }

    /// Sends a command, and takes its outcome in.
    fn dispatch(self: &Arc<Self>, channel: Option<Channel>, command: Command) {
        let runner = self.clone();
        tokio::spawn(async move {
            let outcome = send(channel, &command).await;
            runner.metrics.commanded(outcome.is_ok());
            // A master that is stopping has no use for the outcome.
            let _ = runner.step(|directory, now| directory.finished(now, &command, outcome));
        });
    }

    /// Looks at the directory.
    pub(crate) fn look<R>(&self, at: impl FnOnce(&Directory, Duration) -> R) -> Result<R, Status> {
        let state = self.state();
        state.check()?;
        Ok(at(&state.directory, self.started.elapsed()))
    }

    /// Why the next change could not be made durable, if so: for want of room, before the master has to stop for it.
    pub(crate) fn writable(&self) -> Result<(), String> {
        // Nobody else waits where the disk hangs.
        let (file, folder) = {
            let state = self.state();
            (state.file.path().to_owned(), state.folder.path().to_owned())
        };
        let length = std::fs::metadata(file).map_or(0, |file| file.len());
        percolator_telemetry::writable(&folder, length + ROOM_BYTES)
    }

    /// Told of every change of the durable state.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// When it will be so late, counted from the master's start.
    pub(crate) fn at(&self, since_start: Duration) -> Instant {
        self.started + since_start
    }

    /// Ends when the state could not be made durable.
    pub(crate) async fn failed(&self) {
        let mut changes = self.changes();
        while !self.state().is_failed {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Why the master had to stop.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.state().failure.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in a step leaves the directory in no known state: the assert stays an assert.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self) -> Result<(), Status> {
        if self.is_failed {
            return Err(Status::unavailable(
                "the master is stopping: it can't make its state durable",
            ));
        }
        Ok(())
    }

    fn persist(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.store(bytes)?;
        let cluster_id = self.directory.state().map(|state| &state.cluster_id);
        match cluster_id {
            Ok(cluster_id) if self.folder.cluster_id().as_ref() != Some(cluster_id) => {
                self.folder.adopt_cluster(cluster_id)
            }
            _ => Ok(()),
        }
    }

    /// A connection that is made when it is first used; none to what is no address.
    fn channel(&mut self, address: &str) -> Option<Channel> {
        if let Some(channel) = self.channels.get(address) {
            return Some(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(COMMAND_TIMEOUT)
            .tcp_nodelay(true)
            .connect_lazy();
        if let Ok(state) = self.directory.state() {
            let is_known = |known: &String| state.servers.values().any(|s| s.address == *known);
            self.channels.retain(|known, _| is_known(known));
        }
        self.channels.insert(address.to_owned(), channel.clone());
        Some(channel)
    }
}

/// Whether the server did it, or why not.
/// How many groups the server had when it was done.
async fn send(channel: Option<Channel>, command: &Command) -> Result<u64, String> {
    let Command {
        cluster_id,
        server,
        incarnation,
        address,
        action,
    } = command;
    let Some(channel) = channel else {
        return Err(format!("{address:?} is no address: nothing can be sent"));
    };
    let to = Some(v1::Addressee {
        server: server.clone(),
        incarnation: *incarnation,
    });
    let mut tablets = TabletsClient::new(channel);
    let asked = async {
        match action {
            Action::Create {
                tablet,
                made,
                barrier,
            } => {
                let request = v1::CreateTabletRequest {
                    cluster_id: cluster_id.clone(),
                    tablet: Some(tablet.clone().into()),
                    to,
                    made: *made,
                    barrier: barrier.as_u64(),
                };
                let done = tablets.create_tablet(request).await?;
                Ok(done.into_inner().groups)
            }
            Action::Drop { tablet, table } => {
                let request = v1::DropTabletRequest {
                    cluster_id: cluster_id.clone(),
                    tablet_id: *tablet,
                    to,
                    table_id: *table,
                };
                let done = tablets.drop_tablet(request).await?;
                Ok(done.into_inner().groups)
            }
        }
    };
    match tokio::time::timeout(CONNECT_TIMEOUT + COMMAND_TIMEOUT, asked).await {
        Ok(result) => result.map_err(|status: Status| match status.message() {
            "" => format!("{:?} from {address}", status.code()),
            message => message.to_owned(),
        }),
        Err(_) => Err(format!("no answer from {address}")),
    }
}

fn log(note: &Note) {
    match note {
        // Once in a life of the master.
        Note::TookOver { .. } => tracing::info!("{note}"),
        Note::Adopted { .. } => {
            if let Some(left_out) = TAKEN_OVER.admit() {
                tracing::info!(left_out, "{note}");
            }
        }
        Note::Renamed { .. }
        | Note::Conflict { .. }
        | Note::Missing { .. }
        | Note::Failed { .. } => {
            if let Some(left_out) = NOTES.admit() {
                tracing::warn!(left_out, "{note}");
            }
        }
    }
}
