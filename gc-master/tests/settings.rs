//! The settings of garbage collection: who says them, what wins, and what a master that has lost its state knows.

mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_gc_master::{Change, Manifest, RETENTION, Refusal, Role, StoredSettings, gc_status};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;
use world::World;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn retention(retention: Duration) -> Change {
    Change {
        retention: Some(retention),
        ..Change::default()
    }
}

fn manifest(text: &str) -> Manifest {
    Manifest::decode(text.as_bytes()).unwrap()
}

#[test]
fn what_was_set_outlives_the_master_s_state() {
    let mut world = World::new(2);
    let set = Change {
        retention: Some(DAY),
        hold_max: Some(2 * DAY),
        paused: Some(true),
    };
    world.directory.set_collection(world.now, set).unwrap();
    world.beat_all();
    let kept = world.beat("tablet-0").unwrap().settings;
    assert_eq!(kept.revision, 1);
    world.lose_state();
    let mut beat = world.heartbeat_of("tablet-0");
    beat.settings = kept.clone();
    let heard = world.directory.heartbeat(world.now, beat).unwrap();
    assert_eq!(heard.settings, kept);
    assert_eq!(world.directory.retention(), DAY);
    assert_eq!(world.directory.hold_max(), Some(2 * DAY));
    assert!(world.directory.paused());
    // Another one that was away then has older ones.
    let mut beat = world.heartbeat_of("tablet-1");
    beat.settings = StoredSettings::default();
    assert_eq!(
        world.directory.heartbeat(world.now, beat).unwrap().settings,
        kept
    );
}

#[test]
fn a_master_that_may_not_know_yet_what_was_set_sets_nothing() {
    let mut world = World::new(1);
    world.lose_state();
    world.beat("tablet-0").unwrap();
    let early = world
        .directory
        .set_collection(world.now, retention(DAY))
        .unwrap_err();
    assert!(matches!(early, Refusal::Settling { .. }), "{early}");
}

/// An oracle's timestamp, so many seconds after some day.
fn oracle(second: u64) -> Timestamp {
    Timestamp::from_millis((1_800_000_000 + second) * 1_000)
}

/// A cluster in which something was set, and a master that has lost its folder and has waited for longer than a lease.
fn rebuilt(set: Change) -> (World, StoredSettings) {
    let mut world = World::new(2);
    world.directory.set_collection(world.now, set).unwrap();
    world.beat_all();
    let kept = world.beat("tablet-0").unwrap().settings;
    world.lose_state();
    (world, kept)
}

fn beat_with(world: &mut World, server: &str, kept: &StoredSettings) {
    let mut beat = world.heartbeat_of(server);
    beat.settings = kept.clone();
    world.directory.heartbeat(world.now, beat).unwrap();
}

#[test]
fn the_barrier_stays_until_a_rebuilt_master_has_heard_what_was_set() {
    let paused = Change {
        paused: Some(true),
        ..Change::default()
    };
    for set in [retention(DAY), paused] {
        let (mut world, kept) = rebuilt(set);
        // The one that it hears was away when it was set.
        beat_with(&mut world, "tablet-1", &StoredSettings::default());
        world.now = Duration::from_secs(100);
        assert_eq!(world.directory.retention(), RETENTION);
        world.directory.collect(world.now, Ok(oracle(0)));
        let barrier = |world: &World| world.directory.state().unwrap().gc.points().barrier;
        assert_eq!(barrier(&world), Timestamp::ZERO, "{set:?}");
        beat_with(&mut world, "tablet-0", &kept);
        world.directory.collect(world.now, Ok(oracle(1)));
        let day_before = Timestamp::from_millis((1_800_000_001 - DAY.as_secs()) * 1_000);
        let to = match set.paused {
            Some(_) => Timestamp::ZERO,
            None => day_before,
        };
        assert_eq!(barrier(&world), to, "{set:?}");
    }
}

