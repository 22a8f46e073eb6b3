//! A lease in timestamps: how far a tablet server may answer, so that one that was replaced, and doesn't know it, can't
//! contradict the one in its place.
//!
//! With each heartbeat's answer the master grants a lease up to L: the oracle's time and some seconds. The server answers
//! nothing that depends on a timestamp above L: no read at a higher snapshot, no lock of a transaction that began later,
//! no commit at a later commit_ts, no decision about a transaction as of a later time. Another incarnation is accepted by
//! the master only when the one before is surely dead, has given its lease back, or when the oracle's time has passed L;
//! in the last case it commits no primary at or below L.
//!
//! So a read that the old one answers at a snapshot S has S <= L, and what the new one commits has a commit_ts above L:
//! the read misses nothing that it should see. No local clock takes part, so none can be wrong.
//!
//! A secondary may be committed below L, as its primary has been. It was locked there before its primary committed, so
//! the old server either has that lock as well, and anyone who meets it asks the primary, or its prewrite came to the new
//! one, and the commit_ts is above L.

use crate::mutants::{self, Mutant};
use crate::types::{Cell, Lock, Timestamp};

/// The lease of a tablet server: the limits of what it may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Nothing that depends on a timestamp above this is answered. Zero: nothing is.
    pub until: Timestamp,
    /// No primary is committed at or below this.
    pub commits_above: Timestamp,
}

/// A request depends on a timestamp above the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{asked} is above this server's lease, {until}: it may have been replaced, or waits for a response of the master"
)]
pub struct NotLeased {
    /// The timestamp.
    pub asked: Timestamp,
    /// The lease; zero: there is none yet.
    pub until: Timestamp,
}

impl Lease {
    /// One that covers everything, for a server without a master.
    pub const UNLIMITED: Self = Self {
        until: Timestamp::MAX,
        commits_above: Timestamp::ZERO,
    };

    /// Both as far as either has them: answers of the master may overtake each other.
    #[must_use]
    pub fn raised(self, to: Self) -> Self {
        Self {
            until: self.until.max(to.until),
            commits_above: self.commits_above.max(to.commits_above),
        }
    }

    /// Whether a request that depends on this timestamp may be answered.
    ///
    /// # Errors
    /// It is above the lease.
    pub fn admit(&self, asked: Timestamp) -> Result<(), NotLeased> {
        if asked <= self.until || mutants::on(Mutant::LeaseIgnored) {
            return Ok(());
        }
        Err(NotLeased {
            asked,
            until: self.until,
        })
    }

    /// Whether a transaction may be committed at this timestamp, as far as earlier incarnations are concerned.
    pub fn may_commit_at(&self, commit_ts: Timestamp) -> bool {
        commit_ts > self.commits_above
    }

    /// The lock with what readers at an earlier incarnation were promised: nothing, if it isn't its transaction's primary.
    #[must_use]
    pub fn promised(&self, lock: Lock, cell: &Cell) -> Lock {
        if lock.primary != *cell {
            return lock;
        }
        Lock {
            min_commit_ts: lock.min_commit_ts.max(self.commits_above.next()),
            ..lock
        }
    }
}
