//! Which seeds are run, by several threads at once, and when they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Seeds that are handed out one after the other.
#[derive(Debug)]
pub struct Seeds {
    from: u64,
    count: u64,
    /// So many are begun, and run to their end, also when the time is over.
    at_least: u64,
    /// How many were handed out: counted from 0, so that the last seed there is can be one of them.
    begun: AtomicU64,
    over: Arc<AtomicBool>,
    ended: AtomicBool,
}

/// A seed to run.
#[derive(Clone, Debug)]
pub struct Seed {
    /// Which.
    pub number: u64,
    /// Its run is cut off when this is set.
    pub cut: Arc<AtomicBool>,
}

impl Seeds {
    /// Those from `from` on and below `to`; the first `at_least` of them in any case.
    pub fn new(from: u64, to: u64, at_least: u64) -> Self {
        Self {
            from,
            count: to.saturating_sub(from),
            at_least,
            begun: AtomicU64::new(0),
            over: Arc::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next one, if another is to be begun.
    pub fn next(&self) -> Option<Seed> {
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        let at = self.begun.fetch_add(1, Ordering::Relaxed);
        let is_due = at < self.at_least;
        if at >= self.count || (!is_due && self.over.load(Ordering::Relaxed)) {
            return None;
        }
        Some(Seed {
            number: self.from + at,
            cut: if is_due {
                Arc::default()
            } else {
                self.over.clone()
            },
        })
    }

    /// The time is over: runs are cut off, but for the first ones.
    pub fn time_is_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// No other one is begun.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
