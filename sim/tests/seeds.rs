//! Which seeds are run, and that they end in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use percolator_sim::plan::Plan;
use percolator_sim::run::{run, run_until};
use percolator_sim::seeds::Seeds;
use percolator_sim::trace::Keep;

fn all(seeds: &Seeds) -> Vec<u64> {
    std::iter::from_fn(|| seeds.next().map(|seed| seed.number)).collect()
}

#[test]
fn the_last_seeds_there_are_end_too() {
    let seeds = Seeds::new(u64::MAX - 3, u64::MAX, 0);
    assert_eq!(all(&seeds), [u64::MAX - 3, u64::MAX - 2, u64::MAX - 1]);
    assert!(seeds.next().is_none());
    assert_eq!(all(&Seeds::new(0, 3, 0)), [0, 1, 2]);
}

#[test]
fn when_the_time_is_over_runs_are_cut_off_but_for_the_first_ones() {
    let seeds = Seeds::new(10, 20, 2);
    let begun: Vec<_> = (0..3).filter_map(|_| seeds.next()).collect();
    seeds.time_is_over();
    let cut: Vec<bool> = begun
        .iter()
        .map(|seed| seed.cut.load(Ordering::Relaxed))
        .collect();
    assert_eq!(cut, [false, false, true]);
    assert!(seeds.next().is_none());
    // Those that are due are begun late, too.
    let seeds = Seeds::new(10, 20, 2);
    seeds.time_is_over();
    assert_eq!(all(&seeds), [10, 11]);
    seeds.end();
    assert!(seeds.next().is_none());
}

#[test]
fn a_run_that_is_cut_off_has_no_outcome() {
    let plan = Plan::new(1);
    let cut = |cut| Arc::new(AtomicBool::new(cut));
    assert!(run_until(&plan, Keep::Nothing, cut(true)).is_none());
    let whole = run_until(&plan, Keep::Nothing, cut(false)).expect("its end");
    let simulated = run(&plan, Keep::Nothing).simulated;
    assert_eq!((whole.failure, whole.simulated), (None, simulated));
}
