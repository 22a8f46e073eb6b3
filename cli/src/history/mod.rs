//! `percolator history`: what clients did and what they were told, as lines that checkers read.

mod file;
mod record;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use percolator_history::{Outcome, Report, Transaction};
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::connect::Connect;
use crate::output::{Format, Output};
pub(crate) use file::{HistoryFile, table_name};

/// Record what clients see, and check that snapshot isolation can explain it.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  percolator history record --duration 1m history.jsonl     kill what you like meanwhile
  percolator history check history.jsonl
  percolator history convert --to elle history.jsonl > history.edn

A history has a JSON object a line for each transaction: who ran it, its snapshot, its commit, how it
ended, what it read and wrote.")]
pub(crate) enum Command {
    /// Run transactions that read lists and append to them, and write down what came of each.
    Record(record::Args),
    /// Look for what snapshot isolation forbids: by the timestamps, and by what clients saw alone. Exit
    /// code 7 where something is found, or there is nothing to check: no transaction is committed.
    #[command(after_help = "Example:\n  percolator history check history.jsonl")]
    Check {
        /// The history.
        file: PathBuf,
    },
    /// Write a history in the format of another checker to standard output.
    #[command(after_help = "Examples:
  percolator history convert --to elle history.jsonl > history.edn
  elle-cli --model list-append --consistency-models snapshot-isolation history.edn

  mkdir dbcop && percolator history convert --to dbcop history.jsonl > dbcop/history.json
  dbcop verify --input-dir dbcop --consistency snapshot-isolation")]
    Convert {
        /// Which checker.
        #[arg(long, value_enum)]
        to: Checker,
        /// The history.
        file: PathBuf,
    },
}

/// Other people's checkers.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Checker {
    /// Elle, for elle-cli --model list-append --consistency-models snapshot-isolation: EDN.
    Elle,
    /// dbcop, for dbcop verify: JSON.
    Dbcop,
}

/// What a check found.
#[derive(Default, Serialize)]
struct CheckReport {
    transactions: usize,
    committed: usize,
    aborted: usize,
    unknown: usize,
    /// Reads whose writer couldn't be told, without timestamps.
    ambiguous_reads: usize,
    /// Reads whose writer couldn't be told even by the timestamps.
    ambiguous_reads_by_timestamps: usize,
    /// What is wrong, by the timestamps.
    anomaly: Option<String>,
    /// What is wrong by what clients saw alone.
    anomaly_without_timestamps: Option<String>,
}

pub(crate) async fn run(
    connect: &Connect<'_>,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Record(args) => {
            let client = connect
                .retrying_client(record::options(), record::TIMEOUT, output)
                .await?;
            let result = record::run(&client, args, output).await;
            client.settle().await;
            result
        }
        Command::Check { file } => check(&read(&file, output)?, output),
        Command::Convert { to, file } => {
            let history = read(&file, output)?;
            let text = match to {
                Checker::Elle => percolator_history::elle(&history),
                Checker::Dbcop => percolator_history::dbcop(&history),
            }?;
            output.line(text.trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read(file: &Path, output: Output) -> anyhow::Result<Vec<Transaction>> {
    let mut text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    // A recorder that is killed may leave a part of a line, whose transaction it hadn't ended then.
    let mut cut_off = 0;
    let whole = text.lines().map(|line| {
        let is_cut_off = is_cut_off(line);
        cut_off += usize::from(is_cut_off);
        // So that the numbers of lines in messages stay right.
        if is_cut_off { "" } else { line }
    });
    let whole: Vec<&str> = whole.collect();
    if cut_off > 0 {
        output.note(&format!("{cut_off} lines were cut off and are left out"));
        text = whole.join("\n");
    }
    percolator_history::parse(&text).with_context(|| file.display().to_string())
}

/// Whether the line is the beginning of an object: it may end behind any byte of it, a `}` too.
fn is_cut_off(line: &str) -> bool {
    line.starts_with('{')
        && serde_json::from_str::<IgnoredAny>(line).is_err_and(|error| error.is_eof())
}

fn check(history: &[Transaction], output: Output) -> anyhow::Result<ExitCode> {
    if history.is_empty() {
        let found = CheckReport::default();
        output.result("nothing to check: there is no transaction", &found)?;
        return Ok(crate::answered(false));
    }
    let found = judge(history, percolator_history::check, |line| {
        match output.format {
            Format::Text => output.line(line),
            Format::Json => Ok(()),
        }
    })?;
    if output.format == Format::Json {
        output.result("", &found)?;
    }
    let wrong = found.anomaly.is_some() || found.anomaly_without_timestamps.is_some();
    Ok(crate::answered(!wrong && found.committed > 0))
}

/// What is found, each line said as soon as it is known: of a wrong history, what clients saw alone takes long.
fn judge(
    history: &[Transaction],
    check: impl Fn(&[Transaction]) -> Report,
    mut say: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<CheckReport> {
    let count = |outcome| {
        let ended = history.iter().filter(|ended| ended.outcome == outcome);
        ended.count()
    };
    let mut found = CheckReport {
        transactions: history.len(),
        committed: count(Outcome::Committed),
        aborted: count(Outcome::Aborted),
        unknown: count(Outcome::Unknown),
        ..CheckReport::default()
    };
    let committed = found.committed;
    let holds = |anomaly: &Option<String>| match anomaly {
        Some(what) => format!("WRONG: {what}"),
        None if committed == 0 => "nothing to check: no transaction is committed".to_owned(),
        None => "snapshot isolation holds".to_owned(),
    };
    say(&format!(
        "transactions        {}: {} committed, {} aborted, {} unknown",
        found.transactions, found.committed, found.aborted, found.unknown,
    ))?;
    let known = check(history);
    found.ambiguous_reads_by_timestamps = known.ambiguous_reads;
    found.anomaly = known.anomaly.map(|anomaly| anomaly.to_string());
    let ambiguous = match known.ambiguous_reads {
        0 => String::new(),
        reads => format!(" ({reads} reads say nothing)"),
    };
    say(&format!(
        "by timestamps       {}{ambiguous}",
        holds(&found.anomaly)
    ))?;
    let blind: Vec<Transaction> = history
        .iter()
        .map(|transaction| Transaction {
            start_ts: None,
            commit_ts: None,
            ..transaction.clone()
        })
        .collect();
    let seen = check(&blind);
    found.ambiguous_reads = seen.ambiguous_reads;
    found.anomaly_without_timestamps = seen.anomaly.map(|anomaly| anomaly.to_string());
    say(&format!(
        "by what was seen    {} ({} reads say nothing without timestamps)",
        holds(&found.anomaly_without_timestamps),
        found.ambiguous_reads,
    ))?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_verdict_by_timestamps_is_said_before_the_other_one_is_looked_for() {
        let line =
            r#"{"client":"c","start_ts":"1","commit_ts":"2","outcome":"committed","ops":[]}"#;
        let history = percolator_history::parse(line).unwrap();
        let happened = RefCell::new(Vec::new());
        let check = |history: &[Transaction]| {
            let by = match history[0].start_ts {
                Some(_) => "with timestamps",
                None => "without",
            };
            happened.borrow_mut().push(by.to_owned());
            Report::default()
        };
        let say = |line: &str| {
            let words = line.split("  ").next().unwrap_or_default();
            happened.borrow_mut().push(words.to_owned());
            Ok(())
        };
        judge(&history, check, say).unwrap();
        let wanted = [
            "transactions",
            "with timestamps",
            "by timestamps",
            "without",
            "by what was seen",
        ];
        assert_eq!(*happened.borrow(), wanted);
    }
}
