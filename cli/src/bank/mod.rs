//! `percolator bank`: the classical transfer workload. Money moves between accounts, and at every
//! snapshot the sum is what it was.

mod accounts;
mod ledger;
mod recording;
mod stats;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::bail;
use percolator_client::{Client, Error, Options, Timestamp};
use rand::RngExt;
use tokio::task::LocalSet;

use crate::connect::Connect;
use crate::output::{Format, Output};
use accounts::{Accounts, Contents, Transfer};
use ledger::Ledger;
use recording::Recording;
use stats::{Stats, Summary};

/// A single call is tried for this long: a server that was killed has to come back meanwhile.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long what is under way at the end may take.
const AFTER_THE_END: Duration = Duration::from_secs(15);

/// How many accounts there are, where nobody says it.
const ACCOUNTS: u32 = 10_000;

/// The workload.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator bank
  percolator bank --accounts 1000 --clients 8 --duration 1m
  percolator bank --rate 100 --duration 1h      a little of it, to look at
  percolator bank --ledger transfers.jsonl      keep what was answered
  percolator bank --history history.jsonl       then: percolator history check history.jsonl
  percolator bank --verify transfers.jsonl      ... and hold it against the cluster; every bank on the
                                                table has to have written a ledger

Exit code 7 where money was lost or made, where an answer turned out to be wrong, or where there is none to verify.")]
pub(crate) struct Args {
    /// How many accounts. Default: 10000; with --verify, as many as there are.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    accounts: Option<u32>,
    /// How many clients transfer at the same time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Begin at most so many transfers a second, of all clients together. Default: as many as they can.
    #[arg(long, value_name = "TRANSFERS", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// How long, for example 10s or 5m.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Table of the accounts; made if it isn't there.
    #[arg(long, default_value = "bank")]
    table: String,
    /// How often the reader checks the sum at a snapshot.
    #[arg(long, default_value = "500ms", value_parser = humantime::parse_duration)]
    check_every: Duration,
    /// Write every transfer into the table TABLE-ledger too, in the same transaction, and what was
    /// answered into this file, a JSON object a line.
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Instead of transferring: hold the answers of such a file against the cluster. An account that is gone is
    /// noticed if a transfer names it, or if --accounts says how many there are.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ledger", "history"])]
    verify: Option<PathBuf>,
    /// Append what every transaction read and wrote to this file, for `percolator history check`; every sum is
    /// a line with all accounts. Only where every bank on the table writes to the same file.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Show what the client library does: /metrics, /healthz and /readyz at IP:PORT; port 0 picks a free one, which
    /// it says. Default: nowhere.
    #[arg(long, value_name = "IP:PORT", conflicts_with = "verify")]
    metrics_listen: Option<SocketAddr>,
}

pub(crate) async fn run(
    connect: &Connect<'_>,
    args: Args,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let options = Options {
        request_timeout: TIMEOUT,
        ..Options::default()
    };
    let client = connect.retrying_client(options, TIMEOUT, output).await?;
    if let Some(file) = &args.verify {
        return ledger::verify(&client, (&args.table, args.accounts), file, output).await;
    }
    let _endpoint = match args.metrics_listen {
        Some(address) => Some(crate::metrics::show(&client, address, "bank", output)?),
        None => None,
    };
    let accounts = args.accounts.unwrap_or(ACCOUNTS);
    let accounts = Accounts::open(&client, &args.table, accounts, output).await?;
    let ledger = match &args.ledger {
        Some(file) => Some(Ledger::open(&client, &args.table, file).await?),
        None => None,
    };
    let recording = match &args.history {
        Some(file) => Some(Recording::open(&client, &accounts, args.clients, file).await?),
        None => None,
    };
    let written = Written {
        ledger: ledger.map(Rc::new),
        recording: recording.map(Rc::new),
    };
    let summary = transfer(client.clone(), accounts, written, &args, output).await?;
    client.settle().await;
    output.result(&summary.text(), &summary)?;
    Ok(crate::answered(summary.holds()))
}

