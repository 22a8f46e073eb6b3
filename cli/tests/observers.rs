//! Observers on real clusters: what a chain of them makes of documents is what is computed in one pass, while workers and
//! servers are killed and tablets split and moved; what becomes of handlers that fail.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::support::observing::{observed, start_failing};
use crate::support::raw::Raw;
use crate::support::{Choices, Cluster, block_on, wait_for};
use percolator_client::{Bytes, Client, Error, Observer, ObserverOptions, OpenTxn, Range};
use serde_json::Value;

const DOCUMENTS: u64 = 120;
const PARTS: u64 = 4;

/// Reads the change: `$row` and `$value`.
const READ_CHANGE: &str = r#"
read -r change
field() { printf %s "$1" | sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"; }
row=$(field "$change" row)
value=$(field "$change" value)
"#;
/// Counts the words of a document.
const COUNT_WORDS: &str = r#"
count=$(printf %s "$value" | wc -w | tr -d ' ')
printf '{"put":{"table":"words","row":"%s","column":"count","value":"%s"}}\n' "$row" "$count"
"#;
/// Adds the count to one of a few sums, without what was added of this document before.
const ADD_UP: &str = r#"
part=part$((${row#doc} % 4))
printf '{"get":{"table":"sums","row":"%s","column":"sum"}}\n' "$part"
read -r answer; sum=$(field "$answer" value)
printf '{"get":{"table":"words","row":"%s","column":"added"}}\n' "$row"
read -r answer; added=$(field "$answer" value)
sum=$((${sum:-0} - ${added:-0} + value))
printf '{"put":{"table":"sums","row":"%s","column":"sum","value":"%s"}}\n' "$part" "$sum"
printf '{"put":{"table":"words","row":"%s","column":"added","value":"%s"}}\n' "$row" "$value"
"#;

/// A script that is run for each change.
fn script(folder: &Path, name: &str, body: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, format!("{READ_CHANGE}{body}")).expect("written");
    format!("sh {}", file.display())
}

/// A column, and what is run for its changes.
#[derive(Clone)]
struct Stage {
    table: &'static str,
    column: &'static str,
    exec: String,
}

impl Stage {
    fn arguments(&self) -> Vec<&str> {
        let run = ["observe", "run", self.table, self.column];
        let how = ["--exec", &self.exec, "--lease", "1s", "--concurrency", "2"];
        [&run[..], &how].concat()
    }

    fn worker(&self, cluster: &Cluster) -> Child {
        cluster
            .command(&self.arguments())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the worker runs")
    }

    /// Runs for what waits.
    fn until_idle(&self, cluster: &Cluster) {
        let arguments = [
            &self.arguments()[..],
            &["--until-idle", "--request-timeout", "1m"],
        ]
        .concat();
        let said = cluster.run(&arguments);
        eprintln!("{} {}: {}", self.table, self.column, said.ok());
    }
}

fn text(document: u64, revision: u64) -> String {
    let words = 1 + (document * 7 + revision * 3) % 11;
    vec!["word"; words as usize].join(" ")
}

/// Writes all documents, one after the other and again and again, until it is enough. The revision that all of them have then.
fn write_documents(master: &str, enough: &AtomicBool) -> u64 {
    block_on(async {
        let client = Client::connect(master).await.expect("a cluster");
        for revision in 0.. {
            for number in 0..DOCUMENTS {
                let row = format!("doc{number}");
                let write = |txn: OpenTxn| {
                    let row = row.clone();
                    async move { txn.put("documents", &row, "text", text(number, revision)) }
                };
                // A server that is away is waited for.
                while let Err(error) = client.transact(write).await {
                    eprintln!("document {number}: {error}");
                }
            }
            if enough.load(Ordering::Relaxed) {
                return revision;
            }
        }
        unreachable!("it is enough one day")
    })
}

fn cells(cluster: &Cluster, table: &str, column: &str) -> BTreeMap<String, String> {
    let scanned = cluster.run(&["scan", table, "--request-timeout", "1m", "-o", "json"]);
    let mut cells = BTreeMap::new();
    for line in scanned.ok().lines() {
        let cell: Value = serde_json::from_str(line).expect("JSON");
        if cell["column"] == column {
            let text = |name: &str| cell[name].as_str().expect("text").to_owned();
            cells.insert(text("row"), text("value"));
        }
    }
    cells
}

/// Computes in one pass what the observers should have made.
fn expected(revision: u64) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let (mut words, mut sums) = (BTreeMap::new(), BTreeMap::new());
    for number in 0..DOCUMENTS {
        let count = text(number, revision).split(' ').count();
        words.insert(format!("doc{number}"), count.to_string());
        *sums.entry(format!("part{}", number % PARTS)).or_insert(0) += count;
    }
    let sums = sums.into_iter().map(|(part, sum)| (part, sum.to_string()));
    (words, sums.collect())
}

fn disturb(cluster: &Cluster, choices: &mut Choices, stages: &[Stage], workers: &mut [Child]) {
    for round in 0..3 {
        for (at, worker) in workers.iter_mut().enumerate() {
            worker.kill().expect("killed");
            worker.wait().expect("it ends");
            *worker = stages[at % stages.len()].worker(cluster);
        }
        cluster.kill(&format!("tablet-{}", choices.below(3)));
        let table = ["documents", "words"][choices.below(2) as usize];
        let cut = format!("doc{}", 10 + choices.below(80));
        cluster.run(&["tablet", "split", table, &cut, "--request-timeout", "1m"]);
        let (tablet, to) = cluster.tablet_to_move(table, choices);
        let moved = cluster.run(&["tablet", "move", &tablet, &to, "--request-timeout", "1m"]);
        eprintln!("round {round}: {}", moved.err);
    }
}

#[test]
fn a_chain_makes_of_documents_what_one_pass_makes_whatever_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::of_three();
    let mut choices = Choices::from_env();
    for table in ["documents", "words", "sums"] {
        cluster.run(&["table", "create", table]).ok();
    }
    let stages = [
        Stage {
            table: "documents",
            column: "text",
            exec: script(folder.path(), "count", COUNT_WORDS),
        },
        Stage {
            table: "words",
            column: "count",
            exec: script(folder.path(), "add", ADD_UP),
        },
    ];
    for stage in &stages {
        cluster
            .run(&["table", "observe", stage.table, stage.column])
            .ok();
    }
    let master = cluster.master.clone();
    let enough = Arc::new(AtomicBool::new(false));
    let is_enough = enough.clone();
    let writer = std::thread::spawn(move || write_documents(&master, &is_enough));
    let mut workers: Vec<Child> = (0..4).map(|at| stages[at % 2].worker(&cluster)).collect();
    disturb(&cluster, &mut choices, &stages, &mut workers);
    for worker in &mut workers {
        worker.kill().expect("killed");
        worker.wait().expect("it ends");
    }
    enough.store(true, Ordering::Relaxed);
    let revision = writer.join().expect("all documents are written");
    eprintln!("{} documents were written", (revision + 1) * DOCUMENTS);
    for stage in &stages {
        stage.until_idle(&cluster);
    }
    let (words, sums) = expected(revision);
    assert_eq!(cells(&cluster, "words", "count"), words);
    assert_eq!(cells(&cluster, "sums", "sum"), sums);
    for stage in &stages {
        let status = cluster.run(&["observe", "status", stage.table, stage.column, "-o", "json"]);
        let status: Value = serde_json::from_str(&status.ok()).expect("JSON");
        assert_eq!(status["waiting"], 0, "{status}");
        assert_eq!(status["dead_letters"].as_array().map(Vec::len), Some(0));
    }
    cluster.run(&["gc", "verify"]).ok();
}

#[test]
fn a_program_that_fails_leaves_a_dead_letter_which_can_be_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let run = |exec: &str| {
        let run = ["observe", "run", "t", "c", "--exec", exec, "--until-idle"];
        cluster.run(&[&run[..], &["--attempts", "2"]].concat())
    };
    run("true").refused(2, &["not observed", "percolator table observe"]);
    cluster.run(&["table", "observe", "t", "c"]).ok();
    cluster.run(&["put", "t", "r", "c", "x"]).ok();
    let put_then_fail = script(
        folder.path(),
        "fails",
        "echo '{\"put\":{\"row\":\"r\",\"column\":\"seen\",\"value\":\"half\"}}'\necho it rains >&2\nexit 3\n",
    );
    let failed = run(&put_then_fail);
    assert_eq!(failed.code(), 7, "{failed:?}");
    assert!(
        failed.out.contains("why: percolator observe status t c"),
        "{failed:?}"
    );
    let told = ["the handler failed", "it rains", "failures"];
    assert!(told.iter().all(|it| failed.err.contains(it)), "{failed:?}");
    let status = cluster.run(&["observe", "status", "t", "c"]);
    assert_eq!(status.code(), 7, "{status:?}");
    assert!(status.out.contains("0 changes wait"), "{status:?}");
    assert!(status.out.contains("it rains"), "{status:?}");
    let status = cluster.run(&["status"]);
    assert!(status.code() != 0, "{status:?}");
    let told = "observers of table t have given up 1 changes";
    assert!(status.out.contains(told), "{status:?}");
    // Nothing of it was written.
    assert_eq!(cluster.run(&["get", "t", "r", "seen"]).code(), 7);
    cluster.run(&["observe", "retry", "t", "c"]).ok();
    assert_eq!(run("echo no JSON").code(), 7);
    let status = cluster.run(&["observe", "status", "t", "c"]);
    assert!(status.out.contains("which can't be read"), "{status:?}");
    let none = cluster.run(&["observe", "retry", "t", "c", "--row", "other"]);
    assert_eq!(none.code(), 7, "{none:?}");
    let nobody = cluster.run(&["observe", "retry", "t", "d"]);
    nobody.refused(2, &["not observed"]);
    let retried = cluster.run(&["observe", "retry", "t", "c", "--row", "r"]);
    assert!(retried.ok().contains("1 changes wait again"));
    let put = script(
        folder.path(),
        "works",
        "printf '{\"put\":{\"row\":\"%s\",\"column\":\"seen\",\"value\":\"%s\"}}\\n' \"$row\" \"$value\"\n",
    );
    let said = run(&put).ok();
    assert!(said.contains("1 runs committed"), "{said}");
    assert_eq!(cluster.run(&["get", "t", "r", "seen"]).ok(), "x\n");
    let status = cluster.run(&["observe", "status", "t", "c"]);
    assert!(status.ok().contains("0 were given up"));
    // All that is observed.
    cluster.run(&["put", "t", "r", "c", "y"]).ok();
    let all = cluster.run(&["observe", "status"]).ok();
    let row: Vec<&str> = all.lines().nth(1).expect("a row").split("  ").collect();
    assert!(
        all.starts_with("TABLE") && all.lines().count() == 2,
        "{all}"
    );
    assert_eq!((row[0].trim(), row.last()), ("t", Some(&"0")), "{all}");
    let of_table = cluster.run(&["observe", "status", "t", "-o", "json"]).ok();
    let of_table: Value = serde_json::from_str(&of_table).expect("JSON");
    assert_eq!(
        (&of_table["column"], &of_table["waiting"]),
        (&"c".into(), &1.into())
    );
}

