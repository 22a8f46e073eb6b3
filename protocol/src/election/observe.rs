//! How a replica of the oracle is, for those who watch it.

use super::{Member, OracleReplica, Role, RoleKind};
use crate::oracle::{ClockEvent, Now, Oracle, RecoverError};
use crate::types::Timestamp;

impl OracleReplica {
    /// What it is.
    pub fn role(&self) -> RoleKind {
        match &self.role {
            Role::Standby => RoleKind::Standby,
            Role::Candidate(_) => RoleKind::Candidate,
            Role::Leader { .. } => RoleKind::Leader,
            Role::HandingOver { .. } => RoleKind::HandingOver,
            Role::Left => RoleKind::Left,
        }
    }

    /// Whether a load has ended, so that it knows something of the register.
    pub fn has_loaded(&self) -> bool {
        self.known.is_some()
    }

    /// The limit of the register's value, as far as this replica knows.
    pub fn limit(&self) -> Timestamp {
        self.stored()
            .map_or(Timestamp::ZERO, |stored| stored.value.limit)
    }

    /// Which register this is; none before one has a value.
    pub fn register(&self) -> Option<u64> {
        self.stored().map(|stored| stored.value.register)
    }

    /// Whether it may grant timestamps now.
    pub fn leads(&self, now: Now) -> bool {
        matches!(&self.role, Role::Leader { right_ends_ms, .. } if now.mono_ms < *right_ends_ms)
    }

    /// Until when it may grant, on the monotonic clock; none if it isn't the leader.
    pub fn right_ends_ms(&self) -> Option<u64> {
        match &self.role {
            Role::Leader { right_ends_ms, .. } => Some(*right_ends_ms),
            _ => None,
        }
    }

    /// The term of the register's value, as far as this replica knows; 0 for none.
    pub fn term(&self) -> u64 {
        match &self.role {
            Role::Leader { term, .. } => term.number,
            _ => self.stored().map_or(0, |stored| stored.value.term),
        }
    }

    /// The replica that leads, as far as this one knows, if that is another one.
    pub fn leader(&self) -> Option<&Member> {
        let holder = self.stored()?.value.holder.as_ref()?;
        (holder.incarnation != self.member.incarnation).then_some(holder)
    }

    /// Whether another replica leads, and has renewed its right so lately that this one would not take over.
    pub fn has_live_leader(&self, now: Now) -> bool {
        let seen_ms = self.known.as_ref().map(|known| known.seen_ms);
        let is_fresh = |seen_ms| now.mono_ms.saturating_sub(seen_ms) < self.timing.takeover_ms;
        self.leader().is_some() && seen_ms.is_some_and(is_fresh)
    }

    /// The oracle of this replica's own term, while it leads.
    pub fn oracle(&mut self, now: Now) -> Option<&Oracle> {
        match &mut self.role {
            Role::Leader { term, .. } => {
                if let Some(event) = term.oracle.observe(now) {
                    self.clock_event = Some(event);
                }
                Some(&term.oracle)
            }
            _ => None,
        }
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
