//! Two processes of one server, folders that are another server's, and two clusters at one address: real processes, of
//! which one answers at a time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::support::server::{Place, free_addresses, log_file, start};
use crate::support::sessions::{Proxy, begin_when_ready, connect, is, refused};
use crate::support::{
    Cluster, PERCOLATOR, block_on, end_bank, signal, start_bank, wait_for, wait_for_transfers,
};
use percolator_client::{Client, Error};
use percolator_wire::proxy::v1;
use tonic::Code;

/// Short, so that nobody waits long.
const LEASE: (&str, &str) = ("PERCOLATOR_MASTER_LEASE", "2s");

/// A cluster with a table of one row, and the server that has it.
fn begun() -> (Cluster, String) {
    let cluster = Cluster::start_with(&["--processes"], &[LEASE]);
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table: serde_json::Value = serde_json::from_str(listed.trim()).expect("JSON");
    let table = table.get(0).unwrap_or(&table);
    let owner = table["tablets"][0]["server"].as_str().expect("text");
    (cluster, owner.to_owned())
}

/// Copies the folder of a server, which stands still, for a twin.
fn copy(cluster: &Cluster, server: &str) {
    let twin = cluster.data_dir.join("twin");
    std::fs::create_dir(&twin).expect("a folder");
    let folders = [cluster.data_dir.join(server), twin.join(server)];
    let done = Command::new("cp").arg("-a").args(folders).status();
    assert!(done.expect("cp runs").success());
}

/// The same of a server that serves: files come and go in its folder, so it stands still meanwhile.
fn copy_while_it_serves(cluster: &Cluster, server: &str) {
    let pid = cluster.pid(server);
    signal(pid, "STOP");
    copy(cluster, server);
    signal(pid, "CONT");
}

/// Another process of the server, with a copy of its folder.
struct Twin {
    process: Child,
    folder: PathBuf,
}

impl Twin {
    fn start(cluster: &Cluster, server: &str) -> Self {
        let folder = cluster.data_dir.join("twin");
        let place = Place {
            server,
            listen: "127.0.0.1:0",
            advertise: None,
            master: &cluster.master,
            folder: &folder,
        };
        let process = start(&place, |program| Command::new(program));
        Self { process, folder }
    }

