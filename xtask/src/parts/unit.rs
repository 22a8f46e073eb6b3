//! All test functions of the workspace, and the examples in its documentation.
//!
//! Runs each test program itself, as `cargo test` would, so that all parts share one build, a program
//! that hangs doesn't hang the rest, and the table tells what takes long.

use std::time::Duration;

use anyhow::bail;

use crate::{
    cmd::Cmd,
    context::Context,
    parts::{Report, crash, e2e},
    programs::TestProgram,
    promtool,
    tally::Reader,
};

/// A test program that takes longer hangs, as a rule.
const LIMIT: Duration = Duration::from_secs(600);
/// Those that take longer have a row of their own.
const WORTH_A_ROW: Duration = Duration::from_secs(3);

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<String> {
    let built = report.step("build", |_| context.built())?;
    let promtool = report.step("promtool", |_| promtool::find(context));
    let how = How {
        variables: promtool
            .iter()
            .map(|tool| (promtool::VARIABLE, tool.display().to_string()))
            .collect(),
        ..How::default()
    };
    let mut failures = Vec::new();
    let mut others = Duration::ZERO;
    for program in &built.tests {
        if crash::is_it(program) || e2e::is_it(program) {
            continue;
        }
        let name = format!("{} {} {}", program.package, program.kind, program.name);
        if let Err(error) = report.step(name, |report| run_program(program, &how, report)) {
            println!("FAILED: {error:#}\nto repeat it: {}", program.cargo_line());
            failures.push(program.cargo_line());
        }
        if let Some((_, took)) = report.steps.pop_if(|(_, took)| *took < WORTH_A_ROW) {
            others += took;
        }
    }
    report.steps.push(("quick tests".to_owned(), others));
    let examples = ["test", "--workspace", "--doc"];
    let result = report.step("doc tests", |report| {
        read(context.cargo(examples), LIMIT, report)
    });
    if let Err(error) = result {
        println!("FAILED: {error:#}");
        failures.push("cargo test --workspace --doc".to_owned());
    }
    if !failures.is_empty() {
        bail!("{}", failures.join(", "));
    }
    Ok(report.tests())
}

/// How a test program is run.
pub(crate) struct How {
    pub(crate) arguments: &'static [&'static str],
    pub(crate) variables: Vec<(&'static str, String)>,
    /// If it takes longer, it hangs.
    pub(crate) limit: Duration,
}

impl Default for How {
    fn default() -> Self {
        Self {
            arguments: &[],
            variables: Vec::new(),
            limit: LIMIT,
        }
    }
}

/// Runs a test program in the folder and with the variables that cargo gives it.
pub(crate) fn run_program(
    program: &TestProgram,
    how: &How,
    report: &mut Report,
) -> anyhow::Result<()> {
    println!();
    let mut command = Cmd::new(&program.executable)
        .dir(&program.folder)
        .quiet_env("CARGO_MANIFEST_DIR", &program.folder)
        .quiet_env("CARGO_PKG_NAME", &program.package)
        .quiet_env("CARGO_PKG_VERSION", &program.version)
        .arg("--show-output")
        .args(how.arguments)
        .shown_as(&program.cargo_line());
    for (name, value) in &how.variables {
        command = command.env(name, value);
    }
    read(command, how.limit, report)
}

fn read(command: Cmd, limit: Duration, report: &mut Report) -> anyhow::Result<()> {
    let mut reader = Reader::default();
    let result = command.lines(limit, |line| {
        if reader.line(line) && !line.is_empty() {
            println!("{line}");
        }
    });
    let mut tally = reader.finish();
    if result.is_err() && tally.failed == 0 {
        // It died, or hung, before it could say how many.
        tally.failed = 1;
    }
    report.tally.add(tally);
    result
}
