//! The settings of garbage collection: who says them, what wins, and what a master that has lost its state knows.

use std::time::Duration;

use crate::world::World;
use percolator_gc_master::{Manifest, Refusal, SettingsChange};
use percolator_protocol::types::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn retention(retention: Duration) -> SettingsChange {
    SettingsChange {
        retention: Some(retention),
        ..SettingsChange::default()
    }
}

fn manifest(text: &str) -> Manifest {
    Manifest::decode(text.as_bytes()).unwrap()
}

#[test]
fn what_was_set_outlives_the_master_s_state() {
    let mut world = World::new(2);
    let set = SettingsChange {
        retention: Some(DAY),
        hold_max: Some(2 * DAY),
        paused: Some(true),
    };
    world.directory.set_collection(set).unwrap();
    world.beat_all();
    let kept = world.beat("tablet-0").unwrap().settings;
    assert_eq!(kept.revision, 1);
    world.lose_state();
    // The other one was away when it was set.
    world.report_all();
    let mut beat = world.heartbeat_of("tablet-0");
    beat.settings = kept.clone();
    world.directory.heartbeat(world.now, beat).unwrap_err();
    let rebuilt = world.rebuild(true);
    assert!(rebuilt.written);
    assert_eq!(rebuilt.settings, kept);
    assert_eq!(world.directory.retention(), DAY);
    assert_eq!(world.directory.hold_max(), Some(2 * DAY));
    assert!(world.directory.paused());
    assert_eq!(world.beat("tablet-1").unwrap().settings, kept);
}

/// An oracle's timestamp, so many seconds after some day.
fn oracle(second: u64) -> Timestamp {
    Timestamp::from_millis((1_800_000_000 + second) * 1_000)
}

/// How long leases were before the retention was shortened is lost.
#[test]
fn a_rebuilt_state_waits_for_the_sessions_of_before() {
    let mut world = World::new(2);
    let short = retention(Duration::from_secs(1));
    world.directory.set_collection(short).unwrap();
    world.lose_state();
    world.now = Duration::from_secs(500);
    world.report_all();
    assert!(world.rebuild(true).written);
    world.beat_all();
    let barrier = |world: &World| world.state().gc.points().barrier;
    for (later, moves) in [(2, false), (59, false), (61, true)] {
        let now = world.now + Duration::from_secs(later);
        world.directory.collect(now, Ok(oracle(later)));
        assert_eq!(barrier(&world) > Timestamp::ZERO, moves, "{later} s");
    }
}

#[test]
fn the_manifest_wins_and_what_it_leaves_open_may_be_set() {
    let mut world = World::new(1);
    world.directory.set_collection(retention(DAY)).unwrap();
    let said = manifest(r#"{"retentionMs": 5000, "paused": false}"#);
    world.directory.take_manifest(said);
    assert_eq!(world.directory.retention(), Duration::from_secs(5));
    let refused = world.directory.set_collection(retention(DAY));
    assert_eq!(refused, Err(Refusal::OfManifest { field: "retention" }));
    let held = SettingsChange {
        hold_max: Some(DAY),
        ..SettingsChange::default()
    };
    world.directory.set_collection(held).unwrap();
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
        let refused = world.directory.set_collection(retention(time));
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
    world.servers.insert("tablet-2".into(), Default::default());
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
    let pause = |paused| SettingsChange {
        paused: Some(paused),
        ..SettingsChange::default()
    };
    world.directory.set_collection(pause(true)).unwrap();
    collect(&mut world);
    assert_eq!(points(&world).safe_point, Timestamp::ZERO);

    world.directory.set_collection(pause(false)).unwrap();
    collect(&mut world);
    assert_eq!(points(&world).safe_point, points(&world).barrier);
    assert!(points(&world).safe_point > Timestamp::ZERO);
}
