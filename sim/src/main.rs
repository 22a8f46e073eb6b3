//! Runs seeds on all cores until one fails; then makes it smaller and shows its end.

#![allow(
    clippy::print_stdout,
    reason = "a program for people: what it has to say goes to the terminal"
)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Parser;
use parking_lot::Mutex;
use percolator_sim::arguments::{Arguments, MutantChoice};
use percolator_sim::export::export;
use percolator_sim::lone_invariants;
use percolator_sim::mutation::Mutation;
use percolator_sim::plan::Plan;
use percolator_sim::proof::{Kill, KnownSeeds, control, each, first};
use percolator_sim::run::{keep_panics, run, run_until};
use percolator_sim::scale::scale;
use percolator_sim::seeds::Seeds;
use percolator_sim::shrink::shrink;
use percolator_sim::subject::Subject;
use percolator_sim::trace::{Keep, Trace};
use percolator_sim::world::Failure;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How many events of a failing run are shown.
const SHOWN: usize = 60;
/// And of those that are about what failed, in each part.
const SHOWN_ABOUT: usize = 40;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    keep_panics();
    if let Some(MutantChoice::List) = arguments.mutant {
        for mutation in Mutation::all() {
            println!("{}", mutation.name());
        }
        return ExitCode::SUCCESS;
    }
    if let Some(servers) = arguments.servers {
        return large(servers);
    }
    if arguments.mutants {
        return mutants(&arguments);
    }
    if arguments.invariants {
        return invariants(&arguments);
    }
    match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    }
}

/// What the master's operations cost with so many tablet servers.
fn large(servers: u32) -> ExitCode {
    let (lines, grows) = match scale(servers as usize) {
        Ok(measured) => measured,
        Err(refusal) => {
            println!("the master refuses what it should not: {refusal}");
            return ExitCode::FAILURE;
        }
    };
    for line in lines {
        println!("{line}");
    }
    for grows in &grows {
        println!("GROWS {grows}");
    }
    ExitCode::from(u8::from(!grows.is_empty()))
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    let plan = arguments.plan(seed);
    for line in plan.words() {
        println!("{line}");
    }
    let started = Instant::now();
    let outcome = run(&plan, Keep::All);
    let took = started.elapsed();
    if arguments.trace {
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
        "{} events, {} transactions, {} of them with an unknown answer, {} takeovers, {} of them from a copy, {:.1} s simulated in \
         {:.2} s",
        outcome.trace.events(),
        outcome.history.len(),
        outcome.lost_answers(),
        outcome.takeovers,
        outcome.from_copies,
        outcome.simulated.as_secs_f64(),
        took.as_secs_f64()
    );
    match &outcome.failure {
        Some(failure) => {
            show_end(&outcome.trace, failure, !arguments.trace);
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// How it came to a failure: first the events that are about what failed, then the last ones of all, if they are
/// wanted too.
fn show_end(trace: &Trace, failure: &Failure, all: bool) {
    let lines: Vec<&str> = trace.lines().collect();
    for (what, about) in Subject::of(&failure.detail).lines(&lines) {
        println!("the last events of {what} that it is about:");
        for line in &about[about.len().saturating_sub(SHOWN_ABOUT)..] {
            println!("{line}");
        }
    }
    if all {
        println!("the last events of all:");
        for line in &lines[lines.len().saturating_sub(SHOWN)..] {
            println!("{line}");
        }
    }
    println!("FAILED: {}: {}", failure.invariant, failure.detail);
}

fn many(arguments: &Arguments) -> ExitCode {
    let (from, to) = arguments.seeds.unwrap_or((0, 1_000));
    let seeds = Seeds::new(from, to, arguments.at_least);
    let simulated_ms = AtomicU64::new(0);
    let transactions = AtomicU64::new(0);
    let unknown = AtomicU64::new(0);
    let (takeovers, from_copies) = (AtomicU64::new(0), AtomicU64::new(0));
    let runs = AtomicU64::new(0);
    let failed: Mutex<Option<(u64, Failure)>> = Mutex::new(None);
    let started = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        // Nothing is sent: when the last sender is gone, all have ended.
        let (working, ended) = mpsc::channel::<()>();
        for _ in 0..cores {
            let working = working.clone();
            let (seeds, simulated_ms, transactions) = (&seeds, &simulated_ms, &transactions);
            let (unknown, runs, failed) = (&unknown, &runs, &failed);
            let (takeovers, from_copies) = (&takeovers, &from_copies);
            scope.spawn(move || {
                let _working = working;
                while let Some(seed) = seeds.next() {
                    let plan = arguments.plan(seed.number);
                    let Some(outcome) = run_until(&plan, Keep::Nothing, seed.cut) else {
                        return;
                    };
                    runs.fetch_add(1, Ordering::Relaxed);
                    let ms = u64::try_from(outcome.simulated.as_millis()).unwrap_or_default();
                    simulated_ms.fetch_add(ms, Ordering::Relaxed);
                    transactions.fetch_add(outcome.history.len() as u64, Ordering::Relaxed);
                    unknown.fetch_add(outcome.lost_answers() as u64, Ordering::Relaxed);
                    takeovers.fetch_add(outcome.takeovers, Ordering::Relaxed);
                    from_copies.fetch_add(outcome.from_copies, Ordering::Relaxed);
                    if let Some(failure) = outcome.failure {
                        seeds.end();
                        let mut failed = failed.lock();
                        if failed
                            .as_ref()
                            .is_none_or(|(other, _)| seed.number < *other)
                        {
                            *failed = Some((seed.number, failure));
                        }
                    }
                }
            });
        }
        drop(working);
        if let Some(seconds) = arguments.seconds
            && let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_secs(seconds))
        {
            seeds.time_is_over();
        }
    });
    let took = started.elapsed().as_secs_f64().max(0.001);
    let (runs, simulated_ms) = (runs.into_inner(), simulated_ms.into_inner());
    let planned = seeds.count();
    if failed.lock().is_none() && runs < planned {
        println!("the time was up after {runs} of {planned} seeds");
    }
    println!(
        "{runs} seeds in {took:.1} s on {cores} cores: {:.1} seeds a second, {:.0} s simulated each \
         second, {} transactions, {} of them with an unknown answer, {} takeovers, {} of them from a copy",
        runs as f64 / took,
        simulated_ms as f64 / 1_000.0 / took,
        transactions.into_inner(),
        unknown.into_inner(),
        takeovers.into_inner(),
        from_copies.into_inner(),
    );
    let Some((seed, failure)) = failed.into_inner() else {
        return ExitCode::from(u8::from(!held(runs)));
    };
    show_smallest(&arguments.plan(seed), seed, &failure);
    ExitCode::FAILURE
}

