//! Tablets are handed over from server to server while money moves, and tablet servers are killed meanwhile: no transfer fails,
//! no row is missing or there twice, and collection has overlooked nothing.

use crate::support::{Choices, Cluster, end_bank, start_bank, wait_for, wait_for_transfers};

const ACCOUNTS: &str = "200";
const BANK: [&str; 4] = ["--accounts", ACCOUNTS, "--clients", "6"];
const TABLE: &str = "bank";
/// After each third of them a server is killed.
const MOVES: u64 = 15;
const SERVERS: u64 = 3;

/// Hands a tablet over to another server.
fn move_one(cluster: &Cluster, choices: &mut Choices) {
    let (tablet, to) = cluster.tablet_to_move(TABLE, choices);
    cluster
        .run(&["tablet", "move", &tablet, &to, "--request-timeout", "2m"])
        .ok();
}

#[test]
fn money_moves_while_its_tablets_do_and_their_servers_are_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::of_three();
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
    let cluster = Cluster::of_three();
    cluster.run(&["table", "create", TABLE]).ok();
    cluster.run(&["put", TABLE, "alice", "balance", "1"]).ok();
    let (tablet, server) = cluster.tablets(TABLE).remove(0);
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
    assert_eq!(cluster.tablets(TABLE), [(tablet.clone(), to.to_owned())]);
    // Back, as soon as what it left is removed.
    cluster
        .run(&[
            "tablet",
            "move",
            &tablet,
            &server,
            "--request-timeout",
            "1m",
        ])
        .ok();
    wait_for("the tablet to be back", || {
        (cluster.tablets(TABLE) == [(tablet.clone(), server.clone())]).then_some(())
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
