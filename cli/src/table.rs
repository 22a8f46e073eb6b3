//! `percolator table`.

use std::process::ExitCode;

use bytes::Bytes;
use percolator_client::{Client, Error, Table, Tablet, escape};
use serde::Serialize;
use serde_json::json;

use crate::cells::Escaped;
use crate::output::{Format, Output, columns};

/// What to do with tables.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator table create accounts --split-at m
  percolator table list --tablets
  percolator table delete accounts")]
pub(crate) enum Command {
    /// Make a table, or leave it as it is where it is there with the very same cuts.
    ///
    /// A table of that name that is cut otherwise is an error, with exit code 6.
    #[command(after_help = "\
Examples:
  percolator table create accounts
  percolator table create pages --split-at h --split-at p    three tablets: up to h, h to p, from p on")]
    Create {
        /// Its name: 1 to 64 of a-z, 0-9, '_', '.' and '-', starting with a letter or digit.
        name: String,
        /// Cut the table into tablets at this row; may be given often, in order.
        #[arg(long, value_name = "ROW")]
        split_at: Vec<Escaped>,
    },
    /// List the tables and their tablets.
    ///
    /// A tablet whose server is away is one that nobody can use until the server is back.
    #[command(
        after_help = "Examples:\n  percolator table list --tablets\n  percolator table list -o json"
    )]
    List {
        /// Show every tablet: its rows and its server.
        #[arg(long)]
        tablets: bool,
    },
    /// Delete a table with all its rows, at once and for every snapshot.
    ///
    /// Rows that were committed to other tables together with some of this one stay. Where the command ends
    /// early, the table can't be used any more, and the same command goes on.
    #[command(after_help = "Example:\n  percolator table delete accounts")]
    Delete {
        /// Its name.
        name: String,
    },
}

#[derive(Serialize)]
struct TableJson<'a> {
    name: &'a str,
    id: u32,
    ready: bool,
    deleting: bool,
    tablets: Vec<TabletJson<'a>>,
}

#[derive(Serialize)]
struct TabletJson<'a> {
    id: u64,
    start_row: String,
    end_row: String,
    epoch: u64,
    server: &'a str,
    server_alive: bool,
    /// `None`: the server was not heard since the master's start.
    server_silent_ms: Option<u64>,
}

impl<'a> TableJson<'a> {
    fn new(table: &'a Table) -> Self {
        let tablet = |tablet: &'a Tablet| TabletJson {
            id: tablet.id,
            start_row: escape(&tablet.start_row),
            end_row: escape(&tablet.end_row),
            epoch: tablet.epoch,
            server: &tablet.server,
            server_alive: tablet.server_alive,
            server_silent_ms: tablet
                .server_silence
                .map(|silence| u64::try_from(silence.as_millis()).unwrap_or(u64::MAX)),
        };
        Self {
            name: &table.name,
            id: table.id,
            ready: table.ready,
            deleting: table.deleting,
            tablets: table.tablets.iter().map(tablet).collect(),
        }
    }
}

pub(crate) async fn run(
    client: &Client,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create { name, split_at } => {
            let cuts: Vec<_> = split_at.into_iter().map(|row| row.0).collect();
            let made = create(client, &name, &cuts).await?;
            match output.format {
                Format::Text => output.note(&format!(
                    "table {name} is ready, {} tablet(s)",
                    made.tablets.len()
                )),
                Format::Json => {
                    output.line(&serde_json::to_string(&TableJson::new(&made))?)?;
                }
            }
        }
        Command::Delete { name } => {
            client.delete_table(&name).await?;
            match output.format {
                Format::Text => output.note(&format!("table {name} is deleted")),
                Format::Json => {
                    output.line(&json!({"name": name, "deleted": true}).to_string())?;
                }
            }
        }
        Command::List { tablets } => list(client, tablets, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a table. One that is there as it is asked for will do: somebody who asks for the same at the same
/// time can't be told from the one who asked first, and whose answer was lost.
async fn create(client: &Client, name: &str, cuts: &[Bytes]) -> Result<Table, Error> {
    let there_already = match client.create_table(name, cuts).await {
        Ok(()) => None,
        Err(error @ Error::AlreadyExists(_)) => Some(error),
        Err(error) => return Err(error),
    };
    let mut tables = client.tables().await?.into_iter();
    let table = tables.find(|table| table.name == name);
    match (table, there_already) {
        (Some(table), None) => Ok(table),
        (Some(table), Some(_)) if table.ready && is_cut_at(&table, cuts) => Ok(table),
        (_, Some(error)) => Err(error),
        (None, None) => Err(Error::UnknownTable { name: name.into() }),
    }
}

/// Whether the tablets begin at these rows, and at the first.
fn is_cut_at(table: &Table, cuts: &[Bytes]) -> bool {
    let starts = table.tablets.iter().map(|tablet| &tablet.start_row);
    starts.skip(1).eq(cuts)
}

/// Prints the tables, or every tablet of theirs.
pub(crate) async fn list(client: &Client, tablets: bool, output: Output) -> anyhow::Result<()> {
    let tables = client.tables().await?;
    if output.format == Format::Json {
        for table in &tables {
            output.line(&serde_json::to_string(&TableJson::new(table))?)?;
        }
        return Ok(());
    }
    let mut rows = Vec::new();
    if tablets {
        rows.push(
            ["TABLE", "TABLET", "FROM", "TO", "EPOCH", "SERVER"]
                .map(String::from)
                .to_vec(),
        );
        for table in &tables {
            rows.extend(table.tablets.iter().map(|tablet| {
                vec![
                    table.name.clone(),
                    tablet.id.to_string(),
                    edge(&tablet.start_row),
                    edge(&tablet.end_row),
                    tablet.epoch.to_string(),
                    server(tablet),
                ]
            }));
        }
    } else {
        rows.push(
            ["TABLE", "ID", "STATE", "TABLETS"]
                .map(String::from)
                .to_vec(),
        );
        rows.extend(tables.iter().map(|table| {
            let state = match table {
                table if table.deleting => "deleting",
                table if table.ready => "ready",
                _ => "not ready",
            };
            vec![
                table.name.clone(),
                table.id.to_string(),
                state.to_owned(),
                how_many(&table.tablets),
            ]
        }));
    }
    if tables.is_empty() {
        output.note("no tables");
    } else {
        output.line(&columns(&rows))?;
    }
    Ok(())
}

/// The owner, and since when it is away.
fn server(tablet: &Tablet) -> String {
    match (tablet.server_alive, tablet.server_silence) {
        (true, _) => tablet.server.clone(),
        (false, Some(silence)) => format!("{}, away for {} s", tablet.server, silence.as_secs()),
        (false, None) => format!("{}, not heard since the master's start", tablet.server),
    }
}

fn how_many(tablets: &[Tablet]) -> String {
    let away = tablets.iter().filter(|tablet| !tablet.server_alive).count();
    match away {
        0 => tablets.len().to_string(),
        away => format!("{away} of {} away", tablets.len()),
    }
}

fn edge(row: &[u8]) -> String {
    if row.is_empty() {
        "-".to_owned()
    } else {
        escape(row)
    }
}
