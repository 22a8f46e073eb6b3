//! Introduces the proxy to the master, so that `percolator status` and `top` find it. Nothing depends on it: while no master
//! answers, the proxy goes on without.

use std::net::SocketAddr;
use std::time::Duration;

use percolator_client::{Admin, ProxyIntroduction};

use crate::Error;
use crate::server::Options;

/// From one to the next.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long the last one may take: the master forgets a proxy by itself.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// What a proxy says of itself.
pub(crate) struct Introduction {
    admin: Admin,
    introduction: ProxyIntroduction,
}

impl Introduction {
    /// Of the proxy at `address`, which shows its metrics where it listens for that.
    ///
    /// # Errors
    /// [`Error::Master`]: the address of the master is none.
    pub(crate) fn new(
        options: &Options,
        address: String,
        metrics_address: Option<SocketAddr>,
    ) -> Result<Self, Error> {
        let admin = Admin::connect(&options.master).map_err(|cause| Error::Master {
            master: options.master.clone(),
            cause,
        })?;
        let metrics_address = metrics_address.map(|at| at.to_string());
        let introduction = ProxyIntroduction {
            server: options.server.clone(),
            address,
            metrics_address: metrics_address.unwrap_or_default(),
            leaving: false,
        };
        Ok(Self {
            admin,
            introduction,
        })
    }

    /// Repeats it for as long as it is polled.
    pub(crate) async fn repeat(&self) {
        // The same refusal is logged once.
        let mut refused = None;
        loop {
            match self.admin.introduce_proxy(self.introduction.clone()).await {
                Ok(()) => refused = None,
                Err(error @ percolator_client::Error::Invalid(_)) => {
                    let error = error.to_string();
                    if refused.as_ref() != Some(&error) {
                        tracing::warn!(error, "the master doesn't list this proxy");
                    }
                    refused = Some(error);
                }
                Err(error) => tracing::debug!(%error, "the master doesn't know of this proxy yet"),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Says that the proxy ends.
    pub(crate) async fn leave(&self) {
        let introduction = ProxyIntroduction {
            leaving: true,
            ..self.introduction.clone()
        };
        let left = tokio::time::timeout(LEAVING_MAX, self.admin.introduce_proxy(introduction));
        if let Ok(Err(error)) = left.await {
            tracing::debug!(%error, "the master doesn't know that this proxy ends");
        }
    }
}
