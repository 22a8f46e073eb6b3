//! `percolator export`: a table's rows, as of one snapshot.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Stdout, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use parking_lot::Mutex;
use percolator_client::{Client, Range, Timestamp, escape};

use super::progress::Progress;
use super::records::{NotText, short, to_json, to_text};
use super::{FileFormat, count, json, say as say_now};
use crate::cells::Escaped;
use crate::errors::Usage;
use crate::output::Output;
use crate::retries::Snapshot;

const WRITE_BYTES: usize = 256 << 10;
/// Most columns of a CSV file that names them itself: they are held in memory.
const COLUMNS_MAX: usize = 10_000;

const DETAILS: &str = "\
Every row becomes a record, its columns the fields, in order. Values are read in the form in which \
`percolator import` stores them: what reads as JSON is JSON, everything else a string. So what was imported \
from JSON lines comes back the same.

In a CSV file a string is written as its text, anything else as JSON, and a field that a row doesn't have \
as nothing. Its header has the columns of all rows, which are read once more for that, at the same snapshot; \
with --columns it has those (and the --key before them), and it is said how many cells of others were left out.

A row's own name is in its record where some column holds it, as after an import. Where no column of the first row does, \
every record has it as the field \"row\", or as the one that --key names. Rows whose record doesn't have it nevertheless are \
written all the same, counted and said, and the exit code is 1: nobody could tell of which rows they are. Columns that are \
named with --columns are taken at their word.";

/// The field of a row's name, where no column holds it and no other is named.
const KEY: &str = "row";

const EXAMPLES: &str = "\
Examples:
  percolator export --table users > users.jsonl
  percolator export --table users --format csv --columns id,name,email > users.csv
  percolator export --table users --prefix a --at 463372648734720

The snapshot's timestamp is said on standard error; with --at it reads the same again.

Exit code 1: it could not be read to the end, or the names of rows are missing from what was written.";

/// Write a table's rows to standard output, as of one snapshot.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{DETAILS}\n\n{EXAMPLES}"))]
pub(crate) struct Args {
    /// The table.
    #[arg(long, value_name = "TABLE", add = crate::complete::tables())]
    table: String,
    /// How the rows are written.
    #[arg(long, value_enum, default_value = "jsonl")]
    format: FileFormat,
    /// Read as of this timestamp, not of now.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<u64>,
    /// Only rows that start with this.
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<Escaped>,
    /// Add the row's name as this field, where the row has no such column. Default: row, where no column of the first
    /// row holds its name.
    #[arg(long, value_name = "FIELD")]
    key: Option<String>,
    /// The columns of a CSV file, in this order; others are left out. Default: all that any row has.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    columns: Vec<String>,
    /// Write bytes that are no text in their escaped form, \xNN. Default: they are an error, for they
    /// would not come back.
    #[arg(long)]
    escape: bool,
    /// Give up when a server is away for this long.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) request_timeout: Duration,
}

/// A row of the table.
#[derive(Debug, Default)]
struct Row {
    key: Bytes,
    /// In the order of their names.
    fields: Vec<(Bytes, Bytes)>,
}

impl Row {
    fn value(&self, column: &Bytes) -> Option<&Bytes> {
        let place = self.fields.binary_search_by(|(name, _)| name.cmp(column));
        place.ok().map(|place| &self.fields[place].1)
    }
}

impl Args {
    /// What can be found wrong before anybody is asked anything.
    pub(crate) fn check(&self) -> Result<(), Usage> {
        if !self.columns.is_empty() && self.format != FileFormat::Csv {
            return Err(Usage(
                "--columns is for --format csv; JSON lines have every column".into(),
            ));
        }
        Ok(())
    }
}

