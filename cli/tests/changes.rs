//! `percolator changes` on real clusters: while followers and servers are killed and tablets are split, merged and moved, each
//! change is printed once and in order; how it begins, goes on and ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Choices, Cluster, block_on, signal, wait_for};
use percolator_client::{Client, Error, Outcome, Timestamp};
use serde_json::Value;

const ROWS: u64 = 60;
const ROUNDS: u64 = 3;
/// Cells of a row, in its commit: by row, the value, or that it was deleted.
type Writes = BTreeMap<String, Option<String>>;
/// By commit_ts.
type Commits = BTreeMap<u64, Writes>;

/// What lines say: the changes up to the last `resolved`, and that timestamp.
fn read_lines(lines: &str, from: u64) -> (Vec<(u64, String, Option<String>)>, u64) {
    let (mut changes, mut pending, mut resolved) = (Vec::new(), Vec::new(), from);
    for line in lines.lines() {
        // The last one of a process that was killed may be cut.
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            break;
        };
        let number = |name: &str| line[name].as_str().and_then(|text| text.parse().ok());
        if let Some(ts) = number("resolved") {
            assert!(ts >= resolved, "{ts} behind {resolved}");
            let all_below = pending.iter().all(|change: &(u64, _, _)| change.0 <= ts);
            assert!(all_below, "{ts} behind changes above it");
            resolved = ts;
            changes.append(&mut pending);
            continue;
        }
        let commit_ts: u64 = number("commit_ts").expect("a commit_ts");
        assert!(commit_ts > resolved, "{line} behind {resolved}");
        let row = line["row"].as_str().expect("a row").to_owned();
        let value = line["value"].as_str().map(str::to_owned);
        pending.push((commit_ts, row, value));
    }
    (changes, resolved)
}

/// A process that follows, and its lines.
struct Follower {
    child: Child,
    file: std::path::PathBuf,
    from: u64,
}

impl Follower {
    fn start(cluster: &Cluster, folder: &Path, from: u64) -> Self {
        Self::start_with(cluster, folder, from, &[])
    }

    fn start_with(cluster: &Cluster, folder: &Path, from: u64, more: &[&str]) -> Self {
        let file = folder.join(format!("from-{from}"));
        let lines = File::create(&file).expect("a file");
        let from_text = from.to_string();
        let command = ["changes", "t", "-o", "json", "--from", &from_text];
        let child = cluster
            .command(&[&command[..], &["--interval", "50ms"], more].concat())
            .stdout(lines)
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        Self { child, file, from }
    }

    fn lines(&self) -> (Vec<(u64, String, Option<String>)>, u64) {
        let lines = std::fs::read_to_string(&self.file).expect("lines");
        read_lines(&lines, self.from)
    }

    /// It has come further.
    fn wait(&self) {
        wait_for("a timestamp to go on from", || {
            (self.lines().1 > self.from).then_some(())
        });
    }
}

/// Commits transactions until it is enough: what each of them has written.
async fn write(client: &Client, writer: u64, enough: &AtomicBool) -> Commits {
    let mut commits = Commits::new();
    let mut choices = Choices::from_seed(writer);
    for number in 0.. {
        if enough.load(Ordering::Relaxed) {
            break;
        }
        let mut writes = Writes::new();
        for _ in 0..1 + choices.below(4) {
            let row = format!("r{:02}", choices.below(ROWS));
            let value = (choices.below(5) > 0).then(|| format!("{writer}-{number}"));
            writes.insert(row, value);
        }
        if let Some(commit_ts) = commit(client, &writes).await {
            commits.insert(commit_ts.as_u64(), writes);
        }
    }
    commits
}

/// Commits the writes; `None`: they were not committed.
async fn commit(client: &Client, writes: &Writes) -> Option<Timestamp> {
    let txn = client.begin().await.ok()?;
    for (row, value) in writes {
        match value {
            Some(value) => txn.put("t", row, "c", value.clone()),
            None => txn.delete("t", row, "c"),
        }
        .expect("room");
    }
    match txn.commit().await {
        Ok(commit_ts) => Some(commit_ts),
        Err(Error::Unknown {
            start_ts, primary, ..
        }) => loop {
            match client.outcome(start_ts, &primary).await {
                Ok(Outcome::Committed(commit_ts)) => return Some(commit_ts),
                Ok(Outcome::RolledBack) => return None,
                Ok(Outcome::Pending) | Err(_) => {}
                Ok(Outcome::Forgotten) => panic!("nobody knows of {start_ts}"),
            }
        },
        Err(_) => None,
    }
}

/// Kills a server, and splits, merges and moves tablets.
fn disturb(cluster: &Cluster, choices: &mut Choices) {
    cluster.kill(&format!("tablet-{}", choices.below(3)));
    let cut = format!("r{:02}", 1 + choices.below(ROWS - 1));
    cluster.run(&["tablet", "split", "t", &cut, "--request-timeout", "1m"]);
    let (tablet, to) = cluster.tablet_to_move("t", choices);
    let moved = cluster.run(&["tablet", "move", &tablet, &to, "--request-timeout", "1m"]);
    let merged = cluster.run(&["tablet", "merge", "t", &cut, "--request-timeout", "1m"]);
    eprintln!(
        "moved: {}{}merged: {}{}",
        moved.out, moved.err, merged.out, merged.err
    );
}

