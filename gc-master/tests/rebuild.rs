//! A state that was lost, and is rebuilt from the tablet servers that a person names.

use std::time::Duration;

use crate::world::{World, copy, oracle, report};
use percolator_gc_master::{
    Departed, Heartbeat, Note, RebuildCommand, Rebuilt, Refusal, TableState, locate,
};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A heartbeat of the cluster's oracle, which this master refuses.
fn report_oracle(world: &mut World, name: &str, register: u64) {
    let beat = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        oracle_register: register,
        high_ts: Timestamp::from_millis(world.oracle_ms + 3_000),
        time: Timestamp::from_millis(world.oracle_ms),
        ..oracle(name)
    };
    world.directory.heartbeat(world.now, beat).unwrap_err();
}

/// Asks what would be rebuilt.
fn shown(world: &mut World, servers: &[&str]) -> Rebuilt {
    let request = RebuildCommand {
        tablet_servers: names(servers),
        write: false,
        accept_data_loss: false,
    };
    let shown = world.directory.rebuild(world.now, &request).unwrap();
    assert!(!shown.written);
    assert!(world.directory.take_effects().persist.is_none());
    shown
}

#[test]
fn tables_are_back_with_their_names_and_ids_and_points() {
    let mut world = World::new(2);
    world.create("accounts", &["g", "p"]).unwrap();
    world.create("gone", &[]).unwrap();
    world.create("log", &[]).unwrap();
    world.delete("gone").unwrap();
    let points = Points {
        barrier: Timestamp::from_u64(9 << 40),
        safe_point: Timestamp::from_u64(8 << 40),
        resolved: Timestamp::from_u64(7 << 40),
    };
    world.points.insert("tablet-1".into(), points);
    let highest = |world: &World, server: &str| world.points[server];
    let expected = points.raised(highest(&world, "tablet-0"));
    let before = world.rows();
    let next = world.state().next_table_id;
    world.lose_state();
    world.report_all();
    report_oracle(&mut world, "tso-0", 0);
    assert!(world.disk.is_none(), "nothing is begun by itself");
    let before_writing = shown(&mut world, &["tablet-0", "tablet-1"]);
    assert_eq!(before_writing.problems, names(&[]));
    assert_eq!(before_writing.losses, names(&[]));
    let rebuilt = world.rebuild(false);
    assert!(rebuilt.written);
    assert_eq!(rebuilt.tables, before_writing.tables);
    assert_eq!(world.state().gc.points(), expected);
    assert!(world.state().next_table_id > next);
    assert!(world.state().servers["tso-0"].adopted);
    world.beat_all();
    assert_eq!(world.rows(), before);
    assert_eq!(world.state_of("gone"), None);
    world.assert_agreement("after the rebuild");
    // It is a state as any: another start goes on with it, and nothing is rebuilt over it.
    world.restart();
    world.beat_all();
    assert_eq!(world.rows(), before);
    let request = RebuildCommand::default();
    let refused = world.directory.rebuild(world.now, &request).unwrap_err();
    assert!(matches!(refused, Refusal::HasState { .. }), "{refused}");
    let notes: Vec<&Note> = world.notes.iter().collect();
    assert!(
        matches!(
            notes[..],
            [Note::Rebuilt {
                servers: 2,
                tables: 2,
                ..
            }]
        ),
        "{notes:?}"
    );
}

/// The rule that drops leftovers must not take a server's data for a leftover.
#[test]
fn a_server_that_was_left_out_is_refused_and_loses_nothing() {
    let mut world = World::new(3);
    world.create("a", &[]).unwrap();
    world.create("b", &[]).unwrap();
    assert!(world.servers["tablet-1"].contains_key(&2));
    world.down.push("tablet-1".into());
    world.lose_state();
    world.report_all();
    report_oracle(&mut world, "tso-0", 0);
    assert!(world.rebuild(false).written);
    // No answer says that its table is gone: transactions may have committed there.
    let located = |world: &World| {
        let row = v1::RowToLocate {
            table_id: 2,
            ..v1::RowToLocate::default()
        };
        let request = v1::LocateRequest {
            rows: vec![row],
            ..v1::LocateRequest::default()
        };
        locate(&world.directory, &request).unwrap().deleted_tables
    };
    assert_eq!(located(&world), [0; 0]);
    world.down.clear();
    for _ in 0..2 {
        let refused = world.beat("tablet-1").unwrap_err();
        let server = "tablet-1".into();
        assert_eq!(refused, Refusal::ServerNotInState { server });
    }
    assert!(world.servers["tablet-1"].contains_key(&2));
    // With an empty folder it joins.
    world.servers.get_mut("tablet-1").unwrap().clear();
    world.members.remove("tablet-1");
    world.beat("tablet-1").unwrap();
}

