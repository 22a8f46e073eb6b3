//! Timestamps: make a limit durable, then grant below it (paper, section 2.3).
//!
//! A state machine. It must not know what a disk, a clock or a request is: the time comes in as an
//! argument, the limit to make durable goes out as a value.
//!
//! Every granted timestamp lies below a limit that was durable before. After a restart granting goes
//! on from the durable limit, so nothing is granted twice, whatever the clock says. The clock only
//! moves the next timestamp forward, so that timestamps tell the time well enough for the ttls
//! of locks.

use crate::mutants::{self, Mutant};
use crate::types::Timestamp;

/// A reading of the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the Unix epoch. May jump in either direction.
    pub unix_ms: u64,
    /// Milliseconds since some fixed point. Never goes back within a run of the process.
    pub mono_ms: u64,
}

/// The bounds of an oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How far ahead of use the limit is made durable; extended when less than half is left.
    pub window_ms: u64,
    /// How far the wall clock may get ahead of the monotonic one and still be followed.
    pub jump_ms_max: u64,
    /// How far beyond the stored limit the clock may be at a start: how long a stop can have been.
    pub stopped_ms_max: u64,
}

impl Default for Settings {
    /// A window of 3 s; jumps of up to 10 s; stops of up to a day.
    fn default() -> Self {
        Self {
            window_ms: 3_000,
            jump_ms_max: 10_000,
            stopped_ms_max: 24 * 60 * 60 * 1_000,
        }
    }
}

/// A limit counts for at least so long: one that is shorter than a write takes would always have expired.
const WINDOW_MS_MIN: u64 = 1_000;

/// Of the window, the least part by which the limit is extended.
const WINDOW_PARTS: u64 = 8;

impl Settings {
    /// How long an oracle that starts waits, where the one before it may be alive: until no limit of that one counts.
    pub fn wait_ms(&self) -> u64 {
        self.window_ms.max(WINDOW_MS_MIN)
    }
}

/// Timestamps that nobody else has: `first`, `first + 1`, ..., `first + count - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The lowest of them.
    pub first: Timestamp,
    /// How many, at least 1.
    pub count: u32,
}

/// The wall clock began or ceased to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEvent {
    /// It jumped ahead by more than the bound and is not followed; time goes on by the monotonic
    /// clock. If the clock is right (the machine was paused), a restart of the oracle follows it.
    JumpedAhead {
        /// The wall clock's time, in milliseconds since the Unix epoch.
        unix_ms: u64,
        /// The expected time, by the monotonic clock.
        expected_ms: u64,
        /// The most that it may be ahead.
        jump_ms_max: u64,
    },
    /// It is within the bound again, and followed.
    Followed {
        /// The wall clock's time, in milliseconds since the Unix epoch.
        unix_ms: u64,
    },
}

/// The reason why an oracle must not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// To follow such a clock could never be undone: timestamps do not go back.
    #[error(
        "the clock says {unix_ms} ms since 1970, {} hours after the last limit of this oracle \
         ({limit_ms} ms), and at most {} hours are believed",
        hours(unix_ms - limit_ms),
        hours(*stopped_ms_max)
    )]
    ClockFarAhead {
        /// The wall clock's time, in milliseconds since the Unix epoch.
        unix_ms: u64,
        /// The stored limit, in milliseconds since the Unix epoch.
        limit_ms: u64,
        /// The most that the clock may be beyond the limit.
        stopped_ms_max: u64,
    },
    /// A timestamp cannot hold the time, or soon cannot.
    #[error("the clock says {unix_ms} ms since 1970, which no timestamp can hold")]
    ClockOutOfRange {
        /// The wall clock's time, in milliseconds since the Unix epoch.
        unix_ms: u64,
    },
}

fn hours(ms: u64) -> u64 {
    ms / (60 * 60 * 1_000)
}

/// Grants strictly increasing timestamps, across restarts and clock trouble.
#[derive(Clone, Debug)]
pub struct Oracle {
    settings: Settings,
    /// The next timestamp to grant.
    next: Timestamp,
    /// Every granted timestamp is below.
    durable: Timestamp,
    /// Until then, on the monotonic clock, it counts: one that started after this one was stopped, or cut off from its
    /// disk, waits as long.
    expires_ms: u64,
    /// The last reading of the monotonic clock.
    mono_ms: u64,
    /// The limit that is being made durable.
    pending: Option<Timestamp>,
    /// When the wall clock was last followed.
    followed: Now,
    /// From where on time passes slowly, while the wall clock is behind: the time that it had reached, and when.
    slow_from: Now,
    /// The time by which timestamps are granted, in milliseconds since the Unix epoch.
    time_ms: u64,
    /// The accepted time of the wall clock: the oracle's time may be ahead of it.
    clock_ms: u64,
    /// Whether the wall clock is ahead of what is believed.
    jumped: bool,
}

