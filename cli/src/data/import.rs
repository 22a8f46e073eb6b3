//! `percolator import`: rows from a file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use percolator_client::{Client, Error, Options, Txn};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::load::{Counts, Failure, Loader};
use super::progress::Progress;
use super::reader::{Input, Reading, Report, Shared, Started, format_of};
use super::records::Shape;
use super::source::Bad;
use super::{FileFormat, IndexArg, count, indexes_invalid};
use crate::cells::Escaped;
use crate::errors::Usage;
use crate::output::{Format, Output};
use crate::retries::{Retries, may_pass};

/// How often it is said what goes on.
const SAID_EVERY: Duration = Duration::from_secs(2);
/// Bad lines that are named; all are counted.
const BAD_SHOWN_MAX: u64 = 20;

const DETAILS: &str = "\
Every record becomes a row: its key field's value is the row, every field a column (the key field \
too). A row and its index entries are written in one transaction, so that nobody sees one without the \
other. Tables that are missing are made with the first row; a file without one makes none.

A row is the text of its key, so that of the keys 1 and \"1\" is one: in a file with keys that are numbers or \
booleans, strings that read as such are no keys, nor the other way round; and a row that is there with the one is \
not taken for the other's.

A JSON string is stored as its text, unless the text would itself read as JSON (1, true, []); then it is \
stored as a JSON string. Everything else is stored as compact JSON. `percolator export` gives back the \
very same values. In a CSV file every value is a string.

An index entry is a row of the index's table: the value, then the row that it is of.

With --atomic the whole file is one transaction, of any size: either all of it becomes visible at once, or \
nothing. It is not tried again by itself when it meets a conflict.

Loading again is harmless: rows that are as the file has them are passed over, others are made so, \
columns that a record doesn't have are deleted, and index entries follow. Of two lines with one key the \
later one wins.";

const EXAMPLES: &str = "\
Examples:
  percolator import --table users --key id users.jsonl
  percolator import --table users --key id --index email=users_by_email users.csv
  percolator import --table users --key id --atomic users.jsonl
  percolator import --table users --key id users.json.gz

Exit code 1: a line could not be loaded, no row has the field of an index, or the import was stopped. What is in stays in; with --atomic nothing \
is, but that --skip-bad leaves out bad lines alone. Loading again is harmless.";

/// Load rows from a file, with the entries of their secondary indexes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{DETAILS}\n\n{EXAMPLES}"))]
pub(crate) struct Args {
    /// The file; - is standard input. It may be compressed with gzip.
    file: PathBuf,
    /// Table of the rows; made if it is missing.
    #[arg(long, value_name = "TABLE", add = crate::complete::tables())]
    table: String,
    /// Field whose value is the row: a string, a number or a boolean, up to 4096 bytes.
    #[arg(long, value_name = "FIELD")]
    key: String,
    /// Field to index, and the table of its entries, made if it is missing; may be given often.
    #[arg(long, value_name = "FIELD=INDEX_TABLE")]
    index: Vec<IndexArg>,
    /// How the file is written. Default: what its extension says (.jsonl, .ndjson, .json, .csv, with or without .gz); jsonl
    /// for standard input.
    #[arg(long, value_enum)]
    format: Option<FileFormat>,
    /// Most rows in a transaction; it also ends at 1 MiB of them.
    #[arg(long, value_name = "ROWS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Transactions at a time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    concurrency: u32,
    /// Load the whole file in one transaction: all of it becomes visible at once, or nothing does.
    #[arg(long, conflicts_with = "concurrency")]
    atomic: bool,
    /// Go on behind lines that can't be loaded, and count them. A line of CSV ends the import all the same if a quote is open at its end:
    /// what follows may be a part of its field. Default: stop at the first one.
    #[arg(long)]
    skip_bad: bool,
    /// Cut the table into tablets at this row when it is made; may be given often, in order.
    #[arg(long, value_name = "ROW")]
    split_at: Vec<Escaped>,
    /// Give up when servers are away and nothing has been loaded for this long.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) request_timeout: Duration,
}

/// What one transaction of a whole file buffers before it is flushed: as much again is on its way meanwhile, and the import
/// stays small.
const WHOLE_BUFFER_BYTES: usize = 8 << 20;

impl Args {
    /// How its client is to be.
    pub(crate) fn options(&self, options: Options) -> Options {
        if self.atomic {
            // What one request waits for can't be tried again: all that was written would be lost.
            Options {
                buffer_bytes: WHOLE_BUFFER_BYTES,
                request_timeout: self.request_timeout,
                ..options
            }
        } else {
            options
        }
    }

    /// What can be found wrong before anybody is asked anything.
    pub(crate) fn open(&self) -> anyhow::Result<OpenedInput> {
        if let Some(why) = indexes_invalid(&self.table, &self.index) {
            return Err(Usage(why).into());
        }
        let input = Input::open(&self.file)?;
        let format = format_of(&self.file, self.format).map_err(Usage)?;
        Ok(OpenedInput { input, format })
    }
}