#[test]
fn every_named_server_has_to_report_and_every_other_one_to_be_named() {
    let mut world = World::new(3);
    world.create("a", &["g", "p"]).unwrap();
    world.down.push("tablet-2".into());
    world.lose_state();
    world.report_all();
    let all = ["tablet-0", "tablet-1", "tablet-2"];
    let problems = shown(&mut world, &all).problems;
    assert_eq!(
        problems,
        [
            "no heartbeat in the last 10 s: tablet-2. Start them; or don't name those that are gone for good, with their rows"
        ]
    );
    assert!(!world.rebuild_from(names(&all), true).written);
    let problems = shown(&mut world, &all[..1]).problems;
    assert_eq!(
        problems,
        [
            "these report as tablet servers of the cluster, and are not named: tablet-1. Name them, or stop them"
        ]
    );
    let problems = shown(&mut world, &[]).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    // What was heard long ago counts no more.
    world.down.clear();
    world.beat("tablet-2").unwrap_err();
    world.now += Duration::from_secs(10);
    world.beat("tablet-0").unwrap_err();
    let problems = shown(&mut world, &all).problems;
    assert!(problems[0].contains("tablet-1, tablet-2"), "{problems:?}");
    // Two processes of one name.
    world.report_all();
    let other = Heartbeat {
        incarnation: 7,
        ..world.heartbeat_of("tablet-0")
    };
    world
        .directory
        .heartbeat(world.now, other.clone())
        .unwrap_err();
    let problems = shown(&mut world, &all).problems;
    assert!(problems[0].contains("two processes"), "{problems:?}");
    // But one that has the folder of the other on the same machine.
    let next = Heartbeat {
        incarnation: 8,
        replaces: vec![1, 7],
        ..other
    };
    world.directory.heartbeat(world.now, next).unwrap_err();
    assert_eq!(shown(&mut world, &all).problems, names(&[]));
}

#[test]
fn rows_that_no_server_has_are_named_and_become_empty_if_they_are_given_up() {
    let mut world = World::new(2);
    world.create("a", &["g", "p"]).unwrap();
    world.servers.get_mut("tablet-1").unwrap().clear();
    world.lose_state();
    world.report_all();
    report_oracle(&mut world, "tso-0", 0);
    let all = ["tablet-0", "tablet-1"];
    let lost = ["no server has the rows [\"g\"..\"p\") of table a (1)"];
    assert_eq!(shown(&mut world, &all).losses, lost);
    assert!(!world.rebuild(false).written);
    let rebuilt = world.rebuild(true);
    assert!(rebuilt.written);
    assert_eq!(rebuilt.tables[0].gaps, 1);
    // Another start of the master makes what this one didn't.
    world.restart();
    world.beat_all();
    world.beat_all();
    assert_eq!(world.state_of("a"), Some(TableState::Ready));
    assert_eq!(world.rows().len(), 3);
    assert!(
        world.rows()[1].contains("[g..p) tablet-1"),
        "{:?}",
        world.rows()
    );
    world.assert_agreement("an empty tablet is there");
}

#[test]
fn an_empty_folder_and_a_missing_oracle_are_losses() {
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.lose_state();
    world.members.remove("tablet-1");
    let beat = world.heartbeat_of("tablet-1");
    let refused = world.directory.heartbeat(world.now, beat).unwrap_err();
    assert_eq!(refused, Refusal::NoState);
    let seen = Heartbeat {
        high_ts: Timestamp::from_millis(5_000),
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, seen).unwrap_err();
    let losses = shown(&mut world, &["tablet-0", "tablet-1"]).losses;
    assert_eq!(losses.len(), 2, "{losses:?}");
    assert!(losses[0].contains("empty folder") && losses[0].ends_with("tablet-1"));
    assert!(losses[1].contains("no oracle"));
    assert!(world.rebuild(true).written);
    assert!(!world.state().servers.contains_key("tablet-1"));
    // Above what the lost oracle can have granted.
    assert!(world.state().highest_seen > Timestamp::from_millis(20_000).as_u64());
    world.beat_all();
    // An oracle of a register and one that is alone.
    world.lose_state();
    world.report_all();
    report_oracle(&mut world, "tso-0", 9);
    report_oracle(&mut world, "tso-1", 9);
    let all = ["tablet-0", "tablet-1"];
    assert_eq!(shown(&mut world, &all).problems, names(&[]));
    report_oracle(&mut world, "tso-1", 0);
    assert_eq!(shown(&mut world, &all).problems.len(), 1);
}

