//! How a leader goes on while its register is away: by promises of all replicas that could take over.
//!
//! The register's value lists these replicas (`promisers`). Each promises again and again not to take over for a while, and
//! makes the leader's limit durable in its folder before. `docs/design/failover.md` has the argument for safety.

use std::collections::{BTreeMap, BTreeSet};

use super::core::{Election, InFlight, Role};
use super::mutants::{self, ElectionMutant};
use super::value::{Leadership, PEERS_MAX, Peer};
use crate::types::Timestamp;

/// A peer that has not reported for so long, and isn't in the register's value, is forgotten.
pub(super) const FORGET_MS: u64 = 30_000;

/// The record in a replica's folder, for every process that runs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromiseRecord {
    /// [`Peer::replica`]: which folder it is.
    pub replica: u64,
    /// [`Leadership::register`], of the register in which it has taken part; 0: in none.
    pub register: u64,
    /// The highest term in which the replica led or promised.
    pub term: u64,
    /// No later term may grant anything below: timestamps up to here may have been granted.
    pub limit: Timestamp,
    /// A promise may be under way: a start that finds this waits until it must have ended.
    pub is_bound: bool,
}

/// The request of a leader to a replica: not to take over for [`Timing::takeover_ms`](super::Timing::takeover_ms), by the
/// replica's own clock, and to keep the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromiseRequest {
    /// [`Leadership::register`].
    pub register: u64,
    /// [`Peer::replica`] of the one that is asked.
    pub to: u64,
    /// The leader's term.
    pub term: u64,
    /// The leader's start.
    pub incarnation: u64,
    /// The limit to keep.
    pub limit: Timestamp,
}

/// A request to be sent to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromiseCall {
    /// The destination.
    pub address: String,
    /// The request.
    pub request: PromiseRequest,
    /// When, on the leader's monotonic clock: the promise counts from here on.
    pub sent_ms: u64,
}

/// One round of a leader's requests for promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromiseRound {
    /// To be made durable in the leader's own folder. [`Election::kept`] follows.
    pub record: PromiseRecord,
    /// To be sent. [`Election::promised`] follows each one that is promised.
    pub calls: Vec<PromiseCall>,
}

/// The state of a replica that a leader asks.
#[derive(Clone, Debug)]
struct PeerState {
    address: String,
    seen_ms: u64,
    /// Of the leader's term; 0 for none.
    promised_until_ms: u64,
    /// The highest limit of the leader's term that its folder has.
    kept: Timestamp,
}

/// A replica's promises, given and received.
#[derive(Debug)]
pub(super) struct Promises {
    /// The record that is or will be durable in the folder.
    pub(super) record: PromiseRecord,
    /// The replica doesn't take over before.
    pub(super) bound_until_ms: u64,
    /// The highest term that the folder surely has.
    kept_term: u64,
    /// As the leader, this replica acts when its folder has this term.
    needed_term: u64,
    /// The limit in this leader's own folder, of its term.
    own_kept: Timestamp,
    peers: BTreeMap<u64, PeerState>,
}

impl Promises {
    pub(super) fn new(replica: u64) -> Self {
        Self {
            record: PromiseRecord {
                replica,
                register: 0,
                term: 0,
                limit: Timestamp::ZERO,
                is_bound: false,
            },
            bound_until_ms: 0,
            kept_term: 0,
            needed_term: 0,
            own_kept: Timestamp::ZERO,
            peers: BTreeMap::new(),
        }
    }

    /// A term of this replica begins in this register: what was promised in an earlier one doesn't count.
    ///
    /// If promises counted in the term before, the folder has to keep the new term before this replica acts. Otherwise a
    /// later start, which can't read the register, could promise to the leader of before, after this one has acted. If this very
    /// start was the leader of before, its folder needs that term alone: a later start refuses all earlier leaders.
    pub(super) fn begin_term(&mut self, term: u64, register: u64, needed_term: u64) {
        self.needed_term = needed_term;
        self.record.term = self.record.term.max(term);
        self.record.register = register;
        self.record.is_bound = false;
        self.own_kept = Timestamp::ZERO;
        for peer in self.peers.values_mut() {
            (peer.promised_until_ms, peer.kept) = (0, Timestamp::ZERO);
        }
    }