/// What is to be imported.
pub(crate) struct OpenedInput {
    input: Input,
    format: FileFormat,
}

/// How an import ended, besides its counts.
#[derive(Default)]
struct End {
    /// There was a row to load, and so there are the tables.
    found: bool,
    bad: u64,
    /// A bad line, or an unreadable file, behind which nothing was read.
    stopped_at: Option<u64>,
    interrupted: bool,
    /// No row has the field of an index.
    unmet: bool,
    failure: Option<Failure>,
    /// The one transaction of an atomic import was not committed, as far as is known.
    failed: bool,
}

pub(crate) async fn run(
    client: &Client,
    args: Args,
    OpenedInput { input, format }: OpenedInput,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let name = input.name.clone();
    let progress = Mutex::new(Progress::new(output, input.bytes));
    let say = |message: &str| progress.lock().note(message);
    let refused = Mutex::new(0);
    let complain = |bad: Bad| {
        let mut refused = refused.lock();
        *refused += 1;
        name_bad(*refused, &name, &bad, &progress.lock());
    };
    let whole = if args.atomic {
        Some(client.begin().await?)
    } else {
        None
    };
    let loader = Loader {
        client,
        whole,
        table: &args.table,
        key: &args.key,
        indexes: &args.index,
        met: args.index.iter().map(|_| false.into()).collect(),
        had: args.index.iter().map(|_| false.into()).collect(),
        skip_bad: args.skip_bad,
        complain: &complain,
        batch_rows: args.batch as usize,
        retries: Retries::new(args.request_timeout),
        counts: Mutex::default(),
        stopped: false.into(),
        wake: tokio::sync::Notify::new(),
        say: &say,
    };
    let reading = Reading {
        input,
        format,
        shape: Shape {
            key: args.key.clone(),
            indexes: args.index.clone(),
        },
        lanes: if args.atomic {
            1
        } else {
            args.concurrency as usize
        },
        lane_records: args.batch as usize,
        skip_bad: args.skip_bad,
    };
    let began = Instant::now();
    let end = load(&loader, reading, &name, &args, &progress).await;
    progress.lock().clear();
    let mut end = end?;
    if !end.found && end.bad == 0 && end.stopped_at.is_none() && !end.interrupted {
        output.note(&format!("{name} has no rows; no table is made"));
    }

    let counts = *loader.counts.lock();
    end.bad += counts.refused;
    if let Some(whole) = loader.whole.clone() {
        end.unmet = say_unmet(&loader, counts, &name);
        // All loaders have ended; this is the last holder of the transaction.
        drop(loader);
        return end_whole(client, whole, &counts, end, (&name, began), output).await;
    }
    end.unmet = say_unmet(&loader, counts, &name);
    summary(&counts, &end, began.elapsed(), output)?;
    say_end(&mut end, &name, args.skip_bad)?;
    Ok(code(&end))
}

/// Why it ended before all was in, if so.
fn say_end(end: &mut End, name: &str, skip_bad: bool) -> anyhow::Result<()> {
    // Of an import that was stopped otherwise as well, rows before the line may be missing.
    if let Some(line) = end.stopped_at
        && !end.interrupted
        && end.failure.is_none()
    {
        super::say(&format!(
            "stopped at {name}:{line}: the rows before it are in; correct the line and import again, which \
             is harmless{}",
            if skip_bad { "" } else { ", or use --skip-bad" }
        ));
    }
    if end.interrupted {
        super::say("stopped: whole transactions are in; importing again goes on, and is harmless");
    }
    if let Some(Failure { lines, error }) = end.failure.take() {
        let (first, last) = lines;
        return Err(anyhow::Error::from(error).context(format!(
            "{name}: lines {first} to {last} could not be loaded; importing again goes on, and is harmless"
        )));
    }
    Ok(())
}

/// Names the indexes whose field no row has, if there are any.
fn say_unmet(loader: &Loader<'_>, counts: Counts, name: &str) -> bool {
    let mut unmet = false;
    let met = loader.met.iter().zip(&loader.had);
    for (index, (met, had)) in loader.indexes.iter().zip(met) {
        if counts.rows > 0 && !met.load(Ordering::Relaxed) {
            unmet |= !had.load(Ordering::Relaxed);
            super::say(&format!(
                "no row of {name} has the field {}, so there is nothing in the index {} from it; look at the spelling",
                index.field, index.table
            ));
        }
    }
    unmet
}

