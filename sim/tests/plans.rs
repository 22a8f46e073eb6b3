//! A run can be repeated by the arguments that its plan shows.

use clap::Parser;
use clap::error::ErrorKind;
use percolator_protocol::election::mutants::ElectionMutant;
use percolator_protocol::mutants::Mutant;
use percolator_sim::arguments::Arguments;
use percolator_sim::invariants;
use percolator_sim::mutation::Mutation;
use percolator_sim::plan::{Fault, Plan};
use percolator_sim::run::run;
use percolator_sim::trace::Keep;

fn parsed(arguments: &str) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(["percolator-sim"].into_iter().chain(arguments.split(' ')))
}

/// The plan that these arguments stand for.
fn plan_of(arguments: &str) -> Plan {
    let arguments = parsed(arguments).expect("arguments as a plan shows them");
    arguments.plan(arguments.seed.expect("a seed"))
}

#[test]
fn a_mutation_is_repeated_by_its_name_and_its_seed() {
    for mutation in Mutation::all() {
        let plan = mutation.plan(17);
        let name = mutation.name();
        assert_eq!(plan.to_string(), format!("--seed 17 --mutant {name}"));
        assert_eq!(plan_of(&plan.to_string()), plan);
    }
}

#[test]
fn a_plan_of_takeovers_is_repeated_by_its_seed() {
    let plan = Plan::failover(17);
    assert_eq!(plan.to_string(), "--seed 17 --failover");
    assert_eq!(plan_of(&plan.to_string()), plan);
    // Otherwise it would prove nothing.
    let outcome = run(&plan, Keep::Nothing);
    assert_eq!(outcome.failure, None);
    assert!(outcome.takeovers > 4, "{} takeovers", outcome.takeovers);
}

#[test]
fn what_was_made_smaller_is_shown() {
    let mut plan = Plan::new(17);
    plan.faults = [Fault::Late, Fault::Cut].into();
    plan.clients += 1;
    let clients = plan.clients;
    assert_eq!(
        plan.to_string(),
        format!("--seed 17 --faults late,cut --clients {clients}")
    );
}

#[test]
fn mutations_are_taken_with_many_seeds_too() {
    for arguments in ["--mutant TwoOwners", "--seeds 3..9 --mutant TwoOwners"] {
        let arguments = parsed(arguments).expect("arguments");
        assert_eq!(arguments.plan(5), Mutation::TwoOwners.plan(5));
    }
}

#[test]
fn what_is_refused_is_said_with_what_there_may_be() {
    for (arguments, words) in [
        ("--seed 1 --workers 101", "101 is not in 1..=100"),
        ("--seed 1 --workloads own,own", "own is there twice"),
        ("--alone atomicity", "is none of timestamps-increase, "),
    ] {
        let error = parsed(arguments).expect_err(arguments).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn what_is_looked_at_alone_is_shown() {
    for name in invariants::names() {
        let plan = Plan {
            only: Some(name),
            ..Plan::new(17)
        };
        assert_eq!(plan_of(&plan.to_string()), plan);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, kind) in [
        ("--mutant Nonsense", ErrorKind::ValueValidation),
        ("--seeds 5..3", ErrorKind::ValueValidation),
        ("--seeds 5..5", ErrorKind::ValueValidation),
        ("--seed 1 --faults none,late", ErrorKind::ValueValidation),
        ("--seed 1 --faults rain", ErrorKind::ValueValidation),
        (
            "--seed 1 --workloads bank,casino",
            ErrorKind::ValueValidation,
        ),
        // It would run nothing, and say that all is well.
        ("--seeds 3..9 --seconds 0", ErrorKind::ValueValidation),
        (
            "--seed 1 --workloads bank,index,bank",
            ErrorKind::ValueValidation,
        ),
        ("--seed 1 --clients 0", ErrorKind::ValueValidation),
        ("--seed 1 --clients 101", ErrorKind::ValueValidation),
        ("--seed 1 --workers 0", ErrorKind::ValueValidation),
        ("--seed 1 --workers 1000000000", ErrorKind::ValueValidation),
        ("--seed 1 --alone durability", ErrorKind::ValueValidation),
        ("--mutants --seed 3", ErrorKind::ArgumentConflict),
        ("--mutants --seconds 3", ErrorKind::ArgumentConflict),
        ("--seed 3 --seconds 3", ErrorKind::ArgumentConflict),
        ("--seed 3 --seeds 3..4", ErrorKind::ArgumentConflict),
        ("--seeds 3..4 --trace", ErrorKind::ArgumentConflict),
        ("--seeds 3..4 --faults late", ErrorKind::ArgumentConflict),
        ("--mutants --workers 3", ErrorKind::ArgumentConflict),
        ("--invariants --alone durable", ErrorKind::ArgumentConflict),
        ("--invariants --seeds 3..4", ErrorKind::ArgumentConflict),
        ("--trace", ErrorKind::MissingRequiredArgument),
    ] {
        let error = parsed(arguments).expect_err(arguments);
        assert_eq!(error.kind(), kind, "{arguments}: {error}");
        assert_eq!(error.exit_code(), 2);
    }
}

/// A mutant is killed by its own bug: the same plan without it runs well.
#[test]
fn plans_that_are_made_for_a_mutant_fail_by_that_alone() {
    let rules = [Mutant::OnePhaseOfAnotherLife, Mutant::LateCreateAccepted];
    let world = [Mutation::LimitNotDurable, Mutation::RenameNotDurable];
    let replicas = [
        Mutation::Election(ElectionMutant::SeenFromSending),
        Mutation::StandbyAnswers,
    ];
    let rules = rules.map(Mutation::Rule).into_iter();
    for mutation in rules.chain(world).chain(replicas) {
        for seed in 0..6 {
            let plan = Plan {
                mutation: None,
                only: None,
                ..mutation.plan(seed)
            };
            let failure = run(&plan, Keep::Nothing).failure;
            assert!(
                failure.is_none(),
                "{} of {seed}: {failure:?}",
                mutation.name()
            );
        }
    }
}

/// What becomes of those is to be tested too: a lost answer is neither a commit nor an abort.
#[test]
fn most_runs_have_answers_that_are_unknown() {
    let lost = |seed| run(&Plan::new(seed), Keep::Nothing).lost_answers();
    let with = (0..20).filter(|seed| lost(*seed) > 0).count();
    assert!(with >= 10, "in {with} of 20 runs");
}