    /// Whether a leader may act, as far as its folder is concerned.
    pub(super) fn is_term_kept(&self) -> bool {
        self.kept_term >= self.needed_term || mutants::on(ElectionMutant::TermNotKept)
    }

    /// The replicas that the leader's next value lists: those whose promises hold. A replica that isn't listed can't take over, so that
    /// it needs no promise; if none promises, any may take over.
    pub(super) fn promisers(&self, now_ms: u64) -> Vec<Peer> {
        let holds = |(_, state): &(&u64, &PeerState)| state.promised_until_ms > now_ms;
        let listed = self.peers.iter().filter(holds).take(PEERS_MAX);
        let listed = listed.map(|(replica, state)| Peer {
            replica: *replica,
            address: state.address.clone(),
        });
        listed.collect()
    }

    /// Those of the replicas that were asked for promises.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.peers.values().map(|peer| &*peer.address)
    }

    /// The replicas that have reported since then, and their addresses.
    pub(super) fn seen_since(&self, since_ms: u64) -> impl Iterator<Item = (u64, &str)> {
        let seen = self
            .peers
            .iter()
            .filter(move |(_, peer)| peer.seen_ms >= since_ms);
        seen.map(|(replica, peer)| (*replica, &*peer.address))
    }

    fn add(&mut self, now_ms: u64, peer: &Peer, is_news: bool) {
        if peer.replica == 0 || peer.replica == self.record.replica {
            return;
        }
        let len = self.peers.len();
        match self.peers.get_mut(&peer.replica) {
            Some(state) if is_news => {
                state.seen_ms = now_ms;
                state.address.clone_from(&peer.address);
            }
            None if len < PEERS_MAX => {
                let state = PeerState {
                    address: peer.address.clone(),
                    seen_ms: now_ms,
                    promised_until_ms: 0,
                    kept: Timestamp::ZERO,
                };
                self.peers.insert(peer.replica, state);
            }
            Some(_) | None => {}
        }
    }
}

/// The replicas that may take over from the successor of this value's holder: those that may take over from the holder, and the holder.
pub(super) fn inherited(value: &Leadership, successor: u64) -> Vec<Peer> {
    if value.promisers.is_empty() || mutants::on(ElectionMutant::TakeoverForgetsPromisers) {
        return Vec::new();
    }
    let holder = value.holder.iter().map(|holder| Peer {
        replica: holder.replica,
        address: holder.address.clone(),
    });
    let listed = value.promisers.iter().cloned().chain(holder);
    listed.filter(|peer| peer.replica != successor).collect()
}

impl Election {
    /// Takes up what this replica's folder keeps. To be called before anything else; `record.replica` is that of the member.
    pub fn restore(&mut self, now_ms: u64, record: PromiseRecord) {
        self.promises.record = record;
        self.promises.kept_term = record.term;
        if record.is_bound && !mutants::on(ElectionMutant::PromiseForgotten) {
            self.promises.bound_until_ms = now_ms.saturating_add(self.timing.takeover_ms);
        }
    }

    /// The record that this replica's folder is to keep.
    pub fn record(&self) -> PromiseRecord {
        self.promises.record
    }

    /// Another replica asks for a promise. The record has to be durable before the promise is sent; none: this replica doesn't
    /// promise. It is bound from now on, whether or not the leader receives the promise.
    pub fn promise(&mut self, now_ms: u64, request: &PromiseRequest) -> Option<PromiseRecord> {
        // A swap that is undecided may make it the leader in the middle of its promise.
        let is_free = matches!(self.role, Role::Standby)
            && !matches!(self.in_flight, Some(InFlight::Swap { .. }))
            && self.undecided_since_ms.is_none();
        let is_candidate = matches!(self.role, Role::Candidate { .. })
            && mutants::on(ElectionMutant::PromiseWhileUndecided);
        let record = &self.promises.record;
        if !(is_free || is_candidate) || request.to != record.replica || request.to == 0 {
            return None;
        }
        let is_outdated = self.stored().is_some_and(|stored| {
            let value = &stored.value;
            let holds = |holder: &super::Member| holder.incarnation == request.incarnation;
            value.term > request.term
                || value.term == request.term && !value.holder.as_ref().is_some_and(holds)
        });
        // A start may promise before it has read the register.
        let known = self.stored().map(|stored| stored.value.register);
        let is_of_register = known.unwrap_or(record.register) == request.register;
        if is_outdated || !is_of_register || record.term > request.term {
            return None;
        }
        let record = &mut self.promises.record;
        record.register = request.register;
        record.term = request.term;
        record.limit = record.limit.max(request.limit);
        record.is_bound = true;
        let until_ms = now_ms.saturating_add(self.timing.takeover_ms);
        self.promises.bound_until_ms = self.promises.bound_until_ms.max(until_ms);
        Some(*record)
    }

