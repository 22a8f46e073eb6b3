//! A read at a snapshot sees exactly what was committed at or below it (ARCHITECTURE, "What always
//! holds", 3), and what the transaction wrote itself until then, anyone who died meanwhile, also where it was aborted
//! later. The
//! versions that are stored at the end, and those that were collected until then, tell what every read should have
//! seen; that none was collected too early, "collected rightly" says.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId, Timestamp};

use super::Invariant;
use crate::end::End;
use crate::history::{Op, RangeRead, Record};

/// Its name.
pub(crate) const NAME: &str = "reads are exact";

pub(super) struct ExactReads;

impl Invariant for ExactReads {
    fn name(&self) -> &'static str {
        NAME
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

#[cfg(test)]
mod tests {
    use super::super::made_up::{assert_broken, read, record, said, scanned, version, wrote};
    use super::*;
    use crate::history::End as Ended;

    /// What is said of a transaction at 10 that did this, where the row `a` was written at 5, again at 12, and `b` at 5
    /// and deleted at 10, and `c` is there from 10 on.
    fn seen(ops: Vec<Op>) -> Result<(), String> {
        let stored = [
            (
                "a",
                vec![version(4, 5, Some("a5")), version(11, 12, Some("a12"))],
            ),
            ("b", vec![version(4, 5, Some("b5")), version(9, 10, None)]),
            ("c", vec![version(8, 10, Some("c10"))]),
        ];
        let end = Ended::Aborted("it counts all the same".to_owned());
        said(&mut ExactReads, &[record(10, 0, ops, end)], &stored)
    }

    #[test]
    fn a_read_sees_what_was_committed_at_or_below_its_snapshot() {
        let right = [
            read("a", Some("a5")),
            read("b", None),
            read("c", Some("c10")),
            read("d", None),
        ];
        assert_eq!(seen(right.into()), Ok(()));
        for (wrong, words) in [
            (read("a", Some("a12")), "t/a:c as \"a12\" instead of \"a5\""),
            (read("a", None), "t/a:c as nothing instead of \"a5\""),
            (read("b", Some("b5")), "t/b:c as \"b5\" instead of nothing"),
            (read("c", None), "t/c:c as nothing instead of \"c10\""),
            (read("d", Some("d")), "t/d:c as \"d\" instead of nothing"),
        ] {
            assert_broken(seen(vec![wrong]), words);
        }
    }

    #[test]
    fn a_scan_sees_all_of_that_and_nothing_else() {
        let all = [("a", "a5"), ("c", "c10")];
        assert_eq!(seen(vec![scanned("", "", &all)]), Ok(()));
        assert_eq!(seen(vec![scanned("b", "c", &[])]), Ok(()));
        for (start, end, found, words) in [
            ("", "", &[("a", "a5")][..], "as nothing instead of \"c10\""),
            (
                "",
                "",
                &[("a", "a12"), ("c", "c10")],
                "as \"a12\" instead of \"a5\"",
            ),
            (
                "",
                "",
                &[("a", "a5"), ("b", "b5"), ("c", "c10")],
                "as \"b5\" instead of nothing",
            ),
            (
                "",
                "",
                &[("a", "a5"), ("a", "a5"), ("c", "c10")],
                "has a cell twice",
            ),
            ("b", "c", &[("c", "c10")], "as \"c10\" instead of nothing"),
        ] {
            assert_broken(seen(vec![scanned(start, end, found)]), words);
        }
    }

    #[test]
    fn its_own_writes_hide_what_is_committed_from_then_on() {
        let own = || {
            vec![
                read("a", Some("a5")),
                wrote("a", Some("own")),
                wrote("c", None),
            ]
        };
        let then = |op| own().into_iter().chain([op]).collect();
        assert_eq!(seen(then(read("a", Some("own")))), Ok(()));
        assert_eq!(seen(then(scanned("", "", &[("a", "own")]))), Ok(()));
        assert_broken(
            seen(then(read("a", Some("a5")))),
            "as \"a5\" instead of \"own\"",
        );
        assert_broken(
            seen(then(read("c", Some("c10")))),
            "as \"c10\" instead of nothing",
        );
        let unchanged = scanned("", "", &[("a", "a5"), ("c", "c10")]);
        assert_broken(seen(then(unchanged)), "as \"a5\" instead of \"own\"");
    }
}
