//! Where tablets are is soft state: a master that starts again hears it from their owners. What no owner can report is
//! durable.

use std::time::Duration;

use crate::world::World;
use percolator_gc_master::{
    HEARTBEAT_TIMEOUT, Heartbeat, Refusal, TableState, directory_response, gc_status,
};
use percolator_protocol::types::TabletState;

/// Time for those that are up to be heard, and for what is missing to be noted.
fn settle(world: &mut World) {
    world.beat_all();
    world.now += HEARTBEAT_TIMEOUT;
    world.beat_all();
    world.collect();
    world.now += HEARTBEAT_TIMEOUT;
    world.beat_all();
}

/// Both points move up as far as the servers let them.
fn collect(world: &mut World) {
    for _ in 0..2 {
        world.now += HEARTBEAT_TIMEOUT;
        world.oracle_ms += 3_600_000;
        world.collect();
        let points = world.state().gc.points();
        for server in world.servers.keys().cloned().collect::<Vec<_>>() {
            world.points.insert(server, points);
        }
        world.beat_all();
        world.collect();
    }
}

fn lost(world: &World, server: &str) -> Vec<u64> {
    let directory = directory_response(&world.directory, world.now).unwrap();
    let mut servers = directory.servers.into_iter();
    let server = servers.find(|it| it.server == server).unwrap();
    server.lost_tablets
}

fn obstacles(world: &World) -> Vec<String> {
    let status = gc_status(&world.directory, world.now).unwrap();
    let obstacles = status.obstacles.into_iter();
    obstacles
        .map(|it| format!("{} {}: {}", it.by, it.server, it.what))
        .collect()
}

/// The server has a new, empty folder.
fn empty(world: &mut World, server: &str) {
    world.servers.get_mut(server).unwrap().clear();
    world.members.remove(server);
    world.points.remove(server);
    world.groups.remove(server);
    world.resolved.remove(server);
}

/// The first heartbeat of a server with an empty folder.
fn beat_emptied(world: &mut World, server: &str) {
    world.oracle_ms += 3_600_000;
    world.collect();
    let beat = Heartbeat {
        cluster_id: None,
        accepted: false,
        incarnation: 2,
        ..world.heartbeat_of(server)
    };
    world.directory.heartbeat(world.now, beat).unwrap();
    world.carry_out();
    world.incarnations.insert(server.to_owned(), 2);
}

#[test]
fn the_durable_state_does_not_grow_with_tablets() {
    let bytes = |tablets: usize| {
        let mut world = World::new(3);
        let cuts: Vec<String> = (1..tablets).map(|cut| format!("{cut:06}")).collect();
        let cuts: Vec<&str> = cuts.iter().map(String::as_str).collect();
        world.create("a", &cuts).unwrap();
        world.beat_all();
        assert_eq!(world.state_of("a"), Some(TableState::Ready));
        assert_eq!(world.directory.tablets().len(), tablets);
        world.disk.unwrap().len()
    };
    let (few, many) = (bytes(3), bytes(900));
    assert!(many < few + 32, "{few} and {many} bytes");
}

#[test]
fn a_table_is_ready_at_once_and_its_tablets_are_reported() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.beat_all();
    let before = world.rows();
    world.restart();
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    assert_eq!(world.rows(), Vec::<String>::new());
    world.beat("tablet-1").unwrap();
    assert_eq!(world.rows(), before[1..]);
    world.beat_all();
    assert_eq!(world.rows(), before);
    world.assert_agreement("after a round");
    assert_eq!(
        world.create("a", &["m"]),
        Err(Refusal::TableExists { name: "a".into() })
    );
}

#[test]
fn resolved_waits_for_rows_that_no_server_has_reported() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.beat_all();
    world.now += 10 * world.settings.lease;
    collect(&mut world);
    let before = world.state().gc.resolved;
    assert!(before > 0);
    world.restart();
    world.down.push("tablet-1".into());
    world.beat_all();
    world.now += 10 * world.settings.lease;
    collect(&mut world);
    assert_eq!(world.state().gc.resolved, before);
    assert_eq!(
        obstacles(&world),
        ["server_down tablet-1: the tablet server does not answer"]
    );
    world.down.clear();
    collect(&mut world);
    assert!(world.state().gc.resolved > before);
}

