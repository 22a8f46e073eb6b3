//! The workload of lists: transactions read lists and append to some of them, each element once. A list
//! says in which order its appends were committed, so anyone who reads it sees a piece of history; that is
//! why checkers like lists best (Kingsbury, Alvaro, "Elle", VLDB 2020).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use percolator_client::{Client, Error, OpenTxn, Options, Range, Txn};
use percolator_history::{Op, Outcome, Transaction};
use rand::RngExt;
use serde::Serialize;
use tokio::task::JoinSet;

use super::file::{HistoryFile, table_name};
use crate::output::Output;

const COLUMN: &str = "list";
/// Where a new table is cut, so that transactions have parts on several servers.
const SPLITS: [&[u8]; 2] = [b"list-08", b"list-10"];
/// Operations of one transaction, at most.
const OPS_MAX: usize = 4;
/// A list is left alone when it has this many elements, and a new one takes its place.
const ELEMENTS_MAX: usize = 50;
/// A single call is tried for this long: a server that was killed has to come back meanwhile.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
const NOT_WRITTEN: &str = "cannot write the history";

/// The workload.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator history record --duration 1m history.jsonl
  percolator history record --clients 64 --lists 8 history.jsonl

At its end, also when it is interrupted, it reads all lists in one transaction, which is in the history as well:
so the check notices what was committed and is gone, also in a list that nobody has read since.")]
pub(crate) struct Args {
    /// How many clients run transactions at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// How many lists are in use at a time: the fewer, the more transactions meet.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    lists: u32,
    /// How long, for example 10s or 5m.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Table of the lists; made if it isn't there. Only one history may be recorded of it: a new file wants an
    /// empty table.
    #[arg(long, default_value = "history")]
    table: String,
    /// Where to write the history; lines are appended to what is there.
    file: PathBuf,
}

pub(crate) fn options() -> Options {
    Options {
        request_timeout: TIMEOUT,
        ..Options::default()
    }
}

/// A history has everything that was ever written to its table.
async fn check_empty(client: &Client, table: &str) -> anyhow::Result<()> {
    let txn = client.begin().await?;
    let mut scan = txn.scan(table, Range::all().limit(1)).await?;
    if scan.next().await?.is_some() {
        bail!(
            "table {table} holds rows of before this history: go on with the file of its history, or choose another \
             --table, or delete it with `percolator table delete {table}`"
        );
    }
    Ok(())
}

/// The row of a list, by the place where it is in use, and by how many were there before it.
fn row(at: usize, generation: u64) -> String {
    format!("list-{at:02x}-{generation}")
}

/// How it went.
#[derive(Serialize)]
struct Summary {
    committed: u64,
    aborted: u64,
    unknown: u64,
}

struct Shared {
    client: Client,
    table: String,
    /// As the history names it.
    name: String,
    lists: u64,
    file: HistoryFile,
    next_element: AtomicU64,
    /// Lists that are full: each gives way to one that is `lists` further on.
    ended: [AtomicU64; 3],
}

