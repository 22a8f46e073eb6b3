//! A tablet server between its core and the world, without socket, clock or thread: answers go out and groups go to
//! the disk in the right order, the master's words reach the core, and the server knows when it is not to be used.
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

/// What a runner needs done.
pub trait Host {
    /// Sends this answer. Who asked may have gone.
    fn answer(&mut self, to: Asker, response: v1::Response);

    /// Makes this group durable, and calls [`Runner::committed`] with what became of it. There is one at a time.
    fn commit(&mut self, group: Arc<Vec<Batch>>);

    /// Calls [`Runner::tick`] sooner than [`Runner::next_tick`] said last.
    fn tick_sooner(&mut self);

    /// Ends the process, for this reason. Called once.
    fn stop(&mut self, failure: &str);

    /// Something was done, and the next group is not taken yet. For tests.
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

/// Why nobody should be sent to this server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It has heard of no master.
    #[error("the master has not told yet to which cluster this server belongs")]
    NoCluster,
    /// Its disk lost a write, or can't be read.
    #[error("the disk failed: {0}")]
    Failed(String),
    /// The master says that these tablets were here.
    #[error(
        "{}{} tablets that were here are not any more, {first} among them, and nor are their rows: bring this server's \
         folder or volume back, or give up the tables that they belong to (`percolator tablet list` names them) \
         by `percolator table delete`",
        percolator_telemetry::endpoint::DATA_LOST,
        .count
    )]
    DataLost {
        /// How many.
        count: usize,
        /// One of them.
        first: u64,
    },
}

/// A server that waits until others have its tablets goes on to its end when it has not heard the master for so long.
const MASTER_SILENCE_MAX: Duration = Duration::from_secs(5);

/// See the module's head. Every `now` is of one clock, which goes on while the machine sleeps.
pub struct Runner<H> {
    core: Core,
    host: H,
    /// The cluster that this server belongs to, once it is known: for those, too, who can't wait for the core.
    cluster_id: Arc<OnceLock<String>>,
    lapse: Lapse,
    /// Tablets that were here, as the master said last, and aren't any more.
    lost: Vec<u64>,
    /// The version of this server's lists that the master has.
    lists_known: u64,
    /// What the last heartbeat said of collection.
    progress_sent: Option<v1::GcProgress>,
    /// What the last one with sizes said of them.
    sizes_sent: Option<v1::TabletSizes>,
    /// The same of loads.
    loads_sent: Option<v1::TabletLoads>,
    /// The last heartbeat is not answered.
    unanswered: bool,
    /// Answers that are to be sent; kept for its room.
    replies: Vec<Reply>,
    last_tick: Duration,
    next_tick: Duration,
    /// It was told to end.
    stopping: Option<Stopping>,
    is_stopped: bool,
}

/// A server that waits until others have its tablets.
#[derive(Clone, Copy)]
struct Stopping {
    /// When the master was heard last, or this began.
    heard_at: Duration,
    /// The master has said that nothing keeps it.
    may: bool,
}

impl<H: Host> Runner<H> {
    /// Of a core that has just been opened.
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

    /// What it runs.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// What runs it.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// The cluster that this server belongs to, once it is known.
    pub fn cluster_id(&self) -> &Arc<OnceLock<String>> {
        &self.cluster_id
    }

    /// Takes what the core had to do when it was opened.
    pub fn begin(&mut self, now: Duration) {
        self.turn(now, |_, _| {});
    }

    /// Takes requests, which came at `came` as the core's probe counts time.
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

    /// The group that was given to the host is durable, or is not.
    pub fn committed(&mut self, now: Duration, result: Result<(), Error>) {
        self.turn(now, |core, replies| core.committed(result, replies));
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        self.turn(now, |core, replies| core.tick(elapsed, replies));
    }

    /// When [`Self::tick`] is to be called, from its last call on.
    pub fn next_tick(&mut self) -> Duration {
        self.next_tick = self.core.next_tick();
        self.next_tick
    }

