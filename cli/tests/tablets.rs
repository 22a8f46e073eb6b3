//! Tablets are split and merged while money moves, and tablet servers are killed meanwhile: no transfer fails, no row is
//! missing or there twice, and histories are consistent.

use std::process::Child;

use crate::support::{Choices, Cluster, end_bank, start_bank, wait_for_transfers};
use serde_json::Value;

const ACCOUNTS: &str = "200";
/// Splits and merges; half of them again after each server was killed.
const CUTS: u64 = 40;

const MANIFEST: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: tablets}\n\
                        spec: {tablets: {replicas: 2}}\n";

/// The banks' tables.
const TABLES: [&str; 2] = ["bank", "other"];

/// A row of an account.
fn row(cluster: &Cluster, table: &str, choices: &mut Choices) -> String {
    let scanned = cluster.run(&["scan", table, "-o", "json"]).ok();
    let rows: Vec<String> = scanned
        .lines()
        .map(|line| {
            let cell: Value = serde_json::from_str(line).expect("JSON");
            cell["row"].as_str().expect("a row").to_owned()
        })
        .collect();
    let accounts: usize = ACCOUNTS.parse().expect("a number");
    assert!(rows.len() >= accounts, "{} rows of {table}", rows.len());
    assert!(rows.is_sorted(), "a scan of {table} goes back");
    let at = choices.below(rows.len() as u64 - 1) as usize + 1;
    rows[at].clone()
}

/// Splits a tablet, or merges two.
fn cut(cluster: &Cluster, table: &str, choices: &mut Choices) {
    let known = cluster.starts(table);
    // The balancer moves tablets meanwhile, so that neighbours are often at two servers.
    if let Some(seconds @ [_, ..]) = known.get(1..)
        && (known.len() > 6 || choices.below(2) == 0)
    {
        let row = &seconds[choices.below(seconds.len() as u64) as usize];
        cluster
            .run(&["tablet", "merge", table, row, "--request-timeout", "1m"])
            .ok();
        assert!(!cluster.starts(table).contains(row));
        return;
    }
    let row = row(cluster, table, choices);
    cluster
        .run(&["tablet", "split", table, &row, "--request-timeout", "1m"])
        .ok();
    assert!(cluster.starts(table).contains(&row));
}

#[test]
fn money_moves_while_tablets_are_split_and_merged_and_their_servers_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("cluster.yaml");
    std::fs::write(&manifest, MANIFEST).expect("written");
    let manifest = manifest.to_str().expect("text");
    let cluster = Cluster::start(&["--processes", "-f", manifest]);
    let mut choices = Choices::from_env();
    let ledgers = TABLES.map(|table| {
        let ledger = folder.path().join(table);
        ledger.to_str().expect("text").to_owned()
    });
    let start = |(table, ledger): (&str, &String)| {
        let bank = ["--accounts", ACCOUNTS, "--clients", "6", "--table", table];
        start_bank(&cluster, &bank, ledger)
    };
    let banks: Vec<Child> = TABLES.into_iter().zip(&ledgers).map(start).collect();
    for ledger in &ledgers {
        wait_for_transfers(ledger, 50);
    }
    for number in 0..CUTS {
        let table = TABLES[(number % 2) as usize];
        cut(&cluster, table, &mut choices);
        if number % 8 == 7 {
            let server = format!("tablet-{}", choices.below(2));
            cluster.kill(&server);
        }
    }
    for ((bank, ledger), table) in banks.into_iter().zip(&ledgers).zip(TABLES) {
        wait_for_transfers(ledger, 50);
        end_bank(bank);
        cluster.bank_holds(&["--accounts", ACCOUNTS, "--table", table], ledger);
    }
    cluster.run(&["gc", "verify"]).ok();
    for table in TABLES {
        cluster.run(&["table", "delete", table, "--yes"]).ok();
    }
}