#[test]
fn reports_that_contradict_each_other_are_named() {
    let mut world = World::new(3);
    world.create("a", &["m"]).unwrap();
    world.create("b", &[]).unwrap();
    world.own("tablet-2", report(7, 1, "a", ("", "m"), 1));
    world.lose_state();
    world.report_all();
    let all = ["tablet-0", "tablet-1", "tablet-2"];
    let problems = shown(&mut world, &all).problems;
    assert_eq!(
        problems,
        [
            "tablet-2 and tablet-0 have the same rows of table a (1), in tablets 7 and 1 with epoch 1: start one of both with an \
          empty folder"
        ]
    );
    // The higher epoch wins.
    world.lose_state();
    world.own("tablet-2", report(7, 1, "a", ("", "m"), 2));
    world.report_all();
    assert!(world.rebuild(true).written);
    world.beat_all();
    assert!(
        world
            .rows()
            .contains(&"a ready 7@2 [..m) tablet-2".to_owned())
    );
    // Two tables of one name.
    world.lose_state();
    world.own("tablet-2", report(9, 5, "b", ("", ""), 1));
    world.report_all();
    let problems = shown(&mut world, &all).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("tables 2 and 5 have the same name, b"),
        "{problems:?}"
    );
    // Servers of two clusters.
    world.lose_state();
    world.report_all();
    let foreign = Heartbeat {
        cluster_id: Some("ffff".into()),
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, foreign).unwrap_err();
    let problems = shown(&mut world, &all).problems;
    assert!(problems[0].contains("several clusters"), "{problems:?}");
}

/// What is left of the table looks like one of which tablets are lost.
#[test]
fn a_drop_goes_on_when_the_state_is_lost_in_the_middle() {
    for step in 0.. {
        let mut world = World::new(3);
        world.create("a", &["g", "p"]).unwrap();
        world.create("b", &[]).unwrap();
        world.freeze("a").unwrap();
        world.time_deletions();
        world.effects_left = step;
        world.pass_deletions();
        let crashed = world.crashed;
        world.lose_state();
        world.report_all();
        let rebuilt = world.rebuild(true);
        assert!(rebuilt.written, "{rebuilt:?}");
        let gaps: u64 = rebuilt.tables.iter().map(|table| table.gaps).sum();
        assert_eq!(gaps, 0, "step {step}: what was dropped is not lost");
        world.now += Duration::from_secs(2);
        world.beat_all();
        let held = world.servers.values().flat_map(|tablets| tablets.values());
        let left = held.filter(|tablet| tablet.table.0 == 1).count();
        match left {
            0 => assert_eq!(world.state_of("a"), None, "step {step}"),
            // Nobody has dropped anything: what was frozen is, and gets a time anew.
            3 => assert!(world.directory.is_frozen(1), "step {step}"),
            // One that was dropped says that the others may go.
            _ => assert_eq!(world.state().tables[&1].drop_at, Some(0), "step {step}"),
        }
        world.pass_deletions();
        assert_eq!(world.state_of("a"), None, "step {step}");
        assert_eq!(world.state_of("b"), Some(TableState::Ready), "step {step}");
        world.assert_agreement(&format!("step {step}"));
        if !crashed {
            assert!(step > 7, "three tablets, each dropped and answered");
            return;
        }
    }
}