/// Looks for the smallest plan that fails in the same way, and shows how it ends.
fn show_smallest(plan: &Plan, seed: u64, failure: &Failure) {
    println!(
        "seed {seed} FAILED: {}: {}",
        failure.invariant, failure.detail
    );
    println!("making it smaller ...");
    let (plan, failure) = shrink(plan, failure);
    show_end(&run(&plan, Keep::All).trace, &failure, true);
    println!("to repeat it: cargo xtask sim {plan} --trace");
}

/// Whether it says anything that none of so many seeds failed: where none has ended, nothing was tested.
fn held(runs: u64) -> bool {
    if runs == 0 {
        println!("FAILED: no seed has ended: give more --seconds, or --at-least 1");
    }
    runs > 0
}

/// For each mutant: which seed kills it, and by which invariant. With `--alone`, where only that one is looked at:
/// then it has to kill some of them.
fn mutants(arguments: &Arguments) -> ExitCode {
    let only = arguments.mutation();
    let (from, to) = arguments.seeds.unwrap_or((0, Mutation::KILLED_WITHIN));
    let is_usual = arguments.seeds.is_none() && arguments.alone.is_none();
    let known = known(arguments, is_usual, include_str!("../testdata/killed.txt"));
    let all: Vec<Mutation> = Mutation::all()
        .into_iter()
        .filter(|one| only.is_none_or(|only| *one == only))
        .collect();
    let started = Instant::now();
    let found = each(&all, |mutation| {
        first(known.first(&mutation.name(), from..to).map(|seed| Plan {
            only: arguments.alone,
            ..mutation.plan(seed)
        }))
    });
    println!("{:24} {:>5}  killed by", "mutant", "seed");
    let (mut missed, mut otherwise, mut moved) = (0, 0, 0);
    for (mutation, killed) in all.iter().zip(&found) {
        let name = mutation.name();
        match killed {
            Some(killed) => {
                moved += u64::from(
                    known
                        .get(&name)
                        .is_some_and(|seed| seed != killed.plan.seed),
                );
                println!("{}", row(&name, killed));
                if !mutation.may_be_killed_by(&killed.failure.invariant) {
                    otherwise += 1;
                    println!("{:30}  WHICH HAS NO PART IN IT: {name}", "");
                }
            }
            None => {
                missed += 1;
                println!("{name:24} {to:5}  NOBODY until there");
            }
        }
    }
    let took = started.elapsed().as_secs_f64();
    println!(
        "{} mutants, {missed} missed, {otherwise} killed by an invariant that isn't theirs, in {took:.1} s: \
         {:.1} killed a minute",
        all.len(),
        (all.len() - missed) as f64 * 60.0 / took.max(0.001)
    );
    println!("to repeat one: cargo xtask sim --seed SEED --mutant MUTANT --trace");
    if moved > 0 {
        println!(
            "{moved} not in the seed of last time; so that it is quick again: cargo xtask sim --mutants --keep sim/testdata/killed.txt"
        );
    }
    let failed = controlled(arguments, &found);
    let kept = keep(arguments, all.iter().map(|it| it.name()).zip(&found));
    let may_miss = match arguments.alone {
        Some(_) => all.len() - 1,
        None => 0,
    };
    if missed > may_miss || otherwise > 0 || failed > 0 {
        return ExitCode::FAILURE;
    }
    kept
}

