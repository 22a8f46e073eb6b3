//! A disk that stalls: it neither takes a write nor refuses it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A write that takes longer has stalled: the slowest disks that work take less.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// How often a write under way is looked at. What passes between two looks counts for no more than twice this: the process
/// may have stood still itself.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Knows how long the write under way has taken. Clones watch the same disk.
#[derive(Clone, Debug, Default)]
pub struct StallWatch {
    write: Arc<Mutex<Option<Write>>>,
}

/// A write under way.
#[derive(Clone, Copy, Debug)]
struct Write {
    stall: Stall,
    looked: Instant,
}

/// How long a write was seen to wait, without a sign of life of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stall {
    waited: Duration,
    /// Signs of life at the last look, if there was one.
    signs: Option<u64>,
}

impl Stall {
    /// Another look, so long after the one before. `signs` counts what the disk has done. Returns how long it has waited.
    pub fn look(&mut self, since: Duration, signs: u64) -> Duration {
        self.waited = if self.signs.replace(signs) == Some(signs) {
            self.waited + since.min(2 * LOOK_EVERY)
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
            looked: Instant::now(),
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

    /// Watches, which has to go on for [`Self::stalled`] to know anything. Ends when a write has waited as long as `max`, and
    /// says so. `signs` counts what the disk has done: one that is slow, with much to write, does something.
    pub async fn exceeds(&self, max: Duration, signs: impl Fn() -> u64) -> String {
        loop {
            if let Some(waited) = self.look(signs()).filter(|waited| *waited >= max) {
                return stalled(waited);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn look(&self, signs: u64) -> Option<Duration> {
        let mut write = self.write();
        let write = write.as_mut()?;
        let since = write.looked.elapsed();
        write.looked = Instant::now();
        Some(write.stall.look(since, signs))
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
        "the disk stalls: a write has waited for it for {} s, and it says nothing",
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

    fn looks(watch: &StallWatch, count: u32, signs: impl Fn(u32) -> u64) -> Option<Duration> {
        for number in 0..count {
            if let Some(write) = watch.write().as_mut() {
                write.looked -= LOOK_EVERY;
            }
            watch.look(signs(number));
        }
        watch.stalled()
    }

    #[test]
    fn a_write_stalls_where_the_disk_does_nothing() {
        let watch = StallWatch::default();
        assert_eq!((looks(&watch, 100, |_| 7), watch.check()), (None, Ok(())));
        let writing = watch.writing();
        assert_eq!(looks(&watch, 15, |_| 7), None, "less than 5 s");
        assert!(looks(&watch, 15, |_| 7).is_some());
        assert!(watch.check().unwrap_err().contains("the disk stalls"));
        assert_eq!(looks(&watch, 50, u64::from), None, "slow, and alive");
        // The process has stood still for an hour.
        if let Some(write) = watch.write().as_mut() {
            write.looked -= Duration::from_secs(3600);
        }
        watch.look(49);
        assert_eq!(watch.stalled(), None);
        drop(writing);
        assert_eq!(looks(&watch, 100, |_| 7), None);
    }

    #[test]
    fn the_shortest_stall_is_longer_than_what_works() {
        assert_eq!(stall_max("30s"), Ok(Duration::from_secs(30)));
        assert!(stall_max("0s").is_err() && stall_max("x").is_err());
    }
}
