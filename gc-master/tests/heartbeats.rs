//! Which heartbeats are taken, and what is learned from them.

use std::time::Duration;

use crate::world::{RANDOM, World, oracle, report};
use percolator_gc_master::{
    Directory, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, Heartbeat, Refusal, Settings, Start,
    TableState, directory_response,
};

#[test]
fn a_new_cluster_gives_its_id_to_servers_that_have_none() {
    let mut world = World::new(0);
    let told = world.directory.heartbeat(world.now, oracle("oracle-0"));
    assert_eq!(told.unwrap().cluster_id, "123456789abcdef00fed000000000000");
}

#[test]
fn a_server_of_another_cluster_is_refused() {
    let mut world = World::new(1);
    let mut beat = world.heartbeat_of("tablet-0");
    beat.cluster_id = Some("ffff".into());
    let refused = world.directory.heartbeat(world.now, beat).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "tablet-0 belongs to cluster ffff, and this is the master of cluster \
         123456789abcdef00fed000000000000: start tablet-0 with that one's master, or with an empty folder to join this one. If \
         the other one's state was lost, see `percolator master rebuild`"
    );
}

#[test]
fn there_is_one_oracle_and_roles_do_not_change() {
    let mut world = World::new(1);
    let now = Duration::from_secs(60);
    world
        .directory
        .heartbeat(Duration::ZERO, oracle("oracle-0"))
        .unwrap();
    assert_eq!(
        world
            .directory
            .heartbeat(now, oracle("oracle-1"))
            .unwrap_err()
            .to_string(),
        "oracle-1 is not accepted: the cluster's oracle is oracle-0, which is alone; before another one comes, start oracle-0 again \
         with --register, and oracle-1 with the same one"
    );
    assert_eq!(
        world
            .directory
            .heartbeat(now, oracle("tablet-0"))
            .unwrap_err()
            .to_string(),
        "tablet-0 is known as a tablet server, and now calls itself an oracle"
    );
}

#[test]
fn an_oracle_that_has_lost_its_folder_is_refused() {
    let mut world = World::new(0);
    let now = world.now;
    let mut beat = |cluster_id: Option<String>| {
        world.directory.heartbeat(
            now,
            Heartbeat {
                cluster_id,
                ..oracle("oracle-0")
            },
        )
    };
    // It may die before it has written down what it was told.
    let cluster_id = beat(None).unwrap().cluster_id;
    assert_eq!(beat(None).unwrap().cluster_id, cluster_id);
    assert_eq!(
        beat(Some(cluster_id.clone())).unwrap().cluster_id,
        cluster_id
    );
    let refused = beat(None).unwrap_err();
    assert!(matches!(refused, Refusal::ForgetfulOracle { .. }));
    assert!(
        refused
            .to_string()
            .contains("bring its folder or volume back"),
        "{refused}"
    );
    // The folder is back.
    assert_eq!(
        beat(Some(cluster_id.clone())).unwrap().cluster_id,
        cluster_id
    );
    // The next life of the master knows it too.
    let state = world.state().encode();
    let mut restarted = Directory::open(Start::State(state), Settings::default(), RANDOM).unwrap();
    let refused = restarted.heartbeat(now, oracle("oracle-0")).unwrap_err();
    assert!(matches!(refused, Refusal::ForgetfulOracle { .. }));
}

#[test]
fn malformed_heartbeats_change_nothing() {
    let mut world = World::new(1);
    let before = world.state().clone();
    let good = world.heartbeat_of("tablet-0");
    let with = |tablet| Heartbeat {
        tablets: vec![tablet],
        ..good.clone()
    };
    for beat in [
        Heartbeat {
            server: "Tablet 0".into(),
            ..good.clone()
        },
        Heartbeat {
            address: "tablet-0".into(),
            ..good.clone()
        },
        Heartbeat {
            address: ":7402".into(),
            ..good.clone()
        },
        with(report(0, 1, "a", ("", ""), 1)),
        with(report(u64::MAX, 1, "a", ("", ""), 1)),
        with(report(1, 0, "a", ("", ""), 1)),
        with(report(1, u32::MAX, "a", ("", ""), 1)),
        with(report(1, 1, "", ("", ""), 1)),
        with(report(1, 1, "a", ("m", "m"), 1)),
        with(report(1, 1, "a", ("", ""), 0)),
    ] {
        let refused = world.directory.heartbeat(world.now, beat.clone());
        assert!(
            matches!(refused, Err(Refusal::Heartbeat { .. })),
            "{beat:?}"
        );
    }
    assert_eq!(world.state(), &before);
}

