//! Whether the others have room for what a server is to give away.

use std::time::Duration;

use crate::world::{World, balancing, left, settle};
use percolator_gc_master::{
    Action, Arrival, HEARTBEAT_TIMEOUT, Heartbeat, Merging, Moving, Note, Refusal, drain_servers,
};
use percolator_wire::v1;

#[test]
fn a_server_is_drained_only_if_the_others_have_room() {
    let mut world = World::new(2);
    world.create("accounts", &[]).unwrap();
    world.weighs("tablet-0", [(1, 100 << 20)]);
    world.free.insert("tablet-1".into(), 150 << 20);
    world.beat_all();
    let why = world.drain("tablet-0", true).unwrap_err().to_string();
    assert!(why.contains("room for 78643200 together"), "{why}");
    assert!(!left(&world, "tablet-0").draining);
    world.free.insert("tablet-1".into(), 250 << 20);
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    // The volume fills meanwhile: the tablet stays, until there is room again.
    world.free.insert("tablet-1".into(), 20 << 20);
    world.beat("tablet-1").unwrap();
    let asked = world.sent.len();
    assert_eq!(settle(&mut world, Duration::from_secs(20)), 0);
    assert_eq!(world.sent.len(), asked);
    let server = "tablet-0".to_owned();
    assert_eq!(world.notes, [Note::WithoutRoom { server }], "once");
    assert!(left(&world, "tablet-0").without_room);
    world.free.insert("tablet-1".into(), 250 << 20);
    assert_eq!(settle(&mut world, Duration::from_secs(20)), 1);
    assert!(left(&world, "tablet-0").drained || left(&world, "tablet-0").tablets == 0);
}

#[test]
fn a_server_that_is_down_has_no_room_for_what_is_drained() {
    let mut world = World::new(3);
    world.create("accounts", &[]).unwrap();
    world.weighs("tablet-0", [(1, 100 << 20)]);
    world.free.insert("tablet-1".into(), 150 << 20);
    world.free.insert("tablet-2".into(), 250 << 20);
    world.beat_all();
    world.down.push("tablet-2".into());
    world.now += HEARTBEAT_TIMEOUT;
    world.beat_all();
    let why = world.drain("tablet-0", true).unwrap_err().to_string();
    assert!(why.contains("room for 78643200 together"), "{why}");
}

#[test]
fn a_server_that_has_no_room_or_stops_gets_nothing_by_hand() {
    let mut world = balancing(2);
    world.create("accounts", &["m"]).unwrap();
    world.weighs("tablet-0", [(1, 1 << 20)]);
    world.weighs("tablet-1", [(2, 100 << 20)]);
    world.free.insert("tablet-0".into(), 100 << 20);
    world.beat_all();
    let moving = |world: &mut World, tablet, server: &str| {
        Moving::new(tablet, server).go_on(&mut world.directory, world.now)
    };
    let full = moving(&mut world, 2, "tablet-0").unwrap_err().to_string();
    assert_eq!(
        full,
        "tablet-0 gets no tablet that it has no room for: tablet 2 has 104857600 bytes, and it has room for 52428800. Give it a \
         larger volume"
    );
    // A copy that has filled its volume meanwhile is asked for again.
    let arriving = Heartbeat {
        arriving: vec![Arrival {
            tablet: 2,
            epoch: 1,
            from: "tablet-1".into(),
            ..Arrival::default()
        }],
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, arriving).unwrap();
    moving(&mut world, 2, "tablet-0").unwrap();
    world.directory.take_effects();
    world.beat("tablet-0").unwrap();

    // Neighbours go together where there is room.
    let mut merging = Merging::new("accounts".into(), "m".into());
    merging.go_on(&mut world.directory, world.now).unwrap();
    world.carry_out();
    let sent = world.sent.last().unwrap();
    assert!(
        matches!(&sent.action, Action::Import { tablet, .. } if tablet.id == 1),
        "{sent:?}"
    );
    assert_eq!(sent.server, "tablet-1");

    world.stopping.insert("tablet-1".into());
    world.beat("tablet-1").unwrap();
    assert!(left(&world, "tablet-1").stopping);
    let stopping = moving(&mut world, 1, "tablet-1");
    assert!(
        matches!(stopping, Err(Refusal::Stopping { .. })),
        "{stopping:?}"
    );
}

