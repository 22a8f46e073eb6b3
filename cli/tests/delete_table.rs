//! Deleting a table whose transactions wrote to others as well: what was answered committed stays.

use crate::support;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::raw::Raw;
use crate::support::{Cluster, block_on};
use percolator_client::{Client, Error, Options, Range, Timestamp, Txn};
use percolator_telemetry::endpoint;

/// Collects what is a second old, and waits until nothing is left of the table.
fn until_dropped(cluster: &Cluster, table: &str) {
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    support::wait_for("the table to be dropped", || {
        let listed = cluster.run(&["table", "list"]);
        let mut lines = listed.out.lines();
        let is_there = lines.any(|line| line.split_whitespace().next() == Some(table));
        (!is_there).then_some(())
    });
}

#[test]
fn what_was_committed_to_another_table_too_is_there_when_the_primarys_table_is_gone() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "a"]).ok();
    cluster.run(&["table", "create", "b"]).ok();
    block_on(async {
        let raw = Raw::connect(&cluster).await;
        for number in 0..300 {
            // Each has its client gone after the primary's commit; some before that.
            raw.write(&format!("r{number:03}"), number % 10 != 9).await;
        }
    });
    cluster.run(&["table", "delete", "a", "--yes"]).ok();
    until_dropped(&cluster, "a");
    let rows = cluster.run(&["scan", "b"]).ok();
    let expected: String = (0..300)
        .filter(|number| number % 10 != 9)
        .map(|number| format!("r{number:03}\tc\tkept\n"))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn a_deleted_table_is_shown_until_its_rows_may_go_and_its_name_is_free() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "a"]).ok();
    cluster.run(&["table", "create", "b"]).ok();
    block_on(async {
        let raw = Raw::connect(&cluster).await;
        raw.write("r", true).await;
    });
    cluster.run(&["table", "delete", "a", "--yes"]).ok();
    let listed = cluster.run(&["table", "list"]).ok();
    assert!(listed.contains("deleting"), "{listed}");
    // Nobody uses it any more, but its tablets report what became of transactions.
    let refused = cluster.run(&["get", "a", "r", "c"]);
    refused.refused(6, &["there is no table \"a\""]);
    assert_ne!(cluster.run(&["put", "a", "x", "c", "1"]).code(), 0);
    assert_eq!(cluster.run(&["get", "b", "r", "c"]).ok(), "kept\n");
    let again = cluster.run(&["table", "delete", "a", "--yes"]);
    again.refused(6, &["there is no table \"a\""]);
    cluster.run(&["table", "create", "a"]).ok();
    cluster.run(&["put", "a", "r", "c", "new"]).ok();
    let listed = cluster.run(&["table", "list"]).ok();
    let states = |state: &str| listed.matches(state).count();
    assert_eq!((states("ready"), states("deleting")), (2, 1), "{listed}");
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    support::wait_for("the first table to be dropped", || {
        let listed = cluster.run(&["table", "list"]).ok();
        (!listed.contains("deleting")).then_some(())
    });
    assert_eq!(cluster.run(&["get", "a", "r", "c"]).ok(), "new\n");
    assert_eq!(cluster.run(&["get", "b", "r", "c"]).ok(), "kept\n");
}

#[test]
fn a_server_that_is_away_is_named_and_freezes_the_table_when_it_is_back() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "a"]).ok();
    cluster.run(&["table", "create", "b"]).ok();
    let owner = block_on(async {
        let raw = Raw::connect(&cluster).await;
        raw.write("r", true).await;
        let of = |table: percolator_client::Table| table.tablets[0].server.clone();
        let owners = [of(raw.table("a").await), of(raw.table("b").await)];
        assert_ne!(owners[0], owners[1]);
        owners[0].clone()
    });
    support::signal(cluster.pid(&owner), "STOP");
    let deleted = cluster.run(&["table", "delete", "a", "--yes"]);
    support::signal(cluster.pid(&owner), "CONT");
    deleted.refused(5, &["is being deleted, which goes on by itself", &owner]);
    until_dropped(&cluster, "a");
    assert_eq!(cluster.run(&["get", "b", "r", "c"]).ok(), "kept\n");
}