/// Until nothing waits.
async fn idle(client: &Client) {
    for _ in 0..6000 {
        let status = client.observed("t", "c").await.expect("a status");
        if status.waiting == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("changes still wait");
}

#[test]
fn of_a_hot_cell_the_last_value_is_seen_and_none_twice() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let log = |change: percolator_client::Change, txn: OpenTxn| async move {
            let value = change.value.ok_or("it was deleted")?;
            let row = String::from_utf8_lossy(&value).into_owned();
            let before = txn.get("t", &row, "runs").await?;
            assert!(before.is_none(), "{row} was seen before");
            txn.put("t", &row, "runs", "1")?;
            Ok(())
        };
        let worker = Observer::new("t", "c", log).start(&client).await;
        let worker = worker.expect("a worker");
        let writers = (0..64).map(|writer| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..4 {
                    let value = format!("w{writer}-{number}");
                    let put = |txn: OpenTxn| {
                        let value = value.clone();
                        async move { txn.put("t", "hot", "c", value) }
                    };
                    client.transact(put).await.expect("written");
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("a writer");
        }
        idle(&client).await;
        let counts = worker.stop().await;
        eprintln!("{counts:?}");
        let txn = client.begin().await.expect("a transaction");
        let last = txn
            .get("t", "hot", "c")
            .await
            .expect("read")
            .expect("there");
        let seen = txn.get("t", &last, "runs").await.expect("read");
        assert_eq!(seen.as_deref(), Some(&b"1"[..]));
        let scan = txn.scan("t", Range::prefix("w")).await.expect("a scan");
        let runs = scan.collect().await.expect("scanned").len() as u64;
        assert_eq!(runs, counts.committed);
        assert_eq!(counts.dead_letters, 0);
    });
}

