//! What the master does with tablets by itself: servers are drained while money moves and servers are killed, and a table that
//! is imported at once spreads over all servers.

use crate::support;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::support::{
    Choices, Cluster, end_bank, percolator, start_bank, wait_for, wait_for_transfers,
};
use serde_json::Value;

const ACCOUNTS: &str = "200";
const BANK: [&str; 4] = ["--accounts", ACCOUNTS, "--clients", "6"];
const TABLE: &str = "bank";
const SERVERS: u64 = 3;
/// So often a server is drained.
const DRAINS: u64 = 4;

fn cluster(folder: &tempfile::TempDir, spec: &str) -> Cluster {
    let manifest = folder.path().join("cluster.yaml");
    let text = format!(
        "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {{name: balance}}\nspec: {spec}\n"
    );
    std::fs::write(&manifest, text).expect("written");
    let up = ["--processes", "-f", manifest.to_str().expect("text")];
    Cluster::start_with(&up, &[("PERCOLATOR_TABLET_DRAIN_ON_STOP", "1m")])
}

fn lines(cluster: &Cluster, arguments: &[&str]) -> Vec<Value> {
    let listed = cluster.run(&[arguments, &["-o", "json"]].concat()).ok();
    let lines = listed.lines().map(serde_json::from_str);
    lines.map(|line| line.expect("JSON")).collect()
}

/// How many tablets of the table each server has that has any.
fn spread(cluster: &Cluster, table: &str) -> Vec<usize> {
    let tablets = lines(cluster, &["tablet", "list", table]);
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for tablet in tablets {
        *counts.entry(tablet["server"].to_string()).or_default() += 1;
    }
    counts.into_values().collect()
}

#[test]
fn a_server_that_stops_moves_its_tablets_to_others_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = cluster(&folder, "{tablets: {replicas: 2}}");
    let ledger = folder.path().join("ledger");
    let ledger = ledger.to_str().expect("text");
    let bank = start_bank(&cluster, &BANK, ledger);
    wait_for_transfers(ledger, 50);
    let split = ["tablet", "split", TABLE, "00000060", "00000120"];
    cluster.run(&split).ok();
    for server in ["tablet-0", "tablet-1", "tablet-0"] {
        wait_for("both servers to have some", || {
            (spread(&cluster, TABLE).len() == 2).then_some(())
        });
        let log = cluster.data_dir.join("logs").join(format!("{server}.log"));
        let ends = || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            said.matches("others have the tablets").count()
        };
        let before = ends();
        support::signal(cluster.pid(server), "TERM");
        wait_for("its end without tablets", || {
            (ends() > before).then_some(())
        });
        wait_for_transfers(ledger, 20);
    }
    end_bank(bank);
    cluster.bank_holds(&["--accounts", ACCOUNTS, "--table", TABLE], ledger);
    cluster.run(&["gc", "verify"]).ok();
}

#[test]
fn servers_are_drained_while_money_moves_and_servers_are_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = cluster(&folder, "{tablets: {replicas: 3}}");
    let mut choices = Choices::from_env();
    let ledger = folder.path().join("ledger");
    let ledger = ledger.to_str().expect("text");
    let bank = start_bank(&cluster, &BANK, ledger);
    wait_for_transfers(ledger, 50);
    let split = ["tablet", "split", TABLE];
    let rows = ["00000035", "00000065", "00000095", "00000125", "00000155"];
    cluster.run(&[&split[..], &rows].concat()).ok();
    // All of them were at one server.
    wait_for("every server to have some", || {
        (spread(&cluster, TABLE).len() == 3).then_some(())
    });
    for number in 0..DRAINS {
        let server = format!("tablet-{}", choices.below(SERVERS));
        if number % 2 == 1 {
            cluster.kill(&format!("tablet-{}", choices.below(SERVERS)));
        }
        let drained = cluster.run(&["server", "drain", &server, "--request-timeout", "2m"]);
        assert!(
            drained.ok().contains(&format!("{server} is drained")),
            "{server}"
        );
        let there = lines(&cluster, &["tablet", "list"]);
        assert!(
            there.iter().all(|tablet| tablet["server"] != *server),
            "{there:?}"
        );
        wait_for_transfers(ledger, 20);
        cluster.run(&["server", "undrain", &server]).ok();
    }
    wait_for_transfers(ledger, 50);
    end_bank(bank);
    cluster.bank_holds(&["--accounts", ACCOUNTS, "--table", TABLE], ledger);
    cluster.run(&["gc", "verify"]).ok();
    // A server that is drained and stopped is missed by nobody, and one with tablets that is drained by nobody is no other's.
    cluster.run(&["server", "drain", "tablet-2"]).ok();
    cluster
        .run(&["server", "drain", "tablet-9"])
        .refused(2, &["there is no tablet server tablet-9"]);
    cluster.run(&["server", "drain", "tablet-1"]).ok();
    cluster
        .run(&["server", "drain", "tablet-0"])
        .refused(2, &["tablet-0 can't be drained"]);
    let servers = lines(&cluster, &["server", "list"]);
    let states: Vec<_> = servers
        .iter()
        .map(|it| (it["drained"].as_bool(), it["tablets"].as_u64() == Some(0)))
        .collect();
    let drained = (Some(true), true);
    assert_eq!(states, [(Some(false), false), drained, drained]);
}

