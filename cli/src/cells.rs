//! `percolator get`, `put`, `delete`, `scan` and `outcome`: each a transaction of its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use percolator_client::{
    Cell, CellName, Client, Entry, Error, Outcome, Range, TableId, Timestamp, Txn, escape,
    split_index_row, unescape,
};
use serde_json::json;

use crate::answered;
use crate::errors::{InOtherWords, Usage};
use crate::output::{CellJson, Cells, Format, Output};

/// Bytes, typed in their escaped form.
#[derive(Clone, Debug)]
pub(crate) struct Escaped(pub(crate) Bytes);

impl FromStr for Escaped {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        unescape(text).map(|bytes| Self(bytes.into()))
    }
}

/// What a file has, read when its name is typed: before anybody is asked anything.
#[derive(Clone)]
struct Content(Bytes);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl FromStr for Content {
    type Err = String;

    fn from_str(file: &str) -> Result<Self, String> {
        let mut content = Vec::new();
        let read = match file {
            "-" => io::stdin().lock().read_to_end(&mut content),
            file => File::open(file).and_then(|mut file| file.read_to_end(&mut content)),
        };
        match read {
            Ok(_) => Ok(Self(content.into())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// How long a command of one transaction waits.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Waiting {
    /// Give up when a server is away for this long.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) request_timeout: Duration,
}

/// What to read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator get accounts bob balance          prints the value, and nothing else
  percolator get accounts bob balance owner    prints both cells, with their columns
  percolator get accounts bob                  prints the cells of the row
  percolator get accounts bob balance --at 463372648734720
  percolator get accounts bob photo --raw > bob.jpg

Exit code 7 where there's no value (of several columns: for one of them), 6 where there's no such table.")]
pub(crate) struct GetArgs {
    /// The table.
    #[arg(add = crate::complete::tables())]
    table: String,
    /// The row.
    row: Escaped,
    /// The column, or several; without it, every cell of the row.
    #[arg(value_name = "COLUMN")]
    columns: Vec<Escaped>,
    /// Write the value's bytes as they are, with nothing behind them.
    #[arg(long, requires = "columns")]
    raw: bool,
    /// Read as of this timestamp, not of now: one from `put`'s message, say, and no older than the retention of
    /// versions (`percolator gc status`).
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<u64>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// What to write.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator put accounts bob balance 10
  percolator put accounts bob balance 10 owner Bob
  percolator put accounts bob photo --file bob.jpg
  percolator put accounts bob home 'C:\\\\bob'        # a backslash: C:\\bob")]
pub(crate) struct PutArgs {
    /// The table.
    #[arg(add = crate::complete::tables())]
    table: String,
    /// The row.
    row: Escaped,
    /// Columns and their values, in turn; with --file one column. Here, in rows, and in results as text, a backslash
    /// begins an escape: `\\`, `\n`, `\r`, `\t`, or `\xNN` for any byte.
    #[arg(
        required = true,
        allow_negative_numbers = true,
        value_name = "COLUMN VALUE"
    )]
    cells: Vec<Escaped>,
    /// The value is what this file has; -: what standard input has.
    #[arg(long, value_name = "FILE")]
    file: Option<Content>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// What to delete.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator delete accounts bob balance
  percolator delete accounts bob           every cell of the row")]
pub(crate) struct DeleteArgs {
    /// The table.
    #[arg(add = crate::complete::tables())]
    table: String,
    /// The row.
    row: Escaped,
    /// The column; without it, every cell of the row.
    column: Option<Escaped>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// A value in the table of an index.
#[derive(Clone, Debug)]
struct AtIndex {
    table: String,
    value: Bytes,
}

impl FromStr for AtIndex {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (table, value) = text
            .split_once('=')
            .filter(|(table, _)| !table.is_empty())
            .ok_or("it is written INDEX_TABLE=VALUE, as in users_by_email=ann@example.com")?;
        Ok(Self {
            table: table.to_owned(),
            value: unescape(value)?.into(),
        })
    }
}

/// What to scan.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator scan accounts --limit 10
  percolator scan accounts --prefix b --reverse
  percolator scan accounts --from b --to d -o json
  percolator scan animals --index animals-by-kind=insect     the rows that this index has at this value

Rows, columns and values stand in columns on a terminal; elsewhere there is a tab between them.")]
pub(crate) struct ScanArgs {
    /// The table.
    #[arg(add = crate::complete::tables())]
    table: String,
    /// First row.
    #[arg(long, value_name = "ROW", conflicts_with = "prefix")]
    from: Option<Escaped>,
    /// Row to stop before.
    #[arg(long, value_name = "ROW", conflicts_with = "prefix")]
    to: Option<Escaped>,
    /// Only rows that start with this.
    #[arg(long)]
    prefix: Option<Escaped>,
    /// Only the rows that this index, as `percolator import --index` made it, has at this value.
    #[arg(long, value_name = "INDEX_TABLE=VALUE", conflicts_with_all = ["prefix", "from", "to"])]
    index: Option<AtIndex>,
    /// The most rows to print.
    #[arg(long, value_name = "ROWS")]
    limit: Option<u64>,
    /// From the last row to the first.
    #[arg(long)]
    reverse: bool,
    /// Read as of this timestamp, not of now: one from `put`'s message, say, and no older than the retention of
    /// versions (`percolator gc status`).
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<u64>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// Which transaction.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator outcome 463372648734720 3/bob:balance           the table by its number, as errors have it
  percolator outcome 463372648734720 accounts/bob:balance    or by its name

An error with exit code 4 names both. Exit code 7 while the transaction may still go either way.

Asking settles it: where the primary knows nothing of the transaction, and the ttl of its lock is over, it is
rolled back there. So a cell that is not its primary also says \"rolled back\".")]
pub(crate) struct OutcomeArgs {
    /// The transaction's start_ts.
    start_ts: u64,
    /// Its primary: TABLE/ROW or TABLE/ROW:COLUMN, the table's number or its name. (A name of digits alone is taken
    /// for a number.)
    primary: Primary,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Clone, Debug)]
struct Primary {
    table: String,
    row: Vec<u8>,
    column: Vec<u8>,
}

impl Primary {
    async fn cell(&self, client: &Client) -> Result<Cell, Error> {
        let id = match self.table.parse() {
            Ok(id) => id,
            Err(_) => {
                let tables = client.tables().await?.into_iter();
                let mut named = tables.filter(|table| table.name == self.table);
                let named = named.next().ok_or_else(|| Error::UnknownTable {
                    name: self.table.clone(),
                });
                named?.id
            }
        };
        Ok(Cell::new(
            TableId(id),
            self.row.clone(),
            self.column.clone(),
        ))
    }
}

impl FromStr for Primary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str =
            "a primary is written TABLE/ROW:COLUMN, as in 3/bob:balance or accounts/bob:balance";
        let (table, cell) = text.split_once('/').ok_or(FORM)?;
        if table.is_empty() {
            return Err(FORM.into());
        }
        let (row, column) = cell.split_once(':').unwrap_or((cell, ""));
        if column.contains(':') {
            return Err(format!(
                "{FORM}; a colon within the row or the column is written \\x3a"
            ));
        }
        Ok(Self {
            table: table.to_owned(),
            row: unescape(row)?,
            column: unescape(column)?,
        })
    }
}