#[test]
fn a_master_without_a_state_refuses_everybody_and_writes_nothing() {
    let start = Start::NoState { cluster_id: None };
    let mut directory = Directory::open(start, Settings::default(), RANDOM).unwrap();
    let refused = directory.heartbeat(Duration::ZERO, oracle("oracle-0"));
    assert_eq!(refused, Err(Refusal::NoState));
    assert_eq!(
        directory.create_table(Duration::ZERO, "a", &[]),
        Err(Refusal::NoState)
    );
    let known = Heartbeat {
        cluster_id: Some("c0ffee".into()),
        accepted: true,
        ..oracle("oracle-0")
    };
    let refused = directory
        .heartbeat(Duration::ZERO, known.clone())
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "this master has no state, and oracle-0 belongs to cluster c0ffee: the state was lost. Nothing is begun over it. \
         Bring the master's folder or register back; or start all tablet servers, and name them to `percolator master rebuild`"
    );
    assert!(directory.take_effects().persist.is_none());

    // The master's folder may say which cluster it is.
    let start = Start::NoState {
        cluster_id: Some("beef".into()),
    };
    let mut directory = Directory::open(start, Settings::default(), RANDOM).unwrap();
    let refused = directory.heartbeat(Duration::ZERO, known).unwrap_err();
    assert!(matches!(refused, Refusal::OtherCluster { .. }), "{refused}");
}

/// A copy of a master's folder that is brought back may lack tables and servers.
#[test]
fn a_state_that_is_older_than_its_servers_refuses_them_and_drops_nothing() {
    let mut world = World::new(1);
    world.create("old", &[]).unwrap();
    let backup = world.disk.clone();
    world.create("new", &[]).unwrap();
    world.disk = backup.clone();
    world.restart();
    let refused = world.beat("tablet-0").unwrap_err();
    assert_eq!(
        refused,
        Refusal::TableNotInState {
            server: "tablet-0".into(),
            table: 2,
            name: "new".into()
        }
    );
    world.lose_state_and_rebuild();
    assert_eq!(world.state_of("new"), Some(TableState::Ready));
    world.assert_agreement("everything is back");

    world.servers.insert("tablet-1".into(), Default::default());
    world.beat("tablet-1").unwrap();
    world.servers.get_mut("tablet-0").unwrap().remove(&2);
    world.disk = backup;
    world.restart();
    world.beat("tablet-0").unwrap();
    let refused = world.beat("tablet-1").unwrap_err();
    assert_eq!(
        refused,
        Refusal::ServerNotInState {
            server: "tablet-1".into()
        }
    );
}

/// A table that is made by it would have the number, and the tablets, of one that it doesn't know.
#[test]
fn a_state_that_is_older_than_a_server_makes_no_table_and_takes_none_for_another_one() {
    let mut world = World::new(2);
    world.create("old", &[]).unwrap();
    world.beat_all();
    let backup = world.disk.clone();
    world.create("new", &[]).unwrap();
    let with_new = world.directory.tablets().get(2).unwrap().owner.clone();
    let without = ["tablet-0", "tablet-1"][usize::from(with_new == "tablet-0")];
    world.disk = backup;
    world.restart();
    world.beat(without).unwrap();
    let refused = world.beat(&with_new).unwrap_err();
    assert!(matches!(refused, Refusal::TableNotInState { .. }));
    world.now += HEARTBEAT_TIMEOUT;
    world.beat(without).unwrap();
    assert_eq!(world.create("other", &[]), Err(refused.clone()));
    // The server was stopped for a while.
    world.now += Duration::from_secs(120);
    world.beat(without).unwrap();
    assert_eq!(world.create("other", &[]), Ok(2));
    assert_eq!(world.beat(&with_new), Err(refused));
}

