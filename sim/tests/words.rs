//! Whoever reads a trace reads no program.

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
