//! Errors of an engine.

use std::{io, path::PathBuf, sync::Arc};

/// An error of an engine. `Clone`, so that one failed group commit can answer each of its
/// callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused something.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// The verb of the operation, as in "cannot read".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// No space. Nothing of the group was written; it can be tried again when there is room.
    #[error(
        "no space left at {} for {needed_bytes} bytes (a reserve of {reserve_bytes} bytes is kept free for the \
         store): nothing was written; make room or enlarge the volume, then try again",
        path.display()
    )]
    Full {
        /// Folder whose file system is full.
        path: PathBuf,
        /// The needed room, in bytes.
        needed_bytes: u64,
        /// The reserve, in bytes.
        reserve_bytes: u64,
    },
    /// A file is not what was written to it.
    #[error(
        "{} is corrupt at byte {offset}: {detail}; nothing was skipped or repaired: find out what the device did; \
         one server's folder can't be restored from a backup alone (docs/correctness.md, by hand)",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset in it, in bytes.
        offset: u64,
        /// The damage.
        detail: String,
    },
    /// The folder has another format than this program writes.
    #[error(
        "{} has format {found}, this program reads format {expected}: use the program that wrote it, or another folder",
        path.display()
    )]
    WrongFormat {
        /// The folder.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// The folder belongs to another kind of engine.
    #[error(
        "{} is a folder of engine {found}, not of {asked}: ask for {found}, or give another folder",
        path.display()
    )]
    WrongEngine {
        /// The folder.
        path: PathBuf,
        /// Its engine.
        found: String,
        /// The engine asked for.
        asked: String,
    },
    /// The folder belongs to another server or to another cluster.
    #[error(
        "{} belongs to server {found_server} of cluster {}, not to server {server} of cluster {}: \
         mount the right volume, or give this server a folder of its own",
        path.display(), name(found_cluster), name(cluster)
    )]
    WrongServer {
        /// The folder.
        path: PathBuf,
        /// Cluster it belongs to, if it was ever set.
        found_cluster: Option<String>,
        /// Server it belongs to.
        found_server: String,
        /// Our cluster, if known.
        cluster: Option<String>,
        /// Our server.
        server: String,
    },
    /// Another process has the folder.
    #[error(
        "the folder {} is in use by {}: stop it first; one that is stopping already takes a few seconds to write \
         down what it holds",
        path.display(),
        holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process that has it, where it says so.
        holder: Option<u32>,
    },
    /// An earlier failure left it unknown what is on the device. Restart the process: opening the
    /// folder replays the log.
    #[error("the engine stopped: {cause}; restart the process, the log will be replayed")]
    Poisoned {
        /// The earlier failure.
        cause: String,
    },
    /// The group is durable in the log, but the store could not take it. The engine has stopped; a
    /// restart replays the group.
    #[error(
        "the group is durable, but the store failed: {cause}; the engine has stopped: see to the cause (a full disk?) \
         and restart the process, the log will be replayed"
    )]
    DurableButStopped {
        /// The failure of the store.
        cause: String,
    },
    /// Too much was changed while the snapshot was held.
    #[error(
        "the snapshot is too old: the changes made since then pass {limit_bytes} bytes; take a new one and go on from \
         the last key"
    )]
    SnapshotTooOld {
        /// The limit passed, in bytes.
        limit_bytes: u64,
    },
    /// A key is empty or too long. Nothing of the group was written.
    #[error("a key of {bytes} bytes: keys have 1 to {max_bytes} bytes; nothing was written")]
    InvalidKey {
        /// Its length, in bytes.
        bytes: usize,
        /// The longest possible, in bytes.
        max_bytes: usize,
    },
    /// The group is too large. Nothing of it was written.
    #[error(
        "a group of {bytes} bytes: at most {max_bytes} go into one commit; nothing was written, split it"
    )]
    TooLarge {
        /// Its size, in bytes.
        bytes: usize,
        /// The largest possible, in bytes.
        max_bytes: usize,
    },
    /// The store (redb, sled) reports an error of its own.
    #[error("{engine} at {}: {detail}", path.display())]
    Store {
        /// Whether its content differs from what was written to it.
        damaged: bool,
        /// Which store.
        engine: &'static str,
        /// Its folder.
        path: PathBuf,
        /// Its message.
        detail: String,
    },
    /// The engine is not in this program.
    #[error(
        "engine {engine} is not built into this program: build with the cargo feature '{engine}', or ask for another"
    )]
    NotBuilt {
        /// Which engine.
        engine: &'static str,
    },
    /// The engine was closed.
    #[error("the engine is closed: open the folder anew")]
    Closed,
}

fn name(cluster: &Option<String>) -> &str {
    cluster.as_deref().unwrap_or("(not known yet)")
}

impl Error {
    /// Whether what lies on the device is not what was written to it: to try again doesn't help.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. } | Self::Store { damaged: true, .. }
        )
    }

    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |cause| Error::Io {
            action,
            path,
            cause: Arc::new(cause),
        }
    }
}
