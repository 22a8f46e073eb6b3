//! A directory of the master that is served, and how far its state is durable: what `gc-master/src/runner.rs` keeps.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_gc_master::Directory;
use tokio::sync::Notify;

pub(super) type Shared = Arc<Served>;

/// A directory that is served.
pub(super) struct Served {
    pub(super) running: Mutex<Running>,
    /// There is something to write.
    pub(super) written: Notify,
    /// What was written is durable, or nothing more will be.
    progress: Notify,
}

pub(super) struct Running {
    pub(super) directory: Directory,
    pub(super) started: Duration,
    pub(super) dead: bool,
    /// Changes of the durable state so far, of one of several.
    pub(super) changes: u64,
    /// The state after so many changes is durable.
    durable: u64,
    /// The newest state, unless its write has begun.
    pub(super) unwritten: Option<Vec<u8>>,
}

impl Served {
    pub(super) fn new(directory: Directory, started: Duration) -> Shared {
        Arc::new(Self {
            running: Mutex::new(Running {
                directory,
                started,
                dead: false,
                changes: 0,
                durable: 0,
                unwritten: None,
            }),
            written: Notify::new(),
            progress: Notify::new(),
        })
    }

    /// What a new directory wants to be durable from its beginning.
    pub(super) fn take_begun(&self) -> Option<Vec<u8>> {
        self.running.lock().directory.take_effects().persist
    }

    /// The state to write, and after how many changes it is.
    pub(super) fn take_newest(&self) -> Option<(u64, Vec<u8>)> {
        let mut running = self.running.lock();
        let bytes = running.unwritten.take()?;
        Some((running.changes, bytes))
    }

    /// The state after so many changes is durable.
    pub(super) fn durable(&self, changes: u64) {
        self.running.lock().durable = changes;
        self.progress.notify_waiters();
    }

    /// Nothing of this directory is shown from now on, and it changes no more.
    pub(super) fn close(&self) {
        self.running.lock().dead = true;
        self.progress.notify_waiters();
    }

    /// Waits until the state after so many changes is durable. None: it never will be.
    pub(super) async fn shown(&self, changes: u64) -> Option<()> {
        loop {
            let progress = self.progress.notified();
            {
                let running = self.running.lock();
                if running.durable >= changes {
                    return Some(());
                }
                if running.dead {
                    return None;
                }
            }
            progress.await;
        }
    }
}
