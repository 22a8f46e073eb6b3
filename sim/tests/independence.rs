//! Kinds of faults, and workloads, don't draw from one stream: without one of them the others are the same. So a run
//! that fails can be made small.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Parser;
use percolator_sim::arguments::Arguments;
use percolator_sim::history::Op;
use percolator_sim::mutation::Mutation;
use percolator_sim::nemesis::{rate, schedule};
use percolator_sim::plan::{Fault, Plan};
use percolator_sim::run::run;
use percolator_sim::shrink::shrink;
use percolator_sim::trace::Keep;

fn everything(seed: u64) -> Plan {
    Plan {
        faults: Fault::ALL.into(),
        ..Plan::new(seed)
    }
}

#[test]
fn without_one_kind_of_fault_the_others_are_scheduled_the_same() {
    for seed in 0..20 {
        let plan = Plan {
            faulty: Duration::from_secs(60),
            ..everything(seed)
        };
        let all = schedule(&plan);
        assert!(all.len() > 20, "{all:?}");
        for off in Fault::ALL {
            let mut less = plan.clone();
            less.faults.remove(&off);
            let mut left = all.clone();
            left.retain(|deed| deed.fault != off);
            assert_eq!(schedule(&less), left, "without {}", off.name());
            for fault in Fault::ALL.into_iter().filter(|fault| *fault != off) {
                let of = |plan| rate(plan, fault, 1_000_000);
                assert_eq!(of(&less), of(&plan));
            }
            assert_eq!(rate(&less, off, 1_000_000), 0);
        }
    }
}

#[test]
fn each_kind_has_a_rate_of_its_own() {
    let mut how_often: BTreeMap<Fault, BTreeSet<usize>> = BTreeMap::new();
    for seed in 0..40 {
        let plan = Plan {
            faulty: Duration::from_secs(100),
            pause: Duration::from_millis(100),
            ..everything(seed)
        };
        let mut counts: BTreeMap<Fault, usize> = BTreeMap::new();
        for deed in schedule(&plan) {
            *counts.entry(deed.fault).or_default() += 1;
        }
        let (least, most) = (counts.values().min(), counts.values().max());
        assert!(most > least.map(|least| 2 * least).as_ref(), "{counts:?}");
        for (fault, count) in counts {
            how_often.entry(fault).or_default().insert(count / 100);
        }
    }
    for (fault, counts) in how_often {
        assert!(counts.len() > 2, "{}: {counts:?}", fault.name());
    }
}

/// What the only worker does, of this table.
fn ops(workloads: &[&'static str], table: &str) -> Vec<String> {
    let plan = Plan {
        workloads: workloads.to_vec(),
        faults: BTreeSet::new(),
        clients: 1,
        workers: 1,
        ..Plan::new(11)
    };
    let outcome = run(&plan, Keep::Nothing);
    assert_eq!(outcome.failure, None);
    let workers = outcome.history.iter();
    // Readers of old snapshots read whatever tables there are.
    let steps = workers.filter(|record| record.fresh && record.client == "client-0.0");
    let wrote = steps.flat_map(|record| &record.ops);
    let wrote = wrote.filter_map(|op| match op {
        Op::Write(write) if write.cell.table == table => Some(format!("{write:?}")),
        _ => None,
    });
    wrote.collect()
}

#[test]
fn without_one_workload_the_others_do_the_same() {
    let alone = ops(&["cycle"], "cycle");
    let together = ops(&["bank", "cycle", "append"], "cycle");
    let length = alone.len().min(together.len()).min(60);
    assert!(length > 20, "{length}");
    assert_eq!(alone[..length], together[..length]);
}

/// Of whatever there is in the first seeds that kill a mutant, what is left when it was made smaller.
#[test]
fn failing_runs_are_made_small_and_fail_again_in_the_same_way_by_what_is_shown_of_them() {
    let small = [
        (Mutation::StaleTimestamps, 0, 2),
        (Mutation::AnswerBeforeSync, 0, 1),
        // A server has to die, or its device to fail, ...
        (Mutation::LimitNotDurable, 1, 1),
        // ... and the machine with it, ...
        (Mutation::SyncTriedAgain, 1, 3),
        // ... or to die just while it writes, which anyone who has less to do does less often; and the machine with it: that
        // moment is lost with most kinds of faults.
        (Mutation::TornBatch, 8, 12),
    ];
    for (mutation, kinds, workers) in small {
        let killed = (0..Mutation::KILLED_WITHIN).filter_map(|seed| {
            let plan = Plan {
                faults: Fault::ALL.into(),
                ..mutation.plan(seed)
            };
            let failure = run(&plan, Keep::Nothing).failure?;
            Some((plan, failure))
        });
        // Some that takes a chain of accidents gets no smaller than that.
        let is_small = killed.take(4).any(|(plan, failure)| {
            let (smaller, smallest) = shrink(&plan, &failure);
            assert_eq!(smallest.invariant, failure.invariant);
            // What is killed at the end alone, when every server is started again, is lost with any other time.
            assert!(
                smaller.faulty < plan.faulty || smaller.faults.len() < plan.faults.len(),
                "{smaller} of {plan}"
            );
            let arguments = smaller.to_string();
            let arguments = ["percolator-sim"].into_iter().chain(arguments.split(' '));
            let again = Arguments::parse_from(arguments).plan(smaller.seed);
            assert_eq!(again, smaller, "{smaller}");
            assert_eq!(run(&again, Keep::Nothing).failure, Some(smallest));
            smaller.faults.len() <= kinds && smaller.clients * smaller.workers <= workers
        });
        assert!(is_small, "{} is made no smaller", mutation.name());
    }
}
