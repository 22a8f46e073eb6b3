//! What whoever runs a cluster asks its master: how far garbage collection is, and to go about it otherwise.

use std::time::Duration;

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::Error;
use crate::network::Network;
use crate::router::master_message;
use crate::transport::MasterError;

/// The master's side of a cluster.
pub struct Admin {
    network: Network,
}

/// How far garbage collection is.
#[derive(Clone, Debug)]
pub struct GcStatus {
    /// How long versions are kept that no transaction reads.
    pub life_time: Duration,
    /// Neither point moves.
    pub paused: bool,
    /// The oracle's time when the master last had it; zero: not since its start.
    pub now: Timestamp,
    /// What is below is refused.
    pub barrier: Timestamp,
    /// What no snapshot at or above it sees is collected.
    pub ready: Timestamp,
    /// Sessions that have a lease.
    pub sessions: u32,
    /// The sessions with the lowest floors, lowest first.
    pub holders: Vec<GcHolder>,
    /// What holds the ready point below the barrier.
    pub obstacles: Vec<GcObstacle>,
    /// By name.
    pub servers: Vec<GcServer>,
}

/// A session, which holds the barrier back.
#[derive(Clone, Debug)]
pub struct GcHolder {
    /// Its number.
    pub session: u64,
    /// Where its process runs.
    pub host: String,
    /// The process there.
    pub process: u32,
    /// The program.
    pub application: String,
    /// The barrier doesn't pass this.
    pub floor: Timestamp,
    /// Its oldest transactions, those that have lived for a while.
    pub transactions: Vec<Timestamp>,
}

/// What is in the way on a tablet server.
#[derive(Clone, Debug)]
pub struct GcObstacle {
    /// The tablet server.
    pub server: String,
    /// In words.
    pub what: String,
}

/// How far a tablet server is.
#[derive(Clone, Debug)]
pub struct GcServer {
    /// Its name.
    pub server: String,
    /// What is below it refuses.
    pub barrier: Timestamp,
    /// Up to here it collects.
    pub ready: Timestamp,
    /// Records that it has collected since its start.
    pub collected: u64,
}

impl Admin {
    /// Of the cluster whose master is at this address, HOST:PORT.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it's no address.
    pub fn connect(master: &str) -> Result<Self, Error> {
        let network = Network::new(master, Duration::from_secs(10)).map_err(Error::Invalid)?;
        Ok(Self { network })
    }

    /// How far garbage collection is, and what holds it back.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn gc_status(&self) -> Result<GcStatus, Error> {
        let status = self.network.gc_status().await.map_err(error)?;
        let ts = Timestamp::from_u64;
        let holder = |holder: v1::GcHolder| {
            let owner = holder.owner.unwrap_or_default();
            GcHolder {
                session: holder.session,
                host: owner.host,
                process: owner.process,
                application: owner.application,
                floor: ts(holder.floor),
                transactions: holder.transactions.into_iter().map(ts).collect(),
            }
        };
        let obstacle = |obstacle: v1::GcObstacle| GcObstacle {
            server: obstacle.server,
            what: obstacle.what,
        };
        let server = |server: v1::GcServer| GcServer {
            server: server.server,
            barrier: ts(server.barrier),
            ready: ts(server.ready),
            collected: server.collected,
        };
        Ok(GcStatus {
            life_time: Duration::from_millis(status.life_time_ms),
            paused: status.paused,
            now: ts(status.now),
            barrier: ts(status.barrier),
            ready: ts(status.ready),
            sessions: status.sessions,
            holders: status.holders.into_iter().map(holder).collect(),
            obstacles: status.obstacles.into_iter().map(obstacle).collect(),
            servers: status.servers.into_iter().map(server).collect(),
        })
    }

    /// Changes the life time, or pauses collection or goes on with it; durably, and at once.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the life time is out of bounds; [`Error::Unavailable`].
    pub async fn set_gc(
        &self,
        life_time: Option<Duration>,
        paused: Option<bool>,
    ) -> Result<(), Error> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = v1::SetGcRequest {
            life_time_ms: life_time.map(millis),
            paused,
        };
        self.network.set_gc(request).await.map(drop).map_err(error)
    }
}

fn error(error: MasterError) -> Error {
    match error {
        MasterError::Invalid(why) => Error::Invalid(why),
        error => Error::Unavailable(master_message(error)),
    }
}
