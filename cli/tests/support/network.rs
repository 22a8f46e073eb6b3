//! A cluster on a network of its own, each server on a host whose link can be cut.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use percolator_hosts::{Error, HUB, Hosts};
use percolator_register_etcd::testbed::Etcd;

use super::server::{self, Place, Running};
use super::{CommandOutput, PERCOLATOR, SERVERS, output_of, wait_until_ready};

const PORT: u16 = 7400;
const WITH_STANDBYS: [&str; 5] = ["master-0", "master-1", "tso-0", "tso-1", "tablet-0"];

/// The network, and the servers on it.
pub(crate) struct Network {
    hosts: Hosts,
    servers: BTreeMap<&'static str, Running>,
    /// On the hub, with the registers of masters and oracles, if there are several.
    etcd: Option<Etcd>,
    pub(crate) folder: tempfile::TempDir,
}

impl Network {
    /// A cluster as it is by default. `None`: this machine doesn't let us; it was said why.
    pub(crate) fn new() -> Option<Self> {
        let mut network = Self::hub()?;
        network.start_all(&SERVERS);
        Some(network)
    }

    /// The same with two masters and two oracles over registers in an etcd.
    pub(crate) fn with_standbys() -> Option<Self> {
        let mut network = Self::hub()?;
        let launch = |program: &Path| network.hosts.on_hub(program);
        network.etcd = Some(Etcd::start_at(launch, HUB)?);
        network.start_all(&WITH_STANDBYS);
        Some(network)
    }

    fn hub() -> Option<Self> {
        let hosts = match Hosts::new() {
            Ok(hosts) => hosts,
            Err(why @ (Error::NoNamespace | Error::NoLink(_))) => {
                eprintln!("SKIPPED: {why}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        Some(Self {
            hosts,
            servers: BTreeMap::new(),
            etcd: None,
            folder: tempfile::tempdir().expect("a folder"),
        })
    }

    fn start_all(&mut self, servers: &[&'static str]) {
        for &server in servers {
            self.hosts.add(server).expect("another host");
            self.servers.insert(server, Running::default());
        }
        for &server in servers {
            self.start(server);
        }
        wait_until_ready(|arguments| self.run(arguments));
    }

    fn address(&self, server: &str) -> String {
        format!("{}:{PORT}", self.hosts.address(server).expect("a host"))
    }

    /// The addresses of all masters.
    fn masters(&self) -> String {
        let servers = self.servers.keys();
        let masters = servers.filter(|name| name.starts_with("master"));
        let masters = masters.map(|name| self.address(name));
        masters.collect::<Vec<_>>().join(",")
    }

    fn start(&mut self, server: &'static str) {
        let place = Place {
            server,
            listen: &self.address(server),
            advertise: None,
            master: &self.masters(),
            folder: self.folder.path(),
        };
        let child = server::start(&place, |program| {
            let mut command = self.hosts.on(server, program).expect("a host");
            if let (Some(etcd), Some((role @ ("master" | "tso"), _))) =
                (&self.etcd, server.rsplit_once('-'))
            {
                let register = format!("etcd:{}/percolator/{role}", etcd.address());
                command.args(["--register", &register]);
            }
            command
        });
        self.servers.insert(server, Running::new(child));
    }

    /// The file that says by how many milliseconds the oracle's clock is wrong.
    pub(crate) fn clock_file(&self) -> PathBuf {
        server::clock_file(self.folder.path())
    }

    /// Kills a server with SIGKILL, and starts it again.
    pub(crate) fn kill(&mut self, server: &'static str) {
        self.servers.get_mut(server).expect("a server").kill();
        self.start(server);
    }

    /// Pulls a server's cable, or puts it back.
    pub(crate) fn link(&self, server: &str, up: bool) {
        self.hosts.set_link(server, up).expect("a link");
    }

    /// The master and the oracle that lead, once they do and all others are up.
    pub(crate) fn leaders(&self) -> [String; 2] {
        server::leaders(self.servers.len(), |arguments| self.run(arguments))
    }

    /// A command of a client, to be started by the caller.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.hosts.on_hub(PERCOLATOR);
        command.arg("-c").arg(self.masters()).args(arguments);
        command
    }

    /// Runs a command of a client to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        output_of(self.command(arguments))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for (name, server) in &mut self.servers {
            server.end(self.folder.path(), name);
        }
    }
}