async fn begin(client: &Client, at: Option<u64>) -> Result<Txn, percolator_client::Error> {
    match at {
        Some(at) => client.begin_at(Timestamp::from_u64(at)).await,
        None => client.begin().await,
    }
}

impl GetArgs {
    /// What can be found wrong before anybody is asked anything.
    pub(crate) fn check(&self, output: Output) -> Result<(), Usage> {
        if self.raw && (self.columns.len() != 1 || output.format == Format::Json) {
            let why = "--raw writes the bytes of one value: name one column, and no -o json";
            return Err(Usage(why.to_owned()));
        }
        Ok(())
    }
}

pub(crate) async fn get(
    client: &Client,
    args: GetArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let txn = begin(client, args.at).await?;
    let row = &args.row.0;
    let columns: Vec<Bytes> = args.columns.into_iter().map(|column| column.0).collect();
    let names: Vec<CellName<'_>> = columns
        .iter()
        .map(|column| (args.table.as_str(), &row[..], &column[..]))
        .collect();
    match &columns[..] {
        [] => get_row(&txn, &args.table, row, output).await,
        [column] => {
            let value = txn.get(&args.table, row, column).await?;
            match (&value, output.format) {
                (Some(value), Format::Text) if args.raw => {
                    let mut out = io::stdout().lock();
                    out.write_all(value)?;
                    out.flush()?;
                }
                (_, Format::Json) => print_json(row, column, value.as_deref(), output)?,
                (Some(value), Format::Text) => output.line(&escape(value))?,
                (None, Format::Text) => output.note("no value"),
            }
            Ok(answered(value.is_some()))
        }
        columns => {
            let values = txn.batch_get(&names).await?;
            let all = values.iter().all(Option::is_some);
            let mut out = Cells::new(output, false);
            for (column, value) in columns.iter().zip(values) {
                match (value, output.format) {
                    (value, Format::Json) => print_json(row, column, value.as_deref(), output)?,
                    (Some(value), Format::Text) => out.print(&Entry {
                        row: row.clone(),
                        column: column.clone(),
                        value,
                    })?,
                    (None, Format::Text) => {
                        output.note(&format!("no value in column {}", escape(column)));
                    }
                }
            }
            out.end()?;
            Ok(answered(all))
        }
    }
}

