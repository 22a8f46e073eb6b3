//! `percolator table`.

use std::process::ExitCode;

use percolator_client::{Client, escape};
use serde::Serialize;

use crate::cells::Escaped;
use crate::output::{Format, Output, columns};

/// What to do with tables.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make a table.
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
    #[command(after_help = "Example:\n  percolator table list -o json")]
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
}

pub(crate) async fn run(
    client: &Client,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create { name, split_at } => {
            let cuts: Vec<_> = split_at.into_iter().map(|row| row.0).collect();
            client.create_table(&name, &cuts).await?;
            output.note(&format!(
                "table {name} is ready, {} tablet(s)",
                cuts.len() + 1
            ));
        }
        Command::Delete { name } => {
            client.delete_table(&name).await?;
            output.note(&format!("table {name} is deleted"));
        }
        Command::List { tablets } => list(client, tablets, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, tablets: bool, output: Output) -> anyhow::Result<()> {
    let tables = client.tables().await?;
    if output.format == Format::Json {
        for table in &tables {
            let json = TableJson {
                name: &table.name,
                id: table.id,
                ready: table.ready,
                deleting: table.deleting,
                tablets: table
                    .tablets
                    .iter()
                    .map(|tablet| TabletJson {
                        id: tablet.id,
                        start_row: escape(&tablet.start_row),
                        end_row: escape(&tablet.end_row),
                        epoch: tablet.epoch,
                        server: &tablet.server,
                    })
                    .collect(),
            };
            output.line(&serde_json::to_string(&json)?)?;
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
                    tablet.server.clone(),
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
                table.tablets.len().to_string(),
            ]
        }));
    }
    output.line(&columns(&rows))?;
    Ok(())
}

fn edge(row: &[u8]) -> String {
    if row.is_empty() {
        "-".to_owned()
    } else {
        escape(row)
    }
}
