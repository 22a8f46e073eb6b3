//! What has to be written so that a row, and its index entries, are as a record says. Knows of no
//! cluster: it is shown the old row's cells, one after the other.

use std::collections::BTreeSet;

use bytes::Bytes;
use percolator_client::index_row;
use percolator_client::limits::ROW_BYTES_MAX;

use super::IndexArg;
use super::records::Record;

/// A row's changes.
pub(crate) struct Diff<'a> {
    record: &'a Record,
    indexes: &'a [IndexArg],
    old_seen: bool,
    /// Columns whose value is as the record has it.
    same: BTreeSet<Bytes>,
    /// Columns that the record doesn't have.
    gone: Vec<Bytes>,
    /// Entries of values that are no longer there: the number of the index, and the entry's row.
    stale: Vec<(usize, Bytes)>,
}

/// What kind of row it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    New,
    Changed,
    Unchanged,
}

impl<'a> Diff<'a> {
    pub(crate) fn new(record: &'a Record, indexes: &'a [IndexArg]) -> Self {
        Self {
            record,
            indexes,
            old_seen: false,
            same: BTreeSet::new(),
            gone: Vec::new(),
            stale: Vec::new(),
        }
    }

    /// Takes a cell of the old row.
    pub(crate) fn old(&mut self, column: Bytes, value: &[u8]) {
        self.old_seen = true;
        let new = self.record.fields.get(&column);
        if new.is_some_and(|new| new == value) {
            self.same.insert(column);
            return;
        }
        for (at, index) in self.indexes.iter().enumerate() {
            if index.field.as_bytes() == column {
                let entry = index_row(value, &self.record.key);
                // A value that is too long for an entry never had one.
                if entry.len() <= ROW_BYTES_MAX {
                    self.stale.push((at, entry));
                }
            }
        }
        if new.is_none() {
            self.gone.push(column);
        }
    }

    pub(crate) fn change(&self) -> Change {
        match (
            self.old_seen,
            self.puts().next().is_none() && self.gone.is_empty(),
        ) {
            (false, _) => Change::New,
            (true, false) => Change::Changed,
            (true, true) => Change::Unchanged,
        }
    }

    pub(crate) fn record(&self) -> &'a Record {
        self.record
    }

    /// Cells to write: those with another value, or none, before.
    pub(crate) fn puts(&self) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> {
        let fields = self.record.fields.iter();
        fields.filter(|(column, _)| !self.same.contains(*column))
    }

    /// Columns to delete.
    pub(crate) fn gone(&self) -> &[Bytes] {
        &self.gone
    }

    /// Index entries to delete.
    pub(crate) fn stale(&self) -> &[(usize, Bytes)] {
        &self.stale
    }

    /// Index entries that have to be there, and whether their cell is unchanged: then they should be
    /// there already.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, Bytes, bool)> {
        self.indexes.iter().enumerate().filter_map(|(at, index)| {
            let field = index.field.as_bytes();
            let value = self.record.fields.get(field)?;
            let entry = index_row(value, &self.record.key);
            Some((at, entry, self.same.contains(field)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::records::Twin;

    fn record(fields: &[(&'static str, &'static str)]) -> Record {
        Record {
            line: 1,
            key: "bob".into(),
            twin: Twin::None,
            fields: fields
                .iter()
                .map(|(name, value)| (Bytes::from(*name), Bytes::from(*value)))
                .collect(),
        }
    }

    fn seen(diff: &Diff<'_>) -> (Change, Vec<String>) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let entry = |entry: &[u8]| {
            let (value, row) = percolator_client::split_index_row(entry).unwrap();
            format!("{}/{}", text(&value), text(row))
        };
        let mut ops: Vec<String> = diff
            .puts()
            .map(|(column, value)| format!("put {} {}", text(column), text(value)))
            .collect();
        ops.extend(
            diff.gone()
                .iter()
                .map(|column| format!("delete {}", text(column))),
        );
        ops.extend(
            diff.stale()
                .iter()
                .map(|(at, row)| format!("stale {at} {}", entry(row))),
        );
        ops.extend(diff.entries().map(|(at, row, same)| {
            format!(
                "{} {at} {}",
                if same { "keep" } else { "enter" },
                entry(&row)
            )
        }));
        (diff.change(), ops)
    }

    #[test]
    fn a_new_row_is_written_with_its_entries() {
        let indexes = ["name=n".parse().unwrap(), "city=c".parse().unwrap()];
        let record = record(&[("name", "Bob"), ("age", "4")]);
        let (change, ops) = seen(&Diff::new(&record, &indexes));
        assert_eq!(change, Change::New);
        assert_eq!(ops, ["put age 4", "put name Bob", "enter 0 Bob/bob"]);
    }

    #[test]
    fn only_what_differs_is_written() {
        let indexes = ["name=n".parse().unwrap(), "city=c".parse().unwrap()];
        let record = record(&[("name", "Bob"), ("age", "4")]);
        let mut diff = Diff::new(&record, &indexes);
        diff.old("age".into(), b"4");
        diff.old("city".into(), b"Ulm");
        diff.old("name".into(), b"Rob");
        diff.old("other".into(), b"x");
        let (change, ops) = seen(&diff);
        assert_eq!(change, Change::Changed);
        assert_eq!(
            ops,
            [
                "put name Bob",
                "delete city",
                "delete other",
                "stale 1 Ulm/bob",
                "stale 0 Rob/bob",
                "enter 0 Bob/bob",
            ]
        );
    }

    #[test]
    fn an_unchanged_row_keeps_its_entries() {
        let indexes = ["name=n".parse().unwrap()];
        let record = record(&[("name", "Bob")]);
        let mut diff = Diff::new(&record, &indexes);
        diff.old("name".into(), b"Bob");
        assert_eq!(
            seen(&diff),
            (Change::Unchanged, vec!["keep 0 Bob/bob".into()])
        );
    }

    #[test]
    fn an_old_value_too_long_for_an_entry_had_none() {
        let indexes = ["name=n".parse().unwrap()];
        let record = record(&[("name", "Bob")]);
        let mut diff = Diff::new(&record, &indexes);
        diff.old("name".into(), &[b'x'; 5000]);
        assert!(diff.stale().is_empty());
        assert_eq!(diff.change(), Change::Changed);
    }
}