async fn get_row(txn: &Txn, table: &str, row: &Bytes, output: Output) -> anyhow::Result<ExitCode> {
    let cells = txn.scan(table, Range::row(row)).await?.collect().await?;
    let mut out = Cells::new(output, false);
    for cell in &cells {
        out.print(cell)?;
    }
    out.end()?;
    if cells.is_empty() {
        output.note("no value");
    }
    Ok(answered(!cells.is_empty()))
}

fn print_json(
    row: &[u8],
    column: &[u8],
    value: Option<&[u8]>,
    output: Output,
) -> anyhow::Result<()> {
    let json = CellJson::new(row, column, value);
    Ok(output.line(&serde_json::to_string(&json)?)?)
}

/// Columns and their values of one row, typed in turn.
pub(crate) fn pairs(words: Vec<Escaped>) -> Result<Vec<(Bytes, Bytes)>, Usage> {
    let mut pairs: Vec<(Bytes, Bytes)> = Vec::new();
    let mut columns = BTreeSet::new();
    let mut words = words.into_iter();
    while let Some(Escaped(column)) = words.next() {
        let Some(Escaped(value)) = words.next() else {
            return Err(Usage(format!("column {} has no value", escape(&column))));
        };
        if !columns.insert(column.clone()) {
            return Err(Usage(format!(
                "column {} is given twice; a cell has one value",
                escape(&column)
            )));
        }
        pairs.push((column, value));
    }
    Ok(pairs)
}

impl PutArgs {
    /// The cells; it is found wrong here, before anybody is asked anything, where they aren't any.
    pub(crate) fn written(&self) -> Result<Vec<(Bytes, Bytes)>, Usage> {
        match (&self.file, &self.cells[..]) {
            (None, cells) => pairs(cells.to_vec()),
            (Some(Content(value)), [Escaped(column)]) => Ok(vec![(column.clone(), value.clone())]),
            (Some(_), _) => Err(Usage(
                "--file gives the value of one column: name that alone".into(),
            )),
        }
    }
}

pub(crate) async fn put(
    client: &Client,
    args: PutArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let cells = args.written()?;
    let txn = client.begin().await?;
    for (column, value) in cells {
        txn.put(&args.table, &args.row.0, &column, value)?;
    }
    committed(txn, output).await
}

pub(crate) async fn delete(
    client: &Client,
    args: DeleteArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let txn = client.begin().await?;
    let row = &args.row.0;
    match args.column {
        Some(Escaped(column)) => txn.delete(&args.table, row, &column)?,
        None => {
            let mut cells = txn.scan(&args.table, Range::row(row)).await?;
            while let Some(cell) = cells.next().await? {
                txn.delete(&args.table, row, &cell.column)?;
            }
        }
    }
    committed(txn, output).await
}

