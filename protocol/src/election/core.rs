//! The election itself: who leads, in which term, and until when. It must not know what a leader does.

use super::mutants::{self, ElectionMutant};
use super::promises::{Promises, inherited};
use super::{
    Command, Leadership, Member, NamedLeader, Peer, RoleKind, StoredLeadership, SwapName,
    SwapResult, Timing,
};
use crate::types::Timestamp;

pub(super) enum Role {
    Standby,
    Candidate {
        term: u64,
    },
    Leader {
        term: u64,
        /// It must not act as the leader from then on, unless by promises.
        right_ends_ms: u64,
        /// When the last swap was sent that succeeded.
        renewed_ms: u64,
    },
    HandingOver {
        term: u64,
    },
    Left,
}

/// The last known content of the register.
struct Known {
    stored: Option<StoredLeadership>,
    /// When this value was first seen, by this replica's clock.
    seen_ms: u64,
}

impl Known {
    fn version(&self) -> Option<u64> {
        self.stored.as_ref().map(|stored| stored.version)
    }
}

/// The command under way.
pub(super) enum InFlight {
    /// `must`: nothing else is done before one is answered.
    Load {
        sent_ms: u64,
        must: bool,
    },
    Swap {
        sent_ms: u64,
        value: Leadership,
    },
}

/// The next step of a replica.
pub(super) enum NextStep {
    /// Load.
    Load,
    /// Begin a term: [`Election::stand`].
    TakeOver,
    /// Swap the takeover's value again.
    StandAgain,
    /// Swap, if there is something to store or the right is to be renewed.
    Lead { renews: bool },
    /// Swap the value of a planned end.
    HandOver,
}

/// The consequence of a result of the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElectionEvent {
    /// A swap of this replica with this limit is the register's value.
    Stored(Timestamp),
    /// No swap of this replica happens any more.
    NotStored,
    /// The register's value is of another replica.
    Deposed,
}

/// One replica of an election over a register: the oracle's [`OracleReplica`](super::OracleReplica) adds limits, and the
/// master uses it as it is.
pub struct Election {
    pub(super) member: Member,
    /// Earlier starts that surely don't act any more.
    dead: Vec<u64>,
    pub(super) timing: Timing,
    pub(super) role: Role,
    known: Option<Known>,
    pub(super) in_flight: Option<InFlight>,
    /// Of the swaps with the known version whose outcome is unknown, when the first one was sent.
    pub(super) undecided_since_ms: Option<u64>,
    /// The promisers that all of these swaps store.
    pub(super) undecided_promisers: Vec<Peer>,
    pub(super) promises: Promises,
    /// The leader's swaps list the promisers of the known value, also if others promise now.
    pub(super) are_promisers_fixed: bool,
    /// A swap was a conflict: until a load has shown whose value it is, this replica doesn't lead.
    pub(super) is_contested: bool,
    sequence: u64,
    /// A load has to come before anything else.
    must_load: bool,
    next_load_ms: u64,
    not_before_ms: u64,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election")
            .field("member", &self.member)
            .field("role", &self.role())
            .finish_non_exhaustive()
    }
}

impl Election {
    /// A replica that has seen nothing of the register yet. `dead` names earlier starts that surely answer nobody any
    /// more, such as those that held the same folder's lock: it doesn't wait for these.
    pub fn new(member: Member, dead: Vec<u64>, timing: Timing) -> Self {
        let promises = Promises::new(member.replica);
        Self {
            member,
            dead,
            timing,
            role: Role::Standby,
            known: None,
            in_flight: None,
            undecided_since_ms: None,
            undecided_promisers: Vec::new(),
            promises,
            are_promisers_fixed: false,
            is_contested: false,
            sequence: 0,
            must_load: true,
            next_load_ms: 0,
            not_before_ms: 0,
        }
    }

    /// The next command of a replica that stores nothing but its leadership, if one is due and none is under way.
    pub fn poll(&mut self, now_ms: u64) -> Option<Command> {
        match self.next_step(now_ms)? {
            NextStep::Load => Some(self.load(now_ms)),
            NextStep::TakeOver => self.stand(now_ms, Timestamp::ZERO),
            NextStep::Lead { renews: false } => None,
            NextStep::StandAgain | NextStep::Lead { renews: true } | NextStep::HandOver => {
                self.swap(now_ms, Timestamp::ZERO)
            }
        }
    }

