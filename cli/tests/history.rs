//! Histories of real clusters whose processes are killed and stopped: snapshot isolation can explain them.

use crate::support;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::clients::{end_recorder, record, wait_for_commits};
use crate::support::{Choices, Cluster, Deck, SERVERS, rounds, signal, stand_still};
use percolator_history::{Op, Outcome};
use serde_json::Value;

#[derive(Clone, Copy)]
enum Event {
    RecorderKilled,
    RecorderStill,
    Still(&'static str),
    Killed(&'static str),
}

#[test]
fn snapshot_isolation_explains_what_clients_saw_of_a_cluster_that_is_killed_and_stopped() {
    let mut choices = Choices::from_env();
    let cluster = Cluster::processes();
    // Sessions have leases as short as that, and versions are collected all the while.
    cluster.run(&["gc", "set", "--retention", "2s"]).ok();
    let file = cluster.data_dir.join("../history.jsonl");
    let file = file.to_str().expect("a path of text");
    let mut recorder = record(cluster.command(&[]), file);
    let mut events = Deck::new(
        [Event::RecorderKilled, Event::RecorderStill]
            .into_iter()
            .chain(SERVERS.map(Event::Still))
            .chain(SERVERS.map(Event::Killed)),
    );
    for round in rounds(events.len(), 12) {
        wait_for_commits(&mut recorder, file, 20 + choices.below(80));
        match events.draw(&mut choices) {
            Event::RecorderKilled => {
                eprintln!("round {round}: the recorder is killed");
                signal(recorder.id(), "KILL");
                recorder.wait().expect("it ends");
                recorder = record(cluster.command(&[]), file);
            }
            // For longer than any lock lives, and than its lease: what it holds is rolled back, what it reads may be
            // too old, and then it goes on.
            Event::RecorderStill => {
                eprintln!("round {round}: the recorder stands still");
                signal(recorder.id(), "STOP");
                // Others meet its locks, and wait for no longer than a ttl, 3 s.
                cluster.run(&["scan", "history"]).ok();
                std::thread::sleep(Duration::from_millis(3_500));
                signal(recorder.id(), "CONT");
                wait_for_commits(&mut recorder, file, 20);
            }
            Event::Still(server) => {
                eprintln!("round {round}: {server} stands still");
                stand_still(cluster.pid(server), &mut choices);
            }
            Event::Killed(server) => {
                eprintln!("round {round}: {server} is killed");
                cluster.kill(server);
            }
        }
    }
    end_recorder(&mut recorder, file);
    let said = cluster.run(&["history", "check", "-o", "json", file]);
    eprintln!("{}", said.out);
    let found: Value = serde_json::from_str(&said.ok()).expect("JSON");
    assert!(found["committed"].as_u64() > Some(100), "{found}");
    assert!(found["anomaly"].is_null() && found["anomaly_without_timestamps"].is_null());
    let elle = cluster
        .run(&["history", "convert", "--to", "elle", file])
        .ok();
    assert_eq!(
        elle.lines().count() as u64,
        2 * found["transactions"].as_u64().expect("a number")
    );
    let dbcop = cluster
        .run(&["history", "convert", "--to", "dbcop", file])
        .ok();
    serde_json::from_str::<Value>(&dbcop).expect("JSON");
}

#[test]
fn what_can_not_be_explained_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.jsonl");
    let check = |text: &str| {
        std::fs::write(&file, text).expect("a writable folder");
        support::percolator(&["history", "check", file.to_str().expect("a path of text")])
    };
    let lost_update = r#"{"client":"a","outcome":"committed","ops":[{"r":["x",null]},{"w":["x","1"]}]}
{"client":"b","outcome":"committed","ops":[{"r":["x",null]},{"w":["x","2"]}]}
"#;
    let said = check(lost_update);
    assert_eq!(said.code(), 7, "{said:?}");
    assert!(said.out.contains("WRONG: lost update"), "{said:?}");
    let said = check("\n");
    assert_eq!(said.code(), 7, "{said:?}");
    assert!(said.out.starts_with("nothing to check"), "{said:?}");
    let aborted = r#"{"client":"a","outcome":"aborted","ops":[{"r":["x",null]}]}"#;
    let said = check(aborted);
    assert_eq!(said.code(), 7, "{said:?}");
    assert!(said.out.contains("nothing to check"), "{said:?}");
    assert!(!said.out.contains("holds"), "{said:?}");
    // A recorder may be killed behind any byte.
    let committed = r#"{"client":"a","outcome":"committed","ops":[{"r":["x",null]}]}"#;
    for torn in [
        r#"{"client":"b","outcome":"committed","ops":[{"r":["x",null]}"#,
        r#"{"client":"b","outco"#,
    ] {
        let said = check(&format!("{committed}\n{torn}"));
        assert_eq!(said.code(), 0, "{said:?}");
        assert!(said.err.contains("1 lines were cut off"), "{said:?}");
    }
    check("{}\n").refused(1, &["history.jsonl", "line 1", "client"]);
    let missing = support::percolator(&["history", "check", "/nowhere/history.jsonl"]);
    missing.refused(1, &["cannot read /nowhere/history.jsonl"]);
}

#[test]
fn a_history_that_is_refused_leaves_no_file() {
    let cluster = Cluster::threads();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.jsonl");
    cluster.run(&["table", "create", "used"]).ok();
    cluster.run(&["put", "used", "a", "c", "1"]).ok();
    let path = file.to_str().expect("a path of text");
    let record = ["history", "record", "--table", "used", path];
    let said = cluster.run(&record);
    said.refused(1, &["table used holds rows of before this history"]);
    assert!(!file.exists());
    let record = ["history", "record", "--duration", "1s", path];
    cluster.run(&record).ok();
    // One that is made again is another one, also while its file is gone on with.
    cluster.run(&["table", "delete", "history", "--yes"]).ok();
    cluster.run(&record).ok();
    cluster.run(&["history", "check", path]).ok();
    let of_another = folder.path().join("another.jsonl");
    let of_another = of_another.to_str().expect("a path of text");
    let record = ["history", "record", "--duration", "1s", of_another];
    cluster.run(&["table", "delete", "history", "--yes"]).ok();
    cluster.run(&record).ok();
    let said = cluster.run(&["history", "record", path]);
    said.refused(1, &["table history holds rows of before this history"]);
    let said = cluster.run(&["history", "record", "/dev/full"]);
    said.refused(1, &["no regular file"]);
}

/// One bank after the other, on these tables, each for a second; all of them in one history, which holds.
fn banks_in_one_history(tables: &[&str], between: impl Fn(&Cluster)) {
    let cluster = Cluster::threads();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.jsonl");
    let path = file.to_str().expect("a path of text");
    for table in tables {
        let bank = [
            "bank",
            "--table",
            table,
            "--accounts",
            "20",
            "--clients",
            "4",
        ];
        let more = ["--duration", "1s", "--history", path];
        cluster.run(&[&bank[..], &more].concat()).ok();
        between(&cluster);
    }
    cluster.run(&["history", "check", path]).ok();
}

#[test]
fn banks_of_several_tables_share_a_history() {
    banks_in_one_history(&["one", "two", "one"], |_| {});
}

/// Its accounts have what they had at first, which no transfer has written.
#[test]
fn a_bank_whose_table_was_made_again_is_another_one() {
    banks_in_one_history(&["one", "one"], |cluster| {
        cluster.run(&["table", "delete", "one", "--yes"]).ok();
    });
}

#[test]
fn a_recorder_that_is_interrupted_ends_what_is_under_way() {
    let cluster = Cluster::threads();
    let file = cluster.data_dir.join("../history.jsonl");
    let file = file.to_str().expect("a path of text");
    let mut recorder = record(cluster.command(&[]), file);
    wait_for_commits(&mut recorder, file, 20);
    signal(recorder.id(), "INT");
    let status = recorder.wait().expect("it ends");
    assert!(status.success(), "{status}");
    // Nothing waits for its locks or for the end of its lease.
    let said = cluster.run(&["status", "-o", "json"]).ok();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["gc"]["sessions"], 0, "{said}");
    let left = cluster.run(&["txn", "list", "-o", "json"]).ok();
    assert_eq!(left.trim(), "[]", "{left}");
    cluster.run(&["history", "check", file]).ok();
    // Its last transaction has read every row.
    let history = std::fs::read_to_string(file).expect("a history");
    let history = percolator_history::parse(&history).expect("a history");
    let written = history.iter().flat_map(|transaction| &transaction.ops);
    let written: BTreeSet<&String> = written
        .filter_map(|op| match op {
            Op::Write(cell, _) => Some(cell),
            _ => None,
        })
        .collect();
    let last = history.last().expect("a transaction");
    assert_eq!(last.outcome, Outcome::Committed, "{last:?}");
    let mut read = BTreeSet::new();
    for op in &last.ops {
        let Op::Read(cell, _) = op else {
            panic!("{last:?}");
        };
        read.insert(cell);
    }
    assert!(
        !written.is_empty() && read.is_superset(&written),
        "{last:?}"
    );
}