#[test]
fn each_change_is_printed_once_and_in_order_whatever_is_killed_and_moved() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::of_three();
    let mut choices = Choices::from_env();
    cluster
        .run(&["table", "create", "t", "--split-at", "r20,r40"])
        .ok();
    let master = cluster.master.clone();
    let enough = Arc::new(AtomicBool::new(false));
    let is_enough = enough.clone();
    let client = |master: String| async move { Client::connect(&master).await.expect("a client") };
    let begin = block_on(async { client(master.clone()).await.timestamp().await });
    let begin = begin.expect("a timestamp").as_u64();
    let writers = std::thread::spawn(move || {
        block_on(async {
            let client = client(master).await;
            let writers = (0..4).map(|writer| write(&client, writer, &is_enough));
            futures_util::future::join_all(writers).await
        })
    });
    let mut changes = Vec::new();
    let mut follower = Follower::start(&cluster, folder.path(), begin);
    for _ in 0..ROUNDS {
        disturb(&cluster, &mut choices);
        follower.wait();
        // It is killed in the middle of something, and another one goes on.
        follower.child.kill().expect("killed");
        follower.child.wait().expect("it ends");
        let (some, resolved) = follower.lines();
        changes.extend(some);
        follower = Follower::start(&cluster, folder.path(), resolved);
    }
    enough.store(true, Ordering::Relaxed);
    let written = writers.join().expect("writers");
    follower.wait();
    // This one ends in order.
    signal(follower.child.id(), "INT");
    assert_eq!(follower.child.wait().expect("it ends").code(), Some(0));
    let (some, resolved) = follower.lines();
    changes.extend(some);
    let from = resolved.to_string();
    let rest = ["changes", "t", "--once", "-o", "json", "--from", &from];
    let (some, resolved) = read_lines(&cluster.run(&rest).ok(), resolved);
    changes.extend(some);
    assert!(changes.is_sorted_by_key(|(commit_ts, ..)| *commit_ts));
    let mut printed = Commits::new();
    for (commit_ts, row, value) in &changes {
        let of_commit = printed.entry(*commit_ts).or_default();
        let before = of_commit.insert(row.clone(), value.clone());
        assert_eq!(before, None, "{row} of {commit_ts} is printed twice");
    }
    let written: Commits = written.into_iter().flatten().collect();
    eprintln!("{} transactions, {} changes", written.len(), changes.len());
    assert!(written.len() > 20);
    // A commit that failed without an answer may have been printed, but nothing that was answered is missing.
    for (commit_ts, writes) in &written {
        assert_eq!(printed.get(commit_ts), Some(writes), "{commit_ts}");
    }
    assert_eq!(printed.len(), written.len());
    // Changes that are applied in their order make the table.
    let mut copy = BTreeMap::new();
    for (_, row, value) in changes {
        match value {
            Some(value) => copy.insert(row, value),
            None => copy.remove(&row),
        };
    }
    let at = resolved.to_string();
    let scanned = cluster.run(&["scan", "t", "--at", &at, "-o", "json"]).ok();
    let cells = scanned.lines().map(|line| {
        let cell: Value = serde_json::from_str(line).expect("JSON");
        let text = |name: &str| cell[name].as_str().expect("text").to_owned();
        (text("row"), text("value"))
    });
    assert_eq!(cells.collect::<BTreeMap<_, _>>(), copy);
}

/// What `put` says of its commit.
fn commit_ts(said: &str) -> u64 {
    let digits = |word: &&str| word.len() > 10 && word.bytes().all(|byte| byte.is_ascii_digit());
    let word = said.split_whitespace().find(digits);
    word.and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("no timestamp in {said:?}"))
}