impl Oracle {
    /// An oracle that goes on from the limit that was durable last; none at its first start.
    /// Nothing is granted before a limit is extended.
    ///
    /// # Errors
    /// [`RecoverError`] if the clock is beyond belief.
    pub fn recover(
        durable_limit: Option<Timestamp>,
        now: Now,
        settings: Settings,
    ) -> Result<Self, RecoverError> {
        let unix_ms = now.unix_ms;
        if unix_ms > Timestamp::MAX.physical_ms() / 2 {
            return Err(RecoverError::ClockOutOfRange { unix_ms });
        }
        let durable = durable_limit.unwrap_or(Timestamp::ZERO);
        let limit_ms = durable.physical_ms();
        let stopped_ms_max = settings.stopped_ms_max;
        // A long stop can't be distinguished from a wrong clock: believe it within reason.
        if durable_limit.is_some() && unix_ms > limit_ms.saturating_add(stopped_ms_max) {
            return Err(RecoverError::ClockFarAhead {
                unix_ms,
                limit_ms,
                stopped_ms_max,
            });
        }
        let next = durable
            .max(Timestamp::from_millis(unix_ms))
            .max(Timestamp::ZERO.next());
        let time_ms = next.physical_ms();
        let started = Now {
            unix_ms: time_ms,
            mono_ms: now.mono_ms,
        };
        Ok(Self {
            settings,
            next,
            durable,
            // That of an earlier process, for which it isn't this one's.
            expires_ms: now.mono_ms,
            mono_ms: now.mono_ms,
            pending: None,
            followed: started,
            slow_from: started,
            time_ms,
            clock_ms: unix_ms,
            jumped: false,
        })
    }

    /// How far ahead of use the limit is made durable. Less if the time is ahead of the clock by what the limits of earlier
    /// starts can explain: starts in quick succession must not carry it further and further away.
    fn window_ms(&self) -> u64 {
        let window_ms = self.settings.window_ms;
        let ahead_ms = self.time_ms.saturating_sub(self.clock_ms);
        let left_ms = if ahead_ms > 2 * window_ms {
            // The clock was set back.
            window_ms
        } else {
            window_ms.saturating_sub(ahead_ms)
        };
        left_ms.max(window_ms / WINDOW_PARTS).max(1)
    }

    /// Takes note of the time. Call it before [`Self::grant`] and [`Self::extend`].
    ///
    /// A clock that goes back is waited for: until it is there again, time passes at half the pace
    /// of the monotonic clock, so that ttls of locks still end. A clock that jumps ahead by
    /// more than the bound is not followed.
    pub fn observe(&mut self, now: Now) -> Option<ClockEvent> {
        self.mono_ms = self.mono_ms.max(now.mono_ms);
        let elapsed_ms = now.mono_ms.saturating_sub(self.followed.mono_ms);
        let expected_ms = self.followed.unix_ms.saturating_add(elapsed_ms);
        let jump_ms_max = self.settings.jump_ms_max;
        let jumped = now.unix_ms > expected_ms.saturating_add(jump_ms_max);
        // Not from when the clock was followed last: while one that had jumped was not, time has passed at the full pace.
        let slowly_ms = now.mono_ms.saturating_sub(self.slow_from.mono_ms) / 2;
        let slow_ms = self.slow_from.unix_ms.saturating_add(slowly_ms);
        let believed_ms = if jumped { expected_ms } else { now.unix_ms };
        // Also behind a clock that isn't followed: others may have seen what is far above it.
        let is_slow = believed_ms < self.time_ms.max(slow_ms);
        self.clock_ms = believed_ms;
        if !is_slow && !jumped {
            self.followed = now;
        }
        let time_ms = if is_slow { slow_ms } else { believed_ms };
        self.time_ms = self.time_ms.max(time_ms);
        if !is_slow {
            self.slow_from = Now {
                unix_ms: self.time_ms,
                mono_ms: now.mono_ms,
            };
        }
        // A part of the window stays for the counter: if no limit can be made durable, the time
        // stands still there, and timestamps can be granted for long. A window that is shorter than
        // a write takes would otherwise be used up by time alone, always.
        let reserve_ms = (self.window_ms() / 4).max(1);
        let reach_ms = self.durable.physical_ms().saturating_sub(reserve_ms);
        let reached = Timestamp::from_millis(self.time_ms.min(reach_ms));
        self.next = self.next.max(reached);

        let event = match (self.jumped, jumped) {
            (false, true) => Some(ClockEvent::JumpedAhead {
                unix_ms: now.unix_ms,
                expected_ms,
                jump_ms_max,
            }),
            (true, false) => Some(ClockEvent::Followed {
                unix_ms: now.unix_ms,
            }),
            _ => None,
        };
        self.jumped = jumped;
        event
    }

