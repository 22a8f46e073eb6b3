//! Servers that are uneven, and tablets that have become too large or small: what the master does by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::{CUTS, World, balancing, counts, settle};
use percolator_gc_master::{
    Action, Amount, Arrival, HEARTBEAT_INTERVAL, Heartbeat, Manifest, Moving, Settings,
};

#[test]
fn tablets_go_to_a_server_that_is_new_and_stay_then() {
    let mut world = balancing(1);
    world.create("accounts", &CUTS).unwrap();
    world.servers.insert("tablet-1".into(), BTreeMap::new());
    world.servers.insert("tablet-2".into(), BTreeMap::new());
    assert_eq!(settle(&mut world, Duration::from_secs(60)), 4);
    assert_eq!(counts(&world).into_values().collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(settle(&mut world, Duration::from_secs(60)), 0);
    world.assert_agreement("balanced");
}

#[test]
fn sizes_count_and_the_manifest_can_turn_it_off() {
    let mut world = balancing(2);
    world.create("accounts", &CUTS).unwrap();
    world.weighs("tablet-0", [1, 3, 5].map(|id| (id, 100 << 20)));
    let off = Manifest {
        balance: Some(false),
        ..Manifest::default()
    };
    world.directory.take_manifest(off);
    assert_eq!(settle(&mut world, Duration::from_secs(10)), 0);
    assert_eq!(world.beat("tablet-0").unwrap().split_bytes, 0);
    world.directory.take_manifest(Manifest::default());
    world.beat_all();
    world.beat_all();
    let asked = world
        .sent
        .iter()
        .filter(|it| matches!(it.action, Action::Import { .. }));
    let asked: Vec<_> = asked.map(|it| &*it.server).collect();
    assert_eq!(asked, ["tablet-1"]);
}

#[test]
fn what_is_used_much_is_split_and_spread() {
    let mut world = balancing(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    assert!(world.beat("tablet-0").unwrap().split_load > 0);
    let owner = |world: &World, tablet: u64| {
        let mut servers = world.servers.iter();
        let owner = servers.find(|(_, tablets)| tablets.contains_key(&tablet));
        owner.unwrap().0.clone()
    };
    let load = |tablet, amount, split_at: Option<&'static str>| {
        vec![Amount {
            tablet,
            amount,
            split_at: split_at.map(Into::into),
        }]
    };
    // All load is that of one tablet: only half of it can go elsewhere.
    let first = owner(&world, 1);
    world
        .loads
        .insert(first.clone(), load(1, 50_000, Some("f")));
    while world.rows().len() < 3 {
        world.beat_all();
        assert!(world.now < Duration::from_secs(60), "{:?}", world.rows());
    }
    let halves = [1, 3].map(|id| load(id, 25_000, None)).concat();
    world.loads.insert(first.clone(), halves);
    let moves = settle(&mut world, Duration::from_secs(6));
    assert_eq!(moves, 1, "{:?}", world.rows());
    assert_ne!(owner(&world, 1), owner(&world, 3));
    // Its new owner doesn't know yet how much it is used: the master remembers, and nothing goes back.
    let stays = if owner(&world, 1) == first { 1 } else { 3 };
    world.loads.insert(first, load(stays, 25_000, None));
    assert_eq!(settle(&mut world, Duration::from_secs(15)), 0);
    world.assert_agreement("spread");
    // A manifest that says so lets no load count.
    let without = Manifest {
        split_load: Some(0),
        ..Manifest::default()
    };
    world.directory.take_manifest(without);
    assert_eq!(world.beat("tablet-0").unwrap().split_load, 0);
}

#[test]
fn a_tablet_that_is_too_large_is_split_where_its_server_says() {
    let mut world = balancing(1);
    world.create("accounts", &["m"]).unwrap();
    assert!(world.beat("tablet-0").unwrap().split_bytes > 0);
    let large = |split_at: &'static str| {
        vec![Amount {
            tablet: 1,
            amount: 300 << 20,
            split_at: Some(split_at.into()),
        }]
    };
    // Rows that aren't its own are no reason to split.
    world.sizes.insert("tablet-0".into(), large("x"));
    settle(&mut world, Duration::from_secs(3));
    assert_eq!(world.rows().len(), 2);
    world.sizes.insert("tablet-0".into(), large("f"));
    settle(&mut world, Duration::from_secs(30));
    assert_eq!(
        world.rows(),
        [
            "accounts ready 1@2 [..f) tablet-0",
            "accounts ready 3@2 [f..m) tablet-0",
            "accounts ready 2@1 [m..) tablet-0",
        ]
    );
}