/// As docs/correctness.md has it: an empty one under its name takes its place, as far as that goes.
#[test]
fn a_server_that_is_gone_for_good_is_in_the_way_until_its_tables_are_given_up() {
    let cluster = Cluster::processes();
    for table in ["a", "b"] {
        cluster.run(&["table", "create", table]).ok();
        cluster.run(&["put", table, "r", "c", "1"]).ok();
    }
    let (lost, tablet) = block_on(async {
        let table = Raw::connect(&cluster).await.table("b").await;
        (table.tablets[0].server.clone(), table.tablets[0].id)
    });
    cluster.lose_folder(&lost);
    let state = format!("not ready: {lost} has lost tablet {tablet}");
    support::wait_for("the lost tablet to be told of", || {
        let listed = cluster.run(&["table", "list"]).ok();
        listed.contains(&state).then_some(())
    });
    let tablets = cluster.run(&["tablet", "list"]).ok();
    assert!(
        tablets.contains(&format!("{lost}, which has lost it")),
        "{tablets}"
    );
    let tables = cluster.run(&["table", "list", "-o", "json"]).ok();
    assert_eq!(tables.matches("\"lost\":true").count(), 1, "{tables}");
    // The empty one runs, and says that it isn't ready.
    let readiness = || {
        let address = cluster.metrics_address(&lost);
        block_on(endpoint::get(&address, "/readyz")).expect("an answer")
    };
    let said = readiness();
    assert!(said.body.starts_with(endpoint::DATA_LOST), "{said:?}");
    assert!(said.body.contains(&format!(" {tablet} ")), "{said:?}");
    // Locks of its transactions may be in what is lost, and come back: its rows wait for that.
    cluster.run(&["table", "delete", "a", "--yes"]).ok();
    support::wait_for("collection to be held, and that to be told of", || {
        let said = cluster.run(&["gc", "why-blocked"]);
        said.out
            .contains("of b: locks of any transaction")
            .then_some(())
    });
    let refused = cluster.run(&["table", "delete", "b", "--yes"]);
    let is_lost = format!("tablet {tablet} of table");
    refused.refused(5, &[&lost, &is_lost, "is lost", "bring the folder back"]);
    let listed = cluster.run(&["table", "list"]).ok();
    assert!(listed.contains("deleting"), "{listed}");
    // Anyone who deletes the tables knows of the loss: there's nothing to wait for any more.
    support::wait_for("the server to be ready", || {
        (readiness().status == 200).then_some(())
    });
    cluster
        .run(&["table", "delete", "b", "--yes", "--accept-data-loss"])
        .ok();
    for table in ["a", "b"] {
        until_dropped(&cluster, table);
    }
    assert_eq!(cluster.run(&["table", "list"]).err, "no tables\n");
}

