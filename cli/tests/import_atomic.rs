//! An import in one transaction: all of it becomes visible at once, or nothing, whatever stops it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Choices, Cluster, block_on, rounds, signal, wait_for};
use percolator_client::{Client, ServerRole};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use serde_json::Value;

/// Each with two cells and an index entry.
const ROWS: usize = 12_000;
/// With texts of so many digits, all rows are more than a client buffers.
const TEXT: usize = 2_500;

const IMPORT: [&str; 9] = [
    "import",
    "--table",
    "t",
    "--key",
    "id",
    "--index",
    "section=by_section",
    "--batch",
    "2000",
];

/// A file whose every row is of this round.
fn file(cluster: &Cluster, round: u64) -> PathBuf {
    let path = cluster.data_dir.join(format!("../round-{round}.jsonl"));
    let rows: String = (0..ROWS)
        .map(|row| {
            let section = format!("{}-{:03}", round, row % 500);
            format!(
                "{{\"id\":\"{row:06}\",\"section\":\"{section}\",\"text\":\"{round:0TEXT$}\"}}\n"
            )
        })
        .collect();
    std::fs::write(&path, rows).expect("a file");
    path
}

fn atomic(path: &Path) -> Vec<&str> {
    let path = path.to_str().expect("a path of text");
    [&IMPORT[..], &["--atomic", path]].concat()
}

/// The rounds that rows are of, and how many there are.
fn rounds_seen(cluster: &Cluster) -> (Vec<u64>, usize) {
    let exported = cluster.run(&["export", "--table", "t"]).ok();
    let mut seen: Vec<u64> = exported
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).expect("JSON");
            let text = row["text"].as_str().expect("text");
            text.parse().expect("a round")
        })
        .collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    (seen, count)
}

fn indexes_agree(cluster: &Cluster) {
    let check = [
        "check-index",
        "--table",
        "t",
        "--index",
        "section=by_section",
    ];
    cluster.run(&check).ok();
    // Nor is anything stored that collection would overlook.
    cluster.run(&["gc", "verify"]).ok();
}

/// Locks of all servers.
fn locks(cluster: &Cluster) -> usize {
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("a master");
        let mut found = 0;
        for server in client.servers().await.expect("the servers") {
            if server.role != ServerRole::Tablet {
                continue;
            }
            let mut after = None;
            loop {
                let ask = Ask::LocksBelow(v1::LocksBelowRequest {
                    below: u64::MAX,
                    after,
                    to: Some(v1::Addressee {
                        server: server.server.clone(),
                        incarnation: server.incarnation.expect("a server that is up"),
                    }),
                });
                let answer = client.raw(&server.address, ask).await.expect("locks");
                let Body::LocksBelow(page) = answer else {
                    panic!("another answer: {answer:?}");
                };
                found += page.locks.len();
                after = page.resume;
                if after.is_none() {
                    break;
                }
            }
        }
        found
    })
}

#[test]
fn an_atomic_import_that_is_killed_leaves_no_trace() {
    let mut choices = Choices::from_env();
    let cluster = Cluster::processes();
    let create = [
        "table",
        "create",
        "t",
        "--split-at",
        "004",
        "--split-at",
        "008",
    ];
    cluster.run(&create).ok();
    let began = Instant::now();
    let said = cluster.run(&atomic(&file(&cluster, 0)));
    assert!(said.err.contains("committing 12000 rows"), "{}", said.err);
    assert!(said.ok().contains("12000 new"));
    let takes = u64::try_from(began.elapsed().as_millis()).expect("some seconds");
    assert_eq!(rounds_seen(&cluster), (vec![0], ROWS));
    assert_eq!(locks(&cluster), 0);
    indexes_agree(&cluster);

    let mut last = 0;
    for round in rounds(1, 2).map(|round| round + 1) {
        let path = file(&cluster, round);
        let mut import = cluster
            .command(&atomic(&path))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the import runs");
        let after = Duration::from_millis(choices.below(takes + takes / 4));
        std::thread::sleep(after);
        let ended = import.try_wait().expect("a child");
        eprintln!("round {round}: killed after {after:?}; it had ended: {ended:?}");
        signal(import.id(), "KILL");
        import.wait().expect("it ends");
        // Readers get through while its locks are there.
        for row in ["000000", "003141", "011999"] {
            let began = Instant::now();
            cluster.run(&["get", "t", row]).ok();
            eprintln!("row {row} was read within {:?}", began.elapsed());
        }
        let (seen, rows) = rounds_seen(&cluster);
        assert_eq!(rows, ROWS);
        assert!(
            seen == [last] || seen == [round],
            "rows of the rounds {seen:?}, after round {last} was in and {round} was killed"
        );
        last = seen[0];
        indexes_agree(&cluster);
        wait_for("its locks to be cleared by who meets them", || {
            indexes_agree(&cluster);
            (locks(&cluster) == 0).then_some(())
        });
        assert_eq!(rounds_seen(&cluster), (vec![last], ROWS));
    }
}

#[test]
fn an_atomic_import_that_stops_says_that_nothing_is_in() {
    let cluster = Cluster::threads();
    let bad = "{\"id\":\"a\",\"section\":\"s\"}\n{\"id\":\"b\",\"section\":\"s\"}\nno JSON\n";
    let import = [&IMPORT[..], &["--atomic", "-"]].concat();
    let said = cluster.run_with(&import, bad);
    said.refused(1, &["stopped at", ":3", "nothing of the file is in"]);
    assert_eq!(rounds_seen(&cluster), (vec![], 0));
    // Without the line, or past it.
    let skipping = [&import[..], &["--skip-bad"]].concat();
    let said = cluster.run_with(&skipping, bad);
    assert!(
        said.out.contains("2 new") && said.out.contains("1 line skipped"),
        "{}",
        said.out
    );
    indexes_agree(&cluster);
}

