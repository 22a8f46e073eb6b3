//! The end of a lease by this machine's clock, if the master answers no heartbeat.
//!
//! Correctness rests on the lease in timestamps (`protocol::lease`). This clock refuses delayed requests sooner.

use std::time::Duration;

/// The end of the lease, unless the master renews it. Times are of a clock that goes on while the machine sleeps.
#[derive(Debug, Default)]
pub(crate) struct Lapse {
    sent: Duration,
    over_at: Option<Duration>,
}

impl Lapse {
    /// Notes that a heartbeat is sent.
    pub(crate) fn sent(&mut self, now: Duration) {
        self.sent = now;
    }

    /// Notes that the last heartbeat was answered: the lease lasts this long from when it was sent.
    pub(crate) fn renewed(&mut self, lease_ms: u32) {
        self.over_at = Some(self.sent + Duration::from_millis(lease_ms.into()));
    }

    /// Whether the lease has ended. Returns true once.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        self.over_at.take_if(|at| now >= *at).is_some()
    }
}
