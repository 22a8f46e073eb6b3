//! The shipped cores as processes of the world: what their servers do around them over a network, done
//! here over the simulated one.

mod alone;
mod around;
mod arrivals;
mod asked;
mod commands;
mod copies;
mod elected_master;
mod elected_oracle;
pub mod master;
pub mod oracle;
mod own_locks;
mod promises;
mod rebuild;
pub mod register;
pub mod replica;
mod resolved;
mod runner_host;
mod several;
mod stall;
pub mod tablet;
mod under_way;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::transport::MasterError;
use percolator_server::Schedule;
use percolator_wire::v1;

use crate::master_link::MasterLink;
use crate::messages::{Answer, Ask};
use crate::world::{NodeId, World};

/// A heartbeat must be answered within this (`server/src/heartbeat.rs`).
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// One of several masters is given up after this.
const HEARTBEAT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(1);
/// A process that died by itself is started again after this.
pub const RESTART: Duration = Duration::from_millis(500);

/// Steps in which a small file is replaced, so that a process may die between any two of them.
const STEPS: u64 = 6;

/// A process's small file can't be read: it is started again a little later, where that may help.
fn cant_read(
    world: &Arc<World>,
    node: NodeId,
    error: &percolator_server::Error,
    boot: impl FnOnce(&Arc<World>) + Send + 'static,
) {
    if matches!(error, percolator_server::Error::Damaged { .. }) {
        return world.fail("durable", error.to_string());
    }
    let name = world.name(node);
    world.note(|| format!("{name} can't start: {error}"));
    world.at(RESTART, Box::new(boot));
}

/// Ends a process from within and starts it again a little later, as anyone who runs it would.
pub(crate) fn exit(
    world: &Arc<World>,
    node: NodeId,
    why: &str,
    boot: impl FnOnce(&Arc<World>) + Send + 'static,
) {
    exit_after(world, node, why, Duration::ZERO, boot);
}

/// The same a while later: it goes on until then.
pub(crate) fn exit_after(
    world: &Arc<World>,
    node: NodeId,
    why: &str,
    after: Duration,
    boot: impl FnOnce(&Arc<World>) + Send + 'static,
) {
    let name = world.name(node);
    world.note(|| format!("{name} stops: {why}"));
    let life = world.life(node);
    // Later, as it may be in the middle of something now.
    world.at(
        after,
        Box::new(move |world| {
            // Or somebody has ended it meanwhile, who starts it again.
            if world.is_up(node) && world.life(node) == life {
                world.kill(node, false);
                world.at(RESTART, Box::new(boot));
            }
        }),
    );
}

/// The processes that had a server's folder, as `server/src/incarnation.rs` keeps them: a process of another folder proves nothing
/// of them.
#[derive(Debug, Default)]
pub struct Lives(Mutex<(Vec<u64>, bool)>);

impl Lives {
    /// Another process begins: those that are surely dead, and whether the master has accepted the first of them.
    fn begin(&self, incarnation: u64) -> (Vec<u64>, bool) {
        let mut lives = self.0.lock();
        let before = lives.clone();
        lives.0.push(incarnation);
        before
    }

    /// Those of before that are surely dead.
    fn dead(&self) -> Vec<u64> {
        self.0.lock().0.clone()
    }

    /// As a copy of the folder has them.
    pub fn copy(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }

    /// As in an empty folder.
    pub fn forget(&self) {
        *self.0.lock() = Default::default();
    }

    fn accepted(&self, incarnation: u64) {
        *self.0.lock() = (vec![incarnation], true);
    }
}

/// The sender of heartbeats, and its master.
struct Way {
    from: NodeId,
    to: NodeId,
}

/// Sends heartbeats until the master refuses the server. `adopt` gets the cluster's id.
async fn heartbeats(
    world: Arc<World>,
    Way { from, to }: Way,
    lives: Arc<Lives>,
    beat: impl Fn() -> v1::HeartbeatRequest + Send,
    adopt: impl Fn(&str) + Send,
    learn: impl Fn(&v1::HeartbeatResponse) + Send,
    refused: impl Fn(&str) + Send,
) {
    let mut schedule = Schedule::default();
    let link = MasterLink::new(&world);
    let mut cluster_id = beat().cluster_id;
    let incarnation = beat().incarnation;
    let (replaces, replaces_accepted) = lives.begin(incarnation);
    loop {
        let sent = world.mono(from);
        let beat = v1::HeartbeatRequest {
            accepted: schedule.is_accepted(sent),
            replaces: replaces.clone(),
            replaces_accepted,
            ..beat()
        };
        let beat = Ask::Heartbeat(Box::new(beat));
        let answer = match &link {
            None => world.call(from, to, beat, HEARTBEAT_TIMEOUT).await.ok(),
            Some(link) => {
                let asked = link.heartbeat(&world, from, beat, HEARTBEAT_TIMEOUT_OF_SEVERAL);
                asked.await
            }
        };
        let pause = match answer {
            Some(Answer::Heartbeat(response)) => {
                lives.accepted(incarnation);
                let is_new = cluster_id != response.cluster_id;
                adopt(&response.cluster_id);
                cluster_id.clone_from(&response.cluster_id);
                learn(&response);
                schedule.answered(sent, response, is_new)
            }
            Some(Answer::Refused(MasterError::Invalid(why))) => return refused(&why),
            _ => schedule.unanswered(),
        };
        world.sleep_on(from, pause).await;
    }
}