/// Commands of the master that lost its state may arrive when the new one has begun.
#[test]
fn late_commands_of_the_master_before_do_no_harm() {
    // To drop a tablet of a table that is being deleted.
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.freeze("a").unwrap();
    world.lose_state();
    world.report_all();
    assert!(world.rebuild(true).written);
    world.servers.get_mut("tablet-0").unwrap().clear();
    world
        .deleted
        .entry("tablet-0".into())
        .or_default()
        .insert(1);
    world.beat_all();
    assert_eq!(world.state_of("a"), None);
    world.assert_agreement("dropped");

    // To make the first tablet of a table that no server had reported.
    let mut world = World::new(2);
    world.create("a", &[]).unwrap();
    world.lose_state();
    world.report_all();
    assert!(world.rebuild(true).written);
    world.beat_all();
    let late = report(9, 2, "late", ("", ""), 1);
    world.servers.get_mut("tablet-0").unwrap().insert(9, late);
    // Also by a start that comes after it, and to a master that has started again.
    world.restart();
    let beat = Heartbeat {
        incarnation: 77,
        accepted: false,
        replaces: vec![1],
        replaces_accepted: true,
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, beat).unwrap();
    world.carry_out();
    world.incarnations.insert("tablet-0".into(), 77);
    world.beat_all();
    assert_eq!(world.state_of("late"), None);
    world.assert_agreement("it was never there");
    let id = world.create("new", &[]);
    assert_eq!(id.map(|id| id > 65_535), Ok(true));
}

#[test]
fn ids_that_were_given_before_the_state_was_lost_are_not_given_again() {
    let mut world = World::new(1);
    world.create("a", &[]).unwrap();
    let mut given = vec![world.create("first", &[]).unwrap()];
    for round in 0..3 {
        world.lose_state_and_rebuild();
        let kept = world.create(&format!("kept{round}"), &[]).unwrap();
        let gone = world.create("gone", &[]).unwrap();
        let dropped = world.servers["tablet-0"].keys().copied().max().unwrap();
        world.delete("gone").unwrap();
        world.lose_state_and_rebuild();
        let new = world.create(&format!("new{round}"), &[]).unwrap();
        given.extend([kept, gone, new]);
        assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
        assert!(!world.servers["tablet-0"].contains_key(&dropped));
    }
}

/// Some of its tablets were never made.
#[test]
fn a_table_whose_creation_was_lost_is_made_to_the_end_or_deleted() {
    for delete in [false, true] {
        let mut world = World::new(2);
        world.down.push("tablet-1".into());
        world.create("a", &["m"]).unwrap();
        assert_eq!(world.state_of("a"), Some(TableState::Creating));
        world.down.clear();
        world.lose_state();
        world.report_all();
        let rebuilt = world.rebuild(true);
        assert!(rebuilt.written && rebuilt.tables[0].gaps == 1);
        world.now += Duration::from_secs(2);
        if delete {
            world.beat("tablet-0").unwrap();
            world.freeze("a").unwrap();
            world.beat_all();
            world.pass_deletions();
            assert_eq!(world.state_of("a"), None);
        } else {
            world.beat_all();
            world.beat_all();
            assert_eq!(world.state_of("a"), Some(TableState::Ready));
        }
        world.assert_agreement("after all");
    }
}

#[test]
fn a_lost_tablet_is_not_frozen_by_making_an_empty_one() {
    let mut world = World::new(2);
    world.create("a", &["m"]).unwrap();
    world.servers.get_mut("tablet-1").unwrap().clear();
    world.freeze("a").unwrap();
    world.beat_all();
    assert!(!world.directory.is_frozen(1));
    assert!(world.servers["tablet-1"].is_empty());
    assert_eq!(
        world.directory.waits_for(1, world.now),
        "tablet-1 (up); the last command to tablet-1 failed: tablet 2 is lost"
    );
}

#[test]
fn why_a_command_fails_is_noted_once_for_each_change() {
    let mut world = World::new(1);
    world.down.push("tablet-0".into());
    world.create("a", &[]).unwrap();
    for _ in 0..5 {
        world.down.clear();
        let beat = world.heartbeat_of("tablet-0");
        world.down.push("tablet-0".into());
        world.directory.heartbeat(world.now, beat).unwrap();
        world.carry_out();
    }
    let failed = |note: &&Note| matches!(note, Note::Failed { .. });
    let told: Vec<String> = world
        .notes
        .iter()
        .filter(failed)
        .map(Note::to_string)
        .collect();
    assert_eq!(
        told,
        ["tablet-0 has not carried out a command for tablet 1, it is asked again: it is down"]
    );
    assert!(world.sent.len() > 5, "it was asked again");
}

/// Servers remember the ids of tablets that were merged: clients may still name them.
#[test]
fn ids_of_tablets_that_are_gone_are_not_given_again() {
    let mut world = World::new(1);
    world.create("a", &[]).unwrap();
    world.lose_state();
    let beat = Heartbeat {
        highest_tablet_id: 1 << 33,
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, beat).unwrap_err();
    report_oracle(&mut world, "tso-0", 0);
    assert!(world.rebuild_from(names(&["tablet-0"]), true).written);
    assert!(world.state().next_tablet_id > 1 << 33);
    // A state that is older than what a server reports goes on above that, too.
    let beat = Heartbeat {
        highest_tablet_id: 1 << 40,
        ..world.heartbeat_of("tablet-0")
    };
    world.directory.heartbeat(world.now, beat).unwrap();
    assert!(world.state().next_tablet_id > 1 << 40);
}