/// Its server runs with an empty folder meanwhile, as one whose volume was not mounted.
#[test]
fn a_lock_that_comes_back_with_its_folder_is_told_that_it_was_committed() {
    let cluster = Cluster::processes();
    for table in ["a", "b"] {
        cluster.run(&["table", "create", table]).ok();
    }
    let (server, written) = block_on(async {
        let raw = Raw::connect(&cluster).await;
        raw.write("row", true).await;
        let server = raw.table("b").await.tablets[0].server.clone();
        assert_ne!(raw.table("a").await.tablets[0].server, server);
        (server, raw.timestamp().await)
    });
    let folder = cluster.data_dir.join(&server);
    let aside = cluster.data_dir.join("aside");
    let restart_with = |change: &dyn Fn() -> std::io::Result<()>| {
        let pid = cluster.pid(&server);
        support::signal(pid, "STOP");
        change().expect("folders");
        support::signal(pid, "KILL");
    };
    restart_with(&|| std::fs::rename(&folder, &aside));
    support::wait_for("the tablet to be missed", || {
        let listed = cluster.run(&["table", "list"]).ok();
        listed.contains("has lost tablet").then_some(())
    });
    // What says that it was committed is hidden, and is collected but for that.
    cluster.run(&["put", "a", "row", "c", "later"]).ok();
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    // Up to where locks are resolved, once the other server has collected up to this.
    let behind = |mark: Timestamp| {
        let status = cluster.run(&["gc", "status", "-o", "json"]).ok();
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let point = |of: &serde_json::Value, name: &str| -> u64 {
            let text = of[name].as_str().expect("a point");
            text.parse().expect("a timestamp")
        };
        let servers = status["servers"].as_array().expect("servers");
        let mut others = servers.iter().filter(|other| other["server"] != *server);
        let collects = |other| point(other, "safe_point") > mark.as_u64();
        others.all(collects).then(|| point(&status, "resolved"))
    };
    let mut mark = written;
    // Each time it is one retention later.
    for _ in 0..3 {
        let resolved = support::wait_for("collection to go on", || behind(mark));
        assert!(
            resolved < written.as_u64(),
            "{resolved} has passed {written}"
        );
        mark = block_on(async { Raw::connect(&cluster).await.timestamp().await });
    }
    restart_with(&|| {
        std::fs::remove_dir_all(&folder)?;
        std::fs::rename(&aside, &folder)
    });
    support::wait_for("the tablet to be back", || {
        let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
        listed.contains("\"lost\":false").then_some(())?;
        (!listed.contains("\"lost\":true")).then_some(())?;
        (!listed.contains("\"server_alive\":false")).then_some(())
    });
    assert_eq!(cluster.run(&["get", "b", "row", "c"]).ok(), "kept\n");
    support::wait_for("collection to go on", || {
        let said = cluster.run(&["gc", "why-blocked"]);
        (said.code() == 0).then_some(())
    });
    assert_eq!(cluster.run(&["get", "b", "row", "c"]).ok(), "kept\n");
    cluster.run(&["gc", "verify"]).ok();
}

/// Clients that write while the table goes, and end all at once: whatever one of them was answered stays.
#[test]
fn what_was_answered_committed_while_the_table_went_is_there() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "a"]).ok();
    cluster.run(&["table", "create", "b"]).ok();
    let answered = Arc::new(Mutex::new(Vec::new()));
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        for writer in 0..8 {
            let (client, answered) = (client.clone(), answered.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    let row = format!("{writer}-{number:05}");
                    let Ok(txn) = client.begin().await else {
                        return;
                    };
                    let put = txn
                        .put("a", row.clone(), "c", "1")
                        .and_then(|()| txn.put("b", row.clone(), "c", "1"));
                    if put.is_err() || txn.commit().await.is_err() {
                        return;
                    }
                    answered.lock().expect("no panic").push(row);
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let other = Client::connect(&cluster.master).await.expect("connected");
        other.delete_table("a").await.expect("deleted");
    });
    let rows = cluster.run(&["scan", "b", "--limit", "1000000"]).ok();
    let there: HashSet<&str> = rows
        .lines()
        .filter_map(|row| row.split('\t').next())
        .collect();
    let answered = answered.lock().expect("no panic");
    assert!(answered.len() > 50, "{} rows", answered.len());
    let lost: Vec<&String> = answered
        .iter()
        .filter(|row| !there.contains(row.as_str()))
        .collect();
    assert!(lost.is_empty(), "{lost:?} of {}", answered.len());
}

/// A transaction whose every write is flushed, with its primary in one table and a row in another.
async fn large(cluster: &Cluster) -> (Client, Txn) {
    let options = Options {
        buffer_bytes: 1,
        ..Options::default()
    };
    let client = Client::connect_with(&cluster.master, options).await;
    let client = client.expect("connected");
    for table in ["a", "t"] {
        client.create_table(table, &[]).await.expect("created");
    }
    let txn = client.begin().await.expect("begun");
    flush(&txn, "a", "primary").await.expect("flushed");
    flush(&txn, "t", "before").await.expect("flushed");
    (client, txn)
}

