//! Histories and stores that are made by hand, for the tests of invariants. All rows are of one table, in one column.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::types::{Timestamp, WriteKind};

use super::Invariant;
use crate::end::{End, Store, Version};
use crate::history::{CellName, End as Ended, Op, RangeRead, Record, Write};

const TABLE: &str = "t";

pub(super) fn ts(ts: u64) -> Timestamp {
    Timestamp::from_u64(ts)
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn cell(row: &str) -> CellName {
    CellName {
        table: TABLE.to_owned(),
        row: bytes(row),
        column: bytes("c"),
    }
}

/// It wrote a row; no value: it deleted it.
pub(super) fn wrote(row: &str, value: Option<&str>) -> Op {
    Op::Write(Write {
        cell: cell(row),
        value: value.map(bytes),
        is_lock: false,
    })
}

/// It read a row.
pub(super) fn read(row: &str, value: Option<&str>) -> Op {
    Op::Read {
        cell: cell(row),
        value: value.map(bytes),
    }
}

/// It read all rows from one on and before another one, and found these.
pub(super) fn scanned(start: &str, end: &str, found: &[(&str, &str)]) -> Op {
    let found = found.iter();
    Op::Scan(RangeRead {
        table: TABLE.to_owned(),
        start: bytes(start),
        end: bytes(end),
        cells: found
            .map(|(row, value)| (bytes(row), bytes("c"), bytes(value)))
            .collect(),
    })
}

/// A transaction that began at this timestamp, and at this microsecond, and ended one later.
pub(super) fn record(start_ts: u64, began_us: u64, ops: Vec<Op>, end: Ended) -> Record {
    Record {
        client: "client-0.0".to_owned(),
        began_us,
        ended_us: began_us + 1,
        start_ts: ts(start_ts),
        fresh: true,
        ops,
        lost: end == Ended::Unknown,
        end,
    }
}

/// A version of the transaction that began at the one timestamp, committed at the other; no value: it deleted the row.
pub(super) fn version(start_ts: u64, commit_ts: u64, value: Option<&str>) -> Version {
    Version {
        commit_ts: ts(commit_ts),
        start_ts: ts(start_ts),
        kind: match value {
            Some(_) => WriteKind::Put,
            None => WriteKind::Delete,
        },
        value: value.map(bytes),
    }
}

/// What an invariant says at the end of such a run.
pub(super) fn said(
    invariant: &mut dyn Invariant,
    history: &[Record],
    stored: &[(&str, Vec<Version>)],
) -> Result<(), String> {
    let tables = BTreeMap::from([(TABLE.to_owned(), 1)]);
    let versions = stored.iter();
    let versions = versions.map(|(row, versions)| (cell(row).cell(&tables), versions.clone()));
    let store = Store {
        versions: versions.collect(),
        ..Store::default()
    };
    invariant.at_end(&End {
        history,
        tables: &tables,
        store: &store,
        contents: &BTreeMap::new(),
        owned: &BTreeMap::new(),
    })
}

/// It is broken, and says so in these words.
#[track_caller]
pub(super) fn assert_broken(said: Result<(), String>, words: &str) {
    let broken = said.expect_err(words);
    assert!(broken.contains(words), "{broken}");
}
