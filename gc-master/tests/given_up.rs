//! Rows that were given up when a state was rebuilt: nothing waits for what is left of them.

use std::time::Duration;

use percolator_gc_master::{Heartbeat, TableState};

use crate::world::{World, copy};

/// The only copy of tablet 1 waits at one server for its owner, which is gone for good; the state is lost, and the rows are
/// given up. Where the empty tablet lies then depends on how many tablets that server has otherwise.
fn the_copy_goes(others_at_it: usize) -> String {
    let mut world = World::new(3);
    world.create("alone", &["m"]).unwrap();
    world.beat_all();
    let owner = world.directory.tablets().get(1).unwrap().owner.clone();
    let to = "tablet-2";
    assert_ne!(owner, to);
    for number in 0..others_at_it {
        world.create(&format!("other-{number}"), &[]).unwrap();
        world.beat_all();
    }
    world.servers.remove(&owner);
    world.members.remove(&owner);
    world.lose_state();
    world.report_all();
    let waits = copy(1, 5, &owner);
    let of_copy = |world: &World| Heartbeat {
        arriving: vec![waits.clone()],
        ..world.heartbeat_of(to)
    };
    let beat = of_copy(&world);
    world.directory.heartbeat(world.now, beat).unwrap_err();
    assert!(world.rebuild(true).written);
    // Before the empty tablet is made: its server would refuse it as long as it has the copy.
    let beat = of_copy(&world);
    let reply = world.directory.heartbeat(world.now, beat).unwrap();
    assert_eq!(reply.settled_arrivals, [(1, 5)]);
    for _ in 0..10 {
        world.beat_all();
        world.now += Duration::from_millis(500);
    }
    assert_eq!(world.state_of("alone"), Some(TableState::Ready));
    // Another one may have begun to wait since: also once the tablet is made.
    let empty = world.directory.tablets().of_row(1, b"").unwrap().1.clone();
    if empty.owner != to {
        assert_eq!(world.report_copy(to, waits.clone()), [(1, 5)]);
    }
    empty.owner
}

#[test]
fn a_copy_of_what_was_given_up_goes_wherever_the_empty_tablet_is() {
    let owners = [0, 1, 2, 3].map(the_copy_goes);
    assert!(owners.iter().any(|it| it == "tablet-2"), "{owners:?}");
    assert!(owners.iter().any(|it| it != "tablet-2"), "{owners:?}");
}
