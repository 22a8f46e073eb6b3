//! Creating tables, with crashes of the master at every step, and what keeps the safe point back.

use std::time::Duration;

use crate::world::World;
use percolator_gc_master::{HEARTBEAT_TIMEOUT, Refusal, TableState};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

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
fn a_create_goes_on_when_its_server_comes_back() {
    let mut world = World::new(2);
    world.down.push("tablet-1".into());
    assert_eq!(world.create("accounts", &["m"]), Ok(1));
    assert_eq!(world.state_of("accounts"), Some(TableState::Creating));
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-1 (up); the last command to tablet-1 failed: it is down",
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
        "tablet-1 (last heartbeat 61 s ago); the last command to tablet-1 failed: it is down"
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

/// A cluster with a table on its first two servers, and its barrier.
fn with_a_barrier(servers: usize) -> (World, Timestamp) {
    let mut world = World::new(servers);
    world.create("a", &["m"]).unwrap();
    world.now = Duration::from_secs(3_600);
    world.beat_all();
    world.collect();
    let barrier = world.state().gc.points().barrier;
    (world, barrier)
}

/// The first two servers have taken the barrier.
fn two_have_taken(world: &mut World, barrier: Timestamp) {
    for server in ["tablet-0", "tablet-1"] {
        let points = Points {
            barrier,
            safe_point: Timestamp::ZERO,
            resolved: Timestamp::ZERO,
        };
        world.points.insert(server.into(), points);
    }
}

/// A lock that can't be resolved, or a server that is down with what it has reported: the safe point waits for a minute, and
/// goes on without it.
#[test]
fn the_safe_point_waits_a_minute_for_what_is_not_resolved() {
    for is_down in [false, true] {
        let (mut world, barrier) = with_a_barrier(2);
        let half = Timestamp::from_u64(barrier.as_u64() / 2);
        two_have_taken(&mut world, barrier);
        world.resolved.insert("tablet-1".into(), half);
        world.beat_all();
        world.collect();
        assert_eq!(world.state().gc.points().resolved, half);
        if is_down {
            world.down.push("tablet-1".into());
        }
        let reached = world.now;
        // From the first step in which resolved has not moved.
        world.beat_all();
        world.collect();
        while world.state().gc.points().safe_point == half {
            world.beat_all();
            world.collect();
            let waited = world.now - reached;
            assert!(waited < Duration::from_secs(70), "{is_down}: {waited:?}");
        }
        let waited = world.now - reached;
        assert!(waited > Duration::from_secs(50), "{is_down}: {waited:?}");
        let points = world.state().gc.points();
        assert_eq!((points.safe_point, points.resolved), (points.barrier, half));
    }
}

/// The safe point follows what is resolved in every tablet, by a report that names it.
#[test]
fn the_safe_point_follows_the_tablet_that_is_resolved_least() {
    let (mut world, barrier) = with_a_barrier(3);
    let half = Timestamp::from_u64(barrier.as_u64() / 2);
    let step = |world: &mut World| {
        world.beat_all();
        world.collect();
        world.state().gc.points().safe_point
    };
    assert_eq!(step(&mut world), Timestamp::ZERO, "nobody has taken it");
    two_have_taken(&mut world, barrier);
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
    let owner = world.directory.tablets().of_table(2).next().unwrap();
    let owner = owner.1.owner.clone();
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
fn heartbeats_without_news_write_nothing() {
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
        "no tablet server is up to hold the table: tablet-0 (last heartbeat 10 s ago), \
         tablet-1 (last heartbeat 10 s ago)"
    );
}

#[test]
fn after_a_start_tables_wait_for_known_servers() {
    let mut world = World::new(2);
    world.restart();
    world.beat("tablet-0").unwrap();
    assert_eq!(
        world.create("a", &["m"]),
        Err(Refusal::Settling {
            until: HEARTBEAT_TIMEOUT
        })
    );
    world.beat("tablet-1").unwrap();
    assert_eq!(world.create("a", &["m"]), Ok(1));
    assert_eq!(world.servers["tablet-1"].len(), 1);

    // A server that stays away is not waited for longer than it takes to call it down.
    world.restart();
    world.now = HEARTBEAT_TIMEOUT;
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
        (
            &["a", ""][..],
            "row 2 to split at is refused: it is empty, and a tablet begins there anyway",
        ),
        (
            &["b", "b"],
            "row 2 to split at is refused: it is not greater than the one before",
        ),
        (
            &["b", "c", "a"],
            "row 3 to split at is refused: it is not greater than the one before",
        ),
        (
            &[&"x".repeat(4_097)],
            "row 1 to split at is refused: it has more than 4096 bytes",
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

    // Tables that nobody has made yet, with cuts that can't be compressed.
    world.down.push("tablet-0".into());
    let mut random = 7_u64;
    let mut long_cut = |cut: &&str| {
        let words = (0..255).map(|_| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            format!("{random:016x}")
        });
        format!("{cut}{}", words.collect::<String>())
    };
    let refused = (0..16).find_map(|table| {
        let long: Vec<String> = cuts[1..].iter().map(&mut long_cut).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        world.create(&format!("t{table}"), &long).err()
    });
    assert!(
        matches!(refused, Some(Refusal::DirectoryFull { .. })),
        "{refused:?}"
    );
    assert_eq!(world.state_of("t"), None);
}

#[test]
fn a_failure_is_forgotten_with_its_tablet() {
    let mut world = World::new(1);
    world.create("t", &[]).unwrap();
    let id = world.freeze("t").unwrap();
    // A rebuilt state. The tablet is dropped, and the answer is lost.
    world.lose_state_and_rebuild();
    world.time_deletions();
    let now = world.oracle_time();
    let points = Points {
        barrier: now,
        safe_point: now,
        resolved: now,
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

/// A register takes less than a file.
#[test]
fn a_table_must_fit_into_the_register_of_the_state() {
    let mut world = World::new(1);
    world.create("first", &[]).unwrap();
    let bytes = world.directory.state().unwrap().encode().len();
    world.directory.limit_state(bytes);
    let refused = world.create("second", &["g", "m", "s"]).unwrap_err();
    let Refusal::DirectoryFull { bytes_max, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(bytes_max, bytes);
    world.directory.limit_state(bytes * 10);
    world.create("second", &["g", "m", "s"]).unwrap();
    world.assert_agreement("after a table for which there is room");
}
