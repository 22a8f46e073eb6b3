//! Which servers a local cluster has, where they listen and where their data lies.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use percolator_api::{PercolatorCluster, Spec};
use percolator_engine::EngineKind;
use percolator_server::{DurableValue as _, SmallFile, folder};
use serde::{Deserialize, Serialize};

use crate::ports::ProxyPorts;
use crate::{followed, leftovers, lost_state, proxy};

/// A local cluster.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The folder of its data.
    pub data_dir: PathBuf,
    /// What the manifest calls the cluster.
    name: String,
    /// The folder was empty: this is the cluster's first start.
    pub(crate) new: bool,
    /// What the manifest says.
    pub(crate) spec: Spec,
    pub(crate) how: RunOptions,
    /// The folder is this process', until the last of these is gone.
    _lock: Arc<File>,
}

/// How a cluster is to be run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Port of the master; 0: any.
    pub port: u16,
    /// Where the proxy listens; none: there is no proxy.
    pub proxy_ports: Option<ProxyPorts>,
    /// Plain access is allowed.
    pub raw: bool,
    /// How far the clock may be beyond the oracle's last limit.
    pub stopped_max: Duration,
}

/// What a folder remembers of the cluster in it, once that has been ready.
#[derive(Serialize, Deserialize)]
struct ClusterRecord {
    /// What its manifest called it.
    name: String,
    /// As many tablet servers have been started in it, at the most.
    tablets: u32,
    /// The name of their engine.
    engine: String,
}

/// Where a folder keeps [`ClusterRecord`].
const REMEMBERED: &str = "CLUSTER";

impl Layout {
    /// Checks the folder against the manifest, and makes it. Where a new cluster's ports are taken, nothing is
    /// made: a folder without a cluster would be left.
    ///
    /// # Errors
    /// What the folder has doesn't go with the manifest, it can't be used, or a port is taken.
    pub fn open(
        data_dir: &Path,
        manifest: &PercolatorCluster,
        how: RunOptions,
    ) -> anyhow::Result<Self> {
        let spec = &manifest.spec;
        if is_empty(data_dir) {
            check_ports(&how, servers(spec))?;
        }
        std::fs::create_dir_all(data_dir).with_context(|| {
            format!(
                "cannot make the data folder {}; choose another with --data-dir",
                data_dir.display()
            )
        })?;
        let data_dir = data_dir
            .canonicalize()
            .with_context(|| format!("cannot use the data folder {}", data_dir.display()))?;
        let found = FolderContents::in_folder(&data_dir)?;
        found.check(&data_dir, manifest, how.port)?;
        // Before anything is written that another one's servers read.
        let lock = folder::lock(&data_dir, "this cluster")?;
        if names_in(&data_dir)? != found.names
            || (!found.new && drained_in(&data_dir)? != found.drained)
        {
            bail!(
                "another cluster has run in {} just now: try again",
                data_dir.display()
            );
        }
        Ok(Self {
            _lock: Arc::new(lock),
            data_dir,
            name: manifest.metadata.name.clone(),
            new: found.new,
            spec: spec.clone(),
            how,
        })
    }

    /// To be called when no server of an earlier `up` runs any more. If its cluster never began, what is left of it is
    /// removed: it was never reported as ready.
    ///
    /// # Errors
    /// What is left has something that must not be removed.
    pub fn begin(&mut self) -> anyhow::Result<()> {
        let names = names_in(&self.data_dir)?;
        self.new = self.new && !has_begun(&self.data_dir, &names)?;
        let servers = names.iter().filter(|name| self.new && is_server(name));
        let folders: Vec<PathBuf> = servers.map(|server| self.folder(server)).collect();
        for folder in &folders {
            leftovers::check(folder)?;
        }
        for folder in &folders {
            leftovers::remove(folder)?;
        }
        Ok(())
    }