#[test]
fn a_handler_that_panics_or_meets_others_runs_again() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let tries = Arc::new(AtomicU32::new(0));
        let count = tries.clone();
        let panics_once = move |change: percolator_client::Change, txn: OpenTxn| {
            let count = count.clone();
            async move {
                assert!(count.fetch_add(1, Ordering::Relaxed) > 0, "the first time");
                txn.put("t", &change.row, "done", "1")?;
                Ok(())
            }
        };
        let options = ObserverOptions {
            backoff: Duration::from_millis(1),
            ..ObserverOptions::default()
        };
        let observer = Observer::new("t", "c", panics_once).with_options(options);
        let worker = observer.start(&client).await.expect("a worker");
        // A weak notification of a cell that isn't there.
        client
            .notify("t", "c", &[Bytes::from("a"), Bytes::from("z")])
            .await
            .expect("notified");
        idle(&client).await;
        let counts = worker.stop().await;
        assert_eq!((counts.committed, counts.retries), (2, 1));
        assert_eq!(tries.load(Ordering::Relaxed), 3);
        // What nobody observes is no worker's.
        let none = Observer::new("t", "other", |_, _| async { Ok(()) });
        let refused = none.start(&client).await.err();
        assert!(matches!(refused, Some(Error::Invalid(_))), "{refused:?}");
        let no_table = Observer::new("nowhere", "c", |_, _| async { Ok(()) });
        let refused = no_table.start(&client).await.err();
        assert!(matches!(refused, Some(Error::UnknownTable { .. })));
    });
}