/// Also where all of it was read: who takes the code for "nothing is in" is right.
#[test]
fn an_atomic_import_without_an_index_that_was_asked_for_loads_nothing() {
    let cluster = Cluster::threads();
    let row = "{\"id\":\"a\",\"section\":\"s\"}\n";
    let misspelt = ["--index", "secton=by_secton", "--atomic", "-o", "json", "-"];
    let said = cluster.run_with(&[&IMPORT[..], &misspelt].concat(), row);
    said.refused(1, &["no row of", "secton", "nothing of the file is in"]);
    let summary: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(
        (&summary["rows"], &summary["complete"]),
        (&0.into(), &false.into())
    );
    assert_eq!(rounds_seen(&cluster), (vec![], 0));
    // Otherwise the row is in, and the code says the same.
    let misspelt = ["--index", "secton=by_secton", "-o", "json", "-"];
    let said = cluster.run_with(&[&IMPORT[..], &misspelt].concat(), row);
    said.refused(1, &["no row of", "secton"]);
    let summary: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(
        (&summary["rows"], &summary["complete"]),
        (&1.into(), &false.into())
    );
}

/// One row of more than a client buffers, as many commits made it.
#[test]
fn whatever_was_exported_can_be_imported() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("a master");
        for column in 0..17 {
            let value = format!("v{column:03}").repeat(1 << 20);
            let txn = client.begin().await.expect("a transaction");
            txn.put("t", "r", format!("c{column:02}"), value)
                .expect("it is short enough");
            txn.commit().await.expect("it commits");
        }
    });
    let exported = cluster.run(&["export", "--table", "t"]).ok();
    assert!(exported.len() > 64 << 20);
    for (table, more) in [("u", &[][..]), ("v", &["--atomic"])] {
        let import = ["import", "--table", table, "--key", "row", "-"];
        cluster
            .run_with(&[&import[..], more].concat(), &exported)
            .ok();
        // The key is a column of the row now, in its place among them.
        let again = cluster.run(&["export", "--table", table]).ok();
        let row = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        assert!(row(&again) == row(&exported), "{table} differs");
    }
}

/// A cluster of processes, and an import that has read a file, and goes on until its input ends.
fn under_way() -> (Cluster, Child, ChildStdin, Vec<u8>) {
    let cluster = Cluster::processes();
    cluster
        .run(&["table", "create", "t", "--split-at", "004"])
        .ok();
    let import = [&IMPORT[..], &["--atomic", "-"]].concat();
    let mut import = cluster
        .command(&import)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the import runs");
    let mut input = import.stdin.take().expect("a pipe");
    let rows = std::fs::read(file(&cluster, 1)).expect("a file");
    input.write_all(&rows).expect("it reads");
    (cluster, import, input, rows)
}

#[test]
fn an_atomic_import_that_is_told_to_stop_takes_back_what_it_wrote() {
    let (cluster, import, _input, _) = under_way();
    wait_for("its locks to be there", || {
        (locks(&cluster) > 0).then_some(())
    });
    signal(import.id(), "TERM");
    let ended = import.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains("stopped: nothing of the file is in; import again"),
        "{said}"
    );
    // By itself, not by the transactions that meet them when their ttl is over.
    assert_eq!(locks(&cluster), 0, "{said}");
    assert_eq!(rounds_seen(&cluster), (vec![], 0));
}

#[test]
fn an_atomic_import_that_is_ended_by_hand_leaves_no_trace() {
    let (cluster, import, mut input, rows) = under_way();
    let listed = || -> Vec<Value> {
        let listed = cluster.run(&["txn", "list", "-o", "json"]).ok();
        serde_json::from_str(&listed).expect("JSON")
    };
    // The master is told of a transaction by a heartbeat; its locks may be seen before.
    let (start_ts, flushed) = wait_for("its owner and its locks to be told of", || {
        let listed = listed();
        eprintln!("{listed:?}");
        listed.iter().find_map(|txn| {
            let flushed = txn["locks"].as_u64().filter(|locks| *locks > 0)?;
            let is_owned = txn["owner"].is_object();
            is_owned.then_some((txn["start_ts"].as_str()?.to_owned(), flushed))
        })
    });
    let aborted = cluster.run(&["txn", "abort", &start_ts, "-o", "json"]).ok();
    let aborted: Value = serde_json::from_str(&aborted).expect("JSON");
    assert_eq!(aborted["outcome"], "rolled back");
    let cleared = aborted["locks"].as_u64().expect("a number");
    assert!(cleared > 0, "{aborted}, of {flushed}");
    // Whatever it is given now.
    let _ = input.write_all(&rows);
    drop(input);
    let ended = import.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{said}");
    assert!(said.contains("nothing of the file is in"), "{said}");
    assert!(!said.contains("correct what is wrong"), "{said}");
    assert_eq!(rounds_seen(&cluster), (vec![], 0));
    indexes_agree(&cluster);
    wait_for("its last locks to be cleared", || {
        indexes_agree(&cluster);
        (locks(&cluster) == 0).then_some(())
    });
    assert!(
        listed()
            .iter()
            .all(|txn| txn["start_ts"] != start_ts.as_str())
    );
    // It is not in the way of the next one.
    cluster.run(&atomic(&file(&cluster, 2))).ok();
    assert_eq!(rounds_seen(&cluster), (vec![2], ROWS));
}
