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
    /// There is something that may have to be copied.
    pub(super) copied: Notify,
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
    /// The newest state.
    newest: Option<Arc<Vec<u8>>>,
    /// Its write has not begun.
    is_unwritten: bool,
}

impl Running {
    /// The state is this one from now on.
    pub(super) fn changed(&mut self, state: Vec<u8>) {
        self.changes += 1;
        self.newest = Some(Arc::new(state));
        self.is_unwritten = true;
    }
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
                newest: None,
                is_unwritten: false,
            }),
            written: Notify::new(),
            copied: Notify::new(),
            progress: Notify::new(),
        })
    }

    /// What a new directory wants to be durable from its beginning.
    pub(super) fn take_begun(&self) -> Option<Vec<u8>> {
        self.running.lock().directory.take_effects().persist
    }

    /// The state to write, and after how many changes it is.
    pub(super) fn take_newest(&self) -> Option<(u64, Arc<Vec<u8>>)> {
        let is_unwritten = std::mem::take(&mut self.running.lock().is_unwritten);
        is_unwritten.then(|| self.newest()).flatten()
    }

    /// What was to be written is to be written again.
    pub(super) fn write_again(&self) {
        self.running.lock().is_unwritten = true;
    }

    /// The newest state, and after how many changes it is; none: nothing has changed.
    pub(super) fn newest(&self) -> Option<(u64, Arc<Vec<u8>>)> {
        let running = self.running.lock();
        Some((running.changes, running.newest.clone()?))
    }

    /// How many changes there were.
    pub(super) fn changes(&self) -> u64 {
        self.running.lock().changes
    }

    /// Whether the state after so many changes is durable.
    pub(super) fn is_durable(&self, changes: u64) -> bool {
        self.running.lock().durable >= changes
    }

    /// The state after so many changes is durable.
    pub(super) fn durable(&self, changes: u64) {
        {
            let mut running = self.running.lock();
            running.durable = changes.max(running.durable);
        }
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