    /// Goes on above this timestamp, where it is behind: somebody has seen it.
    pub fn raise(&mut self, above: Timestamp) {
        self.next = self.next.max(above.next());
        self.time_ms = self.time_ms.max(self.next.physical_ms());
        if self.slow_from.unix_ms < self.time_ms {
            // Its own clock is waited for, as one that went back.
            self.slow_from = Now {
                unix_ms: self.time_ms,
                mono_ms: self.mono_ms,
            };
        }
    }

    /// Up to `count` timestamps, fewer if the limit is near; none if the limit is reached or has expired, or
    /// `count` is 0: then wait until [`Self::limit_durable`].
    pub fn grant(&mut self, count: u32) -> Option<Granted> {
        let first = self.next;
        let left = if self.mono_ms >= self.expires_ms {
            0
        } else {
            self.durable.as_u64().saturating_sub(first.as_u64())
        };
        let count = u32::try_from(left).unwrap_or(u32::MAX).min(count);
        // The counter carries into the milliseconds by itself: one number holds both.
        self.next = Timestamp::from_u64(first.as_u64() + u64::from(count));
        (count > 0).then_some(Granted { first, count })
    }

    /// The limit to make durable now, if less than half of the window is left and no other limit
    /// is on its way. [`Self::limit_durable`] or [`Self::limit_failed`] must follow.
    pub fn extend(&mut self) -> Option<Timestamp> {
        if self.pending.is_some() {
            return None;
        }
        let window_ms = self.window_ms();
        let used_ms = self.time_ms.max(self.next.physical_ms());
        let lasts_ms = self.settings.wait_ms();
        let counts = self.expires_ms > self.mono_ms.saturating_add(lasts_ms / 2);
        if counts && self.durable > Timestamp::from_millis(used_ms.saturating_add(window_ms / 2)) {
            return None;
        }
        let limit = Timestamp::from_millis(used_ms.saturating_add(window_ms));
        // One that expires is made durable anew also where the time stands still.
        let limit = limit.max(self.durable.next());
        self.pending = (limit > self.durable).then_some(limit);
        if mutants::on(Mutant::GrantBeforeDurable) {
            self.durable = limit.max(self.durable);
        }
        self.pending
    }

    /// The limit of the last [`Self::extend`] is durable. Call [`Self::observe`] before: it counts from now on.
    ///
    /// # Panics
    /// If it is another limit: granting below a limit that is not durable would break everything.
    pub fn limit_durable(&mut self, limit: Timestamp) {
        assert_eq!(self.pending.take(), Some(limit), "not the extended limit");
        assert!(
            limit > self.durable || mutants::on(Mutant::GrantBeforeDurable),
            "the limit goes only forward"
        );
        self.durable = limit;
        self.expires_ms = self.mono_ms.saturating_add(self.settings.wait_ms());
    }

    /// The limit of the last [`Self::extend`] may or may not be durable: the one before holds.
    pub fn limit_failed(&mut self) {
        self.pending = None;
    }

    /// The time by which timestamps are granted, in milliseconds since the Unix epoch.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// The next timestamp, or one above it.
    pub fn next(&self) -> Timestamp {
        self.next
    }

    /// Whether the wall clock is believed.
    pub fn follows_clock(&self) -> bool {
        !self.jumped
    }

