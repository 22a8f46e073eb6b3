//! Tablets are split and merged for somebody who asks for it: their owners do it, and the directory follows.

use std::time::Duration;

use crate::world::World;
use percolator_gc_master::{
    Action, HEARTBEAT_TIMEOUT, Heartbeat, Merging, Pending, Refusal, Splitting,
};

fn splitting(rows: &[&str]) -> Splitting {
    let rows = rows.iter().map(|row| row.as_bytes().to_vec());
    Splitting::new("accounts".into(), rows.collect())
}

fn merging(row: &str) -> Merging {
    Merging::new("accounts".into(), row.to_owned().into())
}

/// Goes on until it is done, or has to wait for more than commands.
fn split(world: &mut World, rows: &[&str]) -> Result<bool, Refusal> {
    go_on_with(world, &mut splitting(rows))
}

fn go_on_with(world: &mut World, splitting: &mut Splitting) -> Result<bool, Refusal> {
    let mut done = false;
    for _ in 0..10 {
        done = matches!(
            splitting.go_on(&mut world.directory, world.now)?,
            Pending::Done(_)
        );
        world.carry_out();
        if done {
            break;
        }
    }
    Ok(done)
}

fn merge(world: &mut World, row: &str) -> Result<bool, Refusal> {
    let mut merging = merging(row);
    let first = merging.go_on(&mut world.directory, world.now)?;
    world.carry_out();
    Ok(matches!(first, Pending::Done(_))
        || matches!(
            merging.go_on(&mut world.directory, world.now)?,
            Pending::Done(_)
        ))
}

fn world() -> World {
    let mut world = World::new(2);
    world.create("accounts", &["m"]).unwrap();
    world.beat_all();
    world
}

#[test]
fn each_row_is_the_first_of_a_tablet_then() {
    let mut world = world();
    assert_eq!(split(&mut world, &["c", "h", "m", "t"]), Ok(true));
    let rows = [
        "accounts ready 1@2 [..c) tablet-0",
        "accounts ready 5@3 [c..h) tablet-0",
        "accounts ready 6@3 [h..m) tablet-0",
        "accounts ready 2@2 [m..t) tablet-1",
        "accounts ready 4@2 [t..) tablet-1",
    ];
    let parts = |world: &World| {
        let mut rows = world.rows();
        rows.iter_mut().for_each(|row| {
            // Ids and epochs go by the order of commands.
            let (head, tail) = row.split_once(" [").unwrap();
            let head = head.split(' ').take(2).collect::<Vec<_>>().join(" ");
            *row = format!("{head} [{tail}");
        });
        rows
    };
    let expected: Vec<String> = rows
        .iter()
        .map(|row| {
            let (_, tail) = row.split_once(" [").unwrap();
            format!("accounts ready [{tail}")
        })
        .collect();
    assert_eq!(parts(&world), expected);
    world.assert_agreement("split");
    assert_eq!(world.notes, []);

    // Heartbeats say the same, also to a master that starts again, and to one whose state is older than the split.
    world.beat_all();
    assert_eq!(parts(&world), expected);
    let mut known = world.directory.state().unwrap().clone();
    known.next_tablet_id = 3;
    world.restart();
    world.beat_all();
    assert_eq!(parts(&world), expected);
    world.disk = Some(known.encode());
    world.restart();
    world.beat_all();
    assert_eq!(parts(&world), expected);
    // No tablet's id is given twice.
    world.create("more", &[]).unwrap();
    world.assert_agreement("after a restart");
    // It is deleted as one.
    world.beat_all();
    world.delete("accounts").unwrap();
    world.assert_agreement("deleted");
    assert!(
        world.rows().iter().all(|row| row.starts_with("more ")),
        "{:?}",
        world.rows()
    );
}

#[test]
fn neighbours_of_one_server_become_one() {
    let mut world = world();
    split(&mut world, &["c"]).unwrap();
    assert_eq!(merge(&mut world, "c"), Ok(true));
    assert_eq!(
        world.rows(),
        [
            "accounts ready 1@3 [..m) tablet-0",
            "accounts ready 2@1 [m..) tablet-1"
        ]
    );
    world.assert_agreement("merged");
    world.beat_all();
    world.assert_agreement("heard");
    assert_eq!(world.notes, []);
    // There is nothing to do.
    assert_eq!(merge(&mut world, "c"), Ok(true));
}

#[test]
fn neighbours_of_two_servers_are_moved_together_first() {
    for drained in [None, Some("tablet-0")] {
        let mut world = world();
        if let Some(server) = drained {
            world.drain(server, true).unwrap();
        }
        let (tablet, from, to) = match drained {
            None => (2, "tablet-1", "tablet-0"),
            Some(_) => (1, "tablet-0", "tablet-1"),
        };
        let mut merging = merging("m");
        let mut go_on = |world: &mut World| {
            let result = merging.go_on(&mut world.directory, world.now);
            world.carry_out();
            matches!(result.unwrap(), Pending::Done(_))
        };
        assert!(!go_on(&mut world));
        let sent = world.sent.last().unwrap();
        assert!(
            matches!(&sent.action, Action::Import { tablet: moved, .. } if moved.id == tablet),
            "{sent:?}"
        );
        assert_eq!(sent.server, to);
        let departed = world.hand_over(tablet, from, to);
        let beat = Heartbeat {
            departed: vec![departed],
            ..world.heartbeat_of(from)
        };
        world.directory.heartbeat(world.now, beat).unwrap();
        assert!(!go_on(&mut world), "nobody reports it yet");
        world.beat(to).unwrap();
        assert!(!go_on(&mut world), "its owner is asked now");
        let sent = world.sent.last().unwrap();
        assert!(matches!(sent.action, Action::Merge { .. }), "{sent:?}");
        assert!(go_on(&mut world));
        let row = format!("accounts ready 1@3 [..) {to}");
        assert_eq!(world.rows(), [row]);
    }
}

