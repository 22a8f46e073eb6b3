//! The clients whose transactions hold the barrier back, each for as long as its lease is renewed. Not durable:
//! a master that starts waits one lease, within which they come back. What was released by hand is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;

use crate::core::Directory;
use crate::refusal::Refusal;

/// Sessions at a time: with ten transactions each, 1.5 KiB, they fit into the master's limit of memory, 512 MiB. When all clients restart,
/// those of the killed ones are there too for as long as a lease lasts.
pub(crate) const SESSIONS_MAX: usize = 300_000;
/// Transactions that one session names.
pub(crate) const TRANSACTIONS_MAX: usize = 1_000;

/// A client's identity, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The name of its machine.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// The program.
    pub application: String,
    /// What its user calls it; empty: nothing.
    pub label: String,
}

/// A client's report of what it holds, sent again and again.
#[derive(Clone, Debug, Default)]
pub struct Renewal {
    /// A random number, of one client.
    pub session: u64,
    /// The client.
    pub owner: Owner,
    /// A timestamp below which none of its transactions began, or will begin. Zero: it has none any more, and will not come again.
    pub floor: Timestamp,
    /// The oldest of its transactions, those that have lived for a while: where each began.
    pub transactions: Vec<Timestamp>,
    /// How many more it has.
    pub unnamed: u32,
}

/// The response to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Its floor is held for so long, counted from when it sent the request.
    pub lease: Duration,
    /// What began below is refused.
    pub barrier: Timestamp,
    /// The cluster whose points these are.
    pub cluster_id: String,
}

/// Transactions that clients have named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcLocks {
    /// The oldest ones, oldest first.
    pub oldest: Vec<GcLock>,
    /// There are more.
    pub more: bool,
    /// How many there are that were not named.
    pub unnamed: u64,
}

/// A transaction that a client has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcLock {
    /// Where it began.
    pub start_ts: Timestamp,
    /// The client's session.
    pub session: u64,
    /// The client.
    pub owner: Owner,
    /// What is left of its lease.
    pub lease: Duration,
}

/// A client's lease.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The client.
    pub owner: Owner,
    /// Nothing at or above this is refused.
    pub floor: Timestamp,
    /// Its oldest transactions, by their start_ts.
    pub transactions: Vec<Timestamp>,
    /// How many more it has.
    pub unnamed: u32,
    /// Somebody has ended the gc-locks up to here by hand; zero: none.
    pub released: Timestamp,
    /// When it ends, unless it is renewed; by [`Sessions::awake`].
    pub until: Duration,
}

/// The sessions, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_id: BTreeMap<u64, Session>,
    floors: BTreeSet<(Timestamp, u64)>,
    ends: BTreeSet<(Duration, u64)>,
    /// When the time was last seen to pass, since the master's start.
    seen: Duration,
    /// For how long the master has stood still in all.
    stood_still: Duration,
}

impl Session {
    /// The transactions that it has named, and that were not released by hand.
    pub(crate) fn named(&self) -> impl Iterator<Item = Timestamp> {
        let named = self.transactions.iter().copied();
        named.filter(|ts| *ts > self.released)
    }

    /// Whether what it holds is what was ended by hand, as far as is known: its floor follows with its next renewal.
    pub(crate) fn is_released(&self) -> bool {
        self.released != Timestamp::ZERO
            && self.floor == self.released.next()
            && self.named().next().is_none()
    }
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

    /// The time by which leases end. It stops while the master stands still: no client could renew then, and what waits to be read
    /// is renewed first. `lease`: of the time between two calls no more than a third of it passes, which is what lies between two
    /// renewals.
    fn awake(&mut self, now: Duration, lease: Duration) -> Duration {
        let passed = now.saturating_sub(self.seen);
        self.stood_still += passed.saturating_sub(lease / 3);
        self.seen = self.seen.max(now);
        now.saturating_sub(self.stood_still)
    }

    /// `now`: by [`Sessions::awake`].
    fn expire(&mut self, now: Duration) {
        while let Some((until, id)) = self.ends.first().copied()
            && until <= now
            && !mutants::on(Mutant::SessionsNeverEnd)
        {
            self.remove(id);
        }
    }

    /// The lowest floor. `lease`: how long one is.
    pub(crate) fn lowest(&mut self, now: Duration, lease: Duration) -> Option<Timestamp> {
        let now = self.awake(now, lease);
        self.expire(now);
        self.floors.first().map(|(floor, _)| *floor)
    }

    /// Those whose floors are not below the barrier, the lowest first: what is below is refused already, and holds nothing.
    pub(crate) fn holders(&self, barrier: Timestamp) -> impl Iterator<Item = (u64, &Session)> {
        let floors = self.floors.range((barrier, 0)..);
        floors.filter_map(|(_, id)| Some((*id, self.by_id.get(id)?)))
    }