    /// Every granted timestamp is below this, and so is every future one until it is extended.
    pub fn durable(&self) -> Timestamp {
        self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_700_000_000_000;

    fn at(unix_ms: u64, mono_ms: u64) -> Now {
        Now { unix_ms, mono_ms }
    }

    fn extend(oracle: &mut Oracle) -> Option<u64> {
        let limit = oracle.extend()?;
        oracle.limit_durable(limit);
        Some(limit.physical_ms())
    }

    fn started() -> Oracle {
        let mut oracle = Oracle::recover(None, at(T, 0), Settings::default()).unwrap();
        assert_eq!(extend(&mut oracle), Some(T + 3_000));
        oracle
    }

    fn time_of_next(oracle: &mut Oracle) -> u64 {
        oracle.grant(1).unwrap().first.physical_ms()
    }

    #[test]
    fn nothing_is_granted_before_a_limit_is_durable() {
        let mut oracle = Oracle::recover(None, at(T, 0), Settings::default()).unwrap();
        assert_eq!(oracle.grant(1), None);
        let limit = oracle.extend().unwrap();
        assert_eq!(oracle.grant(1), None);
        assert_eq!(oracle.extend(), None, "one limit at a time");
        oracle.limit_durable(limit);
        let first = Timestamp::from_millis(T);
        assert_eq!(oracle.grant(2), Some(Granted { first, count: 2 }));
        assert_eq!(oracle.grant(0), None);
        assert_eq!(time_of_next(&mut oracle), T);
    }

    #[test]
    fn starts_in_quick_succession_stay_near_the_clock() {
        let window_ms = Settings::default().window_ms;
        for runs_ms in [400, 1_000, 2_500] {
            let (mut durable, mut clock_ms) = (None, T);
            for start in 0..30 {
                let began_ms = clock_ms;
                let mut oracle =
                    Oracle::recover(durable, at(clock_ms, 0), Settings::default()).unwrap();
                for _ in 0..8 {
                    extend(&mut oracle);
                    clock_ms += runs_ms / 8;
                    oracle.observe(at(clock_ms, clock_ms - began_ms));
                }
                durable = Some(oracle.durable());
                let ahead_ms = oracle.time_ms().saturating_sub(clock_ms);
                assert!(ahead_ms <= window_ms, "start {start}: {ahead_ms} ms ahead");
            }
        }
    }

    #[test]
    fn extends_when_less_than_half_is_left() {
        let mut oracle = started();
        oracle.observe(at(T + 1_499, 1_499));
        assert_eq!(oracle.extend(), None);
        oracle.observe(at(T + 1_500, 1_500));
        assert_eq!(extend(&mut oracle), Some(T + 4_500));
        assert_eq!(time_of_next(&mut oracle), T + 1_500);
    }

    #[test]
    fn grants_fewer_near_the_limit_and_the_counter_carries() {
        let settings = Settings {
            window_ms: 2,
            ..Settings::default()
        };
        let mut oracle = Oracle::recover(None, at(T, 0), settings).unwrap();
        extend(&mut oracle);
        let granted = oracle.grant(u32::MAX).unwrap();
        assert_eq!(granted.count, 2 << Timestamp::LOGICAL_BITS);
        assert_eq!(oracle.grant(1), None);
        // The counter is ahead of the clock, and the next limit ahead of the counter.
        assert_eq!(extend(&mut oracle), Some(T + 4));
        assert_eq!(time_of_next(&mut oracle), T + 2);
    }

    #[test]
    fn goes_on_from_the_limit_although_the_clock_is_behind() {
        let limit = Timestamp::from_millis(T);
        let mut oracle =
            Oracle::recover(Some(limit), at(T - 60_000, 0), Settings::default()).unwrap();
        assert_eq!(oracle.grant(1), None);
        assert_eq!(extend(&mut oracle), Some(T + 3_000));
        assert_eq!(oracle.grant(1).unwrap().first, limit);
        // Time passes, slowly, until the clock is there.
        oracle.observe(at(T - 59_000, 1_000));
        assert_eq!(time_of_next(&mut oracle), T + 500);
    }

    #[test]
    fn time_passes_where_it_was_raised_above_a_clock_that_then_jumps_ahead() {
        let mut oracle = started();
        let hour_ms = 3_600_000;
        oracle.raise(Timestamp::from_millis(T + hour_ms));
        extend(&mut oracle);
        // Still behind, and by more than is followed.
        for mono_ms in [1_000, 2_000] {
            oracle.observe(at(T + 60_000 + mono_ms, mono_ms));
            assert_eq!(oracle.time_ms(), T + hour_ms + mono_ms / 2);
        }
    }

    #[test]
    fn a_clock_that_goes_back_is_waited_for() {
        let mut oracle = started();
        oracle.observe(at(T + 1_000, 1_000));
        assert_eq!(oracle.observe(at(T - 3_600_000, 1_100)), None);
        assert_eq!(time_of_next(&mut oracle), T + 1_050);
        assert_eq!(oracle.observe(at(T + 1_200, 1_200)), None);
        assert_eq!(time_of_next(&mut oracle), T + 1_200);
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_not_followed() {
        let mut oracle = started();
        oracle.observe(at(T + 10_100, 100));
        extend(&mut oracle);
        oracle.observe(at(T + 10_100, 100));
        assert_eq!(time_of_next(&mut oracle), T + 10_100, "10 s are believed");
        let event = oracle.observe(at(T + 86_400_000, 200));
        assert_eq!(
            event,
            Some(ClockEvent::JumpedAhead {
                unix_ms: T + 86_400_000,
                expected_ms: T + 10_200,
                jump_ms_max: 10_000,
            })
        );
        assert_eq!(time_of_next(&mut oracle), T + 10_200);
        assert_eq!(
            oracle.observe(at(T + 86_400_100, 300)),
            None,
            "reported once"
        );
        assert_eq!(time_of_next(&mut oracle), T + 10_300);
        let event = oracle.observe(at(T + 10_400, 400));
        let unix_ms = T + 10_400;
        assert_eq!(event, Some(ClockEvent::Followed { unix_ms }));
    }

    #[test]
    fn a_clock_that_comes_back_behind_is_waited_for_without_standing_still() {
        let settings = Settings {
            window_ms: 60_000,
            ..Settings::default()
        };
        let mut oracle = Oracle::recover(None, at(T, 0), settings).unwrap();
        extend(&mut oracle);
        // It isn't followed for 20 s, in which time passes by the monotonic clock.
        oracle.observe(at(T + 86_400_000, 20_000));
        assert_eq!(time_of_next(&mut oracle), T + 20_000);
        // And then it says that there were 5.
        oracle.observe(at(T + 5_000, 20_000));
        oracle.observe(at(T + 7_000, 22_000));
        assert_eq!(time_of_next(&mut oracle), T + 21_000);
        oracle.observe(at(T + 9_000, 24_000));
        assert_eq!(time_of_next(&mut oracle), T + 22_000);
        // At half the pace until it has caught up.
        oracle.observe(at(T + 40_000, 55_000));
        assert_eq!(time_of_next(&mut oracle), T + 40_000);
    }

    #[test]
    fn without_a_new_limit_the_time_stands_still_and_then_nothing_is_granted() {
        let mut oracle = started();
        oracle.observe(at(T + 2_900, 2_900));
        assert!(oracle.extend().is_some());
        oracle.limit_failed();
        assert_eq!(time_of_next(&mut oracle), T + 2_250);
        assert!(oracle.grant(65_536).is_some());
        // Another one may have been started meanwhile, that has waited for as long.
        oracle.observe(at(T + 3_000, 3_000));
        assert_eq!(oracle.grant(1), None);
        assert_eq!(extend(&mut oracle), Some(T + 6_000));
        oracle.observe(at(T + 3_001, 3_001));
        assert_eq!(time_of_next(&mut oracle), T + 3_001);
    }

    /// A machine that slept, or a process that stood still.
    #[test]
    fn a_limit_expires_by_the_clock_that_goes_on() {
        let mut oracle = started();
        assert!(oracle.grant(1).is_some());
        oracle.observe(at(T, 3_000));
        assert_eq!(oracle.grant(1), None);
        // Also where its clock stands still.
        assert!(extend(&mut oracle).is_some());
        assert!(oracle.grant(1).is_some());
    }

    #[test]
    fn goes_on_above_what_others_have_seen() {
        let mut oracle = started();
        let seen = Timestamp::from_millis(T + 60_000);
        oracle.raise(seen);
        assert_eq!(oracle.grant(1), None, "that limit is not durable");
        assert_eq!(extend(&mut oracle), Some(T + 63_000));
        assert_eq!(oracle.grant(1).unwrap().first, seen.next());
        // Its own clock is waited for, at half the pace.
        oracle.observe(at(T + 1_000, 1_000));
        assert_eq!(time_of_next(&mut oracle), T + 60_500);
        oracle.raise(Timestamp::from_millis(T));
        assert_eq!(time_of_next(&mut oracle), T + 60_500);
    }

    #[test]
    fn a_clock_beyond_belief_is_no_start() {
        let settings = Settings::default();
        let limit = Some(Timestamp::from_millis(T));
        let day = settings.stopped_ms_max;
        assert!(Oracle::recover(limit, at(T + day, 0), settings).is_ok());
        let error = Oracle::recover(limit, at(T + day + 1, 0), settings).unwrap_err();
        assert!(matches!(error, RecoverError::ClockFarAhead { .. }));
        assert!(error.to_string().contains("at most 24 hours"), "{error}");
        let error = Oracle::recover(None, at(u64::MAX, 0), settings).unwrap_err();
        assert!(matches!(error, RecoverError::ClockOutOfRange { .. }));
    }
}
