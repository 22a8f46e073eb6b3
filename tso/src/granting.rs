//! What grants timestamps in this process: an oracle alone, or one of several over a register.

use percolator_protocol::election::{NamedLeader, OracleReplica, RequestOutcome, RoleKind};
use percolator_protocol::oracle::{ClockEvent, Granted, Now};
use percolator_protocol::types::Timestamp;

use crate::core::{Answer, Bounds, COUNT_MAX, Core, CountRefused, Facts, OracleProgress, Store};

/// What grants timestamps.
#[derive(Debug)]
pub enum Granting {
    /// One oracle, whose limit is in its folder.
    Alone(Core),
    /// One of the oracles that share a register.
    Replica(Box<OracleReplica>),
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Timestamps.
    Granted(Granted),
    /// Ask again when a limit is durable, which is urgent now.
    Wait,
    /// Ask again when the term that has begun is in this oracle's own folder: nothing makes that faster.
    Begins,
    /// Another oracle leads: this one, if that is known.
    NotLeader(Option<NamedLeader>),
    /// This oracle leads, and its right has ended.
    RightEnded,
}

/// What the right of a leader rests on; of any other oracle all is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Right {
    /// All that could take over promise not to.
    pub(crate) is_promised: bool,
    /// It rests on that alone.
    pub(crate) is_by_promises: bool,
    /// Since the last swap that succeeded was sent.
    pub(crate) register_age_ms: u64,
}

impl Granting {
    /// Answers a request for so many timestamps. The clock was read after the request was.
    ///
    /// # Errors
    /// [`CountRefused`].
    pub fn request(&mut self, now: Now, count: u32) -> Result<Reply, CountRefused> {
        match self {
            Self::Alone(core) => Ok(match core.request(now, count)? {
                Answer::Granted(granted) => Reply::Granted(granted),
                Answer::Wait => Reply::Wait,
            }),
            Self::Replica(_) if !(1..=COUNT_MAX).contains(&count) => Err(CountRefused { count }),
            Self::Replica(replica) => Ok(match replica.request(now, count) {
                RequestOutcome::Granted(granted) => Reply::Granted(granted),
                RequestOutcome::Wait => Reply::Wait,
                RequestOutcome::NotLeader { .. } if replica.begins() => Reply::Begins,
                RequestOutcome::NotLeader { .. } if replica.role() == RoleKind::Leader => {
                    Reply::RightEnded
                }
                RequestOutcome::NotLeader { leader } => Reply::NotLeader(leader),
            }),
        }
    }

    /// A limit to store in the folder; a replica stores its limits in the register.
    pub fn store(&mut self, now: Now) -> Option<Store> {
        match self {
            Self::Alone(core) => core.store(now),
            Self::Replica(_) => None,
        }
    }

    /// That is durable.
    pub fn stored(&mut self, now: Now, store: Store) {
        if let Self::Alone(core) = self {
            core.stored(now, store);
        }
    }

    /// That may not be durable.
    pub fn not_stored(&mut self) {
        if let Self::Alone(core) = self {
            core.not_stored();
        }
    }

    /// This part of the election; none if it is alone.
    pub fn replica(&mut self) -> Option<&mut OracleReplica> {
        match self {
            Self::Alone(_) => None,
            Self::Replica(replica) => Some(replica),
        }
    }

    /// From now on the master decides whether an oracle that is alone grants.
    pub fn obey_master(&mut self) {
        // The register decides who of its oracles grants. No lease of the master may stand in the way of a takeover.
        if let Self::Alone(core) = self {
            core.obey_master();
        }
    }

    /// The master has accepted a heartbeat that was sent then: see [`Core::accepted`].
    pub(crate) fn accepted(&mut self, sent_ms: u64, lease_ms: u64, bounds: Bounds) {
        match self {
            Self::Alone(core) => core.accepted(sent_ms, lease_ms, bounds),
            Self::Replica(replica) => replica.raise(bounds.above),
        }
    }

    /// How far it is. A standby has no time, and reports the register's limit.
    pub fn reached(&mut self, now: Now) -> OracleProgress {
        match self {
            Self::Alone(core) => core.reached(now),
            Self::Replica(replica) => {
                let leads = replica.leads(now);
                let limit = replica.limit();
                let time = replica.oracle(now).filter(|_| leads).map(|oracle| {
                    let time = Timestamp::from_millis(oracle.time_ms());
                    oracle.next().max(time)
                });
                OracleProgress {
                    time: time.unwrap_or(Timestamp::ZERO),
                    limit,
                }
            }
        }
    }

