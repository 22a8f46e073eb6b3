//! What a tablet server reports beside its tablets.

use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::{TableId, Timestamp};

/// A tablet that a server gets, or has tried to get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The tablet.
    pub tablet: u64,
    /// Its epoch at its owner.
    pub epoch: u64,
    /// Bytes of keys and values that the server has got.
    pub bytes: u64,
    /// All of it is there, and its owner decides.
    pub is_complete: bool,
    /// Why it was given up, if it was.
    pub failure: Option<String>,
    /// Its owner when the copy began.
    pub from: String,
    /// Its table.
    pub table: TableId,
    /// Where its rows begin.
    pub start_row: Bytes,
}

/// What keeps a server's locks from being resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacle {
    /// Why, for people.
    pub what: String,
    /// The transaction that holds it; zero: not known.
    pub start_ts: Timestamp,
    /// For how long it has been in the way.
    pub since: Duration,
}

/// What a server has to collect, and has collected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Where the oldest entry of its index lies; zero: nothing waits.
    pub oldest: Timestamp,
    /// Of each tablet.
    pub tablets: Vec<TabletCollected>,
}

/// The same of one tablet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TabletCollected {
    /// The tablet; zero: rows of tablets that aren't there any more.
    pub tablet: u64,
    /// Places that are collected once the safe point has passed them.
    pub waiting: u64,
    /// Records that were removed since the server's start.
    pub records: u64,
    /// Bytes that went with them.
    pub bytes: u64,
}

/// How large a tablet is, in bytes, or how much it is used, in cells a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// The tablet.
    pub tablet: u64,
    /// So much.
    pub amount: u64,
    /// The tablet is to be split: about half of it lies before this row.
    pub split_at: Option<Bytes>,
}

/// Where a server is, and which start of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Its name.
    pub server: String,
    /// The random number of its process' start.
    pub incarnation: u64,
    /// HOST:PORT; empty: not known.
    pub address: String,
}
