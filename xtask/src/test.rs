//! `cargo xtask test`: the parts one after the other, some beside the others, and a table at the end.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use crate::{
    beside::{ParallelParts, Share},
    context::Context,
    parts::{Part, Report, Stage, crash, e2e},
    tally::Tally,
    tools,
};

/// The disk space of a first run: its build without increments, the clusters of its tests, a Kubernetes.
const DISK_GIGABYTES: u64 = 20;

/// The arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask test                  every part; this decides whether a change lands
  cargo xtask test unit             one part
  cargo xtask test fmt clippy       two
  cargo xtask test crash --rounds 1000
                                    servers are killed for hours
  cargo xtask test e2e --e2e scaling
                                    one program of a part
  cargo xtask test e2e --kubernetes oldest
                                    on the oldest Kubernetes that is supported

It ends with a failure when anything failed, and with CI=true also when anything was skipped.")]
pub(crate) struct Args {
    /// Parts to run, in their order. Default: all.
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Part>,

    #[command(flatten)]
    crash: crash::CrashArgs,

    #[command(flatten)]
    e2e: e2e::E2eArgs,
}

struct Row {
    name: String,
    result: &'static str,
    took: Duration,
    /// A summary of what was checked, if that is known.
    checked: String,
}

/// The outcomes of the parts.
#[derive(Default)]
struct Outcome {
    rows: Vec<Row>,
    tally: Tally,
    /// By name, with what failed.
    failed: Vec<(String, String)>,
    /// What parts that ran beside others said at their ends, of those that failed.
    last_words: Vec<String>,
}

impl Outcome {
    fn run(&mut self, part: Part, context: &Context, args: &Args) {
        println!("\n━━ {} ━━ {}", part.name(), part.about());
        let started = Instant::now();
        let mut report = Report::default();
        let result = part.run(context, (&args.crash, &args.e2e), &mut report);
        self.add(part.name(), started.elapsed(), report, result);
    }

    /// Notes a part's result: what was checked, or what failed.
    fn add(&mut self, name: &str, took: Duration, report: Report, result: anyhow::Result<String>) {
        match result {
            Ok(checked) => {
                println!("{checked}");
                self.row(name, "ok", took, checked);
            }
            Err(error) => {
                println!("FAILED: {error:#}\nto repeat this part: cargo xtask test {name}");
                self.failed.push((name.to_owned(), format!("{error:#}")));
                self.row(name, "FAILED", took, String::new());
            }
        }
        for (name, took) in report.steps {
            self.row(&format!("  {name}"), "", took, String::new());
        }
        self.tally.add(report.tally);
    }

    /// Waits for parts that ran beside others, and adds what became of them.
    fn add_beside(&mut self, beside: ParallelParts) {
        let name = beside.name();
        let ended = beside.end();
        let report = Report {
            tally: ended.tally,
            ..Report::default()
        };
        if ended.result.is_err() {
            self.last_words.extend(ended.last_words);
        }
        let result = ended.result.map(|()| "see above".to_owned());
        self.add(&name, ended.took, report, result);
    }

    fn row(&mut self, name: &str, result: &'static str, took: Duration, checked: String) {
        self.rows.push(Row {
            name: name.to_owned(),
            result,
            took,
            checked,
        });
    }

    /// Prints what failed and what was skipped.
    fn conclude(&self) -> ExitCode {
        let Self { tally, failed, .. } = self;
        print!("{tally}");
        if !failed.is_empty() {
            for line in self.last_words.iter().chain(&tally.panics) {
                println!("{line}");
            }
            for (part, error) in failed {
                println!("FAILED: {part}: {error}");
            }
            let names: Vec<&str> = failed.iter().map(|(part, _)| &**part).collect();
            println!(
                "failed parts; to repeat them: cargo xtask test {}",
                names.join(" ")
            );
            return ExitCode::FAILURE;
        }
        if !tally.skipped.is_empty() && in_ci() {
            println!("with CI={} nothing may be skipped", ci());
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<ExitCode> {
    tools::c_compiler()?;
    let free_before = free_disk(context);
    let started = Instant::now();
    let mut outcome = if args.parts.is_empty() {
        everything(context, args)?
    } else {
        let mut outcome = Outcome::default();
        for part in Part::ALL.iter().filter(|part| args.parts.contains(part)) {
            outcome.run(*part, context, args);
        }
        outcome
    };
    outcome.row("all", "", started.elapsed(), String::new());
    println!("\n{}", table(&outcome.rows));
    if let (Some(before), Some(after)) = (free_before, tools::free_gigabytes(context.root())) {
        println!("disk: {before} GB free before, {after} GB after");
    }
    Ok(outcome.conclude())
}

/// All parts. Some run beside the others, once everything is built.
fn everything(context: &Context, args: &Args) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let of = |turn| {
        Part::ALL
            .into_iter()
            .filter(move |part| part.stage() == turn)
    };
    for part in of(Stage::First) {
        outcome.run(part, context, args);
    }
    let started = Instant::now();
    let built = context.built()?;
    let tests = format!("{} programs and modules of tests", built.tests.len());
    outcome.row("build", "ok", started.elapsed(), tests);
    let start = |turn, arguments: &[String], share| {
        let parts: Vec<Part> = of(turn).collect();
        ParallelParts::start(context, &parts, arguments, share)
    };
    let waiting = start(Stage::Beside, &args.e2e.arguments(), Share::Equal)?;
    let idle = start(Stage::Idle, &[], Share::Rest)?;
    for part in of(Stage::OneByOne) {
        outcome.run(part, context, args);
    }
    outcome.add_beside(waiting);
    outcome.add_beside(idle);
    Ok(outcome)
}

/// Room on the disk, in GB; says so if it may be too little.
fn free_disk(context: &Context) -> Option<u64> {
    let free = tools::free_gigabytes(context.root())?;
    if free < DISK_GIGABYTES {
        println!(
            "{free} GB of disk are free, and all of this may take {DISK_GIGABYTES}: `cargo clean` makes room"
        );
    }
    Some(free)
}

pub(crate) fn ci() -> String {
    std::env::var("CI").unwrap_or_default()
}

pub(crate) fn in_ci() -> bool {
    matches!(ci().as_str(), "true" | "1")
}

fn table(rows: &[Row]) -> String {
    let width = |of: fn(&Row) -> &str, least: &str| {
        let widest = rows.iter().map(|row| of(row).chars().count()).max();
        widest.unwrap_or_default().max(least.len())
    };
    let name = width(|row| &row.name, "part");
    let result = width(|row| row.result, "result");
    let mut text = format!("{:name$}  {:result$}  seconds  checked\n", "part", "result");
    for row in rows {
        let seconds = row.took.as_secs_f64();
        let line = format!(
            "{:name$}  {:result$}  {seconds:7.1}  {}",
            row.name, row.result, row.checked
        );
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned() {
        let row = |name: &str, result, seconds, checked: &str| Row {
            name: name.into(),
            result,
            took: Duration::from_secs(seconds),
            checked: checked.into(),
        };
        let text = table(&[
            row("fmt", "ok", 1, "14 crates"),
            row("boundaries", "FAILED", 100, ""),
        ]);
        assert_eq!(
            text,
            "\
part        result  seconds  checked
fmt         ok          1.0  14 crates
boundaries  FAILED    100.0
"
        );
    }
}
