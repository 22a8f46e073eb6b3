//! `cargo xtask soak`: what finds bugs the longer it runs, for hours, with a report.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use serde_json::{Value, json};

mod code_mutants;
mod documents;
mod moves;
mod patches;
mod servers;
mod takeovers;
mod tree;
mod upgrade;

use crate::{
    cmd::Cmd,
    context::Context,
    kube::release::Release,
    parts::{
        Part, Report, crash,
        e2e::{self, E2eArgs},
        sim::FRESH_LEAST,
    },
    programs,
    tally::Skipped,
    test::{ci, in_ci},
};

/// How long, and where the report goes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask soak                     an hour
  cargo xtask soak --hours 12          a night
  cargo xtask soak --hours 2 --no-e2e  without a Kubernetes
  cargo xtask soak --takeovers 100     takeovers of oracles and masters alone, on clusters of this machine
  cargo xtask soak --moves 1000        moves of tablets alone, with their servers killed
  cargo xtask soak --documents 100000  observers alone, with their workers and servers killed
  cargo xtask soak mutants --shard 7/250
                                       small bugs in the code, some of each package of the protocol and the servers: what
                                       kills them?
  cargo xtask soak mutants 'protocol/src/**' --shard 0/8
                                       an eighth of those in this code
  cargo xtask soak --patches bugs/     bugs that you have written, a patch each: what kills them?
  cargo xtask soak --upgrade-from HEAD~10
                                       the operator and a cluster of this commit become those of this checkout; the commit is not
                                       from before the role `master` was called so

The report has one JSON object a line for each step: the commit, the step, when it began, how long it took, what was run,
which tests were skipped and, if it failed, how. With CI=true it ends with a failure also when anything was skipped. It grows from run to run, so that weeks can be compared:
  jq -s 'group_by(.step) | map({step: .[0].step, seconds: map(.seconds) | add, failed: map(select(.failed)) | length})' \\
      target/soak.jsonl")]
pub(crate) struct Args {
    /// Begin no step after so many hours.
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    hours: f64,
    /// Leave out the tests on a real Kubernetes.
    #[arg(long)]
    no_e2e: bool,
    /// In place of all that: so many takeovers, while a bank and a history are recorded, which are checked then. As root, also from
    /// leaders whose disk hangs or whose network is cut.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    takeovers: Option<u32>,
    /// In place of all that: so many moves of tablets, with splits, merges and drains between them and servers that are killed in the
    /// middle, while a bank and a history are recorded, which are checked then.
    #[arg(long, value_name = "N", conflicts_with = "takeovers", value_parser = clap::value_parser!(u32).range(1..))]
    moves: Option<u32>,
    /// In place of all that: so many documents flow through a chain of observers, while workers and servers are killed and tablets
    /// split and moved; what they make is compared with what one pass makes.
    #[arg(long, value_name = "N", conflicts_with_all = ["takeovers", "moves"], value_parser = clap::value_parser!(u32).range(4..))]
    documents: Option<u32>,
    /// In place of all that: bugs that a person has written, as FOLDER/*.patch of this commit, one after the other, and whether the
    /// tests of their package, and whether the simulator kills them.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["takeovers", "moves", "documents"])]
    patches: Option<PathBuf>,
    /// In place of all that: the operator, the chart and the image of this commit, built from the history, on a real Kubernetes, with
    /// a cluster that is brought up to date while money moves. Its operator has to say Ready (since 2026-11-23).
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["takeovers", "moves", "documents", "patches"])]
    upgrade_from: Option<String>,
    /// Folder of the programs for --takeovers, --moves and --documents. Default: they are built for release.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Where the report goes. Default: soak.jsonl in the folder of builds.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(subcommand)]
    instead: Option<Instead>,
}

/// In place of all that.
#[derive(Debug, clap::Subcommand)]
enum Instead {
    /// Mutants of the code, one after the other, and whether the tests of their package or the simulator kill them. Fails if
    /// neither does, and no reason is listed why that is no gap
    Mutants {
        /// Of these files alone, as 'protocol/src/**'. Default: all of the protocol and the servers.
        #[arg(value_name = "FILES", default_value = code_mutants::ALL)]
        files: String,
        /// One of N parts of them, from 0.
        #[arg(long, value_name = "K/N")]
        shard: Option<String>,
    },
}

