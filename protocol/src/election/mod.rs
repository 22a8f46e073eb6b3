//! Which of several oracles grants timestamps, and from where on: an election over one register.
//!
//! A state machine of one replica. It must not know what a register, a clock or a request is: the time comes in as an
//! argument, loads and swaps go out as commands, and their results come back. The rules and the reasons are in
//! `docs/design/failover.md`:
//!
//! - The leader swaps at least once a second. Its right to grant ends two seconds after it sent the last swap that
//!   succeeded. A standby takes over three seconds after it saw the version change last.
//! - A takeover swaps a new term and a higher limit first. The new leader grants from the old limit on, with an
//!   [`Oracle`] that is made for this term: no term sees the memory of another one.
//! - Every limit is a swap, so that the late write of a leader that was replaced is a conflict.
//! - A swap whose outcome is unknown is neither done nor failed. A load decides, or a further swap with the same
//!   expected version.
//! - A leader that ends in order stops granting, and stores exactly the next timestamp and no holder.

#[cfg(test)]
mod model;
mod mutants;
mod observe;
mod steps;
mod value;

use crate::oracle::{ClockEvent, Now, Oracle, RecoverError, Settings};
use crate::types::Timestamp;
use mutants::ElectionMutant;

pub use steps::{Command, RequestOutcome, RoleKind, StoredLeadership, SwapResult, Timing};
pub use value::{DecodeError, Leadership, Member, SwapName};

enum Role {
    Standby,
    Candidate(Box<Term>),
    Leader {
        term: Box<Term>,
        /// Nothing is granted from then on.
        right_ends_ms: u64,
        /// When the last swap was sent that succeeded.
        renewed_ms: u64,
    },
    HandingOver {
        term: u64,
        next: Timestamp,
    },
    Left,
}

/// One term of this replica, and what it may grant in it.
struct Term {
    number: u64,
    oracle: Oracle,
    /// The limit in swaps that are not decided.
    pending: Option<Timestamp>,
}

impl Term {
    /// A swap with this limit is the register's value.
    fn settle(&mut self, limit: Timestamp) {
        match self.pending.take() {
            Some(pending) if pending == limit => self.oracle.limit_durable(limit),
            Some(_) => self.oracle.limit_failed(),
            None => {}
        }
    }

    /// No swap with the pending limit happens any more.
    fn give_up_pending(&mut self) {
        if self.pending.take().is_some() {
            self.oracle.limit_failed();
        }
    }
}

/// What the register held last.
struct Known {
    stored: Option<StoredLeadership>,
    /// When this version was first seen, by this replica's clock.
    seen_ms: u64,
}

/// The command under way.
enum InFlight {
    Load { sent_ms: u64 },
    Swap { sent_ms: u64, value: Leadership },
}

/// One of the oracles of a register.
pub struct OracleReplica {
    member: Member,
    /// Earlier starts that are surely dead.
    dead: Vec<u64>,
    timing: Timing,
    settings: Settings,
    role: Role,
    known: Option<Known>,
    in_flight: Option<InFlight>,
    /// Of the swaps with the known version whose outcome is unknown, when the first one was sent.
    undecided_since_ms: Option<u64>,
    sequence: u64,
    /// A load has to come before anything else.
    must_load: bool,
    next_load_ms: u64,
    not_before_ms: u64,
    /// No term grants anything at or below.
    floor: Timestamp,
    blocked: Option<RecoverError>,
    clock_event: Option<ClockEvent>,
    /// What a mutant keeps of an earlier term.
    #[cfg(test)]
    retained: Option<Oracle>,
}

impl std::fmt::Debug for OracleReplica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OracleReplica")
            .field("member", &self.member)
            .field("role", &self.role())
            .finish_non_exhaustive()
    }
}

impl OracleReplica {
    /// A replica that has seen nothing of the register yet. `dead` names earlier starts that surely answer nobody any
    /// more, such as those that held the same folder's lock: it doesn't wait for these.
    pub fn new(member: Member, dead: Vec<u64>, timing: Timing, settings: Settings) -> Self {
        Self {
            member,
            dead,
            timing,
            settings,
            role: Role::Standby,
            known: None,
            in_flight: None,
            undecided_since_ms: None,
            sequence: 0,
            must_load: true,
            next_load_ms: 0,
            not_before_ms: 0,
            floor: Timestamp::ZERO,
            blocked: None,
            clock_event: None,
            #[cfg(test)]
            retained: None,
        }
    }

    /// Terms that begin from now on grant nothing at or below this timestamp: somebody has seen it.
    pub fn raise(&mut self, floor: Timestamp) {
        self.floor = self.floor.max(floor);
    }

