//! `percolator get`, `put`, `delete`, `scan` and `outcome`: each a transaction of its own.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::str::FromStr;

use bytes::Bytes;
use percolator_client::{Cell, Client, Outcome, Range, TableId, Timestamp, Txn, escape, unescape};
use serde_json::json;

use crate::answered;
use crate::errors::Usage;
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

/// What to read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator get accounts bob balance      prints the value, and nothing else
  percolator get accounts bob              prints the cells of the row
  percolator get accounts bob balance --at 463372648734720

Exit code 7 where there's no value, 6 where there's no such table.")]
pub(crate) struct GetArgs {
    table: String,
    row: Escaped,
    /// The column; without it, every cell of the row.
    column: Option<Escaped>,
    /// Read as of this timestamp, not of now.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<u64>,
}

/// What to write.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator put accounts bob balance 10
  percolator put accounts bob balance 10 owner Bob")]
pub(crate) struct PutArgs {
    table: String,
    row: Escaped,
    /// Columns and their values, in turn.
    #[arg(required = true, num_args = 2.., allow_negative_numbers = true, value_names = ["COLUMN", "VALUE"])]
    cells: Vec<Escaped>,
}

/// What to delete.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator delete accounts bob balance
  percolator delete accounts bob           every cell of the row")]
pub(crate) struct DeleteArgs {
    table: String,
    row: Escaped,
    /// The column; without it, every cell of the row.
    column: Option<Escaped>,
}

/// What to scan.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator scan accounts --limit 10
  percolator scan accounts --prefix b --reverse
  percolator scan accounts --from b --to d -o json

Rows, columns and values stand in columns on a terminal; elsewhere there is a tab between them.")]
pub(crate) struct ScanArgs {
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
    /// The most cells to print.
    #[arg(long, value_name = "CELLS")]
    limit: Option<u64>,
    /// From the last row to the first.
    #[arg(long)]
    reverse: bool,
    /// Read as of this timestamp, not of now.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<u64>,
}

/// Which transaction.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  percolator outcome 463372648734720 3/bob:balance

An error with exit code 4 names both. Exit code 7 while the transaction may still go either way.

Asking settles it: where the primary knows nothing of the transaction, and its life time is over, it is
rolled back there. So a cell that is not its primary also says \"rolled back\".")]
pub(crate) struct OutcomeArgs {
    /// The transaction's start_ts.
    start_ts: u64,
    /// Its primary: TABLE_ID/ROW or TABLE_ID/ROW:COLUMN.
    primary: Primary,
}

#[derive(Clone, Debug)]
struct Primary(Cell);

impl FromStr for Primary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "a primary is written TABLE_ID/ROW:COLUMN, as in 3/bob:balance";
        let (table, cell) = text.split_once('/').ok_or(FORM)?;
        let table = TableId(table.parse().map_err(|_| FORM)?);
        let (row, column) = cell.split_once(':').unwrap_or((cell, ""));
        if column.contains(':') {
            return Err(format!(
                "{FORM}; a colon within the row or the column is written \\x3a"
            ));
        }
        Ok(Self(Cell::new(table, unescape(row)?, unescape(column)?)))
    }
}

async fn begin(client: &Client, at: Option<u64>) -> Result<Txn, percolator_client::Error> {
    match at {
        Some(at) => client.begin_at(Timestamp::from_u64(at)).await,
        None => client.begin().await,
    }
}

pub(crate) async fn get(
    client: &Client,
    args: GetArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let txn = begin(client, args.at).await?;
    let row = &args.row.0;
    let Some(Escaped(column)) = args.column else {
        let cells = txn
            .scan(&args.table, Range::row(row))
            .await?
            .collect()
            .await?;
        let mut out = Cells::new(output, false);
        for cell in &cells {
            out.print(cell)?;
        }
        out.end()?;
        if cells.is_empty() {
            output.note("no value");
        }
        return Ok(answered(!cells.is_empty()));
    };
    let value = txn.get(&args.table, row, &column).await?;
    if output.format == Format::Json {
        let json = CellJson::new(row, &column, value.as_deref());
        output.line(&serde_json::to_string(&json)?)?;
    } else if let Some(value) = &value {
        output.line(&escape(value))?;
    } else {
        output.note("no value");
    }
    Ok(answered(value.is_some()))
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

pub(crate) async fn put(
    client: &Client,
    args: PutArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let cells = pairs(args.cells)?;
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
    let mut range = match args.prefix {
        Some(Escaped(prefix)) => Range::prefix(prefix),
        None => Range::rows(
            args.from.map(|row| row.0).unwrap_or_default(),
            args.to.map(|row| row.0).unwrap_or_default(),
        ),
    };
    if args.reverse {
        range = range.reverse();
    }
    if let Some(limit) = args.limit {
        range = range.limit(limit);
    }
    let txn = begin(client, args.at).await?;
    let mut cells = txn.scan(&args.table, range).await?;
    let mut out = Cells::new(output, true);
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

pub(crate) async fn outcome(
    client: &Client,
    args: OutcomeArgs,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let start_ts = Timestamp::from_u64(args.start_ts);
    let (text, json, code) = match client.outcome(start_ts, &args.primary.0).await? {
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
        Outcome::Pending => (
            "pending: its client may still commit it; ask again".to_owned(),
            json!({"outcome": "pending"}),
            answered(false),
        ),
    };
    output.result(&text, &json)?;
    Ok(code)
}