#[test]
fn a_tablet_that_is_to_be_made_yields_to_one_that_its_server_made_for_the_master_before() {
    let mut world = World::new(2);
    world.down.push("tablet-1".into());
    let table = world.create("accounts", &["m"]).unwrap();
    // Its making was on its way to a disk that stood still.
    world.down.clear();
    world.own("tablet-1", report(77, table, "accounts", ("m", ""), 1));
    world.beat("tablet-1").unwrap();
    assert_eq!(
        world.rows(),
        [
            "accounts ready 1@1 [..m) tablet-0",
            "accounts ready 77@1 [m..) tablet-1"
        ]
    );
    assert!(world.directory.state().unwrap().unreported.is_empty());
}

/// The new owner has all of it, and has not heard yet that it is its.
#[test]
fn a_tablet_that_was_handed_over_and_is_not_served_yet_is_not_lost() {
    let mut world = World::new(3);
    world.create("alone", &[]).unwrap();
    world.create("cut", &["m"]).unwrap();
    let owned = world.servers.iter();
    let owned = owned.flat_map(|(server, tablets)| tablets.keys().map(|id| (server.clone(), *id)));
    let owned: Vec<(String, u64)> = owned.collect();
    let (owner, _) = owned.iter().find(|(_, id)| *id == 1).unwrap().clone();
    let to = ["tablet-0", "tablet-1"]
        .into_iter()
        .find(|it| *it != owner)
        .unwrap();
    let mut tablet = world.servers.get_mut(&owner).unwrap().remove(&1).unwrap();
    tablet.epoch += 1;
    world.lose_state();
    world.report_all();
    report_oracle(&mut world, "tso-0", 0);
    let mut beat = world.heartbeat_of(&owner);
    beat.departed = vec![Departed {
        tablet,
        to: to.to_owned(),
    }];
    world
        .directory
        .heartbeat(world.now, beat.clone())
        .unwrap_err();
    let all = ["tablet-0", "tablet-1", "tablet-2"];
    let before_writing = shown(&mut world, &all);
    assert_eq!(before_writing.losses, names(&[]));
    let tables = before_writing.tables.iter();
    let tables: Vec<(&str, usize)> = tables.map(|it| (&*it.table.name, it.tablets)).collect();
    assert_eq!(tables, [("alone", 1), ("cut", 2)]);
    assert!(world.rebuild(false).written);
    // Its rows at the server that had it stay until the other one reports them.
    let reply = world.directory.heartbeat(world.now, beat.clone()).unwrap();
    assert_eq!(reply.settled_moves, [0_u64; 0]);
    world.carry_out();
    world.own(to, beat.departed[0].tablet.clone());
    world.beat(to).unwrap();
    let reply = world.directory.heartbeat(world.now, beat).unwrap();
    assert_eq!(reply.settled_moves, [1]);
}

#[test]
fn a_copy_whose_owner_is_gone_is_a_loss() {
    let mut world = World::new(3);
    world.create("alone", &[]).unwrap();
    world.beat_all();
    let owner = world.directory.tablets().get(1).unwrap().owner.clone();
    let to = ["tablet-1", "tablet-2"][usize::from(owner == "tablet-1")];
    let losses = |world: &mut World| {
        world.lose_state();
        world.report_all();
        report_oracle(world, "tso-0", 0);
        let mut beat = world.heartbeat_of(to);
        beat.arriving = vec![copy(1, 1, &owner)];
        world.directory.heartbeat(world.now, beat).unwrap_err();
        shown(world, &["tablet-0", "tablet-1", "tablet-2"]).losses
    };
    // Its owner is there.
    assert_eq!(losses(&mut world), names(&[]));
    world.servers.get_mut(&owner).unwrap().clear();
    let lost = losses(&mut world);
    let told = format!("{to} has a copy of tablet 1 of table 1, which {owner} has not handed over");
    assert!(lost.iter().any(|it| it.starts_with(&told)), "{lost:?}");
    assert!(!world.rebuild(false).written);
}
