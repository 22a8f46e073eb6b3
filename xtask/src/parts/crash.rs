//! Clusters whose processes are killed, stopped and cut off: some tests of the command line's crate. They
//! take long, so they are a part of their own, and show what they do while they do it.

use anyhow::ensure;

use crate::{
    context::Context,
    parts::{Report, unit},
    programs::TestProgram,
};

const PACKAGE: &str = "percolator-cli";
const NAMES: [&str; 3] = ["crash", "history", "network"];

/// Whether this is a program that the part runs, and no other part.
pub(crate) fn is_it(program: &TestProgram) -> bool {
    program.package == PACKAGE && program.kind == "test" && NAMES.contains(&program.name.as_str())
}

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let built = report.step("build", |_| context.built())?;
    let programs: Vec<&TestProgram> = built.tests.iter().filter(|test| is_it(test)).collect();
    ensure!(
        programs.len() == NAMES.len(),
        "cargo has not built each of {NAMES:?}"
    );
    for program in programs {
        let arguments = ["--nocapture", "--include-ignored"];
        report.step(program.name.clone(), |report| {
            unit::run_program(program, &arguments, report)
        })?;
    }
    Ok(())
}
