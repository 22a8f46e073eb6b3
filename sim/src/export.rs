//! What clients did, in the format of `percolator-history`: for its checker and others'.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_history::{Op, Outcome, Times, Transaction};

use crate::history::{CellName, End, Op as Did, RangeRead, Record};

/// The cells of each table that anybody ever wrote: what a scan that didn't find one has read as nothing.
type Written = BTreeMap<String, BTreeSet<(Bytes, Bytes)>>;

/// The history of a run.
pub fn export(records: &[Record]) -> Vec<Transaction> {
    let mut written = Written::new();
    for write in records.iter().flat_map(Record::writes) {
        let CellName { table, row, column } = &write.cell;
        let cells = written.entry(table.clone()).or_default();
        cells.insert((row.clone(), column.clone()));
    }
    records
        .iter()
        .map(|record| transaction(record, &written))
        .collect()
}

fn transaction(record: &Record, written: &Written) -> Transaction {
    let mut ops = Vec::new();
    for did in &record.ops {
        match did {
            Did::Read { cell, value } => {
                ops.push(Op::Read(cell.to_string(), value.as_ref().map(text)));
            }
            Did::Scan(range) => read_range(range, written, &mut ops),
            Did::Write(write) => ops.push(if write.is_lock {
                Op::Lock(write.cell.to_string())
            } else {
                Op::Write(write.cell.to_string(), write.value.as_ref().map(text))
            }),
        }
    }
    let (outcome, commit_ts) = match record.end {
        End::Committed(ts) => (Outcome::Committed, Some(ts)),
        End::Unknown => (Outcome::Unknown, None),
        End::Open | End::Aborted(_) => (Outcome::Aborted, None),
    };
    Transaction {
        client: record.client.clone(),
        start_ts: Some(record.start_ts.as_u64()),
        commit_ts: commit_ts.map(|ts| ts.as_u64()),
        outcome,
        times: Some(Times {
            clock: "world".to_owned(),
            began_us: record.fresh.then_some(record.began_us),
            ended_us: Some(record.ended_us).filter(|ended_us| *ended_us < u64::MAX),
        }),
        ops,
    }
}

fn read_range(range: &RangeRead, written: &Written, ops: &mut Vec<Op>) {
    let name = |row: &Bytes, column: &Bytes| {
        CellName {
            table: range.table.clone(),
            row: row.clone(),
            column: column.clone(),
        }
        .to_string()
    };
    let mut found = BTreeSet::new();
    for (row, column, value) in &range.cells {
        ops.push(Op::Read(name(row, column), Some(text(value))));
        found.insert((row, column));
    }
    let from = (range.start.clone(), Bytes::new());
    for (row, column) in written
        .get(&range.table)
        .into_iter()
        .flat_map(|cells| cells.range(from.clone()..))
    {
        if (range.end.is_empty() || *row < range.end) && !found.contains(&(row, column)) {
            ops.push(Op::Read(name(row, column), None));
        }
    }
}

fn text(value: &Bytes) -> String {
    percolator_client::escape(value).to_string()
}

#[cfg(test)]
mod tests {
    use percolator_client::Timestamp;

    use super::*;
    use crate::history::Write;

    #[test]
    fn what_was_done_is_told_in_its_order() {
        let cell = |row: &'static str| CellName {
            table: "t".to_owned(),
            row: Bytes::from_static(row.as_bytes()),
            column: Bytes::from_static(b"c"),
        };
        let read = |value: Option<&'static str>| Did::Read {
            cell: cell("a"),
            value: value.map(Bytes::from),
        };
        let put = |value: &'static str| {
            Did::Write(Write {
                cell: cell("a"),
                value: Some(value.into()),
                is_lock: false,
            })
        };
        let scan = RangeRead {
            table: "t".to_owned(),
            start: Bytes::new(),
            end: Bytes::new(),
            cells: Vec::new(),
        };
        let record = Record {
            client: "client".to_owned(),
            began_us: 0,
            ended_us: u64::MAX,
            start_ts: Timestamp::from_u64(5),
            fresh: true,
            ops: vec![
                read(None),
                put("1"),
                read(Some("1")),
                put("2"),
                Did::Scan(scan),
            ],
            lost: true,
            end: End::Unknown,
        };
        let exported = export(&[record]);
        let read = |value: Option<&str>| Op::Read("t/a:c".to_owned(), value.map(str::to_owned));
        let put = |value: &str| Op::Write("t/a:c".to_owned(), Some(value.to_owned()));
        // The scan didn't find what it had written: the checker will say so.
        let wanted = [read(None), put("1"), read(Some("1")), put("2"), read(None)];
        assert_eq!(exported[0].ops, wanted);
    }
}