#[test]
fn a_table_that_was_begun_is_made_to_its_end() {
    let mut world = World::new(2);
    world.down.push("tablet-1".into());
    assert_eq!(world.create("a", &["m"]), Ok(1));
    assert_eq!(world.state_of("a"), Some(TableState::Creating));
    world.restart();
    assert_eq!(world.create("a", &["m"]), Ok(1), "the same one");
    let other = Err(Refusal::OtherCuts { name: "a".into() });
    assert_eq!(world.create("a", &["k"]), other);
    world.down.clear();
    world.beat_all();
    world.beat_all();
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    assert!(world.state().unreported.is_empty());
    world.assert_agreement("made");
}

#[test]
fn what_is_lost_is_lost_also_for_the_next_start() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.beat_all();
    let tablet = world
        .servers
        .get_mut("tablet-1")
        .unwrap()
        .remove(&2)
        .unwrap();
    settle(&mut world);
    assert_eq!(lost(&world, "tablet-1"), [2]);
    world.restart();
    settle(&mut world);
    assert_eq!(lost(&world, "tablet-1"), [2]);
    assert!(
        !world.servers["tablet-1"].contains_key(&2),
        "no empty one is made"
    );
    // Its last folder is found.
    world.servers.get_mut("tablet-1").unwrap().insert(2, tablet);
    settle(&mut world);
    assert_eq!(lost(&world, "tablet-1"), [0_u64; 0]);
    assert!(world.state().unreported.is_empty());
}

#[test]
fn a_folder_that_was_lost_while_no_master_ran_is_noticed() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.create("other", &[]).unwrap();
    world.beat_all();
    // The groups are durable with the next change.
    world.collect();
    world.restart();
    let tablet = world.servers["tablet-1"][&2].clone();
    empty(&mut world, "tablet-1");
    world.beat("tablet-0").unwrap();
    beat_emptied(&mut world, "tablet-1");
    settle(&mut world);
    let missing = lost(&world, "tablet-1");
    assert_eq!(missing.len(), 1, "{missing:?}");
    world.restart();
    settle(&mut world);
    assert_eq!(lost(&world, "tablet-1"), missing);

    // The tablet that it stands for is found after all.
    world.servers.get_mut("tablet-1").unwrap().insert(2, tablet);
    settle(&mut world);
    assert_eq!(lost(&world, "tablet-1"), [0_u64; 0]);
    assert!(world.state().unreported.is_empty());
    assert_eq!(world.directory.tablets().owners_of(1).len(), 2);

    // Or it is given up.
    world.servers.get_mut("tablet-1").unwrap().remove(&2);
    settle(&mut world);
    world.accept_data_loss("a").unwrap();
    settle(&mut world);
    assert!(world.directory.is_frozen(1));
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
    assert!(world.state().unreported.is_empty());
    world.assert_agreement("given up");
}

/// A server that was drained is gone for good, and missed by nobody.
#[test]
fn a_loss_is_noticed_though_a_drained_server_is_gone() {
    let mut world = World::new(3);
    world.create("a", &["g", "p"]).unwrap();
    world.beat_all();
    world.drain("tablet-2", true).unwrap();
    crate::world::settle(&mut world, Duration::from_secs(20));
    assert!(crate::world::left(&world, "tablet-2").drained);
    world.collect();
    world.down.push("tablet-2".into());
    world.restart();
    empty(&mut world, "tablet-1");
    world.beat("tablet-0").unwrap();
    beat_emptied(&mut world, "tablet-1");
    // Nobody waits for it either before a table is made.
    world.create("b", &[]).unwrap();
    settle(&mut world);
    assert_eq!(lost(&world, "tablet-1").len(), 1);
}

/// A register takes less than a server may lose, and a state that is too large would end each master that leads.
#[test]
fn losses_that_no_register_takes_are_found_by_the_next_start() {
    let mut world = World::new(2);
    let cuts: Vec<String> = (0..500).map(|cut| format!("{cut:03}")).collect();
    let cuts: Vec<&str> = cuts.iter().map(String::as_str).collect();
    world.create("a", &cuts).unwrap();
    settle(&mut world);
    world.collect();
    let bytes = world.state().encode().len();
    world.directory.limit_state(bytes);
    world.servers.get_mut("tablet-1").unwrap().clear();
    settle(&mut world);
    assert!(world.state().unreported.is_empty());
    assert!(world.state().encode().len() <= bytes / 6 * 7);

    world.restart();
    empty(&mut world, "tablet-1");
    world.beat("tablet-0").unwrap();
    beat_emptied(&mut world, "tablet-1");
    settle(&mut world);
    assert!(!lost(&world, "tablet-1").is_empty());
}

