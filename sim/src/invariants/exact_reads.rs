//! A read at a snapshot sees exactly what was committed at or below it (ARCHITECTURE, "What always
//! holds", 3), whoever died meanwhile, also where the reader's own transaction was aborted later. The
//! versions that are stored at the end, and those that were collected until then, tell what every read should have
//! seen; that none was collected too early, "collected rightly" says.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId, Timestamp};

use super::Invariant;
use crate::history::{RangeRead, Read};
use crate::watch::End;

pub(super) struct ExactReads;

impl Invariant for ExactReads {
    fn name(&self) -> &'static str {
        "reads are exact"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        for record in end.history {
            for read in &record.reads {
                let wrong = match read {
                    Read::Cell { cell, value } => {
                        let expected = end.store.value_at(&cell.cell(end.tables), record.start_ts);
                        (expected != value.as_ref()).then(|| {
                            format!(
                                "{cell} as {} instead of {}",
                                shown(value.as_ref()),
                                shown(expected)
                            )
                        })
                    }
                    Read::Range(range) => range_is_wrong(end, range, record.start_ts),
                };
                if let Some(wrong) = wrong {
                    return Err(format!(
                        "{} read at snapshot {}: {wrong}",
                        record.client, record.start_ts
                    ));
                }
            }
        }
        Ok(())
    }
}

fn range_is_wrong(end: &End<'_>, range: &RangeRead, snapshot: Timestamp) -> Option<String> {
    let table = TableId(*end.tables.get(&range.table)?);
    let from = Cell::new(table, range.start.clone(), Bytes::new());
    let expected: BTreeMap<&Cell, &Bytes> = end
        .store
        .versions
        .range(from..)
        .take_while(|(cell, _)| {
            cell.table == table && (range.end.is_empty() || cell.row < range.end)
        })
        .filter_map(|(cell, _)| Some((cell, end.store.value_at(cell, snapshot)?)))
        .collect();
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
