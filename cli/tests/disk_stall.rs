//! A disk that neither takes a write nor refuses it: its server says so, and ends, so that another one can take its place.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use percolator_telemetry::endpoint;
use support::{Cluster, block_on, wait_for};

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
    let (was, is) = (data_dir.join(&owner), volume.0.join(&owner));
    run(Command::new("cp").arg("-a").args([&was, &is]));
    std::fs::remove_dir_all(&was).expect("removed");
    std::os::unix::fs::symlink(&is, &was).expect("a link");

    let settings = [
        ("PERCOLATOR_TABLET_DISK_STALL_MAX", "9s"),
        ("PERCOLATOR_GC_MASTER_LEASE", "2s"),
    ];
    let cluster = Cluster::start_by(&data_dir, &["--processes"], &settings);
    let (pid, shown) = (cluster.pid(&owner), cluster.metrics_address(&owner));
    cluster.run(&["put", "t", "a", "c", "2"]).ok();
    volume.freeze();
    let put = ["put", "--patience", "100s", "t", "a", "c", "3"];
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
