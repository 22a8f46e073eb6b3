//! The clock that leases are measured by.

use std::time::Duration;

/// Since this machine was started. It goes on while the machine sleeps, as the other machines' clocks do.
pub fn boot_time() -> Duration {
    #[cfg(target_os = "linux")]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(id);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}
