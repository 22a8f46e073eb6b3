//! Banks and recorders of histories, which run beside what a test does to a cluster: until they have committed something, to
//! their ends, and what they say then.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Cluster, signal, wait_for};

/// Clients of a recorder.
const RECORDERS: u64 = 12;

/// How many bytes the file has.
fn length(file: &str) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len())
}

/// How many lines behind this byte of a ledger, or of a history, are about something committed: a transfer, or a transaction
/// that wrote. What only read, or was refused, is no progress.
fn committed(file: &str, from: u64) -> u64 {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(file)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let is_committed = |line: &&str| {
        line.contains(r#""answer":"committed""#)
            || (line.contains(r#""outcome":"committed""#) && line.contains(r#"{"w":["#))
    };
    text.lines().filter(is_committed).count() as u64
}

/// Waits until so many more transfers were committed, each of which is a line of the ledger.
pub(crate) fn wait_for_transfers(ledger: &str, transfers: u64) {
    let from = length(ledger);
    wait_for("more transfers", || {
        (committed(ledger, from) > transfers).then_some(())
    });
}

/// Fails where a client has ended, which none does by itself.
pub(crate) fn lives(client: &mut Child, what: &str) {
    let ended = client.try_wait().expect("a child");
    assert!(ended.is_none(), "{what} has ended by itself: {ended:?}");
}

/// Starts a bank with these arguments, which goes on until [`end_bank`] and notes its transfers in the ledger.
pub(crate) fn start_bank(cluster: &Cluster, arguments: &[&str], ledger: &str) -> Child {
    cluster
        .command(&["bank", "-o", "json", "--duration", "10m"])
        .args(["--ledger", ledger])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the bank runs")
}

/// Stops a bank, whose output is a pipe: at no snapshot that it has seen, the last one included, money was lost or made.
pub(crate) fn stop_bank(bank: Child) -> Value {
    signal(bank.id(), "TERM");
    let said = bank.wait_with_output().expect("the bank ends");
    let summary = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "{}: {summary}", said.status);
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert_eq!(summary["wrong_sums"], 0, "{summary}");
    summary
}

/// Stops a bank: none of its transfers failed, and it has looked while money moved.
pub(crate) fn end_bank(bank: Child) {
    let summary = stop_bank(bank);
    assert_eq!(summary["failed"], 0, "{summary}");
    // One is that of its end.
    assert!(summary["sum_checks"].as_u64() > Some(1), "{summary}");
}

/// Starts a recorder, by a client's command, which goes on until [`end_recorder`].
pub(crate) fn record(mut client: Command, file: &str) -> Child {
    client
        .args(["history", "record", "--lists", "12", "--clients"])
        .args([&RECORDERS.to_string(), "--duration", "10m", file])
        .stdout(Stdio::null())
        .spawn()
        .expect("the recorder runs")
}

/// Waits until so many more transactions have committed what they wrote, by the history.
pub(crate) fn wait_for_commits(recorder: &mut Child, file: &str, commits: u64) {
    let from = length(file);
    wait_for("transactions to be committed", || {
        lives(recorder, "the recorder");
        (committed(file, from) >= commits).then_some(())
    });
}

/// Ends a recorder, when nothing happens to the cluster any more: transactions that have begun since then are committed, and it
/// reads all rows.
pub(crate) fn end_recorder(recorder: &mut Child, file: &str) {
    // Each of its clients has one under way, at the most, that began before.
    wait_for_commits(recorder, file, RECORDERS + 20);
    signal(recorder.id(), "TERM");
    let ended = recorder.wait().expect("it ends");
    assert!(ended.success(), "the recorder: {ended}");
}
