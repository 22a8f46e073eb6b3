//! The state of an oracle's replica, for metrics and status.

use super::{Election, Member, OracleReplica, RoleKind};
use crate::oracle::{ClockEvent, Now, Oracle, RecoverError};
use crate::types::Timestamp;

impl OracleReplica {
    /// Its role.
    pub fn role(&self) -> RoleKind {
        self.election.role()
    }

    /// Whether a load has ended, so that it knows something of the register.
    pub fn has_loaded(&self) -> bool {
        self.election.has_loaded()
    }

    /// Every granted timestamp is below, as far as this replica knows: the limit of the register's value, or a later one that
    /// folders keep.
    pub fn limit(&self) -> Timestamp {
        let stored = self.election.stored();
        let limit = stored.map_or(Timestamp::ZERO, |stored| stored.value.limit);
        let limit = limit.max(self.election.record().limit);
        match &self.term {
            Some(term) if self.role() == RoleKind::Leader => limit.max(term.oracle.durable()),
            _ => limit,
        }
    }

    /// Which register this is; none before one has a value.
    pub fn register(&self) -> Option<u64> {
        self.election.register()
    }

    /// Whether it may grant timestamps now.
    pub fn leads(&self, now: Now) -> bool {
        self.election.leads(now.mono_ms)
    }

    /// Whether it leads by promises alone: [`Election::leads_by_promises`](super::Election::leads_by_promises).
    pub fn leads_by_promises(&self, now: Now) -> bool {
        self.election.leads_by_promises(now.mono_ms)
    }

    /// Whether it could go on now without the register: all replicas that could take over have promised.
    pub fn is_promised(&self, now: Now) -> bool {
        let until_ms = self.election.promised_until_ms();
        until_ms.is_some_and(|until_ms| now.mono_ms < until_ms)
    }

    /// Of a leader, the time since it sent the last swap that succeeded, in milliseconds.
    pub fn register_age_ms(&self, now: Now) -> Option<u64> {
        self.election.register_age_ms(now.mono_ms)
    }

    /// The election, for those who watch it.
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// This start of the replica.
    pub fn member(&self) -> &Member {
        self.election.member()
    }

    /// The term of the register's value, as far as this replica knows; 0 for none.
    pub fn term(&self) -> u64 {
        self.election.term()
    }

    /// The replica that leads, as far as this one knows, if that is another one.
    pub fn leader(&self) -> Option<&Member> {
        self.election.leader()
    }

    /// Whether another replica leads, and has renewed its right so lately that this one would not take over.
    pub fn has_live_leader(&self, now: Now) -> bool {
        self.election.has_live_leader(now.mono_ms)
    }

    /// The oracle of this replica's own term, while it leads.
    pub fn oracle(&mut self, now: Now) -> Option<&Oracle> {
        if self.role() != RoleKind::Leader {
            return None;
        }
        self.observe(now);
        self.term.as_ref().map(|term| &term.oracle)
    }

    /// The reason why it can't take over, although it should.
    pub fn blocked(&self) -> Option<RecoverError> {
        self.blocked
    }

    /// Takes the event of the clock since the last call.
    pub fn take_clock_event(&mut self) -> Option<ClockEvent> {
        self.clock_event.take()
    }
}
