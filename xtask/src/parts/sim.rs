//! The simulator: the same seeds each time, some that nobody has run yet, and the proof that it kills
//! mutants of the rules. A failure says how to repeat it.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{cmd::Cmd, context::Context, parts::Report};

/// Seeds that every change runs, as far as there is time; but the first ones in any case.
const FIXED: &str = "0..600";
/// For so long, in seconds. With the fresh ones and the proofs it is some two minutes on two cores.
const FIXED_SECONDS: &str = "80";
/// So many of them at the least, below which it has tested little.
const FIXED_LEAST: &str = "300";
/// So many tablet servers, of 100 tablets each, has the cluster in which nothing may grow with it.
const LARGE: &str = "10000";
/// How long fresh ones are run, in seconds.
const FRESH_SECONDS: &str = "30";
/// So many of them at the least, however little of the processors is left for them.
pub(crate) const FRESH_LEAST: &str = "20";

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<String> {
    let built = report.step("build", |_| context.built())?;
    let program = built.programs.join("percolator-sim");
    report.step("the same seeds", |_| {
        Cmd::new(&program)
            .args(["--seeds", FIXED, "--seconds", FIXED_SECONDS])
            .args(["--at-least", FIXED_LEAST])
            .run()
    })?;
    // A day has seeds of its own: anyone who repeats a failure of today finds it again.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let first = now.as_secs() / 86_400 * 1_000_000;
    let seeds = format!("{first}..{}", first + 1_000_000);
    report.step("fresh seeds", |_| {
        Cmd::new(&program)
            .args(["--seeds", &seeds, "--seconds", FRESH_SECONDS])
            .args(["--at-least", FRESH_LEAST])
            .run()
    })?;
    let prove = |what: &str| Cmd::new(&program).arg(what).run();
    report.step("a large cluster", |_| {
        Cmd::new(&program).args(["--servers", LARGE]).run()
    })?;
    report.step("mutants are killed", |_| prove("--mutants"))?;
    report.step("each invariant kills one", |_| prove("--invariants"))?;
    Ok(format!(
        "seeds {FIXED}, new ones for {FRESH_SECONDS} s, {LARGE} servers, every mutant, every invariant"
    ))
}
