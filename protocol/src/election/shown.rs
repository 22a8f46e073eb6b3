//! The state of the election that a replica reports.

use std::collections::BTreeMap;

use super::core::{Election, Role};
use super::value::Member;

impl Election {
    /// Which register this is; none before one has a value.
    pub fn register(&self) -> Option<u64> {
        self.stored().map(|stored| stored.value.register)
    }

    /// The addresses of all known replicas: this one, the leader, and those that could take over, which are in the register's value or
    /// have reported just now.
    pub fn addresses(&self, now_ms: u64) -> Vec<&str> {
        let stored = self.stored().map(|stored| &stored.value);
        let holder = stored.and_then(|value| value.holder.as_ref());
        let promisers = stored.into_iter().flat_map(|value| &value.promisers);
        // A replica that has restarted since reports from another address.
        let mut others: BTreeMap<u64, &str> = promisers
            .map(|peer| (peer.replica, &*peer.address))
            .collect();
        others.extend(
            self.promises
                .seen_since(now_ms.saturating_sub(self.timing.takeover_ms)),
        );
        if let Some(holder) = holder {
            others.remove(&holder.replica);
        }
        others.remove(&self.member.replica);
        let holder = holder.map(|holder| &*holder.address);
        let holder = holder.filter(|address| *address != self.member.address);
        let own = std::iter::once(&*self.member.address);
        own.chain(holder).chain(others.into_values()).collect()
    }

    /// Of a leader, the time since it sent the last swap that succeeded, in milliseconds.
    pub fn register_age_ms(&self, now_ms: u64) -> Option<u64> {
        match &self.role {
            Role::Leader { renewed_ms, .. } => Some(now_ms.saturating_sub(*renewed_ms)),
            _ => None,
        }
    }

    /// The term of the register's value, as far as this replica knows; 0 for none.
    pub fn term(&self) -> u64 {
        match &self.role {
            Role::Leader { term, .. } => *term,
            _ => self.stored().map_or(0, |stored| stored.value.term),
        }
    }

    /// The replica that leads, as far as this one knows, if that is another one.
    pub fn leader(&self) -> Option<&Member> {
        let holder = self.stored()?.value.holder.as_ref()?;
        (holder.incarnation != self.member.incarnation).then_some(holder)
    }
}
