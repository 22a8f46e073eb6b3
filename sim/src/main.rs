//! Runs seeds on all cores until one fails; then makes it smaller and shows its end.

#![allow(
    clippy::print_stdout,
    reason = "a program for people: what it has to say goes to the terminal"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use parking_lot::Mutex;
use percolator_sim::export::export;
use percolator_sim::plan::{Fault, Plan};
use percolator_sim::run::{keep_panics, run};
use percolator_sim::sabotage::Sabotage;
use percolator_sim::shrink::shrink;
use percolator_sim::trace::Keep;
use percolator_sim::workloads;
use percolator_sim::world::Failure;

/// How many events of a failing run are shown.
const SHOWN: usize = 60;

/// A whole cluster in one thread, from one seed.
#[derive(Debug, Parser)]
#[command(name = "percolator-sim", max_term_width = 100)]
struct Arguments {
    /// Seeds to run, FROM..TO without TO.
    #[arg(long, value_name = "FROM..TO", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<(u64, u64)>,
    /// One seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Show everything that happens in it.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write what clients did into this file, one transaction a line.
    #[arg(long, value_name = "FILE", requires = "seed")]
    history: Option<PathBuf>,
    /// Only these kinds of faults; "none" for none.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', requires = "seed")]
    faults: Option<Vec<String>>,
    /// Only these workloads.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "seed")]
    workloads: Option<Vec<String>>,
    /// So many client processes.
    #[arg(long, value_name = "N", requires = "seed")]
    clients: Option<usize>,
    /// So many workers in each.
    #[arg(long, value_name = "N", requires = "seed")]
    workers: Option<usize>,
    /// Do this wrong on purpose; "list" shows what there is.
    #[arg(long, value_name = "NAME")]
    sabotage: Option<String>,
    /// Show that every wrong turn is noticed.
    #[arg(long)]
    mutants: bool,
    /// With --mutants: also what the history's checker notices alone.
    #[arg(long, requires = "mutants")]
    alone: bool,
    /// So long there are faults.
    #[arg(long, value_name = "MS", requires = "seed")]
    faulty_ms: Option<u64>,
    /// Begin no more seeds after this time.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parsed = text
        .split_once("..")
        .and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parsed.ok_or_else(|| "it has to look like 0..1000".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    keep_panics();
    if arguments.mutants {
        return mutants(&arguments);
    }
    match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    }
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    let plan = match plan(seed, arguments) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    println!("{plan:#?}");
    let keep = if arguments.trace {
        Keep::All
    } else {
        Keep::Last(SHOWN)
    };
    let started = Instant::now();
    let outcome = run(&plan, keep);
    if arguments.trace || outcome.failure.is_some() {
        for line in outcome.trace.lines() {
            println!("{line}");
        }
    }
    if let Some(file) = &arguments.history {
        let text = percolator_history::write(&export(&outcome.history));
        if let Err(error) = std::fs::write(file, text) {
            eprintln!("error: cannot write {}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    println!(
        "{} events, {} transactions, {:.1} s simulated in {:.2} s",
        outcome.trace.events(),
        outcome.history.len(),
        outcome.simulated.as_secs_f64(),
        started.elapsed().as_secs_f64()
    );
    match outcome.failure {
        Some(failure) => {
            println!("FAILED: {}: {}", failure.invariant, failure.detail);
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn plan(seed: u64, arguments: &Arguments) -> Result<Plan, String> {
    let mut plan = match &arguments.sabotage {
        Some(name) => sabotage(name)?.plan(seed),
        None => Plan::new(seed),
    };
    if let Some(names) = &arguments.faults {
        plan.faults = names
            .iter()
            .filter(|name| *name != "none")
            .map(|name| {
                Fault::named(name).ok_or_else(|| {
                    let known: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
                    format!("{name:?} is none of {}", known.join(", "))
                })
            })
            .collect::<Result<_, _>>()?;
    }
    if let Some(names) = &arguments.workloads {
        let all = workloads::all();
        plan.workloads = names
            .iter()
            .map(|name| {
                let known: Vec<&'static str> = all.iter().map(|workload| workload.name()).collect();
                let found = known.iter().find(|known| *known == name).copied();
                found.ok_or_else(|| format!("{name:?} is none of {}", known.join(", ")))
            })
            .collect::<Result<_, _>>()?;
    }
    plan.clients = arguments.clients.unwrap_or(plan.clients).max(1);
    plan.workers = arguments.workers.unwrap_or(plan.workers).max(1);
    plan.faulty = arguments
        .faulty_ms
        .map_or(plan.faulty, Duration::from_millis);
    Ok(plan)
}

fn sabotage(name: &str) -> Result<Sabotage, String> {
    Sabotage::named(name).ok_or_else(|| {
        let known: Vec<String> = Sabotage::all().into_iter().map(Sabotage::name).collect();
        format!("{name:?} is none of {}", known.join(", "))
    })
}

fn many(arguments: &Arguments) -> ExitCode {
    let (from, to) = arguments.seeds.unwrap_or((0, 1_000));
    let next = AtomicU64::new(from);
    let stop = AtomicBool::new(false);
    let simulated_ms = AtomicU64::new(0);
    let transactions = AtomicU64::new(0);
    let runs = AtomicU64::new(0);
    let failed: Mutex<Option<(u64, Failure)>> = Mutex::new(None);
    let started = Instant::now();
    let limit = arguments.seconds.map(Duration::from_secs);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if limit.is_some_and(|limit| started.elapsed() >= limit) {
                        return;
                    }
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        return;
                    }
                    let outcome = run(&Plan::new(seed), Keep::Nothing);
                    runs.fetch_add(1, Ordering::Relaxed);
                    let ms = u64::try_from(outcome.simulated.as_millis()).unwrap_or_default();
                    simulated_ms.fetch_add(ms, Ordering::Relaxed);
                    transactions.fetch_add(outcome.history.len() as u64, Ordering::Relaxed);
                    if let Some(failure) = outcome.failure {
                        stop.store(true, Ordering::Relaxed);
                        let mut failed = failed.lock();
                        if failed.as_ref().is_none_or(|(other, _)| seed < *other) {
                            *failed = Some((seed, failure));
                        }
                    }
                }
            });
        }
    });
    let took = started.elapsed().as_secs_f64().max(0.001);
    let (runs, simulated_ms) = (runs.into_inner(), simulated_ms.into_inner());
    println!(
        "{runs} seeds in {took:.1} s on {cores} cores: {:.1} seeds a second, {:.0} s simulated each \
         second, {} transactions",
        runs as f64 / took,
        simulated_ms as f64 / 1_000.0 / took,
        transactions.into_inner(),
    );
    let Some((seed, failure)) = failed.into_inner() else {
        return ExitCode::SUCCESS;
    };
    println!(
        "seed {seed} FAILED: {}: {}",
        failure.invariant, failure.detail
    );
    println!("making it smaller ...");
    let (plan, failure) = shrink(&Plan::new(seed), &failure);
    let outcome = run(&plan, Keep::Last(SHOWN));
    println!("its last events:");
    for line in outcome.trace.lines() {
        println!("{line}");
    }
    println!("FAILED: {}: {}", failure.invariant, failure.detail);
    println!("to repeat it: cargo xtask sim {plan} --trace");
    ExitCode::FAILURE
}