/// Puts a cell, and waits until it is locked.
async fn flush(txn: &Txn, table: &str, row: &str) -> Result<(), Error> {
    txn.put(table, row, "c", "1")?;
    // What is flushed is sent when there is more.
    txn.put(table, row, "d", "1")?;
    txn.ready().await
}

/// Half of it would be in the one, and half in the other.
#[test]
fn a_large_transaction_does_not_go_on_in_another_table_of_the_same_name() {
    let cluster = Cluster::processes();
    block_on(async {
        let (client, txn) = large(&cluster).await;
        // By the same client, so that it knows of the new one at once.
        client.delete_table("t").await.expect("deleted");
        client.create_table("t", &[]).await.expect("created");
        let written = flush(&txn, "t", "behind").await;
        let ended = match written {
            Ok(()) => txn.commit().await.map(drop),
            Err(error) => Err(error),
        };
        let error = ended.expect_err("half of it is gone").to_string();
        assert!(error.contains("it was deleted"), "{error}");
        client.settle().await;
    });
    for table in ["a", "t"] {
        assert_eq!(cluster.run(&["scan", table]).out, "", "{table}");
    }
}

/// What it read is of the one, and what it would write of the other.
#[test]
fn a_transaction_does_not_go_on_in_another_table_of_the_same_name() {
    let cluster = Cluster::processes();
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        client.create_table("t", &[]).await.expect("created");
        let put = client.begin().await.expect("begun");
        put.put("t", "r", "c", "old").expect("buffered");
        put.commit().await.expect("committed");
        let begin = || async { client.begin().await.expect("begun") };
        let (read, wrote, scanned) = (begin().await, begin().await, begin().await);
        let seen = read.get("t", "r", "c").await.expect("read");
        assert_eq!(seen.as_deref(), Some(&b"old"[..]));
        read.put("t", "r", "d", "1").expect("buffered");
        wrote.put("t", "r", "e", "1").expect("buffered");
        let mut rows = scanned.scan("t", Range::all()).await.expect("scanned");
        assert!(rows.next().await.expect("scanned").is_some());
        // By the same client, so that it knows of the new one at once.
        client.delete_table("t").await.expect("deleted");
        client.create_table("t", &[]).await.expect("created");
        client.tables().await.expect("looked up");
        let again = scanned.get("t", "r", "c").await.map(drop);
        let (read, wrote) = (read.commit().await, wrote.commit().await);
        for ended in [again, read.map(drop), wrote.map(drop)] {
            let error = ended.expect_err("the table is gone").to_string();
            assert!(error.contains("it was deleted"), "{error}");
        }
        client.settle().await;
    });
    assert_eq!(cluster.run(&["scan", "t"]).out, "");
}

/// It holds up nobody who deletes the table, and its owner hears of it.
#[test]
fn a_large_transaction_ends_with_the_table_of_its_primary() {
    let cluster = Cluster::processes();
    block_on(async {
        let (client, txn) = large(&cluster).await;
        let other = Client::connect(&cluster.master).await.expect("connected");
        let (deleted, ended) = tokio::join!(other.delete_table("a"), async {
            let began = std::time::Instant::now();
            for row in 1_u32.. {
                if let Err(error) = flush(&txn, "t", &row.to_string()).await {
                    return error.to_string();
                }
                let waited = began.elapsed();
                assert!(waited < support::TIMEOUT, "it goes on for {waited:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            unreachable!("it goes on and on")
        });
        deleted.expect("deleted");
        assert!(
            ended.contains("deleted") || ended.contains("rolled back"),
            "{ended}"
        );
        client.settle().await;
    });
    assert_eq!(cluster.run(&["scan", "t"]).out, "");
}
