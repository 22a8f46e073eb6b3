//! Servers as processes that the test starts itself, each where it wants it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Cluster, CommandOutput, PERCOLATOR, signal, wait_for};

/// The memory of a process, in KiB.
pub(crate) fn resident_kib(pid: impl std::fmt::Display) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let size = size.and_then(|size| size.split_whitespace().next());
    size.and_then(|size| size.parse().ok()).expect("a size")
}

/// A server that stands still, until this is dropped.
pub(crate) struct Stopped(u32);

impl Stopped {
    pub(crate) fn new(cluster: &Cluster, server: &str) -> Self {
        let pid = cluster.pid(server);
        signal(pid, "STOP");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

/// Addresses of this machine where nobody listens, no two the same.
pub(crate) fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    // Each is held until all are known.
    let free = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    free.map(|free| free.local_addr().expect("an address"))
}

/// Where a server runs, and how the others reach it.
pub(crate) struct Place<'a> {
    /// Such as `tablet-0`.
    pub(crate) server: &'a str,
    pub(crate) listen: &'a str,
    /// What it tells the others instead.
    pub(crate) advertise: Option<&'a str>,
    pub(crate) master: &'a str,
    /// For its data, its log, and the file that sets the oracle's clock.
    pub(crate) folder: &'a Path,
}

/// The master and the oracle that lead, once they do and all others of so many servers are up.
pub(crate) fn leaders(servers: usize, run: impl Fn(&[&str]) -> CommandOutput) -> [String; 2] {
    wait_for("leaders, and all other servers", || {
        let said = run(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&said.out).ok()?;
        let others = status["servers"].as_array()?;
        let up = others.iter().filter(|server| server["up"] == true).count();
        // The leading master has no line.
        if up + 1 < servers {
            return None;
        }
        let oracle = others.iter().find(|it| it["leads_term"].is_u64())?;
        let names = [&status["master_name"], &oracle["server"]];
        let [master, oracle] = names.map(|name| name.as_str().map(str::to_owned));
        Some([master?, oracle?])
    })
}

/// The file that says by how many milliseconds the oracle's clock is wrong.
pub(crate) fn clock_file(folder: &Path) -> PathBuf {
    folder.join("clock")
}

/// Starts a server with `launch`, which makes a command of a program's path. It ends with this process.
pub(crate) fn start(place: &Place<'_>, launch: impl FnOnce(&str) -> Command) -> Child {
    let data = place.folder.join(place.server);
    let (role, _) = place.server.rsplit_once('-').expect("a number");
    let program = PathBuf::from(PERCOLATOR).with_file_name(format!("percolator-{role}"));
    let mut command = launch(program.to_str().expect("a path of text"));
    command
        .args(["--server", place.server, "--listen", place.listen])
        .arg("--data-dir")
        .arg(&data);
    if role == "master" {
        if !data.exists() {
            command.arg("--new-cluster");
        }
    } else {
        command.args(["--master", place.master]);
        if let Some(advertise) = place.advertise {
            command.args(["--advertise", advertise]);
        }
    }
    if role == "tso" {
        command.arg("--test-clock").arg(clock_file(place.folder));
    }
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(log_file(place.folder, place.server))
        .expect("a log");
    command
        .env("PERCOLATOR_LIFELINE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the server runs")
}

/// A server that the test has started, while it runs.
#[derive(Default)]
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    /// Kills it with SIGKILL, where it runs.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            signal(child.id(), "KILL");
            let _ = child.wait();
        }
    }

    /// Ends it; where the test fails, with the last lines of its log.
    pub(crate) fn end(&mut self, folder: &Path, server: &str) {
        self.kill();
        if std::thread::panicking() {
            print_log(folder, server);
        }
    }
}

/// Where a server's log goes.
pub(crate) fn log_file(folder: &Path, server: &str) -> PathBuf {
    folder.join(format!("{server}.log"))
}

/// The last lines of a server's log, for anyone who has to find out why a test failed.
fn print_log(folder: &Path, server: &str) {
    let log = std::fs::read_to_string(log_file(folder, server)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    for line in &lines[lines.len().saturating_sub(30)..] {
        eprintln!("{server}: {line}");
    }
}