/// How an import in one transaction ends: it commits, unless something has stopped it.
async fn end_whole(
    client: &Client,
    whole: Txn,
    counts: &Counts,
    mut end: End,
    (name, took): (&str, Instant),
    output: Output,
) -> anyhow::Result<ExitCode> {
    let failed = match end.failure.take() {
        Some(Failure { lines, error }) => {
            let (first, last) = lines;
            Some((
                error,
                format!("lines {first} to {last} could not be loaded"),
            ))
        }
        None if end.stopped_at.is_some() || end.interrupted || end.unmet => None,
        None => {
            output.note(&format!("committing {}", count(counts.rows, "row")));
            match whole.clone().commit().await {
                Ok(_) => {
                    summary(counts, &end, took.elapsed(), output)?;
                    // Everybody can read it by now; what is left of its locks would cost the first who do.
                    settled(client, output).await;
                    return Ok(code(&end));
                }
                Err(error) => Some((error, "it could not be committed".to_owned())),
            }
        }
    };
    whole.rollback();
    client.settle().await;
    end.failed = failed.is_some();
    summary(&Counts::default(), &end, took.elapsed(), output)?;
    let how = match &failed {
        Some((Error::Unknown { .. }, _)) => {
            "either all of the file is in, or nothing; importing again is harmless"
        }
        // Somebody has ended it, or servers were away: it isn't the file's fault.
        Some((error, _))
            if may_pass(error) || error.retryable() || matches!(error, Error::Ended) =>
        {
            "nothing of the file is in, not even the lines before; import again"
        }
        None if end.interrupted => "nothing of the file is in; import again",
        _ => {
            "nothing of the file is in, not even the lines before; correct what is wrong and import again"
        }
    };
    match failed {
        Some((error, what)) => {
            Err(anyhow::Error::from(error).context(format!("{name}: {what}; {how}")))
        }
        None => {
            let at = match end.stopped_at {
                Some(line) => format!("stopped at {name}:{line}"),
                None if end.interrupted => "stopped".to_owned(),
                None => format!("{name} is not loaded"),
            };
            super::say(&format!("{at}: {how}"));
            Ok(code(&end))
        }
    }
}

/// Waits for what a commit has left to be done, and says that where it takes a while.
async fn settled(client: &Client, output: Output) {
    let mut settling = std::pin::pin!(client.settle());
    let began = Instant::now();
    while tokio::time::timeout(SAID_EVERY, settling.as_mut())
        .await
        .is_err()
    {
        output.note(&format!(
            "all of it can be read; clearing its locks, for {} s by now (who meets one clears it, too: Ctrl-C leaves it to them)",
            began.elapsed().as_secs()
        ));
    }
}

fn code(end: &End) -> ExitCode {
    if end.bad > 0 || end.stopped_at.is_some() || end.interrupted || end.unmet {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

async fn load(
    loader: &Loader<'_>,
    reading: Reading,
    name: &str,
    args: &Args,
    progress: &Mutex<Progress>,
) -> anyhow::Result<End> {
    let shared = Shared::default();
    let bytes_known = reading.input.bytes.is_some();
    let Started {
        lanes,
        mut reports,
        first,
    } = reading
        .start(shared.clone())
        .context("cannot start a thread that reads")?;
    let mut lanes: FuturesUnordered<_> =
        lanes.into_iter().map(|items| loader.lane(items)).collect();
    let mut end = End::default();
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    let mut stop = stops().context("cannot wait for Ctrl-C")?;
    let mut reading = true;
    let mut made = std::pin::pin!(make_for(first, loader, args));
    let mut waiting = true;
    loop {
        tokio::select! {
            said = &mut made, if waiting => {
                waiting = false;
                if let Some(said) = said? {
                    end.found = true;
                    loader.retries.progress();
                    let progress = progress.lock();
                    said.iter().for_each(|said| progress.note(said));
                }
            }
            lane = lanes.next(), if !waiting => match lane {
                None => break,
                Some(Ok(())) => {}
                Some(Err(failure)) => {
                    loader.stop();
                    shared.stop.store(true, Ordering::Relaxed);
                    end.failure.get_or_insert(failure);
                }
            },
            report = reports.recv(), if reading => match report {
                None => reading = false,
                Some(report) => end.take(report, name, args, &progress.lock()),
            },
            _ = ticks.tick() => {
                let counts = *loader.counts.lock();
                let position = if bytes_known {
                    shared.bytes.load(Ordering::Relaxed)
                } else {
                    counts.rows
                };
                progress.lock().show(position, || count(counts.rows, "row"));
            }
            Ok(()) = &mut stop, if !end.interrupted => {
                end.interrupted = true;
                waiting = false;
                shared.stop.store(true, Ordering::Relaxed);
                loader.stop();
                progress.lock().say(if args.atomic { "rolling back; Ctrl-C again ends at once" } else { "stopping after the transactions under way; Ctrl-C again ends at once" });
            }
        }
    }
    // The signal came in the same moment in which all was read.
    end.interrupted |= stop.try_recv().is_ok();
    // What the thread said last. Once it is to stop it may hang in a read, and has nothing to report.
    while reading && !end.interrupted && end.failure.is_none() {
        match reports.recv().await {
            Some(report) => end.take(report, name, args, &progress.lock()),
            None => reading = false,
        }
    }
    Ok(end)
}

/// Tells once that the import is to stop: by Ctrl-C, or by SIGTERM. A user who asks twice doesn't want to wait for servers.
fn stops() -> std::io::Result<oneshot::Receiver<()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let mut asked = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        asked().await;
        if tell.send(()).is_err() {
            super::say("it is ending already; Ctrl-C again doesn't wait for what is left");
        }
        asked().await;
        std::process::exit(130);
    });
    Ok(told)
}

