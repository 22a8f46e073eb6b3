//! The locks of a simulated tablet server, for what resolves them.

use std::sync::Arc;

use futures_util::FutureExt;
use percolator_client::{LockResolver, Obstacle, Timestamp};
use percolator_tablet::resolver::{OwnLocks, resolve_locks};
use percolator_wire::v1;

use crate::servers::tablet::{Shared, Tablet};
use crate::world::World;

/// The locks of a process, for its resolver.
struct ProcessLocks {
    tablet: Arc<Tablet>,
    world: Arc<World>,
    running: Shared,
}

/// Resolves its locks below the barrier, for ever.
pub(super) fn resolve(tablet: Arc<Tablet>, world: &Arc<World>, running: Shared) {
    let resolver = LockResolver::over(tablet.transport(world, "resolver"));
    let node = tablet.node;
    let locks = ProcessLocks {
        tablet,
        world: world.clone(),
        running,
    };
    let resolving = async move { resolve_locks(&resolver, &locks).await };
    world.spawn(node, resolving.boxed());
}

impl OwnLocks for ProcessLocks {
    fn next_to_resolve(&self) -> Option<Timestamp> {
        self.running.lock().runner.next_to_resolve()
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
