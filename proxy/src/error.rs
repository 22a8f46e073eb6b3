//! The errors of a proxy that cannot start or go on.

/// The reason why the proxy cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What every server shares failed: the address, the transport.
    #[error(transparent)]
    Server(#[from] percolator_server::Error),
    /// Metrics can't be shown.
    #[error(transparent)]
    Metrics(#[from] percolator_telemetry::endpoint::Error),
    /// Traces can't be sent.
    #[error(transparent)]
    Traces(#[from] percolator_telemetry::otlp::Error),
    /// The address of the master is none.
    #[error("the cluster can't be reached by --master {master}: {cause}")]
    Master {
        /// The address.
        master: String,
        /// What the client library says.
        cause: percolator_client::Error,
    },
    /// The description for reflection is damaged.
    #[error("the description of the service can't be shown: {0}")]
    Reflection(String),
}