    /// What a manifest says otherwise, and counts when the cluster is started again.
    pub fn differences(&self, manifest: &PercolatorCluster) -> Vec<&'static str> {
        let (ours, asked) = (&self.spec, &manifest.spec);
        let (storage, other) = (&ours.tablets.storage, &asked.tablets.storage);
        let differ = [
            ("metadata.name", self.name != manifest.metadata.name),
            (
                "spec.tablets.replicas",
                ours.tablets.replicas != asked.tablets.replicas,
            ),
            (
                "spec.tablets.storage.engine",
                storage.engine != other.engine,
            ),
            (
                "spec.tablets.storage.cacheSize",
                storage.cache_size != other.cache_size,
            ),
            (
                "spec.oracle.replicas",
                ours.oracle.replicas != asked.oracle.replicas,
            ),
            (
                "spec.master.replicas",
                ours.master.replicas != asked.master.replicas,
            ),
            (
                "spec.oracle.window",
                ours.oracle.window != asked.oracle.window,
            ),
        ];
        let differ = differ.into_iter().filter(|(_, differs)| *differs);
        let of_proxy = self
            .how
            .proxy_ports
            .map(|_| proxy::differences(ours, asked));
        let of_proxy = of_proxy.into_iter().flatten();
        differ.map(|(field, _)| field).chain(of_proxy).collect()
    }

    /// The fields of `spec.proxy` that the manifest sets and that have no effect on the proxy here.
    pub fn proxy_fields_without_effect(&self) -> Vec<&'static str> {
        let proxy = self.spec.proxy.as_ref();
        let proxy = proxy.filter(|_| self.how.proxy_ports.is_some());
        proxy.map(proxy::fields_without_effect).unwrap_or_default()
    }

    /// Keeps in the folder what the next start is to be held against.
    ///
    /// # Errors
    /// It can't be written.
    pub fn remember(&self) -> anyhow::Result<()> {
        let cluster = ClusterRecord {
            name: self.name.clone(),
            tablets: self.spec.tablets.replicas,
            engine: self.spec.tablets.storage.engine.name().to_owned(),
        };
        SmallFile::new(self.data_dir.join(REMEMBERED)).store(&serde_json::to_vec(&cluster)?)?;
        Ok(())
    }

    /// Where a server listens: the master at the port that was asked for, the others behind it.
    pub(crate) fn listen(&self, number: u16) -> anyhow::Result<SocketAddr> {
        address(self.how.port, number)
    }

    /// Where it shows its metrics: behind all of those.
    pub(crate) fn listen_metrics(&self, number: u16) -> anyhow::Result<SocketAddr> {
        address(self.how.port, servers(&self.spec).saturating_add(number))
    }

    /// The folder of a server.
    pub(crate) fn folder(&self, server: &str) -> PathBuf {
        self.data_dir.join(server)
    }

    /// The masters' names.
    pub(crate) fn masters(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.spec.master.replicas).map(|number| format!("{MASTER_PREFIX}{number}"))
    }

    /// The oracles' names.
    pub(crate) fn oracles(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.spec.oracle.replicas).map(|number| format!("{ORACLE_PREFIX}{number}"))
    }

    /// Where the register of several oracles is. A cluster that has one keeps it, also with one oracle.
    pub(crate) fn oracle_register(&self) -> Option<PathBuf> {
        self.register(self.spec.oracle.replicas, ORACLE_REGISTER)
    }

    /// The same of the masters.
    pub(crate) fn master_register(&self) -> Option<PathBuf> {
        self.register(self.spec.master.replicas, MASTER_REGISTER)
    }

    fn register(&self, replicas: u32, file: &str) -> Option<PathBuf> {
        let folder = self.data_dir.join(REGISTER);
        (replicas > 1 || folder.join(file).exists()).then_some(folder)
    }

    /// The same spec with as many servers as there are.
    pub(crate) fn with_its_servers(&self, spec: &Spec) -> Spec {
        let mut spec = spec.clone();
        spec.tablets.replicas = self.spec.tablets.replicas;
        spec.master.replicas = self.spec.master.replicas;
        spec.oracle.replicas = self.spec.oracle.replicas;
        spec
    }

    /// The tablet servers' names.
    pub(crate) fn tablet_servers(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.spec.tablets.replicas).map(tablet_server)
    }
}

/// What lies in a data folder.
struct FolderContents {
    names: Vec<String>,
    remembered: Option<ClusterRecord>,
    /// No cluster has begun in it.
    new: bool,
    /// As many tablet servers may own data.
    owners: u32,
    /// Tablet servers that are drained.
    drained: Vec<String>,
}

impl FolderContents {
    fn in_folder(data_dir: &Path) -> anyhow::Result<Self> {
        let names = names_in(data_dir)?;
        let remembered = remembered(data_dir)?;
        let new = remembered.is_none() && !has_begun(data_dir, &names)?;
        // Servers are started in this order, so each that is there was started after the ones before.
        let numbers = names.iter().filter_map(|name| tablet_number(name));
        let there = numbers.max().map_or(0, |highest| highest + 1);
        let known = remembered.as_ref().map_or(0, |cluster| cluster.tablets);
        let drained = if new {
            Vec::new()
        } else {
            drained_in(data_dir)?
        };
        Ok(Self {
            names,
            remembered,
            new,
            owners: there.max(known),
            drained,
        })
    }

