//! Ends all tasks of a worker.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Raised once. The tasks that wait for it are woken in the order in which they began to wait, as those of `tokio::sync::watch` are not:
/// the simulator repeats it.
#[derive(Debug, Default)]
pub(super) struct StopSignal {
    is_raised: AtomicBool,
    raised: Notify,
}

impl StopSignal {
    pub(super) fn raise(&self) {
        self.is_raised.store(true, Ordering::Release);
        self.raised.notify_waiters();
    }

    pub(super) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Acquire)
    }

    /// Returns when it is raised.
    pub(super) async fn raised(&self) {
        // It is woken by what is raised from here on.
        let raised = self.raised.notified();
        if !self.is_raised() {
            raised.await;
        }
    }
}
