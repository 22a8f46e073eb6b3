//! Several oracles under one register: leaders are killed and stand still while money moves. Another oracle goes on, no transfer
//! fails, and sums hold.

use std::process::Child;

use crate::support::{Cluster, end_bank, signal, start_bank, wait_for, wait_for_transfers};
use percolator_protocol::election::{Leadership, Member};
use percolator_register::VersionedFolder;
use serde_json::Value;

const MANIFEST: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: failover}\n\
                        spec: {oracle: {replicas: 3}, tablets: {replicas: 1}}\n";
const BANK: [&str; 4] = ["--accounts", "100", "--clients", "8"];

/// A cluster with three oracles, and a bank that runs on it.
struct Fixture {
    cluster: Cluster,
    bank: Child,
    ledger: String,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| {
            let path = folder.path().join(name);
            path.to_str().expect("a path of text").to_owned()
        };
        let (manifest, ledger) = (path("cluster.yaml"), path("transfers.jsonl"));
        std::fs::write(&manifest, MANIFEST).expect("written");
        let cluster = Cluster::start(&["--processes", "-f", &manifest]);
        let bank = start_bank(&cluster, &BANK, &ledger);
        Self {
            cluster,
            bank,
            ledger,
            _folder: folder,
        }
    }

    /// Waits until so many more transfers were committed.
    fn goes_on(&self, transfers: u64) {
        wait_for_transfers(&self.ledger, transfers);
    }

    /// Who leads, by the register.
    fn leader(&self) -> Member {
        let register = VersionedFolder::new(self.cluster.data_dir.join("register").join("oracle"));
        wait_for("an oracle that leads", || {
            let stored = register.load().ok()??;
            Leadership::decode(&stored.value).ok()?.holder
        })
    }

    /// Waits until another oracle leads.
    fn is_succeeded(&self, name: &str) {
        wait_for("another oracle to lead", || {
            (self.leader().name != name).then_some(())
        });
    }

    fn answers_hold(self) {
        end_bank(self.bank);
        self.cluster
            .bank_holds(&["--accounts", "100"], &self.ledger);
    }
}

#[test]
fn a_bank_goes_on_when_the_leading_oracle_is_killed_stands_still_or_ends() {
    let fixture = Fixture::start();
    let cluster = &fixture.cluster;
    fixture.goes_on(100);
    for fault in ["KILL", "STOP", "TERM", "KILL", "STOP", "TERM"] {
        let leader = fixture.leader().name;
        let pid = cluster.pid(&leader);
        eprintln!("{fault} of {leader}");
        // Otherwise the same oracle may be there again before another one takes over.
        cluster.without_restarts(|_| {
            signal(pid, fault);
            fixture.is_succeeded(&leader);
            fixture.goes_on(50);
        });
        if fault == "STOP" {
            signal(pid, "CONT");
        }
        fixture.goes_on(50);
    }
    fixture.answers_hold();
}

#[test]
fn a_cluster_gets_more_oracles_and_keeps_its_register() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().join("data");
    let manifest = folder.path().join("cluster.yaml");
    let manifest = manifest.to_str().expect("a path of text");
    for oracles in [1, 2, 1] {
        let text = MANIFEST.replace("replicas: 3", &format!("replicas: {oracles}"));
        std::fs::write(manifest, text).expect("written");
        let cluster = Cluster::start_in(&data_dir, &["-f", manifest]);
        let short = ["--duration", "200ms", "-o", "json"];
        let said = cluster.run(&[&["bank"], &BANK[..], &short].concat());
        let summary: Value = serde_json::from_str(&said.ok()).expect("JSON");
        assert_eq!(summary["wrong_sums"], 0, "{summary}");
        let (code, said) = cluster.stop();
        assert_eq!(code, 0, "{said}");
    }
    assert!(data_dir.join("register").join("oracle").exists());
}
