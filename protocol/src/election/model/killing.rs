//! Every mutant of the election breaks a rule in some world of the model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Each is killed within so many; most within ten, two after some thousand.
const SEEDS: u64 = 4000;

fn survivors(elected: Elected, mutants: &[ElectionMutant]) -> Vec<ElectionMutant> {
    let mut survivors = Vec::new();
    for mutant in mutants {
        mutants::set(Some(*mutant));
        let is_killed = (0..SEEDS).any(|seed| {
            // A broken rule may also break an assertion of the oracle.
            let result = catch_unwind(AssertUnwindSafe(|| run(elected, seed, 100)));
            match result {
                Ok(Ok(_)) => false,
                // A violation, or an assertion of the rule itself.
                Ok(Err(_)) | Err(_) => true,
            }
        });
        mutants::set(None);
        if !is_killed {
            survivors.push(*mutant);
        }
    }
    survivors
}

#[test]
fn every_mutant_is_killed() {
    // These take a race that is too rare: `scenarios.rs` kills them.
    let rare = [
        ElectionMutant::PromiseForgotten,
        ElectionMutant::TakeoverForgetsPromisers,
        ElectionMutant::TermNotKept,
        ElectionMutant::HandedOverUnkept,
        ElectionMutant::EarlierEndFrees,
        // It gives no wrong answer, and none at all: `outage.rs` kills it.
        ElectionMutant::UnkeptTermHeld,
    ];
    let mut mutants = ElectionMutant::ALL.to_vec();
    mutants.retain(|mutant| !rare.contains(mutant));
    assert_eq!(survivors(Elected::Oracle, &mutants), []);
}

#[test]
fn every_mutant_of_leadership_is_killed_without_limits() {
    let of_leadership = [
        ElectionMutant::RightFromAnswer,
        ElectionMutant::RightNeverEnds,
        ElectionMutant::TakeoverWithoutSwap,
        ElectionMutant::UnknownIsDone,
        ElectionMutant::ConflictRetried,
        ElectionMutant::SeenFromSending,
        ElectionMutant::SeenNotReset,
        ElectionMutant::ClockBeforeRequest,
        ElectionMutant::PromiseFromAnswer,
        ElectionMutant::SomePromises,
        ElectionMutant::PromiseWhileUndecided,
        ElectionMutant::PromiseBroken,
        ElectionMutant::UnlistedTakesOver,
        ElectionMutant::UndecidedPromisersIgnored,
    ];
    assert_eq!(survivors(Elected::Master, &of_leadership), []);
}

#[test]
fn every_mutant_of_states_is_killed() {
    // No leader of the model serves so early, and the second one is too rare: `scenarios.rs` kills them.
    let others = [
        ElectionMutant::CopiesBeforeFirstState,
        ElectionMutant::StateBeforeTermKept,
    ];
    let mut mutants = ElectionMutant::OF_STATES.to_vec();
    mutants.retain(|mutant| !others.contains(mutant));
    assert_eq!(survivors(Elected::States, &mutants), []);
}
