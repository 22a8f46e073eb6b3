//! The end of a lease by this machine's clock: it comes when the master was not heard for so long.
//!
//! Correctness rests on the lease in timestamps (`protocol::lease`). This ends sooner what requests that were long on their
//! way could still decide.

use std::time::Duration;

/// When a lease is over, unless the master is heard before.
#[derive(Debug, Default)]
pub(crate) struct Lapse {
    sent: Duration,
    over_at: Option<Duration>,
}

impl Lapse {
    /// A heartbeat is sent now.
    pub(crate) fn sends(&mut self) {
        self.sent = boot_time();
    }

    /// It was answered: the lease lasts for so long from when it was sent.
    pub(crate) fn heard(&mut self, lease_ms: u32) {
        self.over_at = Some(self.sent + Duration::from_millis(lease_ms.into()));
    }

    /// Whether it is over now. Says so once.
    pub(crate) fn is_due(&mut self) -> bool {
        self.over_at.take_if(|at| boot_time() >= *at).is_some()
    }
}

/// The clock that goes on while the machine sleeps.
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}
