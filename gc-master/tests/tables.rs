//! Creating and deleting tables, with crashes of the master at every step.

mod world;

use std::time::Duration;

use percolator_gc_master::{Deletion, Refusal, SILENCE_MAX, TableState};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{TabletState, Timestamp};
use world::World;

#[test]
fn a_table_is_spread_over_the_servers_and_ready_when_all_have_it() {
    let mut world = World::new(2);
    assert_eq!(world.create("accounts", &["g", "p"]), Ok(1));
    assert_eq!(
        world.rows(),
        [
            "accounts ready 1@1 [..g) tablet-0",
            "accounts ready 2@1 [g..p) tablet-1",
            "accounts ready 3@1 [p..) tablet-0",
        ]
    );
    // The next goes where there is less.
    assert_eq!(world.create("log", &[]), Ok(2));
    assert_eq!(world.rows()[3], "log ready 4@1 [..) tablet-1");
    world.assert_agreement("after two tables");
}

#[test]
fn ids_are_never_given_twice() {
    let mut world = World::new(1);
    assert_eq!(world.create("a", &["m"]), Ok(1));
    world.delete("a").unwrap();
    assert_eq!(world.state_of("a"), None);
    world.restart();
    world.beat_all();
    assert_eq!(world.create("a", &[]), Ok(2));
    assert_eq!(world.rows(), ["a ready 3@1 [..) tablet-0"]);
}

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
fn a_create_goes_on_when_its_server_comes_back() {
    let mut world = World::new(2);
    world.down.push("tablet-1".into());
    assert_eq!(world.create("accounts", &["m"]), Ok(1));
    assert_eq!(world.state_of("accounts"), Some(TableState::Creating));
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-1 (up); the last order to tablet-1 failed: it is down",
        "it has not been silent for long"
    );

    // The same again goes on; other cuts are another table.
    assert_eq!(world.create("accounts", &["m"]), Ok(1));
    assert_eq!(
        world.create("accounts", &["n"]),
        Err(Refusal::OtherCuts {
            name: "accounts".into()
        })
    );
    world.now += Duration::from_secs(60);
    world.beat_all();
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-1 (last heard 61 s ago); the last order to tablet-1 failed: it is down"
    );
    world.down.clear();
    world.beat_all();
    assert_eq!(world.state_of("accounts"), Some(TableState::Ready));
    assert_eq!(
        world.create("accounts", &["m"]),
        Err(Refusal::TableExists {
            name: "accounts".into()
        })
    );
    world.assert_agreement("after the server came back");
}

#[test]
fn a_delete_goes_on_when_its_server_comes_back() {
    let mut world = World::new(2);
    world.create("accounts", &["m"]).unwrap();
    world.down.push("tablet-0".into());
    assert_eq!(world.delete("accounts"), Ok(1));
    assert_eq!(world.state_of("accounts"), Some(TableState::Deleting));
    let no_such_table = Err(Refusal::NoSuchTable {
        name: "accounts".into(),
    });
    assert_eq!(world.delete("accounts"), no_such_table);
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-0 (up); the last order to tablet-0 failed: it is down"
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
    assert_eq!(world.state_of("accounts"), Some(TableState::Deleting));
    world.down.clear();
    world.beat_all();
    assert_eq!(world.state_of("accounts"), None);
    world.assert_agreement("after the delete");
}

/// Creates, crashes at one step, and goes on with what servers report alone.
#[test]
fn a_create_survives_a_crash_at_every_step() {
    for step in 0.. {
        let mut world = World::new(2);
        world.effects_left = step;
        let created = world.create("accounts", &["g", "p"]);
        let is_known = world.state_of("accounts").is_some();
        if world.crashed {
            assert_eq!(is_known, step > 0, "step {step}: durable before it is sent");
        }
        let crashed = world.crashed;
        world.effects_left = usize::MAX;
        world.beat_all();
        world.beat_all();
        world.assert_agreement(&format!("step {step}"));
        let expected = is_known.then_some(TableState::Ready);
        assert_eq!(world.state_of("accounts"), expected, "step {step}");
        // Whether or not the first became known, the name can be used.
        if !is_known {
            assert_eq!(world.create("accounts", &["g", "p"]), Ok(1));
            assert_eq!(world.state_of("accounts"), Some(TableState::Ready));
        }
        if !crashed {
            assert_eq!(created, Ok(1));
            assert!(step > 6, "three tablets, each made and answered");
            return;
        }
    }
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
    // A report from before the order to freeze changes nothing.
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
fn a_directory_that_has_lost_its_state_goes_on_with_a_frozen_table() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.down.push("tablet-1".into());
    world.freeze("a").unwrap();
    world.lose_state();
    world.beat_all();
    world.now = 2 * SILENCE_MAX;
    world.beat_all();
    // One tablet says that it is frozen; of the other one nothing is known, so it isn't.
    assert_eq!(world.state_of("a"), Some(TableState::Deleting));
    assert!(!world.directory.is_frozen(1));
    world.pass_deletions();
    assert_eq!(world.state().tables[&1].drop_at, None);
    world.down.clear();
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

#[test]
fn a_ready_table_is_never_replaced_by_an_empty_one() {
    let mut world = World::new(1);
    world.create("a", &[]).unwrap();
    let sent = world.sent.len();
    assert_eq!(world.beat("tablet-0").unwrap().missing, [0_u64; 0]);
    world.servers.get_mut("tablet-0").unwrap().clear();
    // The server itself is told at once: it knows better whether its report was too old.
    assert_eq!(world.beat("tablet-0").unwrap().missing, [1]);
    for _ in 0..3 {
        world.beat_all();
    }
    assert_eq!(world.notes, []);
    for _ in 0..5 {
        world.beat_all();
    }
    assert_eq!(world.sent.len(), sent);
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    let notes: Vec<String> = world.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        ["tablet-0 no longer reports its tablet 1 of table a: are its data lost?"]
    );
}

