//! A run can be repeated by the arguments that its plan shows.

use percolator_sim::plan::{Fault, Plan};
use percolator_sim::sabotage::Sabotage;

#[test]
fn a_wrong_turn_is_repeated_by_its_name_and_its_seed() {
    for sabotage in Sabotage::all() {
        let plan = sabotage.plan(17);
        let name = sabotage.name();
        assert_eq!(plan.to_string(), format!("--seed 17 --sabotage {name}"));
        assert_eq!(Sabotage::named(&name), Some(sabotage));
    }
}

#[test]
fn what_was_made_smaller_is_shown() {
    let mut plan = Plan::new(17);
    plan.faults = [Fault::Late, Fault::Cut].into();
    plan.clients += 1;
    let clients = plan.clients;
    assert_eq!(
        plan.to_string(),
        format!("--seed 17 --faults late,cut --clients {clients}")
    );
}