#[test]
fn the_change_of_a_transaction_whose_client_died_is_run_for() {
    let cluster = Cluster::threads();
    block_on(async {
        for table in ["a", "b"] {
            cluster.run(&["table", "create", table]).ok();
        }
        let raw = Raw::connect(&cluster).await;
        raw.client.observe("b", "c").await.expect("observed");
        let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let observer = Observer::new("b", "c", move |change, _| {
            let sender = sender.clone();
            async move {
                sender.send((change.row, change.value))?;
                Ok(())
            }
        });
        let worker = observer.start(&raw.client).await.expect("a worker");
        // Its primary is committed, its cell in b is left locked, and nobody reads it.
        raw.write("dead", true).await;
        let change = (Bytes::from("dead"), Some(Bytes::from("kept")));
        assert_eq!(changes.recv().await, Some(change));
        worker.stop().await;
    });
}

#[test]
fn a_change_reaches_its_observer_soon() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let observer = Observer::new("t", "c", move |change, _| {
            let sender = sender.clone();
            async move {
                sender.send(change.row)?;
                Ok(())
            }
        });
        let worker = observer.start(&client).await.expect("a worker");
        for number in 0..50 {
            let row = format!("r{number}");
            let put = |txn: OpenTxn| {
                let row = row.clone();
                async move { txn.put("t", &row, "c", "x") }
            };
            client.transact(put).await.expect("written");
            assert_eq!(changes.recv().await, Some(Bytes::from(row)));
        }
        idle(&client).await;
        assert_eq!(worker.stop().await.committed, 50);
    });
    wait_for("the cluster to be there still", || {
        (cluster.run(&["status"]).code() == 0).then_some(())
    });
}

