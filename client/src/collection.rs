//! Garbage collection and the gc-locks that hold it back, as the master reports them; and who reports to the master.

use std::fmt;
use std::time::Duration;

use percolator_protocol::types::Timestamp;

/// How far garbage collection is.
#[derive(Clone, Debug)]
pub struct GcStatus {
    /// How long versions are kept that no transaction reads.
    pub retention: Duration,
    /// How long a gc-lock may be held; `None`: as long as its owner renews it.
    pub hold_max: Option<Duration>,
    /// Neither point moves.
    pub paused: bool,
    /// The fields of `spec.gc` that the cluster's manifest says: these can't be set otherwise.
    pub of_manifest: Vec<String>,
    /// The oracle's time when the master last had it; zero: not since its start.
    pub now: Timestamp,
    /// What is below is refused.
    pub barrier: Timestamp,
    /// What no snapshot at or above it sees is collected.
    pub safe_point: Timestamp,
    /// Up to where locks are resolved in all tablets. Below the safe point while something has been in the way for long:
    /// then what became of each commit between both is kept.
    pub resolved: Timestamp,
    /// Sessions that have a lease.
    pub sessions: u32,
    /// The sessions with the lowest floors, lowest first.
    pub holders: Vec<GcHolder>,
    /// What else is in the way of one of the points.
    pub obstacles: Vec<GcObstacle>,
    /// By name.
    pub servers: Vec<GcServer>,
}

/// The process that runs a transaction, for a person to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnOwner {
    /// Where the process runs.
    pub host: String,
    /// The process there.
    pub process: u32,
    /// The program.
    pub application: String,
    /// What its user calls it, by its variable `PERCOLATOR_LABEL`; empty: nothing.
    pub label: String,
}

impl fmt::Display for TxnOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.application)?;
        if !self.label.is_empty() {
            write!(f, " {:?}", self.label)?;
        }
        write!(f, " (process {} on {})", self.process, self.host)
    }
}

/// A session, which holds the barrier back.
#[derive(Clone, Debug)]
pub struct GcHolder {
    /// Its number.
    pub session: u64,
    /// Whose it is.
    pub owner: TxnOwner,
    /// The barrier doesn't pass this.
    pub floor: Timestamp,
    /// Its oldest transactions, those that have lived for a while.
    pub transactions: Vec<Timestamp>,
    /// How long until its lease ends, if its process is dead; otherwise it is renewed before.
    pub lease: Duration,
    /// All that it has named was ended by hand: the barrier follows when its lease is renewed, or ends.
    pub released: bool,
}

/// What is in the way.
#[derive(Clone, Debug, Default)]
pub struct GcObstacle {
    /// Which kind of thing: `starting`, `oracle`, `server_down`, `server_behind`, `tablets_lost`, `resolving`,
    /// `table_creating`,
    /// `table_deleting` or `locks`.
    pub by: String,
    /// The server; empty: none alone.
    pub server: String,
    /// In words.
    pub what: String,
    /// Whose lock it is; zero: nobody's.
    pub start_ts: Timestamp,
    /// The owner of that transaction's gc-lock, if the transaction has lived for a while.
    pub owner: Option<TxnOwner>,
    /// For how long it has been in the way; zero: unknown.
    pub since: Duration,
}

/// How far a tablet server is.
#[derive(Clone, Debug)]
pub struct GcServer {
    /// Its name.
    pub server: String,
    /// What is below it refuses.
    pub barrier: Timestamp,
    /// Up to here it collects.
    pub safe_point: Timestamp,
    /// Records that it has collected since its start.
    pub collected: u64,
    /// How many a second, of the last ten seconds or so.
    pub collected_per_second: u64,
    /// The oldest that waits; zero: nothing does.
    pub oldest: Timestamp,
    /// By tablet; number zero: of tablets that are not there any more.
    pub tablets: Vec<GcTablet>,
}

/// A tablet's garbage.
#[derive(Clone, Copy, Debug)]
pub struct GcTablet {
    /// The tablet.
    pub tablet: u64,
    /// Entries of the index that are checked when the safe point has passed them.
    pub waiting: u64,
    /// Records that were collected since the server's start.
    pub collected: u64,
    /// Bytes of their keys, and of values of up to 255 bytes.
    pub bytes: u64,
}

/// A wish to change settings of garbage collection; `None`: as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct GcChange {
    /// How long versions are kept that no transaction reads.
    pub retention: Option<Duration>,
    /// How long a gc-lock may be held; zero: as long as its owner renews it.
    pub hold_max: Option<Duration>,
    /// Whether to stand still.
    pub paused: Option<bool>,
}

/// The settings of garbage collection.
#[derive(Clone, Copy, Debug)]
pub struct GcSettings {
    /// How long versions are kept that no transaction reads.
    pub retention: Duration,
    /// How long a gc-lock may be held; `None`: as long as its owner renews it.
    pub hold_max: Option<Duration>,
    /// Neither point moves.
    pub paused: bool,
}

/// What a proxy reports of itself.
#[derive(Clone, Debug)]
pub struct ProxyIntroduction {
    /// Its name.
    pub server: String,
    /// Where clients reach it: HOST:PORT.
    pub address: String,
    /// Where it serves metrics; empty: nowhere.
    pub metrics_address: String,
    /// It ends, and is to be forgotten.
    pub leaving: bool,
}

/// A client's request to the master to renew its lease.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// A random number of this client alone.
    pub session: u64,
    /// The client's process; `None`: the lease is given back.
    pub owner: Option<TxnOwner>,
    /// A timestamp of the oracle below which none of the client's transactions began, or will begin. Zero: the lease is given
    /// back.
    pub floor: Timestamp,
    /// Where its oldest transactions began, as far as they have lived for a while.
    pub transactions: Vec<Timestamp>,
    /// How many more have lived for a while.
    pub unnamed: u32,
}

impl LeaseRequest {
    /// The request that gives the lease of a session back.
    pub fn give_back(session: u64) -> Self {
        Self {
            session,
            owner: None,
            floor: Timestamp::ZERO,
            transactions: Vec::new(),
            unnamed: 0,
        }
    }
}

/// Gc-locks that the master lists, oldest first.
#[derive(Debug)]
pub(crate) struct GcLockPage {
    pub(crate) gc_locks: Vec<GcLock>,
    /// There are more.
    pub(crate) more: bool,
    /// Transactions that have lived for a while and that their clients don't name.
    pub(crate) unnamed: u64,
}

/// The gc-lock of a transaction.
#[derive(Debug)]
pub(crate) struct GcLock {
    pub(crate) start_ts: Timestamp,
    pub(crate) owner: TxnOwner,
    /// The time until it ends, unless its client renews it.
    pub(crate) lease: Duration,
}
