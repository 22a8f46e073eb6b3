//! What clients did and what came back, and whether snapshot isolation can explain it.
//!
//! [`Transaction`] is one line of a history; [`check`] looks for what snapshot isolation forbids, by the
//! graph of who depended on whom. Pure: no I/O, no clock, and nothing of how transactions are made.

mod check;
mod convert;
mod deletions;
mod graph;
mod hashed;
mod later;
mod locked;
mod recency;
mod together;
mod transaction;
mod versions;

pub use check::{Anomaly, Kind, Report, check};
pub use convert::{ConvertError, dbcop, elle, list};
pub use transaction::{FormatError, Op, Outcome, Times, Transaction, parse, write};
