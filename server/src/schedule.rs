//! When a server sends its next heartbeat, and whether it may say that it was accepted. Without a clock: the network's
//! heartbeats and the simulator's both go by this.

use std::time::Duration;

use percolator_wire::v1::HeartbeatResponse;

/// A master that is away is asked again after the first pause, then after twice as long each time. A planned end of the one that leads
/// takes some milliseconds, and a new one waits for each server's heartbeat before it makes a table.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// The bounds of the interval between heartbeats, whatever interval the master returns.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// After a response with news: the master waits for the confirmation.
const SOON: Duration = Duration::from_millis(20);

/// See the module's head. Times are of one clock.
#[derive(Debug)]
pub struct Schedule {
    known: HeartbeatResponse,
    /// When the last heartbeat that was answered was sent, and how long the lease lasts from then on. It is this server's
    /// incarnation until then, whatever becomes of the master: another one may have taken its place after that, which a
    /// master that has lost its state doesn't know.
    lease: Option<(Duration, Duration)>,
    retry: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            known: HeartbeatResponse::default(),
            lease: None,
            retry: RETRY_FIRST,
        }
    }
}

impl Schedule {
    /// Whether the master has accepted this server, and its lease lasts.
    pub fn is_accepted(&self, now: Duration) -> bool {
        self.lease
            .is_some_and(|(from, lease)| now.saturating_sub(from) < lease)
    }

    /// The heartbeat that was sent at `sent` is answered. Returns how long to wait for the next one.
    ///
    /// If the server has just adopted the cluster, the master learns of that at once: should the server ever come without
    /// the cluster's id, it has lost its folder.
    pub fn answered(
        &mut self,
        sent: Duration,
        response: HeartbeatResponse,
        has_adopted: bool,
    ) -> Duration {
        self.lease = Some((sent, Duration::from_millis(response.lease_ms.into())));
        self.retry = RETRY_FIRST;
        let mut interval = Duration::from_millis(response.interval_ms.into());
        if has_adopted {
            interval = INTERVAL_MIN;
        }
        // These grow with every heartbeat, and need no confirmation.
        let news = HeartbeatResponse {
            lease: 0,
            timestamps_above: 0,
            ..response
        };
        if self.known != news {
            self.known = news;
            interval = interval.min(SOON);
        }
        interval.clamp(INTERVAL_MIN, INTERVAL_MAX)
    }

    /// A heartbeat was not answered. How long to wait for the next one.
    pub fn unanswered(&mut self) -> Duration {
        let pause = self.retry;
        self.retry = (self.retry * 2).min(RETRY_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn answer(safe_point: u64) -> HeartbeatResponse {
        HeartbeatResponse {
            interval_ms: 500,
            lease_ms: 3_000,
            safe_point,
            ..HeartbeatResponse::default()
        }
    }

    #[test]
    fn what_is_new_is_confirmed_soon() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.answered(SECOND, answer(1), true), INTERVAL_MIN);
        assert_eq!(schedule.answered(SECOND, answer(1), false), SECOND / 2);
        assert_eq!(schedule.answered(SECOND, answer(2), false), SOON);
        let longer = HeartbeatResponse {
            lease: 9,
            timestamps_above: 9,
            ..answer(2)
        };
        assert_eq!(schedule.answered(SECOND, longer, false), SECOND / 2);
        let never = HeartbeatResponse {
            interval_ms: u32::MAX,
            ..answer(2)
        };
        assert_eq!(schedule.answered(SECOND, never.clone(), false), SOON);
        assert_eq!(schedule.answered(SECOND, never, false), INTERVAL_MAX);
    }

    #[test]
    fn a_master_that_is_away_is_asked_less_and_less() {
        let mut schedule = Schedule::default();
        let pauses: Vec<_> = (0..8).map(|_| schedule.unanswered()).collect();
        assert_eq!(pauses[..2], [RETRY_FIRST, RETRY_FIRST * 2]);
        assert_eq!(pauses[7], RETRY_MAX);
        schedule.answered(SECOND, answer(1), false);
        assert_eq!(schedule.unanswered(), RETRY_FIRST);
    }

    #[test]
    fn it_is_accepted_while_the_lease_lasts() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_accepted(SECOND));
        schedule.answered(SECOND, answer(1), false);
        assert!(schedule.is_accepted(SECOND * 3));
        assert!(!schedule.is_accepted(SECOND * 4));
        schedule.unanswered();
        assert!(schedule.is_accepted(SECOND * 3));
    }
}
