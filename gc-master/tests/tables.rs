//! Creating and deleting tables, with crashes of the master at every step.

mod world;

use std::time::Duration;

use percolator_gc_master::{Deletion, Progress, Refusal, SILENCE_MAX, TableState};
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
    world.delete("a").unwrap();
    world.create("a", &["m"]).unwrap();
    let late = Deletion {
        table: Some(first),
        ..Deletion::of("a")
    };
    let refused = world.directory.delete_table(world.now, &late).unwrap_err();
    assert!(matches!(refused, Refusal::NoSuchTable { .. }), "{refused}");
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
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
    assert_eq!(
        world.create("accounts", &["m"]),
        Err(Refusal::BeingDeleted {
            name: "accounts".into()
        })
    );
    assert_eq!(world.delete("accounts"), Ok(1));
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-0 (up); the last order to tablet-0 failed: it is down"
    );
    world.down.clear();
    world.beat_all();
    assert!(world.directory.is_frozen(1));
    // It is frozen, and stays until somebody says that it was swept.
    world.down.push("tablet-1".into());
    assert_eq!(world.drop_swept("accounts", 1), Ok(1));
    assert_eq!(world.state_of("accounts"), Some(TableState::Deleting));
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-1 (up); the last order to tablet-1 failed: it is down"
    );
    world.down.clear();
    world.beat_all();
    assert_eq!(world.state_of("accounts"), None);
    assert_eq!(
        world.delete("accounts"),
        Err(Refusal::NoSuchTable {
            name: "accounts".into()
        })
    );
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
        let state = world.state_of("accounts");
        if crashed && is_begun {
            // Frozen or gone, by what it has come to; the same again ends it.
            assert_ne!(state, Some(TableState::Ready), "step {step}");
            if state.is_some() {
                assert!(world.directory.is_frozen(1), "step {step}");
                world.delete("accounts").unwrap();
            }
            assert_eq!(world.state_of("accounts"), None, "step {step}");
            world.assert_agreement(&format!("step {step}, again"));
        } else {
            let expected = (!is_begun).then_some(TableState::Ready);
            assert_eq!(state, expected, "step {step}");
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
fn a_table_is_dropped_when_it_is_frozen_and_was_swept_and_not_before() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    let not_frozen = Err(Refusal::NotFrozen { name: "a".into() });
    assert_eq!(world.drop_swept("a", 1), not_frozen);
    assert_eq!(world.state_of("a"), Some(TableState::Ready));

    let frozen_count = |world: &World| {
        let tablets = world.servers.values().flat_map(|tablets| tablets.values());
        tablets
            .filter(|tablet| tablet.state == TabletState::Frozen)
            .count()
    };
    world.down.push("tablet-1".into());
    world.freeze("a").unwrap();
    assert_eq!(frozen_count(&world), 1);
    assert_eq!(world.drop_swept("a", 1), not_frozen);
    world.down.clear();
    // A report from before the order to freeze changes nothing.
    let mut late = world.heartbeat_of("tablet-0");
    late.tablets[0].state = TabletState::Serving;
    world.directory.heartbeat(world.now, late).unwrap();
    world.carry_out();
    world.beat_all();
    assert_eq!(frozen_count(&world), 2);
    assert!(world.directory.is_frozen(1));

    // The master's next start knows; and nothing is dropped by itself.
    world.restart();
    for _ in 0..5 {
        world.beat_all();
    }
    assert!(world.directory.is_frozen(1));
    assert_eq!(world.rows().len(), 2);
    // Another table of the same name is not the one that was swept.
    let other = Err(Refusal::NoSuchTable { name: "a".into() });
    assert_eq!(world.drop_swept("a", 2), other);
    // It doesn't know what servers have lost and found while that was done.
    assert_eq!(world.drop_swept("a", 1), Ok(1));
    assert_eq!(world.state_of("a"), Some(TableState::Deleting));
    assert_eq!(world.drop_swept("a", 1), Ok(1));
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
    world.now = 2 * SILENCE_MAX;
    world.beat_all();
    let unheard = Err(Refusal::Unheard {
        name: "a".into(),
        servers: ["tablet-1".into()].into(),
    });
    assert_eq!(world.drop_swept("a", 1), unheard);
    assert_eq!(world.freeze("a"), unheard);
    world.down.clear();
    world.beat_all();
    assert_eq!(world.freeze("a"), Ok(1));
    assert!(world.directory.is_frozen(1));
    assert_eq!(world.delete("a"), Ok(1));
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
    assert_eq!(world.delete("a"), Ok(1));
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
fn nothing_is_collected_or_deleted_while_a_server_lacks_what_it_had() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.create("b", &[]).unwrap();
    assert!(world.servers["tablet-1"].contains_key(&2));
    let mut second = 3_600;
    let mut collect = |world: &mut World| {
        for _ in 0..2 {
            second += 100;
            world.now = Duration::from_secs(second);
            let now = Timestamp::from_millis((1_800_000_000 + second) * 1_000);
            world.beat_all();
            if let Some(sweep) = world.directory.collect(world.now, Progress::Time(now)) {
                world
                    .directory
                    .collect(world.now, Progress::Resolved(sweep));
            }
            world.carry_out();
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
    let refused = world.freeze("a").unwrap_err().to_string();
    assert!(
        refused.contains("while tablet-1 lacks tablets"),
        "{refused}"
    );
    assert!(refused.ends_with("--give-up-lost` of b"), "{refused}");
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    // They come back.
    world.servers.insert("tablet-1".into(), taken);
    let ready = collect(&mut world);
    assert!(ready > before);
    // They are lost for good.
    world.servers.get_mut("tablet-1").unwrap().clear();
    assert_eq!(collect(&mut world), ready);
    world.freeze("b").unwrap();
    world.beat_all();
    assert!(!world.directory.is_frozen(2), "nothing takes their place");
    assert!(collect(&mut world) > ready);
    // One that has lost nothing isn't deleted by that.
    world.create("c", &[]).unwrap();
    world.servers.get_mut("tablet-0").unwrap().clear();
    world.beat_all();
    let refused = world.give_up_lost("b").unwrap_err().to_string();
    assert!(refused.contains("while tablet-0 lacks"), "{refused}");
    assert!(!world.state().tables[&2].given_up);
    for table in ["a", "c", "b"] {
        world.give_up_lost(table).unwrap();
    }
    world.beat_all();
    assert!(world.directory.is_frozen(2));
    // Lost once more, now that it is frozen.
    world.servers.get_mut("tablet-1").unwrap().clear();
    world.beat_all();
    assert_eq!(world.servers["tablet-1"][&2].state, TabletState::Frozen);
    for (table, id) in [("b", 2), ("a", 1), ("c", 3)] {
        assert_eq!(world.delete(table), Ok(id));
    }
    assert_eq!(world.state().tables.len(), 0);
    world.assert_agreement("when all is deleted");
}

/// What it had with its own folder, it has not shown to anyone who looked for locks.
#[test]
fn a_sweep_during_which_a_server_had_another_folder_counts_for_nothing() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.create("b", &[]).unwrap();
    let swap = |world: &mut World| {
        let taken = std::mem::take(world.servers.get_mut("tablet-1").unwrap());
        world.beat_all();
        world.servers.insert("tablet-1".into(), taken);
        world.beat_all();
    };
    world.now = Duration::from_secs(3_600);
    let now = Timestamp::from_millis(1_800_000_000_000);
    let barrier = |world: &mut World| {
        world.beat_all();
        let swept = world.directory.collect(world.now, Progress::Time(now));
        world.carry_out();
        let points = world.state().gc.points();
        for server in ["tablet-0", "tablet-1"] {
            world.points.insert(server.into(), points);
        }
        world.beat_all();
        swept
    };
    assert_eq!(barrier(&mut world), None, "nobody has taken it");
    for (swaps, moves) in [(true, false), (false, true)] {
        let sweep = barrier(&mut world).expect("there is more to collect");
        if swaps {
            swap(&mut world);
        }
        let resolved = Progress::Resolved(sweep);
        world.directory.collect(world.now, resolved);
        let ready = world.state().gc.points().safe_point;
        assert_eq!(ready > Timestamp::ZERO, moves);
    }
    world.freeze("a").unwrap();
    swap(&mut world);
    assert_eq!(world.drop_swept("a", 1), Ok(1));
    assert!(!world.state().tables[&1].swept);
    assert_eq!(world.drop_swept("a", 1), Ok(1));
    assert_eq!(world.state_of("a"), None);
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
    world.freeze("t").unwrap();
    world.down.push("tablet-0".into());
    world.drop_swept("t", id).unwrap();
    world.beat_all();
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
    let id = world.freeze("t").unwrap();
    let mut late = world.heartbeat_of("tablet-0");
    // Both know that it was swept, and only one has dropped its tablet: so the table is still there.
    world.down.push("tablet-1".into());
    world.drop_swept("t", id).unwrap();
    for report in world.servers.get_mut("tablet-1").unwrap().values_mut() {
        report.state = TabletState::Swept;
    }
    world.beat("tablet-1").unwrap();
    world.beat("tablet-0").unwrap();
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