/// Runs the workload.
pub(crate) async fn measure(
    client: Client,
    accounts: u32,
    clients: u32,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Summary> {
    let args = Args {
        accounts: Some(accounts),
        clients,
        rate: None,
        duration,
        table: format!("bank-{accounts}"),
        check_every: Duration::from_secs(1),
        ledger: None,
        verify: None,
        history: None,
        metrics_listen: None,
    };
    let quiet = Output {
        quiet: true,
        ..output
    };
    let accounts = Accounts::open(&client, &args.table, accounts, quiet).await?;
    transfer(client, accounts, Written::default(), &args, quiet).await
}

/// What is written down of the transfers.
#[derive(Clone, Default)]
struct Written {
    ledger: Option<Rc<Ledger>>,
    recording: Option<Rc<Recording>>,
}

async fn transfer(
    client: Client,
    accounts: Accounts,
    written: Written,
    args: &Args,
    output: Output,
) -> anyhow::Result<Summary> {
    let stats = Stats::new(args.clients);
    let accounts = Rc::new(accounts);
    let end = Instant::now() + args.duration;
    let local = LocalSet::new();
    let mut workers = Vec::new();
    for number in 0..args.clients {
        let worker = Worker {
            client: client.clone(),
            accounts: accounts.clone(),
            written: written.clone(),
            stats: stats.clone(),
            number,
            every: args
                .rate
                .map(|rate| Duration::from_secs(1) * args.clients / rate),
        };
        workers.push(local.spawn_local(worker.run(end)));
    }
    let reader = local.spawn_local(check_sums(
        client.clone(),
        accounts.clone(),
        written.clone(),
        stats.clone(),
        args.check_every,
        end,
    ));
    let ticker = local.spawn_local(report(stats.clone(), end, output));
    let all = async {
        for worker in workers {
            worker.await??;
        }
        reader.await??;
        ticker.await?;
        anyhow::Ok(())
    };
    let bound = tokio::time::timeout_at((end + AFTER_THE_END).into(), local.run_until(all));
    tokio::select! {
        biased;
        () = percolator_server::signals::shutdown() => {
            output.note("stopped: what is under way is left, and the sum is checked");
        }
        bound = bound => match bound {
            Ok(result) => result?,
            Err(_) => output.note("the cluster does not answer: what is under way is left"),
        }
    }
    stats.stopped();
    // What was left in doubt is cleared by this read, or counts as it is.
    let sum = match tokio::time::timeout(
        AFTER_THE_END,
        accounts.sum(&client, written.recording.as_deref()),
    )
    .await
    {
        Ok(sum) => sum?,
        Err(_) => {
            output.note(&stats.line(args.duration));
            bail!("the cluster does not answer, so the sum at the end can't be checked");
        }
    };
    if let Some(ledger) = written.ledger {
        ledger.finish()?;
    }
    Ok(stats.summary(sum, accounts.expected_sum()))
}

struct Worker {
    client: Client,
    accounts: Rc<Accounts>,
    written: Written,
    stats: Stats,
    number: u32,
    /// From the begin of one of its transfers to the next, at least.
    every: Option<Duration>,
}

impl Worker {
    async fn run(self, end: Instant) -> anyhow::Result<()> {
        let mut rng = rand::rng();
        // Clients don't begin all at once.
        let mut next = Instant::now() + self.every.unwrap_or_default().mul_f64(rng.random());
        while Instant::now() < end {
            if let Some(every) = self.every {
                tokio::time::sleep_until(next.min(end).into()).await;
                if next >= end {
                    break;
                }
                next = Instant::now() + every;
            }
            let transfer = Transfer {
                from: rng.random_range(0..self.accounts.count),
                to: rng.random_range(0..self.accounts.count - 1),
                amount: rng.random_range(1..=5),
            }
            .between_different();
            let started = Instant::now();
            let mut attempts = self.client.attempts();
            loop {
                let mut start_ts = Timestamp::ZERO;
                match self.attempt(&transfer, &mut start_ts).await {
                    Ok(()) => {
                        self.stats.committed(started.elapsed());
                        break;
                    }
                    // Too old is who was stopped for longer than its lease.
                    Err(error @ (Error::Conflict(_) | Error::TooOld(_))) => {
                        if Instant::now() >= end {
                            break;
                        }
                        self.stats.conflict();
                        if !attempts.again(start_ts, &error).await {
                            attempts = self.client.attempts();
                        }
                    }
                    Err(Error::Unknown { .. }) => {
                        self.stats.unknown();
                        break;
                    }
                    Err(error @ (Error::Timeout { .. } | Error::Unavailable(_))) => {
                        self.stats.failed(&error);
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// `start_ts`: when it began, which counts on failure, too.
    async fn attempt(&self, transfer: &Transfer, start_ts: &mut Timestamp) -> Result<(), Error> {
        let Written { ledger, recording } = &self.written;
        let began_us = recording.as_ref().map(|recording| recording.now_us());
        let txn = self.client.begin().await?;
        *start_ts = txn.start_ts();
        let start_ts = *start_ts;
        let before = self.accounts.transfer(&txn, transfer).await?;
        let row = match ledger {
            Some(ledger) => Some(ledger.write(&txn, self.number, transfer)?),
            None => None,
        };
        let result = match (recording, began_us) {
            (Some(recording), Some(began_us)) => {
                let ops = recording.ops(transfer, before);
                let result = recording.commit(txn, self.number, began_us, ops).await;
                result.map_err(Error::application)?
            }
            _ => txn.commit().await,
        };
        if let (Some(ledger), Some(row)) = (ledger, row) {
            ledger
                .answered(&row, start_ts, &result)
                .map_err(Error::application)?;
        }
        result.map(drop)
    }
}

/// Checks the sum at one snapshot after the other.
async fn check_sums(
    client: Client,
    accounts: Rc<Accounts>,
    written: Written,
    stats: Stats,
    every: Duration,
    end: Instant,
) -> anyhow::Result<()> {
    loop {
        match accounts.sum(&client, written.recording.as_deref()).await {
            Ok(sum) => stats.checked(sum == accounts.expected_sum()),
            Err(error) => match error.downcast_ref::<Error>() {
                Some(
                    error @ (Error::TooOld(_) | Error::Timeout { .. } | Error::Unavailable(_)),
                ) => {
                    stats.failed(error);
                }
                _ => return Err(error),
            },
        }
        if Instant::now() + every >= end {
            return Ok(());
        }
        tokio::time::sleep(every).await;
    }
}

/// One line a second.
async fn report(stats: Stats, end: Instant, output: Output) {
    let started = Instant::now();
    let mut next = started + Duration::from_secs(1);
    while next <= end {
        tokio::time::sleep_until(next.into()).await;
        next += Duration::from_secs(1);
        let line = stats.line(started.elapsed());
        if output.format == Format::Text {
            output.note(&line);
        }
    }
}

fn wrong_contents(table: &str, count: u32, there: &Contents) -> anyhow::Result<Accounts> {
    bail!(
        "table {table} does not hold the {count} accounts of this bank: it has {} cells that sum up to {}; give another \
         --table, or the number of accounts that it was made with, or delete it with `percolator table delete {table}`",
        there.cells,
        there.sum
    )
}