pub(crate) async fn run(client: &Client, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Mutex::new(Progress::new(output, None));
    let say = |message: &str| progress.lock().note(message);
    let written = write(client, &args, &progress, &say).await;
    progress.lock().clear();
    match written {
        Err(error) if is_closed_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
        Ok(Written {
            rows,
            snapshot,
            keyless,
            left_out,
        }) => {
            output.note(&format!("{} at snapshot {snapshot}", count(rows, "row")));
            if left_out > 0 {
                output.note(&format!(
                    "{} of columns that --columns doesn't name left out",
                    count(left_out, "cell")
                ));
            }
            let Some(first) = keyless.first else {
                return Ok(ExitCode::SUCCESS);
            };
            say_now(&format!(
                "error: rows written without their name: {}, the first is {}; no column of theirs holds it, and \
                 `percolator import` wants to know of one: export with --key FIELD, which adds it, and import with the \
                 same --key",
                keyless.rows,
                short(&first)
            ));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The reader has gone, as `head` does.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

async fn write(
    client: &Client,
    args: &Args,
    progress: &Mutex<Progress>,
    say: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<Written> {
    let snapshot = Snapshot::take(client, args.at, args.request_timeout, say).await?;
    let range = || match &args.prefix {
        Some(prefix) => Range::prefix(prefix.0.clone()),
        None => Range::all(),
    };
    let key = match (&args.key, args.columns.is_empty()) {
        (None, true) => key_by_default(&snapshot, &args.table, range()).await?,
        (key, _) => key.clone(),
    };
    let columns = match args.format {
        FileFormat::Jsonl => Vec::new(),
        FileFormat::Csv => csv_columns(&snapshot, range(), args, key.as_deref(), progress).await?,
    };
    let mut cells = snapshot.txn.scan(&args.table, range()).await?;
    let mut writer = Writer::new(args, key, columns)?;
    let mut rows = 0;
    let mut row = Row::default();
    while let Some(cell) = snapshot.next(&mut cells).await? {
        if cell.row != row.key {
            if !row.key.is_empty() {
                writer.row(&row)?;
                rows += 1;
                progress.lock().show(rows, || count(rows, "row"));
            }
            row.key = cell.row;
            row.fields.clear();
        }
        row.fields.push((cell.column, cell.value));
    }
    if !row.key.is_empty() {
        writer.row(&row)?;
        rows += 1;
    }
    let (keyless, left_out) = (std::mem::take(&mut writer.keyless), writer.left_out);
    writer.end()?;
    Ok(Written {
        rows,
        snapshot: snapshot.txn.start_ts(),
        keyless,
        left_out,
    })
}

/// The columns of a CSV file: those that were asked for, or all that any row has, in order.
async fn csv_columns(
    snapshot: &Snapshot<'_>,
    range: Range,
    args: &Args,
    key: Option<&str>,
    progress: &Mutex<Progress>,
) -> anyhow::Result<Vec<Bytes>> {
    if !args.columns.is_empty() {
        return Ok(named(&args.columns, key));
    }
    let mut found = BTreeSet::new();
    let mut looked_at = 0;
    let mut cells = snapshot.txn.scan(&args.table, range).await?;
    while let Some(cell) = snapshot.next(&mut cells).await? {
        found.insert(cell.column);
        if found.len() > COLUMNS_MAX {
            bail!(
                "the rows have more than {COLUMNS_MAX} columns, too many for the header of a CSV file; name those \
                 you want with --columns, or write --format jsonl"
            );
        }
        looked_at += 1;
        let message = || format!("{} looked at for the header", count(looked_at, "cell"));
        progress.lock().show(looked_at, message);
    }
    Ok(header(found, key))
}

/// [`KEY`], where no column of the first row holds its name.
async fn key_by_default(
    snapshot: &Snapshot<'_>,
    table: &str,
    range: Range,
) -> anyhow::Result<Option<String>> {
    let mut row = Row::default();
    let mut cells = snapshot.txn.scan(table, range.limit_rows(1)).await?;
    while let Some(cell) = snapshot.next(&mut cells).await? {
        row.key = cell.row;
        row.fields.push((cell.column, cell.value));
    }
    let is_free = row.value(&Bytes::from_static(KEY.as_bytes())).is_none();
    let is_missing = !row.key.is_empty() && is_free && !holds_its_key(&row);
    Ok(is_missing.then(|| KEY.to_owned()))
}

/// The key comes first, where no row has it as a column.
fn header(columns: BTreeSet<Bytes>, key: Option<&str>) -> Vec<Bytes> {
    // A table without rows has no header.
    if columns.is_empty() {
        return Vec::new();
    }
    let key = key.map(|key| Bytes::from(key.to_owned()));
    let added = key.filter(|key| !columns.contains(key));
    added.into_iter().chain(columns).collect()
}

/// The columns that were asked for, behind the key, where that is none of them.
fn named(asked: &[String], key: Option<&str>) -> Vec<Bytes> {
    let added = key.filter(|key| asked.iter().all(|name| name != key));
    let names = added.into_iter().chain(asked.iter().map(String::as_str));
    names.map(|name| Bytes::from(name.to_owned())).collect()
}

/// What was written.
struct Written {
    rows: u64,
    /// As of which timestamp.
    snapshot: Timestamp,
    /// Cells of columns that weren't asked for.
    left_out: u64,
    keyless: Keyless,
}

/// Rows whose name no field of their record holds.
#[derive(Debug, Default)]
struct Keyless {
    rows: u64,
    first: Option<Bytes>,
}

/// Writes rows in one of the formats.
struct Writer<'a> {
    args: &'a Args,
    /// The field that is added.
    key: Option<String>,
    out: Out,
    /// Of a CSV file, in its order.
    columns: Vec<Bytes>,
    /// The same.
    written: BTreeSet<Bytes>,
    left_out: u64,
    keyless: Keyless,
}

enum Out {
    Json(BufWriter<Stdout>),
    Csv(Box<csv::Writer<Stdout>>),
}

impl<'a> Writer<'a> {
    /// Begins a file of these columns, if it is one with columns.
    fn new(args: &'a Args, key: Option<String>, columns: Vec<Bytes>) -> anyhow::Result<Self> {
        let out = match args.format {
            FileFormat::Jsonl => Out::Json(BufWriter::with_capacity(WRITE_BYTES, io::stdout())),
            FileFormat::Csv => {
                let mut out = csv::WriterBuilder::new()
                    .buffer_capacity(WRITE_BYTES)
                    .from_writer(io::stdout());
                if !columns.is_empty() {
                    let names = header_fields(&columns, args.escape)?;
                    out.write_record(&names).map_err(io::Error::from)?;
                }
                Out::Csv(Box::new(out))
            }
        };
        Ok(Self {
            args,
            key,
            out,
            written: columns.iter().cloned().collect(),
            columns,
            left_out: 0,
            keyless: Keyless::default(),
        })
    }

    fn row(&mut self, row: &Row) -> anyhow::Result<()> {
        let key = self.key.as_deref();
        match &mut self.out {
            Out::Json(out) => {
                let line = json_line(row, key, self.args.escape)?;
                out.write_all(line.as_bytes())?;
            }
            Out::Csv(out) => {
                let fields = csv_fields(row, key, &self.columns, self.args.escape)?;
                out.write_record(&fields).map_err(io::Error::from)?;
                let names = row.fields.iter().map(|(name, _)| name);
                let left_out = names.filter(|name| !self.written.contains(*name));
                self.left_out += left_out.count() as u64;
            }
        }
        // Anyone who names the columns wants these and no others.
        let asks = self.args.key.is_none() && self.args.columns.is_empty();
        if asks && self.key.is_none() && !holds_its_key(row) {
            self.keyless.rows += 1;
            self.keyless.first.get_or_insert_with(|| row.key.clone());
        }
        Ok(())
    }

    fn end(self) -> io::Result<()> {
        match self.out {
            Out::Json(mut out) => out.flush(),
            Out::Csv(mut out) => out.flush(),
        }
    }
}

/// Whether some field of the record is the row, as `percolator import --key` would read it.
fn holds_its_key(row: &Row) -> bool {
    let values = row.fields.iter().map(|(_, value)| value);
    values
        .map(|value| to_text(value))
        .any(|text| text.is_ok_and(|text| text.as_bytes() == row.key))
}

fn json_line(row: &Row, key: Option<&str>, escape: bool) -> anyhow::Result<String> {
    let mut line = String::from("{");
    let mut push = |name: &str, value: &str| {
        if line.len() > 1 {
            line.push(',');
        }
        line.push_str(&json::quote(name));
        line.push(':');
        line.push_str(value);
    };
    let in_text = |bytes: &[u8], what| text(bytes, row, what, escape);
    key_is_its_own(row, key)?;
    if let Some(key) = key
        && !row.fields.iter().any(|(name, _)| name == key.as_bytes())
    {
        push(key, &json::quote(&in_text(&row.key, "the row")?));
    }
    for (name, value) in &row.fields {
        let value = match to_json(value) {
            Ok(value) => value,
            Err(NotText) => json::quote(&text(
                value,
                row,
                &format!("column {}", short(name)),
                escape,
            )?),
        };
        push(&in_text(name, "a column's name")?, &value);
    }
    line.push_str("}\n");
    Ok(line)
}

/// The names of a CSV file's columns.
fn header_fields(columns: &[Bytes], escaped: bool) -> anyhow::Result<Vec<String>> {
    let field = |name: &Bytes| {
        if name.is_empty() {
            bail!(
                "a column's name is empty, which no CSV file can say; use --format jsonl, or --columns without it"
            );
        }
        text_of(name, || "a column's name".to_owned(), escaped)
    };
    columns.iter().map(field).collect()
}

/// Bytes as text; those that are none only escaped, and only if that is wanted.
fn text(bytes: &[u8], row: &Row, what: &str, escaped: bool) -> anyhow::Result<String> {
    text_of(
        bytes,
        || format!("row {}: {what}", short(&row.key)),
        escaped,
    )
}

fn text_of(bytes: &[u8], what: impl FnOnce() -> String, escaped: bool) -> anyhow::Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) if escaped => Ok(escape(bytes)),
        Err(_) => bail!(
            "{} is not UTF-8 text, {}; --escape writes it in this form",
            what(),
            short(bytes)
        ),
    }
}