/// Its locks may come back with its folder, and then ask for what became of transactions of long ago.
#[test]
fn nothing_is_collected_while_a_server_lacks_what_it_had() {
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
        world.state().gc.points().safe_point
    };
    let before = collect(&mut world);
    assert!(before > Timestamp::ZERO);
    let taken = std::mem::take(world.servers.get_mut("tablet-1").unwrap());
    assert_eq!(collect(&mut world), before);
    // A table that has lost nothing can be deleted; it waits for the safe point.
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
    assert!(collect(&mut world) > ready, "its own locks aren't needed");
    assert_eq!(world.give_up_lost("b"), Ok(2));
    world.beat_all();
    assert!(world.directory.is_frozen(2));
    world.time_deletions();
    assert!(world.state().tables[&2].drop_at.is_some());
    // Lost once more, now that it is frozen: what is made in its place has to be frozen, too.
    world.servers.get_mut("tablet-1").unwrap().clear();
    world.give_up_lost("b").unwrap();
    assert_eq!(world.state().tables[&2].drop_at, None);
    world.beat_all();
    world.beat_all();
    assert_eq!(world.servers["tablet-1"][&2].state, TabletState::Frozen);
    world.pass_deletions();
    assert_eq!(world.state().tables.len(), 0);
    world.assert_agreement("when all is deleted");
}

/// Of two tables of one name, the one that waits for what is lost is given up.
#[test]
fn giving_up_goes_for_the_table_whose_deletion_is_stuck() {
    let mut world = World::new(1);
    let first = world.create("a", &[]).unwrap();
    world.servers.get_mut("tablet-0").unwrap().clear();
    world.beat_all();
    world.freeze("a").unwrap();
    let second = world.create("a", &[]).unwrap();
    assert_eq!(world.give_up_lost("a"), Ok(first));
    assert_eq!(world.state().tables[&second].state, TableState::Ready);
    world.beat_all();
    assert!(world.directory.is_frozen(first));
}

/// The safe point follows what is resolved in every tablet, by a report that names it.
#[test]
fn the_safe_point_follows_the_tablet_that_is_resolved_least() {
    let mut world = World::new(3);
    world.create("a", &["m"]).unwrap();
    world.now = Duration::from_secs(3_600);
    world.beat_all();
    world.collect();
    let barrier = world.state().gc.points().barrier;
    let half = Timestamp::from_u64(barrier.as_u64() / 2);
    let step = |world: &mut World| {
        world.beat_all();
        world.collect();
        world.state().gc.points().safe_point
    };
    assert_eq!(step(&mut world), Timestamp::ZERO, "nobody has taken it");
    for server in ["tablet-0", "tablet-1"] {
        let points = Points {
            barrier,
            safe_point: Timestamp::ZERO,
        };
        world.points.insert(server.into(), points);
    }
    // The third has no tablet, and is not waited for.
    world.down.push("tablet-2".into());
    world.resolved.insert("tablet-1".into(), half);
    assert_eq!(step(&mut world), half);
    // A folder that is another one for a while, and shows none of its locks.
    let taken = std::mem::take(world.servers.get_mut("tablet-1").unwrap());
    world.resolved.clear();
    assert_eq!(step(&mut world), half);
    world.servers.insert("tablet-1".into(), taken);
    world.resolved.insert("tablet-1".into(), half);
    assert_eq!(step(&mut world), half, "it has begun anew");
    world.resolved.clear();
    // A table that isn't whole yet may be anywhere.
    world.down.push("tablet-0".into());
    world.create("b", &[]).unwrap();
    let owner = world.state().tablets_of(2)[0].1.owner.clone();
    if owner == "tablet-0" {
        assert_eq!(step(&mut world), half);
    }
    world.down.retain(|server| server == "tablet-2");
    world.beat_all();
    assert_eq!(step(&mut world), barrier);
    // Nobody knows more than that: the next start of the master hears it again from all.
    world.restart();
    world.now = Duration::from_secs(3_600);
    world.beat("tablet-0").unwrap();
    world.collect();
    assert_eq!(world.state().gc.points().safe_point, barrier);
}