/// Nobody knows which server had them.
#[test]
fn rows_that_are_at_no_server_can_be_given_up() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.beat_all();
    world.restart();
    world.servers.get_mut("tablet-1").unwrap().remove(&2);
    world.now += 10 * world.settings.lease;
    settle(&mut world);
    collect(&mut world);
    let told = obstacles(&world);
    assert!(
        told[0].starts_with("tablets_lost : no tablet server has all rows of table a"),
        "{told:?}"
    );
    world.freeze("a").unwrap();
    settle(&mut world);
    assert!(!world.directory.is_frozen(1));
    world.accept_data_loss("a").unwrap();
    settle(&mut world);
    assert!(world.directory.is_frozen(1));
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("given up");
}

#[test]
fn a_deletion_waits_for_tablets_that_were_not_reported() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.beat_all();
    world.down.push("tablet-1".into());
    world.freeze("a").unwrap();
    world.restart();
    world.beat_all();
    world.now += HEARTBEAT_TIMEOUT;
    world.beat_all();
    world.time_deletions();
    assert_eq!(world.state().tables[&1].drop_at, None);
    assert_eq!(world.servers["tablet-1"][&2].state, TabletState::Serving);
    world.down.clear();
    world.beat_all();
    assert!(world.directory.is_frozen(1));
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("deleted");
}

/// All of its tablets were frozen when it was timed. The one that is away is dropped when it is back.
#[test]
fn a_table_that_was_timed_waits_for_no_server() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.create("other", &[]).unwrap();
    world.beat_all();
    world.freeze("a").unwrap();
    world.time_deletions();
    assert!(world.state().tables[&1].drop_at.is_some());
    world.restart();
    world.down.push("tablet-1".into());
    world.beat_all();
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
    assert!(world.servers["tablet-1"].contains_key(&2));
    world.down.clear();
    world.beat_all();
    assert!(!world.servers["tablet-1"].contains_key(&2));
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("it is back");
}

#[test]
fn the_name_of_a_table_that_was_timed_stays_free() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.beat_all();
    world.freeze("a").unwrap();
    world.time_deletions();
    world.restart();
    world.down.push("tablet-1".into());
    world.beat_all();
    world.now += HEARTBEAT_TIMEOUT;
    world.beat_all();
    assert!(world.directory.is_frozen(1));
    assert_eq!(world.create("a", &[]), Ok(2));
}

#[test]
fn a_table_that_was_timed_can_lose_a_tablet_and_be_given_up() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.create("other", &[]).unwrap();
    world.beat_all();
    world.freeze("a").unwrap();
    world.time_deletions();
    world.restart();
    empty(&mut world, "tablet-1");
    world.beat("tablet-0").unwrap();
    beat_emptied(&mut world, "tablet-1");
    settle(&mut world);
    assert!(world.state().tables[&1].drop_at.is_some());
    assert_eq!(lost(&world, "tablet-1").len(), 1);
    world.accept_data_loss("a").unwrap();
    assert_eq!(
        world.state().tables[&1].drop_at,
        None,
        "what is made anew has to be frozen"
    );
    settle(&mut world);
    assert!(world.directory.is_frozen(1));
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("given up");
}

/// Its server has an older folder: what was committed there since it was frozen must not be overlooked.
#[test]
fn a_tablet_that_serves_again_is_frozen_again_before_its_table_goes() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.beat_all();
    world.freeze("a").unwrap();
    world.time_deletions();
    let timed = world.state().tables[&1].drop_at;
    assert!(timed.is_some());
    world.restart();
    let thawed = world
        .servers
        .get_mut("tablet-1")
        .unwrap()
        .get_mut(&2)
        .unwrap();
    thawed.state = TabletState::Serving;
    world.beat_all();
    assert_eq!(world.servers["tablet-1"][&2].state, TabletState::Frozen);
    world.beat_all();
    world.time_deletions();
    assert!(world.state().tables[&1].drop_at > timed);
    world.pass_deletions();
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("deleted");
}
