//! What an administrator asks a cluster's master: how far garbage collection is, and to go about it otherwise.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::Error;
use crate::network::Network;
use crate::router::{Router, master_message};
use crate::transport::{MasterError, Transport as _};

/// The master's side of a cluster.
pub struct Admin {
    pub(crate) network: Arc<Network>,
    pub(crate) router: Router,
}

/// How long it is tried to reach a server.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Whose transactions they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Where the process runs.
    pub host: String,
    /// The process there.
    pub process: u32,
    /// The program.
    pub application: String,
    /// What its user calls it, by its variable `PERCOLATOR_LABEL`; empty: nothing.
    pub label: String,
}

impl From<v1::Owner> for Owner {
    fn from(owner: v1::Owner) -> Self {
        Self {
            host: owner.host,
            process: owner.process,
            application: owner.application,
            label: owner.label,
        }
    }
}

impl fmt::Display for Owner {
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
    pub owner: Owner,
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
    /// Who holds a gc-lock for that transaction, where it has lived for a while.
    pub owner: Option<Owner>,
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
    /// Places that are to be looked at when the safe point has passed them.
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

impl Admin {
    /// Of the cluster whose master is at this address, HOST:PORT; of several masters, with commas between.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it's no address.
    pub fn connect(master: &str) -> Result<Self, Error> {
        let network = Arc::new(Network::new(master, REQUEST_TIMEOUT).map_err(Error::Invalid)?);
        let router = Router::new(network.clone());
        Ok(Self { network, router })
    }

    /// The address of the master that is asked, HOST:PORT: of several, the one that leads, when it has answered.
    pub fn master_address(&self) -> String {
        self.network.master_address()
    }

    /// How far garbage collection is, and what holds it back.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn gc_status(&self) -> Result<GcStatus, Error> {
        let status = self.network.gc_status().await.map_err(error)?;
        let ts = Timestamp::from_u64;
        let holder = |holder: v1::GcHolder| GcHolder {
            session: holder.session,
            owner: holder.owner.unwrap_or_default().into(),
            floor: ts(holder.floor),
            transactions: holder.transactions.into_iter().map(ts).collect(),
            lease: Duration::from_millis(holder.lease_ms.into()),
            released: holder.released,
        };
        let obstacle = |obstacle: v1::GcObstacle| GcObstacle {
            by: obstacle.by,
            server: obstacle.server,
            what: obstacle.what,
            start_ts: ts(obstacle.start_ts),
            owner: obstacle.owner.map(Owner::from),
            since: Duration::from_millis(obstacle.since_ms),
        };
        let tablet = |tablet: v1::GcTablet| GcTablet {
            tablet: tablet.tablet_id,
            waiting: tablet.waiting,
            collected: tablet.records,
            bytes: tablet.bytes,
        };
        let server = |server: v1::GcServer| {
            let progress = server.progress.unwrap_or_default();
            GcServer {
                server: server.server,
                barrier: ts(server.barrier),
                safe_point: ts(server.safe_point),
                collected: server.collected,
                collected_per_second: server.collected_per_second,
                oldest: ts(progress.oldest),
                tablets: progress.tablets.into_iter().map(tablet).collect(),
            }
        };
        Ok(GcStatus {
            retention: Duration::from_millis(status.retention_ms),
            hold_max: status.hold_ms_max.map(Duration::from_millis),
            paused: status.paused,
            of_manifest: status.of_manifest,
            now: ts(status.now),
            barrier: ts(status.barrier),
            safe_point: ts(status.safe_point),
            resolved: ts(status.resolved_ts),
            sessions: status.sessions,
            holders: status.holders.into_iter().map(holder).collect(),
            obstacles: status.obstacles.into_iter().map(obstacle).collect(),
            servers: status.servers.into_iter().map(server).collect(),
        })
    }

    /// Says that a proxy serves at `address`, or that it ends: `percolator status` and `top` find it by that. To be repeated
    /// every 2 s.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Invalid`]: the master refuses the name, or has too many.
    #[doc(hidden)]
    pub async fn introduce_proxy(&self, request: v1::IntroduceProxyRequest) -> Result<(), Error> {
        let introduced = self.network.introduce_proxy(request).await;
        introduced.map(drop).map_err(error)
    }

    /// A session as clients hold one, for measurements.
    #[doc(hidden)]
    pub async fn session(&self, request: v1::SessionRequest) -> Result<v1::SessionResponse, Error> {
        self.network.session(request, None).await.map_err(error)
    }

    /// Changes the settings that are given, durably and at once; the others stay. What then counts.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a value is out of bounds, or the cluster's manifest says it; [`Error::Unavailable`].
    pub async fn set_gc(&self, change: GcChange) -> Result<GcSettings, Error> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = v1::SetGcRequest {
            retention_ms: change.retention.map(millis),
            paused: change.paused,
            hold_ms_max: change.hold_max.map(millis),
        };
        let set = self.network.set_gc(request).await.map_err(error)?;
        Ok(GcSettings {
            retention: Duration::from_millis(set.retention_ms),
            hold_max: set.hold_ms_max.map(Duration::from_millis),
            paused: set.paused,
        })
    }
}

pub(crate) fn error(error: MasterError) -> Error {
    match error {
        MasterError::Replaced(replaced) => Error::ClusterReplaced(replaced),
        MasterError::Invalid(why) => Error::Invalid(why),
        error => Error::Unavailable(master_message(error)),
    }
}