#[test]
fn heartbeats_that_say_nothing_new_write_nothing() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.effects_left = 0;
    for _ in 0..10 {
        world.beat_all();
    }
    assert!(!world.crashed, "an effect was carried out");
}

#[test]
fn without_a_tablet_server_the_refusal_says_what_is_known() {
    let mut world = World::new(0);
    assert_eq!(
        world.create("a", &[]).unwrap_err().to_string(),
        "no tablet server is up to hold the table: none has ever sent a heartbeat"
    );
    let mut world = World::new(2);
    world.now = Duration::from_secs(10);
    assert_eq!(
        world.create("a", &[]).unwrap_err().to_string(),
        "no tablet server is up to hold the table: tablet-0 (last heard 10 s ago), \
         tablet-1 (last heard 10 s ago)"
    );
}

#[test]
fn after_a_start_tables_wait_for_known_servers() {
    let mut world = World::new(2);
    world.restart();
    world.beat("tablet-0").unwrap();
    assert_eq!(
        world.create("a", &["m"]),
        Err(Refusal::Settling { until: SILENCE_MAX })
    );
    world.beat("tablet-1").unwrap();
    assert_eq!(world.create("a", &["m"]), Ok(1));
    assert_eq!(world.servers["tablet-1"].len(), 1);

    // A server that stays away is not waited for longer than it takes to call it down.
    world.restart();
    world.now = SILENCE_MAX;
    world.beat("tablet-0").unwrap();
    assert_eq!(world.create("b", &["m"]), Ok(2));
    assert_eq!(world.servers["tablet-0"].len(), 3);
}

#[test]
fn names_and_cuts_have_rules() {
    let mut world = World::new(1);
    for name in ["", "A", "-a", ".a", "a b", "ä", &"a".repeat(65)] {
        assert_eq!(
            world.create(name, &[]).unwrap_err().to_string(),
            format!(
                "{name:?} can't be a table's name: it must be 1 to 64 of a-z, 0-9, '_', '.' and \
                 '-', starting with a letter or digit"
            )
        );
    }
    for (cuts, message) in [
        (&["a", ""][..], "cut number 2 is refused: it is empty"),
        (
            &["b", "b"],
            "cut number 2 is refused: it is not greater than the one before",
        ),
        (
            &["b", "c", "a"],
            "cut number 3 is refused: it is not greater than the one before",
        ),
        (
            &[&"x".repeat(4_097)],
            "cut number 1 is refused: it has more than 4096 bytes",
        ),
    ] {
        assert_eq!(world.create("t", cuts).unwrap_err().to_string(), message);
    }
    let cuts: Vec<String> = (0..1_024).map(|cut| format!("{cut:04}")).collect();
    let cuts: Vec<&str> = cuts.iter().map(String::as_str).collect();
    assert_eq!(
        world.create("t", &cuts).unwrap_err().to_string(),
        "1024 cuts are too many: a table may be created with at most 1023"
    );
    assert_eq!(world.rows(), Vec::<String>::new());
    let longest = "0_.-".repeat(16);
    world.create(&longest, &cuts[1..]).unwrap();
    assert_eq!(world.servers["tablet-0"].len(), 1_024);

    let long: Vec<String> = cuts.iter().map(|cut| cut.repeat(1_024)).collect();
    let long: Vec<&str> = long[1..].iter().map(String::as_str).collect();
    assert!(matches!(
        world.create("t", &long),
        Err(Refusal::DirectoryFull { .. })
    ));
    assert_eq!(world.state_of("t"), None);
}

#[test]
fn a_failure_is_forgotten_with_its_tablet() {
    let mut world = World::new(1);
    world.create("t", &[]).unwrap();
    let id = world.freeze("t").unwrap();
    // A master that knows of deleted tables by what servers say. One drops the tablet, and its answer is lost.
    world.lose_state();
    world.beat_all();
    world.now = 2 * SILENCE_MAX;
    world.beat_all();
    world.time_deletions();
    let now = world.oracle_time();
    let points = Points {
        barrier: now,
        safe_point: now,
    };
    world.points.insert("tablet-0".into(), points);
    let beat = world.heartbeat_of("tablet-0");
    world.down.push("tablet-0".into());
    world.directory.heartbeat(world.now, beat).unwrap();
    world.carry_out();
    assert_eq!(world.directory.held().failures, 1);
    world.down.clear();
    world.servers.get_mut("tablet-0").unwrap().clear();
    world
        .deleted
        .entry("tablet-0".into())
        .or_default()
        .insert(id);
    world.beat("tablet-0").unwrap();
    assert_eq!(world.directory.held().tablets, 0);
    assert_eq!(world.directory.held().failures, 0);
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