pub(crate) async fn run(client: &Client, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let made = client
        .create_table(&args.table, &SPLITS.map(Bytes::from_static))
        .await;
    match made {
        Ok(()) | Err(Error::AlreadyExists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    // Before the file is made: who is refused leaves none behind.
    let name = table_name(client, &args.table).await?;
    if HistoryFile::is_new(&args.file, &name)? {
        check_empty(client, &args.table).await?;
    }
    let file = HistoryFile::open(&args.file)?;
    let shared = Arc::new(Shared {
        client: client.clone(),
        table: args.table,
        name,
        lists: args.lists.into(),
        file,
        next_element: AtomicU64::new(0),
        ended: Default::default(),
    });
    let end = Instant::now() + args.duration;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..args.clients {
        let (shared, stop) = (shared.clone(), stop.clone());
        clients.spawn(async move {
            // Which generation each list is in, as far as this client knows.
            let mut generations = vec![0_u64; usize::try_from(shared.lists).unwrap_or(usize::MAX)];
            while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                shared.transaction(number, &mut generations).await?;
            }
            anyhow::Ok(())
        });
    }
    let mut signal = Box::pin(percolator_server::signals::shutdown());
    let mut has_read = false;
    loop {
        tokio::select! {
            () = &mut signal => {
                if stop.swap(true, Ordering::Relaxed) {
                    bail!("stopped at once: what was under way is left, and in the history without an outcome");
                }
                output.note("stopped: transactions that are under way end first");
                signal = Box::pin(percolator_server::signals::shutdown());
            }
            ended = clients.join_next() => match ended {
                Some(ended) => ended??,
                None if has_read => break,
                None => {
                    has_read = true;
                    let shared = shared.clone();
                    clients.spawn(async move { shared.read_all(args.clients).await });
                }
            },
        }
    }
    let [committed, aborted, unknown] = &shared.ended;
    let summary = Summary {
        committed: committed.load(Ordering::Relaxed),
        aborted: aborted.load(Ordering::Relaxed),
        unknown: unknown.load(Ordering::Relaxed),
    };
    let text = format!(
        "{} committed, {} aborted, {} unknown; to check them: percolator history check {}",
        summary.committed,
        summary.aborted,
        summary.unknown,
        args.file.display()
    );
    output.result(&text, &summary)?;
    Ok(ExitCode::SUCCESS)
}

impl Shared {
    async fn transaction(&self, client: u32, generations: &mut [u64]) -> anyhow::Result<()> {
        let began_us = self.file.now_us();
        let txn = match self.client.begin().await {
            Ok(txn) => txn,
            // The oracle is away: nothing happened.
            Err(Error::Timeout { .. } | Error::Unavailable(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut line = self.file.line(client, began_us, txn.start_ts());
        if let Err(error) = self.read_and_append(&txn, &mut line.ops, generations).await {
            return match error {
                // What it read counts all the same. Too old is who was stopped for longer than its lease.
                Error::TooOld(_) | Error::Timeout { .. } | Error::Unavailable(_) => {
                    self.ended(&line);
                    self.file.write(&line).context(NOT_WRITTEN)
                }
                error => Err(error.into()),
            };
        }
        let result = self
            .file
            .commit(txn, &mut line)
            .await
            .context(NOT_WRITTEN)?;
        self.ended(&line);
        match result {
            Ok(_)
            | Err(
                Error::Unknown { .. }
                | Error::Conflict(_)
                | Error::TooOld(_)
                | Error::Timeout { .. }
                | Error::Unavailable(_),
            ) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads all lists at one snapshot, as this client.
    async fn read_all(&self, client: u32) -> anyhow::Result<()> {
        let began_us = self.file.now_us();
        let read = |txn: OpenTxn| async move {
            let mut lists = BTreeMap::new();
            let mut scan = txn.scan(&self.table, Range::all()).await?;
            while let Some(cell) = scan.next().await? {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                lists.insert(text(&cell.row), text(&cell.value));
            }
            Ok::<_, Error>((txn.start_ts(), lists))
        };
        let read = self.client.transact(read).await;
        let (snapshot, lists) = read.context("cannot read all lists at the end")?;
        // Behind the last list of each place there is none. One that is gone is the first that isn't there.
        let places = 0..usize::try_from(self.lists).unwrap_or(usize::MAX);
        let absent = places.filter_map(|at| {
            let mut rows = (0..).map(|generation| row(at, generation));
            rows.find(|row| !lists.contains_key(row))
        });
        let absent = absent.map(|row| Op::Read(self.name(&row), None));
        let present = lists.iter();
        let present = present.map(|(row, list)| Op::Read(self.name(row), Some(list.clone())));
        let ops = absent.chain(present).collect();
        self.file
            .looked(client, began_us, snapshot, ops)
            .context(NOT_WRITTEN)?;
        self.ended[0].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn read_and_append(
        &self,
        txn: &Txn,
        ops: &mut Vec<Op>,
        generations: &mut [u64],
    ) -> Result<(), Error> {
        let (count, appends) = {
            let mut rng = rand::rng();
            (rng.random_range(1..=OPS_MAX), rng.random_range(0..4) > 0)
        };
        let mut used = Vec::new();
        for _ in 0..count {
            let at = rand::rng().random_range(0..generations.len());
            if used.contains(&at) {
                continue;
            }
            used.push(at);
            let (row, value) = self.current(txn, at, &mut generations[at], ops).await?;
            if !appends || rand::rng().random_range(0..2) == 0 {
                continue;
            }
            // Unique: a number of the run, then one of the element.
            let number = self.next_element.fetch_add(1, Ordering::Relaxed);
            let element = (u64::from(self.file.run()) << 31) + number;
            let longer = match value.as_deref() {
                None | Some("") => element.to_string(),
                Some(list) => format!("{list},{element}"),
            };
            ops.push(Op::Write(self.name(&row), Some(longer.clone())));
            txn.put(&self.table, &row, COLUMN, longer)?;
            // What it has written itself it has to see.
            if rand::rng().random_range(0..4) == 0 {
                self.read(txn, &row, ops).await?;
            }
        }
        Ok(())
    }

    /// Reads the list that is in use at a place: the first one that isn't full.
    async fn current(
        &self,
        txn: &Txn,
        at: usize,
        generation: &mut u64,
        ops: &mut Vec<Op>,
    ) -> Result<(String, Option<String>), Error> {
        loop {
            let row = row(at, *generation);
            let value = self.read(txn, &row, ops).await?;
            let elements = value.as_deref().map_or(0, |list| list.split(',').count());
            if elements < ELEMENTS_MAX {
                return Ok((row, value));
            }
            *generation += 1;
        }
    }

    async fn read(&self, txn: &Txn, row: &str, ops: &mut Vec<Op>) -> Result<Option<String>, Error> {
        let value = txn.get(&self.table, row, COLUMN).await?;
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        ops.push(Op::Read(self.name(row), value.clone()));
        Ok(value)
    }

    fn name(&self, row: &str) -> String {
        format!("{}/{row}:{COLUMN}", self.name)
    }

    fn ended(&self, line: &Transaction) {
        let which = match line.outcome {
            Outcome::Committed => 0,
            Outcome::Aborted => 1,
            Outcome::Unknown => 2,
        };
        self.ended[which].fetch_add(1, Ordering::Relaxed);
    }
}
