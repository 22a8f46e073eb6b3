//! Timestamps alone, for a master.

use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::types::Timestamp;

use crate::Error;
use crate::network::Network;
use crate::router::Router;
use crate::transport::Transport;

/// How long the oracle is asked.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks a cluster's oracle.
pub struct TimestampClient(Router);

impl TimestampClient {
    /// Over this transport.
    pub fn over(transport: Arc<dyn Transport>) -> Self {
        Self(Router::new(transport))
    }

    /// In the cluster whose master is at this address, HOST:PORT; of several masters, with commas between.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it's no address.
    pub fn connect(master: &str) -> Result<Self, Error> {
        let network = Network::new(master, TIMEOUT).map_err(Error::Invalid)?;
        Ok(Self::over(Arc::new(network)))
    }

    /// A timestamp that the oracle hands out after this was called.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn timestamp(&self) -> Result<Timestamp, String> {
        let asked = self.0.timestamp(self.0.deadline(TIMEOUT)).await;
        asked.map_err(|error| error.to_string())
    }

    /// Waits.
    pub async fn pause(&self, duration: Duration) {
        self.0.world.transport.sleep(duration).await;
    }
}
