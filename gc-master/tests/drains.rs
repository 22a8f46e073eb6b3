//! Servers that are drained, and servers that stop: their tablets go to others before.

use crate::world;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::world::{CUTS, World, balancing, copy, counts, left, settle};
use percolator_gc_master::{
    Action, Arrival, Deletion, Departed, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, Heartbeat,
    HeartbeatReply, Moving, Refusal,
};

/// Lets the server know that it was told to end, and says whether it may.
fn may_stop(world: &mut World, server: &str) -> bool {
    world.stopping.insert(server.to_owned());
    world.beat(server).unwrap().may_stop
}

#[test]
fn a_server_that_is_drained_has_no_tablets_and_gets_none() {
    let mut world = World::new(3);
    world.create("accounts", &CUTS).unwrap();
    world.beat_all();
    assert_eq!(left(&world, "tablet-0").tablets, 2);
    for _ in 0..2 {
        world.drain("tablet-0", true).unwrap();
    }
    assert!(left(&world, "tablet-0").draining);
    // Also one that is made meanwhile goes elsewhere, and a new master knows of it.
    world.create("other", &["m"]).unwrap();
    world.restart();
    assert_eq!(settle(&mut world, Duration::from_secs(20)), 2);
    assert_eq!(counts(&world)["tablet-0"], 0);
    let info = left(&world, "tablet-0");
    assert_eq!((info.tablets, info.drained, info.alive), (0, true, true));
    // A master that starts when it is gone knows that nothing was on it.
    world.down.push("tablet-0".into());
    world.restart();
    settle(&mut world, Duration::from_secs(10));
    let info = left(&world, "tablet-0");
    assert!(info.drained && !info.alive, "{info:?}");
    world.down.clear();
    world.beat_all();
    world.assert_agreement("drained");
    // Again with tablets, if it may have some.
    world.drain("tablet-0", false).unwrap();
    world.create("third", &[]).unwrap();
    assert_eq!(counts(&world)["tablet-0"], 1);
}

/// Lets the master hear a server, and do nothing yet of what comes of it.
fn reply_to(world: &mut World, server: &str) -> HeartbeatReply {
    let beat = world.heartbeat_of(server);
    world.directory.heartbeat(world.now, beat).unwrap()
}

#[test]
fn a_server_that_stops_gives_its_tablets_to_others_before() {
    let mut world = balancing(3);
    world.create("accounts", &CUTS).unwrap();
    world.beat_all();
    assert_eq!(counts(&world)["tablet-2"], 2);
    world.stopping.insert("tablet-2".into());
    assert_eq!(settle(&mut world, Duration::from_secs(20)), 2);
    // Neither does it get any, nor is it to be drained for longer than this start of it.
    world.create("other", &["m"]).unwrap();
    assert_eq!(counts(&world)["tablet-2"], 0);
    assert!(may_stop(&mut world, "tablet-2"));
    let info = left(&world, "tablet-2");
    assert!(!info.draining && !info.drained, "{info:?}");
    // Its next start gets some at once: none of those that were moved off has to rest.
    world.stopping.clear();
    world.beat("tablet-2").unwrap();
    settle(&mut world, Duration::from_secs(20));
    assert_eq!(counts(&world)["tablet-2"], 2, "{:?}", counts(&world));
}

