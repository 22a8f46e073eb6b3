//! The rules of Percolator transactions, pure: no I/O, no clock, no randomness, no logging.
//! Time and everything that was loaded come in as arguments; effects and typed rejections go out.
//!
//! - [`types`]: timestamps, cells, locks, write records, and their stored forms.
//! - [`actions`]: what a tablet server decides, one rule a file.
//! - [`txn`]: what a client does to commit, as a state machine.
//! - [`election`]: which of several timestamp oracles grants, and from where on.
//! - [`lease`]: how far a tablet server may answer that may have been replaced.
//! - [`oracle`]: what the timestamp oracle may hand out.
//! - [`safe_point`]: how far back transactions may reach, and what may be collected.

pub mod actions;
pub mod election;
pub mod lease;
#[doc(hidden)]
pub mod mutants;
pub mod oracle;
pub mod safe_point;
pub mod txn;
pub mod types;
