//! What clients did and what they were told.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId, Timestamp};

/// The name of a cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName {
    /// The table's name.
    pub table: String,
    /// The row.
    pub row: Bytes,
    /// The column.
    pub column: Bytes,
}

impl CellName {
    /// The cell, by its table's number.
    pub fn cell(&self, tables: &BTreeMap<String, u32>) -> Cell {
        let table = TableId(tables.get(&self.table).copied().unwrap_or_default());
        Cell::new(table, self.row.clone(), self.column.clone())
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (row, column) = (
            percolator_client::escape(&self.row),
            percolator_client::escape(&self.column),
        );
        write!(f, "{}/{row}:{column}", self.table)
    }
}

/// What a transaction did.
#[derive(Clone, Debug)]
pub enum Op {
    /// It read a cell.
    Read {
        /// Which.
        cell: CellName,
        /// Its value.
        value: Option<Bytes>,
    },
    /// It read a range of rows.
    Scan(RangeRead),
    /// It wrote a cell, or got it for update.
    Write(Write),
}

impl Op {
    fn table(&self) -> &str {
        match self {
            Self::Read { cell, .. } | Self::Write(Write { cell, .. }) => &cell.table,
            Self::Scan(range) => &range.table,
        }
    }
}

/// A scan of a range of rows.
#[derive(Clone, Debug)]
pub struct RangeRead {
    /// The table's name.
    pub table: String,
    /// The first row.
    pub start: Bytes,
    /// The row behind the last one; empty: the table's end.
    pub end: Bytes,
    /// Row, column and value of what was found.
    pub cells: Vec<(Bytes, Bytes, Bytes)>,
}

/// A change.
#[derive(Clone, Debug)]
pub struct Write {
    /// Of which cell.
    pub cell: CellName,
    /// The new value; none: deleted, or only got for update.
    pub value: Option<Bytes>,
    /// Nothing is changed, the cell was got for update.
    pub is_lock: bool,
}

/// How a transaction ended, as its client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It wasn't told to commit.
    Open,
    /// It was told to commit, and nothing was answered: it may be committed.
    Unknown,
    /// It is committed.
    Committed(Timestamp),
    /// It is not, for this reason.
    Aborted(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Unknown => f.write_str("unknown"),
            Self::Committed(commit_ts) => write!(f, "committed at {commit_ts}"),
            Self::Aborted(why) => write!(f, "aborted: {why}"),
        }
    }
}

/// A transaction.
#[derive(Clone, Debug)]
pub struct Record {
    /// The client's name.
    pub client: String,
    /// When it was asked to begin, in microseconds of the world.
    pub began_us: u64,
    /// When its end was known.
    pub ended_us: u64,
    /// Its snapshot.
    pub start_ts: Timestamp,
    /// The snapshot was taken for it, and is not an old one.
    pub fresh: bool,
    /// What it did, in order.
    pub ops: Vec<Op>,
    /// It was told to commit, and no answer came; how it ended may have been found out later.
    pub lost: bool,
    /// How it ended.
    pub end: End,
}

impl Record {
    /// Its changes, the last of each cell.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        let mut last: BTreeMap<&CellName, &Write> = BTreeMap::new();
        for op in &self.ops {
            if let Op::Write(write) = op {
                last.insert(&write.cell, write);
            }
        }
        last.into_values()
    }
}

/// Leaves out what was read and written in other tables than these: nothing is known that it could be held against.
pub fn forget_others(history: &mut [Record], tables: &BTreeMap<String, u32>) {
    for record in history {
        record.ops.retain(|op| tables.contains_key(op.table()));
    }
}