#[test]
fn a_server_that_has_ended_gets_no_tablets() {
    let mut world = balancing(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    world.stopping.insert("tablet-1".into());
    assert_eq!(settle(&mut world, Duration::from_secs(20)), 1);
    assert!(may_stop(&mut world, "tablet-1"));
    // It was heard a moment ago, and has fewer tablets than any other.
    let last = Heartbeat {
        stopping: false,
        leaving: true,
        ..world.heartbeat_of("tablet-1")
    };
    world.directory.heartbeat(world.now, last).unwrap();
    assert!(!left(&world, "tablet-1").alive);
    world.create("other", &[]).unwrap();
    assert_eq!(counts(&world)["tablet-1"], 0);
    // Nor is it one that takes the tablets of the next server that stops.
    assert!(may_stop(&mut world, "tablet-0"));
    // Its next start is.
    world.stopping.clear();
    world.incarnations.insert("tablet-1".into(), 2);
    world.beat("tablet-1").unwrap();
    assert!(left(&world, "tablet-1").alive);
    assert!(!may_stop(&mut world, "tablet-0"));
}

#[test]
fn a_server_that_stops_waits_for_what_it_has_handed_over() {
    let mut world = balancing(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    assert!(!may_stop(&mut world, "tablet-1"));
    let departed = world.hand_over(2, "tablet-1", "tablet-0");
    let beat = |world: &mut World| {
        let beat = Heartbeat {
            departed: vec![departed.clone()],
            ..world.heartbeat_of("tablet-1")
        };
        world.directory.heartbeat(world.now, beat).unwrap().may_stop
    };
    // The other one may not have heard that the tablet is its own: only this one can tell.
    assert!(!beat(&mut world));
    world.beat("tablet-0").unwrap();
    assert!(beat(&mut world));
}

#[test]
fn a_server_that_is_about_to_get_a_tablet_does_not_stop_before() {
    let mut world = balancing(2);
    world.create("accounts", &CUTS).unwrap();
    world.servers.insert("tablet-2".into(), BTreeMap::new());
    // It is asked to get a tablet, and has not heard that yet.
    for _ in 0..3 {
        for server in ["tablet-0", "tablet-1", "tablet-2"] {
            reply_to(&mut world, server);
        }
        world.members.insert("tablet-2".into());
        world.now += HEARTBEAT_INTERVAL;
    }
    let commands = world.directory.take_effects().commands;
    let mut imports = commands.iter().filter(|it| it.server == "tablet-2");
    assert!(
        imports.any(|it| matches!(it.action, Action::Import { .. })),
        "{commands:?}"
    );
    world.stopping.insert("tablet-2".into());
    let reply = reply_to(&mut world, "tablet-2");
    assert!(reply.draining && !reply.may_stop, "{reply:?}");
    // Since then it refuses, and it has none.
    world.draining.insert("tablet-2".into());
    assert!(reply_to(&mut world, "tablet-2").may_stop);
}

/// The owner may have decided that the rows are there now: only it can say.
#[test]
fn a_server_that_has_a_complete_copy_is_drained_when_its_owner_has_decided() {
    let mut world = World::new(3);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    let owner = "tablet-1".to_owned();
    let (to, third) = ("tablet-2", "tablet-0");
    assert_eq!(counts(&world)[owner.as_str()], 1);
    assert_eq!(counts(&world)[to], 0);
    world.drain(to, true).unwrap();
    world.draining.insert(to.into());
    let arrival = Arrival {
        tablet: 2,
        epoch: 1,
        is_complete: true,
        from: owner.clone(),
        ..Arrival::default()
    };
    let beat = |world: &mut World, arriving: Vec<Arrival>| {
        let beat = Heartbeat {
            arriving,
            ..world.heartbeat_of(to)
        };
        world.directory.heartbeat(world.now, beat).unwrap();
        left(world, to)
    };
    let info = beat(&mut world, vec![arrival.clone()]);
    assert_eq!((info.drained, info.waits_for.as_str()), (false, ""));
    world.now += 2 * HEARTBEAT_TIMEOUT;
    world.beat(third).unwrap();
    let info = beat(&mut world, vec![arrival.clone()]);
    let waits = "tablet 2, on its way there from tablet-1, which is down";
    assert_eq!((info.drained, info.waits_for.as_str()), (false, waits));
    // It stays where it was.
    let failure = Some(format!("it stays at {owner}"));
    let info = beat(&mut world, vec![Arrival { failure, ..arrival }]);
    assert_eq!((info.drained, info.waits_for.as_str()), (true, ""));
}

#[test]
fn a_server_that_stops_does_not_wait_for_nothing() {
    let mut world = balancing(3);
    world.create("accounts", &CUTS).unwrap();
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    // The last one takes them.
    assert!(!may_stop(&mut world, "tablet-1"));
    assert!(may_stop(&mut world, "tablet-2"));
    assert!(may_stop(&mut world, "tablet-1"));
    // Without balance nobody would give it tablets again.
    let mut world = World::new(3);
    world.create("accounts", &CUTS).unwrap();
    world.beat_all();
    assert!(may_stop(&mut world, "tablet-1"));
    assert_eq!(settle(&mut world, Duration::from_secs(5)), 0);
}

#[test]
fn a_server_that_stops_does_not_wait_for_what_stays() {
    // Of a table that is being deleted.
    let mut world = balancing(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    world.freeze("accounts").unwrap();
    world.beat_all();
    assert_eq!(counts(&world)["tablet-1"], 1);
    assert!(!may_stop(&mut world, "tablet-1"), "it has not heard yet");
    assert!(may_stop(&mut world, "tablet-1"));

    // What it has lost.
    let mut world = balancing(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    world.servers.get_mut("tablet-1").unwrap().clear();
    settle(&mut world, 2 * HEARTBEAT_TIMEOUT);
    assert_eq!(left(&world, "tablet-1").lost_tablets, [2]);
    may_stop(&mut world, "tablet-1");
    assert!(may_stop(&mut world, "tablet-1"));

    // What nobody has room for. It waits for as much as somebody has room for.
    let mut world = balancing(2);
    world.create("accounts", &["f", "m", "t"]).unwrap();
    world.weighs("tablet-1", [(2, 1 << 20), (4, 100 << 20)]);
    world.free.insert("tablet-0".into(), 50 << 20);
    world.beat_all();
    world.stopping.insert("tablet-1".into());
    world.draining.insert("tablet-1".into());
    assert!(!reply_to(&mut world, "tablet-1").may_stop);
    assert_eq!(settle(&mut world, Duration::from_secs(5)), 1);
    assert_eq!(counts(&world)["tablet-1"], 1);
    assert!(may_stop(&mut world, "tablet-1"));
}

#[test]
fn a_server_that_is_drained_and_stops_waits_without_balance_too() {
    let mut world = World::new(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    world.drain("tablet-1", true).unwrap();
    world.stopping.insert("tablet-1".into());
    world.draining.insert("tablet-1".into());
    assert!(!reply_to(&mut world, "tablet-1").may_stop);
    assert_eq!(settle(&mut world, Duration::from_secs(5)), 1);
    assert!(may_stop(&mut world, "tablet-1"));
}

#[test]
fn a_master_that_begins_does_not_let_a_server_stop_before_it_knows_the_others() {
    let mut world = balancing(3);
    world.create("accounts", &CUTS).unwrap();
    world.beat_all();
    world.restart();
    assert!(!may_stop(&mut world, "tablet-2"), "it is heard first");
    assert_eq!(settle(&mut world, Duration::from_secs(20)), 2);
    assert!(may_stop(&mut world, "tablet-2"));
}

#[test]
fn a_list_of_before_the_drain_does_not_count() {
    let mut world = World::new(2);
    world.drain("tablet-0", true).unwrap();
    // It may have got a tablet since its last list: it says that it gets none any more when it has heard of the drain.
    assert!(!left(&world, "tablet-0").drained);
    world.beat("tablet-0").unwrap();
    assert!(!left(&world, "tablet-0").drained);
    world.beat("tablet-0").unwrap();
    assert!(left(&world, "tablet-0").drained);
}

#[test]
fn a_server_is_not_drained_before_it_says_so() {
    let mut world = World::new(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    // It is down, and a master that starts doesn't know what is on it.
    world.down.push("tablet-0".into());
    world.restart();
    settle(&mut world, Duration::from_secs(10));
    let info = left(&world, "tablet-0");
    assert!(info.draining && !info.drained, "{info:?}");
    // It has handed its tablet over, of which the other one is heard first; then it has the rows still.
    world.down.clear();
    world.beat_all();
    let mut tablet = world
        .servers
        .get_mut("tablet-0")
        .unwrap()
        .remove(&1)
        .unwrap();
    tablet.epoch += 1;
    world.own("tablet-1", tablet.clone());
    world.beat("tablet-1").unwrap();
    assert!(!left(&world, "tablet-0").drained);
    let beat = Heartbeat {
        departed: vec![Departed {
            tablet,
            to: "tablet-1".into(),
        }],
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, beat).unwrap();
    world.carry_out();
    let info = left(&world, "tablet-0");
    assert_eq!((info.tablets, info.drained), (1, false));
    world.beat("tablet-0").unwrap();
    assert!(left(&world, "tablet-0").drained);
    // One that comes back with a tablet isn't drained any more.
    world.own("tablet-0", world::report(9, 1, "accounts", ("", "a"), 5));
    world.beat("tablet-0").unwrap();
    assert!(!left(&world, "tablet-0").drained);
}

#[test]
fn what_cannot_be_drained_is_refused() {
    let mut world = World::new(2);
    world.create("accounts", &["m"]).unwrap();
    let unknown = world.drain("tablet-7", true).unwrap_err();
    assert!(matches!(unknown, Refusal::NoSuchServer { .. }), "{unknown}");
    world.drain("tablet-0", true).unwrap();
    let last = world.drain("tablet-1", true).unwrap_err();
    assert_eq!(
        last.to_string(),
        "tablet-1 can't be drained: the cluster has no other tablet server for the tablets. Add one, or `percolator server \
         undrain` one"
    );
    // Nobody moves a tablet there by hand, and no table is made there.
    let moving = Moving::new(2, "tablet-0").go_on(&mut world.directory, world.now);
    assert!(
        matches!(moving, Err(Refusal::Draining { .. })),
        "{moving:?}"
    );
    world.down.push("tablet-1".into());
    world.now += HEARTBEAT_TIMEOUT;
    world.beat_all();
    let none = world.create("other", &[]).unwrap_err();
    assert!(
        none.to_string().contains("tablet-0 (up, and drained)"),
        "{none}"
    );
}

/// How often a server was asked to get a tablet.
fn imports(world: &World) -> usize {
    let sent = world.sent.iter();
    sent.filter(|it| matches!(it.action, Action::Import { .. }))
        .count()
}

#[test]
fn a_server_that_forgets_a_move_when_it_starts_again_is_asked_again() {
    let mut world = World::new(2);
    world.create("accounts", &[]).unwrap();
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    world.beat_all();
    assert_eq!(imports(&world), 1);
    // It is back before it counts as down, and has neither the tablet nor a reason.
    world.incarnations.insert("tablet-1".into(), 2);
    let next = Heartbeat {
        accepted: false,
        replaces: vec![1],
        ..world.heartbeat_of("tablet-1")
    };
    world.directory.heartbeat(world.now, next).unwrap();
    world.carry_out();
    for _ in 0..4 {
        world.beat_all();
    }
    assert_eq!(imports(&world), 2);
}

#[test]
fn a_move_to_a_server_that_dies_goes_elsewhere() {
    let mut world = World::new(3);
    world.create("accounts", &[]).unwrap();
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    world.beat_all();
    let first = world.sent.last().unwrap().server.clone();
    assert_eq!(first, "tablet-1");
    world.down.push(first);
    let asked = world.sent.len();
    for _ in 0..60 {
        world.beat_all();
    }
    // It says nothing of the tablet, so it is asked again.
    let servers = world.sent[asked..].iter().map(|it| &*it.server);
    let servers: BTreeSet<&str> = servers.collect();
    assert_eq!(servers, BTreeSet::from(["tablet-2"]));
    // A table that is deleted has nothing to move.
    let deletion = Deletion::of("accounts");
    world.directory.delete_table(world.now, &deletion).unwrap();
    world.carry_out();
    let asked = world.sent.len();
    settle(&mut world, Duration::from_secs(30));
    let imports = world.sent[asked..].iter();
    assert!(
        !imports
            .clone()
            .any(|it| matches!(it.action, Action::Import { .. }))
    );
}

#[test]
fn a_server_is_drained_though_one_is_gone_that_was_getting_its_tablet() {
    let mut world = World::new(3);
    world.create("accounts", &CUTS).unwrap();
    world.beat_all();
    let (id, epoch) = {
        let mut of_it = world.directory.tablets().of_owner("tablet-0");
        let (id, tablet) = of_it.next().unwrap();
        (id, tablet.epoch)
    };
    world.report_copy("tablet-1", copy(id, epoch, "tablet-0"));
    world.down.push("tablet-1".into());
    world.now += HEARTBEAT_TIMEOUT;
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    settle(&mut world, Duration::from_secs(20));
    assert_eq!(counts(&world)["tablet-0"], 0, "{:?}", counts(&world));
}

/// As when servers are added, taken away and added again within minutes.
#[test]
fn a_server_that_is_undrained_gets_tablets_again_though_all_were_moved_lately() {
    let mut world = balancing(2);
    world.create("accounts", &CUTS).unwrap();
    world.beat_all();
    for drained in ["tablet-0", "tablet-1", "tablet-0", "tablet-1"] {
        world.drain(drained, true).unwrap();
        settle(&mut world, Duration::from_secs(20));
        assert_eq!(counts(&world)[drained], 0, "{:?}", counts(&world));
        world.drain(drained, false).unwrap();
        settle(&mut world, Duration::from_secs(20));
        assert!(counts(&world)[drained] > 0, "{:?}", counts(&world));
    }
}

/// Of many failures it remembers some.
#[test]
fn a_server_that_has_forgotten_a_failure_is_asked_again() {
    let mut world = World::new(2);
    world.create("accounts", &[]).unwrap();
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    // It says nothing of the tablet, in none of its heartbeats.
    for _ in 0..40 {
        world.beat_all();
    }
    assert!(imports(&world) > 1);
}