    /// The leader to which this standby introduces itself, so that it is asked for promises: its address.
    pub fn introduces_to(&self) -> Option<&str> {
        let is_peer = matches!(self.role, Role::Standby) && self.member.replica != 0;
        let leader = self.leader().filter(|_| is_peer)?;
        Some(&leader.address)
    }

    /// The addresses to notify when this replica ends: the leader's, and those of all that it has asked for promises itself.
    pub fn take_leave_of(&self) -> Vec<String> {
        let is_peer = matches!(self.role, Role::Left) && self.member.replica != 0;
        let leader = self.leader().map(|leader| leader.address.as_str());
        let others = leader.into_iter().chain(self.promises.addresses());
        let others: BTreeSet<&str> = others.filter(|_| is_peer).collect();
        others.into_iter().map(str::to_owned).collect()
    }

    /// A standby has introduced itself.
    pub fn introduced(&mut self, now_ms: u64, peer: &Peer) {
        if matches!(self.role, Role::Leader { .. }) {
            self.promises.add(now_ms, peer, true);
        }
    }

    /// Begins a round of promises that keep this limit, which is to come every [`Timing::promise_ms`](super::Timing); none
    /// if this replica doesn't lead, or takes no promises.
    pub fn ask_promises(&mut self, now_ms: u64, limit: Timestamp) -> Option<PromiseRound> {
        let Role::Leader { term, .. } = self.role else {
            return None;
        };
        let register = self.stored()?.value.register;
        if self.member.replica == 0 {
            return None;
        }
        let listed = self.listed().into_iter().flatten();
        let listed: Vec<Peer> = listed.cloned().collect();
        for peer in &listed {
            self.promises.add(now_ms, peer, false);
        }
        let promises = &mut self.promises;
        promises.peers.retain(|replica, state| {
            now_ms < state.seen_ms.saturating_add(FORGET_MS)
                || listed.iter().any(|peer| peer.replica == *replica)
        });
        promises.record.register = register;
        promises.record.term = promises.record.term.max(term);
        promises.record.limit = promises.record.limit.max(limit);
        let record = promises.record;
        Some(PromiseRound {
            calls: self.promise_calls(now_ms, limit),
            record,
        })
    }

    /// The requests of this leader to all known peers: none while its folder doesn't have its term, as a promise would bind them for
    /// nothing.
    pub(super) fn promise_calls(&self, now_ms: u64, limit: Timestamp) -> Vec<PromiseCall> {
        let register = self.stored().map(|stored| stored.value.register);
        let (Role::Leader { term, .. }, Some(register)) = (&self.role, register) else {
            return Vec::new();
        };
        if !self.is_term_kept() {
            return Vec::new();
        }
        let calls = self
            .promises
            .peers
            .iter()
            .map(|(replica, state)| PromiseCall {
                address: state.address.clone(),
                request: PromiseRequest {
                    register,
                    to: *replica,
                    term: *term,
                    incarnation: self.member.incarnation,
                    limit,
                },
                sent_ms: now_ms,
            });
        calls.collect()
    }

    /// A peer has promised what this call has asked of it.
    pub fn promised(&mut self, now_ms: u64, call: &PromiseCall) {
        let request = &call.request;
        let is_of_term = matches!(self.role, Role::Leader { term, .. } if term == request.term)
            && request.incarnation == self.member.incarnation;
        let Some(peer) = self.promises.peers.get_mut(&request.to) else {
            return;
        };
        if !is_of_term {
            return;
        }
        let from_ms = if mutants::on(ElectionMutant::PromiseFromAnswer) {
            now_ms
        } else {
            call.sent_ms
        };
        let until_ms = from_ms.saturating_add(self.timing.right_ms);
        peer.promised_until_ms = peer.promised_until_ms.max(until_ms);
        peer.kept = peer.kept.max(request.limit);
        peer.seen_ms = peer.seen_ms.max(now_ms);
    }

