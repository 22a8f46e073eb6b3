//! Clusters whose processes are killed, stopped and cut off: some tests of the command line's crate. They
//! take long, so they are a part of their own, and show what they do while they do it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::ensure;

use crate::{
    context::Context,
    parts::{Report, unit},
    programs::TestProgram,
};

/// After this, the tests go on for no more rounds than they need.
const TIME: Duration = Duration::from_secs(5 * 60);

const PACKAGE: &str = "percolator-cli";
const NAMES: [&str; 3] = ["crash", "history", "network"];

/// Whether this is a program that the part runs, and no other part.
pub(crate) fn is_it(program: &TestProgram) -> bool {
    program.package == PACKAGE && program.kind == "test" && NAMES.contains(&program.name.as_str())
}

/// How the tests of this part go.
#[derive(Debug, clap::Args)]
pub(crate) struct CrashArgs {
    /// Rounds of each crash test: kills, stops, cuts. Default: some, as long as the part has taken less than 5 minutes,
    /// but a few of each in any case.
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,

    /// Repeat the choices of a run of the crash tests, which print their seeds.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

impl CrashArgs {
    /// So many rounds of each test.
    pub(crate) fn of_rounds(rounds: u64) -> Self {
        Self {
            rounds: Some(rounds),
            seed: None,
        }
    }
}

pub(crate) fn run(
    context: &Context,
    args: &CrashArgs,
    report: &mut Report,
) -> anyhow::Result<String> {
    let built = report.step("build", |_| context.built())?;
    let programs: Vec<&TestProgram> = built.tests.iter().filter(|test| is_it(test)).collect();
    ensure!(
        programs.len() == NAMES.len(),
        "cargo has not built each of {NAMES:?}"
    );
    let until = SystemTime::now().duration_since(UNIX_EPOCH)? + TIME;
    let variables = [
        ("PERCOLATOR_ROUNDS", args.rounds),
        ("PERCOLATOR_SEED", args.seed),
        ("PERCOLATOR_UNTIL", Some(until.as_secs())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?.to_string())))
    .collect();
    let mut how = unit::RunMode {
        arguments: &["--nocapture", "--include-ignored"],
        variables,
        ..unit::RunMode::default()
    };
    if args.rounds.is_some() {
        how.limit = Duration::MAX;
    }
    unit::run_each(&programs, &how, report, TestProgram::cargo_line)?;
    Ok(report.tests())
}
