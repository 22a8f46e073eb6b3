//! What a tablet server finds when it verifies what it has stored.

use bytes::Bytes;
use percolator_protocol::types::{Cell, Timestamp};

/// A part of what a tablet server has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredPart {
    Records,
    /// Values with a key of their own.
    Values,
    /// The index of garbage.
    Index,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The tablet server.
    pub server: String,
    /// The tablet.
    pub tablet: u64,
    /// The cell.
    pub cell: Cell,
    /// Of the record, value or entry.
    pub ts: Timestamp,
    /// In words.
    pub what: String,
}

/// The items of a tablet in one page.
#[derive(Debug)]
pub(crate) struct VerifiedTablet {
    /// Zero: rows of tablets that are not there any more.
    pub(crate) tablet: u64,
    pub(crate) seen: u64,
    pub(crate) waiting: u64,
    pub(crate) wrong: u64,
}

/// A page of a walk over a part.
#[derive(Debug)]
pub(crate) struct VerifiedPage {
    pub(crate) tablets: Vec<VerifiedTablet>,
    pub(crate) findings: Vec<Finding>,
    /// Empty: the part has ended.
    pub(crate) resume: Bytes,
}