/// Rounds of each crash test in one cycle.
const ROUNDS: u64 = 20;
/// In one cycle one mutant of so many is tried.
const MUTANTS_OF: u64 = 500;
/// How long the simulator runs fresh seeds in one cycle.
const SEEDS_TIME: Duration = Duration::from_secs(900);
/// The lines in which the simulator reports failures: of seeds, and of mutants.
const FOUND: [&str; 4] = [
    "FAILED: ",
    "to repeat it: ",
    "NOBODY until there",
    "WHICH HAS NO PART IN IT",
];
/// Neither seeds nor mutants take so long.
const SIMULATOR_MAX: Duration = Duration::from_secs(3 * 3600);

/// For how long the API server stands still in one cycle.
const API_SERVER_AWAY: Duration = Duration::from_secs(600);

/// A step, and what it ran.
type Step<'a> = (&'static str, Run<'a>);
type Run<'a> = Box<dyn Fn() -> anyhow::Result<StepResult> + 'a>;

/// The result of a step, for the report, also of one that has found something.
struct StepResult {
    counts: Value,
    found: Option<anyhow::Error>,
    /// The tests that this machine doesn't let it run.
    skipped: Vec<Skipped>,
}

impl StepResult {
    fn new(counts: Value, found: Option<anyhow::Error>) -> Self {
        Self {
            counts,
            found,
            skipped: Vec::new(),
        }
    }

    /// A part of the tests.
    fn part(run: impl FnOnce(&mut Report) -> anyhow::Result<Value>) -> Self {
        let mut report = Report::default();
        let (counts, found) = match run(&mut report) {
            Ok(counts) => (counts, None),
            Err(error) => (Value::Null, Some(error)),
        };
        Self {
            counts,
            found,
            skipped: report.tally.skipped,
        }
    }

    /// The fields of the report's line that are about it.
    fn into_line(self, mut line: Value) -> Value {
        let skipped = self.skipped.iter();
        let skipped = skipped.map(|it| format!("{}: {}", it.test, it.why));
        line["skipped"] = skipped.collect();
        line["ran"] = self.counts;
        line["failed"] = self.found.map(|error| format!("{error:#}")).into();
        line
    }
}

/// The results of all steps.
#[derive(Default)]
struct Sum {
    failed: u32,
    skipped: BTreeSet<String>,
}

impl Sum {
    fn add(&mut self, ran: &StepResult) {
        self.failed += u32::from(ran.found.is_some());
        let skipped = ran.skipped.iter();
        self.skipped.extend(skipped.map(|it| it.test.clone()));
    }

    fn words(&self) -> String {
        let mut words = format!("{} step(s) failed", self.failed);
        if !self.skipped.is_empty() {
            let names: Vec<&str> = self.skipped.iter().map(String::as_str).collect();
            words += &format!(", {} test(s) skipped: {}", names.len(), names.join(", "));
        }
        words
    }

    /// Whether nothing failed; and, where nothing may be, nothing was skipped.
    fn is_well(&self, may_skip: bool) -> bool {
        self.failed == 0 && (may_skip || self.skipped.is_empty())
    }

    /// Says it, and how this ends.
    fn conclude(&self) -> ExitCode {
        println!("{}", self.words());
        if self.is_well(!in_ci()) {
            return ExitCode::SUCCESS;
        }
        if self.failed == 0 {
            println!("with CI={} nothing may be skipped", ci());
        }
        ExitCode::FAILURE
    }
}

/// A run that has counts where it found nothing alone.
fn counted<'a>(run: impl Fn() -> anyhow::Result<Value> + 'a) -> Run<'a> {
    Box::new(move || Ok(StepResult::new(run()?, None)))
}

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.hours.is_finite() && args.hours > 0.0,
        "--hours {} is no length of time",
        args.hours
    );
    let report = match &args.report {
        Some(file) => file.clone(),
        None => context.root().join("target/soak.jsonl"),
    };
    let commit = programs::revision(context.root());
    let mut sum = Sum::default();
    let mut step = |name: &str, step: &dyn Fn() -> anyhow::Result<StepResult>| {
        let at = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let started = Instant::now();
        let ran = step().unwrap_or_else(|error| StepResult::new(Value::Null, Some(error)));
        if let Some(error) = &ran.found {
            println!("FAILED: {error:#}");
        }
        sum.add(&ran);
        let line = ran.into_line(json!({
            "commit": commit,
            "step": name,
            "began": at.as_secs(),
            "seconds": started.elapsed().as_secs(),
        }));
        note(&report, &line.to_string())
    };
    if let Some((name, instead)) = alone(context, args) {
        step(name, &instead)?;
        return Ok(sum.conclude());
    }
    let began = Instant::now();
    let whole = Duration::from_secs_f64(args.hours * 3600.0);
    let left = || whole.saturating_sub(began.elapsed());
    let part = |part: Part| {
        let rounds = crash::CrashArgs::of_rounds(ROUNDS);
        let args = E2eArgs::default();
        anyhow::Ok(StepResult::part(|report| {
            let ran = part.run(context, (&rounds, &args), report)?;
            Ok(json!({"rounds": ROUNDS, "ran": ran}))
        }))
    };
    let of_kubernetes =
        |name, release| -> Step<'_> { (name, Box::new(move || Ok(e2e(context, release)))) };
    let mut steps: Vec<Step<'_>> = vec![
        ("seeds", Box::new(|| seeds(context, left().min(SEEDS_TIME)))),
        ("mutants", Box::new(|| mutants(context))),
        ("crash", Box::new(|| part(Part::Crash))),
        ("code-mutants", counted(|| some_code_mutants(context))),
    ];
    if !args.no_e2e {
        steps.extend([
            of_kubernetes("e2e", Release::Usual),
            of_kubernetes("e2e-oldest", Release::Oldest),
            of_kubernetes("e2e-newest", Release::Newest),
        ]);
    }
    for (name, run) in steps.iter().cycle() {
        if left().is_zero() {
            break;
        }
        println!("\n━━ {name} ━━ {:.1} h of {} h", hours(began), args.hours);
        step(name, run)?;
    }
    println!(
        "\n{:.1} h; the report is {}",
        hours(began),
        report.display()
    );
    Ok(sum.conclude())
}

