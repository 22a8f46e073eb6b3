//! The options of an engine.

use std::{fmt, str::FromStr};

/// Which store is behind the trait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// sled behind our write-ahead log.
    Sled,
    /// redb (copy-on-write B-trees) behind our write-ahead log.
    #[default]
    Redb,
    /// A map in memory: nothing is kept.
    Memory,
}

impl EngineKind {
    /// Every kind.
    pub const ALL: [EngineKind; 3] = [EngineKind::Sled, EngineKind::Redb, EngineKind::Memory];

    /// Lower case, as in flags and in the folder's FORMAT.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Sled => "sled",
            EngineKind::Redb => "redb",
            EngineKind::Memory => "memory",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no engine's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine '{0}': it is one of redb, sled, memory")]
pub struct UnknownEngine(pub String);

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        EngineKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownEngine(name.to_owned()))
    }
}

/// Default of [`Options::reserve_bytes`].
pub const RESERVE_BYTES: u64 = 64 << 20;

/// The options of an engine: [`Options::new`], then set what differs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which store.
    pub kind: EngineKind,
    /// Name of the server whose folder this is, such as a pod's name. Checked at every open.
    pub server: String,
    /// Cluster the server belongs to; checked at every open if it is given here and was stored.
    pub cluster_id: Option<String>,
    /// Bytes of the store's cache of pages or blocks. For what it really costs see the stores'
    /// modules: sled keeps more than this in memory.
    pub cache_bytes: u64,
    /// A log segment that passes this many bytes is followed by a new one and a checkpoint.
    pub segment_bytes: u64,
    /// A commit is refused as [`crate::Error::Full`] if it would leave less free space than this, in
    /// bytes, or than the last reserve and twice what is in the log: the store needs room for that. Zero: no limit.
    pub reserve_bytes: u64,
    /// The same for a group whose batches are all marked by [`crate::Batch::spend_reserve`], in bytes. No
    /// more than `reserve_bytes`, of which what lies above this is theirs alone.
    pub last_reserve_bytes: u64,
    /// Memory, in bytes, that old values needed by live snapshots may take; above it
    /// the oldest snapshot answers [`crate::Error::SnapshotTooOld`].
    pub history_bytes: u64,
}

impl Options {
    /// Defaults: 64 MiB each of cache, log segment, reserve and history; a last reserve of 16 MiB; no cluster yet.
    pub fn new(kind: EngineKind, server: impl Into<String>) -> Options {
        const MIB_64: u64 = 64 << 20;
        Options {
            kind,
            server: server.into(),
            cluster_id: None,
            cache_bytes: MIB_64,
            segment_bytes: MIB_64,
            reserve_bytes: RESERVE_BYTES,
            last_reserve_bytes: 16 << 20,
            history_bytes: MIB_64,
        }
    }
}