    /// Why nothing is granted, if so.
    pub fn not_granting(&self, now: Now) -> Option<String> {
        match self {
            Self::Alone(core) => core.not_leased(now).map(str::to_owned),
            // A standby whose leader goes on is as it should be.
            Self::Replica(replica) if replica.leads(now) || replica.has_live_leader(now) => None,
            Self::Replica(replica) => Some(match (replica.blocked(), replica.role()) {
                (Some(error), _) => format!("it can't take over: {error}"),
                (None, RoleKind::Leader) => {
                    "the register has not answered for too long, and not all oracles that could take over promise not to"
                        .to_owned()
                }
                (None, RoleKind::HandingOver | RoleKind::Left) => "it hands over".to_owned(),
                (None, _) if !replica.has_loaded() => "the register was not read yet".to_owned(),
                (None, _) => "no oracle leads".to_owned(),
            }),
        }
    }

    pub(crate) fn right(&mut self, now: Now) -> Right {
        let Some(replica) = self.replica() else {
            return Right::default();
        };
        Right {
            is_promised: replica.is_promised(now),
            is_by_promises: replica.leads_by_promises(now),
            register_age_ms: replica.register_age_ms(now).unwrap_or(0),
        }
    }

    /// How it is, for those who watch it.
    pub fn facts(&mut self, now: Now) -> Facts {
        match self {
            Self::Alone(core) => core.facts(now),
            Self::Replica(replica) => {
                // What the leader has left, by the clock of this one: a standby must not count as out of timestamps.
                let limit_ms = replica.limit().physical_ms();
                let Some(oracle) = replica.oracle(now) else {
                    return Facts {
                        remaining_ms: limit_ms.saturating_sub(now.unix_ms),
                        offset_ms: 0,
                        followed: true,
                    };
                };
                Facts::of(oracle, now)
            }
        }
    }

    /// What happened to the clock since the last call.
    pub fn take_event(&mut self) -> Option<ClockEvent> {
        match self {
            Self::Alone(core) => core.take_event(),
            Self::Replica(replica) => replica.take_clock_event(),
        }
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::election::{
        Command, Leadership, Member, StoredLeadership, SwapName, Timing,
    };
    use percolator_protocol::oracle::Settings;

    use super::*;

    fn member(name: &str, incarnation: u64) -> Member {
        Member {
            name: name.to_owned(),
            address: format!("{name}:7400"),
            incarnation,
            replica: incarnation,
        }
    }

    /// What others have seen is above what the register has, which was lost and made anew.
    #[test]
    fn a_replica_that_takes_over_grants_above_what_others_have_seen() {
        let timing = Timing::default();
        let replica =
            OracleReplica::new(member("tso-0", 1), Vec::new(), timing, Settings::default());
        let mut granting = Granting::Replica(Box::new(replica));
        let bounds = Bounds {
            above: Timestamp::from_millis(50_000),
            commits_above: Timestamp::from_millis(20_000),
        };
        granting.accepted(0, 1_000, bounds);
        let now = Now {
            unix_ms: 10_000,
            mono_ms: 500,
        };
        let replica = granting.replica().expect("a replica");
        let value = (0..100).find_map(|tenths| {
            let mono_ms = now.mono_ms + 100 * tenths;
            let now = Now { mono_ms, ..now };
            match replica.poll(now)? {
                Command::Load => replica.loaded(now, Ok(None)),
                Command::Swap { value, .. } => return Some(value),
            }
            None
        });
        let value = value.expect("it stands");
        assert!(value.limit > bounds.above, "{value:?}");
    }

    /// An alert watches how much is left.
    #[test]
    fn a_standby_shows_what_the_leader_has_left() {
        let timing = Timing::default();
        let mut standby =
            OracleReplica::new(member("tso-1", 2), Vec::new(), timing, Settings::default());
        let now = Now {
            unix_ms: 10_000,
            mono_ms: 500,
        };
        assert_eq!(standby.poll(now), Some(Command::Load));
        let value = Leadership {
            term: 3,
            limit: Timestamp::from_millis(12_500),
            register: 7,
            holder: Some(member("tso-0", 1)),
            promisers: Vec::new(),
            swap: SwapName {
                incarnation: 1,
                sequence: 4,
            },
        };
        standby.loaded(now, Ok(Some(StoredLeadership { version: 9, value })));
        let mut granting = Granting::Replica(Box::new(standby));
        assert_eq!(granting.facts(now).remaining_ms, 2_500);
        assert_eq!(granting.not_granting(now), None);
        // Nobody has stored a new limit.
        let later = Now {
            unix_ms: 13_000,
            mono_ms: 3_400,
        };
        assert_eq!(granting.facts(later).remaining_ms, 0);
        let later = Now {
            mono_ms: 3_500,
            ..later
        };
        assert_eq!(
            granting.not_granting(later).as_deref(),
            Some("no oracle leads")
        );
    }
}
