//! Deleting tables: frozen at once, and dropped when the safe point has passed that; with crashes of the master at every step.

use std::time::Duration;

use crate::world::World;
use percolator_gc_master::{Deletion, Heartbeat, Refusal, TableState, locate};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{TabletState, Timestamp};
use percolator_wire::v1;

#[test]
fn a_deletion_that_comes_late_leaves_a_table_that_was_made_again() {
    let mut world = World::new(2);
    let first = world.create("a", &["m"]).unwrap();
    world.freeze("a").unwrap();
    // The name is free at once.
    let second = world.create("a", &["m"]).unwrap();
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    let late = Deletion {
        table: Some(first),
        ..Deletion::of("a")
    };
    assert_eq!(world.directory.delete_table(world.now, &late), Ok(first));
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    world.pass_deletions();
    assert_eq!(world.directory.table(first), None);
    let refused = world.directory.delete_table(world.now, &late).unwrap_err();
    assert!(matches!(refused, Refusal::NoSuchTable { .. }), "{refused}");
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    assert_eq!(world.freeze("a"), Ok(second));
}

#[test]
fn a_delete_goes_on_when_its_server_comes_back() {
    let mut world = World::new(2);
    world.create("accounts", &["m"]).unwrap();
    world.down.push("tablet-0".into());
    assert_eq!(world.delete("accounts"), Ok(1));
    assert_eq!(world.state_of("accounts"), Some(TableState::Deleting));
    let waits_for = "tablet-0 (up); the last command to tablet-0 failed: it is down";
    assert_eq!(world.directory.waits_for(1, world.now), waits_for);
    // Asking again does no harm; and the name is not free yet.
    assert_eq!(world.freeze("accounts"), Ok(1));
    assert_eq!(
        world.create("accounts", &[]),
        Err(Refusal::BeingDeleted {
            name: "accounts".into(),
            waits_for: waits_for.into(),
        })
    );
    assert!(!world.directory.is_frozen(1));
    world.down.clear();
    world.beat_all();
    assert!(world.directory.is_frozen(1));
    // It is frozen, and stays until the safe point has passed that.
    world.time_deletions();
    world.beat_all();
    assert_eq!(world.rows().len(), 2);
    world.down.push("tablet-1".into());
    world.pass_deletions();
    assert_eq!(world.rows().len(), 1);
    // Who meets a lock whose primary was there needn't wait for the server that is away.
    let request = v1::LocateRequest {
        rows: vec![v1::RowToLocate {
            table_id: 1,
            row: "a".into(),
            before: false,
        }],
        ..v1::LocateRequest::default()
    };
    let located = locate(&world.directory, &request).unwrap();
    assert_eq!(located.deleted_tables, [1]);
    assert_eq!(located.tablets, []);
    assert_eq!(world.state_of("accounts"), Some(TableState::Deleting));
    world.down.clear();
    world.beat_all();
    assert_eq!(world.state_of("accounts"), None);
    world.assert_agreement("after the delete");
}

#[test]
fn a_delete_survives_a_crash_at_every_step() {
    for step in 0.. {
        let mut world = World::new(2);
        world.create("accounts", &["g", "p"]).unwrap();
        world.effects_left = step;
        let deleted = world.delete("accounts");
        let crashed = world.crashed;
        // A master that has just started refuses what it has not heard of yet.
        assert!(deleted.is_ok() || crashed, "step {step}: {deleted:?}");
        let is_begun = world.state_of("accounts") != Some(TableState::Ready);
        assert_eq!(is_begun, step > 0, "step {step}: durable before it is sent");
        world.effects_left = usize::MAX;
        world.beat_all();
        world.beat_all();
        world.assert_agreement(&format!("step {step}"));
        if is_begun {
            // It goes on by itself.
            world.pass_deletions();
            assert_eq!(world.state_of("accounts"), None, "step {step}");
            world.assert_agreement(&format!("step {step}, at the end"));
        } else {
            assert_eq!(world.state_of("accounts"), Some(TableState::Ready));
        }
        if !crashed {
            assert!(
                step > 13,
                "three tablets, each frozen, dropped and answered"
            );
            return;
        }
    }
}

#[test]
fn a_table_is_dropped_when_the_safe_point_has_passed_its_freezing_and_not_before() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    let frozen_count = |world: &World| {
        let tablets = world.servers.values().flat_map(|tablets| tablets.values());
        tablets
            .filter(|tablet| tablet.state == TabletState::Frozen)
            .count()
    };
    world.down.push("tablet-1".into());
    world.freeze("a").unwrap();
    assert_eq!(frozen_count(&world), 1);
    // Whatever the safe point passes now, a transaction may still commit in the other one.
    world.pass_deletions();
    assert_eq!(world.state().tables[&1].drop_at, None);
    world.down.clear();
    // A report from before the command to freeze changes nothing.
    let mut late = world.heartbeat_of("tablet-0");
    late.tablets[0].state = TabletState::Serving;
    world.directory.heartbeat(world.now, late).unwrap();
    world.carry_out();
    world.beat_all();
    assert_eq!(frozen_count(&world), 2);
    assert!(world.directory.is_frozen(1));
    let frozen_before = world.oracle_ms;

    // The first time may have been taken before the freezing.
    world.collect();
    assert_eq!(world.state().tables[&1].drop_at, None);
    world.collect();
    let drop_at = world.state().tables[&1].drop_at.unwrap();
    assert!(drop_at > Timestamp::from_millis(frozen_before + 1).as_u64());
    // The master's next start knows it; and nothing is dropped before that.
    world.restart();
    let at = |drop_at: u64| Points {
        barrier: Timestamp::from_u64(drop_at),
        safe_point: Timestamp::from_u64(drop_at),
        resolved: Timestamp::from_u64(drop_at),
    };
    for (points, tablets) in [(at(drop_at - 1), 2), (at(drop_at), 0)] {
        for server in ["tablet-0", "tablet-1"] {
            world.points.insert(server.into(), points);
        }
        world.beat_all();
        world.beat_all();
        assert_eq!(world.rows().len(), tablets);
    }
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("after the drop");
}

