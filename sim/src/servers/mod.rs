//! The shipped cores as processes of the world: what their servers do around them over a network, done
//! here over the simulated one.

pub mod master;
pub mod oracle;
pub mod tablet;

use std::sync::Arc;
use std::time::Duration;

use percolator_gc_master::HEARTBEAT_INTERVAL;
use percolator_wire::v1;

use crate::messages::{Answer, Ask};
use crate::world::{NodeId, World};

/// A heartbeat must be answered within this (`server/src/heartbeat.rs`).
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// After one that told something new.
const HEARTBEAT_SOON: Duration = Duration::from_millis(20);
/// After a heartbeat that wasn't answered.
const HEARTBEAT_RETRY: Duration = Duration::from_millis(100);

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

/// Ends a process from within and starts it again a little later, as whoever runs it would.
pub(crate) fn exit(
    world: &Arc<World>,
    node: NodeId,
    why: &str,
    boot: impl FnOnce(&Arc<World>) + Send + 'static,
) {
    let name = world.name(node);
    world.note(|| format!("{name} stops: {why}"));
    // Later, as it may be in the middle of something now.
    world.at(
        Duration::ZERO,
        Box::new(move |world| {
            world.kill(node, false);
            world.at(RESTART, Box::new(boot));
        }),
    );
}

/// Tells the master of this server, for ever. `adopt` is told the cluster's id.
async fn heartbeats(
    world: Arc<World>,
    node: NodeId,
    master: NodeId,
    beat: impl Fn() -> v1::HeartbeatRequest + Send,
    adopt: impl Fn(&str) + Send,
    learn: impl Fn(&v1::HeartbeatResponse) + Send,
) {
    let mut known = v1::HeartbeatResponse::default();
    loop {
        let beat = beat();
        let asked = world.call(node, master, Ask::Heartbeat(beat), HEARTBEAT_TIMEOUT);
        let pause = match asked.await {
            Ok(Answer::Heartbeat(heard)) => {
                adopt(&heard.cluster_id);
                learn(&heard);
                if known == heard {
                    HEARTBEAT_INTERVAL
                } else {
                    known = heard;
                    HEARTBEAT_SOON
                }
            }
            _ => HEARTBEAT_RETRY,
        };
        world.sleep_on(node, pause).await;
    }
}
