//! All test functions of the workspace.
//!
//! Runs each test program itself, as `cargo test` would, so that all parts share one build, a program
//! that hangs doesn't hang the rest, and the table shows what takes long. Those of modules are run module by module. Some run side by side: those that
//! start clusters wait for most of their time.

use std::{
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;

use crate::{
    cmd::Cmd,
    context::Context,
    debian,
    kube::programs::grpcurl,
    parts::{Report, crash, e2e},
    programs::TestProgram,
    tally::{Reader, Tally},
};

/// A test program that takes longer hangs, as a rule.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);
/// Those that take longer have a row of their own.
const WORTH_A_ROW: Duration = Duration::from_secs(3);
/// So many programs run at a time; each runs as many tests at a time as there are processors.
const AT_A_TIME: usize = 2;

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<String> {
    let built = report.step("build", |_| context.built())?;
    let mut variables: Vec<(&str, String)> = report.step("Debian's programs", |_| {
        let find = |packaged: debian::Packaged| {
            let program = packaged.find(context)?;
            Some((packaged.variable, program.display().to_string()))
        };
        [debian::PROMTOOL, debian::ETCD]
            .into_iter()
            .filter_map(find)
            .collect()
    });
    // Where it can't be had, the test that needs it says so.
    match report.step("grpcurl", |_| grpcurl(context.root())) {
        Ok(program) => variables.push(("PERCOLATOR_GRPCURL", program.display().to_string())),
        Err(error) => println!("no grpcurl: {error:#}"),
    }
    let how = RunMode {
        variables,
        ..RunMode::default()
    };
    let mut failures = Vec::new();
    let mut others = Duration::ZERO;
    let mut programs = built.tests.iter();
    let next = || programs.find(|program| !crash::is_it(program) && !e2e::is_it(program));
    let next = Mutex::new(next);
    let next = || next.lock().ok().and_then(|mut next| next());
    let (send, ended) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            let (send, next, how) = (send.clone(), &next, &how);
            scope.spawn(move || {
                while let Some(program) = next() {
                    if send.send(capture(program, how)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for run in ended {
            let program = run.program;
            println!("\n{}", run.lines.join("\n"));
            report.tally.add(run.tally);
            if let Err(error) = run.result {
                println!("FAILED: {error:#}\nto repeat it: {}", program.cargo_line());
                failures.push(format!("{error:#}"));
            }
            if run.took < WORTH_A_ROW {
                others += run.took;
            } else {
                let name = format!("{} {} {}", program.package, program.kind, program.name);
                report.steps.push((name, run.took));
            }
        }
    });
    report.steps.push(("quick tests".to_owned(), others));
    if !failures.is_empty() {
        bail!("{}", failures.join(", "));
    }
    Ok(report.tests())
}

/// How a test program is run.
pub(crate) struct RunMode {
    pub(crate) arguments: &'static [&'static str],
    pub(crate) variables: Vec<(&'static str, String)>,
    /// If it takes longer, it hangs.
    pub(crate) limit: Duration,
}

impl Default for RunMode {
    fn default() -> Self {
        Self {
            arguments: &[],
            variables: Vec::new(),
            limit: LIMIT,
        }
    }
}

/// The result of a test program.
struct Run<'a> {
    program: &'a TestProgram,
    lines: Vec<String>,
    result: anyhow::Result<()>,
    tally: Tally,
    took: Duration,
}

/// Runs a test program and keeps what it prints, which is to be read as a whole.
fn capture<'a>(program: &'a TestProgram, how: &RunMode) -> Run<'a> {
    let started = Instant::now();
    let mut lines = vec![format!("{}:", program.cargo_line())];
    let (result, tally) = read(command(program, how), how.limit, |line| {
        lines.push(line.to_owned());
    });
    Run {
        program,
        lines,
        result,
        tally,
        took: started.elapsed(),
    }
}

/// Runs test programs one after the other, each a step, and shows what they print as it comes; also those behind one that fails,
/// since they say more about it. `to_repeat` names a program that failed in the error.
pub(crate) fn run_each(
    programs: &[&TestProgram],
    how: &RunMode,
    report: &mut Report,
    to_repeat: impl Fn(&TestProgram) -> String,
) -> anyhow::Result<()> {
    let mut failures = Vec::new();
    for program in programs {
        println!();
        let (result, tally) = report.step(program.name.clone(), |_| {
            read(command(program, how), how.limit, show)
        });
        let has_tests = tally != Tally::default();
        report.tally.add(tally);
        let result = result.and_then(|()| {
            anyhow::ensure!(has_tests, "{} has no tests", program.name);
            Ok(())
        });
        if let Err(error) = result {
            println!("FAILED: {error:#}");
            failures.push(to_repeat(program));
        }
    }
    anyhow::ensure!(failures.is_empty(), "{}", failures.join(" "));
    Ok(())
}

/// A test program in the folder and with the variables that cargo gives it.
fn command(program: &TestProgram, how: &RunMode) -> Cmd {
    let mut command = Cmd::new(&program.executable)
        .dir(&program.folder)
        .quiet_env("CARGO_MANIFEST_DIR", &program.folder)
        .quiet_env("CARGO_PKG_NAME", &program.package)
        .quiet_env("CARGO_PKG_VERSION", &program.version)
        .arg("--show-output")
        .args(how.arguments)
        .args(program.selection())
        .shown_as(&program.cargo_line());
    for (name, value) in &how.variables {
        command = command.env(name, value);
    }
    command
}

pub(crate) fn show(line: &str) {
    println!("{line}");
}

/// Runs a command of the test harness, and gives each line of its output that is worth showing to `each`.
pub(crate) fn read(
    command: Cmd,
    limit: Duration,
    mut each: impl FnMut(&str),
) -> (anyhow::Result<()>, Tally) {
    let mut reader = Reader::default();
    let result = command.lines(limit, |line| {
        if reader.line(line) && !line.is_empty() {
            each(line);
        }
    });
    let mut tally = reader.finish();
    if result.is_err() && tally.failed == 0 {
        // It died, or hung, before it could say how many.
        tally.failed = 1;
    }
    (result, tally)
}