#[test]
fn a_rebuilt_state_goes_on_with_a_frozen_table() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.down.push("tablet-1".into());
    world.freeze("a").unwrap();
    world.down.clear();
    world.lose_state();
    // One tablet says that it is frozen.
    world.report_all();
    assert!(world.rebuild(true).written);
    assert_eq!(world.state_of("a"), Some(TableState::Deleting));
    assert!(!world.directory.is_frozen(1));
    world.beat_all();
    assert!(world.directory.is_frozen(1));
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("after the drop");
}

#[test]
fn an_order_to_make_a_tablet_that_is_late_finds_it_frozen() {
    let mut world = World::new(1);
    world.down.push("tablet-0".into());
    world.create("a", &[]).unwrap();
    world.freeze("a").unwrap();
    world.down.clear();
    world.beat_all();
    // It never had the tablet, and holds it frozen now.
    assert!(world.directory.is_frozen(1));
    assert_eq!(world.servers["tablet-0"][&1].state, TabletState::Frozen);
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
}

#[test]
fn a_create_that_arrives_after_the_delete_is_dropped_again() {
    let mut world = World::new(1);
    world.create("a", &[]).unwrap();
    let late = world.servers["tablet-0"].clone();
    world.delete("a").unwrap();
    world.servers.insert("tablet-0".into(), late);
    world.beat_all();
    world.assert_agreement("the late one is dropped");
    assert!(world.servers["tablet-0"].is_empty());
}

/// Of two tables of one name, the one that waits for what is lost is given up.
#[test]
fn giving_up_goes_for_the_table_that_has_lost_something() {
    let mut world = World::new(1);
    let first = world.create("a", &[]).unwrap();
    world.freeze("a").unwrap();
    world.beat_all();
    world.time_deletions();
    let timed = world.state().tables[&first].drop_at;
    assert!(timed.is_some());
    let second = world.create("a", &[]).unwrap();
    let kept = world.servers["tablet-0"].clone();
    let of = |table: u32, world: &World| {
        let tablets = kept.iter().filter(|(_, tablet)| tablet.table.0 == table);
        assert!(world.servers.contains_key("tablet-0"));
        tablets.map(|(id, tablet)| (*id, tablet.clone())).collect()
    };
    // The first one's is lost.
    let left = of(second, &world);
    world.servers.insert("tablet-0".into(), left);
    world.beat_all();
    assert_eq!(world.accept_data_loss("a"), Ok(first));
    assert_eq!(world.state().tables[&first].drop_at, None);
    assert_eq!(world.state().tables[&second].state, TableState::Ready);
    world.beat_all();
    world.time_deletions();
    let timed = world.state().tables[&first].drop_at;
    assert!(timed.is_some());
    // Now it is the second one's; the first one goes on as it was.
    world
        .servers
        .get_mut("tablet-0")
        .unwrap()
        .retain(|_, tablet| tablet.table.0 == first);
    world.beat_all();
    assert_eq!(world.accept_data_loss("a"), Ok(second));
    assert_eq!(world.state().tables[&first].drop_at, timed);
    world.beat_all();
    assert!(world.directory.is_frozen(second));
}

/// A server that was away when the table was deleted serves it for a moment when it is back: what its locks depend on is
/// kept until then.
#[test]
fn a_deleted_table_whose_server_is_away_holds_resolved() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.create("b", &[]).unwrap();
    assert!(world.servers["tablet-1"].contains_key(&2));
    let step = |world: &mut World| {
        world.now += Duration::from_secs(100);
        world.oracle_ms += 1_000_000;
        for server in ["tablet-0", "tablet-1"] {
            world
                .points
                .insert(server.into(), world.state().gc.points());
        }
        world.beat_all();
        world.collect();
        world.state().gc.points().resolved
    };
    step(&mut world);
    let before = step(&mut world);
    assert!(before > Timestamp::ZERO);
    world.down.push("tablet-1".into());
    world.freeze("b").unwrap();
    step(&mut world);
    let held = step(&mut world);
    assert_eq!(step(&mut world), held);
    world.down.clear();
    step(&mut world);
    assert!(step(&mut world) > held);
}

