//! A tablet server around its core, without socket, clock or thread: it sends responses and groups in the right order, passes
//! the master's commands and responses to the core, and knows whether the server is ready.
//!
//! [`crate::server`] runs it on a network, the simulator on a simulated one. Each of them is its [`Host`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use percolator_client::Obstacle;
use percolator_engine::{Batch, Error};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::core::{Asker, Core, Reply, TabletCommand};
use crate::lapse::Lapse;
use crate::{MoveCall, MoveResponse, ServerIncarnation, ServerLocation, Unanswered};

/// The I/O of a runner.
pub trait Host {
    /// Sends this response. The caller may have gone.
    fn answer(&mut self, to: Asker, response: v1::Response);

    /// Makes this group durable, and calls [`Runner::committed`] with the result. There is one group at a time.
    fn commit(&mut self, group: Arc<Vec<Batch>>);

    /// Calls [`Runner::tick`] sooner than [`Runner::next_tick`] returned last.
    fn tick_sooner(&mut self);

    /// Ends the process, for this reason. Called once.
    fn stop(&mut self, failure: &str);

    /// Observes the core before the next group is taken. For tests.
    fn did(&mut self, _: &Core) {}
}

/// A command of the master.
#[derive(Clone, Debug)]
pub struct MasterCommand {
    /// The cluster that it belongs to.
    pub cluster_id: String,
    /// The server to which it is addressed.
    pub to: Option<ServerIncarnation>,
    /// The command.
    pub command: TabletCommand,
}

/// A command of another cluster's master.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this server belongs to cluster {}, the command is cluster {theirs}'s", .ours.as_deref().unwrap_or("(none yet)"))]
pub struct OtherCluster {
    /// The cluster that this server belongs to, if it belongs to one yet.
    pub ours: Option<String>,
    /// The one that the command came from.
    pub theirs: String,
}

/// Why the server is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// No master has accepted it.
    #[error("no master has accepted this server yet")]
    NoCluster,
    /// Its disk lost a write, or can't be read.
    #[error("the disk failed: {0}")]
    Failed(String),
    /// Tablets that the master knows of are missing.
    #[error(
        "{}{} tablets that were here are not any more, {first} among them, and nor are their rows: bring this server's \
         folder or volume back, or give up the tables that they belong to (`percolator tablet list` names them) \
         by `percolator table delete`",
        percolator_telemetry::endpoint::DATA_LOST,
        .count
    )]
    DataLost {
        /// The number of tablets.
        count: usize,
        /// One of them.
        first: u64,
    },
}

/// A server that waits until others have its tablets stops when the master has not answered for this long.
const MASTER_TIMEOUT: Duration = Duration::from_secs(5);

/// See the module's head. Every `now` is of one clock, which goes on while the machine sleeps.
pub struct Runner<H> {
    core: Core,
    host: H,
    /// The cluster that this server belongs to, once it is known. Shared with callers that can't wait for the core.
    cluster_id: Arc<OnceLock<String>>,
    lapse: Lapse,
    /// Tablets that were here, as the master responded last, and are missing.
    lost: Vec<u64>,
    /// The version of this server's lists that the master has.
    lists_known: u64,
    /// The collection, sizes and loads of the last heartbeat that had them.
    progress_sent: Option<v1::GcProgress>,
    sizes_sent: Option<v1::TabletSizes>,
    loads_sent: Option<v1::TabletLoads>,
    /// The master has not answered the last heartbeat.
    unanswered: bool,
    /// Responses to send. The field reuses the allocation.
    replies: Vec<Reply>,
    last_tick: Duration,
    next_tick: Duration,
    /// Set once the server has to stop.
    stopping: Option<Stopping>,
    is_stopped: bool,
}

/// A server that waits until others have its tablets.
#[derive(Clone, Copy)]
struct Stopping {
    /// When the master answered last, or when the wait began.
    answered_at: Duration,
    /// The master has responded that the server may stop.
    may: bool,
}

