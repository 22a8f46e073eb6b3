//! A disk that stalls: it neither takes a write nor refuses it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A write that takes longer has stalled: the slowest disks that work take less.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// How often a write under way is checked. The time between two checks counts for no more than twice this: the process
/// may have stood still itself.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Knows how long the write under way has taken. Clones watch the same disk.
#[derive(Clone, Debug, Default)]
pub struct StallWatch {
    write: Arc<Mutex<Option<Write>>>,
}

/// A write under way.
#[derive(Clone, Copy, Debug)]
struct Write {
    stall: Stall,
    checked_at: Instant,
}

/// How long a write was seen to wait, without progress of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stall {
    waited: Duration,
    /// The disk's operations at the last check, if there was one.
    signs: Option<u64>,
}

impl Stall {
    /// Checks again, so long after the check before. `signs` counts the disk's operations. Returns how long the write has waited.
    pub fn check_write(&mut self, since: Duration, signs: u64) -> Duration {
        self.waited = if self.signs.replace(signs) == Some(signs) {
            self.waited + since.min(2 * CHECK_INTERVAL)
        } else {
            Duration::ZERO
        };
        self.waited
    }
}

/// A write is under way until this is dropped.
#[derive(Debug)]
pub struct Writing<'a>(&'a StallWatch);

impl StallWatch {
    /// To be called before a write, by the one thread that writes.
    pub fn writing(&self) -> Writing<'_> {
        *self.write() = Some(Write {
            stall: Stall::default(),
            checked_at: Instant::now(),
        });
        Writing(self)
    }

    /// How long the disk has stalled, if it does: 5 s or more.
    pub fn stalled(&self) -> Option<Duration> {
        let waited = self.write().map(|write| write.stall.waited);
        waited.filter(|waited| *waited >= STALLED_AFTER)
    }

    /// [`Self::stalled`] in milliseconds; 0: it doesn't stall.
    pub fn stalled_ms(&self) -> u32 {
        let took = self.stalled().unwrap_or_default();
        u32::try_from(took.as_millis()).unwrap_or(u32::MAX)
    }

    /// [`Self::stalled`] as a sentence of readiness.
    ///
    /// # Errors
    /// It stalls.
    pub fn check(&self) -> Result<(), String> {
        match self.stalled() {
            None => Ok(()),
            Some(took) => Err(stalled(took)),
        }
    }

    /// Watches, which has to go on for [`Self::stalled`] to know anything. Ends with the reason when a write has waited as long as `max`.
    /// `signs` counts the disk's operations: one that is slow, with much to write, still completes some.
    pub async fn exceeds(&self, max: Duration, signs: impl Fn() -> u64) -> String {
        loop {
            if let Some(waited) = self.check_write(signs()).filter(|waited| *waited >= max) {
                return stalled(waited);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    fn check_write(&self, signs: u64) -> Option<Duration> {
        let mut write = self.write();
        let write = write.as_mut()?;
        let since = write.checked_at.elapsed();
        write.checked_at = Instant::now();
        Some(write.stall.check_write(since, signs))
    }

    fn write(&self) -> MutexGuard<'_, Option<Write>> {
        self.write.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        *self.0.write() = None;
    }
}

fn stalled(took: Duration) -> String {
    format!(
        "the disk stalls: a write has waited for it for {} s, and it has done nothing meanwhile",
        took.as_secs()
    )
}

/// A flag's value: how long a disk may stall.
///
/// # Errors
/// No duration, or less than a disk that works may take.
pub fn stall_max(text: &str) -> Result<Duration, String> {
    let max = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if max >= STALLED_AFTER {
        Ok(max)
    } else {
        Err(format!(
            "a disk that works may take {STALLED_AFTER:?}: give more"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(watch: &StallWatch, count: u32, signs: impl Fn(u32) -> u64) -> Option<Duration> {
        for number in 0..count {
            if let Some(write) = watch.write().as_mut() {
                write.checked_at -= CHECK_INTERVAL;
            }
            watch.check_write(signs(number));
        }
        watch.stalled()
    }

    #[test]
    fn a_write_stalls_where_the_disk_does_nothing() {
        let watch = StallWatch::default();
        assert_eq!((checks(&watch, 100, |_| 7), watch.check()), (None, Ok(())));
        let writing = watch.writing();
        assert_eq!(checks(&watch, 15, |_| 7), None, "less than 5 s");
        assert!(checks(&watch, 15, |_| 7).is_some());
        assert!(watch.check().unwrap_err().contains("the disk stalls"));
        assert_eq!(checks(&watch, 50, u64::from), None, "slow, and alive");
        // The process has stood still for an hour.
        if let Some(write) = watch.write().as_mut() {
            write.checked_at -= Duration::from_secs(3600);
        }
        watch.check_write(49);
        assert_eq!(watch.stalled(), None);
        drop(writing);
        assert_eq!(checks(&watch, 100, |_| 7), None);
    }

    #[test]
    fn the_shortest_stall_is_longer_than_what_works() {
        assert_eq!(stall_max("30s"), Ok(Duration::from_secs(30)));
        assert!(stall_max("0s").is_err() && stall_max("x").is_err());
    }
}
