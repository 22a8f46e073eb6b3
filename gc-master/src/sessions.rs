//! Who holds the barrier back: clients with transactions, each for as long as its lease is renewed. Not durable:
//! a master that starts waits one lease, within which they come back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::core::Directory;
use crate::refusal::Refusal;

/// Sessions at a time.
pub(crate) const SESSIONS_MAX: usize = 100_000;
/// Transactions that one session names.
pub(crate) const TRANSACTIONS_MAX: usize = 1_000;

/// A client's lease.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Who it is.
    pub owner: v1::Owner,
    /// Nothing at or above this is refused.
    pub floor: Timestamp,
    /// Its oldest transactions, by their start_ts.
    pub transactions: Vec<u64>,
    /// When it ends, unless it is renewed; since the master's start.
    pub until: Duration,
}

/// The sessions, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_id: BTreeMap<u64, Session>,
    floors: BTreeSet<(Timestamp, u64)>,
    ends: BTreeSet<(Duration, u64)>,
}

impl Sessions {
    fn remove(&mut self, id: u64) {
        if let Some(session) = self.by_id.remove(&id) {
            self.floors.remove(&(session.floor, id));
            self.ends.remove(&(session.until, id));
        }
    }

    fn insert(&mut self, id: u64, session: Session) {
        self.remove(id);
        self.floors.insert((session.floor, id));
        self.ends.insert((session.until, id));
        self.by_id.insert(id, session);
    }

    fn expire(&mut self, now: Duration) {
        while let Some((until, id)) = self.ends.first().copied()
            && until <= now
        {
            self.remove(id);
        }
    }

    /// The lowest floor.
    pub(crate) fn lowest(&mut self, now: Duration) -> Option<Timestamp> {
        self.expire(now);
        self.floors.first().map(|(floor, _)| *floor)
    }

    /// Those with the lowest floors.
    pub(crate) fn holders(&self, most: usize) -> impl Iterator<Item = (u64, &Session)> {
        let floors = self.floors.iter().take(most);
        floors.filter_map(|(_, id)| Some((*id, self.by_id.get(id)?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl Directory {
    /// Renews a session's lease, or ends it. What it is told: how long its floor is held, and the barrier.
    ///
    /// # Errors
    /// [`Refusal::Session`], [`Refusal::NoState`].
    pub fn session(
        &mut self,
        now: Duration,
        request: v1::SessionRequest,
    ) -> Result<v1::SessionResponse, Refusal> {
        let barrier = self.truth()?.gc.points().barrier;
        let refused = |wrong: String| Err(Refusal::Session { wrong });
        if request.session == 0 {
            return refused("a session has a number above 0".into());
        }
        if request.transactions.len() > TRANSACTIONS_MAX {
            return refused(format!(
                "{} transactions are named, at most {TRANSACTIONS_MAX} may be",
                request.transactions.len()
            ));
        }
        self.sessions.expire(now);
        let known = self.sessions.by_id.contains_key(&request.session);
        if !known && self.sessions.len() >= SESSIONS_MAX {
            return refused(format!(
                "there are {SESSIONS_MAX} sessions already; end some clients"
            ));
        }
        let lease = self.lease();
        match request.floor {
            0 => self.sessions.remove(request.session),
            floor => self.sessions.insert(
                request.session,
                Session {
                    owner: request.owner.unwrap_or_default(),
                    floor: Timestamp::from_u64(floor),
                    transactions: request.transactions,
                    until: now + lease,
                },
            ),
        }
        Ok(v1::SessionResponse {
            lease_ms: u32::try_from(lease.as_millis()).unwrap_or(u32::MAX),
            barrier: barrier.as_u64(),
        })
    }
}
