//! `percolator tablet`.

use std::convert::Infallible;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_client::{Client, Error, Table, escape};
use serde::Serialize;
use serde_json::json;

use crate::cells::{Escaped, Waiting};
use crate::data::progress::Progress;
use crate::errors::Usage;
use crate::output::{Format, Output, columns, load, size};
use crate::table::{TabletJson, edge, lost, server};

/// How often the progress of a move is requested: the response has all tablets.
const SHOWN_EVERY: Duration = Duration::from_secs(2);

/// What to do with the tablets of tables: each has a range of rows, and one tablet server.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator tablet list accounts
  percolator tablet split accounts m
  percolator tablet merge accounts m
  percolator tablet move 7 tablet-2")]
pub(crate) enum Command {
    /// List tablets: their rows, sizes and servers; of one that is on its way, also where to, and how much of it is there.
    ///
    /// Sizes and loads are estimates of some seconds ago.
    #[command(after_help = "\
Examples:
  percolator tablet list                      those of all tables
  percolator tablet list accounts -o json     one line of JSON for each")]
    List {
        /// Of this table alone.
        #[arg(add = crate::complete::tables())]
        table: Option<String>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Split tablets of a table: each of these rows is the first row of a tablet then.
    ///
    /// Both parts stay at their server, and nothing is copied. Transactions go on meanwhile. A row at which a tablet begins
    /// already changes nothing.
    #[command(after_help = "\
Examples:
  percolator tablet split accounts m
  percolator tablet split accounts g m t      into four")]
    Split {
        /// The table.
        #[arg(add = crate::complete::tables())]
        table: String,
        /// Where to split: rows, in any order.
        #[arg(required = true, value_name = "ROW")]
        rows: Vec<Escaped>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Merge the tablet that begins at a row with the one before it.
    ///
    /// If they are at two servers, one of them is moved first. Transactions go on meanwhile.
    #[command(after_help = "Examples:\n  percolator tablet merge accounts m")]
    Merge {
        /// The table.
        #[arg(add = crate::complete::tables())]
        table: String,
        /// The first row of the second of the two tablets.
        row: Escaped,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Move a tablet to another tablet server.
    ///
    /// Its rows are copied while transactions go on. At the end requests wait for some milliseconds. A move that was begun goes
    /// on if this command ends before it: `percolator tablet list` shows how far it is. A tablet that is there already stays. The
    /// balancer may move it on, unless `spec.balance.enabled` is false.
    #[command(after_help = "\
Examples:
  percolator tablet list accounts             the numbers of tablets
  percolator tablet move 7 tablet-2
  percolator tablet move 7 tablet-2 --request-timeout 10m")]
    Move {
        /// The tablet's number, as `percolator tablet list` shows it.
        #[arg(value_parser = number)]
        tablet: u64,
        /// The server that gets it.
        server: String,
        #[command(flatten)]
        waiting: Waiting,
    },
}

fn number(text: &str) -> Result<u64, String> {
    let number = text.parse();
    number.map_err(|_| "not the number of a tablet: `percolator tablet list` shows them".to_owned())
}

impl Command {
    pub(crate) fn waiting(&self) -> Waiting {
        match self {
            Self::List { waiting, .. }
            | Self::Split { waiting, .. }
            | Self::Merge { waiting, .. }
            | Self::Move { waiting, .. } => *waiting,
        }
    }
}

/// A line of `percolator tablet list -o json`.
#[derive(Serialize)]
struct Line<'a> {
    table: &'a str,
    #[serde(flatten)]
    tablet: TabletJson<'a>,
}

pub(crate) async fn run(
    client: &Client,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::List { table, .. } => list(client, table.as_deref(), output).await?,
        Command::Split { table, rows, .. } => {
            let rows: Vec<Bytes> = rows.into_iter().map(|row| row.0).collect();
            client.split_table(&table, &rows).await?;
            report(client, &table, output).await?;
        }
        Command::Merge { table, row, .. } => {
            let found = find(client, &table).await?;
            if found.tablets.iter().all(|it| it.start_row != row.0) || row.0.is_empty() {
                return Err(Usage(format!(
                    "no tablet of {table} begins at row {:?} with another one before it: `percolator tablet list {table}` \
                     shows where they begin",
                    escape(&row.0)
                ))
                .into());
            }
            client.merge_tablets(&table, &row.0).await?;
            report(client, &table, output).await?;
        }
        Command::Move { tablet, server, .. } => {
            let progress = Mutex::new(Progress::new(output, None));
            let moved = tokio::select! {
                moved = client.move_tablet(tablet, &server) => moved,
                never = show_move(client, tablet, &progress) => match never {},
            };
            progress.lock().clear();
            moved?;
            match output.format {
                Format::Text => output.note(&format!("tablet {tablet} is at {server} now")),
                Format::Json => {
                    output.line(&json!({"tablet": tablet, "server": server}).to_string())?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows how much of a tablet is at the server that gets it.
async fn show_move(client: &Client, tablet: u64, progress: &Mutex<Progress>) -> Infallible {
    loop {
        tokio::time::sleep(SHOWN_EVERY).await;
        // The move itself says what is wrong.
        let Ok(tables) = client.tables().await else {
            continue;
        };
        let mut tablets = tables.iter().flat_map(|table| &table.tablets);
        if let Some(moving) = tablets.find(|it| it.id == tablet)
            && let Some((to, there)) = &moving.moving_to
        {
            let all = size(moving.bytes.max(*there));
            let words = || format!("{} of about {all} are at {to}", size(*there));
            progress.lock().show(*there, words);
        }
    }
}

/// Says what the table consists of now.
async fn report(client: &Client, table: &str, output: Output) -> anyhow::Result<()> {
    match output.format {
        Format::Text => {
            let found = find(client, table).await?;
            let tablets = found.tablets.len();
            output.note(&format!("table {table} has {tablets} tablet(s) now"));
            Ok(())
        }
        Format::Json => list(client, Some(table), output).await,
    }
}

async fn find(client: &Client, name: &str) -> Result<Table, Error> {
    let mut tables = client.tables().await?.into_iter();
    let table = tables.find(|table| table.name == name);
    table.ok_or_else(|| Error::UnknownTable { name: name.into() })
}

/// Prints every tablet, or those of one table.
async fn list(client: &Client, table: Option<&str>, output: Output) -> anyhow::Result<()> {
    let tables = match table {
        Some(name) => vec![find(client, name).await?],
        None => client.cluster().await?.tables,
    };
    let lost = lost(client).await?;
    let tablets = tables
        .iter()
        .flat_map(|table| table.tablets.iter().map(move |tablet| (table, tablet)));
    if output.format == Format::Json {
        for (table, tablet) in tablets {
            let line = Line {
                table: &table.name,
                tablet: TabletJson::new(tablet, &lost),
            };
            output.line(&serde_json::to_string(&line)?)?;
        }
        return Ok(());
    }
    let mut rows = vec![
        [
            "TABLE", "TABLET", "FROM", "TO", "EPOCH", "SIZE", "LOAD", "SERVER",
        ]
        .map(String::from)
        .to_vec(),
    ];
    rows.extend(tablets.map(|(table, tablet)| {
        vec![
            table.name.clone(),
            tablet.id.to_string(),
            edge(&tablet.start_row),
            edge(&tablet.end_row),
            tablet.epoch.to_string(),
            size(tablet.bytes),
            load(tablet.load),
            server(tablet, &lost),
        ]
    }));
    if tables.is_empty() {
        output.note("no tables");
    } else {
        output.line(&columns(&rows))?;
    }
    Ok(())
}