/// It knows nobody, and nobody whom it knows has told what was set.
#[test]
fn a_newcomer_is_not_everybody_for_a_rebuilt_master() {
    let (mut world, kept) = rebuilt(retention(DAY));
    world.servers.insert("tablet-9".into(), BTreeMap::new());
    // The oracle has told which cluster it is.
    let mut oracle_knows = world.heartbeat_of("tablet-9");
    oracle_knows.server = "tso-0".into();
    oracle_knows.role = Role::Oracle;
    oracle_knows.address = "tso-0:7401".into();
    world.directory.heartbeat(world.now, oracle_knows).unwrap();
    let mut newcomer = world.heartbeat_of("tablet-9");
    newcomer.cluster_id = None;
    world.directory.heartbeat(world.now, newcomer).unwrap();
    let collect = |world: &mut World, second: u64| {
        world.now = Duration::from_secs(second);
        world.directory.collect(world.now, Ok(oracle(second)));
        let gc = &world.directory.state().unwrap().gc;
        (gc.heard_all, gc.points().barrier)
    };
    assert_eq!(collect(&mut world, 100), (false, Timestamp::ZERO));
    let refused = world.directory.set_collection(world.now, retention(DAY));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("from a tablet server that was there before"));
    let status = gc_status(&world.directory, world.now).unwrap();
    let [held] = &status.obstacles[..] else {
        panic!("{:?}", status.obstacles);
    };
    assert_eq!(held.by, "server_down");
    assert!(held.what.contains("that were there before don't answer"));
    for server in ["tablet-0", "tablet-1"] {
        beat_with(&mut world, server, &kept);
    }
    let (heard_all, barrier) = collect(&mut world, 200);
    assert!(heard_all);
    let day_before = oracle(200).physical_ms() - DAY.as_secs() * 1_000;
    assert_eq!(barrier, Timestamp::from_millis(day_before));
}

#[test]
fn a_master_that_finds_its_cluster_late_waits_for_the_sessions_from_then_on() {
    // How long leases were before the retention was shortened is lost.
    for set in [Change::default(), retention(Duration::from_secs(1))] {
        let (mut world, kept) = rebuilt(set);
        world.now = Duration::from_secs(500);
        for server in ["tablet-0", "tablet-1"] {
            beat_with(&mut world, server, &kept);
        }
        let barrier = |world: &World| world.directory.state().unwrap().gc.points().barrier;
        for (later, moves) in [(2, false), (59, false), (61, true)] {
            let now = world.now + Duration::from_secs(later);
            world.directory.collect(now, Ok(oracle(later)));
            assert_eq!(
                barrier(&world) > Timestamp::ZERO,
                moves,
                "{set:?}: {later} s"
            );
        }
    }
}

#[test]
fn a_rebuilt_master_grants_no_lease_before_it_knows_the_barrier() {
    let (mut world, kept) = rebuilt(Change::default());
    let far = Points {
        barrier: oracle(9),
        safe_point: Timestamp::ZERO,
        resolved: Timestamp::ZERO,
    };
    beat_with(&mut world, "tablet-1", &kept);
    world.now = Duration::from_secs(100);
    let ask = |world: &mut World| {
        let request = v1::SessionRequest {
            session: 7,
            floor: oracle(1).as_u64(),
            ..v1::SessionRequest::default()
        };
        world.directory.session(world.now, request)
    };
    let early = ask(&mut world);
    assert!(matches!(early, Err(Refusal::Settling { .. })), "{early:?}");
    world.points.insert("tablet-0".into(), far);
    beat_with(&mut world, "tablet-0", &kept);
    let told = ask(&mut world).unwrap();
    assert_eq!(told.barrier, far.barrier.as_u64());
}

