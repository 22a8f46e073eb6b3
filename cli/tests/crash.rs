//! Servers and clients killed with SIGKILL at random moments, and servers that stand still for longer than locks live and
//! servers may be silent, while money moves and rows are loaded: nothing that was answered is lost, nothing that was refused is
//! there, snapshot isolation explains what was read, and no lock stays.
//!
//! `cargo xtask test crash --seed S` repeats a run's choices, `--rounds N` makes it longer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Child, Stdio};

use crate::support::clients::{lives, stop_bank};
use crate::support::{
    Choices, Cluster, Deck, SERVERS, rounds, signal, stand_still, start_bank, wait_for,
    wait_for_transfers,
};
use serde_json::Value;

/// A bank that is killed and started again, with what it writes down.
struct Bank {
    child: Child,
    ledger: String,
    history: String,
}

impl Bank {
    fn start(cluster: &Cluster) -> Self {
        let file = |name: &str| {
            let path = cluster.data_dir.join("..").join(name);
            path.to_str().expect("a path of text").to_owned()
        };
        let (ledger, history) = (file("transfers.jsonl"), file("history.jsonl"));
        Self {
            child: open_bank(cluster, &ledger, &history),
            ledger,
            history,
        }
    }

    /// Waits until so many more transfers were committed, while it runs.
    fn wait_for(&mut self, transfers: u64) {
        wait_for_transfers(&self.ledger, transfers);
        lives(&mut self.child, "the bank");
    }

    fn restart(&mut self, cluster: &Cluster) {
        end(&mut self.child);
        self.child = open_bank(cluster, &self.ledger, &self.history);
    }

    /// Stops it, when it goes on after all that happened. The sum is right, what its clients were answered is what is there, and
    /// snapshot isolation explains what they read.
    fn answers_hold(mut self, cluster: &Cluster) {
        // Undisturbed for as long as before: transactions whose outcome is unknown leave reads that may be of them.
        self.wait_for(1_000);
        stop_bank(self.child);
        let found = cluster.bank_holds(&["--accounts", ACCOUNTS], &self.ledger);
        assert!(found["committed"].as_u64() > Some(100), "{found}");
        let said = cluster.run(&["history", "check", "-o", "json", &self.history]);
        eprintln!("{}{}", said.err, said.out);
        let found: Value = serde_json::from_str(&said.ok()).expect("JSON");
        let number = |name: &str| found[name].as_u64().expect("a number");
        assert!(number("committed") > 100, "{found}");
        // A balance comes again and again, so without timestamps these reads say little; with them, nearly all do. Were timestamps not
        // used, as many would be left. Transactions whose outcome is unknown leave some, also where few commit.
        let ambiguous = number("ambiguous_reads_by_timestamps");
        let without_timestamps = number("ambiguous_reads");
        let most = number("committed").max(without_timestamps) / 10;
        assert!(ambiguous < most, "{found}");
    }
}

/// Accounts of the bank.
const ACCOUNTS: &str = "200";