    /// Whether the cluster in it is whole, and the manifest's.
    fn check(
        &self,
        data_dir: &Path,
        manifest: &PercolatorCluster,
        port: u16,
    ) -> anyhow::Result<()> {
        self.check_engine(data_dir, manifest.spec.tablets.storage.engine.name())?;
        self.check_lost(data_dir, port)?;
        self.check_servers(data_dir, manifest.spec.tablets.replicas)?;
        let asked = &manifest.metadata.name;
        if let Some(known) = self.remembered.as_ref().map(|cluster| &cluster.name)
            && known != asked
            && ![known, asked].into_iter().any(|name| name == DEFAULT_NAME)
        {
            bail!(
                "the cluster in {} is called {known}, the manifest's {asked}: choose another folder with --data-dir, or \
                 set metadata.name to {known}",
                data_dir.display()
            );
        }
        Ok(())
    }

    fn check_engine(&self, data_dir: &Path, asked: &str) -> anyhow::Result<()> {
        let Some(cluster) = &self.remembered else {
            return Ok(());
        };
        // The store refuses another engine by itself, but memory has none.
        if cluster.engine == EngineKind::Memory.name() {
            bail!(
                "the cluster in {} kept its rows in memory, and they went when it stopped: choose an empty folder, \
                 or --ephemeral",
                data_dir.display()
            );
        }
        if cluster.engine != asked {
            bail!(
                "the cluster in {} is one of engine {}, not of {asked}: set spec.tablets.storage.engine to {}, or \
                 choose another folder with --data-dir",
                data_dir.display(),
                cluster.engine,
                cluster.engine
            );
        }
        Ok(())
    }

    /// Whether a folder is gone that held what is in no other.
    fn check_lost(&self, data_dir: &Path, port: u16) -> anyhow::Result<()> {
        let tablets: Vec<String> = (0..self.owners).map(tablet_server).collect();
        let register = data_dir.join(REGISTER);
        // What the first one of several has to keep is in their register.
        let alone = [(MASTER, SHARED_STATE), (ORACLE, ORACLE_REGISTER)];
        let alone = alone
            .iter()
            .filter(|(_, file)| !register.join(file).exists());
        let alone = alone.map(|(server, _)| *server);
        let lost = alone
            .chain(tablets.iter().map(String::as_str))
            .filter(|server| !self.names.iter().any(|name| name == server))
            .filter(|server| !self.is_drained(server))
            // If an `up` was killed before all were ready, some were never started; the master knows who has lost what.
            .find(|server| {
                self.owners > 0 && !self.new && (self.remembered.is_some() || *server == MASTER)
            });
        match lost {
            None => Ok(()),
            Some(MASTER) => bail!(lost_state::folder_is_missing(data_dir, port, &tablets)),
            Some(server) => bail!(
                "the folder of {server} is missing from the cluster in {}, and what it held is in no other: bring it \
                 back, or restore all of the cluster's folders as they were when it was stopped",
                data_dir.display()
            ),
        }
    }

    fn is_drained(&self, server: &str) -> bool {
        self.drained.iter().any(|name| name == server)
    }

    fn check_servers(&self, data_dir: &Path, asked: u32) -> anyhow::Result<()> {
        let is_other = |name: &String| {
            ![LOGS, REGISTER, folder::LOCK].contains(&name.as_str())
                && !followed::is_ours(name)
                && !is_server(name)
        };
        if self.new && self.names.iter().any(is_other) {
            bail!(
                "{} holds other things and no cluster: choose an empty folder, or one that is yet to be made, with \
                 --data-dir",
                data_dir.display()
            );
        }
        let mut superfluous = (asked..self.owners).map(tablet_server);
        if let Some(server) = superfluous.find(|server| !self.is_drained(server)) {
            bail!(
                "the cluster in {} has {owners} tablet servers, the manifest asks for {asked}, and {server} may have tablets: \
                 set spec.tablets.replicas to {owners}, start the cluster, and move them to other servers with \
                 `percolator server drain {server}`; then set it to {asked}",
                data_dir.display(),
                owners = self.owners,
            );
        }
        Ok(())
    }
}

/// The tablet servers that are drained, as the master's state in the folder says.
fn drained_in(data_dir: &Path) -> anyhow::Result<Vec<String>> {
    let shared = data_dir.join(REGISTER).join(SHARED_STATE);
    let alone = data_dir.join(MASTER).join(DIRECTORY);
    let file = if shared.exists() { shared } else { alone };
    if !file.exists() {
        return Ok(Vec::new());
    }
    let masters = names_in(data_dir)?.into_iter();
    let masters = masters.filter(|name| name.starts_with(MASTER_PREFIX));
    let masters: Vec<PathBuf> = masters.map(|name| data_dir.join(name)).collect();
    Ok(percolator_gc_master::drained_servers(&file, &masters)?)
}