#[test]
fn of_overlapping_reports_the_higher_epoch_wins() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    // A split, as its owner reports it.
    let owner = world.servers.get_mut("tablet-0").unwrap();
    owner.insert(1, report(1, 1, "a", ("", "m"), 2));
    owner.insert(9, report(9, 1, "a", ("m", ""), 2));
    world.beat_all();
    let split = ["a ready 1@2 [..m) tablet-0", "a ready 9@2 [m..) tablet-0"];
    assert_eq!(world.rows(), split);

    // An older copy elsewhere is ignored, and noted once.
    world
        .servers
        .get_mut("tablet-1")
        .unwrap()
        .insert(1, report(1, 1, "a", ("", ""), 1));
    world.beat_all();
    world.beat_all();
    assert_eq!(world.rows(), split);
    let notes: Vec<String> = world.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "tablet-1 reports tablet 1 at epoch 1, but the directory has tablet 1 of tablet-0 at \
          epoch 2 for these rows: the report is ignored"
        ]
    );

    // A newer owner takes the rows; those that are not covered any more have no place.
    world
        .servers
        .get_mut("tablet-1")
        .unwrap()
        .insert(1, report(1, 1, "a", ("", "t"), 3));
    world.servers.get_mut("tablet-0").unwrap().clear();
    world.beat_all();
    assert_eq!(world.rows(), ["a ready 1@3 [..t) tablet-1"]);
    world
        .servers
        .get_mut("tablet-0")
        .unwrap()
        .insert(10, report(10, 1, "a", ("t", ""), 3));
    world.beat_all();
    assert_eq!(
        world.rows(),
        ["a ready 1@3 [..t) tablet-1", "a ready 10@3 [t..) tablet-0"]
    );
}

#[test]
fn what_a_server_said_of_its_disk_is_known_when_it_is_started_again() {
    let mut world = World::new(2);
    let failed = |world: &World| {
        let said = directory_response(&world.directory, world.now).unwrap();
        let server = said.servers.iter().find(|it| it.server == "tablet-0");
        let server = server.unwrap();
        (server.failures, server.failure.len(), server.failed_ms_ago)
    };
    assert_eq!(failed(&world), (0, 0, 0));
    for incarnation in 1..3 {
        let began = Heartbeat {
            incarnation,
            ..world.heartbeat_of("tablet-0")
        };
        world.directory.heartbeat(world.now, began.clone()).unwrap();
        let ends = Heartbeat {
            accepted: true,
            leaving: true,
            failure: "the store is damaged".repeat(100),
            ..began
        };
        world.directory.heartbeat(world.now, ends).unwrap();
    }
    world.now += Duration::from_secs(60);
    let again = Heartbeat {
        incarnation: 3,
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, again).unwrap();
    assert_eq!(failed(&world), (2, 1000, 60_000));
}

#[test]
fn servers_beat_often_while_a_master_is_about_to_end() {
    let mut world = World::new(3);
    world.beat_all();
    let interval = |world: &mut World, server: &str| world.beat(server).unwrap().interval;
    assert_eq!(interval(&mut world, "tablet-0"), HEARTBEAT_INTERVAL);
    // One of them is down, and isn't waited for.
    world.down.push("tablet-2".into());
    world.now += 2 * HEARTBEAT_TIMEOUT;
    world.beat_all();
    assert!(!world.directory.announce_end(world.now));
    assert!(interval(&mut world, "tablet-0") <= HEARTBEAT_INTERVAL / 10);
    assert!(!world.directory.announce_end(world.now));
    interval(&mut world, "tablet-1");
    assert!(world.directory.announce_end(world.now));
}
