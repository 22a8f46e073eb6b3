//! Anyone who reads a trace reads no program.

use percolator_sim::mutation::Mutation;
use percolator_sim::plan::Plan;
use percolator_sim::run::run;
use percolator_sim::trace::Keep;

#[test]
fn traces_and_plans_are_in_words() {
    for seed in 0..12 {
        let plan = Plan::new(seed);
        let outcome = run(&plan, Keep::All);
        let words = plan.words();
        for line in outcome
            .trace
            .lines()
            .chain(words.iter().map(String::as_str))
        {
            for code in [
                "Some(",
                "None",
                "Ok(",
                "Err(",
                " { ",
                "::",
                "Timestamp(",
                "[]",
            ] {
                assert!(!line.contains(code), "seed {seed}: {code} in {line}");
            }
        }
    }
}

/// By the names that a trace has for them.
#[test]
fn failures_name_the_servers_that_they_are_about() {
    for mutation in [Mutation::TwoOwners, Mutation::CheckpointNotDurable] {
        let failure = (0..Mutation::KILLED_WITHIN)
            .find_map(|seed| run(&mutation.plan(seed), Keep::Nothing).failure)
            .expect("it is killed");
        let words: Vec<&str> = failure.detail.split(' ').collect();
        assert!(
            words.iter().any(|word| word.starts_with("tablet-")),
            "{failure:?}"
        );
        let numbered = words.windows(2).any(|two| {
            two[0] == "server" && two[1].starts_with(|digit: char| digit.is_ascii_digit())
        });
        assert!(!numbered, "{failure:?}");
    }
}