/// In which seeds something is looked for first: nowhere, where that is to be seen anew.
fn known<'a>(arguments: &Arguments, is_usual: bool, lines: &'a str) -> KnownSeeds<'a> {
    if is_usual && arguments.keep.is_none() {
        return KnownSeeds::of(lines);
    }
    KnownSeeds::default()
}

/// Writes in which seed each was seen, if that is asked for.
fn keep<'a>(
    arguments: &Arguments,
    found: impl Iterator<Item = (String, &'a Option<Kill>)>,
) -> ExitCode {
    let Some(file) = &arguments.keep else {
        return ExitCode::SUCCESS;
    };
    let seen = found.filter_map(|(name, kill)| Some((name, kill.as_ref()?.plan.seed)));
    let lines: String = seen
        .map(|(name, seed)| format!("{name} {seed}\n"))
        .collect();
    if let Err(error) = std::fs::write(file, lines) {
        eprintln!("error: cannot write {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// For each invariant: in which seed it kills its mutant, where nothing else is looked at.
fn invariants(arguments: &Arguments) -> ExitCode {
    let uses = lone_invariants::all();
    let known = known(
        arguments,
        true,
        include_str!("../testdata/killed_alone.txt"),
    );
    let started = Instant::now();
    let found = each(&uses, |of| {
        let seeds = known.first(of.invariant, 0..lone_invariants::KILLED_WITHIN);
        first(seeds.map(|seed| of.plan(seed)))
    });
    println!(
        "{:28} {:38} {:>5}  what it says",
        "invariant alone", "mutant", "seed"
    );
    let mut missed = 0;
    for (of, killed) in uses.iter().zip(&found) {
        let (seed, detail) = match killed {
            Some(Kill { plan, failure }) => (plan.seed, failure.detail.as_str()),
            None => (lone_invariants::KILLED_WITHIN, "NOTHING until there"),
        };
        missed += usize::from(killed.is_none());
        let detail: String = detail.chars().take(90).collect();
        let workload = of.workload.map(|name| format!(" --workloads {name}"));
        let turn = of.mutation.name() + &workload.unwrap_or_default();
        println!("{:28} {turn:38} {seed:5}  {detail}", of.invariant);
    }
    let took = started.elapsed().as_secs_f64();
    println!(
        "{} invariants, {missed} of no use within {} seeds, in {took:.1} s",
        uses.len(),
        lone_invariants::KILLED_WITHIN
    );
    println!(
        "to repeat one: cargo xtask sim --seed SEED --mutant MUTANT --alone INVARIANT --trace"
    );
    let failed = controlled(arguments, &found);
    let names = uses.iter().map(|of| of.invariant.to_owned());
    let kept = keep(arguments, names.zip(&found));
    if missed > 0 || failed > 0 {
        return ExitCode::FAILURE;
    }
    kept
}

/// How many of the plans that killed fail without their mutants as well, if that is asked for; says how.
fn controlled(arguments: &Arguments, found: &[Option<Kill>]) -> usize {
    if !arguments.control {
        return 0;
    }
    let kills: Vec<&Kill> = found.iter().flatten().collect();
    let failures = control(&kills, |plan| run(plan, Keep::Nothing).failure);
    let mut failed = 0;
    for (kill, failure) in kills.iter().zip(failures) {
        let (Some(failure), Some(mutation)) = (failure, kill.plan.mutation) else {
            continue;
        };
        failed += 1;
        let (seed, name) = (kill.plan.seed, mutation.name());
        println!(
            "FAILED: {name:24} {seed:5}  also without it: {}: {}",
            failure.invariant, failure.detail
        );
    }
    println!(
        "{} plans without their mutants, {failed} failed",
        kills.len()
    );
    failed
}

/// A line of a table: what was killed, in which seed, and how.
fn row(name: &str, killed: &Kill) -> String {
    let Kill { plan, failure } = killed;
    let detail: String = failure.detail.chars().take(90).collect();
    format!("{name:24} {:5}  {}: {detail}", plan.seed, failure.invariant)
}

#[cfg(test)]
mod tests {
    use super::held;

    #[test]
    fn without_a_seed_nothing_holds() {
        assert!(held(1) && !held(0));
    }
}
