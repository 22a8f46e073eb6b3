//! The same seed does the same, to the byte: or a failure could not be looked at twice.

use percolator_sim::plan::Plan;
use percolator_sim::run::run;
use percolator_sim::trace::Keep;

fn trace(seed: u64) -> String {
    let outcome = run(&Plan::new(seed), Keep::All);
    assert_eq!(outcome.failure, None, "seed {seed}");
    let lines: Vec<&str> = outcome.trace.lines().collect();
    lines.join("\n")
}

#[test]
fn the_same_seed_does_the_same() {
    for seed in 1..9 {
        let (first, second) = (trace(seed), trace(seed));
        assert!(first.len() > 10_000, "seed {seed}: {first}");
        if first != second {
            let differs = first.lines().zip(second.lines()).find(|(a, b)| a != b);
            panic!("seed {seed} did two things: {differs:?}");
        }
    }
}

#[test]
fn other_seeds_do_other_things() {
    assert_ne!(trace(1), trace(2));
}