    /// The load under way has ended: with what the register holds, or without an answer.
    pub fn loaded(&mut self, now_ms: u64, result: Result<Option<StoredLeadership>, ()>) {
        let _ = self.take_load(now_ms, result);
    }

    /// The swap under way has ended.
    pub fn swapped(&mut self, now_ms: u64, result: SwapResult) {
        let _ = self.take_swap(now_ms, result);
    }

    /// The leader has ended, by its own account: a standby loads at once, and not only when its next load is due.
    pub fn leader_has_ended(&mut self) {
        if matches!(self.role, Role::Standby) {
            self.must_load = true;
        }
    }

    /// Ends this replica's part: it doesn't lead from now on. A leader stores that it has none left, so that another
    /// replica takes over at once: go on with [`Self::poll`] until the role is [`RoleKind::Left`]. One whose folder doesn't have its term
    /// stores nothing: its next start would promise to the leader of before, which the others don't wait for once the list is gone.
    pub fn hand_over(&mut self) {
        let is_kept = self.is_term_kept() || mutants::on(ElectionMutant::HandedOverUnkept);
        self.role = match self.role {
            Role::Leader { .. } if !is_kept => Role::Left,
            Role::Leader { term, .. } | Role::HandingOver { term } => Role::HandingOver { term },
            Role::Standby | Role::Candidate { .. } | Role::Left => Role::Left,
        };
    }

    /// Ends this replica's part, and stores nothing: another replica takes over when the last right and the promises have ended.
    pub(super) fn leave(&mut self) {
        self.role = Role::Left;
    }

    /// Its role.
    pub fn role(&self) -> RoleKind {
        match &self.role {
            Role::Standby => RoleKind::Standby,
            Role::Candidate { .. } => RoleKind::Candidate,
            Role::Leader { .. } => RoleKind::Leader,
            Role::HandingOver { .. } => RoleKind::HandingOver,
            Role::Left => RoleKind::Left,
        }
    }

    /// This start of the replica.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Whether a load has ended, so that it knows something of the register.
    pub fn has_loaded(&self) -> bool {
        self.known.is_some()
    }

    /// Whether a leader may act, as far as its folder is concerned. One whose folder doesn't take its term renews nothing, and is a
    /// standby when its right ends: otherwise nobody would lead for as long as its disk hangs.
    pub fn is_term_kept(&self) -> bool {
        self.promises.is_term_kept()
    }

    /// Whether it may act as the leader now.
    pub fn leads(&self, now_ms: u64) -> bool {
        self.promises.is_term_kept() && (self.is_renewed(now_ms) || self.leads_by_promises(now_ms))
    }

    /// Whether it leads by promises alone: the register has not answered in time.
    pub fn leads_by_promises(&self, now_ms: u64) -> bool {
        let is_promised = |until_ms| now_ms < until_ms;
        let is_by_promises = self.promised_until_ms().is_some_and(is_promised);
        self.promises.is_term_kept() && !self.is_renewed(now_ms) && is_by_promises
    }

    /// Whether the right by its swaps goes on.
    fn is_renewed(&self, now_ms: u64) -> bool {
        matches!(&self.role, Role::Leader { right_ends_ms, .. } if now_ms < *right_ends_ms)
    }

    /// [`Self::leader`] for others, who may not reach it.
    pub fn named_leader(&self, now_ms: u64) -> Option<NamedLeader> {
        let address = self.leader()?.address.clone();
        let silent_ms = now_ms.saturating_sub(self.known.as_ref()?.seen_ms);
        Some(NamedLeader { address, silent_ms })
    }

    /// Whether another replica leads, and has renewed its right so lately, in the register or by a promise of this one, that
    /// this one would not take over.
    pub fn has_live_leader(&self, now_ms: u64) -> bool {
        let is_fresh =
            |known: &Known| now_ms.saturating_sub(known.seen_ms) < self.timing.takeover_ms;
        let is_live = self.known.as_ref().is_some_and(is_fresh) || self.is_bound(now_ms);
        self.leader().is_some() && is_live
    }

