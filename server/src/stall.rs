//! A disk that stalls: it neither takes a write nor refuses it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A write that takes longer has stalled: the slowest disks that work take less.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// How often a write under way is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Knows how long the write under way has taken. Clones watch the same disk.
#[derive(Clone, Debug, Default)]
pub struct StallWatch {
    since: Arc<Mutex<Option<Instant>>>,
}

/// A write is under way until this is dropped.
#[derive(Debug)]
pub struct Writing<'a>(&'a StallWatch);

impl StallWatch {
    /// To be called before a write, by the one thread that writes.
    pub fn writing(&self) -> Writing<'_> {
        *self.since() = Some(Instant::now());
        Writing(self)
    }

    /// How long the disk has stalled, if it does: 5 s or more.
    pub fn stalled(&self) -> Option<Duration> {
        self.taking().filter(|took| *took >= STALLED_AFTER)
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

    /// Waits until a write has taken as long as `max`; says so.
    pub async fn exceeds(&self, max: Duration) -> String {
        loop {
            match self.taking() {
                Some(took) if took >= max => return stalled(took),
                _ => tokio::time::sleep(LOOK_EVERY.min(max)).await,
            }
        }
    }

    fn taking(&self) -> Option<Duration> {
        self.since().map(|since| since.elapsed())
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        *self.0.since() = None;
    }
}

fn stalled(took: Duration) -> String {
    format!(
        "the disk stalls: a write has waited for it for {} s, and it says nothing",
        took.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_ends_is_no_stall() {
        let watch = StallWatch::default();
        assert_eq!(watch.check(), Ok(()));
        let writing = watch.writing();
        let said = watch.exceeds(Duration::ZERO).await;
        assert!(said.contains("the disk stalls"), "{said}");
        assert_eq!(watch.stalled(), None, "sooner than that");
        drop(writing);
        let max = Duration::from_millis(1);
        let stalls = tokio::time::timeout(Duration::from_secs(60), watch.exceeds(max)).await;
        assert!(stalls.is_err(), "{stalls:?}");
    }
}
