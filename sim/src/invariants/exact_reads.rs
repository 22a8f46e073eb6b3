//! A read at a snapshot sees exactly what was committed at or below it (ARCHITECTURE, "What always
//! holds", 3), and what the transaction wrote itself until then, whoever died meanwhile, also where it was aborted
//! later. The
//! versions that are stored at the end, and those that were collected until then, tell what every read should have
//! seen; that none was collected too early, "collected rightly" says.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId, Timestamp};

use super::Invariant;
use crate::history::{Op, RangeRead, Record};
use crate::watch::End;

pub(super) struct ExactReads;

impl Invariant for ExactReads {
    fn name(&self) -> &'static str {
        "reads are exact"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        end.history.iter().try_for_each(|record| check(end, record))
    }
}

/// What a transaction has written until now, and sees instead of what is committed.
type Own = BTreeMap<Cell, Option<Bytes>>;

fn check(end: &End<'_>, record: &Record) -> Result<(), String> {
    let mut own = Own::new();
    for op in &record.ops {
        let wrong = match op {
            Op::Write(write) => {
                if !write.is_lock {
                    own.insert(write.cell.cell(end.tables), write.value.clone());
                }
                None
            }
            Op::Read { cell, value } => {
                let place = cell.cell(end.tables);
                let expected = match own.get(&place) {
                    Some(own) => own.as_ref(),
                    None => end.store.value_at(&place, record.start_ts),
                };
                (expected != value.as_ref()).then(|| {
                    format!(
                        "{cell} as {} instead of {}",
                        shown(value.as_ref()),
                        shown(expected)
                    )
                })
            }
            Op::Scan(range) => range_is_wrong(end, range, record.start_ts, &own),
        };
        if let Some(wrong) = wrong {
            return Err(format!(
                "{} read at snapshot {}: {wrong}",
                record.client, record.start_ts
            ));
        }
    }
    Ok(())
}

fn range_is_wrong(
    end: &End<'_>,
    range: &RangeRead,
    snapshot: Timestamp,
    own: &Own,
) -> Option<String> {
    let table = TableId(*end.tables.get(&range.table)?);
    let from = Cell::new(table, range.start.clone(), Bytes::new());
    let within =
        |cell: &Cell| cell.table == table && (range.end.is_empty() || cell.row < range.end);
    let stored = end.store.versions.range(from.clone()..);
    let mut expected: BTreeMap<&Cell, &Bytes> = stored
        .take_while(|(cell, _)| within(cell))
        .filter_map(|(cell, _)| Some((cell, end.store.value_at(cell, snapshot)?)))
        .collect();
    for (cell, value) in own.range(from..).take_while(|(cell, _)| within(cell)) {
        match value {
            Some(value) => expected.insert(cell, value),
            None => expected.remove(cell),
        };
    }
    let found: BTreeMap<Cell, &Bytes> = range
        .cells
        .iter()
        .map(|(row, column, value)| (Cell::new(table, row.clone(), column.clone()), value))
        .collect();
    if found.len() != range.cells.len() {
        return Some(format!("a scan of {} has a cell twice", range.table));
    }
    let missing = expected
        .iter()
        .find(|(cell, value)| found.get(**cell) != Some(*value));
    if let Some((cell, value)) = missing {
        let instead = found.get(*cell).copied();
        return Some(format!(
            "in a scan of {}, cell {cell} as {} instead of {}",
            range.table,
            shown(instead),
            shown(Some(value))
        ));
    }
    let added = found.iter().find(|(cell, _)| !expected.contains_key(cell));
    added.map(|(cell, value)| {
        format!(
            "in a scan of {}, cell {cell} as {} instead of nothing",
            range.table,
            shown(Some(value))
        )
    })
}

fn shown(value: Option<&Bytes>) -> String {
    value.map_or_else(
        || "nothing".to_owned(),
        |value| format!("{:?}", percolator_client::escape(value).to_string()),
    )
}
