//! A directory of the master that is served: what `gc-master/src/runner.rs` keeps.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_gc_master::{Directory, Durability};

pub(super) type Shared = Arc<Served>;

/// A directory that is served.
pub(super) struct Served {
    pub(super) running: Mutex<Running>,
    /// How far the state of one of several masters is durable.
    pub(super) durability: Durability,
}

pub(super) struct Running {
    pub(super) directory: Directory,
    pub(super) started: Duration,
    /// The newest state of one of several.
    newest: Option<Vec<u8>>,
}

impl Served {
    pub(super) fn new(directory: Directory, started: Duration) -> Shared {
        Arc::new(Self {
            running: Mutex::new(Running {
                directory,
                started,
                newest: None,
            }),
            durability: Durability::default(),
        })
    }

    /// The state is this one from now on, which is to be made durable.
    pub(super) fn changed(&self, running: &mut Running, state: Vec<u8>) {
        running.newest = Some(state);
        self.durability.changed();
    }

    /// What a new directory wants to be durable from its beginning.
    pub(super) fn take_begun(&self) -> Option<Vec<u8>> {
        self.running.lock().directory.take_effects().persist
    }

    /// The newest state, and after how many changes it is; none: nothing has changed.
    pub(super) fn newest(&self) -> Option<(u64, Vec<u8>)> {
        let running = self.running.lock();
        Some((self.durability.changes(), running.newest.clone()?))
    }
}