    /// What a heartbeat says, in the fields from `tablets` on. It is sent now.
    pub fn heartbeat(&mut self, now: Duration) -> v1::HeartbeatRequest {
        self.lapse.sends(now);
        let obstacle = self.core.resolution().obstacle(now);
        let obstacle = obstacle.map(|(obstacle, age)| v1::LockObstacle {
            what: obstacle.what.clone(),
            start_ts: obstacle.start_ts.as_u64(),
            since_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        });
        self.core.correct_progress();
        let report = self.core.report();
        if std::mem::replace(&mut self.unanswered, true) {
            // The master may have been started again.
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

    /// What is to be asked of the owner of a tablet that this server gets; [`Self::asked`] is to be called with what became
    /// of it.
    pub fn next_call(&mut self, now: Duration) -> Option<MoveCall> {
        self.core.next_call(now)
    }

    /// Whether this server gets any tablet.
    pub fn is_arriving(&self) -> bool {
        self.core.is_arriving()
    }

    /// What became of a call.
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

    /// Locks below this are resolved, or this is in the way.
    pub fn resolved(&mut self, now: Duration, below: Timestamp, result: Result<(), Obstacle>) {
        self.core.locks_resolved(now, below, result);
    }

    /// It durably belongs to this cluster now.
    pub fn adopted(&mut self, cluster_id: &str) {
        let _ = self.cluster_id.set(cluster_id.to_owned());
    }

    /// The master has answered the last heartbeat.
    pub fn heard(&mut self, now: Duration, told: &v1::HeartbeatResponse) {
        let arrivals = told.settled_arrivals.iter();
        let arrivals: Vec<(u64, u64)> = arrivals.map(|it| (it.id, it.epoch)).collect();
        let owners = told.owners.iter().cloned();
        let owners: Vec<ServerLocation> = owners.filter_map(|it| it.try_into().ok()).collect();
        self.turn(now, |core, replies| {
            core.lease(told.into());
            core.keep(told.gc.map(Into::into), replies);
            core.reach(told.into(), replies);
            core.settle(&told.settled_moves, replies);
            core.settle_arrivals(&arrivals, replies);
            core.locate_owners(&owners);
            core.split_above(told.split_bytes, told.split_load);
            core.drain(told.draining);
        });
        if let Some(stopping) = &mut self.stopping {
            stopping.heard_at = now;
            stopping.may |= told.may_stop;
        }
        self.lapse.heard(told.lease_ms);
        self.lists_known = told.lists_version;
        self.unanswered = false;
        let lost = self.core.lacks(&told.missing_tablets);
        if self.lost != lost && !mutants::on(Mutant::LossNotNoticed) {
            if !lost.is_empty() {
                tracing::error!(tablets = ?lost, "tablets that were here are lost, with their rows");
            }
            self.lost = lost;
        }
    }

    /// It was told to end: from now on it asks the master that others get its tablets, and serves meanwhile.
    pub fn stop_when_empty(&mut self, now: Duration) {
        self.stopping.get_or_insert(Stopping {
            heard_at: now,
            may: false,
        });
    }

    /// Whether nothing keeps a server that was told to end: others have its tablets, or nobody takes them, or no master can be
    /// heard.
    pub fn may_stop(&self, now: Duration) -> bool {
        self.stopping.is_some_and(|stopping| {
            stopping.may || now.saturating_sub(stopping.heard_at) > MASTER_SILENCE_MAX
        })
    }

    /// Whether anybody should be sent here.
    ///
    /// # Errors
    /// Why not.
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

    /// Lets the core do something, sends the answers that come of it, and the next group to the disk.
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

/// A heartbeat without lists doesn't say again what the last one with this said.
fn leave_out<T: Clone + PartialEq>(
    said: &mut Option<T>,
    sent: &mut Option<T>,
    without_lists: bool,
) {
    if without_lists && said == sent {
        *said = None;
    } else {
        sent.clone_from(said);
    }
}
