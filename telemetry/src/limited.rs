//! A limit for lines of the log that a peer could cause in any number.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines in each window.
const LINES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// Admits the first few lines of one kind in each window, and counts the others. A `static`, beside the line that it
/// limits.
#[derive(Debug)]
pub struct Limited(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When the window began, and how many lines there were in it.
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Limited {
    /// A limit that has admitted nothing yet.
    #[allow(clippy::new_without_default, reason = "a default is no constant")]
    pub const fn new() -> Self {
        Self(Mutex::new(State {
            began: None,
            lines: 0,
            left_out: 0,
        }))
    }

    /// Whether a line may be logged, and how many were left out since the last one, so that it reports them.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |began: Instant| now.saturating_duration_since(began) >= WINDOW;
        if state.began.is_none_or(is_over) {
            (state.began, state.lines) = (Some(now), 0);
        }
        if state.lines >= LINES_MAX {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_and_reported_with_the_next_one() {
        let limited = Limited::new();
        let began = Instant::now();
        for _ in 0..LINES_MAX {
            assert_eq!(limited.admit_at(began), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(limited.admit_at(began + WINDOW / 2), None);
        }
        assert_eq!(limited.admit_at(began + WINDOW), Some(3));
        assert_eq!(limited.admit_at(began + WINDOW), Some(0));
    }
}
