//! Why a master can't start or go on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use percolator_telemetry::{endpoint, otlp};

use crate::state::StateError;
use crate::stored::PersistError;

/// Why a master can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the folder, the file, the address or the serving.
    #[error(transparent)]
    Server(#[from] percolator_server::Error),
    /// Metrics can't be shown.
    #[error(transparent)]
    Metrics(#[from] endpoint::Error),
    /// Traces can't be sent.
    #[error(transparent)]
    Traces(#[from] otlp::Error),
    /// The state can't be read, or made durable.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// Nobody can reach an address such as 0.0.0.0.
    #[error(
        "the master listens on every address ({address}), which is none that others could connect to; say with --advertise \
         HOST:PORT where they reach it"
    )]
    AdvertiseMissing {
        /// Where it listens.
        address: SocketAddr,
    },
    /// Another master may have a folder that doesn't.
    #[error("a write to this master's folder has not ended within {within:?}: its disk hangs")]
    FolderHangs {
        /// So long the folder's copy of the state was waited for.
        within: Duration,
    },
    /// The register has room for shorter ones.
    #[error("the master's name and address are too long for its register")]
    NameTooLong,
    /// Of reaching itself, as its servers' client.
    #[error(transparent)]
    Itself(percolator_client::Error),
    /// The state is not one of this program.
    #[error("{register}: {cause}")]
    State {
        /// The file or object that holds it.
        register: String,
        /// What is wrong with it.
        cause: StateError,
    },
    /// A master that was alone has a state, and a shared register has another one.
    #[error(
        "{own} has this master's state, and the one in the register, {shared}, is of another cluster. Nothing was changed. Name the register of \
         this cluster; or stop all masters, set the register's value aside, and start this master first"
    )]
    TwoStates {
        /// The file in the master's folder.
        own: String,
        /// The register.
        shared: String,
    },
    /// A master that was alone has a state that a shared register has no room for.
    #[error(
        "{own} has this master's state of {bytes} bytes, and the register, {shared}, takes at most {bytes_max}, so that it can \
         still grow. Nothing was changed. Start this master without --register; or delete tables first"
    )]
    StateTooLarge {
        /// The file in the master's folder.
        own: String,
        /// Size of the state.
        bytes: usize,
        /// The register.
        shared: String,
        /// The most that may be moved there.
        bytes_max: usize,
    },
    /// A master that was alone is started without the register that has its state since.
    #[error(
        "the state of this master was moved into a register that it shared with others ({} is what it was then): start it with \
         --register",
        .path.display()
    )]
    Moved {
        /// What is left of it.
        path: PathBuf,
    },
    /// The file with what the manifest says can't be read, or says something else.
    #[error("{}, which --manifest names: {cause}", .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}
