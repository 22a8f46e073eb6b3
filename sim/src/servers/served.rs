//! A directory of the master that is served in one process.

use std::sync::Arc;
use std::time::Duration;

use percolator_gc_master::{Directory, Durable, PersistError, Served};
use percolator_protocol::election::StateNumber;

use crate::seen::Seen;
use crate::world::World;

pub(super) type Shared = Arc<ServedDirectory>;

/// A directory that is served, and when that began.
pub(super) struct ServedDirectory {
    pub(super) served: Served,
    pub(super) started: Duration,
}

impl ServedDirectory {
    pub(super) fn new(directory: Directory, started: Duration) -> Shared {
        let served = Served::new(directory);
        Arc::new(Self { served, started })
    }
}

/// Of one that is alone: what is durable, a next start of it goes on from.
impl Durable for ServedDirectory {
    fn served(&self) -> &Served {
        &self.served
    }

    fn becomes_durable(&self, _: StateNumber) -> Result<(), PersistError> {
        Ok(())
    }
}

/// A directory of one of several, whose durable states are seen by the invariants.
pub(super) struct SeenDirectory<'a> {
    pub(super) world: &'a Arc<World>,
    pub(super) shared: &'a Shared,
}

impl Durable for SeenDirectory<'_> {
    fn served(&self) -> &Served {
        &self.shared.served
    }

    /// The next leader goes on from it, or from a later one.
    fn becomes_durable(&self, number: StateNumber) -> Result<(), PersistError> {
        self.world.see(&Seen::DurableState(number));
        Ok(())
    }
}