/// It has heard everybody once, and keeps that: when it starts again, a tablet server that is away holds nothing up, and
/// leases are as long as it granted them.
#[test]
fn a_rebuilt_master_that_has_heard_everybody_starts_again_as_any_other() {
    let short = Duration::from_secs(5);
    let (mut world, kept) = rebuilt(retention(short));
    for server in ["tablet-0", "tablet-1"] {
        beat_with(&mut world, server, &kept);
    }
    let collect = |world: &mut World, second: u64| {
        world.now = Duration::from_secs(second);
        world.directory.collect(world.now, Ok(oracle(second)));
        world.carry_out();
        world.directory.state().unwrap().gc.clone()
    };
    assert!(collect(&mut world, 2).heard_all);
    // Somebody knows of one more, which may know more than all of these; until it is heard.
    let mut beat = world.heartbeat_of("tablet-1");
    beat.peers.insert("tablet-9".into());
    world.directory.heartbeat(world.now, beat).unwrap();
    assert!(!collect(&mut world, 3).heard_all);
    world.servers.insert("tablet-9".into(), BTreeMap::new());
    beat_with(&mut world, "tablet-9", &kept);
    let before = collect(&mut world, 61);
    assert_eq!(before.points().barrier, oracle(56));
    assert_eq!(before.lease_ms, 60_000);
    // Nobody can have a lease of before any more.
    assert_eq!(collect(&mut world, 122).lease_ms, 5_000);
    world.restart();
    beat_with(&mut world, "tablet-1", &kept);
    let session = v1::SessionRequest {
        session: 7,
        floor: oracle(200).as_u64(),
        ..v1::SessionRequest::default()
    };
    world.now = Duration::from_secs(2);
    world.directory.session(world.now, session).unwrap();
    let started = world.directory.state().unwrap().gc.points().barrier;
    let mut barrier_at = |second: u64| {
        let time = Ok(oracle(200 + second));
        world.directory.collect(Duration::from_secs(second), time);
        world.directory.state().unwrap().gc.points().barrier
    };
    assert_eq!(barrier_at(4), started);
    assert_eq!(barrier_at(6), oracle(200));
}

/// A record of settings is newer or older as a whole.
#[test]
fn what_is_set_at_a_rebuilt_master_takes_the_place_of_nothing_that_it_has_not_heard() {
    let (mut world, kept) = rebuilt(retention(DAY));
    beat_with(&mut world, "tablet-1", &StoredSettings::default());
    world.now = Duration::from_secs(100);
    let pause = Change {
        paused: Some(true),
        ..Change::default()
    };
    world.directory.collect(world.now, Ok(oracle(0)));
    let early = world.directory.set_collection(world.now, pause);
    let early = early.unwrap_err().to_string();
    assert!(early.contains("has heard from tablet-0:"), "{early}");
    beat_with(&mut world, "tablet-0", &kept);
    world.directory.set_collection(world.now, pause).unwrap();
    assert!(world.directory.paused());
    assert_eq!(world.directory.retention(), DAY);
}

#[test]
fn what_is_set_at_a_rebuilt_master_is_newer_than_what_was_set_before() {
    let (mut world, mut kept) = rebuilt(retention(DAY));
    beat_with(&mut world, "tablet-0", &StoredSettings::default());
    beat_with(&mut world, "tablet-1", &StoredSettings::default());
    world.now = Duration::from_secs(100);
    // Of a master of before that nobody had heard since.
    kept.revision = 5;
    let set = |world: &mut World| {
        world
            .directory
            .set_collection(world.now, retention(7 * DAY))
    };
    // Without the oracle's time it can't tell.
    assert!(matches!(set(&mut world), Err(Refusal::Settling { .. })));
    world.directory.collect(world.now, Ok(oracle(0)));
    set(&mut world).unwrap();
    beat_with(&mut world, "tablet-0", &kept);
    assert_eq!(world.directory.retention(), 7 * DAY);
    set(&mut world).unwrap();
    let before = oracle(0).as_u64();
    let heard = world.beat("tablet-0").unwrap();
    assert_eq!(heard.settings.revision, before + 1);
}