fn open_bank(cluster: &Cluster, ledger: &str, history: &str) -> Child {
    let bank = ["--accounts", ACCOUNTS, "--clients", "16"];
    let bank = [&bank[..], &["--history", history]].concat();
    start_bank(cluster, &bank, ledger)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    BankKilled,
    Killed(&'static str),
    Still(&'static str),
}

#[test]
fn bank_keeps_every_answer_while_servers_are_killed_and_stopped_and_clients_are_killed() {
    let mut choices = Choices::from_env();
    let cluster = Cluster::processes();
    // Collection goes on all the time; longer than anybody stands still.
    cluster.run(&["gc", "set", "--retention", "10s"]).ok();
    let mut bank = Bank::start(&cluster);
    bank.wait_for(100);
    let mut events = Deck::new(
        [Event::BankKilled]
            .into_iter()
            .chain(SERVERS.map(Event::Killed))
            .chain(SERVERS.map(Event::Still)),
    );
    for round in rounds(events.len(), 25) {
        // A random number of transfers between two events, so that they come at every moment.
        bank.wait_for(choices.below(400));
        let event = events.draw(&mut choices);
        eprintln!("round {round}: {event:?}");
        match event {
            // The bank itself too, in the middle of its commits.
            Event::BankKilled => bank.restart(&cluster),
            Event::Killed(server) => cluster.kill(server),
            Event::Still(server) => stand_still(cluster.pid(server), &mut choices),
        }
    }
    bank.answers_hold(&cluster);
    // Whatever the dead clients left locked can be written again, once their ttl is over.
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
    assert!(summary["transfers"].as_u64() > Some(0), "{summary}");
    readers_get_through(&cluster);
    nothing_is_overlooked(&cluster);
}

fn end(client: &mut Child) {
    signal(client.id(), "KILL");
    client.wait().expect("it ends");
}

/// A scan meets every lock there is, and fails where one can not be cleared.
fn readers_get_through(cluster: &Cluster) {
    for table in ["bank", "bank-ledger"] {
        cluster.run(&["scan", table, "--reverse"]).ok();
    }
}

/// What collection goes by, and what is stored, agree.
fn nothing_is_overlooked(cluster: &Cluster) {
    eprintln!("{}", cluster.run(&["gc", "verify"]).ok());
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

/// Rows that one import loads.
const ROWS: usize = 3000;

/// The packages, under other names again where they are too few. Every round has other values in every row,
/// and moves its entry in one of the indexes.
fn rows_of(round: u64, packages: &str) -> Vec<String> {
    let packages: Vec<Value> = packages
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    (0..ROWS)
        .map(|at| {
            let mut row = packages[at % packages.len()].clone();
            let text = |field: &str| row[field].as_str().expect("text").to_owned();
            let package = format!("{}~{}", text("package"), at / packages.len());
            let section = format!("{}/{}", text("section"), round % 3);
            row["package"] = package.into();
            row["section"] = section.into();
            row["round"] = round.into();
            format!("{row}\n")
        })
        .collect()
}

const INDEXES: [&str; 4] = [
    "--index",
    "section=by-section",
    "--index",
    "maintainer=by-maintainer",
];

fn import_arguments(file: &str) -> Vec<&str> {
    let import = ["import", "--table", "packages", "--key", "package"];
    [&import[..], &INDEXES, &["--batch", "5", file]].concat()
}

/// The import has its rows through a pipe, some before each death: so it is never done before the last one.
///
/// It records no history: it only writes, reads what it overwrites for the indexes' sake, and tells nobody what it
/// read; what its commits made is what the file says, and that is looked at in the end, with the indexes. The bank
/// beside it runs on the same servers, and its history is checked.
#[test]
fn import_and_bank_survive_the_death_of_each_server_and_of_themselves() {
    let mut choices = Choices::from_env();
    let cluster = Cluster::processes();
    let packages = packages();
    let cuts = ["--split-at", "h", "--split-at", "libp"];
    let create = ["table", "create", "packages"];
    cluster.run(&[&create[..], &cuts].concat()).ok();
    let mut bank = Bank::start(&cluster);
    for round in rounds(2, 4) {
        let rows = rows_of(round, &packages);
        let mut import = cluster
            .command(&import_arguments("-"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the import runs");
        let mut input = import.stdin.take().expect("a pipe");
        let mut victims = Deck::new(SERVERS.into_iter().chain(["bank"]));
        let part = ROWS.div_ceil(usize::try_from(victims.len()).expect("small"));
        for rows in rows.chunks(part) {
            input
                .write_all(rows.concat().as_bytes())
                .expect("the import reads");
            bank.wait_for(choices.below(100));
            let victim = victims.draw(&mut choices);
            eprintln!("round {round}: {victim} is killed");
            lives(&mut import, "the import");
            if victim == "bank" {
                bank.restart(&cluster);
            } else {
                cluster.kill(victim);
            }
        }
        if round % 2 == 0 {
            eprintln!("round {round}: the import is killed");
            lives(&mut import, "the import");
            end(&mut import);
            // Whatever it has left behind, another one goes on.
            let said = cluster.run_with(&import_arguments("-"), &rows.concat());
            eprintln!("{}", said.ok());
        } else {
            drop(input);
            let ended = import.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{}: {said}", ended.status);
        }
        let check = ["check-index", "--table", "packages"];
        eprintln!("{}", cluster.run(&[&check[..], &INDEXES].concat()).ok());
        let exported = cluster.run(&["export", "--table", "packages"]).ok();
        assert_eq!(by_key(&exported), by_key(&rows.concat()));
    }
    bank.answers_hold(&cluster);
    readers_get_through(&cluster);
    nothing_is_overlooked(&cluster);
}

/// The rows, whatever their order and that of their fields.
fn by_key(text: &str) -> BTreeMap<String, Value> {
    text.lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).expect("JSON");
            (row["package"].as_str().expect("a key").to_owned(), row)
        })
        .collect()
}

#[test]
fn a_client_killed_in_mid_commit_leaves_nothing_that_stops_others() {
    let cluster = Cluster::processes();
    let mut bank = Bank::start(&cluster);
    let mut choices = Choices::from_env();
    for _ in rounds(3, 5) {
        bank.wait_for(20 + choices.below(200));
        // While a reader waits, nobody else clears what the dead one left: that takes a ttl, three seconds, at
        // the most, and the command gives up after ten.
        end(&mut bank.child);
        cluster.run(&["scan", "bank"]).ok();
        bank.restart(&cluster);
    }
    bank.answers_hold(&cluster);
}

/// A server that is killed again while it starts: it has no address yet, and its folder's lock may still be
/// held by the one before.
#[test]
fn a_server_killed_while_it_starts_is_started_again() {
    let cluster = Cluster::processes();
    let cuts = ["--split-at", "h", "--split-at", "p"];
    let create = ["table", "create", "t"];
    cluster.run(&[&create[..], &cuts].concat()).ok();
    let mut owners = cluster.tablets("t").into_iter();
    let at = owners.position(|(_, owner)| owner == "tablet-1");
    let at = at.expect("each server has one of three tablets");
    let row = format!("{}a", cluster.starts("t")[at]);
    cluster.run(&["put", "t", &row, "c", "1"]).ok();
    let folder = cluster.data_dir.join("tablet-1").display().to_string();
    let mut killed = BTreeSet::new();
    wait_for("enough deaths", || {
        for pid in processes_of(&folder) {
            signal(pid, "KILL");
            killed.insert(pid);
        }
        (killed.len() >= 12).then_some(())
    });
    let get = ["get", "t", &row, "c"];
    let got = wait_for("the server to be back", || {
        let said = cluster.run(&get);
        (said.code() == 0).then_some(said.out)
    });
    assert_eq!(got, "1\n");
    cluster.run(&["put", "t", &row, "c", "2"]).ok();
    assert_eq!(cluster.run(&get).ok(), "2\n");
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
