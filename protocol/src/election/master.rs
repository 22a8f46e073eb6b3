//! The master's part of an election: which of its states are durable, and from which one a takeover goes on.
//!
//! The state lies in a register of its own. While that does not take a write, a state is durable when the leader's folder
//! and those of all replicas that could take over have a copy of it. `docs/design/failover.md` has the argument for safety.

use std::collections::BTreeMap;

use super::core::Election;
use super::mutants::{self, ElectionMutant};
use super::{
    Command, Member, NamedLeader, Peer, PromiseCall, PromiseRecord, PromiseRequest, PromiseRound,
    RoleKind, StoredLeadership, SwapResult, Timing,
};
use crate::types::Timestamp;

/// Which of all states of a register one is: the later one has the higher term, and in its term the higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateNumber {
    /// Of the leader that made it; 0: the first state, and that of a master that is alone.
    pub term: u64,
    /// How many changes its term had before it.
    pub number: u64,
}

/// The request of a leader to a replica: to promise, and to keep a copy of a state in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// The promise. Its term is the state's.
    pub promise: PromiseRequest,
    /// [`StateNumber::number`].
    pub number: u64,
}

impl CopyRequest {
    /// Which state it is.
    pub fn state(&self) -> StateNumber {
        StateNumber {
            term: self.promise.term,
            number: self.number,
        }
    }
}

/// The decision of a folder about a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDecision {
    /// It keeps the copy in place of its own.
    Keep,
    /// It has this state or a later one of the same leader.
    HasIt,
    /// It has the copy of a later leader.
    Outdated,
}

/// The place of the state from which a takeover goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSource {
    /// In the register.
    Register,
    /// In the own folder.
    Copy,
}

impl StateNumber {
    /// The decision about the copy of this state, of a folder that has `own`, of the same register.
    pub fn decide_copy(self, own: Option<Self>) -> CopyDecision {
        match own {
            Some(own) if own.term > self.term && !mutants::on(ElectionMutant::LateCopyTaken) => {
                CopyDecision::Outdated
            }
            Some(own) if own.term == self.term && own.number >= self.number => CopyDecision::HasIt,
            _ => CopyDecision::Keep,
        }
    }

    /// From which state a takeover goes on: the later one of the register's and the one in its own folder, of the same register.
    /// No copy was made before the register had a state: if it has none, that was lost, and a copy is no match for it.
    pub fn take_over(register: Option<Self>, copy: Option<Self>) -> StateSource {
        if register.is_none() {
            return StateSource::Register;
        }
        let is_later = if mutants::on(ElectionMutant::TermOfStateIgnored) {
            copy.map(|it| it.number) > register.map(|it| it.number)
        } else {
            copy > register
        };
        if is_later && !mutants::on(ElectionMutant::OwnCopyIgnored) {
            StateSource::Copy
        } else {
            StateSource::Register
        }
    }
}

/// The states of one term of this replica.
#[derive(Debug)]
struct TermStates {
    term: u64,
    /// The replicas that may take over could have states that the register doesn't have, until it has the first one of this term.
    is_inherited: bool,
    /// The highest number in the register.
    stored: Option<u64>,
    /// The highest number that was shown because folders have it.
    shown: u64,
    /// The highest number in this replica's own folder.
    own_copy: Option<u64>,
    /// And in those of others.
    copies: BTreeMap<u64, u64>,
}

impl TermStates {
    fn is_ahead(&self) -> bool {
        match self.stored {
            None => self.is_inherited,
            Some(stored) => self.shown > stored,
        }
    }
}

/// One of the masters of a register: an [`Election`], and which states of its term are durable.
#[derive(Debug)]
pub struct MasterReplica {
    election: Election,
    states: Option<TermStates>,
}

impl MasterReplica {
    /// A replica that has seen nothing of the register yet; see [`Election::new`].
    pub fn new(member: Member, dead: Vec<u64>, timing: Timing) -> Self {
        Self {
            election: Election::new(member, dead, timing),
            states: None,
        }
    }

