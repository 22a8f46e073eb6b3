//! Ordered columns with atomic, durable batches and snapshots: redb, sled and memory behind one trait.
//!
//! ```
//! use percolator_engine::{Batch, Column, EngineKind, Options, Read, open};
//!
//! let folder = std::env::temp_dir();
//! let engine = open(&folder, &Options::new(EngineKind::Memory, "tablet-0"))?;
//! let mut batch = Batch::default();
//! batch.put(Column::Data, "bob@5", "10");
//! batch.put(Column::Write, "bob@6", "data@5");
//! engine.commit(&[batch])?; // on the device (of an on-disk engine) when it returns
//! assert_eq!(engine.get(Column::Data, b"bob@5")?.as_deref(), Some(&b"10"[..]));
//! # Ok::<(), percolator_engine::Error>(())
//! ```
//!
//! Durability is made in one place, [`Durable`]: a write-ahead log in front of the store. Snapshots of
//! stores that have none are made in one place, [`Versioned`]. The crate knows nothing of
//! transactions, and uses neither a clock nor randomness (except to measure how long a sync took).

mod backend;
mod batch;
mod buffered;
mod column;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod disk;
mod durable;
mod engine;
mod error;
mod filter;
mod folder;
mod log;
mod memory;
mod open;
mod options;
mod read;
#[cfg(feature = "redb")]
mod redb_store;
#[cfg(feature = "sled")]
mod sled_store;
#[cfg_attr(not(any(feature = "sled", feature = "redb")), allow(dead_code))]
mod stored;
mod versioned;
mod volatile;

pub use backend::{Backend, Checkpoint, PageSize, Step, StepHook, Store};
pub use batch::Batch;
pub use buffered::{Buffered, ConcurrentStore};
pub use column::Column;
pub use disk::free_bytes;
pub use durable::{Checkpoints, Durable};
pub use engine::{Engine, MAX_GROUP_BYTES, MAX_KEY_BYTES, Stats};
pub use error::Error;
pub use filter::CountingFilter;
pub use folder::{FORMAT, Identity, LOCK_FILE, adopt_cluster, identity};
pub use memory::MemoryStore;
pub use open::open;
pub use options::{EngineKind, Options, RESERVE_BYTES, UnknownEngine};
pub use read::{Direction, Key, Read, Scan, Snapshot, Value};
#[cfg(feature = "redb")]
pub use redb_store::RedbStore;
#[cfg(feature = "sled")]
pub use sled_store::SledStore;
pub use versioned::Versioned;
pub use volatile::MemoryEngine;
