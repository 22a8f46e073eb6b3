//! A cluster whose leaders are struck by faults, and the faults.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;
use serde_json::Value;

use super::{
    cluster::{Cluster, signal},
    hosted::HostedCluster,
    volume::Volume,
};
use crate::cmd::Cmd;

/// A cluster with a standby of each role.
pub(super) const SEVERAL: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: failover}\n\
                       spec: {oracle: {replicas: 2}, master: {replicas: 2}, tablets: {replicas: 1}}\n";
/// A leader has a disk that hangs for so long before it is killed: a write waits for it then.
const DISK_HANGS: Duration = Duration::from_secs(1);
const REPLICAS: [&str; 4] = ["master-0", "master-1", "tso-0", "tso-1"];

/// A fault of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fault {
    /// SIGTERM: it hands over.
    Ended,
    /// SIGKILL, and no new process until the clients are done.
    Killed,
    /// SIGSTOP, and SIGCONT when the clients are done.
    StandsStill,
    /// SIGKILL, when its folder takes no write: it can't even end until the clients are done. Needs root.
    KilledInWrite,
    /// Its network is cut, also to its register, which is in an etcd, until the clients are done. Needs root.
    CutOff,
}

impl Fault {
    /// All that this user may cause.
    pub(crate) fn possible() -> anyhow::Result<Vec<Self>> {
        let is_root = Cmd::new("id").arg("-u").silent_output()?.trim() == "0";
        let mut faults = Self::value_variants().to_vec();
        if !is_root {
            println!("no disk hangs and no network is cut: only root can do that");
            faults.retain(|fault| fault.cluster_kind() == ClusterKind::Processes);
        }
        Ok(faults)
    }

    /// The kind of cluster that it needs.
    pub(crate) fn cluster_kind(self) -> ClusterKind {
        match self {
            Self::Ended | Self::Killed | Self::StandsStill => ClusterKind::Processes,
            Self::KilledInWrite => ClusterKind::Volumes,
            Self::CutOff => ClusterKind::Hosts,
        }
    }

    /// How long clients run: well beyond the longest gap.
    pub(super) fn clients_run(self) -> Duration {
        Duration::from_secs(match self {
            Self::Ended => 4,
            Self::Killed | Self::StandsStill | Self::CutOff => 8,
            Self::KilledInWrite => 10,
        })
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Ended => "ends (SIGTERM)",
            Self::Killed => "is killed (SIGKILL)",
            Self::StandsStill => "stands still (SIGSTOP)",
            Self::KilledInWrite => "is killed while its disk hangs",
            Self::CutOff => "is cut off",
        }
    }
}

/// The kind of a test cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterKind {
    /// Under `percolator up --processes`.
    Processes,
    /// The same, where each server that can lead has its folder on a volume of its own.
    Volumes,
    /// Each server has a host of its own, and registers are in an etcd.
    Hosts,
}

impl ClusterKind {
    pub(crate) const ALL: [Self; 3] = [Self::Processes, Self::Volumes, Self::Hosts];
}

/// A cluster, where it runs.
pub(crate) enum TestCluster {
    Up(Supervised),
    Hosts(HostedCluster),
}

/// A cluster under `percolator up --processes`.
pub(crate) struct Supervised {
    percolator: PathBuf,
    data: PathBuf,
    /// Their addresses.
    masters: String,
    /// Under the folders of all that can lead; by server.
    volumes: BTreeMap<&'static str, Volume>,
    up: Cluster,
}

impl TestCluster {
    /// Starts a cluster. `port` is for those that share this machine's, and `etcd` the program.
    pub(crate) fn start(
        kind: ClusterKind,
        programs: &Path,
        folder: &Path,
        port: u16,
        etcd: Option<&Path>,
    ) -> anyhow::Result<Self> {
        if kind == ClusterKind::Hosts {
            let etcd = etcd.context("there is no etcd: install Debian's package etcd-server")?;
            return Ok(Self::Hosts(HostedCluster::start(programs, etcd, folder)?));
        }
        let on_volumes = kind == ClusterKind::Volumes;
        let supervised = Supervised::start(programs, folder, port, on_volumes)?;
        Ok(Self::Up(supervised))
    }

