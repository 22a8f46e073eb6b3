//! A disk that hangs: the shipped rule on how long a server waits for it (`server/src/stall.rs`). And one that fails.

use std::sync::Arc;
use std::time::Duration;

use percolator_server::stall::{CHECK_INTERVAL, Stall};

use super::exit_after;
use super::tablet::{Shared, Tablet};
use crate::world::World;

/// How long a process that has failed is still connected, at most (`tablet/src/server.rs`).
const GRACE_MS: u64 = 200;

/// Ends the process where its disk says nothing any more.
pub(super) async fn watch(world: Arc<World>, tablet: Arc<Tablet>, running: Shared) {
    let mut watched = (0, Stall::default());
    loop {
        world.sleep_on(tablet.node, CHECK_INTERVAL).await;
        let group = {
            let state = running.lock();
            state.committing.is_some().then_some(state.groups)
        };
        let Some(group) = group else { continue };
        if watched.0 != group {
            watched = (group, Stall::default());
        }
        let waited = watched.1.check_write(CHECK_INTERVAL, 0);
        if waited >= tablet.stall_max {
            return tablet.exit(&world, "the disk stalls");
        }
    }
}

impl Tablet {
    /// From now on the disk takes nothing more from the process that runs, and refuses nothing.
    pub fn hang(&self) {
        if let Some(running) = &*self.running.lock() {
            running.lock().hangs = true;
        }
    }
}

/// The process has failed, and goes on for a while: what it has begun to answer is sent before it ends.
pub(super) fn end_after_failure(tablet: &Arc<Tablet>, world: &Arc<World>, failure: &str) {
    let after = tablet.dice.of("grace", |rng| {
        if rng.below(2) == 0 {
            0
        } else {
            rng.below(GRACE_MS)
        }
    });
    let again = tablet.clone();
    exit_after(
        world,
        tablet.node,
        failure,
        Duration::from_millis(after),
        move |world| again.boot(world),
    );
}
