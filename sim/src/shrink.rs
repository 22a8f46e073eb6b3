//! Makes a failing run smaller: fewer kinds of faults, fewer clients, a shorter time, as long as it fails
//! in the same way.

use std::time::Duration;

use crate::plan::Plan;
use crate::run::run;
use crate::trace::Keep;
use crate::world::Failure;

/// A smaller plan that breaks the same invariant, and how it does.
pub fn shrink(plan: &Plan, failure: &Failure) -> (Plan, Failure) {
    let mut best = (plan.clone(), failure.clone());
    loop {
        let smaller = candidates(&best.0).into_iter().find_map(|plan| {
            let found = run(&plan, Keep::Nothing).failure?;
            (found.invariant == failure.invariant).then_some((plan, found))
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut candidates = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        if smaller != *plan {
            candidates.push(smaller);
        }
    };
    // The largest steps first: none of the faults, one of them, one workload, one client.
    add(&|plan| plan.faults.clear());
    for fault in &plan.faults {
        add(&|plan| plan.faults = [*fault].into());
    }
    for workload in &plan.workloads {
        add(&|plan| plan.workloads = vec![workload]);
    }
    add(&|plan| plan.clients = 1);
    add(&|plan| plan.workers = 1);
    // In whole milliseconds, as the plan shows it: a fraction of one makes another run.
    for eighths in [4, 7] {
        add(&|plan| {
            let shorter = plan.faulty.as_millis() as u64 * eighths / 8;
            plan.faulty = plan.faulty.min(Duration::from_millis(shorter.max(250)));
        });
    }
    add(&|plan| plan.clients = (plan.clients - 1).max(1));
    add(&|plan| plan.workers = (plan.workers - 1).max(1));
    for fault in &plan.faults {
        add(&|plan| {
            plan.faults.remove(fault);
        });
    }
    if plan.workloads.len() > 1 {
        for workload in &plan.workloads {
            add(&|plan| plan.workloads.retain(|name| name != workload));
        }
    }
    candidates
}
