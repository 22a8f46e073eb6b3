//! gc-locks: how long they hold the barrier back, and how they end.

use std::time::Duration;

use crate::world::World;
use percolator_gc_master::{Owner, Renewal, SettingsChange, gc_status};
use percolator_protocol::types::Timestamp;

/// The oracle's time, some while after the cluster began.
const NOW_MS: u64 = 10_000_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// A cluster whose master waits for no session of before its start.
fn world() -> World {
    let mut world = World::new(1);
    keep_for(&mut world, 10);
    world.now = Duration::from_secs(100);
    world
}

/// Sets the retention, in seconds; how long leases are then.
fn keep_for(world: &mut World, seconds: u64) -> Duration {
    let change = SettingsChange {
        retention: Some(Duration::from_secs(seconds)),
        ..SettingsChange::default()
    };
    world.directory.set_collection(change).unwrap();
    world.directory.lease()
}

fn renew(world: &mut World, session: u64, floor: u64, transactions: &[u64]) -> u64 {
    let renewal = Renewal {
        session,
        owner: Owner {
            application: "app".into(),
            ..Owner::default()
        },
        floor: at(floor),
        transactions: transactions.iter().map(|ms| at(*ms)).collect(),
        // Of clients that name all they can.
        unnamed: if transactions.len() > 1 { 3 } else { 0 },
    };
    let renewed = world.directory.session(world.now, renewal).unwrap();
    renewed.barrier.as_u64()
}

/// The barrier, once the master has looked at the time.
fn barrier(world: &mut World) -> Timestamp {
    world.directory.collect(world.now, Ok(at(NOW_MS)));
    world.directory.state().unwrap().gc.points().barrier
}

/// The master looks at the time once a second, for so long.
fn pass(world: &mut World, seconds: u64) {
    for _ in 0..seconds {
        world.now += Duration::from_secs(1);
        barrier(world);
    }
}

#[test]
fn a_master_that_stood_still_waits_for_those_that_could_not_renew() {
    let mut world = world();
    let old = NOW_MS - 60_000;
    renew(&mut world, 1, old, &[old]);
    barrier(&mut world);
    world.now += Duration::from_secs(1_000);
    assert_eq!(barrier(&mut world), at(old));
    let left = world.directory.transactions(world.now, 1).unwrap().oldest;
    let left = left.first().unwrap().lease;
    assert!(left > Duration::from_secs(6), "{left:?}");
    pass(&mut world, 6);
    assert_eq!(barrier(&mut world), at(old));
    pass(&mut world, 1);
    assert_eq!(barrier(&mut world), at(NOW_MS - 10_000));
}

#[test]
fn a_gc_lock_holds_the_barrier_as_long_as_its_lease() {
    let mut world = world();
    renew(&mut world, 1, NOW_MS - 60_000, &[NOW_MS - 60_000]);
    assert_eq!(barrier(&mut world), at(NOW_MS - 60_000));
    pass(&mut world, 11);
    assert_eq!(barrier(&mut world), at(NOW_MS - 10_000));
    assert_eq!(
        renew(&mut world, 1, NOW_MS - 60_000, &[]),
        at(NOW_MS - 10_000).as_u64(),
        "it hears that it came too late"
    );
}

#[test]
fn a_limit_ends_what_is_held_for_longer() {
    let mut world = world();
    renew(&mut world, 1, NOW_MS - 60_000, &[]);
    let limit = SettingsChange {
        hold_max: Some(Duration::from_secs(30)),
        ..SettingsChange::default()
    };
    world.directory.set_collection(limit).unwrap();
    assert_eq!(barrier(&mut world), at(NOW_MS - 30_000));
}

#[test]
fn holders_of_the_barrier_are_named_and_not_those_that_it_has_passed() {
    let mut world = world();
    let holders = |world: &World| {
        let status = gc_status(&world.directory, world.now).unwrap();
        let holders = status.holders.into_iter();
        let said = |it: percolator_wire::v1::GcHolder| {
            (it.session, it.transactions.len(), it.released, it.lease_ms)
        };
        holders.map(said).collect::<Vec<_>>()
    };
    let old = NOW_MS - 60_000;
    renew(&mut world, 1, old, &[old]);
    barrier(&mut world);
    pass(&mut world, 4);
    assert_eq!(holders(&world), [(1, 1, false, 6_000)]);
    world.directory.release(world.now, at(old)).unwrap();
    assert_eq!(holders(&world), [(1, 0, true, 6_000)]);
    // It holds what lies right above, until its client is heard.
    assert_eq!(barrier(&mut world), at(old).next());
    assert_eq!(holders(&world), [(1, 0, true, 6_000)]);
    let limit = SettingsChange {
        hold_max: Some(Duration::from_secs(30)),
        ..SettingsChange::default()
    };
    world.directory.set_collection(limit).unwrap();
    assert_eq!(barrier(&mut world), at(NOW_MS - 30_000));
    assert_eq!(holders(&world), []);
}