/// Under the key's name a row's own column would stand in the place of the row, which would be lost.
fn key_is_its_own(row: &Row, key: Option<&str>) -> anyhow::Result<()> {
    let Some(key) = key else {
        return Ok(());
    };
    let own = row.fields.iter().find(|(name, _)| name == key.as_bytes());
    match own {
        Some((_, value)) if !to_text(value).is_ok_and(|text| text.as_bytes() == row.key) => bail!(
            "row {}: its column {key} holds something else than the row: give a --key that is no column",
            short(&row.key)
        ),
        _ => Ok(()),
    }
}

fn csv_fields(
    row: &Row,
    key: Option<&str>,
    columns: &[Bytes],
    escape: bool,
) -> anyhow::Result<Vec<String>> {
    key_is_its_own(row, key)?;
    columns
        .iter()
        .map(|column| {
            let value = row.value(column);
            let is_key = key.is_some_and(|key| column == key.as_bytes());
            match value {
                Some(value) => to_text(value).or_else(|NotText| {
                    let what = format!("column {}", short(column));
                    text(value, row, &what, escape)
                }),
                None if is_key => text(&row.key, row, "the row", escape),
                None => Ok(String::new()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches};

    use super::*;

    fn args(words: &[&str]) -> Args {
        let command = Args::augment_args(clap::Command::new("export"));
        let words = ["export", "--table", "t"].iter().chain(words);
        Args::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
    }

    #[test]
    fn a_header_says_what_an_import_can_read() {
        let names = |names: &[&'static [u8]], escaped| {
            let names: Vec<Bytes> = names.iter().map(|name| Bytes::from_static(name)).collect();
            header_fields(&names, escaped).map_err(|error| error.to_string())
        };
        assert_eq!(
            names(&[b"a", b"b"], false),
            Ok(vec!["a".into(), "b".into()])
        );
        let why = names(&[b"a", b"\xff"], false).unwrap_err();
        assert!(
            why.contains("not UTF-8 text") && why.contains("--escape"),
            "{why}"
        );
        assert_eq!(names(&[b"\xff"], true), Ok(vec!["\\xff".into()]));
        assert!(names(&[b""], true).unwrap_err().contains("--format jsonl"));
    }

    fn row(key: &'static str, fields: &[(&'static str, &'static [u8])]) -> Row {
        let field = |(name, value): &(&'static str, &'static [u8])| {
            (Bytes::from(*name), Bytes::from(*value))
        };
        Row {
            key: key.into(),
            fields: fields.iter().map(field).collect(),
        }
    }

    #[test]
    fn a_row_becomes_a_line() {
        let bob = row(
            "bob",
            &[
                ("a", b"1"),
                ("b", b"x\"y"),
                ("c", b"\"1\""),
                ("d", b"{ \"z\" : [] }"),
            ],
        );
        assert_eq!(
            json_line(&bob, None, false).unwrap(),
            "{\"a\":1,\"b\":\"x\\\"y\",\"c\":\"1\",\"d\":{\"z\":[]}}\n"
        );
        let line = json_line(&row("bob", &[("a", b"1")]), Some("id"), false).unwrap();
        assert_eq!(line, "{\"id\":\"bob\",\"a\":1}\n");
        let line = json_line(&row("7", &[("id", b"7")]), Some("id"), false).unwrap();
        assert_eq!(line, "{\"id\":7}\n");
        let why = json_line(&row("bob", &[("id", b"7")]), Some("id"), false).unwrap_err();
        assert!(why.to_string().contains("row bob"), "{why}");
    }

    #[test]
    fn bytes_that_are_no_text_are_named() {
        let bad = row("bob", &[("a", b"\xff")]);
        let why = json_line(&bad, None, false).unwrap_err().to_string();
        assert!(
            why.contains("row bob: column a") && why.contains("\\xff"),
            "{why}"
        );
        assert_eq!(
            json_line(&bad, None, true).unwrap(),
            "{\"a\":\"\\\\xff\"}\n"
        );
    }

    #[test]
    fn a_csv_file_has_the_columns_that_were_found_or_named() {
        let found = || BTreeSet::from(["a", "b"].map(Bytes::from));
        assert_eq!(header(found(), None), ["a", "b"]);
        assert_eq!(header(found(), Some("b")), ["a", "b"]);
        assert_eq!(header(BTreeSet::new(), Some("id")), [""; 0]);
        let asked = ["b", "a"].map(String::from);
        assert_eq!(named(&asked, None), ["b", "a"]);
        assert_eq!(named(&asked, Some("a")), ["b", "a"]);
        assert_eq!(named(&asked, Some("id")), ["id", "b", "a"]);
        let columns = header(found(), Some("id"));
        assert_eq!(columns, ["id", "a", "b"]);
        let args = args(&["--key", "id", "--format", "csv"]);
        let fields = |row: &Row| csv_fields(row, Some("id"), &columns, args.escape).unwrap();
        let first = row("bob", &[("a", b"1"), ("b", b"x")]);
        assert_eq!(fields(&first), ["bob", "1", "x"]);
        let second = row("eve", &[("b", b"\"true\"")]);
        assert_eq!(fields(&second), ["eve", "", "true"]);
        let other = row("joe", &[("c", b"\xff")]);
        assert_eq!(fields(&other), ["joe", "", ""]);
    }
}
