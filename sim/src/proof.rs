//! The two proofs that the simulator isn't blind: each mutant is killed (`killed_by`), and each invariant kills
//! one if no other invariant is checked (`lone_invariants`).

use std::collections::BTreeMap;
use std::ops::Range;
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

/// In which seeds something was killed when that was looked for last. They are tried first, so that a proof takes little more than
/// one run for each. What a seed does changes with the code: the others are tried after it, and this list costs time alone.
#[derive(Clone, Debug, Default)]
pub struct KnownSeeds<'a>(BTreeMap<&'a str, u64>);

impl<'a> KnownSeeds<'a> {
    /// Of lines such as `TwoOwners 3`; others don't count.
    pub fn of(lines: &'a str) -> Self {
        let seeds = lines.lines().filter_map(|line| {
            let (name, seed) = line.rsplit_once(' ')?;
            Some((name, seed.parse().ok()?))
        });
        Self(seeds.collect())
    }

    /// In which seed something of this name was killed.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// The seeds of `all` in which something of this name is looked for, in their order.
    pub fn first(&self, name: &str, all: Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let known = self.get(name).filter(|seed| all.contains(seed));
        let others = all.filter(move |seed| Some(*seed) != known);
        known.into_iter().chain(others)
    }
}

/// The first of these plans in which something is killed.
pub fn first(plans: impl IntoIterator<Item = Plan>) -> Option<Kill> {
    plans.into_iter().find_map(|plan| {
        let failure = run(&plan, Keep::Nothing).failure?;
        Some(Kill { plan, failure })
    })
}

/// How the plans of these kills fail when they are run without their mutants: then it isn't these that were noticed.
pub fn control(
    kills: &[&Kill],
    run: impl Fn(&Plan) -> Option<Failure> + Sync,
) -> Vec<Option<Failure>> {
    each(kills, |kill| {
        run(&Plan {
            mutation: None,
            ..kill.plan.clone()
        })
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

#[cfg(test)]
mod tests {
    use super::{Kill, KnownSeeds, control};
    use crate::mutation::Mutation;
    use crate::plan::Plan;
    use crate::world::Failure;

    #[test]
    fn known_seeds_come_first_and_none_comes_twice() {
        let known = KnownSeeds::of("one lock a cell 3\nTwoOwners 7\nno seed\n");
        let of = |name| known.first(name, 0..5).collect::<Vec<_>>();
        assert_eq!(of("one lock a cell"), [3, 0, 1, 2, 4]);
        for unknown in ["TwoOwners", "another", "no"] {
            assert_eq!(of(unknown), [0, 1, 2, 3, 4], "{unknown}");
        }
    }
    #[test]
    fn a_plan_that_fails_without_its_mutant_kills_none() {
        let failure = |detail: &str| Failure {
            invariant: "durable".to_owned(),
            detail: detail.to_owned(),
        };
        let kills = [1, 2, 3].map(|seed| Kill {
            plan: Mutation::TwoOwners.plan(seed),
            failure: failure("with it"),
        });
        let without = |plan: &Plan| {
            assert_eq!(plan.mutation, None);
            assert_eq!(plan.faults, Mutation::TwoOwners.plan(plan.seed).faults);
            (plan.seed == 2).then(|| failure("without it"))
        };
        let failures = control(&kills.each_ref(), without);
        assert_eq!(failures, [None, Some(failure("without it")), None]);
    }
}