    /// This replica's own folder has the record, of a round or of [a term](Self::is_term_kept) in which it gave up.
    pub fn kept(&mut self, record: &PromiseRecord) {
        self.promises.kept_term = self.promises.kept_term.max(record.term);
        if matches!(self.role, Role::Leader { term, .. } if term == record.term) {
            self.promises.own_kept = self.promises.own_kept.max(record.limit);
        }
    }

    /// Until when this leader may go on by promises; none if there is a replica that could take over and has not promised.
    pub fn promised_until_ms(&self) -> Option<u64> {
        if !matches!(self.role, Role::Leader { .. }) || self.is_contested {
            return None;
        }
        let of_peer = |peer: &Peer| {
            let state = self.promises.peers.get(&peer.replica);
            state.map_or(0, |state| state.promised_until_ms)
        };
        let untils = self.listed()?.into_iter().map(of_peer);
        if mutants::on(ElectionMutant::SomePromises) {
            return untils.max();
        }
        untils.min()
    }

    /// The limit that is durable in this leader's folder and in those of all replicas that could take over.
    pub(super) fn kept_limit(&self) -> Timestamp {
        let own = self.promises.own_kept;
        if mutants::on(ElectionMutant::LimitInOneFolder) {
            return own;
        }
        let of_peer = |peer: &Peer| {
            let state = self.promises.peers.get(&peer.replica);
            state.map_or(Timestamp::ZERO, |state| state.kept)
        };
        let listed = self.listed().into_iter().flatten();
        let kept = listed.map(of_peer).min();
        kept.map_or(Timestamp::ZERO, |kept| kept.min(own))
    }

    /// The limit from which a takeover of this value goes on.
    pub(super) fn takeover_limit(&self, value: &Leadership) -> Timestamp {
        let record = &self.promises.record;
        // A planned end stores exactly the next timestamp of its term: what folders have of that term lies above.
        let is_superseded = value.holder.is_none() && value.term >= record.term;
        if is_superseded || mutants::on(ElectionMutant::OwnFolderIgnored) {
            return value.limit;
        }
        value.limit.max(record.limit)
    }

    /// Whether this replica may take over from this value's holder at all.
    pub(super) fn is_listed(&self, value: &Leadership) -> bool {
        let replica = self.member.replica;
        let is_holder = |holder: &super::Member| holder.replica == replica;
        value.promisers.is_empty()
            || value.promisers.iter().any(|peer| peer.replica == replica)
            || value.holder.as_ref().is_some_and(is_holder)
            || mutants::on(ElectionMutant::UnlistedTakesOver)
    }

    /// Whether a promise of this replica, or of an earlier start in its folder, may still count.
    pub(super) fn is_bound(&self, now_ms: u64) -> bool {
        now_ms < self.promises.bound_until_ms && !mutants::on(ElectionMutant::PromiseBroken)
    }

    /// The replicas of which one could take over, by the register's value or by one that a swap of this leader may have stored
    /// since; none if any replica could.
    pub(super) fn listed(&self) -> Option<Vec<&Peer>> {
        let known = self.stored().map(|stored| &stored.value.promisers);
        let in_flight = match &self.in_flight {
            Some(InFlight::Swap { value, .. }) => Some(&value.promisers),
            Some(InFlight::Load { .. }) | None => None,
        };
        let undecided = self.undecided_since_ms.map(|_| &self.undecided_promisers);
        let possible = [in_flight, undecided]
            .into_iter()
            .flatten()
            .filter(|_| !mutants::on(ElectionMutant::UndecidedPromisersIgnored));
        let mut listed = Vec::new();
        for promisers in known.into_iter().chain(possible) {
            if promisers.is_empty() {
                return None;
            }
            listed.extend(promisers);
        }
        Some(listed)
    }
}