#[test]
fn it_prints_puts_and_deletes_from_one_timestamp_to_another() {
    let cluster = Cluster::threads();
    cluster
        .run(&["table", "create", "t", "--split-at", "m"])
        .ok();
    let put = |words: &[&str]| {
        let said = cluster.run(&[words, &["-o", "json"]].concat()).ok();
        let said: Value = serde_json::from_str(&said).expect("JSON");
        commit_ts(said["commit_ts"].as_str().expect("a commit_ts"))
    };
    let first = put(&["put", "t", "b", "c", "1"]);
    let second = put(&["put", "t", "z", "c", "2", "d", "\\xff"]);
    let third = put(&["delete", "t", "b", "c"]);
    let fourth = put(&["put", "t", "a", "c", "3"]);
    let run = |from: u64, more: &[&str]| {
        let from = from.to_string();
        cluster.run(&[&["changes", "t", "--from", &from], more].concat())
    };
    let third_text = third.to_string();
    let between = run(first, &["--until", &third_text]).ok();
    let expected = format!(
        "{second}\tput\tz\tc\t2\n{second}\tput\tz\td\t\\xff\n{third}\tdelete\tb\tc\nresolved\t{third}\n"
    );
    assert_eq!(between, expected);
    let json = run(second, &["--once", "--columns", "c", "-o", "json"]).ok();
    let lines: Vec<&str> = json.lines().collect();
    let [deleted, put, resolved] = lines[..] else {
        panic!("{json}");
    };
    assert_eq!(
        deleted,
        format!(r#"{{"row":"b","column":"c","value":null,"commit_ts":"{third}"}}"#)
    );
    assert_eq!(
        put,
        format!(r#"{{"row":"a","column":"c","value":"3","commit_ts":"{fourth}"}}"#)
    );
    let resolved: Value = serde_json::from_str(resolved).expect("JSON");
    let resolved = commit_ts(resolved["resolved"].as_str().expect("a timestamp"));
    assert!(resolved > fourth);
    // Nothing has changed since.
    let nothing = run(resolved, &["--once"]).ok();
    assert_eq!(nothing.lines().count(), 1, "{nothing}");
    assert!(nothing.starts_with("resolved\t"), "{nothing}");
    let future = resolved + (1 << 60);
    run(future, &["--once"]).refused(2, &["future"]);
    run(fourth, &["--until", &third_text]).refused(2, &["--until", "lies before"]);
    run(fourth, &["--interval", "1ms"]).refused(2, &["--interval is 10ms at least"]);
    // A timestamp to begin with: the present.
    let begin = cluster.run(&["changes", "t", "--once"]).ok();
    let begin = begin
        .trim_end()
        .strip_prefix("resolved\t")
        .expect("a timestamp");
    assert!(commit_ts(begin) > fourth, "{begin}");
    let copy = cluster.run(&["scan", "t", "--at", begin]).ok();
    assert!(copy.contains("a\tc\t3"), "{copy}");
    let nowhere = ["changes", "u", "--from", &third_text, "--once"];
    cluster.run(&nowhere).refused(6, &[]);
}

#[test]
fn what_may_have_been_collected_is_refused_with_what_to_do() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "r", "c", "1"]).ok();
    let begin = block_on(async {
        let client = Client::connect(&cluster.master).await.expect("a cluster");
        client.timestamp().await.expect("a timestamp").to_string()
    });
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    let refused = wait_for("the read barrier", || {
        let changes = cluster.run(&["changes", "t", "--from", &begin, "--once"]);
        (changes.code() != 0).then_some(changes)
    });
    let said = ["percolator scan t --at ", "percolator changes t --from "];
    refused.refused(3, &said);
}

/// Nothing says then that it was printed.
#[test]
fn it_is_interrupted_in_the_middle_of_a_transaction() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let master = cluster.master.clone();
    let begin = block_on(async {
        let client = Client::connect(&master).await.expect("a client");
        let begin = client.timestamp().await.expect("a timestamp");
        // Larger than what is put in order at a time.
        let txn = client.begin().await.expect("a transaction");
        for number in 0..64 {
            let value = vec![b'v'; 256 << 10];
            txn.put("t", format!("r{number:02}"), "c", value)
                .expect("room");
        }
        txn.commit().await.expect("a commit");
        begin.as_u64()
    });
    let mut follower = Follower::start_with(&cluster, folder.path(), begin, &["--buffer", "1"]);
    wait_for("its first lines", || {
        let size = std::fs::metadata(&follower.file).ok()?.len();
        (size > 0).then_some(())
    });
    signal(follower.child.id(), "INT");
    assert_eq!(follower.child.wait().expect("it ends").code(), Some(0));
    let (printed, resolved) = follower.lines();
    assert!(printed.is_empty() == (resolved == begin), "{resolved}");
    // All of it comes then, once.
    let from = resolved.to_string();
    let rest = ["changes", "t", "--once", "-o", "json", "--from", &from];
    let (rest, _) = read_lines(&cluster.run(&rest).ok(), resolved);
    assert_eq!(printed.len() + rest.len(), 64);
    // Also where it is put in order in parts.
    let from = begin.to_string();
    let all = [
        "changes", "t", "--once", "-o", "json", "--buffer", "1", "--from", &from,
    ];
    let (all, _) = read_lines(&cluster.run(&all).ok(), begin);
    assert_eq!(all.len(), 64);
}

/// What it has printed already is held for nobody.
#[test]
fn a_stream_that_goes_on_does_not_keep_versions_from_being_collected() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let now = || {
        block_on(async {
            let client = Client::connect(&cluster.master).await.expect("a cluster");
            client.timestamp().await.expect("a timestamp").as_u64()
        })
    };
    let mut follower = Follower::start(&cluster, folder.path(), now());
    follower.wait();
    let later = now();
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    wait_for("the read barrier to pass its beginning", || {
        let status = cluster.run(&["gc", "status", "-o", "json"]).ok();
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let barrier = status["barrier"].as_str().expect("a timestamp");
        let barrier: u64 = barrier.parse().expect("a number");
        (barrier > later).then_some(())
    });
    wait_for("it to go on", || (follower.lines().1 > later).then_some(()));
    signal(follower.child.id(), "INT");
    assert_eq!(follower.child.wait().expect("it ends").code(), Some(0));
}
