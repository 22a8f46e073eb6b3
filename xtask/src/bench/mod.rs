//! `cargo xtask bench`: measurements on a cluster of processes that goes away.

pub(crate) mod cluster;
mod engines;
pub(crate) mod failover;
mod hosted;
mod scrape;
mod starts;
pub(crate) mod test_cluster;
mod turns;
mod volume;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::{cmd::Cmd, context::Context, programs};

/// The arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench all
  cargo xtask bench oracle --duration 30s
  cargo xtask bench overhead --json overhead.json
  cargo xtask bench contention
  cargo xtask bench gc --duration 30s
  cargo xtask bench proxy
  cargo xtask bench tablets
  cargo xtask bench observers
  cargo xtask bench scrape --pairs 12 --duration 10s
  cargo xtask bench before --programs ../before/target/release
  cargo xtask bench engines --rows 2000000
  cargo xtask bench starts --turns 5
  cargo xtask bench failover --turns 50
  cargo xtask bench failover --turns 50 --faults ended,cut-off

Numbers mean something on a machine that does nothing else.")]
pub(crate) struct Args {
    /// Which measurement.
    #[arg(value_enum)]
    name: Name,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How long each measurement takes. Default: what `percolator bench` finds right.
    #[arg(long, value_name = "DURATION")]
    duration: Option<String>,
    /// Pairs of rounds of `scrape`, each with one where metrics are read and one where they aren't.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Folder of the other programs, for `before`: those of an earlier commit, built for release. Of `failover`: measure these, and build none.
    #[arg(long, value_name = "FOLDER", required_if_eq("name", "before"))]
    programs: Option<PathBuf>,
    /// Rows that `engines` imports.
    #[arg(long, default_value_t = 2_000_000)]
    rows: u32,
    /// Rounds of `before`, `engines` and `starts`: in each, every side has its turn. Of `failover`, faults of each kind.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// Of `failover`, these faults alone, without the timestamps a second; several with commas between. Default: all that this user
    /// may cause.
    #[arg(long, value_enum, value_name = "FAULT", value_delimiter = ',')]
    faults: Vec<test_cluster::Fault>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// Timestamps per second.
    Oracle,
    /// What a transaction costs, next to plain writes and reads of the engine.
    Overhead,
    /// Transfers of money.
    Bank,
    /// Transfers between two accounts alone, by more and more clients.
    Contention,
    /// Reads at a snapshot.
    Reads,
    /// Garbage collection: its price in the write path, engine operations, disk space, and what goes on beside it.
    Gc,
    /// What it costs to be scraped: transfers of money with every server's metrics read once a second, and without, in turns.
    Scrape,
    /// All of `all` with other programs and with these, in turns, and the ratios.
    Before,
    /// The engines side by side: transfers, plain access, an import, an export, memory and disk.
    Engines,
    /// How long the start of a server takes that was replaced, to a client's first answer.
    Starts,
    /// For how long nothing goes on when a leading oracle or master ends, is killed, stands still, has a disk that hangs or is cut
    /// off; and timestamps per second with a register and without.
    Failover,
    /// Transfers by the proxy, next to the client library's; and the memory of idle sessions.
    Proxy,
    /// Moves and splits of a tablet, and what they cost those who write to it.
    Tablets,
    /// How soon observers run, how many documents they get through, and what observing costs commits on other columns.
    Observers,
    /// One after the other, but for those that compare, and `gc`.
    All,
}

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<ExitCode> {
    let built = args
        .programs
        .clone()
        .filter(|_| matches!(args.name, Name::Failover));
    let programs = built.map_or_else(|| programs::build_for_release(context), Ok)?;
    if matches!(args.name, Name::Gc) {
        collection(context)?;
        write_price(&programs, args.duration.as_deref())?;
    }
    if matches!(args.name, Name::Scrape) {
        scrape::run(&programs, args)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(before) = args
        .programs
        .as_ref()
        .filter(|_| matches!(args.name, Name::Before))
    {
        return turns::before(before, &programs, args).map(|()| ExitCode::SUCCESS);
    }
    if matches!(args.name, Name::Starts) {
        return starts::run(&programs, args).map(|()| ExitCode::SUCCESS);
    }
    if matches!(args.name, Name::Failover) {
        return failover::run(context, &programs, args).map(|()| ExitCode::SUCCESS);
    }
    if matches!(args.name, Name::Engines) {
        return engines::run(&programs, args).map(|()| ExitCode::SUCCESS);
    }
    let name = args.name.to_possible_value();
    let mut command = Cmd::new(programs.join("percolator"))
        .args(["up", "--processes", "--raw", "--ephemeral"])
        .args(["--", "percolator", "bench"])
        .args(name.as_ref().map(clap::builder::PossibleValue::get_name));
    if let Some(file) = &args.json {
        command = command.arg("--json").arg(file);
    }
    if let Some(duration) = &args.duration {
        command = command.arg("--duration").arg(duration);
    }
    Err(command.exec())
}

/// Turns of the two sides of a comparison.
const TURNS: usize = 3;

/// What a write costs more because it says what it hides: overwriting with the index of garbage and without, in turns.
fn write_price(programs: &Path, duration: Option<&str>) -> anyhow::Result<()> {
    let mut sums = [0.0; 2];
    for turn in 1..=TURNS {
        for (without, sum) in [false, true].into_iter().zip(&mut sums) {
            let mut command = Cmd::new(programs.join("percolator"))
                .args(["up", "--processes", "--ephemeral", "--raw", "--quiet", "--"])
                .args(["percolator", "bench", "writes", "-o", "json"])
                .env("PERCOLATOR_TABLET_NO_GARBAGE_INDEX", &without.to_string());
            if let Some(duration) = duration {
                command = command.args(["--duration", duration]);
            }
            let answer: serde_json::Value = serde_json::from_str(&command.output()?)?;
            let rate = answer["figures"][0]["per_second"].as_f64();
            let rate = rate.context("the benchmark answers without a figure")?;
            let index = if without { "without" } else { "with" };
            println!(
                "turn {turn}: {rate:.0} rows overwritten a second {index} the index of garbage"
            );
            *sum += rate;
        }
    }
    let [with, without] = sums.map(|sum| sum / TURNS as f64);
    println!(
        "{with:.0} a second with it, {without:.0} without: {:.1} % less",
        100.0 * (1.0 - with / without)
    );
    Ok(())
}

/// A tablet server's part, without a network.
fn collection(context: &Context) -> anyhow::Result<()> {
    for arguments in [
        &["operations", "--rows", "1000000"][..],
        &["disk", "--rows", "1000000", "--engine", "sled"],
        &["disk", "--rows", "1000000", "--engine", "redb"],
    ] {
        context
            .cargo(["run", "--quiet", "--release", "-p", "percolator-tablet"])
            .args(["--example", "collection", "--"])
            .args(arguments)
            .run()?;
    }
    Ok(())
}
