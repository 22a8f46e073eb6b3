//! `cargo xtask test`: the parts one after the other, and a table at the end.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use crate::{
    context::Context,
    parts::{Part, Report, crash, e2e},
    tally::Tally,
    tools,
};

/// What a first run takes of the disk: its build without increments, the clusters of its tests, a Kubernetes.
const DISK_GIGABYTES: u64 = 20;

/// What to check.
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
    result: String,
    took: Duration,
    /// What was looked at, where that is known.
    checked: String,
}

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<ExitCode> {
    tools::c_compiler()?;
    let free_before = free_disk(context);
    let started = Instant::now();
    let parts: Vec<Part> = Part::ALL
        .into_iter()
        .filter(|part| args.parts.is_empty() || args.parts.contains(part))
        .collect();
    let mut rows = Vec::new();
    let mut total = Report::default();
    let mut failed = Vec::new();
    for part in parts {
        let name = part.name();
        println!("\n━━ {name} ━━ {}", part.about());
        let part_started = Instant::now();
        let mut report = Report::default();
        let result = part.run(context, (&args.crash, &args.e2e), &mut report);
        let (result, checked) = match result {
            Ok(checked) => {
                println!("{checked}");
                ("ok", checked)
            }
            Err(error) => {
                println!("FAILED: {error:#}\nto repeat this part: cargo xtask test {name}");
                failed.push((name, format!("{error:#}")));
                ("FAILED", String::new())
            }
        };
        rows.push(Row {
            name: name.to_owned(),
            result: result.to_owned(),
            took: part_started.elapsed(),
            checked,
        });
        rows.extend(report.steps.drain(..).map(|(name, took)| Row {
            name: format!("  {name}"),
            result: String::new(),
            took,
            checked: String::new(),
        }));
        total.tally.add(report.tally);
    }
    rows.push(Row {
        name: "all".to_owned(),
        result: String::new(),
        took: started.elapsed(),
        checked: String::new(),
    });
    println!("\n{}", table(&rows));
    if let (Some(before), Some(after)) = (free_before, tools::free_gigabytes(context.root())) {
        println!("disk: {before} GB free before, {after} GB after");
    }
    let tally = total.tally;
    if let Some(tests) = tests(&tally) {
        println!("{tests}");
    }
    for skipped in &tally.skipped {
        println!("skipped: {}: {}", skipped.test, skipped.why);
    }
    if !failed.is_empty() {
        for line in &tally.panics {
            println!("{line}");
        }
        for (part, error) in &failed {
            println!("FAILED: {part}: {error}");
        }
        let names: Vec<&str> = failed.iter().map(|(part, _)| *part).collect();
        println!(
            "failed parts; to repeat them: cargo xtask test {}",
            names.join(" ")
        );
        return Ok(ExitCode::FAILURE);
    }
    if !tally.skipped.is_empty() && in_ci() {
        println!("with CI={} nothing may be skipped", ci());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
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

/// What became of the test functions; nothing where there were none to run.
fn tests(tally: &Tally) -> Option<String> {
    (*tally != Tally::default()).then(|| {
        format!(
            "tests: {} passed, {} failed, {} skipped",
            tally.passed,
            tally.failed,
            tally.skipped.len()
        )
    })
}

fn ci() -> String {
    std::env::var("CI").unwrap_or_default()
}

fn in_ci() -> bool {
    matches!(ci().as_str(), "true" | "1")
}

fn table(rows: &[Row]) -> String {
    let width = |of: fn(&Row) -> &str, least: &str| {
        let widest = rows.iter().map(|row| of(row).chars().count()).max();
        widest.unwrap_or_default().max(least.len())
    };
    let name = width(|row| &row.name, "part");
    let result = width(|row| &row.result, "result");
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
    fn where_no_test_was_to_be_run_none_is_counted() {
        assert_eq!(tests(&Tally::default()), None);
        let tally = Tally {
            passed: 3,
            ..Tally::default()
        };
        let line = tests(&tally).unwrap();
        assert_eq!(line, "tests: 3 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn the_table_is_aligned() {
        let row = |name: &str, result: &str, seconds, checked: &str| Row {
            name: name.into(),
            result: result.into(),
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
