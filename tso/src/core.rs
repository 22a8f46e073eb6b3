//! What the server answers, without socket, clock, disk or thread: requests and the time come in,
//! answers and what to store go out.

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::oracle::{ClockEvent, Granted, Now, Oracle, RecoverError, Settings};
use percolator_protocol::types::Timestamp;

/// The most timestamps that one request may ask for.
pub const COUNT_MAX: u32 = 65_536;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Timestamps that no other request gets; perhaps fewer than asked for.
    Granted(Granted),
    /// Everything below the durable limit is used up: ask again when the next one is durable.
    Wait,
}

/// A request that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} timestamps were asked for; ask for 1 to {COUNT_MAX} at a time")]
pub struct CountRefused {
    /// What was asked for.
    pub count: u32,
}

/// Why there is no oracle to be made of what was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// What was stored is not a limit.
    #[error("{bytes} bytes were stored as the limit, which has 8")]
    NoLimit {
        /// How many bytes there are.
        bytes: usize,
    },
    /// The rule refuses.
    #[error(transparent)]
    Recover(#[from] RecoverError),
}

/// The state of an oracle, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Time until everything below the durable limit is used up, in milliseconds.
    pub remaining_ms: u64,
    /// The wall clock, less the time by which timestamps are granted, in milliseconds.
    pub offset_ms: i64,
    /// Whether the wall clock is believed.
    pub followed: bool,
}

impl Facts {
    /// Of an oracle that has observed this time.
    pub(crate) fn of(oracle: &Oracle, now: Now) -> Self {
        let time_ms = oracle.time_ms();
        let used_ms = time_ms.max(oracle.next().physical_ms());
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        Self {
            remaining_ms: oracle.durable().physical_ms().saturating_sub(used_ms),
            offset_ms: signed(now.unix_ms).saturating_sub(signed(time_ms)),
            followed: oracle.follows_clock(),
        }
    }
}

/// A limit to be made durable, in 8 bytes, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    limit: Timestamp,
}

impl Store {
    /// What to store.
    pub fn value(&self) -> [u8; 8] {
        self.limit.as_u64().to_le_bytes()
    }
}

/// Whether the master lets it hand out timestamps: another oracle is only accepted when this one surely doesn't any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    /// It has no master.
    Unlimited,
    /// The master has not answered it yet.
    NotYet,
    /// Until then, on the monotonic clock.
    Until(u64),
}

/// What a master's answer bounds an oracle by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Others have seen timestamps up to this.
    pub above: Timestamp,
    /// Nobody commits at or below this.
    pub commits_above: Timestamp,
}

/// How far the oracle is, for the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OracleProgress {
    /// Its time, as a timestamp: about what is granted next.
    pub time: Timestamp,
    /// Whatever was granted is below. Of an oracle that isn't accepted yet, what it has found in its folder: by that the
    /// master knows whether the folder is the last one's.
    pub limit: Timestamp,
}

/// The oracle behind the server.
#[derive(Debug)]
pub struct Core {
    oracle: Oracle,
    /// The limit that was stored when it started.
    recovered: Timestamp,
    lease: Lease,
    event: Option<ClockEvent>,
}

impl Core {
    /// Goes on from what was stored last; none at the first start.
    ///
    /// # Errors
    /// [`StartError`] if the value is no limit, or the clock is beyond belief.
    pub fn recover(
        stored: Option<&[u8]>,
        now: Now,
        settings: Settings,
    ) -> Result<Self, StartError> {
        let limit = match stored {
            Some(value) => {
                let bytes = value.len();
                let value = value
                    .try_into()
                    .map_err(|_| StartError::NoLimit { bytes })?;
                Some(Timestamp::from_u64(u64::from_le_bytes(value)))
            }
            None => None,
        };
        Ok(Self {
            oracle: Oracle::recover(limit, now, settings)?,
            recovered: limit.unwrap_or(Timestamp::ZERO),
            lease: Lease::Unlimited,
            event: None,
        })
    }

    /// It has a master: nothing is handed out before that answers, nor when the lease is over that it has granted.
    pub fn obey_master(&mut self) {
        self.lease = Lease::NotYet;
    }