/// Names the first of the bad lines; `so_far` counts them, with this one.
fn name_bad(so_far: u64, name: &str, bad: &Bad, progress: &Progress) {
    if so_far <= BAD_SHOWN_MAX {
        progress.say(&format!("{name}:{}: {}", bad.line, bad.why));
    } else if so_far == BAD_SHOWN_MAX + 1 {
        progress.say("further bad lines are only counted");
    }
}

impl End {
    fn take(&mut self, report: Report, name: &str, args: &Args, progress: &Progress) {
        match report {
            Report::Bad(bad) => {
                self.bad += 1;
                name_bad(self.bad, name, &bad, progress);
                if bad.fatal || !args.skip_bad {
                    self.stopped_at = Some(bad.line);
                }
            }
            Report::Failed { line, error } => {
                progress.say(&format!("{name}:{line}: cannot read on: {error}"));
                self.stopped_at = Some(line);
            }
        }
    }
}

/// Makes the tables for the first row: a file without a good one leaves none behind. Says what it did.
async fn make_for(
    first: oneshot::Receiver<()>,
    loader: &Loader<'_>,
    args: &Args,
) -> Result<Option<Vec<String>>, Error> {
    if first.await.is_err() {
        return Ok(None);
    }
    loop {
        match make_tables(loader.client, args).await {
            Err(error) if may_pass(&error) => loader.retries.wait(error, loader.say).await?,
            made => return made.map(Some),
        }
    }
}

/// Makes those tables that are missing. Says what it did.
async fn make_tables(client: &Client, args: &Args) -> Result<Vec<String>, Error> {
    let mut said = Vec::new();
    let tables = client.tables().await?;
    let cuts: Vec<Bytes> = args.split_at.iter().map(|row| row.0.clone()).collect();
    let wanted = std::iter::once((args.table.as_str(), &cuts[..])).chain(
        args.index
            .iter()
            .map(|index| (index.table.as_str(), &[][..])),
    );
    for (name, cuts) in wanted {
        if tables.iter().any(|table| table.name == name) {
            if !cuts.is_empty() {
                said.push(format!(
                    "table {name} is there already; --split-at changes nothing"
                ));
            }
            continue;
        }
        match client.create_table(name, cuts).await {
            Ok(()) => said.push(format!(
                "table {name} is made, {}",
                count(cuts.len() as u64 + 1, "tablet")
            )),
            // Somebody else was quicker.
            Err(Error::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(said)
}

fn summary(counts: &Counts, end: &End, took: Duration, output: Output) -> anyhow::Result<()> {
    let seconds = took.as_secs_f64();
    let rate = counts.rows as f64 / seconds.max(0.001);
    match output.format {
        Format::Json => output.line(
            &json!({
                "rows": counts.rows,
                "new": counts.new,
                "changed": counts.changed,
                "unchanged": counts.unchanged,
                "replaced": counts.replaced,
                "skipped": end.bad,
                "index_entries": counts.index_entries,
                "index_entries_removed": counts.index_entries_removed,
                "seconds": (seconds * 1000.0).round() / 1000.0,
                "rows_per_second": rate.round(),
                "complete": end.bad == 0
                    && end.stopped_at.is_none()
                    && !end.interrupted
                    && end.failure.is_none()
                    && !end.unmet
                    && !end.failed,
            })
            .to_string(),
        )?,
        Format::Text => {
            let replaced = match counts.replaced {
                0 => String::new(),
                replaced => format!(", {replaced} replaced by a later line"),
            };
            let removed = match counts.index_entries_removed {
                0 => String::new(),
                removed => format!(", {removed} removed"),
            };
            output.line(&format!(
                "{}: {} new, {} changed, {} unchanged{replaced}; {} skipped; {} written{removed}; {seconds:.1} s, \
                 {rate:.0} rows/s",
                count(counts.rows, "row"),
                counts.new,
                counts.changed,
                counts.unchanged,
                count(end.bad, "line"),
                count(counts.index_entries, "index entry"),
            ))?;
        }
    }
    Ok(())
}
