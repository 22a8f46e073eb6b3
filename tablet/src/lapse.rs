//! The end of a lease by this machine's clock: it comes when the master was not heard for so long.
//!
//! Correctness rests on the lease in timestamps (`protocol::lease`). This ends sooner what requests that were long on their
//! way could still decide.

use std::time::Duration;

/// When a lease is over, unless the master is heard before. Times are of a clock that goes on while the machine sleeps.
#[derive(Debug, Default)]
pub(crate) struct Lapse {
    sent: Duration,
    over_at: Option<Duration>,
}

impl Lapse {
    /// A heartbeat is sent now.
    pub(crate) fn sends(&mut self, now: Duration) {
        self.sent = now;
    }

    /// It was answered: the lease lasts for so long from when it was sent.
    pub(crate) fn heard(&mut self, lease_ms: u32) {
        self.over_at = Some(self.sent + Duration::from_millis(lease_ms.into()));
    }

    /// Whether it is over now. Says so once.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        self.over_at.take_if(|at| now >= *at).is_some()
    }
}
