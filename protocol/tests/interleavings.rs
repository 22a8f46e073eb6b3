//! Any interleaving of a few transactions on a few cells, with messages delayed, doubled, reordered or
//! lost and clients that die anywhere, is snapshot isolation.
//!
//! Commits go through the real coordinator and the real rules, over the tiny store; the checks stand in
//! `sim/check.rs`. A failing case prints itself as a golden script, to be kept in `tests/data`.
//! `PROPTEST_CASES` sets the number of cases.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sim::plan::{Plan, plan};
use crate::sim::world;
use crate::support::script;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

const CASES: u32 = 20_000;

/// Runs the plan. A rule or a check that panics counts as a failure too.
fn run(plan: &Plan) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| world::run(plan, None))) {
        Ok(result) => result.map(drop),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic".into())),
    }
}

/// The plan as a golden script, with what comes out; without, where that panics.
fn as_script(plan: &Plan) -> String {
    let mut commands = Vec::new();
    let _ = catch_unwind(AssertUnwindSafe(|| world::run(plan, Some(&mut commands))));
    let bare = script::of_commands(&commands);
    match catch_unwind(|| script::run(&bare)) {
        Ok(Ok(ran)) => ran.text,
        _ => bare,
    }
}

#[test]
fn every_interleaving_is_snapshot_isolation() {
    let mut config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    let (cases, failed) = (Cell::new(0), Cell::new(false));
    let result = TestRunner::new(config).run(&plan(), |plan| {
        if !failed.get() {
            cases.set(cases.get() + 1);
        }
        run(&plan).map_err(|why| {
            failed.set(true);
            TestCaseError::fail(why)
        })
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, plan)) => panic!(
            "case {}: {why}\n\n{}\n{plan:?}",
            cases.get(),
            as_script(&plan)
        ),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn a_case_as_a_script_leaves_the_same_rows() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..50 {
        let plan = plan().new_tree(&mut runner).expect("a plan").current();
        let mut commands = Vec::new();
        let store = world::run(&plan, Some(&mut commands)).expect("a good case");
        let ran = script::run(&script::of_commands(&commands)).expect("a script");
        assert!(ran.store == store, "other rows after\n{}", ran.text);
        let again = script::run(&ran.text).expect("a script");
        assert!(again.differences.is_empty() && again.text == ran.text);
    }
}

/// Cases that never come near the hard places prove nothing.
#[test]
fn cases_reach_the_hard_places() {
    let mut missed = vec![
        "too-low",
        "committing",
        "bypass=",
        "primary-pending",
        "conflict",
        " force",
        "lock-missing rolled-back",
        "gave-up prewrite",
        "gave-up commit-ts",
        "gave-up commit-primary",
        "cancel",
        "status 0 committed",
        "committed-in-one-phase",
        "no-answer-in-one-phase",
        "rollback-ended committed",
        "resolve start=",
        " at=",
        " last",
        "generation=2",
    ];
    let mut runner = TestRunner::deterministic();
    for _ in 0..8_000 {
        let plan = plan().new_tree(&mut runner).expect("a plan").current();
        let mut commands = Vec::new();
        world::run(&plan, Some(&mut commands)).expect("a good case");
        missed.retain(|place| !commands.iter().any(|command| command.contains(place)));
    }
    assert!(missed.is_empty(), "never reached: {missed:?}");
}
