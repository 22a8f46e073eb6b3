//! Several masters under one register: leaders are killed, stand still and end while money moves. Another master goes on,
//! tables are made, and no transfer fails.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Cluster, PERCOLATOR, end_bank, signal, start_bank, wait_for, wait_for_transfers,
};
use percolator_protocol::election::{Leadership, Member};
use percolator_register::VersionedFolder;
use serde_json::Value;

const MANIFEST: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: failover}\n\
                        spec: {master: {replicas: 2}, tablets: {replicas: 2}}\n";
const BANK: [&str; 4] = ["--accounts", "100", "--clients", "8"];

/// Who leads, by the register.
fn leader(cluster: &Cluster) -> Member {
    let register = VersionedFolder::new(cluster.data_dir.join("register").join("master"));
    wait_for("a master that leads", || {
        let stored = register.load().ok()??;
        Leadership::decode(&stored.value).ok()?.holder
    })
}

/// Ends the leader, and makes a table by another one. How long that took.
fn take_over(cluster: &Cluster, fault: &str, table: &str, ledger: &str) -> Duration {
    let before = leader(cluster).name;
    let pid = cluster.pid(&before);
    // Otherwise the same master may be there again before another one takes over.
    let took = cluster.without_restarts(|cluster| {
        let began = Instant::now();
        signal(pid, fault);
        // A client that knows no leader yet, and tries once.
        cluster.run(&["put", "probe", "row", "column", table]).ok();
        // One command waits for less than a take-over may need on a slow disk; an earlier one may have made it, unheard.
        wait_for("a table", || {
            let made = cluster.run(&["table", "create", table]);
            (made.code() == 0 || made.err.contains("already exists")).then_some(())
        });
        let took = began.elapsed();
        // One that ends as planned goes on until servers have heard so.
        wait_for("another master", || {
            let status = cluster.run(&["status", "-o", "json"]);
            let status: Value = serde_json::from_str(&status.out).ok()?;
            let leader = status["master_name"].as_str()?;
            (leader != before).then_some(())
        });
        wait_for_transfers(ledger, 50);
        took
    });
    if fault == "STOP" {
        signal(pid, "CONT");
    }
    eprintln!("{fault} of {before}: a table is made after {took:?}");
    took
}

#[test]
fn a_bank_goes_on_when_the_leading_master_is_killed_stands_still_or_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| {
        let path = folder.path().join(name);
        path.to_str().expect("a path of text").to_owned()
    };
    let (manifest, ledger) = (path("cluster.yaml"), path("transfers.jsonl"));
    std::fs::write(&manifest, MANIFEST).expect("written");
    let cluster = Cluster::start(&["--processes", "-f", &manifest]);
    cluster.run(&["table", "create", "probe"]).ok();
    let bank = start_bank(&cluster, &BANK, &ledger);
    wait_for_transfers(&ledger, 100);
    let faults = ["KILL", "STOP", "TERM", "KILL"];
    for (number, fault) in faults.into_iter().enumerate() {
        let table = format!("after-{number}");
        let took = take_over(&cluster, fault, &table, &ledger);
        // Of a lease's 10 s nothing may be left to chance: tablet servers have to find the new leader in that time.
        assert!(took < Duration::from_secs(30), "{fault} took {took:?}");
        wait_for_transfers(&ledger, 50);
    }
    for number in 0..faults.len() {
        let table = format!("after-{number}");
        cluster.run(&["put", &table, "row", "column", "1"]).ok();
    }
    end_bank(bank);
    cluster.bank_holds(&["--accounts", "100"], &ledger);
}

/// An address that leads to this one, as that of a service of Kubernetes does.
fn service_to(address: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let service = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for caller in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&address) else {
                continue;
            };
            let ways = [
                (caller.try_clone(), server.try_clone()),
                (Ok(server), Ok(caller)),
            ];
            for (from, to) in ways {
                std::thread::spawn(move || -> std::io::Result<u64> {
                    std::io::copy(&mut from?, &mut to?)
                });
            }
        }
    });
    service
}

#[test]
fn a_client_that_was_given_one_address_asks_the_masters_that_it_has_learned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("cluster.yaml");
    let manifest = manifest.to_str().expect("a path of text");
    std::fs::write(manifest, MANIFEST).expect("written");
    let cluster = Cluster::start(&["--processes", "-f", manifest]);
    let before = leader(&cluster);
    // From then on the leader's answers name it.
    wait_for("a standby", || {
        let status = cluster.run(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&status.out).ok()?;
        let mut servers = status["servers"].as_array()?.iter();
        servers
            .any(|server| server["role"] == "master" && server["up"] == true)
            .then_some(())
    });
    let service = service_to(before.address.clone());
    let create = ["-c", &service, "-o", "json", "table", "create", "-"];
    let mut client = Command::new(PERCOLATOR)
        .args(create)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a client");
    let mut names = client.stdin.take().expect("a pipe");
    let mut made = BufReader::new(client.stdout.take().expect("a pipe")).lines();
    let mut create = |name: &str| {
        writeln!(names, "{name}").expect("read");
        let made = made.next().expect("a table; stderr says why not");
        let made = made.expect("text");
        assert!(made.contains(&format!("\"name\":\"{name}\"")), "{made}");
    };
    create("first");
    let pid = cluster.pid(&before.name);
    cluster.without_restarts(|cluster| {
        signal(pid, "STOP");
        // The service still leads to the one that stands still.
        create("second");
        wait_for("another leader", || {
            (leader(cluster) != before).then_some(())
        });
    });
    signal(pid, "CONT");
    drop(names);
    assert!(client.wait().expect("an end").success());
}

#[test]
fn a_cluster_gets_more_masters_and_keeps_its_tables() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().join("data");
    let manifest = folder.path().join("cluster.yaml");
    let manifest = manifest.to_str().expect("a path of text");
    let alone = data_dir.join("master-0").join("directory");
    for (start, masters) in [1, 2, 3, 1].into_iter().enumerate() {
        let text = MANIFEST.replace(
            "master: {replicas: 2}",
            &format!("master: {{replicas: {masters}}}"),
        );
        std::fs::write(manifest, text).expect("written");
        let cluster = Cluster::start_in(&data_dir, &["-f", manifest]);
        assert_eq!(cluster.master.split(',').count(), masters);
        assert_eq!(alone.exists(), start == 0, "the state is in one place");
        let table = format!("t{start}");
        cluster.run(&["table", "create", &table]).ok();
        for earlier in 0..=start {
            let table = format!("t{earlier}");
            cluster.run(&["put", &table, "row", "column", "1"]).ok();
        }
        let (code, said) = cluster.stop();
        assert_eq!(code, 0, "{said}");
    }
    assert!(data_dir.join("register").join("master-state").exists());
}
