//! A cluster whose servers each have a host of their own, with registers in an etcd beside them, so that a server's link can be cut.
//! Needs root.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use percolator_hosts::{HUB, Hosts};

const PORT: u16 = 7400;
/// A standby of each role.
const SERVERS: [&str; 5] = ["master-0", "master-1", "tso-0", "tso-1", "tablet-0"];
/// It serves within this, or something is wrong.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The cluster. Its processes end with it.
pub(crate) struct HostedCluster {
    hosts: Hosts,
    /// Those that run by now: also after an error none stays behind.
    processes: Vec<Child>,
    percolator: PathBuf,
    /// Their addresses.
    masters: String,
}

impl HostedCluster {
    /// Starts it, with its data in this folder. `etcd`: the program.
    pub(crate) fn start(programs: &Path, etcd: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self {
            hosts: Hosts::new()?,
            processes: Vec::new(),
            percolator: programs.join("percolator"),
            masters: String::new(),
        };
        let mut masters = Vec::new();
        for server in SERVERS {
            let address = cluster.hosts.add(server)?;
            if server.starts_with("master") {
                masters.push(format!("{address}:{PORT}"));
            }
        }
        cluster.masters = masters.join(",");
        let store = cluster.start_etcd(etcd, &folder.join("etcd"))?;
        cluster.processes.push(store);
        for server in SERVERS {
            let process = cluster.start_server(programs, server, folder)?;
            cluster.processes.push(process);
        }
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    fn start_etcd(&self, etcd: &Path, data: &Path) -> anyhow::Result<Child> {
        let mut command = self.hosts.on_hub(etcd);
        command.arg("--data-dir").arg(data);
        let (clients, peers) = (format!("http://{HUB}:2379"), format!("http://{HUB}:2380"));
        for (flag, value) in [
            ("listen-client-urls", &clients),
            ("advertise-client-urls", &clients),
            ("listen-peer-urls", &peers),
            ("initial-advertise-peer-urls", &peers),
            ("initial-cluster", &format!("default={peers}")),
        ] {
            command.arg(format!("--{flag}={value}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn().context("etcd")
    }

    fn start_server(&self, programs: &Path, server: &str, folder: &Path) -> anyhow::Result<Child> {
        let (role, _) = server.rsplit_once('-').context("a number")?;
        let program = programs.join(format!("percolator-{role}"));
        let mut command = self.hosts.on(server, program)?;
        let address = self.hosts.address(server)?;
        command
            .args(["--server", server, "--listen", &format!("{address}:{PORT}")])
            .arg("--data-dir")
            .arg(folder.join(server));
        if role == "master" {
            command.arg("--new-cluster");
        } else {
            command.args(["--master", &self.masters]);
        }
        if role != "tablet" {
            let register = format!("etcd:{HUB}:2379/percolator/{role}");
            command.args(["--register", &register]);
        }
        let log = std::fs::File::create(folder.join(format!("{server}.log")))?;
        // It ends with this process, too.
        command
            .env("PERCOLATOR_LIFELINE", "1")
            .stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(log);
        command.spawn().with_context(|| server.to_owned())
    }

    fn wait_until_ready(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let made = self
                .percolator()
                .args(["table", "create", "ready"])
                .output()?;
            let said = String::from_utf8_lossy(&made.stderr);
            if made.status.success() || said.contains("already") {
                return Ok(());
            }
            if began.elapsed() > STARTS_WITHIN {
                bail!("after {STARTS_WITHIN:?} no table can be made: {said}");
            }
        }
    }

    /// A client's command at the cluster.
    pub(crate) fn percolator(&self) -> Command {
        let mut command = self.hosts.on_hub(&self.percolator);
        command.args(["-c", &self.masters]);
        command
    }

    /// Cuts the link of a server, or restores it.
    pub(crate) fn set_link(&self, server: &str, up: bool) -> anyhow::Result<()> {
        Ok(self.hosts.set_link(server, up)?)
    }
}

impl Drop for HostedCluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
