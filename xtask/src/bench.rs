//! `cargo xtask bench`: measurements on a cluster of processes that goes away.

use std::{path::PathBuf, process::ExitCode};

use clap::ValueEnum;

use crate::{cmd::Cmd, context::Context, programs};

/// What to measure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench all
  cargo xtask bench oracle --duration 30s
  cargo xtask bench overhead --json overhead.json
  cargo xtask bench gc --duration 30s

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
    }
    let name = args.name.to_possible_value();
    let mut command = Cmd::new(programs.join("percolator"))
        .args(["up", "--processes", "--ephemeral", "--raw", "--"])
        .args(["percolator", "bench"])
        .args(name.as_ref().map(clap::builder::PossibleValue::get_name));
    if let Some(file) = &args.json {
        command = command.arg("--json").arg(file);
    }
    if let Some(duration) = &args.duration {
        command = command.arg("--duration").arg(duration);
    }
    Err(command.exec())
}

/// A tablet server's part, without a network.
fn collection(context: &Context) -> anyhow::Result<()> {
    for arguments in [
        &["operations", "--rows", "1000000"][..],
        &["write-path", "--engine", "sled"],
        &["write-path", "--engine", "fjall"],
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
