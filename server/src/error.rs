//! Why a server process cannot start or go on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use percolator_register::files::FileError;

/// Any error of a caller, as tonic and tower write it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a server process cannot start or go on. Every message names the fact, what was asked for, the reason and
/// what to do. Nothing is left for [`std::error::Error::source`], so that a log of both repeats nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens on the address.
    #[error(
        "cannot listen on {address}: the address is in use by another process; \
         stop that process, or listen on another port (port 0 picks a free one)"
    )]
    AddressInUse {
        /// Where to listen.
        address: SocketAddr,
    },
    /// The system does not let this user listen on the address.
    #[error(
        "cannot listen on {address}: not permitted; \
         ports below 1024 need a privilege: choose a port from 1024 on"
    )]
    AddressNotPermitted {
        /// Where to listen.
        address: SocketAddr,
    },
    /// The machine has no such address.
    #[error(
        "cannot listen on {address}: this machine has no such address; \
         listen on 127.0.0.1 (this machine only), [::] (every address) or an address it has"
    )]
    AddressNotHere {
        /// Where to listen.
        address: SocketAddr,
    },
    /// Nobody can reach a server there.
    #[error(
        "--advertise {text:?} is no address: it is written HOST:PORT, as in server.example:7400, 10.0.0.1:7400 or \
         [fd00::1]:7400, or as an IP address alone"
    )]
    NoAddress {
        /// What is no address.
        text: String,
    },
    /// Listening failed for another reason.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// Where to listen.
        address: SocketAddr,
        /// The system's error.
        cause: io::Error,
    },
    /// A register can't be opened.
    #[error("{0}")]
    OpenRegister(BoxError),
    /// Standard output does not take the line with the address on which the server listens.
    #[error("cannot write to standard output where the server listens: {cause}")]
    Announce {
        /// The system's error.
        cause: io::Error,
    },
    /// Serving ended with an error.
    #[error("serving on {address} failed: {}", innermost(.cause))]
    Serve {
        /// Where the server listened.
        address: SocketAddr,
        /// The transport's error.
        cause: tonic::transport::Error,
    },
    /// The runtime cannot be built.
    #[error("cannot start the runtime of {name}: {cause}")]
    Runtime {
        /// Whose runtime.
        name: String,
        /// The system's error.
        cause: io::Error,
    },

    /// A file or folder cannot be read or written.
    #[error("cannot {action} {}: {cause}", .path.display())]
    File {
        /// What was tried: "read", "write", "create", ...
        action: &'static str,
        /// Which file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The user of this process may not use the file or folder.
    #[error(
        "cannot {action} {}: permission denied; give it to the user that runs this process \
         (chown, or a volume's fsGroup), or choose another folder", .path.display()
    )]
    Permission {
        /// What was tried: "read", "write", "create", ...
        action: &'static str,
        /// Which file or folder.
        path: PathBuf,
    },
    /// A file does not hold what this program wrote.
    #[error(
        "{} is damaged: {reason}; restore it from a copy of the same volume: \
         without it this server would forget what it promised", .path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A value is too large for a small file.
    #[error(
        "{bytes} bytes are too many for {}: at most {bytes_max}", .path.display()
    )]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Size of the value.
        bytes: usize,
        /// The most that such a file holds.
        bytes_max: usize,
    },

    /// Another process has the folder.
    #[error(
        "the folder {} is in use by another process; stop that process, or give {server} another folder \
         with --data-dir", .path.display()
    )]
    FolderInUse {
        /// Which folder.
        path: PathBuf,
        /// The server that was to start.
        server: String,
    },
    /// The folder holds files of something else.
    #[error(
        "the folder {} has no IDENTITY but holds other files ({found}, for example); \
         give {server} an empty folder or one that does not exist yet", .path.display()
    )]
    FolderForeign {
        /// Which folder.
        path: PathBuf,
        /// One of the files in it.
        found: String,
        /// The server that was to start.
        server: String,
    },
    /// The folder belongs to another role, server or cluster.
    #[error(
        "the folder {} belongs to {what} {found:?}, not to {what} {asked:?}; \
         start it with the folder that is its own, or start {found:?} with this one", .path.display()
    )]
    FolderOfAnother {
        /// Which folder.
        path: PathBuf,
        /// What differs: "role", "server" or "cluster".
        what: &'static str,
        /// Whose it is.
        found: String,
        /// The server that asked for it.
        asked: String,
    },
    /// The folder's format is one that this program does not know.
    #[error(
        "the folder {} has format {found}, and this program knows format {known}; \
         run the version of the program that wrote it", .path.display()
    )]
    FolderFormat {
        /// Which folder.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format of this program.
        known: u32,
    },

    /// The address of the master is no address.
    #[error(transparent)]
    MasterAddress(#[from] percolator_wire::NoMasterAddress),
    /// The master refuses this server.
    #[error(
        "the master at {master} refuses {server}: {reason}; \
         check that --master names the master of this server's cluster"
    )]
    Refused {
        /// Where the master is.
        master: String,
        /// The refused server.
        server: String,
        /// The master's reason.
        reason: String,
    },
    /// The server cannot join the cluster that the master has named.
    #[error("{server} cannot belong to cluster {cluster_id:?} of the master at {master}: {cause}")]
    Adopt {
        /// Where the master is.
        master: String,
        /// The server.
        server: String,
        /// The cluster that the master has named.
        cluster_id: String,
        /// Why not.
        cause: BoxError,
    },
}

/// The innermost source of an error: transports wrap it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

impl Error {
    /// The error of a system call on a file or folder.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| match cause.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Permission { action, path }
            }
            _ => Self::File {
                action,
                path,
                cause,
            },
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Self::file(error.action, error.path)(error.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_says_is_no_source_besides() {
        let why = || io::Error::other("the reason");
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let path = || PathBuf::from("data");
        for error in [
            Error::Listen {
                address,
                cause: why(),
            },
            Error::Announce { cause: why() },
            Error::Runtime {
                name: "tso".into(),
                cause: why(),
            },
            Error::file("read", path())(why()),
            Error::Adopt {
                master: "here:1".into(),
                server: "tso-0".into(),
                cluster_id: "c1".into(),
                cause: why().into(),
            },
        ] {
            assert!(std::error::Error::source(&error).is_none(), "{error:?}");
            let message = error.to_string();
            assert!(message.ends_with("the reason"), "{message}");
        }
    }
}