    /// The election, for those who watch it.
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// The next command, if one is due and none is under way.
    pub fn poll(&mut self, now_ms: u64) -> Option<Command> {
        self.election.are_promisers_fixed =
            self.is_ahead() && !mutants::on(ElectionMutant::ListChangesWhileAhead);
        let command = self.election.poll(now_ms);
        self.follow_term();
        command
    }

    /// The load under way has ended: with what the register holds, or without an answer.
    pub fn loaded(&mut self, now_ms: u64, result: Result<Option<StoredLeadership>, ()>) {
        self.election.loaded(now_ms, result);
        self.follow_term();
    }

    /// The swap under way has ended.
    pub fn swapped(&mut self, now_ms: u64, result: SwapResult) {
        self.election.swapped(now_ms, result);
        self.follow_term();
    }

    /// Ends this replica's part: it doesn't lead from now on. A leader stores that it has none left, so that another
    /// replica takes over at once: go on with [`Self::poll`] until the role is [`RoleKind::Left`]. One that is
    /// [ahead](Self::is_ahead) stores nothing: only a listed replica may take over.
    pub fn hand_over(&mut self) {
        if self.is_ahead() && !mutants::on(ElectionMutant::HandOverWhileAhead) {
            self.election.leave();
        } else {
            self.election.hand_over();
        }
    }

    /// Whether this leader may act now.
    pub fn leads(&self, now_ms: u64) -> bool {
        self.election.leads(now_ms)
    }

    /// The term of the register's value, as far as this replica knows; 0 for none.
    pub fn term(&self) -> u64 {
        self.election.term()
    }

    /// Its role.
    pub fn role(&self) -> RoleKind {
        self.election.role()
    }

    /// Which register this is; none before one has a value.
    pub fn register(&self) -> Option<u64> {
        self.election.register()
    }

    /// The replica that leads, for others, if that is another one.
    pub fn named_leader(&self, now_ms: u64) -> Option<NamedLeader> {
        self.election.named_leader(now_ms)
    }

    /// Whether it could go on now without the register: all replicas that could take over have promised.
    pub fn is_promised(&self, now_ms: u64) -> bool {
        let until_ms = self.election.promised_until_ms();
        until_ms.is_some_and(|until_ms| now_ms < until_ms)
    }

    /// Takes up what this replica's folder keeps: [`Election::restore`].
    pub fn restore(&mut self, now_ms: u64, record: PromiseRecord) {
        self.election.restore(now_ms, record);
    }

    /// The record that this replica's folder is to keep.
    pub fn record(&self) -> PromiseRecord {
        self.election.record()
    }

    /// Another replica asks for a promise: [`Election::promise`].
    pub fn promise(&mut self, now_ms: u64, request: &PromiseRequest) -> Option<PromiseRecord> {
        self.election.promise(now_ms, request)
    }

    /// Another replica asks to keep the copy of a state. As [`Self::promise`], but the copy is to be made durable too, by
    /// [`StateNumber::decide_copy`].
    pub fn keep_copy(&mut self, now_ms: u64, request: &CopyRequest) -> Option<PromiseRecord> {
        let promised = self.election.promise(now_ms, &request.promise);
        if mutants::on(ElectionMutant::LateCopyTaken) {
            return Some(promised.unwrap_or_else(|| self.record()));
        }
        promised
    }

    /// The leader has ended: [`Election::leader_has_ended`].
    pub fn leader_has_ended(&mut self) {
        self.election.leader_has_ended();
    }

    /// A standby has introduced itself: [`Election::introduced`].
    pub fn introduced(&mut self, now_ms: u64, peer: &Peer) {
        self.election.introduced(now_ms, peer);
    }

    /// Begins a round of promises: [`Election::ask_promises`].
    pub fn ask_promises(&mut self, now_ms: u64) -> Option<PromiseRound> {
        self.election.ask_promises(now_ms, Timestamp::ZERO)
    }

    /// A peer has promised what this call has asked of it.
    pub fn promised(&mut self, now_ms: u64, call: &PromiseCall) {
        self.election.promised(now_ms, call);
    }

    /// This replica's own folder has the record of a round.
    pub fn kept(&mut self, record: &PromiseRecord) {
        self.election.kept(record);
    }

