//! Rows from files and to files, and whether an index agrees with its data: `import`, `export`,
//! `check-index`.
//!
//! [`json`] and [`records`] know the stored form of a record's fields, [`lines`], [`csv_rows`] and
//! [`source`] how a file is read with bounded memory. None of these knows of a cluster.

pub(crate) mod check_index;
mod csv_rows;
mod diff;
mod elements;
pub(crate) mod export;
pub(crate) mod import;
mod json;
mod lines;
mod load;
pub(crate) mod progress;
mod reader;
mod records;
mod repair;
mod source;

use std::io::{self, Write};
use std::path::Path;

use clap::ValueEnum;

/// How rows are written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileFormat {
    /// JSON objects, one a line, or in one array.
    Jsonl,
    /// Comma-separated values with a header row, after RFC 4180.
    Csv,
}

impl FileFormat {
    /// The format that the file's extension stands for.
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "gz" => Self::of(Path::new(path.file_stem()?)),
            "jsonl" | "ndjson" | "json" => Some(Self::Jsonl),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

/// A secondary index: a field, and the table of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexArg {
    pub(crate) field: String,
    pub(crate) table: String,
}

impl std::str::FromStr for IndexArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A table's name has no `=`; a field's may.
        match text.rsplit_once('=') {
            Some((field, table)) if !field.is_empty() && !table.is_empty() => Ok(Self {
                field: field.to_owned(),
                table: table.to_owned(),
            }),
            _ => Err("an index is written FIELD=INDEX_TABLE, as in email=users_by_email".into()),
        }
    }
}

/// Why these indexes can't be those of one table: entries of two fields in one table, or among the
/// data, could not be distinguished.
fn indexes_invalid(table: &str, indexes: &[IndexArg]) -> Option<String> {
    for (at, index) in indexes.iter().enumerate() {
        if index.table == table {
            return Some(format!(
                "the index on {:?} can't be in the table of the data, {table}",
                index.field
            ));
        }
        for other in &indexes[..at] {
            if other.table == index.table {
                return Some(format!(
                    "the indexes on {:?} and {:?} can't share table {}",
                    other.field, index.field, index.table
                ));
            }
        }
    }
    None
}

/// Says on standard error what somebody has to act on, `--quiet` or not.
fn say(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// `1 row`, `2 rows`, `2 entries`.
fn count(number: u64, what: &str) -> String {
    match what.strip_suffix('y') {
        _ if number == 1 => format!("1 {what}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_its_field_and_its_table() {
        let index: IndexArg = "a=b=t".parse().unwrap();
        assert_eq!((index.field.as_str(), index.table.as_str()), ("a=b", "t"));
        for wrong in ["a", "=t", "a=", ""] {
            let why = wrong.parse::<IndexArg>().unwrap_err();
            assert!(why.contains("FIELD=INDEX_TABLE"), "{why}");
        }
    }

    #[test]
    fn indexes_have_tables_of_their_own() {
        let indexes = |list: &[&str]| -> Vec<IndexArg> {
            list.iter().map(|index| index.parse().unwrap()).collect()
        };
        assert_eq!(indexes_invalid("t", &indexes(&["a=x", "b=y"])), None);
        assert!(indexes_invalid("t", &indexes(&["a=t"])).is_some());
        assert!(indexes_invalid("t", &indexes(&["a=x", "b=x"])).is_some());
    }

    #[test]
    fn a_format_is_guessed_from_the_extension() {
        assert_eq!(
            FileFormat::of(Path::new("a/b.JSONL")),
            Some(FileFormat::Jsonl)
        );
        assert_eq!(FileFormat::of(Path::new("b.csv")), Some(FileFormat::Csv));
        assert_eq!(FileFormat::of(Path::new("b.csv.gz")), Some(FileFormat::Csv));
        assert_eq!(FileFormat::of(Path::new("gz")), None);
        assert_eq!(FileFormat::of(Path::new("b.txt")), None);
        assert_eq!(FileFormat::of(Path::new("csv")), None);
    }
}
