//! A cluster whose processes are killed: the test `crash` of the command line's crate. It takes long,
//! so it is a part of its own, and shows what it does while it does it.

use anyhow::Context as _;

use crate::{
    context::Context,
    parts::{Report, unit},
    programs::TestProgram,
};

const PACKAGE: &str = "percolator-cli";
const NAME: &str = "crash";

/// Whether this is the program that the part runs, and no other part.
pub(crate) fn is_it(program: &TestProgram) -> bool {
    program.package == PACKAGE && program.kind == "test" && program.name == NAME
}

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let built = report.step("build", |_| context.built())?;
    let program = built.tests.iter().find(|program| is_it(program));
    let program = program.context("cargo has not built the test")?;
    unit::run_program(program, &["--nocapture", "--include-ignored"], report)?;
    Ok(())
}