    /// A client's command at the cluster.
    pub(super) fn percolator(&self) -> Command {
        match self {
            Self::Up(supervised) => {
                let mut command = Command::new(&supervised.percolator);
                command.args(["-c", &supervised.masters]);
                command
            }
            Self::Hosts(hosted) => hosted.percolator(),
        }
    }

    /// The fault strikes this server, and no other process of it is started.
    pub(super) fn strike(&self, fault: Fault, server: &str) -> anyhow::Result<()> {
        if let Self::Up(supervised) = self {
            signal(&supervised.up.id(), "STOP")?;
        }
        let signalled = |name| signal(&self.pid(server)?, name);
        match fault {
            Fault::Ended => signalled("TERM"),
            Fault::Killed => signalled("KILL"),
            Fault::StandsStill => signalled("STOP"),
            Fault::KilledInWrite => {
                self.volume(server)?.freeze()?;
                sleep(DISK_HANGS);
                signalled("KILL")
            }
            Fault::CutOff => self.hosts()?.set_link(server, false),
        }
    }

    /// The fault has an end, and servers are started again.
    pub(super) fn mend(&self, fault: Fault, server: &str) -> anyhow::Result<()> {
        match fault {
            Fault::Ended | Fault::Killed => {}
            Fault::StandsStill => signal(&self.pid(server)?, "CONT")?,
            Fault::KilledInWrite => self.volume(server)?.go_on()?,
            Fault::CutOff => self.hosts()?.set_link(server, true)?,
        }
        match self {
            Self::Up(supervised) => signal(&supervised.up.id(), "CONT"),
            Self::Hosts(_) => Ok(()),
        }
    }

    fn pid(&self, server: &str) -> anyhow::Result<String> {
        let Self::Up(supervised) = self else {
            bail!("processes on hosts get no signals");
        };
        pid(&supervised.data, server)?.context("it has no process")
    }

    fn volume(&self, server: &str) -> anyhow::Result<&Volume> {
        let volume = match self {
            Self::Up(supervised) => supervised.volumes.get(server),
            Self::Hosts(_) => None,
        };
        volume.context("it has no volume")
    }

    fn hosts(&self) -> anyhow::Result<&HostedCluster> {
        match self {
            Self::Hosts(hosted) => Ok(hosted),
            Self::Up(_) => bail!("its servers share a host"),
        }
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::Up(supervised) => supervised.up.stop(),
            Self::Hosts(_) => Ok(()),
        }
    }
}

impl Supervised {
    fn start(programs: &Path, folder: &Path, port: u16, on_volumes: bool) -> anyhow::Result<Self> {
        let percolator = programs.join("percolator");
        let (manifest, data) = (folder.join("failover.yaml"), folder.join("data"));
        std::fs::write(&manifest, SEVERAL)?;
        let (file, folder) = (manifest.to_string_lossy(), data.to_string_lossy());
        let arguments = ["-f", &*file, "--data-dir", &*folder];
        let start = || Cluster::start(&percolator, port, &arguments);
        let mut up = start()?;
        let mut volumes = BTreeMap::new();
        if on_volumes {
            up.stop()?;
            let place = manifest.with_file_name("volumes");
            for server in REPLICAS {
                let moved = Volume::under(&data.join(server), &place.join(server))?;
                volumes.insert(server, moved);
            }
            up = start()?;
        }
        let masters = running(&data)?.into_iter();
        let masters = masters.filter(|running| running["role"] == "master");
        let addresses = masters.filter_map(|master| Some(master["address"].as_str()?.to_owned()));
        Ok(Self {
            percolator,
            masters: addresses.collect::<Vec<_>>().join(","),
            data,
            volumes,
            up,
        })
    }
}

/// The process of a server.
pub(crate) fn pid(data: &Path, server: &str) -> anyhow::Result<Option<String>> {
    let mut running = running(data)?.into_iter();
    let process = running.find(|running| running["server"] == server);
    let pid = process.and_then(|process| process["pid"].as_u64());
    Ok(pid.map(|pid| pid.to_string()))
}

/// The processes that `percolator up` has printed.
fn running(data: &Path) -> anyhow::Result<Vec<Value>> {
    Ok(serde_json::from_slice(&std::fs::read(
        data.join("servers.json"),
    )?)?)
}