#[test]
fn several_servers_are_drained_together_or_not_at_all() {
    let mut world = World::new(4);
    world.create("accounts", &["f", "m", "t"]).unwrap();
    let server = |number: u64| format!("tablet-{number}");
    for number in 0..4 {
        world.weighs(&server(number), [(number + 1, 100 << 20)]);
        // Half of it is room for tablets.
        world.free.insert(server(number), 300 << 20);
    }
    world.beat_all();
    let draining = |world: &World| {
        let servers = (0..4).map(server);
        servers
            .map(|name| left(world, &name).draining)
            .collect::<Vec<_>>()
    };
    // Two of the three would have been taken one after the other.
    let request = v1::DrainServersRequest {
        servers: vec![server(1), server(2), server(3)],
        drain: true,
    };
    let refused = drain_servers(&mut world.directory, world.now, &request).unwrap();
    let why = "tablet-1, tablet-2, tablet-3 can't be drained: 314572800 bytes are to be moved";
    assert!(refused.no_room.starts_with(why), "{}", refused.no_room);
    let unknown = world.drain_all(&["tablet-3", "tablet-9"], true);
    assert!(
        matches!(unknown, Err(Refusal::NoSuchServer { .. })),
        "{unknown:?}"
    );
    let all = world.drain_all(&["tablet-0", "tablet-1", "tablet-2", "tablet-3"], true);
    assert!(
        matches!(all, Err(Refusal::NowhereToDrain { .. })),
        "{all:?}"
    );
    assert_eq!(draining(&world), [false; 4]);
    world.drain_all(&["tablet-2", "tablet-3"], true).unwrap();
    assert_eq!(draining(&world), [false, false, true, true]);
    world.drain_all(&["tablet-2", "tablet-3"], false).unwrap();
    assert_eq!(draining(&world), [false; 4]);

    // A server that was not heard has no room, when it had time to say so.
    world.down.push(server(3));
    world.restart();
    world.beat_all();
    let settling = world.drain_all(&["tablet-1", "tablet-2"], true);
    assert!(
        matches!(settling, Err(Refusal::Settling { .. })),
        "{settling:?}"
    );
    settle(&mut world, 2 * HEARTBEAT_TIMEOUT);
    let refused = world.drain_all(&["tablet-1", "tablet-2"], true);
    assert!(
        matches!(refused, Err(Refusal::NoRoomToDrain { .. })),
        "{refused:?}"
    );
}

#[test]
fn what_the_lightest_server_refuses_goes_to_another_one() {
    let mut world = World::new(3);
    world.create("accounts", &["f", "m"]).unwrap();
    world.weighs("tablet-0", [(1, 1 << 20)]);
    world.weighs("tablet-1", [(2, 100 << 20)]);
    world.weighs("tablet-2", [(3, 1 << 20)]);
    let why = "rows are still to be removed".to_owned();
    world.refusing.insert("tablet-2".into(), why);
    world.beat_all();
    world.drain("tablet-0", true).unwrap();
    let asked = world.sent.len();
    assert_eq!(settle(&mut world, Duration::from_secs(8)), 1);
    let servers = world.sent[asked..].iter().map(|it| &*it.server);
    assert_eq!(servers.collect::<Vec<_>>(), ["tablet-2", "tablet-1"]);
    assert!(left(&world, "tablet-0").drained);
    // Where all refuse, they are asked again after a while, and not all the time.
    world.drain("tablet-0", false).unwrap();
    world.drain("tablet-1", true).unwrap();
    world
        .refusing
        .insert("tablet-0".into(), "its disk is full".into());
    let asked = world.sent.len();
    assert_eq!(settle(&mut world, Duration::from_secs(25)), 0);
    let attempts = world.sent.len() - asked;
    assert!((24..=36).contains(&attempts), "{attempts}");
}

#[test]
fn a_server_that_is_drained_already_is_no_room_for_another_one() {
    let mut world = World::new(3);
    world.create("accounts", &["m"]).unwrap();
    let servers = ["tablet-0", "tablet-1", "tablet-2"];
    for (server, free) in servers.into_iter().zip([1 << 30, 1 << 30, 260 << 20]) {
        world.free.insert(server.into(), free);
    }
    let owner = |world: &World, id: u64| {
        let place = world.directory.tablets().get(id).unwrap();
        place.owner.clone()
    };
    let (first, second) = (owner(&world, 1), owner(&world, 2));
    assert!(first != second && first != "tablet-2" && second != "tablet-2");
    world.weighs(&first, [(1, 100 << 20)]);
    world.weighs(&second, [(2, 100 << 20)]);
    world.beat_all();
    world.drain(&first, true).unwrap();
    // Both have more than the third one has room for.
    let refused = world.drain(&second, true);
    assert!(
        matches!(refused, Err(Refusal::NoRoomToDrain { .. })),
        "{refused:?}"
    );
}
