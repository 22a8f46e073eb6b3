//! `cargo xtask sim`: a whole cluster in one thread, from seeds.

use std::process::ExitCode;

use crate::{cmd::Cmd, context::Context, programs};

/// The arguments of `cargo xtask sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask sim                        the first thousand seeds, on all cores
  cargo xtask sim --seeds 1000..100000   until one fails, which is made smaller and shown
  cargo xtask sim --seed 17 --trace      everything that happens in one
  cargo xtask sim --mutant list          the mutants that it can run
  cargo xtask sim --help-all             every argument of the simulator")]
pub(crate) struct Args {
    /// Arguments of the simulator.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    arguments: Vec<String>,
}

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<ExitCode> {
    context
        .cargo(["build", "-p", "percolator-sim", "--profile", "sim"])
        .args(programs::MUTANTS)
        .run()?;
    let program = context.metadata()?.target.join("sim/percolator-sim");
    let arguments = args
        .arguments
        .iter()
        .map(|argument| match argument.as_str() {
            "--help-all" => "--help",
            other => other,
        });
    Err(Cmd::new(program).args(arguments).exec())
}
