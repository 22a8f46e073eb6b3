//! `cargo xtask bench`: measurements on a cluster of processes that goes away.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::{cmd::Cmd, context::Context, programs};

/// The master's port. The servers take the following ones, and behind these each its metrics.
const PORT: u16 = 17_400;
/// The master, the oracle, and as many tablet servers as there are without a manifest.
const SERVERS: u16 = 5;
/// How often metrics are read.
const EVERY: Duration = Duration::from_secs(1);

/// What to measure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench all
  cargo xtask bench oracle --duration 30s
  cargo xtask bench overhead --json overhead.json
  cargo xtask bench gc --duration 30s
  cargo xtask bench bank; cargo xtask bench bank --scrape
                                    what it costs to be watched

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
    /// Read every server's metrics once a second meanwhile, as Prometheus does.
    #[arg(long)]
    scrape: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// Timestamps per second.
    Oracle,
    /// What a transaction costs, next to plain writes and reads of the engine.
    Overhead,
    /// Transfers of money.
    Bank,
    /// Reads at a snapshot.
    Reads,
    /// Garbage collection: its price in the write path, engine operations, disk space, and what goes on beside it.
    Gc,
    /// One after the other, but for `gc`.
    All,
}

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<ExitCode> {
    let programs = programs::build_for_release(context)?;
    if matches!(args.name, Name::Gc) {
        collection(context)?;
        write_price(&programs, args.duration.as_deref())?;
    }
    let name = args.name.to_possible_value();
    let mut command = Cmd::new(programs.join("percolator"))
        .args(["up", "--processes", "--raw", "--ephemeral"])
        .args(["--port", &PORT.to_string(), "--"])
        .args(["percolator", "bench"])
        .args(name.as_ref().map(clap::builder::PossibleValue::get_name));
    if let Some(file) = &args.json {
        command = command.arg("--json").arg(file);
    }
    if let Some(duration) = &args.duration {
        command = command.arg("--duration").arg(duration);
    }
    if !args.scrape {
        return Err(command.exec());
    }
    let (ended, end) = mpsc::channel();
    let scraper = std::thread::spawn(move || scrape(&end));
    let result = command.run();
    drop(ended);
    if let Ok(seen) = scraper.join() {
        println!("{seen}");
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// What was read of servers' metrics.
#[derive(Debug, Default)]
struct Scraped {
    pages: u64,
    bytes: usize,
    longest: Duration,
}

impl fmt::Display for Scraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "scraped {} pages, {:.1} MB, the slowest in {:.1} ms",
            self.pages,
            self.bytes as f64 / 1e6,
            self.longest.as_secs_f64() * 1e3
        )
    }
}

/// Reads the metrics of every server once a second, until the other end of the channel is gone. Servers that aren't there
/// yet, or any more, are left out.
fn scrape(end: &mpsc::Receiver<()>) -> Scraped {
    let mut scraped = Scraped::default();
    while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        for port in PORT + SERVERS..PORT + 2 * SERVERS {
            let began = Instant::now();
            if let Ok(bytes) = page(port) {
                scraped.pages += 1;
                scraped.bytes += bytes;
                scraped.longest = scraped.longest.max(began.elapsed());
            }
        }
    }
    scraped
}

fn page(port: u16) -> io::Result<usize> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(EVERY))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    stream.read_to_end(&mut Vec::new())
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
        &["disk", "--rows", "1000000", "--engine", "fjall"],
    ] {
        context
            .cargo(["run", "--quiet", "--release", "-p", "percolator-tablet"])
            .args(["--example", "collection", "--"])
            .args(arguments)
            .run()?;
    }
    Ok(())
}