    /// Whether a new leader may swap the state in this term. Its folder keeps the term: no later start of it promises to an
    /// earlier leader, whose states would be older than this one by their term, and newer in truth.
    pub fn may_store_state(&self, now_ms: u64) -> bool {
        self.leads(now_ms)
            || self.role() == RoleKind::Leader && mutants::on(ElectionMutant::StateBeforeTermKept)
    }

    /// The register has the state of this number, of this term.
    pub fn stored(&mut self, state: StateNumber) {
        if let Some(states) = self.states_of(state.term) {
            states.stored = states.stored.max(Some(state.number));
        }
    }

    /// Whether folders may have a state that was shown, and that the register doesn't have.
    pub fn is_ahead(&self) -> bool {
        self.states.as_ref().is_some_and(TermStates::is_ahead)
    }

    /// The replicas that are to keep a copy of this leader's state: all that could take over. None: copies don't count now.
    pub fn ask_copies(&self, now_ms: u64) -> Option<Vec<PromiseCall>> {
        let states = self.states.as_ref()?;
        if states.stored.is_none() && !mutants::on(ElectionMutant::CopiesBeforeFirstState) {
            return None;
        }
        let listed = self.election.listed()?;
        let mut calls = self.election.promise_calls(now_ms, Timestamp::ZERO);
        calls.retain(|call| listed.iter().any(|peer| peer.replica == call.request.to));
        Some(calls)
    }

    /// A peer's folder has a copy of the state of this number.
    pub fn copied(&mut self, now_ms: u64, call: &PromiseCall, number: u64) {
        self.election.promised(now_ms, call);
        let request = &call.request;
        if request.incarnation != self.election.member().incarnation {
            return;
        }
        if let Some(states) = self.states_of(request.term) {
            let copy = states.copies.entry(request.to).or_default();
            *copy = number.max(*copy);
        }
    }

    /// This replica's own folder has a copy of this state.
    pub fn copied_own(&mut self, state: StateNumber) {
        if let Some(states) = self.states_of(state.term) {
            states.own_copy = states.own_copy.max(Some(state.number));
        }
    }

    /// Whether this state may be shown because folders have it. From then on this leader is [ahead](Self::is_ahead), until
    /// the register has it too.
    pub fn show_copied(&mut self, now_ms: u64, state: StateNumber) -> bool {
        if !self.leads(now_ms) || !self.is_copied(state) {
            return false;
        }
        let Some(states) = self.states_of(state.term) else {
            return false;
        };
        states.shown = states.shown.max(state.number);
        true
    }

    fn is_copied(&self, state: StateNumber) -> bool {
        let Some(states) = self.states.as_ref().filter(|it| it.term == state.term) else {
            return false;
        };
        let is_begun =
            states.stored.is_some() || mutants::on(ElectionMutant::CopiesBeforeFirstState);
        if !is_begun || states.own_copy < Some(state.number) {
            return false;
        }
        if mutants::on(ElectionMutant::StateInOneFolder) {
            return true;
        }
        let has_it = |peer: &&Peer| states.copies.get(&peer.replica) >= Some(&state.number);
        let listed = self.election.listed();
        listed.is_some_and(|listed| listed.iter().all(has_it))
    }

    fn states_of(&mut self, term: u64) -> Option<&mut TermStates> {
        self.states.as_mut().filter(|states| states.term == term)
    }

    /// A term of this replica has begun, or ended.
    fn follow_term(&mut self) {
        match self.role() {
            RoleKind::Leader => {
                let term = self.term();
                if self.states.as_ref().is_none_or(|it| it.term != term) {
                    let stored = self.election.stored();
                    self.states = Some(TermStates {
                        term,
                        is_inherited: stored.is_some_and(|it| !it.value.promisers.is_empty()),
                        stored: None,
                        shown: 0,
                        own_copy: None,
                        copies: BTreeMap::new(),
                    });
                }
            }
            RoleKind::HandingOver => {}
            RoleKind::Standby | RoleKind::Candidate | RoleKind::Left => self.states = None,
        }
    }
}