/// What it changes to while a handler runs is another run's.
#[test]
fn a_cell_that_changes_faster_than_its_handler_runs_is_run_for() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let slow = |change: percolator_client::Change, txn: OpenTxn| async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            txn.put("t", &change.row, "seen", change.value.unwrap_or_default())?;
            Ok(())
        };
        let worker = Observer::new("t", "c", slow).start(&client).await;
        let worker = worker.expect("a worker");
        let mut writes = 0;
        while worker.counts().committed < 5 {
            let value = writes.to_string();
            let put = |txn: OpenTxn| {
                let value = value.clone();
                async move { txn.put("t", "hot", "c", value) }
            };
            client.transact(put).await.expect("written");
            writes += 1;
            assert!(writes < 20_000, "{:?}", worker.counts());
        }
        idle(&client).await;
        let counts = worker.stop().await;
        eprintln!("{writes} writes: {counts:?}");
        let txn = client.begin().await.expect("a transaction");
        let seen = txn.get("t", "hot", "seen").await.expect("read");
        let last = Bytes::from((writes - 1).to_string());
        assert_eq!(seen, Some(last));
    });
}

#[test]
fn a_worker_whose_table_is_deleted_ends() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let observer = Observer::new("t", "c", |_, _| async { Ok(()) });
        let worker = observer.start(&client).await.expect("a worker");
        let program = cluster
            .command(&["observe", "run", "t", "c", "--exec", "true"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        cluster.run(&["table", "delete", "t", "--yes"]).ok();
        assert_eq!(worker.ended().await, "table t was deleted");
        let ended = program.wait_with_output().expect("it ends");
        assert!(!ended.status.success());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            said.contains("table t was deleted") || said.contains("no table"),
            "{said}"
        );
    });
}

#[test]
fn a_letter_that_was_written_again_meanwhile_stays() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let letters = async |before: Option<&percolator_client::DeadLetter>| {
            let worker = start_failing(&client).await;
            let put = |txn: OpenTxn| async move { txn.put("t", "r", "c", "x") };
            client.transact(put).await.expect("written");
            loop {
                let letters = client.dead_letters("t", "c").await.expect("letters");
                match letters.first() {
                    Some(letter) if Some(letter) != before => {
                        worker.stop().await;
                        return letter.clone();
                    }
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let first = letters(None).await;
        let second = letters(Some(&first)).await;
        client.retry_dead_letter(&first).await.expect("tried again");
        let left = client.dead_letters("t", "c").await.expect("letters");
        assert_eq!(left, std::slice::from_ref(&second));
        client
            .retry_dead_letter(&second)
            .await
            .expect("tried again");
        let left = client.dead_letters("t", "c").await.expect("letters");
        assert_eq!(left, []);
    });
}

/// The program that docs/observers.md begins with, as it stands there.
#[test]
fn the_program_of_the_docs_counts_words() {
    let docs = include_str!("../../docs/observers.md");
    let (_, program) = docs.split_once("```python\n").expect("a program");
    let (program, _) = program.split_once("```").expect("its end");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("count-words");
    std::fs::write(&file, program).expect("written");
    let counts = format!("python3 {}", file.display());
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "documents"]).ok();
    cluster.run(&["table", "observe", "documents", "text"]).ok();
    let put = ["put", "documents", "doc1", "text", "the quick brown fox"];
    let run = ["observe", "run", "documents", "text", "--until-idle"];
    cluster.run(&put).ok();
    cluster.run(&[&run[..], &["--exec", &counts]].concat()).ok();
    let words = cluster.run(&["get", "documents", "doc1", "words"]).ok();
    assert_eq!(words.trim(), "4");
    // One that reads to the end of its input hears that this doesn't come.
    cluster.run(&put).ok();
    let waits = ["--exec", "cat >/dev/null", "--timeout", "300ms"];
    let ended = cluster.run(&[&run[..], &waits, &["--attempts", "1"]].concat());
    assert!(
        format!("{ended:?}").contains("to the end of its input"),
        "{ended:?}"
    );
    let discard = ["observe", "discard", "documents", "text"];
    cluster.run(&discard).ok();
    let nothing = cluster.run(&discard);
    assert_eq!(nothing.code(), 7, "{nothing:?}");
}