    pub(super) fn stored(&self) -> Option<&StoredLeadership> {
        self.known.as_ref()?.stored.as_ref()
    }

    /// The next command, if one is due and none is under way.
    pub(super) fn next_step(&mut self, now_ms: u64) -> Option<NextStep> {
        self.give_up_unkept(now_ms);
        if self.in_flight.is_some() || now_ms < self.not_before_ms {
            return None;
        }
        if self.must_load && !matches!(self.role, Role::Left) {
            return Some(NextStep::Load);
        }
        match &self.role {
            Role::Standby if self.may_take_over(now_ms) => Some(NextStep::TakeOver),
            Role::Standby => (now_ms >= self.next_load_ms).then_some(NextStep::Load),
            Role::Candidate { .. } => Some(NextStep::StandAgain),
            Role::Leader { .. } if self.makes_room() => None,
            Role::Leader { renewed_ms, .. } => Some(NextStep::Lead {
                renews: now_ms >= renewed_ms.saturating_add(self.timing.renew_ms),
            }),
            Role::HandingOver { .. } => Some(NextStep::HandOver),
            Role::Left => None,
        }
    }

    fn give_up_unkept(&mut self, now_ms: u64) {
        if matches!(self.role, Role::Leader { .. }) && self.makes_room() && !self.is_renewed(now_ms)
        {
            self.role = Role::Standby;
            self.must_load = true;
        }
    }

    /// Whether a leader renews nothing, because its folder doesn't have its term.
    fn makes_room(&self) -> bool {
        !self.is_term_kept() && !mutants::on(ElectionMutant::UnkeptTermHeld)
    }

    pub(super) fn load(&mut self, sent_ms: u64) -> Command {
        // What makes another one necessary meanwhile isn't met by this one.
        let must = std::mem::take(&mut self.must_load);
        self.in_flight = Some(InFlight::Load { sent_ms, must });
        Command::Load
    }

    /// Begins a takeover with this limit.
    pub(super) fn stand(&mut self, now_ms: u64, limit: Timestamp) -> Option<Command> {
        let term = self.next_term();
        if mutants::on(ElectionMutant::TakeoverWithoutSwap) {
            self.role = Role::Leader {
                term,
                right_ends_ms: now_ms + self.timing.right_ms,
                renewed_ms: now_ms,
            };
            return None;
        }
        self.role = Role::Candidate { term };
        self.swap(now_ms, limit)
    }

    /// A takeover isn't possible now: it is tried again after a load.
    pub(super) fn put_off(&mut self, now_ms: u64) {
        self.must_load = true;
        self.not_before_ms = now_ms.saturating_add(self.timing.renew_ms);
    }

    /// Stores this limit, in the term of the role; none without a term.
    pub(super) fn swap(&mut self, sent_ms: u64, limit: Timestamp) -> Option<Command> {
        let (term, holds) = match self.role {
            Role::Candidate { term } | Role::Leader { term, .. } => (term, true),
            Role::HandingOver { term } => (term, false),
            Role::Standby | Role::Left => return None,
        };
        // The leader goes by the promisers of the known value and of all undecided swaps: these don't differ.
        let promisers = match (&self.role, self.stored()) {
            (Role::Leader { .. }, _) if self.undecided_since_ms.is_some() => {
                self.undecided_promisers.clone()
            }
            (Role::Leader { .. }, Some(stored)) if self.are_promisers_fixed => {
                stored.value.promisers.clone()
            }
            (Role::Leader { .. }, _) => self.promises.promisers(sent_ms),
            (Role::Candidate { .. }, Some(stored)) => inherited(&stored.value, self.member.replica),
            // One that hands over acts no more: any replica may take over.
            _ => Vec::new(),
        };
        self.sequence += 1;
        let register = self.stored().map(|stored| stored.value.register);
        let value = Leadership {
            term,
            limit,
            register: register.unwrap_or(self.member.incarnation),
            holder: holds.then(|| self.member.clone()),
            promisers,
            swap: SwapName {
                incarnation: self.member.incarnation,
                sequence: self.sequence,
            },
        };
        self.in_flight = Some(InFlight::Swap {
            sent_ms,
            value: value.clone(),
        });
        Some(Command::Swap {
            expected: self.known.as_ref().and_then(Known::version),
            value,
        })
    }

