//! The trait of an engine.

use std::time::Duration;

use crate::{Batch, Error, Read, Snapshot};

/// The longest key an engine takes, in bytes.
pub const MAX_KEY_BYTES: usize = 32 * 1024;

/// The largest group of batches in one [`Engine::commit`], in bytes.
pub const MAX_GROUP_BYTES: usize = 1 << 30;

/// Ordered columns with atomic batches, durable group commit and snapshots.
pub trait Engine: Read + Send + Sync {
    /// Applies each batch atomically, in order. When it returns `Ok`, all of them are on the device
    /// (of an on-disk engine) and visible; readers never see a part of a batch.
    ///
    /// Callers come one at a time: who has many batches waiting gives them as one group and pays for
    /// one sync.
    ///
    /// A group whose batches are all marked by [`Batch::spend_reserve`] is taken on a nearly full disk that
    /// refuses others.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::InvalidKey`], [`Error::TooLarge`]: nothing was written, the engine
    /// goes on. Anything else: the outcome is unknown until the folder is opened anew.
    fn commit(&self, group: &[Batch]) -> Result<(), Error>;

    /// The engine as it is now: all batches of the commits that have returned, each whole.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error>;

    /// Its statistics.
    fn stats(&self) -> Stats;

    /// A counter of steps that the disk does in the background, while commits may wait for it.
    fn signs_of_life(&self) -> u64 {
        0
    }

    /// Brings everything from the log into the store, so that the next open is quick, and refuses
    /// commits from then on. Not needed for safety: dropping an engine is like a crash, and loses
    /// nothing. The folder is free again when the engine and its snapshots are dropped.
    fn close(&self) -> Result<(), Error>;
}

/// Statistics of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Size on disk of store and log; of keys and values in memory. In bytes.
    pub size_bytes: u64,
    /// The log's part of it, in bytes.
    pub log_bytes: u64,
    /// Number of syncs of the log since it was opened.
    pub syncs: u64,
    /// How long the last of them took.
    pub last_sync: Duration,
    /// Bytes of a record at the end of the log that was not whole when it was opened, and was dropped: of a group that
    /// was answered to nobody.
    pub torn_bytes: u64,
    /// Number of snapshots alive.
    pub snapshots: u64,
}

/// Refuses a group no engine takes; its size in bytes.
pub(crate) fn check_group(group: &[Batch]) -> Result<usize, Error> {
    for (_, key, _) in group.iter().flat_map(Batch::ops) {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(Error::InvalidKey {
                bytes: key.len(),
                max_bytes: MAX_KEY_BYTES,
            });
        }
    }
    let bytes = group.iter().map(Batch::size_bytes).sum();
    if bytes > MAX_GROUP_BYTES {
        return Err(Error::TooLarge {
            bytes,
            max_bytes: MAX_GROUP_BYTES,
        });
    }
    Ok(bytes)
}
