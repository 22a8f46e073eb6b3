//! Transactions for applications.
//!
//! ```no_run
//! use percolator_client::{Client, Error};
//!
//! # async fn transfer() -> Result<(), Error> {
//! let client = Client::connect("127.0.0.1:7400").await?;
//! client
//!     .transact(|txn| async move {
//!         let bob = txn.get("accounts", "bob", "balance").await?;
//!         txn.put("accounts", "joe", "balance", bob.unwrap_or_default())?;
//!         txn.delete("accounts", "bob", "balance")?;
//!         Ok(())
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! Reads see one snapshot; writes are buffered until the commit, which is atomic over rows, tables and
//! servers. Beyond [`Options::buffer_bytes`] they are flushed while the transaction goes on: anyone who writes that much
//! waits for room now and then ([`Txn::ready`]). A closure of [`Client::transact`] runs again when another transaction was first.
//! [`Client::measure`] shows what it does in a registry of the application's.
//! [`Client::begin`] gives a transaction to commit by hand. Errors are values: see [`Error`]; a closure of
//! [`Client::try_transact`] has errors of the application's own.
//!
//! # Keys
//! Rows are bytes, and in their order. [`mod@tuple`] packs numbers, texts and tuples of them so that the bytes are in the
//! order of the values: `tuple::pack(&("user", 42))`. It is the encoding of FoundationDB's tuple layer, which many
//! languages have a library for.
//!
//! # Own writes
//! A transaction's reads see what it has written: `get` and `batch_get` what is written when they are called, a scan what
//! was written when it began. What is written ahead of a scan that goes on, and flushed ([`Options::buffer_bytes`]), may be seen by it or
//! not: collect the rows before writing behind the last one of them.
//!
//! # Cancellation
//! A call that is dropped before its end, as by a timeout of the application's, leaves nothing half done. A read is given
//! up. A commit goes on by itself, or is rolled back where nothing was decided: anyone who drops [`Txn::commit`] doesn't know
//! which, and may ask [`Client::outcome`]. A [`Txn`] that is dropped is rolled back. What goes on behind a response ends
//! with the runtime; [`Client::settle`] waits for it, and what is left nevertheless is cleared by the transaction that meets it.
//!
//! # Runtimes
//! Calls run on the tokio runtime that they are awaited on, also another one than that on which the client connected.
//! [`blocking`] is for applications without one.

// Modules depend on each other in one direction, with two exceptions, each of which is one unit in several files:
// - a router and the way of its requests: `router`, `attempts`, `retry`, `trace`, `metrics`, `session`. An attempt is counted, traced
//   and repeated by the router that made it, and the lease is renewed by way of the router that it covers.
// - a transaction and its steps: `txn`, `reading`, `scan`, `commit`, `large`. A flush of a large transaction is a commit's first phase.
mod admin;
mod attempts;
pub mod blocking;
mod changes;
mod client;
mod cluster;
mod collection;
mod commit;
mod connection;
mod convert;
mod doom;
mod error;
mod findings;
mod group;
mod index;
mod kind;
mod large;
mod locate;
mod location_cache;
mod lock_resolver;
mod locks;
mod master;
mod metrics;
mod network;
mod no_response;
mod observer;
mod options;
pub mod oracle;
mod own;
mod peers;
mod pinned;
mod raw;
mod reading;
mod rebuild;
mod relays;
mod resolver;
mod retry;
mod router;
mod running;
mod scan;
mod session;
mod shared;
mod tables;
mod ticker;
mod timestamp_client;
mod trace;
mod transact;
pub mod transport;
mod txn;
mod verify;

pub use admin::Admin;
pub use bytes::Bytes;
pub use changes::{ChangeEvent, Changes, ChangesOptions, Version};
pub use client::{Client, Outcome};
pub use cluster::{
    Cluster, IntroducedProxy, ReportedServer, ServerFailure, ServerRole, StandbyMaster, Table,
    Tablet,
};
#[doc(hidden)]
pub use collection::LeaseRequest;
pub use collection::{
    GcChange, GcHolder, GcObstacle, GcServer, GcSettings, GcStatus, GcTablet, ProxyIntroduction,
    TxnOwner,
};
pub use error::{Conflict, Error};
pub use findings::Finding;
pub use foundationdb_tuple as tuple;
pub use index::{index_row, split_index_row};
pub use lock_resolver::{LockResolver, Obstacle};
pub use observer::{
    Change, DEAD_LETTERS, DeadLetter, Handler, HandlerError, NotificationQuery, ObservedStatus,
    Observer, ObserverCounts, ObserverOptions, ObserverWorker,
};
pub use options::Options;
pub use peers::{PeerError, TabletPeers};
pub use percolator_protocol::txn::Ending;
pub use percolator_protocol::types::{
    Cell, Chain, TableId, Timestamp, TraceParent, escape, limits, unescape,
};
pub use percolator_telemetry::{Error as MetricsError, Registry};
pub use rebuild::{MasterRebuild, RebuiltMaster, RebuiltServer, RebuiltTable};
pub use running::{AbortedTxn, RunningTxn, RunningTxns};
pub use scan::{Entry, Range, Scan};
pub use shared::{Buffered, BufferedChange, BufferedWrite, NotAdded};
pub use timestamp_client::TimestampClient;
pub use transact::{Attempts, OpenTxn};
pub use txn::{CellName, Txn};
pub use verify::{Position, Verification, VerifiedCounts};
