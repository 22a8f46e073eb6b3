//! Lines of a log about something that is away, and is asked again and again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often an outage that goes on is logged.
const INTERVAL: Duration = Duration::from_secs(60);

/// Admits a line when an outage begins, one each minute while it goes on, and one when it has ended.
#[derive(Debug, Default)]
pub struct Outage(Mutex<Option<State>>);

#[derive(Clone, Copy, Debug)]
struct State {
    began: Instant,
    logged: Instant,
    attempts: u64,
}

/// A line of the log about an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutageLine {
    /// Attempts that have failed since it began.
    pub attempts: u64,
    /// Since its first attempt that failed.
    pub lasted: Duration,
}

impl Outage {
    /// An attempt has failed: the line to log, if one is due.
    pub fn failed(&self) -> Option<OutageLine> {
        self.failed_at(Instant::now())
    }

    /// An attempt has succeeded: the line to log, if there was an outage.
    pub fn ended(&self) -> Option<OutageLine> {
        self.ended_at(Instant::now())
    }

    fn failed_at(&self, now: Instant) -> Option<OutageLine> {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = outage.is_none();
        let state = outage.get_or_insert(State {
            began: now,
            logged: now,
            attempts: 0,
        });
        state.attempts += 1;
        if !is_new && now.saturating_duration_since(state.logged) < INTERVAL {
            return None;
        }
        state.logged = now;
        Some(state.line(now))
    }

    fn ended_at(&self, now: Instant) -> Option<OutageLine> {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outage.take().map(|state| state.line(now))
    }
}

impl State {
    fn line(&self, now: Instant) -> OutageLine {
        OutageLine {
            attempts: self.attempts,
            lasted: now.saturating_duration_since(self.began),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_when_it_begins_each_minute_and_when_it_ends() {
        let outage = Outage::default();
        let began = Instant::now();
        assert_eq!(outage.ended_at(began), None);
        let logged = |seconds: u64| {
            let line = outage.failed_at(began + Duration::from_secs(seconds));
            line.map(|line| (line.attempts, line.lasted.as_secs()))
        };
        assert_eq!(logged(0), Some((1, 0)));
        for seconds in 1..60 {
            assert_eq!(logged(seconds), None, "after {seconds} s");
        }
        assert_eq!(logged(60), Some((61, 60)));
        assert_eq!(logged(61), None);
        let lasted = Duration::from_secs(70);
        let line = OutageLine {
            attempts: 62,
            lasted,
        };
        assert_eq!(outage.ended_at(began + lasted), Some(line));
        assert_eq!(outage.ended_at(began + lasted), None);
        assert_eq!(logged(80), Some((1, 0)));
    }
}