/// The first seed in which something was noticed, and what.
type Noticed = Option<(u64, Failure)>;

/// For each wrong turn: which seed notices it, and by which invariant.
fn mutants(arguments: &Arguments) -> ExitCode {
    let only = arguments.sabotage.as_deref();
    if let Some(Err(why)) = only.map(sabotage) {
        eprintln!("error: {why}");
        return ExitCode::FAILURE;
    }
    let seeds = |sabotage: Sabotage| arguments.seeds.unwrap_or((0, sabotage.noticed_within()));
    let all: Vec<Sabotage> = Sabotage::all()
        .into_iter()
        .filter(|one| only.is_none_or(|only| one.name() == only))
        .collect();
    let next = AtomicU64::new(0);
    let started = Instant::now();
    let found: Mutex<Vec<(usize, Noticed, Noticed)>> = Mutex::default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(sabotage) = all.get(at) else { return };
                    let (from, to) = seeds(*sabotage);
                    let first = |only| {
                        (from..to).find_map(|seed| {
                            let plan = Plan {
                                only,
                                ..sabotage.plan(seed)
                            };
                            let failure = run(&plan, Keep::Nothing).failure?;
                            Some((seed, failure))
                        })
                    };
                    let noticed = first(None);
                    let by_history = arguments
                        .alone
                        .then(|| first(Some(percolator_sim::invariants::ISOLATION)))
                        .flatten();
                    found.lock().push((at, noticed, by_history));
                }
            });
        }
    });
    let mut found = found.into_inner();
    found.sort_by_key(|(at, ..)| *at);
    println!("{:24} {:>5}  noticed by", "wrong turn", "seed");
    let mut missed = 0;
    for (at, noticed, by_history) in found {
        let name = all[at].name();
        match noticed {
            Some((seed, Failure { invariant, detail })) => {
                let detail: String = detail.chars().take(90).collect();
                println!("{name:24} {seed:5}  {invariant}: {detail}");
            }
            None => {
                missed += 1;
                let (_, to) = seeds(all[at]);
                println!("{name:24} {to:5}  NOBODY until there");
            }
        }
        if let Some((seed, Failure { detail, .. })) = by_history {
            let detail: String = detail.chars().take(90).collect();
            println!("{:24} {seed:5}  by the history alone: {detail}", "");
        }
    }
    let took = started.elapsed().as_secs_f64();
    println!("{} wrong turns, {missed} missed, in {took:.1} s", all.len());
    println!("to repeat one: percolator-sim --sabotage WRONG_TURN --seed SEED --trace");
    if missed > 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
