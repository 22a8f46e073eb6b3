//! The two proofs that the simulator isn't blind: each mutant is killed (`killed_by`), and each invariant kills
//! one if no other invariant is checked (`lone_invariants`).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::plan::Plan;
use crate::run::run;
use crate::trace::Keep;
use crate::world::Failure;

/// The first plan that killed a mutant, and how.
#[derive(Clone, Debug)]
pub struct Kill {
    /// The plan of that run.
    pub plan: Plan,
    /// What was seen.
    pub failure: Failure,
}

/// The first of these plans in which something is killed.
pub fn first(plans: impl IntoIterator<Item = Plan>) -> Option<Kill> {
    plans.into_iter().find_map(|plan| {
        let failure = run(&plan, Keep::Nothing).failure?;
        Some(Kill { plan, failure })
    })
}

/// What `work` says of each, in their order; done by all cores.
pub fn each<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(at) else { return };
                    let result = work(one);
                    done.lock().push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