    /// What it said, once it has ended with a failure.
    fn refused(mut self, server: &str) -> String {
        let code = wait_for("the twin to end", || {
            self.process.try_wait().expect("a child")
        });
        assert!(!code.success());
        std::fs::read_to_string(log_file(&self.folder, server)).expect("a log")
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // Nobody takes its exit code while `up` stands still.
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn a_twin_beside_a_living_server_is_refused_and_ends() {
    let (cluster, owner) = begun();
    copy_while_it_serves(&cluster, &owner);
    cluster.run(&["put", "t", "a", "c", "2"]).ok();
    let said = Twin::start(&cluster, &owner).refused(&owner);
    assert!(said.contains(&format!("{owner} is alive at")), "{said}");
    assert_eq!(cluster.run(&["get", "t", "a", "c"]).ok(), "2\n");
    cluster.run(&["put", "t", "a", "c", "3"]).ok();
}

/// The server stands still for longer than its lease, which is no reason to take an older copy of it.
#[test]
fn a_twin_with_an_older_folder_takes_nobodys_place() {
    let (cluster, owner) = begun();
    copy_while_it_serves(&cluster, &owner);
    cluster.run(&["put", "t", "a", "c", "2"]).ok();
    let pid = cluster.pid(&owner);
    // The master hears of it with the next heartbeat, and writes its state more rarely than that.
    let written = || {
        let state = std::fs::metadata(cluster.data_dir.join("master-0/directory"));
        state.and_then(|state| state.modified()).ok()
    };
    for _ in 0..2 {
        let before = written();
        wait_for("the master to write its state", || {
            (written() != before).then_some(())
        });
    }
    cluster.without_restarts(|cluster| {
        signal(pid, "STOP");
        let said = Twin::start(cluster, &owner).refused(&owner);
        signal(pid, "CONT");
        assert!(said.contains("is older than what it had before"), "{said}");
    });
    wait_for("the server to go on", || {
        let got = cluster.run(&["get", "t", "a", "c"]);
        (got.out == "2\n").then_some(())
    });
    cluster.run(&["put", "t", "a", "c", "3"]).ok();
}

#[test]
fn a_server_that_was_replaced_answers_nobody_and_ends() {
    let (cluster, owner) = begun();
    let pid = cluster.pid(&owner);
    cluster.without_restarts(|cluster| {
        signal(pid, "STOP");
        copy(cluster, &owner);
        let twin = Twin::start(cluster, &owner);
        wait_for("the twin to serve", || {
            (cluster.run(&["put", "t", "a", "c", "2"]).code() == 0).then_some(())
        });
        signal(pid, "CONT");
        wait_for("the one before to end", || {
            assert_eq!(cluster.run(&["get", "t", "a", "c"]).ok(), "2\n");
            has_ended(pid).then_some(())
        });
        cluster.run(&["put", "t", "a", "c", "3"]).ok();
        assert_eq!(cluster.run(&["get", "t", "a", "c"]).ok(), "3\n");
        drop(twin);
    });
}

/// Oracles on copies of one folder gave out the same timestamps.
#[test]
fn a_second_oracle_gives_nothing() {
    let (cluster, _) = begun();
    copy_while_it_serves(&cluster, "tso-0");
    let said = Twin::start(&cluster, "tso-0").refused("tso-0");
    assert!(said.contains("tso-0 is alive at"), "{said}");
    assert!(!said.contains("the oracle serves"), "{said}");
    cluster.run(&["put", "t", "a", "c", "2"]).ok();
}

/// Servers that the test starts by hand, at addresses of their own.
struct ByHand(Vec<Child>);

impl ByHand {
    const SERVERS: [&str; 3] = ["master-0", "tso-0", "tablet-0"];

    fn start(folder: &Path, addresses: &[String]) -> Self {
        std::fs::create_dir(folder).expect("a folder");
        let servers = Self::SERVERS.iter().zip(addresses);
        Self(
            servers
                .map(|(server, listen)| {
                    let place = Place {
                        server,
                        listen,
                        advertise: None,
                        master: &addresses[0],
                        folder,
                    };
                    start(&place, |program| Command::new(program))
                })
                .collect(),
        )
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What the client knows of tables is of no use there.
#[test]
fn a_client_of_a_deleted_cluster_is_told_and_writes_nothing_into_the_next_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let addresses = free_addresses::<3>().map(|address| address.to_string());
    let percolator = |arguments: &[&str]| {
        let done = Command::new(PERCOLATOR)
            .args(["-c", &addresses[0]])
            .args(arguments)
            .output();
        done.expect("the command runs")
    };
    let create = |table: &str| {
        wait_for("a table to be created", || {
            percolator(&["table", "create", table])
                .status
                .success()
                .then_some(())
        });
    };
    let first = ByHand::start(&folder.path().join("first"), &addresses);
    create("ours");
    block_on(async {
        let client = Client::connect(&addresses[0]).await.expect("connected");
        let begin = || async { client.begin().await.expect("begun") };
        let (txn, read) = (begin().await, begin().await);
        txn.put("ours", "row", "c", "1").expect("buffered");
        drop(first);
        let _second = ByHand::start(&folder.path().join("second"), &addresses);
        create("theirs");
        let ended = [
            read.get("ours", "row", "c").await.map(drop),
            txn.commit().await.map(drop),
        ];
        for ended in ended {
            let error = ended.expect_err("that cluster is gone");
            assert!(matches!(error, Error::ClusterReplaced(_)), "{error:?}");
            assert!(error.to_string().contains("was replaced"), "{error}");
        }
        let scanned = percolator(&["scan", "theirs"]);
        assert_eq!(String::from_utf8_lossy(&scanned.stdout), "");
    });
}

/// It finds that out with a call.
#[test]
fn a_proxy_of_a_deleted_cluster_is_not_ready_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let addresses = free_addresses::<3>().map(|address| address.to_string());
    let first = ByHand::start(&folder.path().join("first"), &addresses);
    let proxy = Proxy::of(&addresses[0], |_| {});
    block_on(async { begin_when_ready(&connect(&proxy.address).await).await });
    drop(first);
    let _second = ByHand::start(&folder.path().join("second"), &addresses);
    let begin = || {
        block_on(async {
            let mut grpc = connect(&proxy.address).await;
            grpc.begin(v1::BeginRequest::default()).await
        })
    };
    let why = wait_for("a proxy that is not ready", || {
        let _ = begin();
        proxy.ready().err()
    });
    assert!(why.contains("was replaced"), "{why}");
    let replaced = is(Code::FailedPrecondition, "CLUSTER_REPLACED");
    assert_eq!(refused(begin()), replaced);
}

/// Its servers notice it, and end when they have written what they have to. The next `up` waits for them.
#[test]
fn an_up_that_was_killed_is_started_again_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().join("data");
    let cluster = Cluster::start_in(&data_dir, &["--processes"]);
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    // Servers end too fast to be watched. This one has such a command line, and takes its time.
    let mut slow = Command::new("sh")
        .args(["-c", "sleep 3; true", "sh", "--data-dir"])
        .arg(data_dir.join("tablet-9"))
        .spawn()
        .expect("it runs");
    cluster.kill_up();
    let cluster = Cluster::start_in(&data_dir, &["--processes"]);
    let ended = slow.try_wait().expect("a child");
    assert!(ended.is_some(), "up has not waited");
    assert_eq!(cluster.run(&["get", "t", "a", "c"]).ok(), "1\n");
}

const BANK: [&str; 4] = ["--accounts", "100", "--clients", "4"];

#[test]
fn of_swapped_folders_no_server_begins_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger.jsonl").display().to_string();
    let cluster = Cluster::of_three_in(folder.path());
    let data = cluster.data_dir.clone();
    let bank = start_bank(&cluster, &BANK, &ledger);
    wait_for_transfers(&ledger, 200);
    end_bank(bank);

    let servers = ["tablet-0", "tablet-1"];
    let pids = servers.map(|server| cluster.pid(server));
    let swap = || {
        let [one, other] = servers.map(|server| data.join(server));
        let aside = data.join("logs/aside");
        for (from, to) in [(&one, &aside), (&other, &one), (&aside, &other)] {
            std::fs::rename(from, to).expect("moved");
        }
    };
    cluster.without_restarts(|_| {
        swap();
        for pid in pids {
            signal(pid, "KILL");
        }
    });
    // `up` gives it up after some attempts, and ends.
    let said = cluster.ended();
    for part in ["belongs to server", "mount the right volume"] {
        assert!(said.contains(part), "{said}");
    }
    swap();
    let cluster = Cluster::of_three_in(folder.path());
    let found = cluster.bank_holds(&BANK, &ledger);
    assert!(found["committed"].as_u64() >= Some(200), "{found}");
}
