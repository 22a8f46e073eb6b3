//! Tablets are handed over from server to server while money moves, and tablet servers are killed meanwhile: no transfer fails,
//! no row is missing or there twice, and collection has overlooked nothing.

mod support;

use serde_json::Value;
use support::{Choices, Cluster, end_bank, start_bank, wait_for, wait_for_transfers};

const ACCOUNTS: &str = "200";
const BANK: [&str; 4] = ["--accounts", ACCOUNTS, "--clients", "6"];
const TABLE: &str = "bank";
/// After each third of them a server is killed.
const MOVES: u64 = 15;
const SERVERS: u64 = 3;

const MANIFEST: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: moves}\n\
                        spec: {tablets: {replicas: 3}}\n";

/// The tablets of the bank: their numbers and their servers.
fn tablets(cluster: &Cluster) -> Vec<(String, String)> {
    let listed = cluster.run(&["tablet", "list", TABLE, "-o", "json"]).ok();
    let tablets = listed.lines().map(|line| {
        let tablet: Value = serde_json::from_str(line).expect("JSON");
        let server = tablet["server"].as_str().expect("a server").to_owned();
        (tablet["id"].to_string(), server)
    });
    tablets.collect()
}

/// Hands a tablet over to another server.
fn move_one(cluster: &Cluster, choices: &mut Choices) {
    let tablets = tablets(cluster);
    let (tablet, server) = &tablets[choices.below(tablets.len() as u64) as usize];
    let others = (0..SERVERS).map(|number| format!("tablet-{number}"));
    let others: Vec<String> = others.filter(|other| other != server).collect();
    let to = &others[choices.below(others.len() as u64) as usize];
    cluster
        .run(&["tablet", "move", tablet, to, "--patience", "2m"])
        .ok();
}

#[test]
fn money_moves_while_its_tablets_do_and_their_servers_are_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("cluster.yaml");
    std::fs::write(&manifest, MANIFEST).expect("written");
    let manifest = manifest.to_str().expect("text");
    let cluster = Cluster::start(&["--processes", "-f", manifest]);
    let mut choices = Choices::from_env();
    let ledger = folder.path().join("ledger");
    let ledger = ledger.to_str().expect("text");
    let bank = start_bank(&cluster, &BANK, ledger);
    wait_for_transfers(ledger, 50);
    cluster
        .run(&["tablet", "split", TABLE, "00000055", "00000105", "00000155"])
        .ok();
    for number in 0..MOVES {
        move_one(&cluster, &mut choices);
        if number % 3 == 2 {
            cluster.kill(&format!("tablet-{}", choices.below(SERVERS)));
        }
    }
    wait_for_transfers(ledger, 50);
    end_bank(bank);
    cluster.bank_holds(&["--accounts", ACCOUNTS, "--table", TABLE], ledger);
    cluster.run(&["gc", "verify"]).ok();
    cluster.run(&["table", "delete", TABLE, "--yes"]).ok();
}

#[test]
fn what_people_ask_for_is_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("cluster.yaml");
    std::fs::write(&manifest, MANIFEST).expect("written");
    let cluster = Cluster::start(&["-f", manifest.to_str().expect("text")]);
    cluster.run(&["table", "create", TABLE]).ok();
    cluster.run(&["put", TABLE, "alice", "balance", "1"]).ok();
    let (tablet, server) = tablets(&cluster).remove(0);
    let to = if server == "tablet-1" {
        "tablet-2"
    } else {
        "tablet-1"
    };
    let there = ["tablet", "move", &tablet, to];
    // The second time it is there already.
    for _ in 0..2 {
        let said = cluster.run(&there);
        assert!(
            said.err.contains(&format!("is at {to} now")),
            "{}",
            said.err
        );
    }
    assert_eq!(cluster.run(&["get", TABLE, "alice", "balance"]).ok(), "1\n");
    assert_eq!(tablets(&cluster), [(tablet.clone(), to.to_owned())]);
    // Back, as soon as what it left is removed.
    cluster
        .run(&["tablet", "move", &tablet, &server, "--patience", "1m"])
        .ok();
    wait_for("the tablet to be back", || {
        (tablets(&cluster) == [(tablet.clone(), server.clone())]).then_some(())
    });
    assert_eq!(cluster.run(&["get", TABLE, "alice", "balance"]).ok(), "1\n");
    for (arguments, words) in [
        (["999999", "tablet-1"], "there is no tablet 999999"),
        ([&*tablet, "tablet-9"], "there is no tablet server tablet-9"),
    ] {
        let command = [&["tablet", "move"][..], &arguments].concat();
        cluster.run(&command).refused(2, &[words]);
    }
}
