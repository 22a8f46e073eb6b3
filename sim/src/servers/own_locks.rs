//! The locks of a simulated tablet server, for what resolves them.

use std::sync::Arc;

use percolator_client::{Obstacle, Timestamp};
use percolator_tablet::resolver::OwnLocks;
use percolator_wire::v1;

use crate::servers::tablet::{Shared, Tablet};
use crate::world::World;

/// The locks of a process, for its resolver.
pub(super) struct ProcessLocks {
    pub(super) tablet: Arc<Tablet>,
    pub(super) world: Arc<World>,
    pub(super) running: Shared,
}

impl OwnLocks for ProcessLocks {
    fn to_resolve(&self) -> Option<Timestamp> {
        self.running.lock().runner.to_resolve()
    }

    fn locks_below(
        &self,
        below: Timestamp,
        after: Option<v1::CellName>,
    ) -> Result<v1::LocksBelowResponse, String> {
        self.running.lock().runner.locks_below(below, after)
    }

    fn resolved(&self, below: Timestamp, result: Result<(), Obstacle>) {
        let (name, world) = (&self.tablet.name, &self.world);
        match &result {
            Ok(()) => world.note(|| format!("{name} has resolved the locks from below {below}")),
            Err(obstacle) => {
                world.note(|| format!("{name} can't resolve locks: {}", obstacle.what))
            }
        }
        let now = world.mono(self.tablet.node);
        self.running.lock().runner.resolved(now, below, result);
    }
}
