//! `percolator bench`: what the cluster can do, against what the machine can do.

mod access;
mod collection;
mod large;
mod memory;
mod observers;
mod oracle;
mod proxy;
mod tablets;
mod workers;

use std::process::ExitCode;
use std::time::Duration;

use percolator_client::{Admin, Client};
use serde_json::{Value, json};

use crate::bank;
use crate::observe::metrics::MetricsSource;
use crate::observe::survey;
use crate::output::{Output, columns};

/// What to measure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator up --processes --ephemeral --raw -- percolator bench all
  percolator bench bank --json bank.json
  percolator up --processes --ephemeral -- percolator bench large
  percolator up --processes --ephemeral -- percolator bench proxy
  percolator up --processes --ephemeral -- percolator bench tablets
  percolator up --processes --ephemeral -- percolator bench observers

The servers have to be started with --raw for `overhead` and `all`: it compares with plain access to the
engine. Figures of one run belong together; those of two runs differ by what else the machine did.")]
pub(crate) struct Args {
    /// Which figures.
    #[arg(value_enum, default_value_t)]
    what: Benchmark,
    /// How long each measurement takes.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Rows of the large transaction.
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    rows: u32,
    /// Write the figures into this file too, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
    /// Only see that everything can be measured: a fraction of a second for each.
    #[arg(long)]
    smoke: bool,
    #[command(flatten)]
    metrics: MetricsSource,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, clap::ValueEnum)]
enum Benchmark {
    /// Timestamps a second.
    Oracle,
    /// Transactions against plain access to the same engine, over the same connection.
    Overhead,
    /// Transfers a second, everything durable.
    Bank,
    /// Transfers between two accounts alone, and how many of one client's are left with more. Not among `all`.
    Contention,
    /// Single random reads, each a transaction.
    Reads,
    /// Single rows overwritten, each in a transaction. Not among `all`, as `overhead` has it.
    Writes,
    /// One transaction of --rows rows of 200 bytes over three tablets, and point reads of the same table beside
    /// it. Not part of `all`.
    Large,
    /// Reads and writes beside garbage collection, and what the master takes for gc-locks. Not among `all`: it
    /// changes the cluster's retention meanwhile.
    Gc,
    /// Transfers by the proxy beside the same ones by the client library, and what 10,000 idle sessions take. Not among
    /// `all`; PERCOLATOR_PROXY says where the proxy is, which `percolator up` sets.
    Proxy,
    /// Moves and splits of a tablet, and writes to it meanwhile. Not among `all`.
    Tablets,
    /// How soon runs of observers begin, how many documents workers get through, what observing costs commits on other
    /// columns, and what idle workers ask for. Not among `all`.
    Observers,
    /// Everything else.
    #[default]
    All,
}

/// A measured figure.
#[derive(Clone, Debug)]
struct Figure {
    name: String,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Against another figure of the same run.
    ratio: Option<(f64, String)>,
    note: String,
}

impl Figure {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "per_second": self.per_second,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "ratio": self.ratio.as_ref().map(|(ratio, _)| ratio),
            "ratio_to": self.ratio.as_ref().map(|(_, to)| to),
            "note": self.note,
        })
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            format!("{:.0}", self.per_second),
            format!("{:.3}", self.p50_ms),
            format!("{:.3}", self.p99_ms),
            self.ratio
                .as_ref()
                .map_or_else(String::new, |(ratio, to)| format!("{ratio:.2} of {to}")),
            self.note.clone(),
        ]
    }
}

