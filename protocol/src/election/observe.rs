//! How a replica of the oracle is, for those who watch it.

use super::{Member, OracleReplica, RoleKind};
use crate::oracle::{ClockEvent, Now, Oracle, RecoverError};
use crate::types::Timestamp;

impl OracleReplica {
    /// What it is.
    pub fn role(&self) -> RoleKind {
        self.election.role()
    }

    /// Whether a load has ended, so that it knows something of the register.
    pub fn has_loaded(&self) -> bool {
        self.election.has_loaded()
    }

    /// The limit of the register's value, as far as this replica knows.
    pub fn limit(&self) -> Timestamp {
        let stored = self.election.stored();
        stored.map_or(Timestamp::ZERO, |stored| stored.value.limit)
    }

    /// Which register this is; none before one has a value.
    pub fn register(&self) -> Option<u64> {
        self.election.stored().map(|stored| stored.value.register)
    }

    /// Whether it may grant timestamps now.
    pub fn leads(&self, now: Now) -> bool {
        self.election.leads(now.mono_ms)
    }

    /// Until when it may grant, on the monotonic clock; none if it isn't the leader.
    pub fn right_ends_ms(&self) -> Option<u64> {
        self.election.right_ends_ms()
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

    /// Why it can't take over, although it should.
    pub fn blocked(&self) -> Option<RecoverError> {
        self.blocked
    }

    /// What happened to the clock since the last call.
    pub fn take_clock_event(&mut self) -> Option<ClockEvent> {
        self.clock_event.take()
    }
}
