//! `cargo xtask`: the project's own commands.
//!
//! They need nothing beyond a Rust toolchain and a C compiler, and know nothing of how the programs
//! work inside: they run them.

#![allow(
    clippy::print_stdout,
    reason = "a program for people: what it has to say goes to the terminal"
)]

mod bench;
mod beside;
mod context;
mod debian;
mod fix;
mod generate;
mod image;
mod links;
mod metadata;
mod parts;
mod programs;
mod sbom;
mod sim;
mod soak;
mod tally;
mod test;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use context::Context;
use percolator_test_kube::{self as kube, cmd, platform};

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                  everything that decides whether a change lands
  cargo xtask test fmt clippy       two parts of it
  cargo xtask fix                   fix what can be fixed by a program
  cargo xtask run                   a cluster on this machine
  cargo xtask bench oracle          timestamps per second
  cargo xtask kube up               a Kubernetes of three nodes on this machine
  cargo xtask sim --seeds 0..5000   a simulated cluster where everything fails
  cargo xtask soak --hours 12       search for bugs all night";

#[derive(Debug, Subcommand)]
enum Command {
    /// Check everything, or the parts that are named.
    Test(test::Args),
    /// Format, apply the lints' own suggestions, and write golden scripts anew.
    ///
    /// Changes files, so read the difference before you commit: a golden script that changed is a
    /// change of behaviour.
    #[command(after_help = "Example:\n  cargo xtask fix && git diff")]
    Fix,
    /// Build the programs for release and run `percolator`.
    #[command(after_help = "\
Examples:
  cargo xtask run                             up -f examples/cluster.yaml
  cargo xtask run -- up --ephemeral
  cargo xtask run -- scan accounts --prefix b")]
    Run {
        /// Arguments of `percolator`. Default: up -f examples/cluster.yaml.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Build the programs for release and measure them on a cluster of processes that goes away.
    Bench(bench::Args),
    /// Write what is generated from the code: the resource's definition, its reference page, golden files.
    Generate,
    /// Make the container image as an OCI archive, without a container engine.
    Image(image::Args),
    /// A real Kubernetes of several nodes on this machine.
    #[command(subcommand)]
    Kube(kube::KubeCommand),
    /// Run a whole cluster in one thread, from seeds, where everything fails that can.
    Sim(sim::Args),
    /// Run for hours what finds bugs the longer it runs: fresh seeds, mutants, crash tests, a Kubernetes.
    Soak(soak::Args),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let context = Context::new();
    let result = match arguments.command {
        Command::Test(args) => test::run(&context, &args),
        Command::Fix => fix::run(&context).map(|()| ExitCode::SUCCESS),
        Command::Run { arguments } => programs::run(&context, &arguments),
        Command::Bench(args) => bench::run(&context, &args),
        Command::Generate => generate::run(&context).map(|()| ExitCode::SUCCESS),
        Command::Image(args) => image::run(&context, &args).map(|()| ExitCode::SUCCESS),
        Command::Kube(command) => {
            kube::run(context.root(), &command, || programs::operator(&context))
        }
        Command::Sim(args) => sim::run(&context, &args),
        Command::Soak(args) => soak::run(&context, &args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