#[expect(clippy::too_many_lines, reason = "one step a benchmark")]
pub(crate) async fn run(
    cluster: &str,
    client: &Client,
    args: Args,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let duration = if args.smoke {
        Duration::from_millis(200)
    } else {
        args.duration
    };
    let does = |what| args.what == what || args.what == Benchmark::All;
    let (mut figures, mut held) = (Vec::new(), true);
    let mut memory = vec![memory::now("at rest")];
    if does(Benchmark::Oracle) {
        for requesters in [1000, 128, 1] {
            output.note(&format!("timestamps, {requesters} requesters ..."));
            figures.push(oracle::measure(client, requesters, duration).await?);
        }
    }
    if does(Benchmark::Overhead) {
        access::check_raw(client).await?;
    }
    // Before those that write as fast as can be: what these leave to be done in the background takes a while.
    if does(Benchmark::Bank) {
        let accounts = if args.smoke { 100 } else { 10_000 };
        for clients in [1, 8, 64, 256] {
            let (figure, is_right) = bank(client, accounts, clients, duration, output).await?;
            figures.push(figure);
            held &= is_right;
        }
    }
    if args.what == Benchmark::Contention {
        let (contended, is_right) = contention(client, duration, output).await?;
        figures.extend(contended);
        held &= is_right;
    }
    if args.what == Benchmark::Gc {
        let admin = Admin::connect(cluster)?;
        figures.extend(collection::beside(client, &admin, args.smoke, duration, output).await?);
        figures.push(
            collection::sessions(|| Admin::connect(cluster), args.smoke, duration, output).await?,
        );
    }
    if does(Benchmark::Overhead) || does(Benchmark::Reads) || args.what == Benchmark::Writes {
        let table = access::prepare(client, args.smoke, output).await?;
        if does(Benchmark::Overhead) {
            figures.extend(access::overhead(client, &table, duration, output).await?);
        }
        if args.what == Benchmark::Writes {
            figures.push(access::blind_writes(client, &table, duration, output).await?);
        }
        if does(Benchmark::Reads) {
            figures.extend(access::reads(client, &table, duration, output).await?);
        }
    }
    if args.what == Benchmark::Large {
        let rows = if args.smoke { 20_000 } else { args.rows };
        let by_master = survey::metrics(&client.cluster().await?, cluster);
        let outcome = large::measure(
            cluster,
            client,
            args.metrics.find(cluster).with(&by_master),
            rows,
            duration,
            output,
        )
        .await?;
        figures.extend(outcome.figures);
        memory.extend(outcome.memory);
    }
    if args.what == Benchmark::Proxy {
        let outcome = proxy::measure(cluster, client, args.smoke, duration, output).await?;
        figures.extend(outcome.figures);
        memory.extend(outcome.memory);
    }
    if args.what == Benchmark::Tablets {
        figures.extend(tablets::measure(client, args.smoke, duration, output).await?);
    }
    if args.what == Benchmark::Observers {
        figures.extend(observers::measure(client, duration, output).await?);
    }
    memory.push(memory::now("after the load"));
    print(&figures, &memory, output, args.json.as_deref())?;
    Ok(crate::answered(held))
}

/// Transfers between two accounts, by more and more clients, and whether the sums of the accounts are right.
async fn contention(
    client: &Client,
    duration: Duration,
    output: Output,
) -> anyhow::Result<(Vec<Figure>, bool)> {
    let (mut figures, mut held, mut alone) = (Vec::new(), true, None);
    for clients in [1, 4, 16, 64, 256] {
        let (figure, is_right) = bank(client, 2, clients, duration, output).await?;
        let alone = *alone.get_or_insert(figure.per_second);
        figures.push(Figure {
            ratio: Some((figure.per_second / alone, "one client".into())),
            ..figure
        });
        held &= is_right;
    }
    Ok((figures, held))
}

/// Transfers, and whether the sum of all accounts is right.
async fn bank(
    client: &Client,
    accounts: u32,
    clients: u32,
    duration: Duration,
    output: Output,
) -> anyhow::Result<(Figure, bool)> {
    output.note(&format!(
        "bank of {accounts} accounts, {clients} clients ..."
    ));
    let summary = bank::measure(client.clone(), accounts, clients, duration, output).await?;
    let figure = Figure {
        name: format!("bank, {clients} clients"),
        per_second: summary.transfers_per_second,
        p50_ms: summary.p50_ms,
        p99_ms: summary.p99_ms,
        ratio: None,
        note: format!(
            "p99.9 {:.1} ms, {} conflicts, {} unknown, {} failed, sum {}",
            summary.p999_ms,
            summary.conflicts,
            summary.unknown,
            summary.failed,
            if summary.holds() { "right" } else { "WRONG" }
        ),
    };
    Ok((figure, summary.holds()))
}

fn print(
    figures: &[Figure],
    memory: &[(String, Vec<memory::Process>)],
    output: Output,
    file: Option<&std::path::Path>,
) -> anyhow::Result<()> {
    let mut rows = vec![
        ["", "PER SECOND", "P50 MS", "P99 MS", "RATIO", ""]
            .map(String::from)
            .to_vec(),
    ];
    rows.extend(figures.iter().map(Figure::row));
    let mut text = columns(&rows);
    for (when, processes) in memory {
        let sizes: Vec<String> = processes
            .iter()
            .map(|process| format!("{} {:.0} MiB", process.name, process.mebibytes))
            .collect();
        if !sizes.is_empty() {
            text += &format!("\nmemory {when}: {}", sizes.join(", "));
        }
    }
    let memory: Vec<Value> = memory
        .iter()
        .map(|(when, processes)| json!({"when": when, "processes": processes}))
        .collect();
    let json = json!({
        "figures": figures.iter().map(Figure::json).collect::<Vec<_>>(),
        "memory": memory,
    });
    if let Some(file) = file {
        std::fs::write(file, serde_json::to_vec_pretty(&json)?)?;
    }
    output.result(&text, &json)?;
    Ok(())
}
