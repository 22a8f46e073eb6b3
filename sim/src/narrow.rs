//! Narrow seeds: one to three kinds of faults, or none that does harm; one hot workload, few keys, small buffers and caps of records. Where
//! everything fails at once, few transactions get far enough to meet a bug that needs a certain pair of steps.

use std::time::Duration;

use percolator_tablet::Limits;

use crate::invariants::errors::HARMLESS;
use crate::plan::{Fault, Plan};
use crate::rng::Rng;
use crate::workloads;

/// One seed of so many is narrow.
const ONE_OF: u64 = 3;
/// In one narrow seed of so many nothing fails: whatever does then is a bug.
const HEALTHY_OF: u64 = 3;

/// Makes the plan narrow, if its seed is one of those. Whether it is.
pub(crate) fn narrow(plan: &mut Plan) -> bool {
    let mut rng = Rng::new(plan.seed, "narrow");
    if rng.below(ONE_OF) != 0 {
        return false;
    }
    let ms = Duration::from_millis;
    plan.faults.clear();
    let kinds = Fault::of_one_each();
    for _ in 0..1 + rng.below(3) {
        plan.faults.insert(*rng.pick(&kinds));
    }
    if Rng::new(plan.seed, "healthy").below(HEALTHY_OF) == 0 {
        plan.faults.retain(|fault| HARMLESS.contains(fault));
        plan.request_timeout = ms(8_000);
        plan.timeout = ms(3_000);
        plan.lock_ttl = plan.lock_ttl.max(ms(1_000));
    }
    plan.workloads = vec![rng.pick(&workloads::all()).name()];
    plan.few_keys = rng.below(2) == 0;
    plan.faulty = ms(rng.between(500, 1_500));
    plan.pause = ms(rng.between(20, 200));
    plan.think = ms(rng.between(1, 6));
    plan.clients = 2 + rng.below(2) as usize;
    plan.workers = 1 + rng.below(3) as usize;
    plan.buffer_bytes = *rng.pick(&[200, 600, 2_000]);
    let mut small = || *rng.pick(&[1, 2, 5]);
    plan.limits = Limits {
        scan_cells: small(),
        scan_records: small(),
        scan_locks: small(),
        resolve_locks: small(),
        scan_records_of_one_cell: small(),
        ..plan.limits
    };
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::plan::{Fault, Plan};
    use crate::replicas;

    /// So many seeds that each kind of fault comes many times.
    const SEEDS: u64 = 2_000;

    #[test]
    fn narrow_seeds_have_every_kind_of_fault_that_can_happen_there() {
        let mut seen = BTreeSet::new();
        for seed in 0..SEEDS {
            let mut plan = Plan::new(seed);
            if !super::narrow(&mut plan) {
                continue;
            }
            assert!(
                plan.faults.len() <= 3 && (!plan.faults.is_empty() || plan.is_healthy()),
                "seed {seed}: {:?}",
                plan.faults
            );
            seen.extend(plan.faults);
        }
        let expected: BTreeSet<Fault> = Fault::ALL
            .into_iter()
            .filter(|fault| !replicas::FAULTS.contains(fault))
            .collect();
        assert_eq!(seen, expected);
    }
}