/// A step in place of the cycle, which goes into the report as the others do.
fn alone<'a>(context: &'a Context, args: &'a Args) -> Option<Step<'a>> {
    if let Some(Instead::Mutants { files, shard }) = &args.instead {
        let mutate = || code_mutants::run(context, files, shard.as_deref());
        return Some(("code-mutants", counted(mutate)));
    }
    if let Some(folder) = &args.patches {
        let patches = || patches::run(context, folder);
        return Some(("patches", counted(patches)));
    }
    if let Some(takeovers) = args.takeovers {
        let run = move || takeovers::run(context, &programs_of(context, args)?, takeovers);
        return Some(("takeovers", counted(run)));
    }
    if let Some(moves) = args.moves {
        let run = move || moves::run(&programs_of(context, args)?, moves);
        return Some(("moves", counted(run)));
    }
    if let Some(documents) = args.documents {
        let run = move || documents::run(&programs_of(context, args)?, documents);
        return Some(("documents", counted(run)));
    }
    let commit = args.upgrade_from.as_ref()?;
    Some(("upgrade", Box::new(|| upgrade::run(context, commit))))
}

/// The folder of the programs of clusters that are taken for it.
fn programs_of(context: &Context, args: &Args) -> anyhow::Result<PathBuf> {
    if let Some(programs) = &args.programs {
        return Ok(programs.clone());
    }
    if args.documents.is_some() {
        let example = ["build", "--release", "--example", documents::EXAMPLE];
        context.cargo(example).run()?;
    }
    programs::build_for_release(context)
}

fn hours(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / 3600.0
}

/// Adds a line to the report.
fn note(report: &Path, line: &str) -> anyhow::Result<()> {
    let write = || {
        if let Some(folder) = report.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(report)?;
        writeln!(file, "{line}")
    };
    write().with_context(|| format!("cannot write to {}", report.display()))
}

/// So many seeds that nobody has run yet, as the simulator takes them: those of this second, and the following ones.
fn fresh_seeds(count: u64) -> anyhow::Result<String> {
    let first = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() * 1_000;
    Ok(format!("{first}..{}", first + count))
}

/// The simulator, with seeds that nobody has run yet.
fn seeds(context: &Context, time: Duration) -> anyhow::Result<StepResult> {
    let (seeds, seconds) = (fresh_seeds(1_000_000)?, time.as_secs().max(1));
    let seconds = seconds.to_string();
    let seeds_of = ["--seeds", &seeds, "--seconds", &seconds];
    let least = ["--at-least", FRESH_LEAST];
    let (ran, found) = simulator(context, &[&seeds_of[..], &least].concat())?;
    let counts = json!({
        "seeds_of": seeds,
        "seeds": number_before(&ran, "seeds in"),
        "a_second": number_before(&ran, "seeds a second"),
        "transactions": number_before(&ran, "transactions"),
    });
    Ok(StepResult::new(counts, found))
}

/// Small bugs of each package, others each time.
fn some_code_mutants(context: &Context) -> anyhow::Result<Value> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let shard = format!("{}/{MUTANTS_OF}", now % MUTANTS_OF);
    code_mutants::run(context, code_mutants::ALL, Some(&shard))
}