/// What lies in a data folder, but for its lock, in order.
pub(crate) fn names_in(data_dir: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(data_dir)
        .with_context(|| format!("cannot read the data folder {}", data_dir.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != folder::LOCK);
    names.sort_unstable();
    Ok(names)
}

fn tablet_server(number: u32) -> String {
    format!("tablet-{number}")
}

fn tablet_number(name: &str) -> Option<u32> {
    name.strip_prefix("tablet-")?.parse().ok()
}

fn is_server(name: &str) -> bool {
    let is_numbered = |prefix| {
        let number: Option<&str> = name.strip_prefix(prefix);
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    is_numbered(MASTER_PREFIX) || is_numbered(ORACLE_PREFIX) || tablet_number(name).is_some()
}

/// Whether the master has written a state, or a server belongs to a cluster.
fn has_begun(data_dir: &Path, names: &[String]) -> anyhow::Result<bool> {
    for name in names.iter().filter(|name| is_server(name)) {
        let folder = data_dir.join(name);
        let engine = percolator_engine::identity(&folder)?;
        if engine.is_some_and(|engine| engine.cluster_id.is_some())
            || folder::has_cluster(&folder)?
            || folder.join(DIRECTORY).exists()
        {
            return Ok(true);
        }
    }
    Ok(data_dir.join(REGISTER).join(SHARED_STATE).exists())
}

fn address(first_port: u16, number: u16) -> anyhow::Result<SocketAddr> {
    let port = match first_port {
        0 => 0,
        first => first.checked_add(number).with_context(|| {
            format!(
                "there are not enough ports above {first} for every server; choose a lower --port"
            )
        })?,
    };
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

/// The masters, the oracles and the tablet servers.
pub(crate) fn servers(spec: &Spec) -> u16 {
    let replicas = [
        spec.master.replicas,
        spec.oracle.replicas,
        spec.tablets.replicas,
    ];
    let servers = replicas.into_iter().fold(0, u32::saturating_add);
    u16::try_from(servers).unwrap_or(u16::MAX)
}

/// Listens for a moment wherever the servers are going to, and their metrics.
fn check_ports(how: &RunOptions, servers: u16) -> anyhow::Result<()> {
    let servers = (0..servers.saturating_mul(2)).map(|number| address(how.port, number));
    let proxy = how.proxy_ports.into_iter();
    let proxy = proxy.flat_map(|ports| [Ok(ports.listen()), Ok(ports.listen_metrics())]);
    let listening: anyhow::Result<Vec<_>> = servers
        .chain(proxy)
        .map(|address| Ok(percolator_server::listen(address?)?))
        .collect();
    listening.map(drop)
}

/// Nothing is there, or a folder without anything in it.
fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

/// What the folder keeps of its cluster, for people.
pub(crate) fn described(data_dir: &Path) -> Option<serde_json::Value> {
    serde_json::to_value(remembered(data_dir).ok()??).ok()
}

fn remembered(data_dir: &Path) -> anyhow::Result<Option<ClusterRecord>> {
    let value = SmallFile::new(data_dir.join(REMEMBERED)).load()?;
    let cluster = value.map(|value| serde_json::from_slice(&value));
    cluster
        .transpose()
        .with_context(|| format!("{REMEMBERED} in {} is damaged", data_dir.display()))
}

/// Where the logs of servers that are processes of their own go.
pub(crate) const LOGS: &str = "logs";
/// What a cluster is called without a manifest, which will do for any.
const DEFAULT_NAME: &str = "local";
/// The state of a master that is alone in its folder.
const DIRECTORY: &str = "directory";
/// The first master's name.
pub(crate) const MASTER: &str = "master-0";
/// What names of masters begin with; a number follows.
const MASTER_PREFIX: &str = "master-";
/// The first oracle's name.
pub(crate) const ORACLE: &str = "tso-0";
/// What names of oracles begin with; a number follows.
const ORACLE_PREFIX: &str = "tso-";
/// The folder of the registers that several oracles or masters share.
const REGISTER: &str = "register";
/// The oracles' register in it.
const ORACLE_REGISTER: &str = "oracle";
/// The register of the masters' leadership in it.
const MASTER_REGISTER: &str = "master";
/// The register of the masters' state in it.
const SHARED_STATE: &str = "master-state";
