//! Servers and clients killed with SIGKILL at random moments, while money moves and rows are loaded:
//! nothing that was answered is lost, nothing that was refused is there, and no lock stays.
//!
//! `cargo xtask test crash --seed S` repeats a run's choices, `--rounds N` makes it longer.

mod support;

use std::process::{Child, Stdio};

use serde_json::Value;
use support::{Choices, Cluster, SERVERS, lines, rounds, signal, wait_for};

fn start_bank(cluster: &Cluster, ledger: &str) -> Child {
    cluster
        .command(&[
            "bank",
            "--accounts",
            "200",
            "--clients",
            "16",
            "--duration",
            "10m",
            "--ledger",
            ledger,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the bank runs")
}

#[test]
fn bank_keeps_every_answer_while_servers_and_clients_are_killed() {
    let mut choices = Choices::from_env();
    let cluster = Cluster::processes();
    let ledger = cluster.data_dir.join("../transfers.jsonl");
    let ledger = ledger.to_str().expect("a path of text");
    let mut bank = start_bank(&cluster, ledger);
    wait_for("the first transfers", || {
        (lines(ledger) > 100).then_some(())
    });
    for round in rounds(25) {
        // A random number of transfers between two deaths, so that they come at every moment.
        let target = lines(ledger) + usize::try_from(choices.below(400)).expect("small");
        wait_for("more transfers", || (lines(ledger) > target).then_some(()));
        // The bank itself dies now and then, in the middle of its commits.
        if choices.below(6) == 0 {
            eprintln!("round {round}: the bank is killed");
            signal(bank.id(), "KILL");
            bank.wait().expect("it ends");
            bank = start_bank(&cluster, ledger);
        } else {
            let server = SERVERS[usize::try_from(choices.below(5)).expect("small")];
            eprintln!("round {round}: {server} is killed");
            cluster.kill(server);
        }
        assert!(
            bank.try_wait().expect("a child").is_none(),
            "the bank ended by itself"
        );
    }
    signal(bank.id(), "KILL");
    bank.wait().expect("it ends");
    let said = cluster.run(&[
        "bank",
        "--accounts",
        "200",
        "-o",
        "json",
        "--verify",
        ledger,
    ]);
    eprintln!("{}{}", said.err, said.out);
    let found: Value = serde_json::from_str(&said.ok()).expect("JSON");
    assert!(found["committed"].as_u64() > Some(100), "{found}");
    for wrong in ["lost", "aborted_but_there", "wrong_accounts"] {
        assert_eq!(found[wrong], 0, "{found}");
    }
    // Whatever the dead clients left locked can be written again, once their life time is over.
    let said = cluster.run(&[
        "bank",
        "--accounts",
        "200",
        "--clients",
        "4",
        "--duration",
        "2s",
        "-o",
        "json",
    ]);
    let summary: Value = serde_json::from_str(&said.ok()).expect("JSON");
    assert_eq!(summary["wrong_sums"], 0, "{summary}");
    assert_eq!(summary["failed"], 0, "{summary}");
    readers_get_through(&cluster);
}

/// A scan meets every lock there is, and fails where one can not be cleared.
fn readers_get_through(cluster: &Cluster) {
    for table in ["bank", "bank-ledger"] {
        cluster.run(&["scan", table, "--reverse"]).ok();
    }
}

/// The package database of this machine, a JSON object a line. Without dpkg: rows of the same shape.
fn packages() -> String {
    const FORMAT: &str = r#"{"package":"${Package}:${Architecture}","version":"${Version}","section":"${Section}","maintainer":"${Maintainer}","size":"${Installed-Size}"}\n"#;
    let listed = std::process::Command::new("dpkg-query")
        .args(["-W", "-f", FORMAT])
        .output();
    let mut text = match listed {
        Ok(listed) if listed.status.success() => String::from_utf8(listed.stdout).expect("text"),
        _ => String::new(),
    };
    if text.lines().count() < 100 {
        eprintln!("no Debian package database here: made-up rows instead");
        for number in 0..2000 {
            text += &format!(
                "{{\"package\":\"package-{number}\",\"version\":\"1.{number}\",\"section\":\"s{}\",\"maintainer\":\"m{}\",\"size\":\"{number}\"}}\n",
                number % 17,
                number % 101
            );
        }
    }
    text
}

#[test]
fn import_of_real_rows_survives_kills_and_comes_out_as_it_went_in() {
    let mut choices = Choices::from_env();
    let cluster = Cluster::processes();
    let file = cluster.data_dir.join("../packages.jsonl");
    let source = packages();
    std::fs::write(&file, &source).expect("a writable folder");
    let file = file.to_str().expect("a path of text");
    let import = [
        "import",
        "--table",
        "packages",
        "--key",
        "package",
        "--index",
        "section=by-section",
        "--index",
        "maintainer=by-maintainer",
        "--batch",
        "5",
        file,
    ];
    let cuts = [
        "table",
        "create",
        "packages",
        "--split-at",
        "h",
        "--split-at",
        "libp",
    ];
    cluster.run(&cuts).ok();
    for round in rounds(4) {
        let mut loading = cluster
            .command(&import)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the import runs");
        for _ in 0..=choices.below(3) {
            let server = SERVERS[2 + usize::try_from(choices.below(3)).expect("small")];
            eprintln!("round {round}: {server} is killed");
            cluster.kill(server);
        }
        if choices.below(2) == 0 {
            eprintln!("round {round}: the import is killed");
            signal(loading.id(), "KILL");
        }
        // Killed, or done: both are well; it is run again.
        loading.wait().expect("it ends");
    }
    eprintln!("{}", cluster.run(&import).ok());
    let check = [
        "check-index",
        "--table",
        "packages",
        "--index",
        "section=by-section",
        "--index",
        "maintainer=by-maintainer",
    ];
    eprintln!("{}", cluster.run(&check).ok());
    let exported = cluster.run(&["export", "--table", "packages"]).ok();
    assert_eq!(rows(&exported), rows(&source));
}

/// The rows, whatever their order and that of their fields.
fn rows(text: &str) -> Vec<String> {
    let mut rows: Vec<String> = text
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).expect("JSON");
            row.to_string()
        })
        .collect();
    rows.sort();
    rows
}