/// Runs it. The last line in which it says what it ran; and if it has found something what, and how to repeat it.
fn simulator(context: &Context, args: &[&str]) -> anyhow::Result<(String, Option<anyhow::Error>)> {
    let (mut ran, mut found) = (String::new(), Vec::new());
    let program = context.built()?.programs.join("percolator-sim");
    let run = Cmd::new(program).args(args);
    let ended = run.lines(SIMULATOR_MAX, |line| {
        println!("{line}");
        if line.contains(" in ") && line.contains(" s on ") || line.contains(" missed") {
            line.clone_into(&mut ran);
        }
        if FOUND.iter().any(|words| line.contains(words)) {
            found.push(line.to_owned());
        }
    });
    let ended = ended.with_context(|| found.join("; "));
    Ok((ran, ended.err()))
}

/// The number that stands before these words: `null` where the simulator says it in other words.
fn number_before(line: &str, words: &str) -> Value {
    let number = || {
        let before = line.split_once(words)?.0.trim_end();
        let number = before.rsplit(' ').next()?.parse::<f64>().ok()?;
        serde_json::Number::from_f64(number).map(Value::from)
    };
    number().unwrap_or(Value::Null)
}

/// The tests on a real Kubernetes, with long faults.
fn e2e(context: &Context, kubernetes: Release) -> StepResult {
    let args = E2eArgs {
        kubernetes,
        api_server_away: Some(API_SERVER_AWAY),
        ..E2eArgs::default()
    };
    StepResult::part(|report| Ok(json!({"ran": e2e::run(context, &args, report)?})))
}

/// Every mutant, with other seeds than last time; and each plan that killed one without it, which finds what isn't the mutant's.
fn mutants(context: &Context) -> anyhow::Result<StepResult> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let first = now.as_secs();
    let seeds = format!("{first}..{}", first + 1000);
    let (ran, found) = simulator(context, &["--mutants", "--control", "--seeds", &seeds])?;
    let counts = json!({
        "seeds_of": seeds,
        "mutants": number_before(&ran, "mutants"),
        "missed": number_before(&ran, "missed"),
        "killed_a_minute": number_before(&ran, "killed a minute"),
    });
    Ok(StepResult::new(counts, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulators_counts_go_into_the_report() {
        let seeds = "300 seeds in 74.0 s on 2 cores: 4.1 seeds a second, 241 s simulated each second, 250501 transactions, 2773 of";
        assert_eq!(number_before(seeds, "seeds in"), 300.0);
        assert_eq!(number_before(seeds, "seeds a second"), 4.1);
        assert_eq!(number_before(seeds, "transactions"), 250_501.0);
        let mutants = "142 mutants, 0 missed, 1 killed by an invariant that isn't theirs, in 240.1 s: 35.5 killed a minute";
        assert_eq!(number_before(mutants, "mutants"), 142.0);
        assert_eq!(number_before(mutants, "missed"), 0.0);
        assert_eq!(number_before(mutants, "killed a minute"), 35.5);
        assert_eq!(number_before(mutants, "seeds"), Value::Null);
    }

    #[test]
    fn what_was_skipped_is_in_the_report_and_in_the_end() {
        let skips = |report: &mut Report| -> anyhow::Result<Value> {
            report.tally.skipped.push(Skipped {
                test: "the tests on Kubernetes".to_owned(),
                why: "not root".to_owned(),
            });
            Ok(json!({"ran": "nothing"}))
        };
        let fails = |report: &mut Report| -> anyhow::Result<Value> {
            skips(report)?;
            anyhow::bail!("one failed")
        };
        let mut sum = Sum::default();
        sum.add(&StepResult::new(json!(1), None));
        assert_eq!(sum.words(), "0 step(s) failed");
        assert!(sum.is_well(false));
        sum.add(&StepResult::part(skips));
        let words = "0 step(s) failed, 1 test(s) skipped: the tests on Kubernetes";
        assert_eq!(sum.words(), words);
        assert!(sum.is_well(true) && !sum.is_well(false));
        sum.add(&StepResult::part(fails));
        assert_eq!(sum.words(), words.replace("0 step(s)", "1 step(s)"));
        assert!(!sum.is_well(true));
        let line = StepResult::part(fails).into_line(json!({"step": "e2e"}));
        let expected = json!({
            "step": "e2e",
            "ran": null,
            "skipped": ["the tests on Kubernetes: not root"],
            "failed": "one failed",
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn a_report_grows() {
        let folder = tempfile::tempdir().expect("a folder");
        let report = folder.path().join("of/weeks.jsonl");
        note(&report, "1").expect("written");
        note(&report, "2").expect("written");
        let lines = fs::read_to_string(&report).expect("the report");
        assert_eq!(lines, "1\n2\n");
    }
}