#[test]
fn what_can_t_be_split_or_merged_says_why() {
    let mut world = world();
    let said = |result: Result<bool, Refusal>| result.unwrap_err().to_string();
    assert!(said(split(&mut world, &[""])).contains("it is empty"));
    assert!(said(split(&mut world, &["h", "c"])).contains("not greater"));
    assert!(said(merge(&mut world, "")).contains("it is empty"));
    let mut other = Splitting::new("other".into(), vec![b"a".to_vec()]);
    let missing = other.go_on(&mut world.directory, world.now);
    assert!(matches!(missing, Err(Refusal::NoSuchTable { .. })));
    world.down.push("tablet-0".into());
    world.now += 2 * HEARTBEAT_TIMEOUT;
    world.beat_all();
    let away = split(&mut world, &["c"]);
    assert!(
        matches!(&away, Err(Refusal::OwnerAway { server, .. }) if server == "tablet-0"),
        "{away:?}"
    );
    // The master has heard of none of the first rows.
    world.restart();
    world.beat_all();
    let unplaced = split(&mut world, &["c"]);
    assert!(
        matches!(unplaced, Err(Refusal::Unplaced { .. })),
        "{unplaced:?}"
    );
    assert_eq!(split(&mut world, &["t"]), Ok(true));
}

#[test]
fn an_answer_that_is_lost_is_made_good_by_the_next_heartbeat() {
    let mut world = world();
    world.answers_lost = true;
    let mut splitting = splitting(&["c"]);
    let said = go_on_with(&mut world, &mut splitting);
    assert!(
        matches!(&said, Err(Refusal::NotCut { cause, .. }) if cause == "no answer"),
        "{said:?}"
    );
    world.answers_lost = false;
    world.beat("tablet-0").unwrap();
    assert_eq!(go_on_with(&mut world, &mut splitting), Ok(true));
    assert_eq!(world.rows().len(), 3);
    world.assert_agreement("heard");
}

/// Both of its tablets are commanded again.
#[test]
fn a_table_whose_merge_has_failed_can_be_deleted() {
    let mut world = world();
    split(&mut world, &["c"]).unwrap();
    world.down.push("tablet-0".to_owned());
    let said = merge(&mut world, "c");
    assert!(matches!(&said, Err(Refusal::NotCut { .. })), "{said:?}");
    world.down.clear();
    world.beat_all();
    world.delete("accounts").unwrap();
    world.beat_all();
    assert_eq!(world.rows(), [""; 0]);
    world.assert_agreement("deleted");
}

/// A server that is slow to answer doesn't let people wait for ever, and is named.
#[test]
fn a_pending_request_names_the_servers_that_it_waits_for() {
    let mut world = world();
    let mut splitting = splitting(&["c"]);
    splitting.go_on(&mut world.directory, world.now).unwrap();
    world.directory.take_effects();
    world.now += Duration::from_secs(5);
    world.beat_all();
    let said = splitting
        .go_on(&mut world.directory, world.now)
        .unwrap_err();
    let words = "tablet 1 is to be split: it waits for tablet-0";
    assert_eq!(said.to_string(), words);
}

/// Somebody else who asks for the same waits for the same command, and no id is taken meanwhile.
#[test]
fn two_who_ask_for_one_split_share_it() {
    let mut world = world();
    let mut both = [splitting(&["c"]), splitting(&["c"])];
    both[0].go_on(&mut world.directory, world.now).unwrap();
    let next = world.state().next_tablet_id;
    for _ in 0..5 {
        let waits = both[1].go_on(&mut world.directory, world.now).unwrap();
        assert!(matches!(waits, Pending::Wait { .. }));
    }
    assert_eq!(world.state().next_tablet_id, next);
    world.carry_out();
    for splitting in &mut both {
        let done = splitting.go_on(&mut world.directory, world.now).unwrap();
        assert!(matches!(done, Pending::Done(_)));
    }
    assert_eq!(world.rows().len(), 3);
}

/// A move that comes before a merge takes its time from the same request timeout.
#[test]
fn a_merge_that_moves_first_waits_no_longer_than_others() {
    let mut world = world();
    let mut merging = merging("m");
    merging.go_on(&mut world.directory, world.now).unwrap();
    world.carry_out();
    world.now += Duration::from_secs(3);
    world.beat_all();
    let departed = world.hand_over(2, "tablet-1", "tablet-0");
    let beat = Heartbeat {
        departed: vec![departed],
        ..world.heartbeat_of("tablet-1")
    };
    world.directory.heartbeat(world.now, beat).unwrap();
    world.beat("tablet-0").unwrap();
    // Its owner hears of the merge, and does not answer.
    merging.go_on(&mut world.directory, world.now).unwrap();
    world.directory.take_effects();
    world.now += Duration::from_secs(1);
    let late = merging.go_on(&mut world.directory, world.now);
    assert!(matches!(late, Err(Refusal::Pending { .. })), "{late:?}");
}
