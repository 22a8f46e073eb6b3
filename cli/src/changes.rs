//! `percolator changes`: what is committed in a table, as a stream of lines.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use percolator_client::{
    ChangeEvent, Changes, ChangesOptions, Client, Error, Timestamp, Version, escape,
};

use crate::cells::{Escaped, Waiting};
use crate::errors::{InOtherWords, Usage};
use crate::output::{CellJson, Format, Output};

const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// What is written at once.
const WRITE_BYTES: usize = 64 << 10;
/// How often a timestamp to go on from is printed where nothing changes.
const RESOLVED_EVERY_MS: u64 = 10_000;
/// Before the cluster is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Print each change of a table, in order of commits: what is put and what is deleted.
///
/// Each committed version of a cell is printed once, those of one transaction behind each other: they have the same commit_ts.
/// A line with `resolved` says that everything committed up to this timestamp was printed. `--from` this timestamp goes on
/// there. Lines behind the last such line come again then, so a reader that goes on drops these.
///
/// Without `--from` it begins with the present. Without `--until` or `--once` it goes on until it is interrupted, also while
/// servers are away and tablets are split, merged and moved.
///
/// Versions below the read barrier may be gone, so that `--from` a timestamp below it is refused: read the whole table then
/// (`percolator scan TABLE --at TS`), and go on from there. What this command has yet to print is not collected while it runs,
/// up to the longest hold (`percolator gc status`).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator changes accounts -o json
  percolator changes accounts --from 463372648734720000 --once
  percolator changes accounts --columns balance,owner

  percolator changes accounts --once                              a copy of a table that is kept up to date: a timestamp,
  percolator scan accounts --at 463372648734720000 -o json        all of the table at it,
  percolator changes accounts --from 463372648734720000 -o json   and then what changes

