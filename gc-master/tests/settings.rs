//! The settings of garbage collection: who says them, what wins, and what a master that has lost its state knows.

mod world;

use std::time::Duration;

use percolator_gc_master::{Change, Kept, Manifest, Refusal};
use world::World;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn life_time(life_time: Duration) -> Change {
    Change {
        life_time: Some(life_time),
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
        life_time: Some(DAY),
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
    assert_eq!(world.directory.life_time(), DAY);
    assert_eq!(world.directory.hold_max(), Some(2 * DAY));
    assert!(world.directory.paused());
    // Another one that was away then has older ones.
    let mut beat = world.heartbeat_of("tablet-1");
    beat.settings = Kept::default();
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
        .set_collection(world.now, life_time(DAY))
        .unwrap_err();
    assert!(matches!(early, Refusal::Settling { .. }), "{early}");
}

#[test]
fn the_manifest_wins_and_what_it_leaves_open_may_be_set() {
    let mut world = World::new(1);
    let now = world.now;
    world.directory.set_collection(now, life_time(DAY)).unwrap();
    let said = manifest(r#"{"lifeTimeMs": 5000, "paused": false}"#);
    world.directory.take_manifest(said);
    assert_eq!(world.directory.life_time(), Duration::from_secs(5));
    let refused = world.directory.set_collection(now, life_time(DAY));
    assert_eq!(refused, Err(Refusal::OfManifest { field: "lifeTime" }));
    let held = Change {
        hold_max: Some(DAY),
        ..Change::default()
    };
    world.directory.set_collection(now, held).unwrap();
    assert_eq!(world.directory.hold_max(), Some(DAY));
    // What was set counts again when the manifest leaves it open.
    world.directory.take_manifest(manifest("{}"));
    assert_eq!(world.directory.life_time(), DAY);
    world
        .directory
        .take_manifest(manifest(r#"{"maxHoldMs": 0}"#));
    assert_eq!(world.directory.hold_max(), None);
}

#[test]
fn values_out_of_bounds_are_refused_whoever_says_them() {
    let mut world = World::new(1);
    for time in [Duration::from_millis(999), 367 * DAY] {
        let refused = world.directory.set_collection(world.now, life_time(time));
        assert_eq!(refused, Err(Refusal::LifeTime { asked: time }));
        let millis = time.as_millis();
        for field in ["lifeTimeMs", "maxHoldMs"] {
            let text = format!(r#"{{"{field}": {millis}}}"#);
            let error = Manifest::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("from 1 s to"), "{error}");
        }
    }
    for text in ["", "7", r#"{"lifetime": 1000}"#] {
        assert!(Manifest::decode(text.as_bytes()).is_err(), "{text}");
    }
}
