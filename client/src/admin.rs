//! What an administrator asks a cluster's master: how far garbage collection is, and to go about it otherwise.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::collection::{GcChange, GcSettings, GcStatus, LeaseRequest, ProxyIntroduction};
use crate::network::Network;
use crate::rebuild::{MasterRebuild, RebuiltMaster};
use crate::router::Router;
use crate::transport::{MasterError, Transport as _};

/// The master's side of a cluster.
pub struct Admin {
    pub(crate) network: Arc<Network>,
    pub(crate) router: Router,
}

/// How long it is tried to reach a server.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

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
        self.network.gc_status().await.map_err(error)
    }

    /// Says that a proxy serves at `address`, or that it ends: `percolator status` and `top` find it by that. To be repeated
    /// every 2 s.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Invalid`]: the master refuses the name, or has too many.
    #[doc(hidden)]
    pub async fn introduce_proxy(&self, introduction: ProxyIntroduction) -> Result<(), Error> {
        let introduced = self.network.introduce_proxy(introduction).await;
        introduced.map_err(error)
    }

    /// Renews the lease of a session, as clients do, for measurements: how long it lasts.
    #[doc(hidden)]
    pub async fn renew_session(&self, request: LeaseRequest) -> Result<Duration, Error> {
        let renewed = self.network.session(request.into(), None).await;
        let lease_ms = renewed.map_err(error)?.lease_ms;
        Ok(Duration::from_millis(lease_ms.into()))
    }

    /// Changes the settings that are given, durably and at once; the others stay. What then counts.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a value is out of bounds, or the cluster's manifest says it; [`Error::Unavailable`].
    pub async fn set_gc(&self, change: GcChange) -> Result<GcSettings, Error> {
        self.network.set_gc(change).await.map_err(error)
    }

    /// Rebuilds the state of a master that has lost it, or shows what it would have.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the master has a state; [`Error::Unavailable`].
    pub async fn rebuild_master(&self, rebuild: MasterRebuild) -> Result<RebuiltMaster, Error> {
        self.network.rebuild(rebuild).await.map_err(error)
    }
}

pub(crate) fn error(error: MasterError) -> Error {
    match error {
        MasterError::Replaced(replaced) => Error::ClusterReplaced(replaced),
        MasterError::Invalid(why) => Error::Invalid(why),
        error => Error::Unavailable(error.into_message()),
    }
}
