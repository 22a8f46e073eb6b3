//! Why the oracle cannot start or go on.

use std::path::PathBuf;

use percolator_protocol::oracle::RecoverError;

use crate::core::StartError;

/// Why the oracle cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What every server shares failed: the folder, the address, the master's word.
    #[error(transparent)]
    Server(#[from] percolator_server::Error),
    /// Metrics can't be shown.
    #[error(transparent)]
    Metrics(#[from] percolator_telemetry::endpoint::Error),
    /// Traces can't be sent.
    #[error(transparent)]
    Traces(#[from] percolator_telemetry::otlp::Error),
    /// The clock is beyond belief.
    #[error(
        "{cause}; set the clock of this machine right, \
         or, if it is right, start once with a larger --stopped-max (PERCOLATOR_TSO_STOPPED_MAX in its environment)"
    )]
    Clock {
        /// The rule's reason.
        cause: RecoverError,
    },
    /// The limit's file holds something else.
    #[error("{} holds no limit: {cause}; restore it from a copy of the volume", .path.display())]
    NoLimit {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: StartError,
    },
    /// The oracle granted timestamps before, but its limit is gone.
    #[error(
        "{} is missing, although this oracle belongs to cluster {cluster_id:?} and granted \
         timestamps for it; without the file it could grant them again: restore it from a copy of \
         the volume", .path.display()
    )]
    LimitMissing {
        /// Which file.
        path: PathBuf,
        /// The cluster that the folder belongs to.
        cluster_id: String,
    },
    /// The register of several oracles can't be read.
    #[error(transparent)]
    Register(#[from] percolator_register::LoadError),
    /// The register of several oracles refuses its first value.
    #[error(transparent)]
    RegisterRefused(percolator_register::SwapError),
    /// An oracle that could not read the register at its start has reported the former one to the master.
    #[error(
        "the register is another one than that in which this oracle took part before; it takes part in this one when it is \
         started again"
    )]
    OtherRegister,
    /// The register holds something else.
    #[error(transparent)]
    Leadership(#[from] percolator_protocol::election::DecodeError),
    /// Oracles of the register lead below what this one has granted alone.
    #[error(
        "the register's limit is below the one in this oracle's folder, and another oracle leads already: this one has to be \
         started first with --register, and the others after it; stop them, and start this one"
    )]
    RegisterBehind,
    /// The register took no first value, or not this oracle's limit.
    #[error(
        "the register took no value of this oracle; start the oracle again when it can be written"
    )]
    RegisterNotBegun,
    /// The oracles granted timestamps before, but their register is empty.
    #[error(
        "the register is empty, although this oracle belongs to {belongs_to}, whose oracles granted timestamps; \
         without its value they could grant them again: check --register, or restore the register"
    )]
    RegisterEmpty {
        /// The cluster or the register that the folder belongs to.
        belongs_to: String,
    },
    /// The disk took no limit for too long.
    #[error(
        "{0}; it may take one later, and another oracle can take the place of this one meanwhile"
    )]
    DiskStalled(String),
    /// Nobody can reach an address such as 0.0.0.0.
    #[error(
        "the oracle listens on every address ({address}), which is none that clients could \
         connect to; say with --advertise HOST:PORT where they reach it"
    )]
    AdvertiseMissing {
        /// Where it listens.
        address: std::net::SocketAddr,
    },
}
