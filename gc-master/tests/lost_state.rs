//! Tables that are deleted by a master that has lost its state, before or in the middle of it.

mod world;

use percolator_gc_master::{Note, Refusal, SILENCE_MAX, TableState};
use percolator_protocol::types::TabletState;
use world::World;

fn lose_state_and_settle(world: &mut World) {
    world.lose_state();
    world.beat_all();
    world.now = SILENCE_MAX;
    world.beat_all();
}

/// Locks of its transactions may be on a server that holds nothing of the table.
#[test]
fn a_server_that_a_rebuilt_directory_has_not_heard_is_not_left_out() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.create("other", &[]).unwrap();
    assert!(world.servers["tablet-1"].contains_key(&2));
    world.down.push("tablet-1".into());
    lose_state_and_settle(&mut world);
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    assert_eq!(world.freeze("a"), Ok(1));
    assert_eq!(world.servers["tablet-0"][&1].state, TabletState::Frozen);
    world.pass_deletions();
    assert_eq!(world.state().tables[&1].drop_at, None);
    // Its next start knows as well.
    world.restart();
    world.now = SILENCE_MAX;
    world.beat_all();
    world.pass_deletions();
    assert_eq!(world.state_of("a"), Some(TableState::Deleting));

    world.down.clear();
    world.beat_all();
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
}

/// Anyone who loses its state and hears one owner of a table in use must come to hear of all others.
#[test]
fn a_table_is_not_used_before_others_know_of_its_owner() {
    let mut world = World::new(1);
    world.create("a", &[]).unwrap();
    world.down.push("tablet-0".into());
    world.now += SILENCE_MAX;
    world.servers.insert("tablet-1".into(), Default::default());
    world.beat("tablet-1").unwrap();
    assert_eq!(world.create("b", &[]), Ok(2));
    for _ in 0..3 {
        world.beat_all();
    }
    assert!(world.servers["tablet-1"].contains_key(&2));
    assert_eq!(world.state_of("b"), Some(TableState::Creating));
    assert_eq!(
        world.directory.waits_for(2, world.now),
        "one of tablet-0 (last heard 3 s ago) to take down the names of the other tablet servers"
    );
    world.down.clear();
    world.beat_all();
    world.beat_all();
    assert_eq!(world.state_of("b"), Some(TableState::Ready));
    assert_eq!(world.state_of("a"), Some(TableState::Ready));

    world.down.push("tablet-1".into());
    lose_state_and_settle(&mut world);
    assert!(world.state().awaited.contains("tablet-1"));
}

/// Its rows would come back under another name, and what is written meanwhile would lie in an empty table of theirs.
#[test]
fn a_name_is_not_given_away_before_its_owner_was_heard() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.create("late", &[]).unwrap();
    assert!(world.servers["tablet-1"].contains_key(&2));
    world.down.push("tablet-1".into());
    lose_state_and_settle(&mut world);
    for name in ["late", "new"] {
        let refused = world.create(name, &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "the table {name} can't be created before this master, which has lost its state, has heard from \
                 tablet-1: a table of this name may be there. Start what is missing, then create it again"
            )
        );
    }
    world.down.clear();
    world.beat_all();
    let exists = Err(Refusal::TableExists {
        name: "late".into(),
    });
    assert_eq!(world.create("late", &[]), exists);
    assert!(world.create("new", &[]).is_ok());
    assert_eq!(world.state_of("late"), Some(TableState::Ready));
}

/// What is left of the table looks like one that was never whole.
#[test]
fn a_drop_goes_on_when_the_state_is_lost_in_the_middle() {
    for step in 0.. {
        let mut world = World::new(3);
        world.create("a", &["g", "p"]).unwrap();
        world.create("b", &[]).unwrap();
        world.freeze("a").unwrap();
        world.time_deletions();
        world.effects_left = step;
        world.pass_deletions();
        let crashed = world.crashed;
        lose_state_and_settle(&mut world);
        let held = world.servers.values().flat_map(|tablets| tablets.values());
        let left = held.filter(|tablet| tablet.table.0 == 1).count();
        match left {
            0 => {
                assert_eq!(world.state_of("a"), None, "step {step}");
                assert!(world.state().deleted_tables.contains(&1), "step {step}");
            }
            // Nobody has dropped anything: what was frozen is, and gets a time anew.
            3 => assert!(world.directory.is_frozen(1), "step {step}"),
            // One that was dropped says that the others may go.
            _ => assert_eq!(world.state().tables[&1].drop_at, Some(0), "step {step}"),
        }
        world.pass_deletions();
        assert_eq!(world.state_of("a"), None, "step {step}");
        assert_eq!(world.state_of("b"), Some(TableState::Ready), "step {step}");
        world.assert_agreement(&format!("step {step}"));
        if !crashed {
            assert!(step > 7, "three tablets, each dropped and answered");
            return;
        }
    }
}