#[test]
fn a_tablet_that_a_person_moves_is_not_split_meanwhile() {
    let mut world = balancing(2);
    world.create("accounts", &["m"]).unwrap();
    let sizes = vec![Amount {
        tablet: 1,
        amount: 300 << 20,
        split_at: Some("f".into()),
    }];
    Moving::new(1, "tablet-1")
        .go_on(&mut world.directory, world.now)
        .unwrap();
    world.carry_out();
    // Also when the server that gets it has not said so yet, and when it takes long.
    world.sizes.insert("tablet-0".into(), sizes);
    let arrival = |failure: &str| Arrival {
        tablet: 1,
        epoch: 1,
        failure: Some(failure.to_owned()).filter(|why| !why.is_empty()),
        from: "tablet-0".into(),
        ..Arrival::default()
    };
    let go_on = |world: &mut World, arriving: Vec<Arrival>| {
        for _ in 0..60 {
            world.beat("tablet-0").unwrap();
            let beat = Heartbeat {
                arriving: arriving.clone(),
                ..world.heartbeat_of("tablet-1")
            };
            world.directory.heartbeat(world.now, beat).unwrap();
            world.carry_out();
            world.now += HEARTBEAT_INTERVAL;
            if arriving.is_empty() {
                break;
            }
        }
        let mut sent = world.sent.iter();
        sent.any(|it| matches!(it.action, Action::Split { .. }))
    };
    assert!(!go_on(&mut world, Vec::new()));
    assert!(!go_on(&mut world, vec![arrival("")]));
    assert!(go_on(&mut world, vec![arrival("it stays")]));
}

#[test]
fn neighbours_that_are_small_for_long_become_one() {
    let settings = Settings {
        merge_after: Duration::from_secs(60),
        ..Settings::default()
    };
    let mut world = World::with(settings, 2);
    world.create("accounts", &CUTS).unwrap();
    // Of six tablets two are large, and one of the others is used for a while.
    let say = |world: &mut World, used: u64| {
        for (server, tablets) in world.servers.clone() {
            let size = |id: &u64| Amount {
                tablet: *id,
                amount: if [3, 6].contains(id) {
                    200 << 20
                } else {
                    1 << 20
                },
                split_at: None,
            };
            let load = |id: &u64| Amount {
                tablet: *id,
                amount: 200,
                split_at: None,
            };
            let sizes = tablets.keys().map(size).collect();
            world.sizes.insert(server.clone(), sizes);
            let loads = tablets.keys().filter(|id| **id == used).map(load).collect();
            world.loads.insert(server, loads);
        }
    };
    let wait = |world: &mut World, seconds: u64, used: u64| {
        for _ in 0..seconds {
            say(world, used);
            settle(world, Duration::from_secs(1));
        }
    };
    wait(&mut world, 50, 5);
    assert_eq!(world.rows().len(), 6, "{:?}", world.rows());
    // Long enough for tablets that were moved for balance before.
    wait(&mut world, 2_000, 5);
    // 1 and 2, which were at two servers; not 4 and 5, of which one is used.
    let rows = world.rows();
    assert_eq!(rows.len(), 5, "{rows:?}");
    assert!(rows[0].contains("[..f)"), "{rows:?}");
    world.assert_agreement("merged");
    wait(&mut world, 2_000, 0);
    let rows = world.rows();
    assert_eq!(rows.len(), 4, "{rows:?}");
    world.assert_agreement("merged again");
}
