//! The oracle's part of an election: limits of timestamps, which the leader stores with its leadership.

use super::core::{Election, ElectionEvent, NextStep};
use super::mutants::{self, ElectionMutant};
use super::{
    Command, Member, Peer, PromiseCall, PromiseRecord, PromiseRequest, PromiseRound,
    RequestOutcome, RoleKind, StoredLeadership, SwapResult, Timing,
};
use crate::oracle::{ClockEvent, Now, Oracle, RecoverError, Settings};
use crate::types::Timestamp;

/// The oracle of one term of this replica.
pub(super) struct TermOracle {
    pub(super) oracle: Oracle,
    /// A limit that is to be made durable.
    pending: Option<Timestamp>,
}

impl TermOracle {
    /// A successor goes on from this limit or above. A pending one above it goes into the next swap.
    fn settle(&mut self, durable: Timestamp) {
        if let Some(pending) = self.pending.take_if(|pending| *pending <= durable) {
            self.oracle.limit_durable(pending);
        }
    }

    /// The limit to make durable next.
    fn newest_limit(&mut self) -> Timestamp {
        if self.pending.is_none() {
            self.pending = self.oracle.extend();
        }
        self.pending.unwrap_or(self.oracle.durable())
    }
}

/// One of the oracles of a register: an [`Election`], and what the leader of each term may grant.
pub struct OracleReplica {
    pub(super) election: Election,
    settings: Settings,
    /// Of a candidate and of a leader.
    pub(super) term: Option<Box<TermOracle>>,
    /// The limit that a planned end stores.
    next: Timestamp,
    /// No term grants anything at or below.
    floor: Timestamp,
    pub(super) blocked: Option<RecoverError>,
    pub(super) clock_event: Option<ClockEvent>,
    /// A mutant's memory of an earlier term.
    #[cfg(any(test, feature = "mutants"))]
    retained: Option<Oracle>,
}

impl std::fmt::Debug for OracleReplica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OracleReplica")
            .field("election", &self.election)
            .finish_non_exhaustive()
    }
}