    /// The master has accepted the heartbeat that was sent at `sent_ms` on the monotonic clock: the lease lasts for so long from then
    /// on. At the first response the oracle goes on `above` what others have seen. At each, it goes on above the timestamps at or below
    /// which no transaction may commit: a master whose state was rebuilt may take it for another one than that which has granted all along.
    pub fn accepted(&mut self, sent_ms: u64, lease_ms: u64, bounds: Bounds) {
        let until = sent_ms.saturating_add(lease_ms);
        self.oracle.raise(bounds.commits_above);
        self.lease = match self.lease {
            Lease::Unlimited => Lease::Unlimited,
            Lease::NotYet => {
                self.oracle.raise(bounds.above);
                Lease::Until(until)
            }
            Lease::Until(known) => Lease::Until(known.max(until)),
        };
    }

    /// How far it is.
    pub fn reached(&mut self, now: Now) -> OracleProgress {
        self.observe(now);
        OracleProgress {
            time: self
                .oracle
                .next()
                .max(Timestamp::from_millis(self.oracle.time_ms())),
            limit: match self.lease {
                Lease::NotYet => self.recovered,
                Lease::Unlimited | Lease::Until(_) => self.oracle.durable(),
            },
        }
    }

    /// Why the master doesn't let it hand anything out, if so.
    pub fn not_leased(&self, now: Now) -> Option<&'static str> {
        match self.lease {
            Lease::Unlimited => None,
            Lease::NotYet => Some("the master has not accepted this oracle yet"),
            Lease::Until(until) if now.mono_ms < until || mutants::on(Mutant::LeaseIgnored) => None,
            Lease::Until(_) => {
                Some("the master has answered no heartbeat for longer than the oracle's lease")
            }
        }
    }

    /// Answers a request for `count` timestamps.
    ///
    /// # Errors
    /// [`CountRefused`] if that is 0 or more than [`COUNT_MAX`].
    pub fn request(&mut self, now: Now, count: u32) -> Result<Answer, CountRefused> {
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(CountRefused { count });
        }
        self.observe(now);
        if self.not_leased(now).is_some() {
            return Ok(Answer::Wait);
        }
        Ok(match self.oracle.grant(count) {
            Some(granted) => Answer::Granted(granted),
            None => Answer::Wait,
        })
    }

    /// What to store now, if anything. [`Self::stored`] or [`Self::not_stored`] must follow.
    pub fn store(&mut self, now: Now) -> Option<Store> {
        self.observe(now);
        self.oracle.extend().map(|limit| Store { limit })
    }

    /// That is durable.
    pub fn stored(&mut self, now: Now, store: Store) {
        self.observe(now);
        self.oracle.limit_durable(store.limit);
    }

    /// That may or may not be durable.
    pub fn not_stored(&mut self) {
        self.oracle.limit_failed();
    }

    /// How the oracle is now.
    pub fn facts(&mut self, now: Now) -> Facts {
        self.observe(now);
        Facts::of(&self.oracle, now)
    }

    /// What happened to the clock since the last call.
    pub fn take_event(&mut self) -> Option<ClockEvent> {
        self.event.take()
    }

    fn observe(&mut self, now: Now) {
        if let Some(event) = self.oracle.observe(now) {
            self.event = Some(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now {
        unix_ms: 1_700_000_000_000,
        mono_ms: 5,
    };

    #[test]
    fn answers_once_a_limit_is_stored_and_goes_on_from_it() {
        let mut core = Core::recover(None, NOW, Settings::default()).unwrap();
        assert_eq!(core.request(NOW, 1), Ok(Answer::Wait));
        let store = core.store(NOW).unwrap();
        core.stored(NOW, store);
        let Ok(Answer::Granted(granted)) = core.request(NOW, COUNT_MAX) else {
            panic!("nothing granted");
        };
        assert_eq!(granted.count, COUNT_MAX);

        let stored = Some(&store.value()[..]);
        let mut core = Core::recover(stored, NOW, Settings::default()).unwrap();
        core.store(NOW)
            .map(|store| core.stored(NOW, store))
            .unwrap();
        let Ok(Answer::Granted(again)) = core.request(NOW, 1) else {
            panic!("nothing granted");
        };
        assert!(again.first.as_u64() >= granted.first.as_u64() + u64::from(COUNT_MAX));
    }

    #[test]
    fn a_limit_that_was_not_stored_is_tried_again() {
        let mut core = Core::recover(None, NOW, Settings::default()).unwrap();
        assert!(core.store(NOW).is_some());
        assert_eq!(core.store(NOW), None);
        core.not_stored();
        assert_eq!(core.request(NOW, 1), Ok(Answer::Wait));
        assert!(core.store(NOW).is_some());
    }

    #[test]
    fn tells_how_the_limit_and_the_clock_are() {
        let mut core = Core::recover(None, NOW, Settings::default()).unwrap();
        let store = core.store(NOW).unwrap();
        core.stored(NOW, store);
        let usual = Facts {
            remaining_ms: 3_000,
            offset_ms: 0,
            followed: true,
        };
        assert_eq!(core.facts(NOW), usual);
        let set_back = Now {
            unix_ms: NOW.unix_ms - 5_000,
            mono_ms: NOW.mono_ms,
        };
        assert_eq!(core.facts(set_back).offset_ms, -5_000);
        let jumped = Now {
            unix_ms: NOW.unix_ms + 60_000,
            mono_ms: NOW.mono_ms + 1_000,
        };
        let facts = core.facts(jumped);
        assert_eq!((facts.offset_ms, facts.followed), (59_000, false));
        assert_eq!(facts.remaining_ms, 2_000);
        assert!(matches!(
            core.take_event(),
            Some(ClockEvent::JumpedAhead { .. })
        ));
    }

    fn at(mono_ms: u64) -> Now {
        Now {
            unix_ms: NOW.unix_ms + mono_ms,
            mono_ms: NOW.mono_ms + mono_ms,
        }
    }

    fn seen_up_to(above: Timestamp) -> Bounds {
        Bounds {
            above,
            ..Bounds::default()
        }
    }

    /// Another oracle is accepted when the lease of this one is over.
    #[test]
    fn grants_what_its_master_lets_it_and_no_longer() {
        let mut core = Core::recover(None, NOW, Settings::default()).unwrap();
        core.obey_master();
        let extended = |core: &mut Core, ms| {
            if let Some(store) = core.store(at(ms)) {
                core.stored(at(ms), store);
            }
            core.request(at(ms), 1)
        };
        assert_eq!(extended(&mut core, 0), Ok(Answer::Wait));
        assert!(core.not_leased(NOW).unwrap().contains("not accepted"));
        // Of what was sent at the start: that the answer took long doesn't lengthen it.
        let seen = Timestamp::from_millis(NOW.unix_ms + 20_000);
        core.accepted(NOW.mono_ms, 10_000, seen_up_to(seen));
        let Ok(Answer::Granted(granted)) = extended(&mut core, 4_000) else {
            panic!("nothing granted");
        };
        assert!(granted.first > seen);
        assert!(matches!(extended(&mut core, 9_999), Ok(Answer::Granted(_))));
        assert_eq!(extended(&mut core, 10_000), Ok(Answer::Wait));
        assert!(
            core.not_leased(at(10_000))
                .unwrap()
                .contains("answered no heartbeat")
        );
        // An answer that is late shortens nothing.
        // What is seen later raises nothing.
        let later = Timestamp::from_millis(NOW.unix_ms + 90_000);
        core.accepted(NOW.mono_ms + 9_000, 10_000, seen_up_to(later));
        core.accepted(NOW.mono_ms + 1_000, 10_000, Bounds::default());
        let Ok(Answer::Granted(granted)) = extended(&mut core, 18_999) else {
            panic!("nothing granted");
        };
        assert!(granted.first < later);
        assert_eq!(extended(&mut core, 19_000), Ok(Answer::Wait));
    }

    /// A master whose state was rebuilt takes it for another one, and allows no commit below what that may have granted.
    #[test]
    fn goes_on_above_what_nobody_may_commit_at() {
        let mut core = Core::recover(None, NOW, Settings::default()).unwrap();
        core.obey_master();
        let mut above = Timestamp::ZERO;
        for ahead_ms in [0, 90_000] {
            above = above.max(Timestamp::from_millis(NOW.unix_ms + ahead_ms));
            let bounds = Bounds {
                commits_above: above,
                ..Bounds::default()
            };
            core.accepted(NOW.mono_ms, 10_000, bounds);
            core.store(NOW)
                .map(|store| core.stored(NOW, store))
                .unwrap();
            let Ok(Answer::Granted(granted)) = core.request(NOW, 1) else {
                panic!("nothing granted");
            };
            assert!(granted.first > above);
        }
    }

    #[test]
    fn refuses_counts_that_make_no_sense() {
        let mut core = Core::recover(None, NOW, Settings::default()).unwrap();
        for count in [0, COUNT_MAX + 1, u32::MAX] {
            let refused = core.request(NOW, count).unwrap_err();
            assert!(refused.to_string().contains("1 to 65536"), "{refused}");
        }
    }

    #[test]
    fn a_value_that_is_no_limit_is_refused() {
        let error = Core::recover(Some(b"abc"), NOW, Settings::default()).unwrap_err();
        assert_eq!(error, StartError::NoLimit { bytes: 3 });
    }
}