#[test]
fn a_table_that_is_imported_at_once_spreads_by_itself() {
    const ROWS: usize = 30_000;
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = cluster(
        &folder,
        "{tablets: {replicas: 3}, balance: {splitSize: 1Mi}}",
    );
    let mut rows = String::from("id,text\n");
    for number in 0..ROWS {
        let text = "a row of some length ".repeat(5);
        writeln!(rows, "{number:08},{text}{number}").expect("written");
    }
    let file = folder.path().join("rows.csv");
    std::fs::write(&file, rows).expect("written");
    let file = file.to_str().expect("text");
    cluster
        .run(&["import", "--table", "rows", "--key", "id", file])
        .ok();
    wait_for("all servers to have a share", || {
        let spread = spread(&cluster, "rows");
        let is_even = spread.iter().max() <= spread.iter().min().map(|least| least + 1).as_ref();
        (spread.len() == 3 && spread.iter().sum::<usize>() >= 4 && is_even).then_some(())
    });
    let scanned = cluster.run(&["scan", "rows"]).ok();
    let found = scanned.lines().filter_map(|line| line.split('\t').next());
    assert_eq!(found.collect::<BTreeSet<_>>().len(), ROWS);
    cluster.run(&["gc", "verify"]).ok();
}

#[test]
fn a_cluster_goes_on_without_a_server_that_is_drained() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let manifest = folder.path().join("cluster.yaml");
    let manifest = manifest.to_str().expect("text");
    let of = |servers: u32| {
        let text = format!(
            "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {{name: smaller}}\n\
             spec: {{tablets: {{replicas: {servers}}}}}\n"
        );
        std::fs::write(manifest, text).expect("written");
        ["-f", manifest]
    };
    let cluster = Cluster::start_in(&data, &of(3));
    cluster
        .run(&[
            "table",
            "create",
            TABLE,
            "--split-at",
            "h",
            "--split-at",
            "p",
        ])
        .ok();
    for row in ["a", "i", "q"] {
        cluster.run(&["put", TABLE, row, "value", row]).ok();
    }
    cluster.stop();
    let data_dir = data.to_str().expect("text");
    let smaller = [&["up", "--port", "0", "--data-dir", data_dir][..], &of(2)].concat();
    percolator(&smaller).refused(
        1,
        &[
            "tablet-2 may have tablets",
            "percolator server drain tablet-2",
        ],
    );
    let cluster = Cluster::start_in(&data, &of(3));
    cluster.run(&["server", "drain", "tablet-2"]).ok();
    cluster.stop();
    // Its folder may stay, or go.
    for _ in 0..2 {
        let cluster = Cluster::start_in(&data, &of(2));
        for row in ["a", "i", "q"] {
            let got = cluster.run(&["get", TABLE, row, "value"]).ok();
            assert_eq!(got, format!("{row}\n"));
        }
        cluster.stop();
        let _ = std::fs::remove_dir_all(data.join("tablet-2"));
    }
    // One more again: its folder is empty, and it is drained until somebody takes that back.
    let cluster = Cluster::start_in(&data, &of(3));
    cluster.run(&["server", "undrain", "tablet-2"]).ok();
    wait_for("every server to have a tablet", || {
        (spread(&cluster, TABLE).len() == 3).then_some(())
    });
    cluster.stop();
}