    /// The next command, if one is due and none is under way.
    pub fn poll(&mut self, now: Now) -> Option<Command> {
        let now_ms = now.mono_ms;
        if self.in_flight.is_some() || now_ms < self.not_before_ms {
            return None;
        }
        if self.must_load && !matches!(self.role, Role::Left) {
            return Some(self.load(now_ms));
        }
        match &mut self.role {
            Role::Standby => {
                if self.may_take_over(now_ms) {
                    return self.stand(now);
                }
                (now_ms >= self.next_load_ms).then(|| self.load(now_ms))
            }
            Role::Candidate(term) => {
                let (number, limit) = (term.number, term.pending?);
                Some(self.swap(now_ms, number, limit, true))
            }
            Role::Leader {
                term, renewed_ms, ..
            } => {
                let renews = now_ms >= renewed_ms.saturating_add(self.timing.renew_ms);
                if let Some(event) = term.oracle.observe(now) {
                    self.clock_event = Some(event);
                }
                if term.pending.is_none() {
                    term.pending = term.oracle.extend();
                }
                if term.pending.is_none() && !renews {
                    return None;
                }
                let limit = term.pending.unwrap_or(term.oracle.durable());
                let number = term.number;
                Some(self.swap(now_ms, number, limit, true))
            }
            Role::HandingOver { term, next } => {
                let (number, next) = (*term, *next);
                Some(self.swap(now_ms, number, next, false))
            }
            Role::Left => None,
        }
    }

    /// The load under way has ended: with what the register holds, or without an answer.
    pub fn loaded(&mut self, now: Now, result: Result<Option<StoredLeadership>, ()>) {
        let sent_ms = match self.in_flight.take() {
            Some(InFlight::Load { sent_ms }) => sent_ms,
            Some(InFlight::Swap { .. }) | None => now.mono_ms,
        };
        let Ok(found) = result else {
            self.not_before_ms = now.mono_ms.saturating_add(self.timing.retry_ms);
            return;
        };
        self.must_load = false;
        self.next_load_ms = now.mono_ms.saturating_add(self.timing.poll_ms);
        let version = found.as_ref().map(|found| found.version);
        let known = self.known.as_ref();
        if known.is_some() && known.and_then(Known::version) == version {
            // A swap that is undecided may still happen. Waiting decides nothing, but there is no hurry.
            if self.undecided_since_ms.is_some() {
                self.not_before_ms = now.mono_ms.saturating_add(self.timing.retry_ms);
            }
            return;
        }
        let first_seen_ms = known.map_or(now.mono_ms, |known| known.seen_ms);
        // No swap with the version before can happen from here on.
        let undecided_since_ms = self.undecided_since_ms.take();
        match &found {
            Some(found) if found.value.swap.incarnation == self.member.incarnation => {
                self.found_own(now, &found.value, undecided_since_ms);
            }
            _ => self.found_other(),
        }
        let seen_ms = if mutants::on(ElectionMutant::SeenFromSending) {
            sent_ms
        } else if mutants::on(ElectionMutant::SeenNotReset) {
            first_seen_ms
        } else {
            now.mono_ms
        };
        self.known = Some(Known {
            stored: found,
            seen_ms,
        });
    }

    /// The swap under way has ended.
    pub fn swapped(&mut self, now: Now, result: SwapResult) {
        let Some(InFlight::Swap { sent_ms, value }) = self.in_flight.take() else {
            return;
        };
        let version = self.known.as_ref().and_then(Known::version);
        let result = match result {
            SwapResult::Unknown if mutants::on(ElectionMutant::UnknownIsDone) => {
                SwapResult::Done(version.map_or(1, |version| version + 1))
            }
            result => result,
        };
        match result {
            SwapResult::Done(version) => {
                self.undecided_since_ms = None;
                let counts_from_ms = if mutants::on(ElectionMutant::RightFromAnswer) {
                    now.mono_ms
                } else {
                    sent_ms
                };
                self.succeeded(now, &value, counts_from_ms);
                self.known = Some(Known {
                    stored: Some(StoredLeadership { version, value }),
                    seen_ms: now.mono_ms,
                });
            }
            SwapResult::Conflict => {
                self.must_load = true;
                // Another leader, or a swap of this one that was undecided: a load shows which. Until then it grants
                // nothing.
                if let Role::Leader { right_ends_ms, .. } = &mut self.role
                    && !mutants::on(ElectionMutant::ConflictRetried)
                {
                    *right_ends_ms = now.mono_ms.min(*right_ends_ms);
                }
            }
            SwapResult::NotDone => {
                self.not_before_ms = now.mono_ms.saturating_add(self.timing.retry_ms);
                if self.undecided_since_ms.is_none() {
                    self.not_done();
                }
            }
            SwapResult::Unknown => {
                self.undecided_since_ms.get_or_insert(sent_ms);
                self.must_load = true;
            }
        }
    }

