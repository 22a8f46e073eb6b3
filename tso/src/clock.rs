//! The time, as the oracle sees it.

use std::path::PathBuf;
use std::time::SystemTime;

use percolator_protocol::oracle::Now;

/// Two clocks: a wall clock that may jump, and a monotonic one.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch.
    fn unix_ms(&self) -> u64;

    /// Milliseconds since some fixed point; never goes back within a run of the process.
    fn mono_ms(&self) -> u64;

    /// What both say.
    fn now(&self) -> Now {
        Now {
            unix_ms: self.unix_ms(),
            mono_ms: self.mono_ms(),
        }
    }
}

/// The clocks of the system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix_ms(&self) -> u64 {
        // A clock before 1970 is as good as one at 1970: the oracle waits for it.
        SystemTime::UNIX_EPOCH
            .elapsed()
            .ok()
            .and_then(|since| u64::try_from(since.as_millis()).ok())
            .unwrap_or(0)
    }

    fn mono_ms(&self) -> u64 {
        // Otherwise a machine that wakes up would be taken for one whose wall clock jumped.
        u64::try_from(percolator_server::boot_time().as_millis()).unwrap_or(u64::MAX)
    }
}

/// For tests: the clocks of the system, and a file with the milliseconds by which the time is wrong. It
/// is read each time, so that a test can make the clock jump.
#[derive(Clone, Debug)]
pub struct WrongClock {
    /// The file; without it, or without a number in it, the time is right.
    pub offset_ms: PathBuf,
}

impl Clock for WrongClock {
    fn unix_ms(&self) -> u64 {
        let offset_ms = std::fs::read_to_string(&self.offset_ms)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        SystemClock.unix_ms().saturating_add_signed(offset_ms)
    }

    fn mono_ms(&self) -> u64 {
        SystemClock.mono_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_by_what_its_file_says() {
        const HOUR_MS: i64 = 3_600_000;
        let folder = tempfile::tempdir().expect("a folder");
        let offset_ms = folder.path().join("offset");
        let clock = WrongClock {
            offset_ms: offset_ms.clone(),
        };
        let off_by = || clock.unix_ms().cast_signed() - SystemClock.unix_ms().cast_signed();
        let near = |expected: i64| (off_by() - expected).abs() < HOUR_MS / 2;
        assert!(near(0), "without a file: {}", off_by());
        for offset in [HOUR_MS, -HOUR_MS] {
            std::fs::write(&offset_ms, format!("{offset}\n")).expect("written");
            assert!(near(offset), "{}", off_by());
        }
        std::fs::write(&offset_ms, "soon").expect("written");
        assert!(near(0), "not a number: {}", off_by());
        assert!(SystemClock.mono_ms() - clock.mono_ms() < HOUR_MS as u64);
    }
}
