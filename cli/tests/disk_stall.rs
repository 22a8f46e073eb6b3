//! A disk that neither takes a write nor refuses it: its server says so, and ends, so that another one can take its place.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{
    Cluster, block_on, end_bank, signal, start_bank, wait_for, wait_for_transfers,
};
use percolator_telemetry::endpoint;

/// A volume that can be frozen: anyone who writes to it waits then.
struct Volume(PathBuf);

impl Volume {
    fn make(folder: &Path) -> Self {
        let (image, at) = (folder.join("image"), folder.join("volume"));
        std::fs::create_dir(&at).expect("a folder");
        let file = std::fs::File::create(&image).expect("a file");
        file.set_len(512 << 20).expect("a size");
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([&image, &at]));
        Self(at)
    }

    fn freeze(&self) {
        run(Command::new("fsfreeze").arg("-f").arg(&self.0));
    }

    fn go_on(&self) {
        run(Command::new("fsfreeze").arg("-u").arg(&self.0));
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Where a test failed it may be frozen; nobody could end then.
        let _ = Command::new("fsfreeze")
            .arg("-u")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn run(command: &mut Command) {
    let said = command.output();
    let done = said.as_ref().is_ok_and(|said| said.status.success());
    assert!(done, "{command:?}: {said:?}");
}

/// The process is gone, but for the thread that waits for the disk.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// Moves the folder of a server that doesn't run to a volume.
fn move_to(volume: &Volume, data_dir: &Path, server: &str) {
    let (was, is) = (data_dir.join(server), volume.0.join(server));
    run(Command::new("cp").arg("-a").args([&was, &is]));
    std::fs::remove_dir_all(&was).expect("removed");
    std::os::unix::fs::symlink(&is, &was).expect("a link");
}

#[test]
fn a_server_whose_disk_stalls_says_so_and_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().join("data");
    let cluster = Cluster::start_in(&data_dir, &["--processes"]);
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table: serde_json::Value = serde_json::from_str(listed.trim()).expect("JSON");
    let owner = table["tablets"][0]["server"]
        .as_str()
        .expect("text")
        .to_owned();
    assert_eq!(cluster.stop().0, 0);
    let volume = Volume::make(folder.path());
    move_to(&volume, &data_dir, &owner);

    let settings = [
        ("PERCOLATOR_TABLET_DISK_STALL_MAX", "9s"),
        ("PERCOLATOR_MASTER_LEASE", "2s"),
    ];
    let cluster = Cluster::start_by(&data_dir, &["--processes"], &settings);
    let (pid, shown) = (cluster.pid(&owner), cluster.metrics_address(&owner));
    cluster.run(&["put", "t", "a", "c", "2"]).ok();
    volume.freeze();
    let put = ["put", "--request-timeout", "100s", "t", "a", "c", "3"];
    let put = cluster
        .command(&put)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    wait_for("readiness to say that the disk stalls", || {
        let said = block_on(endpoint::get(&shown, "/readyz")).ok()?;
        (said.status != 200 && said.body.contains("the disk stalls")).then_some(())
    });
    let said = block_on(endpoint::get(&shown, "/metrics")).expect("an answer");
    let stalled = "percolator_tablet_disk_stalled_seconds ";
    let stalled: f64 = said
        .body
        .lines()
        .find_map(|line| line.strip_prefix(stalled)?.parse().ok())
        .expect("the metric");
    assert!(stalled >= 5.0, "{stalled}");
    wait_for("status to say it", || {
        let said = cluster.run(&["status", "-o", "json"]);
        said.out.contains("disk-stalled").then_some(())
    });
    wait_for("the server to end", || has_ended(pid).then_some(()));
    volume.go_on();

    // What was under way is in the log, or was never; what was answered is there.
    let put = put.wait_with_output().expect("it ends");
    assert!(put.status.success(), "{put:?}");
    assert_eq!(cluster.run(&["get", "t", "a", "c"]).ok(), "3\n");
    let log = std::fs::read_to_string(data_dir.join(format!("logs/{owner}.log"))).expect("a log");
    assert!(log.contains("error: ") && log.contains("the disk stalls"));
    assert_eq!(cluster.stop().0, 0);
}

const SEVERAL: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: failover}\n\
                       spec: {oracle: {replicas: 2}, master: {replicas: 2}, tablets: {replicas: 1}}\n";

/// Which oracle and which master lead, once all are there.
fn leaders(cluster: &Cluster) -> [String; 2] {
    wait_for("a leader of each role, with its standby", || {
        let said = cluster.run(&["status", "-o", "json"]);
        let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
        let servers = status["servers"].as_array()?;
        let standbys = servers.iter().filter(|it| it["standby"] == true).count();
        let oracle = servers.iter().find(|it| !it["leads_term"].is_null())?;
        let text = |name: &serde_json::Value| name.as_str().map(str::to_owned);
        (standbys == 2).then_some([text(&oracle["server"])?, text(&status["master_name"])?])
    })
}

/// The register has the limits and the state: the folders of leaders need not take anything. When one of them dies whose disk
/// hangs, its process can't even end, and a standby goes on.
#[test]
fn leaders_go_on_without_their_disks_and_others_when_they_die() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().join("data");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (manifest, ledger) = (path("cluster.yaml"), path("transfers.jsonl"));
    std::fs::write(&manifest, SEVERAL).expect("written");
    let arguments = ["--processes", "-f", &manifest];
    let cluster = Cluster::start_in(&data_dir, &arguments);
    assert_eq!(cluster.stop().0, 0);
    let volumes = ["tso-0", "tso-1", "master-0", "master-1"].map(|server| {
        let place = folder.path().join(format!("of-{server}"));
        std::fs::create_dir(&place).expect("a folder");
        let volume = Volume::make(&place);
        move_to(&volume, &data_dir, server);
        (server, volume)
    });
    let cluster = Cluster::start_in(&data_dir, &arguments);
    let bank = ["--accounts", "100", "--clients", "4"];
    let bank = start_bank(&cluster, &bank, &ledger);
    let goes_on = |transfers| wait_for_transfers(&ledger, transfers);
    goes_on(100);
    let before = leaders(&cluster);
    let pids = before.each_ref().map(|server| cluster.pid(server));
    let frozen = || {
        volumes
            .iter()
            .filter(|(server, _)| before.contains(&(*server).to_owned()))
    };
    frozen().for_each(|(_, volume)| volume.freeze());
    // Longer than a promise counts, and a right without the register.
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_secs(6) {
        goes_on(50);
        cluster.run(&["gc", "set", "--retention", "11m"]).ok();
    }
    assert_eq!(leaders(&cluster), before);
    cluster.without_restarts(|cluster| {
        pids.iter().for_each(|pid| signal(*pid, "KILL"));
        goes_on(50);
        cluster.run(&["table", "create", "after"]).ok();
    });
    frozen().for_each(|(_, volume)| volume.go_on());
    let after = leaders(&cluster);
    assert!(
        after.iter().all(|leader| !before.contains(leader)),
        "{after:?}"
    );
    end_bank(bank);
    cluster.bank_holds(&["--accounts", "100"], &ledger);
    assert_eq!(cluster.stop().0, 0);
}