#[test]
fn a_gc_lock_that_is_ended_by_hand_stays_ended_and_others_stay() {
    let mut world = world();
    let (old, young) = (NOW_MS - 60_000, NOW_MS - 40_000);
    renew(&mut world, 1, old, &[old, young]);
    renew(&mut world, 2, young, &[young]);
    let named = |world: &World| {
        let named = world.directory.transactions(world.now, 10).unwrap().oldest;
        named
            .iter()
            .map(|one| (one.session, one.start_ts.physical_ms()))
            .collect::<Vec<_>>()
    };
    assert_eq!(named(&world), [(1, old), (1, young), (2, young)]);
    let listed = world.directory.transactions(world.now, 2).unwrap();
    assert!(listed.more);
    assert!(
        listed
            .oldest
            .iter()
            .all(|one| one.lease == Duration::from_secs(10)),
        "{listed:?}"
    );
    assert_eq!(listed.unnamed, 3, "the first one has more than it names");
    let ended = world.directory.release(world.now, at(old)).unwrap();
    assert_eq!(ended.len(), 1);
    // Its client doesn't know yet.
    renew(&mut world, 1, old, &[old, young]);
    assert_eq!(named(&world), [(1, young), (2, young)]);
    // Right above it, something may be held that isn't named.
    assert_eq!(barrier(&mut world), at(old).next());
    // The client has heard, and holds what is left.
    renew(&mut world, 1, young, &[young]);
    assert_eq!(barrier(&mut world), at(young));
    let ended = world.directory.release(world.now, at(young)).unwrap();
    assert_eq!(ended.len(), 2);
    let again = world.directory.release(world.now, at(old)).unwrap();
    assert_eq!(again.len(), 0);
}

#[test]
fn a_master_that_starts_knows_which_gc_locks_were_ended_by_hand() {
    let mut world = world();
    let old = NOW_MS - 60_000;
    renew(&mut world, 1, old, &[old]);
    let ended = world.directory.release(world.now, at(old)).unwrap();
    assert_eq!(ended.len(), 1);
    world.carry_out();
    world.restart();
    world.now = Duration::from_secs(1);
    // Its client doesn't know yet, and comes back with it.
    renew(&mut world, 1, old, &[old]);
    assert_eq!(
        world.directory.transactions(world.now, 10).unwrap().oldest,
        []
    );
    world.now = Duration::from_secs(100);
    renew(&mut world, 1, old, &[old]);
    assert_eq!(barrier(&mut world), at(old).next());
    world.carry_out();
    let gc = &world.directory.state().unwrap().gc;
    assert!(gc.released.is_empty(), "the barrier has passed it: {gc:?}");
}

#[test]
fn a_lease_of_before_the_retention_was_shortened_is_waited_for_by_a_master_that_starts() {
    let mut world = World::new(1);
    world.now = Duration::from_secs(100);
    let renewal = Renewal {
        session: 1,
        floor: at(NOW_MS - 5_000),
        ..Renewal::default()
    };
    // For a minute, as versions are kept for longer.
    let told = world.directory.session(world.now, renewal).unwrap();
    assert_eq!(told.lease, Duration::from_secs(60));
    keep_for(&mut world, 1);
    world.carry_out();
    world.restart();
    world.now = Duration::from_secs(30);
    assert!(barrier(&mut world) <= at(NOW_MS - 5_000));
    world.now = Duration::from_secs(62);
    assert_eq!(barrier(&mut world), at(NOW_MS - 1_000));
    // A while later there is none of them any more.
    world.now += Duration::from_secs(61);
    barrier(&mut world);
    world.carry_out();
    world.restart();
    world.now = Duration::from_secs(3);
    let later = at(NOW_MS + 5_000);
    world.directory.collect(world.now, Ok(later));
    let moved = world.directory.state().unwrap().gc.points().barrier;
    assert_eq!(moved, at(NOW_MS + 4_000));
}

/// A cluster whose retention is long, and was shortened after a lease of a minute was granted.
fn shortened() -> World {
    let mut world = World::new(1);
    world.now = Duration::from_secs(100);
    renew(&mut world, 1, NOW_MS - 5_000, &[]);
    assert_eq!(keep_for(&mut world, 1), Duration::from_secs(1));
    barrier(&mut world);
    world
}

/// Whether a master that starts now waits so many seconds for leases of before.
fn waits(mut world: World, seconds: u64) -> bool {
    world.carry_out();
    world.restart();
    world.now = Duration::from_secs(seconds);
    barrier(&mut world) <= at(NOW_MS - 5_000)
}

#[test]
fn longer_leases_are_forgotten_when_the_last_of_them_has_ended() {
    for (after, seconds, expected) in [(2, 30, true), (59, 30, true), (61, 30, false)] {
        let mut world = shortened();
        world.now += Duration::from_secs(after);
        barrier(&mut world);
        assert_eq!(waits(world, seconds), expected, "{after} s later");
    }
}

#[test]
fn a_longer_lease_that_was_granted_after_the_first_shortening_is_waited_for() {
    let mut world = shortened();
    // Longer and short again, and nobody has collected meanwhile.
    world.now += Duration::from_secs(50);
    assert_eq!(keep_for(&mut world, 600), Duration::from_secs(60));
    renew(&mut world, 1, NOW_MS - 5_000, &[]);
    keep_for(&mut world, 1);
    world.now += Duration::from_secs(11);
    barrier(&mut world);
    assert!(waits(world, 30));
}