    /// What is left of its lease.
    pub(crate) fn left(&self, session: &Session, now: Duration) -> Duration {
        session
            .until
            .saturating_sub(now.saturating_sub(self.stood_still))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Transactions that were named.
    pub(crate) fn named(&self) -> usize {
        let sessions = self.by_id.values();
        sessions.map(|session| session.transactions.len()).sum()
    }

    /// Those that weren't.
    fn unnamed(&self) -> u64 {
        let sessions = self.by_id.values();
        sessions.map(|session| u64::from(session.unnamed)).sum()
    }

    /// The clients that have named this transaction.
    pub(crate) fn owner_of(&self, start_ts: Timestamp) -> Option<Owner> {
        let mut sessions = self.by_id.values();
        let named = sessions.find(|it| it.transactions.contains(&start_ts));
        named.map(|session| session.owner.clone())
    }
}

impl Directory {
    /// Renews a session's lease, or ends it.
    ///
    /// # Errors
    /// [`Refusal::Session`] and [`Refusal::NoState`].
    pub fn session(&mut self, now: Duration, renewal: Renewal) -> Result<Renewed, Refusal> {
        let gc = &self.state()?.gc;
        let barrier = gc.points().barrier;
        // A master that was started again has this alone.
        let released = gc.released.get(&renewal.session).copied();
        let refused = |wrong: String| Err(Refusal::Session { wrong });
        if renewal.session == 0 {
            return refused("a session has a number above 0".into());
        }
        if renewal.transactions.len() > TRANSACTIONS_MAX {
            return refused(format!(
                "{} transactions are named, at most {TRANSACTIONS_MAX} may be",
                renewal.transactions.len()
            ));
        }
        let awake = self.sessions.awake(now, self.lease());
        self.sessions.expire(awake);
        let known = self.sessions.by_id.get(&renewal.session);
        let released = Timestamp::from_u64(released.unwrap_or_default());
        let released = known.map_or(released, |known| known.released);
        if known.is_none() && self.sessions.len() >= SESSIONS_MAX {
            return refused(format!(
                "there are {SESSIONS_MAX} sessions already; end some clients"
            ));
        }
        let lease = self.grant_lease();
        match renewal.floor {
            Timestamp::ZERO => self.sessions.remove(renewal.session),
            floor => self.sessions.insert(
                renewal.session,
                Session {
                    owner: renewal.owner,
                    floor: above(released, floor),
                    transactions: renewal.transactions,
                    unnamed: renewal.unnamed,
                    released,
                    until: awake + lease,
                },
            ),
        }
        Ok(Renewed {
            lease,
            barrier,
            cluster_id: self.state()?.cluster_id.clone(),
        })
    }

    /// The transactions that sessions have named, oldest first, and whether there are more.
    ///
    /// # Errors
    /// [`Refusal::NoState`].
    pub fn transactions(&self, now: Duration, most: usize) -> Result<GcLocks, Refusal> {
        self.state()?;
        let mut all = BTreeSet::new();
        for (id, session) in &self.sessions.by_id {
            all.extend(session.named().map(|ts| (ts, *id)));
        }
        let gc_lock = |(start_ts, id): &(Timestamp, u64)| {
            let session = self.sessions.by_id.get(id);
            let left = session.map(|session| self.sessions.left(session, now));
            GcLock {
                start_ts: *start_ts,
                session: *id,
                owner: session.map(|it| it.owner.clone()).unwrap_or_default(),
                lease: left.unwrap_or_default(),
            }
        };
        Ok(GcLocks {
            oldest: all.iter().take(most).map(gc_lock).collect(),
            more: all.len() > most,
            unnamed: self.sessions.unnamed(),
        })
    }

    /// Ends the gc-locks of what began at this timestamp, and of what its sessions have begun before it. Whose they
    /// were.
    ///
    /// # Errors
    /// [`Refusal::NoState`].
    pub fn release(&mut self, now: Duration, start_ts: Timestamp) -> Result<Vec<Owner>, Refusal> {
        self.state()?;
        let awake = self.sessions.awake(now, self.lease());
        self.sessions.expire(awake);
        let holds = |session: &Session| {
            session.floor == start_ts || session.named().any(|named| named == start_ts)
        };
        let sessions = self.sessions.by_id.iter();
        let held: Vec<(u64, Session)> = sessions
            .filter(|(_, session)| holds(session))
            .map(|(id, session)| (*id, session.clone()))
            .collect();
        let mut owners = Vec::new();
        for (id, session) in held {
            owners.push(session.owner.clone());
            let released = session.released.max(start_ts);
            let floor = above(released, session.floor);
            let session = Session {
                released,
                floor,
                ..session
            };
            self.sessions.insert(id, session);
            if let Some(state) = &mut self.state {
                state.gc.released.insert(id, released.as_u64());
                self.dirty = true;
            }
        }
        Ok(owners)
    }
}

/// The floor, but not where gc-locks were ended by hand. What lies right above may be held.
fn above(released: Timestamp, floor: Timestamp) -> Timestamp {
    match released {
        Timestamp::ZERO => floor,
        released => floor.max(released.next()),
    }
}
