//! The program's arguments, and the plan that they stand for: what [`Plan`] shows is read here again.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::invariants;
use crate::mutation::Mutation;
use crate::plan::{Fault, Plan};

/// What is said of one seed alone. To require it is not enough: where something else forbids that there is
/// a seed, clap doesn't ask for it.
const OF_ONE: [&str; 7] = [
    "trace",
    "history",
    "faults",
    "workloads",
    "clients",
    "workers",
    "faulty_ms",
];

/// A whole cluster in one thread, from one seed.
#[derive(Debug, Parser)]
#[command(name = "percolator-sim", max_term_width = 100)]
pub struct Arguments {
    /// Seeds to run, FROM..TO without TO.
    #[arg(long, value_name = "FROM..TO", value_parser = seeds, conflicts_with = "seed", conflicts_with_all = OF_ONE)]
    pub seeds: Option<(u64, u64)>,
    /// One seed.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Show everything that happens in it.
    #[arg(long, requires = "seed")]
    pub trace: bool,
    /// Write what clients did into this file, one transaction a line.
    #[arg(long, value_name = "FILE", requires = "seed")]
    pub history: Option<PathBuf>,
    /// Only these kinds of faults; "none" alone for none.
    #[arg(long, value_name = "KINDS", value_parser = faults, requires = "seed")]
    pub faults: Option<Kinds>,
    /// Only these workloads.
    #[arg(long, value_name = "NAMES", value_parser = workloads, requires = "seed")]
    pub workloads: Option<Names>,
    /// So many client processes, at most 100.
    #[arg(long, value_name = "N", requires = "seed", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub clients: Option<u8>,
    /// So many workers in each, at most 100.
    #[arg(long, value_name = "N", requires = "seed", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub workers: Option<u8>,
    /// Give each seed several oracles and masters, of which others lead as often as can be.
    #[arg(long, conflicts_with_all = ["mutant", "mutants", "invariants"])]
    pub failover: bool,
    /// Run this mutant; "list" names all mutants of this build.
    #[arg(long, value_name = "NAME", value_parser = mutant)]
    pub mutant: Option<MutantChoice>,
    /// Prove that every mutant is killed, or the one of --mutant.
    #[arg(long, group = "proof", conflicts_with = "seed", conflicts_with_all = OF_ONE)]
    pub mutants: bool,
    /// Prove that every invariant kills a mutant if no other invariant is checked.
    #[arg(long, group = "proof", conflicts_with_all = ["seed", "mutants", "seeds", "mutant", "alone"], conflicts_with_all = OF_ONE)]
    pub invariants: bool,
    /// Run each plan that killed a mutant without that mutant as well, where it has to hold: twice the work, and more.
    #[arg(long, requires = "proof")]
    pub control: bool,
    /// Look for it in all seeds, instead of first in those where it was seen last, and write where it was seen into this file.
    #[arg(long, value_name = "FILE", requires = "proof", conflicts_with_all = ["seeds", "mutant", "alone"])]
    pub keep: Option<PathBuf>,
    /// Check this invariant alone, for example one-lock-a-cell; with --mutants: which mutants it kills.
    #[arg(long, value_name = "INVARIANT", value_parser = invariant)]
    pub alone: Option<&'static str>,
    /// Run the master's core with so many tablet servers, 100 tablets and 20 sessions each, and with a tenth of that: fail
    /// if what must not grow with the cluster does.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(10..=15_000), conflicts_with_all = ["seed", "mutants", "seeds", "mutant", "alone", "invariants"], conflicts_with_all = OF_ONE)]
    pub servers: Option<u32>,
    /// So long there are faults.
    #[arg(long, value_name = "MS", requires = "seed", value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub faulty_ms: Option<u64>,
    /// Begin no more seeds after this time, and cut off those that are running.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["seed", "mutants", "invariants"])]
    pub seconds: Option<u64>,
    /// With --seconds: so many seeds are run to their end in any case.
    #[arg(long, value_name = "N", requires = "seconds", default_value_t = 0)]
    pub at_least: u64,
}

/// Kinds of faults.
#[derive(Clone, Debug)]
pub struct Kinds(Vec<Fault>);

/// Names of workloads, each once.
#[derive(Clone, Debug)]
pub struct Names(Vec<&'static str>);

/// What `--mutant` asks for.
#[derive(Clone, Copy, Debug)]
pub enum MutantChoice {
    /// The names of all.
    List,
    /// This one.
    Run(Mutation),
}

impl Arguments {
    /// The mutant to run, if any.
    pub fn mutation(&self) -> Option<Mutation> {
        match self.mutant {
            Some(MutantChoice::Run(mutation)) => Some(mutation),
            Some(MutantChoice::List) | None => None,
        }
    }

    /// The plan of a seed, as these arguments change it.
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = match self.mutation() {
            Some(mutation) => mutation.plan(seed),
            None if self.failover => Plan::failover(seed),
            None => Plan::new(seed),
        };
        if let Some(Kinds(faults)) = &self.faults {
            plan.faults = faults.iter().copied().collect();
        }
        if let Some(Names(workloads)) = &self.workloads {
            plan.workloads.clone_from(workloads);
        }
        plan.clients = self.clients.map_or(plan.clients, usize::from);
        plan.workers = self.workers.map_or(plan.workers, usize::from);
        plan.faulty = self.faulty_ms.map_or(plan.faulty, Duration::from_millis);
        plan.only = self.alone;
        plan
    }
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parsed = text
        .split_once("..")
        .and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let (from, to): (u64, u64) = parsed.ok_or("it has to look like 0..1000")?;
    if from >= to {
        return Err(format!("there is no seed from {from} on and below {to}"));
    }
    Ok((from, to))
}

fn faults(text: &str) -> Result<Kinds, String> {
    if text == "none" {
        return Ok(Kinds(Vec::new()));
    }
    let named = |name| {
        let known = || Fault::ALL.map(Fault::name);
        Fault::named(name).ok_or_else(|| {
            format!(
                "{name:?} is none of {}, or \"none\" alone",
                known().join(", ")
            )
        })
    };
    text.split(',')
        .map(named)
        .collect::<Result<_, _>>()
        .map(Kinds)
}

fn workloads(text: &str) -> Result<Names, String> {
    let mut names = Vec::new();
    for name in text.split(',') {
        let name = workload(name)?;
        if names.contains(&name) {
            return Err(format!("{name} is there twice: each workload runs once"));
        }
        names.push(name);
    }
    Ok(Names(names))
}

fn workload(name: &str) -> Result<&'static str, String> {
    let all = crate::workloads::all();
    let known: Vec<&'static str> = all.iter().map(|workload| workload.name()).collect();
    let found = known.iter().find(|known| **known == name).copied();
    found.ok_or_else(|| format!("{name:?} is none of {}", known.join(", ")))
}

fn invariant(name: &str) -> Result<&'static str, String> {
    invariants::named(name).ok_or_else(|| {
        let known = invariants::names().into_iter().map(invariants::argument);
        let known: Vec<String> = known.collect();
        format!("{name:?} is none of {}", known.join(", "))
    })
}

fn mutant(name: &str) -> Result<MutantChoice, String> {
    if name == "list" {
        return Ok(MutantChoice::List);
    }
    Mutation::named(name).map(MutantChoice::Run).ok_or_else(|| {
        let more = if cfg!(feature = "mutants") {
            ""
        } else {
            "; those of the rules are only in builds with the feature `mutants`"
        };
        format!("there is none of this name in this build: \"list\" shows them{more}")
    })
}
