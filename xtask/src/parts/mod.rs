//! The parts of the tests, in their order: what is cheap and often wrong comes first.

mod bench_smoke;
mod boundaries;
mod clippy;
pub(crate) mod crash;
mod docs;
pub(crate) mod e2e;
mod examples;
mod fmt;
#[cfg(test)]
mod image;
mod licences;
mod prose;
mod readme;
pub(crate) mod sim;
pub(crate) mod unit;

use std::time::{Duration, Instant};

use clap::{ValueEnum, builder::PossibleValue};

use crate::{context::Context, tally::Tally};

/// Something that can be checked alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Fmt,
    Prose,
    Boundaries,
    Licences,
    Clippy,
    Docs,
    Unit,
    Readme,
    Examples,
    Sim,
    Crash,
    E2e,
    BenchSmoke,
}

/// When a part runs, if all of them run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Before anything is built: it ends within seconds.
    First,
    /// One after the other: each takes more than half of two processors.
    OneByOne,
    /// Beside those. It waits for clocks most of the time, and takes as long as all of them.
    Beside,
    /// Beside all of these, with what they leave of the processors: it wants nothing else, and may take longer for it.
    Idle,
}

/// The result of a part, besides whether it failed.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) tally: Tally,
    /// The steps, with their times.
    pub(crate) steps: Vec<(String, Duration)>,
}

impl Report {
    /// How many test functions did their work.
    fn tests(&self) -> String {
        format!("{} tests", self.tally.passed)
    }

    /// Notes how long `work` takes.
    pub(crate) fn step<T>(
        &mut self,
        name: impl Into<String>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let started = Instant::now();
        let result = work(self);
        self.steps.push((name.into(), started.elapsed()));
        result
    }
}

impl Part {
    pub(crate) const ALL: [Self; 13] = [
        Self::Fmt,
        Self::Prose,
        Self::Boundaries,
        Self::Licences,
        Self::Clippy,
        Self::Docs,
        Self::Unit,
        Self::Readme,
        Self::Examples,
        Self::Sim,
        Self::Crash,
        Self::E2e,
        Self::BenchSmoke,
    ];

    pub(crate) fn stage(self) -> Stage {
        match self {
            Self::Fmt | Self::Prose | Self::Boundaries | Self::Licences => Stage::First,
            Self::Clippy | Self::Docs | Self::Sim => Stage::Idle,
            Self::E2e => Stage::Beside,
            Self::Unit | Self::Readme | Self::Examples | Self::Crash | Self::BenchSmoke => {
                Stage::OneByOne
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Prose => "prose",
            Self::Boundaries => "boundaries",
            Self::Licences => "licences",
            Self::Clippy => "clippy",
            Self::Docs => "docs",
            Self::Unit => "unit",
            Self::Readme => "readme",
            Self::Examples => "examples",
            Self::Sim => "sim",
            Self::Crash => "crash",
            Self::E2e => "e2e",
            Self::BenchSmoke => "bench-smoke",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Fmt => "the code is formatted",
            Self::Prose => "what files may not contain, and how long they may be",
            Self::Boundaries => "which crate may depend on which",
            Self::Licences => "every dependency's licence is one of a short list",
            Self::Clippy => "no lint has anything to say",
            Self::Docs => {
                "the documentation builds without warnings, its examples work, its links lead somewhere"
            }
            Self::Unit => "all test functions",
            Self::Readme => "what the README says is what happens",
            Self::Examples => "the client library's examples print what they say",
            Self::Sim => "a simulated cluster where everything fails, from seeds",
            Self::Crash => "clusters whose processes are killed, stopped and cut off",
            Self::E2e => "the chart, the operator and its clusters on a real Kubernetes",
            Self::BenchSmoke => "every benchmark runs, for a moment",
        }
    }

    /// Checks it. Returns what was checked, and how much of it: `342 files`.
    pub(crate) fn run(
        self,
        context: &Context,
        (crash, e2e): (&crash::CrashArgs, &e2e::E2eArgs),
        report: &mut Report,
    ) -> anyhow::Result<String> {
        match self {
            Self::Fmt => fmt::run(context),
            Self::Prose => prose::run(context),
            Self::Boundaries => boundaries::run(context),
            Self::Licences => licences::run(context),
            Self::Clippy => clippy::run(context),
            Self::Docs => docs::run(context, report),
            Self::Unit => unit::run(context, report),
            Self::Readme => readme::run(context, report),
            Self::Examples => examples::run(context, report),
            Self::Sim => sim::run(context, report),
            Self::Crash => crash::run(context, crash, report),
            Self::E2e => e2e::run(context, e2e, report),
            Self::BenchSmoke => bench_smoke::run(context, report),
        }
    }
}

impl ValueEnum for Part {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.about()))
    }
}