impl OracleReplica {
    /// A replica that has seen nothing of the register yet; see [`Election::new`].
    pub fn new(member: Member, dead: Vec<u64>, timing: Timing, settings: Settings) -> Self {
        Self {
            election: Election::new(member, dead, timing),
            settings,
            term: None,
            next: Timestamp::ZERO,
            floor: Timestamp::ZERO,
            blocked: None,
            clock_event: None,
            #[cfg(any(test, feature = "mutants"))]
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
        let step = self.election.next_step(now_ms);
        if self.role() == RoleKind::Standby {
            self.term = None;
        }
        let limit = match step? {
            NextStep::Load => return Some(self.election.load(now_ms)),
            NextStep::TakeOver => return self.stand(now),
            NextStep::StandAgain => self.term.as_ref()?.pending?,
            NextStep::Lead { renews } => {
                self.observe(now);
                let term = self.term.as_mut()?;
                let limit = term.newest_limit();
                if term.pending.is_none() && !renews {
                    return None;
                }
                limit
            }
            NextStep::HandOver => self.next,
        };
        self.election.swap(now_ms, limit)
    }

    /// The load under way has ended: with what the register holds, or without an answer.
    pub fn loaded(&mut self, now: Now, result: Result<Option<StoredLeadership>, ()>) {
        let has_led = self.role() == RoleKind::Leader;
        let event = self.election.take_load(now.mono_ms, result);
        self.apply(now, event, has_led);
    }

    /// The swap under way has ended.
    pub fn swapped(&mut self, now: Now, result: SwapResult) {
        let has_led = self.role() == RoleKind::Leader;
        let event = self.election.take_swap(now.mono_ms, result);
        self.apply(now, event, has_led);
    }

    /// Answers a request for `count` timestamps. `now` was read after the request was: so it was outstanding when the right
    /// was checked, and a pause at any later moment is harmless.
    pub fn request(&mut self, now: Now, count: u32) -> RequestOutcome {
        let leads = self.election.leads(now.mono_ms) || mutants::on(ElectionMutant::RightNeverEnds);
        match self.role() {
            RoleKind::Leader if leads => {
                self.observe(now);
                let granted = self.term.as_mut().and_then(|term| term.oracle.grant(count));
                granted.map_or(RequestOutcome::Wait, RequestOutcome::Granted)
            }
            RoleKind::Leader => RequestOutcome::NotLeader { leader: None },
            #[cfg(any(test, feature = "mutants"))]
            RoleKind::HandingOver if mutants::on(ElectionMutant::GrantsDuringHandOver) => {
                let retained = self.retained.as_mut();
                let granted = retained.and_then(|oracle| oracle.grant(count));
                granted.map_or(RequestOutcome::Wait, RequestOutcome::Granted)
            }
            _ => RequestOutcome::NotLeader {
                leader: self.election.named_leader(now.mono_ms),
            },
        }
    }

    /// Takes up what this replica's folder keeps: [`Election::restore`].
    pub fn restore(&mut self, now: Now, record: PromiseRecord) {
        self.election.restore(now.mono_ms, record);
    }

    /// The record that this replica's folder is to keep.
    pub fn record(&self) -> PromiseRecord {
        self.election.record()
    }

    /// Another replica asks for a promise: [`Election::promise`].
    pub fn promise(&mut self, now: Now, request: &PromiseRequest) -> Option<PromiseRecord> {
        self.election.promise(now.mono_ms, request)
    }

    /// The leader has ended: [`Election::leader_has_ended`].
    pub fn leader_has_ended(&mut self) {
        self.election.leader_has_ended();
    }

    /// A standby has introduced itself: [`Election::introduced`].
    pub fn introduced(&mut self, now: Now, peer: &Peer) {
        self.election.introduced(now.mono_ms, peer);
    }

    /// Begins a round of promises, which keep the newest limit: [`Election::ask_promises`].
    pub fn ask_promises(&mut self, now: Now) -> Option<PromiseRound> {
        if self.role() != RoleKind::Leader {
            return None;
        }
        self.observe(now);
        let limit = self.term.as_mut()?.newest_limit();
        self.election.ask_promises(now.mono_ms, limit)
    }

    /// A peer has promised, and its folder has the limit.
    pub fn promised(&mut self, now: Now, call: &PromiseCall) {
        self.election.promised(now.mono_ms, call);
        self.settle_kept(now);
    }

    /// Whether this replica has taken over, and grants when its folder keeps that: a request may wait for it.
    pub fn begins(&self) -> bool {
        self.role() == RoleKind::Leader && !self.election.is_term_kept()
    }

    /// This replica's own folder has the record of a round.
    pub fn kept(&mut self, now: Now, record: &PromiseRecord) {
        self.election.kept(record);
        self.settle_kept(now);
    }

    fn settle_kept(&mut self, now: Now) {
        self.observe(now);
        let kept = self.election.kept_limit();
        if let Some(term) = &mut self.term
            && self.election.role() == RoleKind::Leader
        {
            term.settle(kept);
        }
    }

    /// Ends this replica's part: it grants nothing from now on. A leader stores that it has none left, so that another
    /// replica takes over at once: go on with [`Self::poll`] until the role is [`RoleKind::Left`].
    pub fn hand_over(&mut self) {
        if self.role() == RoleKind::Leader
            && let Some(term) = self.term.take()
        {
            self.retain(&term.oracle);
            let next = term.oracle.next();
            self.next = if mutants::on(ElectionMutant::HandOverBelowNext) {
                Timestamp::from_millis(next.physical_ms().saturating_sub(100))
            } else {
                next
            };
        }
        self.term = None;
        self.election.hand_over();
    }

    /// Begins a takeover: from the register's limit, and with nothing else.
    fn stand(&mut self, now: Now) -> Option<Command> {
        let stored = self.election.stored();
        let limit = stored.map(|stored| self.election.takeover_limit(&stored.value));
        // The first value of a register may have none.
        let limit = limit.filter(|limit| *limit > Timestamp::ZERO);
        let mut oracle = match Oracle::recover(limit, now, self.settings) {
            Ok(oracle) => oracle,
            Err(error) => {
                self.blocked = Some(error);
                self.election.put_off(now.mono_ms);
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
        let mut term = Box::new(TermOracle {
            oracle,
            pending: Some(limit),
        });
        let command = self.election.stand(now.mono_ms, limit);
        if mutants::on(ElectionMutant::TakeoverWithoutSwap) {
            term.settle(limit);
        }
        self.term = Some(term);
        command
    }

    fn apply(&mut self, now: Now, event: Option<ElectionEvent>, has_led: bool) {
        match event {
            None => {}
            Some(ElectionEvent::Stored(limit)) => {
                self.observe(now);
                if let Some(term) = &mut self.term {
                    term.settle(limit);
                }
            }
            // The next swap carries the pending limit.
            Some(ElectionEvent::NotStored) if self.role() == RoleKind::Leader => {}
            Some(ElectionEvent::NotStored) => self.term = None,
            Some(ElectionEvent::Deposed) => {
                if let Some(term) = self.term.take().filter(|_| has_led) {
                    self.retain(&term.oracle);
                }
            }
        }
    }

    pub(super) fn observe(&mut self, now: Now) {
        let event = self.term.as_mut().and_then(|term| term.oracle.observe(now));
        self.clock_event = event.or(self.clock_event);
    }

    #[cfg(any(test, feature = "mutants"))]
    fn retain(&mut self, oracle: &Oracle) {
        self.retained = Some(oracle.clone());
    }

    #[cfg(not(any(test, feature = "mutants")))]
    fn retain(&self, _: &Oracle) {}

    #[cfg(any(test, feature = "mutants"))]
    fn reused(&mut self, fresh: Oracle) -> Oracle {
        match self.retained.take() {
            Some(mut oracle) if mutants::on(ElectionMutant::OracleReused) => {
                oracle.limit_failed();
                oracle
            }
            _ => fresh,
        }
    }

    #[cfg(not(any(test, feature = "mutants")))]
    fn reused(&self, fresh: Oracle) -> Oracle {
        fresh
    }
}