#[test]
fn a_report_that_is_older_than_the_drop_does_not_bring_the_tablet_back() {
    let mut world = World::new(2);
    world.create("t", &["m"]).unwrap();
    world.freeze("t").unwrap();
    let mut late = world.heartbeat_of("tablet-0");
    // Only one has dropped its tablet: so the table is still there.
    world.time_deletions();
    world.down.push("tablet-1".into());
    world.pass_deletions();
    assert!(world.servers["tablet-0"].is_empty());
    assert!(world.state_of("t").is_some());
    // Of a folder that is accepted although it is older than that.
    late.groups = world.groups["tablet-0"];
    world.directory.heartbeat(world.now, late).unwrap();
    world.carry_out();
    world.down.clear();
    world.beat_all();
    world.beat_all();
    assert_eq!(world.state_of("t"), None);
    world.assert_agreement("after the late report");
}

/// Its locks may come back with its folder, and then ask for what became of transactions of long ago.
#[test]
fn nothing_is_resolved_while_a_server_misses_what_it_had() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.create("b", &[]).unwrap();
    assert!(world.servers["tablet-1"].contains_key(&2));
    let mut second = 3_600;
    let mut collect = |world: &mut World| {
        for _ in 0..3 {
            second += 100;
            world.now = Duration::from_secs(second);
            world.oracle_ms += 100_000;
            world.beat_all();
            world.collect();
            // Everybody takes the barrier.
            let points = world.state().gc.points();
            for server in ["tablet-0", "tablet-1"] {
                world.points.insert(server.into(), points);
            }
        }
        world.state().gc.points().resolved
    };
    let before = collect(&mut world);
    assert!(before > Timestamp::ZERO);
    let taken = std::mem::take(world.servers.get_mut("tablet-1").unwrap());
    assert_eq!(collect(&mut world), before);
    // A table that has lost nothing can be deleted; its space waits, although the safe point goes on.
    assert!(world.state().gc.points().safe_point > before);
    assert_eq!(world.freeze("a"), Ok(1));
    assert_eq!(collect(&mut world), before);
    assert_eq!(world.state_of("a"), Some(TableState::Deleting));
    // What was lost comes back.
    world.servers.insert("tablet-1".into(), taken);
    let ready = collect(&mut world);
    assert!(ready > before);
    assert_eq!(collect(&mut world).cmp(&ready), std::cmp::Ordering::Greater);
    world.beat_all();
    assert_eq!(world.state_of("a"), None);
    // It is lost for good.
    let ready = collect(&mut world);
    world.servers.get_mut("tablet-1").unwrap().clear();
    assert_eq!(collect(&mut world), ready);
    world.freeze("b").unwrap();
    world.beat_all();
    assert!(!world.directory.is_frozen(2), "nothing takes its place");
    // What comes back would serve until it is frozen.
    assert_eq!(collect(&mut world), ready);
    assert_eq!(world.accept_data_loss("b"), Ok(2));
    world.beat_all();
    assert!(world.directory.is_frozen(2));
    world.time_deletions();
    assert!(world.state().tables[&2].drop_at.is_some());
    // Lost once more, now that it is frozen: what is made in its place has to be frozen, too.
    world.servers.get_mut("tablet-1").unwrap().clear();
    world.beat_all();
    world.accept_data_loss("b").unwrap();
    assert_eq!(world.state().tables[&2].drop_at, None);
    world.beat_all();
    world.beat_all();
    assert_eq!(world.servers["tablet-1"][&2].state, TabletState::Frozen);
    world.pass_deletions();
    assert_eq!(world.state().tables.len(), 0);
    world.assert_agreement("when all is deleted");
}

/// Its owner has dropped its own tablet of the table, and the server is back whose command to drop one was the last to wait for. What that
/// one handed over before was dropped where it went.
#[test]
fn what_was_handed_over_and_dropped_since_does_not_come_back() {
    let mut world = World::new(2);
    world.create("t", &["h", "m"]).unwrap();
    let ids = |world: &World, server: &str| -> Vec<u64> {
        world.servers[server].keys().copied().collect()
    };
    let of_first = ids(&world, "tablet-0");
    assert_eq!(of_first.len(), 2, "{:?}", world.servers);
    let moved = of_first[0];
    let departed = world.hand_over(moved, "tablet-0", "tablet-1");
    let beat = |world: &mut World| {
        let beat = Heartbeat {
            departed: vec![departed.clone()],
            ..world.heartbeat_of("tablet-0")
        };
        let reply = world.directory.heartbeat(world.now, beat).unwrap();
        world.carry_out();
        reply
    };
    beat(&mut world);
    world.beat_all();
    world.freeze("t").unwrap();
    world.time_deletions();
    world.down.push("tablet-0".into());
    world.pass_deletions();
    assert!(ids(&world, "tablet-1").is_empty());
    assert!(world.state_of("t").is_some());
    world.down.clear();
    let reply = beat(&mut world);
    assert!(reply.settled_moves.contains(&moved), "{reply:?}");
    for _ in 0..3 {
        world.beat_all();
    }
    assert_eq!(world.state_of("t"), None);
    world.assert_agreement("after what was handed over");
}
