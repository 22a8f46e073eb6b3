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
//! servers. Beyond [`Options::buffer_bytes`] they are flushed while the transaction goes on: whoever writes that much
//! waits for room now and then ([`Txn::ready`]). A closure of [`Client::transact`] runs again when another transaction was first.
//! [`Client::measure`] shows what it does in a registry of the application's.
//! [`Client::begin`] gives a transaction to commit by hand. Errors are values: see [`Error`].

mod admin;
mod attempts;
mod client;
mod cluster;
mod commit;
mod connection;
mod directory;
mod error;
mod index;
mod large;
mod metrics;
mod network;
pub mod oracle;
mod pinned;
mod reading;
mod resolver;
mod retry;
mod router;
mod running;
mod scan;
mod session;
mod sweep;
mod trace;
mod transact;
pub mod transport;
mod txn;
mod verify;

pub use admin::{
    Admin, GcChange, GcHolder, GcObstacle, GcServer, GcSettings, GcStatus, GcTablet, Owner,
};
pub use bytes::Bytes;
pub use client::{Client, Options, Outcome};
pub use cluster::{Cluster, Table, Tablet};
pub use error::{Conflict, Error};
pub use index::{index_row, split_index_row};
pub use percolator_protocol::txn::Ending;
pub use percolator_protocol::types::{Cell, TableId, Timestamp, escape, limits, unescape};
pub use percolator_telemetry::{Error as MetricsError, Registry};
pub use running::{Ended, RunningTxn, RunningTxns};
pub use scan::{Entry, Range, Scan};
pub use sweep::{InTheWay, Sweeper};
pub use transact::{Attempts, OpenTxn};
pub use txn::{CellName, Txn};
pub use verify::{Finding, Position, Verification, Verified};
