//! Tablets are handed over for somebody who asks for it: the servers do it, and the directory follows what they say.

use std::time::Duration;

use crate::world::{World, copy};
use percolator_gc_master::{
    Action, Arrival, HEARTBEAT_TIMEOUT, Moving, Pending, Refusal, move_tablet,
};
use percolator_wire::v1;

fn moving(tablet: u64, server: &str) -> Moving {
    Moving::new(tablet, server)
}

fn world() -> World {
    let mut world = World::new(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    world
}

/// Begins it, and lets the server hear of it.
fn begin(world: &mut World, moving: &mut Moving) {
    let begun = moving.go_on(&mut world.directory, world.now);
    assert!(matches!(begun, Ok(Pending::Wait { .. })), "{begun:?}");
    world.carry_out();
    let begun = moving.go_on(&mut world.directory, world.now);
    assert!(matches!(begun, Ok(Pending::Wait { .. })), "{begun:?}");
}

#[test]
fn it_is_done_when_the_server_reports_it() {
    let mut world = world();
    let mut moving = moving(1, "tablet-1");
    begin(&mut world, &mut moving);
    let sent = world.sent.last().unwrap().clone();
    assert_eq!(sent.server, "tablet-1");
    let Action::Import { tablet, from, .. } = sent.action else {
        panic!("{:?}", sent.action);
    };
    assert_eq!((tablet.id, tablet.epoch), (1, 1));
    assert_eq!(from.server, "tablet-0");
    let departed = world.hand_over(1, "tablet-0", "tablet-1");

    // Its owner is heard first: it is where it has gone, and not lost.
    let beat = world.heartbeat_of("tablet-0");
    let beat = percolator_gc_master::Heartbeat {
        departed: vec![departed],
        ..beat
    };
    let reply = world.directory.heartbeat(world.now, beat.clone()).unwrap();
    assert_eq!(reply.settled_moves, [0_u64; 0], "nobody else reports it");
    assert_eq!(world.rows()[0], "accounts ready 1@2 [..m) tablet-1");
    let done = moving.go_on(&mut world.directory, world.now);
    assert!(matches!(done, Ok(Pending::Wait { .. })), "{done:?}");

    world.beat("tablet-1").unwrap();
    let mut asked = move_tablet(v1::MoveTabletRequest {
        tablet_id: 1,
        server: "tablet-1".into(),
    });
    let Ok(Pending::Done(done)) = asked(&mut world.directory, world.now) else {
        panic!("it isn't done");
    };
    let place = done.tablet.unwrap();
    assert_eq!(
        (place.server.as_str(), place.moving_to.as_str()),
        ("tablet-1", "")
    );
    let reply = world.directory.heartbeat(world.now, beat).unwrap();
    assert_eq!(reply.settled_moves, [1]);
}

#[test]
fn a_server_that_gives_it_up_says_why_and_is_asked_again_later() {
    let mut world = world();
    let mut first = moving(1, "tablet-1");
    begin(&mut world, &mut first);
    let arrival = |failure: &str| Arrival {
        tablet: 1,
        epoch: 1,
        bytes: 12,
        failure: Some(failure.to_owned()).filter(|why| !why.is_empty()),
        from: "tablet-0".into(),
        ..Arrival::default()
    };
    let beat = |world: &mut World, failure: &str| {
        world.now += Duration::from_millis(10);
        let beat = world.heartbeat_of("tablet-1");
        let beat = percolator_gc_master::Heartbeat {
            arriving: vec![arrival(failure)],
            ..beat
        };
        world.directory.heartbeat(world.now, beat).unwrap()
    };
    let reply = beat(&mut world, "");
    assert_eq!(
        reply.owners[0].address,
        world.heartbeat_of("tablet-0").address
    );
    world.now += Duration::from_secs(4);
    world.beat_all();
    beat(&mut world, "");
    let late = first.go_on(&mut world.directory, world.now).unwrap_err();
    assert_eq!(
        late.to_string(),
        "tablet 1 is on its way from tablet-0 to tablet-1: it waits for tablet-1, which has 12 bytes of it"
    );
    beat(&mut world, "it stays at tablet-0");
    let failed = first.go_on(&mut world.directory, world.now).unwrap_err();
    assert!(matches!(failed, Refusal::NotMoved { .. }), "{failed}");
    // What was said before doesn't count for the next attempt.
    let mut second = moving(1, "tablet-1");
    begin(&mut world, &mut second);
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let mut world = world();
    let refused = |world: &mut World, tablet, server| {
        let asked = moving(tablet, server).go_on(&mut world.directory, world.now);
        asked.map(|_| ()).unwrap_err().to_string()
    };
    let unknown = refused(&mut world, 1, "tablet-7");
    assert_eq!(
        unknown,
        "there is no tablet server tablet-7: there are tablet-0, tablet-1"
    );
    let unknown = refused(&mut world, 77, "tablet-1");
    assert!(unknown.starts_with("there is no tablet 77"), "{unknown}");
    // It is there already.
    let done = moving(1, "tablet-0").go_on(&mut world.directory, world.now);
    assert!(matches!(done, Ok(Pending::Done(_))), "{done:?}");
    world.now += HEARTBEAT_TIMEOUT + Duration::from_secs(1);
    world.beat("tablet-1").unwrap();
    let away = refused(&mut world, 1, "tablet-1");
    assert_eq!(
        away,
        "tablet 1 is at tablet-0, which is down: start it, then ask again"
    );
    world.now += HEARTBEAT_TIMEOUT + Duration::from_secs(1);
    world.beat("tablet-0").unwrap();
    let away = refused(&mut world, 1, "tablet-1");
    assert_eq!(away, "tablet-1 is down: start it, then ask again");
}

/// [`World::report_copy`] of `tablet-1`, of the first tablet at this epoch.
fn report_arrival(world: &mut World, epoch: u64) -> Vec<(u64, u64)> {
    world.report_copy("tablet-1", copy(1, epoch, "tablet-0"))
}

#[test]
fn a_server_learns_that_a_tablet_went_elsewhere_though_its_owner_is_gone() {
    let mut world = World::new(3);
    world.create("accounts", &[]).unwrap();
    world.beat_all();
    let table = world.directory.tablets().get(1).unwrap().table;
    assert_eq!(table, 1);
    assert_eq!(report_arrival(&mut world, 1), []);
    // Its owner has decided otherwise, and has gone since. It hasn't said so, and the other one hasn't yet.
    world.hand_over(1, "tablet-0", "tablet-2");
    world.down.push("tablet-0".into());
    assert_eq!(report_arrival(&mut world, 1), []);
    world.beat("tablet-2").unwrap();
    let settled = report_arrival(&mut world, 1);
    assert_eq!(settled, [(1, 1)]);
    // Another attempt, of the tablet as it is now, goes on.
    assert_eq!(report_arrival(&mut world, 2), []);
    world.restart();
    assert_eq!(report_arrival(&mut world, 1), []);
}

#[test]
fn a_server_learns_that_the_table_of_a_tablet_that_it_gets_is_gone() {
    let mut world = World::new(2);
    world.create("accounts", &[]).unwrap();
    world.beat_all();
    world.delete("accounts").unwrap();
    let settled = report_arrival(&mut world, 1);
    assert_eq!(settled, [(1, 1)]);
}

#[test]
fn a_server_that_is_down_gets_no_tablet() {
    let mut world = world();
    report_arrival(&mut world, 1);
    let moving_to = |world: &World| {
        let all = percolator_gc_master::directory_response(&world.directory, world.now).unwrap();
        all.tablets[0].moving_to.clone()
    };
    assert_eq!(moving_to(&world), "tablet-1");
    world.now += HEARTBEAT_TIMEOUT;
    assert_eq!(moving_to(&world), "");
}

/// A server has handed a tablet over, and dies before the other one hears so: that one has all of it, and may not serve.
#[test]
fn a_tablet_waits_for_the_server_that_has_handed_it_over() {
    let mut world = world();
    let mut moving = moving(1, "tablet-1");
    begin(&mut world, &mut moving);
    let departed = world.hand_over(1, "tablet-0", "tablet-1");
    let arrived = world.servers.get_mut("tablet-1").unwrap().remove(&1);
    let beat = percolator_gc_master::Heartbeat {
        departed: vec![departed],
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, beat).unwrap();
    assert_eq!(world.rows()[0], "accounts ready 1@2 [..m) tablet-1");
    let place = |world: &World| {
        let all = percolator_gc_master::directory_response(&world.directory, world.now).unwrap();
        (
            all.tablets[0].server.clone(),
            all.tablets[0].moving_to.clone(),
        )
    };
    world.report_copy("tablet-1", copy(1, 1, "tablet-0"));
    world.now += HEARTBEAT_TIMEOUT;
    world.report_copy("tablet-1", copy(1, 1, "tablet-0"));
    assert_eq!(place(&world), ("tablet-0".into(), "tablet-1".into()));
    // It is there again, and the other one hears it.
    world
        .servers
        .get_mut("tablet-1")
        .unwrap()
        .extend(arrived.map(|it| (1, it)));
    world.beat("tablet-1").unwrap();
    assert_eq!(place(&world), ("tablet-1".into(), String::new()));
}