    /// The command under way was given up on: its outcome is unknown.
    pub fn abandon(&mut self, now: Now) {
        match &self.in_flight {
            Some(InFlight::Load { .. }) => self.loaded(now, Err(())),
            Some(InFlight::Swap { .. }) => self.swapped(now, SwapResult::Unknown),
            None => {}
        }
        self.not_before_ms = now.mono_ms;
    }

    /// Answers a request for `count` timestamps. `now` was read after the request was: so it was outstanding when the right
    /// was checked, and a pause at any later moment is harmless.
    pub fn request(&mut self, now: Now, count: u32) -> RequestOutcome {
        match &mut self.role {
            Role::Leader {
                term,
                right_ends_ms,
                ..
            } => {
                if now.mono_ms >= *right_ends_ms && !mutants::on(ElectionMutant::RightNeverEnds) {
                    return RequestOutcome::NotLeader { leader: None };
                }
                if let Some(event) = term.oracle.observe(now) {
                    self.clock_event = Some(event);
                }
                match term.oracle.grant(count) {
                    Some(granted) => RequestOutcome::Granted(granted),
                    None => RequestOutcome::Wait,
                }
            }
            #[cfg(test)]
            Role::HandingOver { .. } if mutants::on(ElectionMutant::GrantsDuringHandOver) => {
                match self
                    .retained
                    .as_mut()
                    .and_then(|oracle| oracle.grant(count))
                {
                    Some(granted) => RequestOutcome::Granted(granted),
                    None => RequestOutcome::Wait,
                }
            }
            _ => RequestOutcome::NotLeader {
                leader: self.leader().map(|leader| leader.address.clone()),
            },
        }
    }

    /// Ends this replica's part: it grants nothing from now on. A leader stores that it has none left, so that another
    /// replica takes over at once: go on with [`Self::poll`] until the role is [`RoleKind::Left`].
    pub fn hand_over(&mut self) {
        self.role = match std::mem::replace(&mut self.role, Role::Left) {
            Role::Leader { term, .. } => {
                self.retain(&term.oracle);
                let next = term.oracle.next();
                Role::HandingOver {
                    term: term.number,
                    next: if mutants::on(ElectionMutant::HandOverBelowNext) {
                        Timestamp::from_millis(next.physical_ms().saturating_sub(100))
                    } else {
                        next
                    },
                }
            }
            Role::HandingOver { term, next } => Role::HandingOver { term, next },
            Role::Standby | Role::Candidate(_) | Role::Left => Role::Left,
        };
    }

    fn stored(&self) -> Option<&StoredLeadership> {
        self.known.as_ref()?.stored.as_ref()
    }

    fn load(&mut self, sent_ms: u64) -> Command {
        self.in_flight = Some(InFlight::Load { sent_ms });
        Command::Load
    }

    fn swap(&mut self, sent_ms: u64, term: u64, limit: Timestamp, holds: bool) -> Command {
        self.sequence += 1;
        let register = self.register().unwrap_or(self.member.incarnation);
        let value = Leadership {
            term,
            limit,
            register,
            holder: holds.then(|| self.member.clone()),
            swap: SwapName {
                incarnation: self.member.incarnation,
                sequence: self.sequence,
            },
        };
        self.in_flight = Some(InFlight::Swap {
            sent_ms,
            value: value.clone(),
        });
        Command::Swap {
            expected: self.known.as_ref().and_then(Known::version),
            value,
        }
    }

    fn may_take_over(&self, now_ms: u64) -> bool {
        let Some(known) = &self.known else {
            return false;
        };
        let holder = known.stored.as_ref().and_then(|s| s.value.holder.as_ref());
        holder.is_none_or(|holder| {
            // Its own start grants nothing while it isn't the leader.
            let is_dead = holder.incarnation == self.member.incarnation
                || self.dead.contains(&holder.incarnation);
            is_dead || now_ms >= known.seen_ms.saturating_add(self.timing.takeover_ms)
        })
    }