    /// [`Self::loaded`], and what that has changed.
    pub(super) fn take_load(
        &mut self,
        now_ms: u64,
        result: Result<Option<StoredLeadership>, ()>,
    ) -> Option<ElectionEvent> {
        let (sent_ms, must) = match self.in_flight.take() {
            Some(InFlight::Load { sent_ms, must }) => (sent_ms, must),
            Some(InFlight::Swap { .. }) | None => (now_ms, false),
        };
        let Ok(found) = result else {
            self.must_load |= must;
            self.not_before_ms = now_ms.saturating_add(self.timing.retry_ms);
            return None;
        };
        self.is_contested = false;
        self.next_load_ms = now_ms.saturating_add(self.timing.poll_ms);
        let version = found.as_ref().map(|found| found.version);
        let known = self.known.as_ref();
        if known.is_some() && known.and_then(Known::version) == version {
            // A swap that is undecided may still happen. Waiting decides nothing, but there is no hurry.
            if self.undecided_since_ms.is_some() {
                self.not_before_ms = now_ms.saturating_add(self.timing.retry_ms);
            }
            return None;
        }
        let first_seen_ms = known.map_or(now_ms, |known| known.seen_ms);
        // Somebody else has changed the object around the value, which renews nobody's right.
        let is_same = found.is_some()
            && known.and_then(|known| known.stored.as_ref().map(|it| &it.value))
                == found.as_ref().map(|it| &it.value);
        // No swap with the version before can happen from here on.
        let undecided_since_ms = self.undecided_since_ms.take();
        let event = match &found {
            Some(found) if found.value.swap.incarnation == self.member.incarnation => {
                self.found_own(&found.value, undecided_since_ms)
            }
            _ => self.found_other(),
        };
        let seen_ms = if mutants::on(ElectionMutant::SeenFromSending) {
            sent_ms
        } else if is_same || mutants::on(ElectionMutant::SeenNotReset) {
            first_seen_ms
        } else {
            now_ms
        };
        self.known = Some(Known {
            stored: found,
            seen_ms,
        });
        event
    }