#[test]
fn a_client_killed_in_mid_commit_leaves_nothing_that_stops_others() {
    let cluster = Cluster::processes();
    let ledger = cluster.data_dir.join("../transfers.jsonl");
    let ledger = ledger.to_str().expect("a path of text");
    let mut bank = start_bank(&cluster, ledger);
    let mut choices = Choices::from_env();
    for _ in rounds(5) {
        let target = lines(ledger) + 20 + usize::try_from(choices.below(200)).expect("small");
        wait_for("transfers", || (lines(ledger) > target).then_some(()));
        signal(bank.id(), "KILL");
        bank.wait().expect("it ends");
        // A reader waits for a life time, three seconds, at the most; the command gives up after ten.
        cluster.run(&["scan", "bank"]).ok();
        bank = start_bank(&cluster, ledger);
    }
    signal(bank.id(), "KILL");
    bank.wait().expect("it ends");
    cluster
        .run(&["bank", "--accounts", "200", "--verify", ledger])
        .ok();
}

/// A server that is killed again while it starts: it has no address yet, and its folder's lock may still be
/// held by the one before.
#[test]
fn a_server_killed_while_it_starts_is_started_again() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    let folder = cluster.data_dir.join("tablet-1").display().to_string();
    let mut killed = 0;
    wait_for("enough deaths", || {
        for pid in processes_of(&folder) {
            signal(pid, "KILL");
            killed += 1;
        }
        (killed >= 12).then_some(())
    });
    let put = wait_for("the server to be back", || {
        let said = cluster.run(&["put", "t", "a", "c", "1"]);
        (said.code() == 0).then_some(said)
    });
    put.ok();
}

/// Processes with this folder among their arguments, also those that don't listen yet.
fn processes_of(folder: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("Linux").flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
            let named = arguments
                .split(|byte| *byte == 0)
                .any(|argument| argument == folder.as_bytes());
            named.then_some(pid)
        })
        .collect()
}
