//! What a heartbeat costs that says nothing new, and a session: as much in a large cluster as in a small one.

use std::time::Duration;

use crate::world::{World, oracle};
use percolator_gc_master::{Heartbeat, HeartbeatReply, Renewal};
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;
use prost::Message as _;

/// Bytes of a heartbeat and of its answer, when nothing has changed.
const BYTES_MAX: usize = 200;
const TABLETS_EACH: usize = 100;

/// A cluster whose servers have so many tablets each, and know each other.
fn cluster(servers: usize) -> World {
    let mut world = World::new(servers);
    let cuts: Vec<String> = (1..TABLETS_EACH).map(|cut| format!("{cut:03}")).collect();
    let cuts: Vec<&str> = cuts.iter().map(String::as_str).collect();
    for table in 0..servers {
        world.create(&format!("t{table}"), &cuts).unwrap();
    }
    world.beat_all();
    assert_eq!(world.directory.tablets().len(), servers * TABLETS_EACH);
    world
}

/// As a tablet server sends it when the master has its lists.
fn unchanged(beat: &Heartbeat) -> Heartbeat {
    Heartbeat {
        has_lists: false,
        tablets: Vec::new(),
        deleted_tables: Default::default(),
        ..beat.clone()
    }
}

fn sent(beat: &Heartbeat) -> v1::HeartbeatRequest {
    v1::HeartbeatRequest {
        cluster_id: beat.cluster_id.clone().unwrap_or_default(),
        role: v1::Role::Tablet.into(),
        server: beat.server.clone(),
        address: beat.address.clone(),
        incarnation: u64::MAX,
        barrier: u64::MAX,
        safe_point: u64::MAX,
        resolved_ts: u64::MAX,
        high_ts: u64::MAX,
        groups: u64::MAX,
        groups_found: Some(u64::MAX),
        accepted: true,
        replaces_accepted: true,
        metrics_address: "192.0.2.123:9090".into(),
        lists_version: beat.lists_version,
        without_lists: true,
        ..v1::HeartbeatRequest::default()
    }
}

/// Placements that were looked at for something.
fn visits<R>(world: &mut World, act: impl FnOnce(&mut World) -> R) -> (u64, R) {
    let before = world.directory.tablets().visited();
    let result = act(world);
    (world.directory.tablets().visited() - before, result)
}

#[test]
fn a_heartbeat_without_news_costs_the_same_in_any_cluster() {
    for servers in [3, 30, 120] {
        let mut world = cluster(servers);
        // Once an interval, all servers are looked at for balance, whichever of them is heard.
        world.beat("tablet-0").unwrap();
        let beat = unchanged(&world.heartbeat_of("tablet-1"));
        let looked_at = world.state().servers.visited();
        let request = sent(&beat).encoded_len();
        assert!(request <= BYTES_MAX, "{servers}: {request} bytes");
        let (visits, reply) = visits(&mut world, |world| {
            let reply = world.directory.heartbeat(world.now, beat);
            reply.unwrap()
        });
        assert_eq!(reply.lists_version, 1);
        assert_eq!(visits, 0, "{servers} servers");
        assert_eq!(world.state().servers.visited(), looked_at);
        let answer = v1::HeartbeatResponse::from(reply).encoded_len();
        assert!(answer <= BYTES_MAX, "{servers}: {answer} bytes");
    }
}

/// Several oracles are looked at with each heartbeat of one of them, and no other server.
#[test]
fn a_heartbeat_of_an_oracle_visits_the_oracles_alone() {
    let looked_at = |servers: usize| {
        let mut world = cluster(servers);
        let mut beat = |name: &str, leads_term: u64| {
            let beat = Heartbeat {
                oracle_register: 9,
                leads_term,
                ..oracle(name)
            };
            let visited = |world: &World| world.state().servers.visited();
            let before = visited(&world);
            world.directory.heartbeat(world.now, beat).unwrap();
            visited(&world) - before
        };
        beat("tso-0", 4);
        beat("tso-1", 0);
        beat("tso-0", 4)
    };
    assert_eq!(looked_at(3), looked_at(120));
    assert!(looked_at(3) <= 6, "each oracle a few times");
}

#[test]
fn a_session_visits_no_tablet() {
    let mut world = cluster(3);
    let renewal = Renewal {
        session: 1,
        floor: Timestamp::from_millis(1_800_000_000_000),
        ..Renewal::default()
    };
    let (visits, session) = visits(&mut world, |world| {
        world.directory.session(world.now, renewal)
    });
    session.unwrap();
    assert_eq!(visits, 0);
}

/// Of a full list only what it names is looked at, and what its server had.
#[test]
fn a_full_list_costs_what_it_has() {
    let of = |servers: usize| {
        let mut world = cluster(servers);
        let beat = world.heartbeat_of("tablet-1");
        let count = beat.tablets.len();
        let (visits, _) = visits(&mut world, |world| {
            let reply = world.directory.heartbeat(world.now, beat);
            reply.unwrap()
        });
        (count, visits)
    };
    assert_eq!(of(3), of(30));
}

#[test]
fn a_master_that_does_not_have_the_lists_asks_for_them_and_counts_nothing_on_them() {
    let mut world = cluster(3);
    let reply = |world: &mut World, beat: Heartbeat| -> HeartbeatReply {
        let reply = world.directory.heartbeat(world.now, beat).unwrap();
        world.carry_out();
        reply
    };
    let full = world.heartbeat_of("tablet-1");
    assert_eq!(reply(&mut world, unchanged(&full)).lists_version, 1);
    // Another version than the one that it has.
    let newer = Heartbeat {
        lists_version: 2,
        ..full.clone()
    };
    assert_eq!(reply(&mut world, unchanged(&newer)).lists_version, 0);
    world.now += Duration::from_secs(3_600);
    world.beat("tablet-0").unwrap();
    world.beat("tablet-2").unwrap();
    let collect = |world: &mut World| {
        for server in ["tablet-0", "tablet-1", "tablet-2"] {
            let points = world.state().gc.points();
            world.points.insert(server.into(), points);
        }
        world.beat("tablet-0").unwrap();
        world.beat("tablet-2").unwrap();
        world.collect();
        world.state().gc.points()
    };
    collect(&mut world);
    let points = collect(&mut world);
    assert!(
        points.safe_point < points.barrier,
        "nobody says where they are"
    );
    let with_points = |world: &World, has_lists: bool| {
        let beat = world.heartbeat_of("tablet-1");
        let beat = Heartbeat {
            lists_version: 2,
            ..beat
        };
        if has_lists { beat } else { unchanged(&beat) }
    };
    let beat = with_points(&world, false);
    assert_eq!(reply(&mut world, beat).lists_version, 0);
    let points = collect(&mut world);
    assert!(
        points.safe_point < points.barrier,
        "it has said it without its list"
    );
    let beat = with_points(&world, true);
    assert_eq!(reply(&mut world, beat).lists_version, 2);
    let before = points.safe_point;
    assert!(collect(&mut world).safe_point > before);
    // The next start of the master has none.
    world.restart();
    let beat = with_points(&world, false);
    assert_eq!(reply(&mut world, beat).lists_version, 0);
    assert!(world.directory.state().is_ok());
}
