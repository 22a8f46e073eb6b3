//! A disk that hangs: the shipped rule on how long a server waits for it (`server/src/stall.rs`).

use std::sync::Arc;

use percolator_server::stall::{LOOK_EVERY, Stall};

use super::tablet::{Shared, Tablet};
use crate::world::World;

/// Ends the process where its disk says nothing any more.
pub(super) async fn watch(world: Arc<World>, tablet: Arc<Tablet>, running: Shared) {
    let mut watched = (0, Stall::default());
    loop {
        world.sleep_on(tablet.node, LOOK_EVERY).await;
        let group = {
            let state = running.lock();
            state.committing.is_some().then_some(state.groups)
        };
        let Some(group) = group else { continue };
        if watched.0 != group {
            watched = (group, Stall::default());
        }
        let waited = watched.1.look(LOOK_EVERY, 0);
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