With -o json a line is {\"row\", \"column\", \"value\", \"commit_ts\"}; the value null: the cell was deleted; or {\"resolved\"}. As
text it is the commit_ts, `put` or `delete`, row, column and value, with tabs between, and `resolved` lines have two words.")]
pub(crate) struct Args {
    /// The table.
    #[arg(add = crate::complete::tables())]
    table: String,
    /// Changes that were committed above this timestamp. Default: from now on.
    #[arg(long, value_name = "TIMESTAMP")]
    from: Option<u64>,
    /// End when everything up to this timestamp is printed.
    #[arg(long, value_name = "TIMESTAMP", conflicts_with = "once")]
    until: Option<u64>,
    /// End when the present is reached. Without --from: print a timestamp to begin with.
    #[arg(long)]
    once: bool,
    /// Only cells of these columns, with commas between.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    columns: Vec<Escaped>,
    /// How often it is looked for changes, at least 10ms.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Hold so many MiB of changes at the most while they are put in order. Where there are more, the table is read again
    /// for the others.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    buffer: u32,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

impl Args {
    /// What can't be meant.
    fn check(&self) -> Result<(), Usage> {
        if self.interval < INTERVAL_MIN {
            return Err(Usage(format!("--interval is {INTERVAL_MIN:?} at least")));
        }
        match (self.from, self.until) {
            (Some(from), Some(until)) if until < from => {
                Err(Usage(format!("--until {until} lies before --from {from}")))
            }
            _ => Ok(()),
        }
    }

    async fn options(&self, client: &Client) -> Result<ChangesOptions, Error> {
        let until = match self.until {
            None if self.once => Some(client.timestamp().await?),
            until => until.map(Timestamp::from_u64),
        };
        let from = self.from.map(Timestamp::from_u64);
        let columns = self.columns.iter().map(|column| column.0.clone());
        Ok(ChangesOptions {
            // Up to the present from there on: a timestamp to begin with.
            from: from.or(until.filter(|_| self.once)),
            until,
            columns: columns.collect::<Vec<Bytes>>(),
            interval: self.interval,
            buffer_bytes: (self.buffer as usize) << 20,
        })
    }
}

/// Lines that are to be written.
struct Lines {
    output: Output,
    text: String,
    /// Something was printed behind the last timestamp to go on from.
    has_printed: bool,
    /// That timestamp.
    resolved: Option<Timestamp>,
}

impl Lines {
    fn version(&mut self, version: &Version) -> io::Result<()> {
        self.text += &match self.output.format {
            Format::Json => json(version)?,
            Format::Text => text(version),
        };
        self.text.push('\n');
        self.has_printed = true;
        if self.text.len() < WRITE_BYTES {
            return Ok(());
        }
        self.write()
    }

    /// A timestamp to go on from, which is printed where it says something new.
    fn resolved(&mut self, resolved: Timestamp, is_last: bool) -> io::Result<()> {
        let last = self.resolved.map_or(0, Timestamp::physical_ms);
        let is_news = self.has_printed
            || (is_last && self.resolved != Some(resolved))
            || resolved.physical_ms() >= last + RESOLVED_EVERY_MS;
        if !is_news {
            return Ok(());
        }
        self.resolved = Some(resolved);
        self.has_printed = false;
        self.text += &match self.output.format {
            Format::Json => format!("{{\"resolved\":\"{resolved}\"}}\n"),
            Format::Text => format!("resolved\t{resolved}\n"),
        };
        self.write()
    }

    /// Ends with a timestamp to go on from, unless what was printed last is not all up to some timestamp: the last `resolved` line
    /// holds then.
    fn end(&mut self, resolved: Timestamp) -> io::Result<()> {
        if !self.has_printed {
            self.resolved(resolved, true)?;
        }
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        self.text.clear();
        out.flush()
    }
}

/// A version as JSON: a cell as others print it, and its commit_ts.
#[derive(serde::Serialize)]
struct VersionJson<'a> {
    #[serde(flatten)]
    cell: CellJson<'a>,
    commit_ts: String,
}

fn json(version: &Version) -> serde_json::Result<String> {
    serde_json::to_string(&VersionJson {
        cell: CellJson::new(&version.row, &version.column, version.value.as_deref()),
        commit_ts: version.commit_ts.to_string(),
    })
}

fn text(version: &Version) -> String {
    let (row, column) = (escape(&version.row), escape(&version.column));
    match &version.value {
        Some(value) => format!(
            "{}\tput\t{row}\t{column}\t{}",
            version.commit_ts,
            escape(value)
        ),
        None => format!("{}\tdelete\t{row}\t{column}", version.commit_ts),
    }
}

pub(crate) async fn run(client: &Client, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    args.check()?;
    let options = args.options(client).await?;
    let follows = options.until.is_none();
    let mut changes = client.changes(&args.table, options).await?;
    let mut lines = Lines {
        output,
        text: String::new(),
        has_printed: false,
        resolved: None,
    };
    let mut shutdown = std::pin::pin!(percolator_server::signals::shutdown());
    loop {
        let event = tokio::select! {
            biased;
            () = &mut shutdown => break,
            event = changes.next() => event,
        };
        match event {
            Ok(Some(ChangeEvent::Version(version))) => lines.version(&version)?,
            Ok(Some(ChangeEvent::Resolved(ts))) => lines.resolved(ts, false)?,
            Ok(None) => break,
            Err(error @ (Error::Timeout { .. } | Error::Unavailable(_))) if follows => {
                lines.write()?;
                output.note(&format!("{error}; it goes on"));
                tokio::select! {
                    () = &mut shutdown => break,
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
            Err(error) => {
                lines.write()?;
                return Err(in_other_words(client, &args.table, &changes, error).await);
            }
        }
    }
    // What is there already is printed to its end, so that little has to be printed again.
    while let Some(Ok(Some(event))) = changes.next().now_or_never() {
        match event {
            ChangeEvent::Version(version) => lines.version(&version)?,
            ChangeEvent::Resolved(ts) => {
                lines.resolved(ts, true)?;
                break;
            }
        }
    }
    lines.end(changes.resolved())?;
    Ok(ExitCode::SUCCESS)
}

/// Says what to do where it can't go on.
async fn in_other_words(
    client: &Client,
    table: &str,
    changes: &Changes,
    error: Error,
) -> anyhow::Error {
    let (Error::TooOld(_), Ok(now)) = (&error, client.timestamp().await) else {
        return error.into();
    };
    let message = format!(
        "changes of table {table} above {} may have been collected ({error}): read all of it, `percolator scan {table} --at \
         {now}`, and go on with `percolator changes {table} --from {now}`",
        changes.resolved()
    );
    InOtherWords { message, error }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(value: Option<&'static [u8]>) -> Version {
        Version {
            row: "bob".into(),
            column: "c\t".into(),
            value: value.map(Bytes::from_static),
            commit_ts: Timestamp::from_u64(7),
        }
    }

    #[test]
    fn lines_say_what_was_done() {
        let json = |value| json(&version(value)).expect("JSON");
        assert_eq!(
            json(Some(b"10")),
            r#"{"row":"bob","column":"c\t","value":"10","commit_ts":"7"}"#
        );
        assert_eq!(
            json(Some(b"\xff")),
            r#"{"row":"bob","column":"c\t","value_base64":"/w==","commit_ts":"7"}"#
        );
        assert_eq!(
            json(None),
            r#"{"row":"bob","column":"c\t","value":null,"commit_ts":"7"}"#
        );
        assert_eq!(text(&version(Some(b"1\n"))), "7\tput\tbob\tc\\x09\t1\\x0a");
        assert_eq!(text(&version(None)), "7\tdelete\tbob\tc\\x09");
    }
}