    /// [`Self::swapped`], and what that has changed.
    pub(super) fn take_swap(&mut self, now_ms: u64, result: SwapResult) -> Option<ElectionEvent> {
        let Some(InFlight::Swap { sent_ms, value }) = self.in_flight.take() else {
            return None;
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
                    now_ms
                } else {
                    sent_ms
                };
                self.succeeded(&value, counts_from_ms);
                let limit = value.limit;
                self.known = Some(Known {
                    stored: Some(StoredLeadership { version, value }),
                    seen_ms: now_ms,
                });
                Some(ElectionEvent::Stored(limit))
            }
            SwapResult::Conflict => {
                self.must_load = true;
                // Another leader, or a swap of this one that was undecided: a load shows which. Until then it doesn't
                // lead.
                if let Role::Leader { right_ends_ms, .. } = &mut self.role
                    && !mutants::on(ElectionMutant::ConflictRetried)
                {
                    *right_ends_ms = now_ms.min(*right_ends_ms);
                    self.is_contested = true;
                }
                None
            }
            SwapResult::NotDone => {
                self.not_before_ms = now_ms.saturating_add(self.timing.retry_ms);
                if self.undecided_since_ms.is_some() {
                    return None;
                }
                if let Role::Candidate { .. } = self.role {
                    self.role = Role::Standby;
                    self.must_load = true;
                }
                Some(ElectionEvent::NotStored)
            }
            SwapResult::Unknown => {
                if self.undecided_since_ms.is_none() {
                    self.undecided_since_ms = Some(sent_ms);
                    self.undecided_promisers = value.promisers;
                }
                self.must_load = true;
                None
            }
        }
    }

    /// Above the register's, and above what this folder knows: a register that was restored, or begun anew, is behind that, and
    /// no folder keeps the record of a term below its own.
    fn next_term(&self) -> u64 {
        let stored = self.stored().map_or(0, |stored| stored.value.term);
        stored.max(self.promises.record.term).saturating_add(1)
    }

    fn may_take_over(&self, now_ms: u64) -> bool {
        let Some(known) = &self.known else {
            return false;
        };
        let Some(value) = known.stored.as_ref().map(|stored| &stored.value) else {
            // One that was lost: its leader may go on by promises.
            return !self.is_bound(now_ms);
        };
        // A planned end also ends what was promised to the leader; an earlier one, as of a register that was begun anew or restored, does not.
        let Some(holder) = &value.holder else {
            let is_of_leader = value.term >= self.promises.record.term
                || mutants::on(ElectionMutant::EarlierEndFrees);
            return is_of_leader || !self.is_bound(now_ms);
        };
        if !self.is_listed(value) || self.is_bound(now_ms) {
            return false;
        }
        // Its folder doesn't take the term of before. It wouldn't take the next one, either.
        if !value.promisers.is_empty() && !self.is_term_kept() {
            return false;
        }
        // Its own start doesn't act while it isn't the leader.
        let is_dead = holder.incarnation == self.member.incarnation
            || self.dead.contains(&holder.incarnation);
        is_dead || now_ms >= known.seen_ms.saturating_add(self.timing.takeover_ms)
    }

    /// A swap of this replica, sent then, is the register's value.
    fn succeeded(&mut self, value: &Leadership, sent_ms: u64) {
        let right_ms = sent_ms.saturating_add(self.timing.right_ms);
        if let Role::Candidate { term } = self.role {
            let before = self.stored().map(|stored| &stored.value);
            let own = before.filter(|before| {
                let holder = before.holder.as_ref();
                holder.is_some_and(|holder| holder.incarnation == self.member.incarnation)
            });
            let needed_term = match own {
                _ if value.promisers.is_empty() => 0,
                Some(own) => own.term,
                None => term,
            };
            self.promises.begin_term(term, value.register, needed_term);
        }
        self.role = match self.role {
            Role::Candidate { term } => Role::Leader {
                term,
                right_ends_ms: right_ms,
                renewed_ms: sent_ms,
            },
            Role::Leader {
                term,
                right_ends_ms,
                renewed_ms,
            } => Role::Leader {
                term,
                right_ends_ms: right_ends_ms.max(right_ms),
                renewed_ms: renewed_ms.max(sent_ms),
            },
            Role::HandingOver { .. } if value.holder.is_none() => Role::Left,
            Role::HandingOver { term } => Role::HandingOver { term },
            Role::Standby => Role::Standby,
            Role::Left => Role::Left,
        };
    }

    /// A load found a value of this start, under a version that is new to it.
    fn found_own(
        &mut self,
        value: &Leadership,
        undecided_since_ms: Option<u64>,
    ) -> Option<ElectionEvent> {
        let is_known = self
            .stored()
            .is_some_and(|stored| stored.value.swap == value.swap);
        match (undecided_since_ms, &mut self.role) {
            // Which of the undecided swaps it was doesn't matter: none was sent before the first.
            (Some(sent_ms), _) if !is_known => {
                self.succeeded(value, sent_ms);
                Some(ElectionEvent::Stored(value.limit))
            }
            // Somebody else has changed the object around the value: the next swap renews the right.
            (_, Role::Leader { renewed_ms, .. }) => {
                *renewed_ms = 0;
                Some(ElectionEvent::NotStored)
            }
            _ => None,
        }
    }

    /// A load found a value of another start.
    fn found_other(&mut self) -> Option<ElectionEvent> {
        if let Role::Leader { .. } = &self.role
            && mutants::on(ElectionMutant::ConflictRetried)
        {
            return None;
        }
        self.role = match self.role {
            Role::Leader { .. } | Role::Standby | Role::Candidate { .. } => Role::Standby,
            Role::HandingOver { .. } | Role::Left => Role::Left,
        };
        Some(ElectionEvent::Deposed)
    }
}