impl<H: Host> Runner<H> {
    /// Runs a core that has just been opened.
    pub fn new(core: Core, cluster_id: Option<String>, host: H, now: Duration) -> Self {
        Self {
            core,
            host,
            cluster_id: Arc::new(cluster_id.map_or_else(OnceLock::new, OnceLock::from)),
            lapse: Lapse::default(),
            lost: Vec::new(),
            lists_known: 0,
            progress_sent: None,
            sizes_sent: None,
            loads_sent: None,
            unanswered: false,
            replies: Vec::new(),
            last_tick: now,
            next_tick: Duration::MAX,
            stopping: None,
            is_stopped: false,
        }
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The host.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// The cluster that this server belongs to, once it is known.
    pub fn cluster_id(&self) -> &Arc<OnceLock<String>> {
        &self.cluster_id
    }

    /// Carries out what opening the core has left to do.
    pub fn begin(&mut self, now: Duration) {
        self.turn(now, |_, _| {});
    }

    /// Takes requests that came at `came`, as the core's probe counts time.
    pub fn requests(
        &mut self,
        now: Duration,
        came: u64,
        from: Asker,
        requests: impl Iterator<Item = v1::Request>,
    ) {
        self.turn(now, |core, replies| {
            core.probe().turn_began(came);
            for request in requests {
                core.request(from, request, replies);
            }
        });
    }

    /// Takes a command of the master; it is answered when it is durable.
    ///
    /// # Errors
    /// It is another cluster's, and is not carried out.
    pub fn command(
        &mut self,
        now: Duration,
        came: u64,
        from: Asker,
        command: MasterCommand,
    ) -> Result<(), OtherCluster> {
        let MasterCommand {
            cluster_id,
            to,
            command,
        } = command;
        let ours = self.cluster_id.get();
        if ours != Some(&cluster_id) {
            return Err(OtherCluster {
                ours: ours.cloned(),
                theirs: cluster_id,
            });
        }
        self.turn(now, |core, replies| {
            core.probe().turn_began(came);
            core.command(from, 0, to, command, replies);
        });
        Ok(())
    }

    /// Takes the result of the group that the host has made durable.
    pub fn committed(&mut self, now: Duration, result: Result<(), Error>) {
        self.turn(now, |core, replies| core.committed(result, replies));
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        self.turn(now, |core, replies| core.tick(elapsed, replies));
    }

    /// How long after its last call [`Self::tick`] has to be called.
    pub fn next_tick(&mut self) -> Duration {
        self.next_tick = self.core.next_tick();
        self.next_tick
    }

    /// The next heartbeat's fields from `tablets` on. The caller sends it now.
    pub fn heartbeat(&mut self, now: Duration) -> v1::HeartbeatRequest {
        self.lapse.sent(now);
        let obstacle = self.core.resolution().obstacle(now);
        let obstacle = obstacle.map(|(obstacle, age)| v1::LockObstacle {
            what: obstacle.what.clone(),
            start_ts: obstacle.start_ts.as_u64(),
            since_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        });
        self.core.correct_progress();
        let report = self.core.report();
        if std::mem::replace(&mut self.unanswered, true) {
            // The master may have restarted.
            self.lists_known = 0;
        }
        let without_lists = report.lists_version == self.lists_known;
        let mut beat = v1::HeartbeatRequest {
            obstacle,
            without_lists,
            stopping: self.stopping.is_some(),
            ..report
        };
        leave_out(&mut beat.progress, &mut self.progress_sent, without_lists);
        leave_out(&mut beat.sizes, &mut self.sizes_sent, without_lists);
        leave_out(&mut beat.loads, &mut self.loads_sent, without_lists);
        if without_lists {
            beat.tablets.clear();
            beat.deleted_tables.clear();
            beat.departed.clear();
            beat.gc = None;
        }
        beat
    }

    /// The barrier that is durable, if locks below it are not resolved yet.
    pub fn next_to_resolve(&mut self) -> Option<Timestamp> {
        self.core.next_to_resolve()
    }

    /// The next call to an owner of a tablet that this server gets. The caller passes its result to [`Self::asked`].
    pub fn next_call(&mut self, now: Duration) -> Option<MoveCall> {
        self.core.next_call(now)
    }

    /// Whether this server gets any tablet.
    pub fn is_arriving(&self) -> bool {
        self.core.is_arriving()
    }

    /// Takes the result of a call.
    pub fn asked(
        &mut self,
        now: Duration,
        call: &MoveCall,
        result: Result<MoveResponse, Unanswered>,
    ) {
        self.turn(now, |core, replies| core.asked(now, call, result, replies));
    }

    /// The next locks below this, behind this cell.
    ///
    /// # Errors
    /// The engine can't be read.
    pub fn locks_below(
        &self,
        below: Timestamp,
        after: Option<v1::CellName>,
    ) -> Result<v1::LocksBelowResponse, String> {
        let page = self.core.locks_below(below, after);
        page.map_err(|error| error.to_string())
    }

    /// Notes that locks below this are resolved, or the lock that can't be.
    pub fn resolved(&mut self, now: Duration, below: Timestamp, result: Result<(), Obstacle>) {
        self.core.locks_resolved(now, below, result);
    }

    /// Notes that the server durably belongs to this cluster.
    pub fn adopted(&mut self, cluster_id: &str) {
        let _ = self.cluster_id.set(cluster_id.to_owned());
    }

    /// Takes the master's response to the last heartbeat.
    pub fn heartbeat_answered(&mut self, now: Duration, response: &v1::HeartbeatResponse) {
        let arrivals = response.settled_arrivals.iter();
        let arrivals: Vec<(u64, u64)> = arrivals.map(|it| (it.id, it.epoch)).collect();
        let owners = response.owners.iter().cloned();
        let owners: Vec<ServerLocation> = owners.filter_map(|it| it.try_into().ok()).collect();
        self.turn(now, |core, replies| {
            core.lease(response.into());
            core.keep(response.gc.map(Into::into), replies);
            core.reach(response.into(), replies);
            core.settle(&response.settled_moves, replies);
            core.settle_arrivals(&arrivals, replies);
            core.locate_owners(&owners);
            core.split_above(response.split_bytes, response.split_load);
            core.drain(response.draining);
        });
        if let Some(stopping) = &mut self.stopping {
            stopping.answered_at = now;
            stopping.may |= response.may_stop;
        }
        self.lapse.renewed(response.lease_ms);
        self.lists_known = response.lists_version;
        self.unanswered = false;
        let lost = self.core.missing(&response.missing_tablets);
        if self.lost != lost && !mutants::on(Mutant::LossNotNoticed) {
            if !lost.is_empty() {
                tracing::error!(tablets = ?lost, "tablets that were here are lost, with their rows");
            }
            self.lost = lost;
        }
    }

    /// Begins to stop: heartbeats request from now on that other servers get the tablets, and the server serves meanwhile.
    pub fn stop_when_empty(&mut self, now: Duration) {
        self.stopping.get_or_insert(Stopping {
            answered_at: now,
            may: false,
        });
    }

    /// Whether a server that has to stop may do so: other servers have its tablets, or none takes them, or no master answers.
    pub fn may_stop(&self, now: Duration) -> bool {
        self.stopping.is_some_and(|stopping| {
            stopping.may || now.saturating_sub(stopping.answered_at) > MASTER_TIMEOUT
        })
    }

    /// Checks that the server is ready.
    ///
    /// # Errors
    /// Why it is not.
    pub fn ready(&self) -> Result<(), NotReady> {
        if self.cluster_id.get().is_none() {
            return Err(NotReady::NoCluster);
        }
        if let Some(failure) = self.core.failed() {
            return Err(NotReady::Failed(failure.to_owned()));
        }
        match &self.lost[..] {
            [] => Ok(()),
            [first, ..] => Err(NotReady::DataLost {
                count: self.lost.len(),
                first: *first,
            }),
        }
    }

    /// Runs the core, sends its responses, and sends the next group to the disk.
    fn turn(&mut self, now: Duration, act: impl FnOnce(&mut Core, &mut Vec<Reply>)) {
        if self.lapse.is_due(now) {
            self.core.lapse();
        }
        act(&mut self.core, &mut self.replies);
        for reply in self.replies.drain(..) {
            self.host.answer(reply.to, reply.response);
        }
        self.core.probe().turn_ended();
        self.host.did(&self.core);
        if let Some(group) = self.core.take_group() {
            self.host.commit(group);
        }
        if self.core.next_tick() < self.next_tick {
            self.host.tick_sooner();
        }
        if let Some(failure) = self.core.failed()
            && !self.is_stopped
        {
            self.is_stopped = true;
            self.host.stop(failure);
        }
    }
}

/// Clears a field of a heartbeat without lists if an earlier heartbeat had the same value.
fn leave_out<T: Clone + PartialEq>(
    field: &mut Option<T>,
    sent: &mut Option<T>,
    without_lists: bool,
) {
    if without_lists && field == sent {
        *field = None;
    } else {
        sent.clone_from(field);
    }
}