/// Locks of transactions that never committed may name it for a long time yet.
#[test]
fn that_a_table_was_deleted_is_not_forgotten_with_the_state() {
    let mut world = World::new(1);
    world.create("a", &[]).unwrap();
    let late = world.heartbeat_of("tablet-0");
    world.delete("a").unwrap();
    world.lose_state();
    // A heartbeat of before the drop, that comes now.
    world.directory.heartbeat(world.now, late).unwrap();
    world.carry_out();
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    world.beat_all();
    assert_eq!(world.state_of("a"), None);
    assert!(world.state().deleted_tables.contains(&1));
    world.assert_agreement("after the late heartbeat");
}

#[test]
fn a_table_that_was_never_made_as_a_whole_can_be_deleted() {
    let mut world = World::new(2);
    world.down.push("tablet-1".into());
    world.create("a", &["m"]).unwrap();
    world.down.clear();
    lose_state_and_settle(&mut world);
    assert_eq!(world.state_of("a"), Some(TableState::Creating));
    assert_eq!(world.delete("a"), Ok(1));
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("after the delete");
}

#[test]
fn a_lost_tablet_is_not_frozen_by_making_an_empty_one() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.servers.get_mut("tablet-1").unwrap().clear();
    world.freeze("a").unwrap();
    world.beat_all();
    assert!(!world.directory.is_frozen(1));
    assert!(world.servers["tablet-1"].is_empty());
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-1 (up); the last order to tablet-1 failed: tablet 2 is lost"
    );
}

#[test]
fn why_an_order_fails_is_told_once_for_each_change() {
    let mut world = World::new(1);
    world.down.push("tablet-0".into());
    world.create("a", &[]).unwrap();
    for _ in 0..5 {
        world.down.clear();
        let beat = world.heartbeat_of("tablet-0");
        world.down.push("tablet-0".into());
        world.directory.heartbeat(world.now, beat).unwrap();
        world.carry_out();
    }
    let failed = |note: &&Note| matches!(note, Note::Failed { .. });
    let told: Vec<String> = world
        .notes
        .iter()
        .filter(failed)
        .map(Note::to_string)
        .collect();
    assert_eq!(
        told,
        ["tablet-0 has not carried out a command for tablet 1, it is asked again: it is down"]
    );
    assert!(world.sent.len() > 5, "it was asked again");
}

/// A server that joined later is known to those that it met.
#[test]
fn a_state_that_was_set_back_is_not_trusted() {
    let mut world = World::new(1);
    let older = world.disk.clone();
    let ids_then = world.state().next_table_id;
    world.servers.insert("tablet-1".into(), Default::default());
    world.beat("tablet-1").unwrap();
    world.beat_all();
    world.disk = older;
    world.restart();
    assert!(!world.state().rebuilt);
    world.beat("tablet-0").unwrap();
    assert!(world.state().rebuilt);
    assert!(world.state().awaited.contains("tablet-1"));
    assert_ne!(
        world.state().next_table_id,
        ids_then,
        "they may have been given"
    );
    world.now += SILENCE_MAX;
    world.beat_all();
    assert!(world.state().awaited.is_empty());
    assert_eq!(world.create("a", &[]).map(|_| ()), Ok(()));
}

/// Somebody may still ask for the tablet by its id, or report that it was dropped.
#[test]
fn ids_that_were_given_before_the_state_was_lost_are_not_given_again() {
    let mut world = World::new(1);
    world.create("a", &[]).unwrap();
    let lost = |world: &mut World, random| {
        world.disk = None;
        world.restart_with(random);
        world.beat_all();
        world.now = SILENCE_MAX;
        world.beat_all();
    };
    // The next directory's ids are higher than those of the one after it.
    lost(&mut world, u128::MAX - 1);
    let kept = world.create("kept", &[]).unwrap();
    let gone = world.create("gone", &[]).unwrap();
    let dropped = world.servers["tablet-0"].keys().copied().max().unwrap();
    world.delete("gone").unwrap();
    lost(&mut world, 1 << 40 | 1 << 4);
    let new = world.create("new", &[]).unwrap();
    assert!(new != gone && new != kept, "{new}");
    assert!(!world.servers["tablet-0"].contains_key(&dropped));
    world.beat_all();
    assert_eq!(world.state_of("new"), Some(TableState::Ready));
}

/// Its creation was begun by a master that lost its state, and again by the next one.
#[test]
fn a_name_belongs_to_the_table_that_is_ready() {
    let mut world = World::new(2);
    world.down.push("tablet-1".into());
    world.create("a", &["m"]).unwrap();
    let half = world
        .servers
        .get_mut("tablet-0")
        .unwrap()
        .remove(&1)
        .unwrap();
    world.down.clear();
    lose_state_and_settle(&mut world);
    let whole = world.create("a", &["m"]).unwrap();
    world.servers.get_mut("tablet-0").unwrap().insert(1, half);
    lose_state_and_settle(&mut world);
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    assert_eq!(world.state().tables[&whole].name, "a");
    assert_eq!(world.state().tables[&1].name, "a.1");
    assert_eq!(world.state_of("a.1"), Some(TableState::Creating));
    assert_eq!(world.delete("a.1"), Ok(1));
}