async fn committed(txn: Txn, output: Output) -> anyhow::Result<ExitCode> {
    let start_ts = txn.start_ts();
    let commit_ts = txn.commit().await?;
    match output.format {
        Format::Text => output.note(&format!("committed at {commit_ts}")),
        Format::Json => output.line(
            &json!({"start_ts": start_ts.to_string(), "commit_ts": commit_ts.to_string()})
                .to_string(),
        )?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn scan(
    client: &Client,
    args: ScanArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut range = match (&args.index, args.prefix) {
        (Some(index), _) => Range::index_value(&index.value),
        (None, Some(Escaped(prefix))) => Range::prefix(prefix),
        (None, None) => Range::rows(
            args.from.map(|row| row.0).unwrap_or_default(),
            args.to.map(|row| row.0).unwrap_or_default(),
        ),
    };
    if args.reverse {
        range = range.reverse();
    }
    if let Some(limit) = args.limit {
        range = range.limit_rows(limit);
    }
    let txn = begin(client, args.at).await?;
    let mut out = Cells::new(output, true);
    if let Some(index) = &args.index {
        let ended = scan_index(&txn, &args.table, &index.table, range, &mut out).await;
        out.end()?;
        return ended.map(|()| ExitCode::SUCCESS);
    }
    let mut cells = txn.scan(&args.table, range).await?;
    let ended = loop {
        match cells.next().await {
            Ok(Some(cell)) => out.print(&cell)?,
            Ok(None) => break Ok(ExitCode::SUCCESS),
            Err(error) => break Err(error.into()),
        }
    };
    out.end()?;
    ended
}

/// Rows that are read at a time.
const ROWS_AT_A_TIME: usize = 32;

/// Prints the rows of the table that the entries of an index in this range point at.
async fn scan_index(
    txn: &Txn,
    table: &str,
    index: &str,
    range: Range,
    out: &mut Cells,
) -> anyhow::Result<()> {
    // A wrong name is an error, also if the index has nothing.
    txn.check_table(table).await?;
    if let Err(error) = txn.check_table(index).await {
        let message = format!("{error}; --index takes the index's table and a value, TABLE=VALUE");
        return Err(InOtherWords { message, error }.into());
    }
    let entries = txn.scan(index, range).await?.into_stream();
    let rows = entries.map(|entry| async move {
        let entry = entry?;
        let Some((_, key)) = split_index_row(&entry.row) else {
            return Err(Error::Invalid(format!(
                "row {} of table {index} is no entry of an index",
                escape(&entry.row)
            )));
        };
        txn.scan(table, Range::row(key)).await?.collect().await
    });
    let mut rows = std::pin::pin!(rows.buffered(ROWS_AT_A_TIME));
    while let Some(cells) = rows.next().await {
        for cell in &cells? {
            out.print(cell)?;
        }
    }
    Ok(())
}

pub(crate) async fn outcome(
    client: &Client,
    args: OutcomeArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let start_ts = Timestamp::from_u64(args.start_ts);
    let primary = args.primary.cell(client).await?;
    let (text, json, code) = match client.outcome(start_ts, &primary).await? {
        Outcome::Committed(commit_ts) => (
            format!("committed at {commit_ts}"),
            json!({"outcome": "committed", "commit_ts": commit_ts.to_string()}),
            ExitCode::SUCCESS,
        ),
        Outcome::RolledBack => (
            "rolled back".to_owned(),
            json!({"outcome": "rolled back"}),
            ExitCode::SUCCESS,
        ),
        Outcome::Forgotten => (
            "no longer known: it began so long ago that its records may have been collected. It may be committed: look at \
             what it wrote before it is done again"
                .to_owned(),
            json!({"outcome": "forgotten"}),
            ExitCode::from(4),
        ),
        Outcome::Pending => (
            "pending: its client may still commit it; ask again".to_owned(),
            json!({"outcome": "pending"}),
            answered(false),
        ),
    };
    output.result(&text, &json)?;
    Ok(code)
}