#[test]
fn the_manifest_wins_and_what_it_leaves_open_may_be_set() {
    let mut world = World::new(1);
    let now = world.now;
    world.directory.set_collection(now, retention(DAY)).unwrap();
    let said = manifest(r#"{"retentionMs": 5000, "paused": false}"#);
    world.directory.take_manifest(said);
    assert_eq!(world.directory.retention(), Duration::from_secs(5));
    let refused = world.directory.set_collection(now, retention(DAY));
    assert_eq!(refused, Err(Refusal::OfManifest { field: "retention" }));
    let held = Change {
        hold_max: Some(DAY),
        ..Change::default()
    };
    world.directory.set_collection(now, held).unwrap();
    assert_eq!(world.directory.hold_max(), Some(DAY));
    // What was set counts again when the manifest leaves it open.
    world.directory.take_manifest(manifest("{}"));
    assert_eq!(world.directory.retention(), DAY);
    world
        .directory
        .take_manifest(manifest(r#"{"maxHoldMs": 0}"#));
    assert_eq!(world.directory.hold_max(), None);
}

#[test]
fn values_out_of_bounds_are_refused_whoever_says_them() {
    let mut world = World::new(1);
    for time in [Duration::from_millis(999), 367 * DAY] {
        let refused = world.directory.set_collection(world.now, retention(time));
        assert_eq!(refused, Err(Refusal::Retention { asked: time }));
        let millis = time.as_millis();
        for field in ["retentionMs", "maxHoldMs"] {
            let text = format!(r#"{{"{field}": {millis}}}"#);
            let error = Manifest::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("from 1s to 366 days"), "{error}");
        }
    }
    for text in ["", "7", r#"{"lifeTimeMs": 1000}"#] {
        assert!(Manifest::decode(text.as_bytes()).is_err(), "{text}");
    }
}

/// All of its rows would lie on those that came first; tables that are there are no worse off.
#[test]
fn the_first_table_waits_for_the_tablet_servers_that_the_manifest_has() {
    let mut world = World::new(2);
    world
        .directory
        .take_manifest(manifest(r#"{"tabletServers": 3}"#));
    let refused = world.directory.create_table(world.now, "first", &[]);
    assert_eq!(
        refused,
        Err(Refusal::UnmetTabletServers {
            met: 2,
            expected: 3
        })
    );
    world.servers.insert("tablet-2".into(), BTreeMap::new());
    world.beat_all();
    assert!(
        world
            .directory
            .create_table(world.now, "first", &[])
            .is_ok()
    );
    world
        .directory
        .take_manifest(manifest(r#"{"tabletServers": 4}"#));
    assert!(
        world
            .directory
            .create_table(world.now, "second", &[])
            .is_ok()
    );
}

#[test]
fn a_pause_counts_for_locks_that_are_being_resolved() {
    let mut world = World::new(1);
    world.create("t", &[]).unwrap();
    world.now = Duration::from_secs(100);
    let points = |world: &World| world.directory.state().unwrap().gc.points();
    let collect = |world: &mut World| {
        world.directory.collect(world.now, Ok(oracle(0)));
        let taken = points(world).barrier;
        let server = world.points.entry("tablet-0".into()).or_default();
        server.barrier = taken;
        world.beat_all();
    };
    world.beat_all();
    collect(&mut world);
    assert_eq!(points(&world).safe_point, Timestamp::ZERO);
    let pause = |paused| Change {
        paused: Some(paused),
        ..Change::default()
    };
    world
        .directory
        .set_collection(world.now, pause(true))
        .unwrap();
    collect(&mut world);
    assert_eq!(points(&world).safe_point, Timestamp::ZERO);

    world
        .directory
        .set_collection(world.now, pause(false))
        .unwrap();
    collect(&mut world);
    assert_eq!(points(&world).safe_point, points(&world).barrier);
    assert!(points(&world).safe_point > Timestamp::ZERO);
}