    /// Begins a takeover: from the register's limit, and with nothing else.
    fn stand(&mut self, now: Now) -> Option<Command> {
        let stored = self.stored();
        let number = stored.map_or(1, |stored| stored.value.term.saturating_add(1));
        let limit = stored.map(|stored| stored.value.limit);
        // The first value of a register may have none.
        let limit = limit.filter(|limit| *limit > Timestamp::ZERO);
        let mut oracle = match Oracle::recover(limit, now, self.settings) {
            Ok(oracle) => oracle,
            Err(error) => {
                self.blocked = Some(error);
                self.must_load = true;
                self.not_before_ms = now.mono_ms.saturating_add(self.timing.renew_ms);
                return None;
            }
        };
        self.blocked = None;
        oracle = self.reused(oracle);
        oracle.raise(self.floor);
        if let Some(event) = oracle.observe(now) {
            self.clock_event = Some(event);
        }
        let limit = oracle.extend()?;
        let mut term = Box::new(Term {
            number,
            oracle,
            pending: Some(limit),
        });
        if mutants::on(ElectionMutant::TakeoverWithoutSwap) {
            term.settle(limit);
            self.role = Role::Leader {
                term,
                right_ends_ms: now.mono_ms + self.timing.right_ms,
                renewed_ms: now.mono_ms,
            };
            return None;
        }
        self.role = Role::Candidate(term);
        Some(self.swap(now.mono_ms, number, limit, true))
    }

    /// A swap of this replica, sent then, is the register's value.
    fn succeeded(&mut self, now: Now, value: &Leadership, sent_ms: u64) {
        let right_ms = sent_ms.saturating_add(self.timing.right_ms);
        self.role = match std::mem::replace(&mut self.role, Role::Left) {
            Role::Candidate(mut term) => {
                term.oracle.observe(now);
                term.settle(value.limit);
                Role::Leader {
                    term,
                    right_ends_ms: right_ms,
                    renewed_ms: sent_ms,
                }
            }
            Role::Leader {
                mut term,
                right_ends_ms,
                renewed_ms,
            } => {
                if let Some(event) = term.oracle.observe(now) {
                    self.clock_event = Some(event);
                }
                term.settle(value.limit);
                Role::Leader {
                    term,
                    right_ends_ms: right_ends_ms.max(right_ms),
                    renewed_ms: renewed_ms.max(sent_ms),
                }
            }
            Role::HandingOver { .. } if value.holder.is_none() => Role::Left,
            role @ (Role::HandingOver { .. } | Role::Standby | Role::Left) => role,
        };
    }

    /// A load found a value of this start, under a version that is new to it.
    fn found_own(&mut self, now: Now, value: &Leadership, undecided_since_ms: Option<u64>) {
        let is_known = self
            .stored()
            .is_some_and(|stored| stored.value.swap == value.swap);
        match undecided_since_ms {
            // Which of the undecided swaps it was doesn't matter: none was sent before the first.
            Some(sent_ms) if !is_known => self.succeeded(now, value, sent_ms),
            // Somebody else has changed the object around the value: the next swap renews the right.
            _ => {
                if let Role::Leader {
                    term, renewed_ms, ..
                } = &mut self.role
                {
                    term.give_up_pending();
                    *renewed_ms = 0;
                }
            }
        }
    }

    /// A load found a value of another start.
    fn found_other(&mut self) {
        if let Role::Leader { .. } = &self.role
            && mutants::on(ElectionMutant::ConflictRetried)
        {
            return;
        }
        self.role = match std::mem::replace(&mut self.role, Role::Standby) {
            Role::Leader { term, .. } => {
                self.retain(&term.oracle);
                Role::Standby
            }
            Role::Standby | Role::Candidate(_) => Role::Standby,
            Role::HandingOver { .. } | Role::Left => Role::Left,
        };
    }

    /// No swap of this replica is on its way.
    fn not_done(&mut self) {
        match &mut self.role {
            Role::Candidate(_) => {
                self.role = Role::Standby;
                self.must_load = true;
            }
            Role::Leader { term, .. } => term.give_up_pending(),
            Role::Standby | Role::HandingOver { .. } | Role::Left => {}
        }
    }

    #[cfg(test)]
    fn retain(&mut self, oracle: &Oracle) {
        self.retained = Some(oracle.clone());
    }

    #[cfg(not(test))]
    fn retain(&self, _: &Oracle) {}

    #[cfg(test)]
    fn reused(&mut self, fresh: Oracle) -> Oracle {
        match self.retained.take() {
            Some(mut oracle) if mutants::on(ElectionMutant::OracleReused) => {
                oracle.limit_failed();
                oracle
            }
            _ => fresh,
        }
    }

    #[cfg(not(test))]
    fn reused(&self, fresh: Oracle) -> Oracle {
        fresh
    }
}

impl Known {
    fn version(&self) -> Option<u64> {
        self.stored.as_ref().map(|stored| stored.version)
    }
}
