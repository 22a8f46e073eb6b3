//! The two proofs that the simulator isn't blind: each wrong turn is noticed (`noticed`), and each invariant notices
//! one where nothing else is looked at (`of_use`).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::plan::Plan;
use crate::run::run;
use crate::trace::Keep;
use crate::world::Failure;

/// Where and how something was noticed first.
#[derive(Clone, Debug)]
pub struct Noticed {
    /// The plan of that run.
    pub plan: Plan,
    /// What was seen.
    pub failure: Failure,
}

/// The first of these plans in which something is noticed.
pub fn first(plans: impl IntoIterator<Item = Plan>) -> Option<Noticed> {
    plans.into_iter().find_map(|plan| {
        let failure = run(&plan, Keep::Nothing).failure?;
        Some(Noticed { plan, failure })
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
