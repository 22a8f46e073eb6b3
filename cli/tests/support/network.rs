//! A cluster on a network of its own: each server in a network namespace, on a bridge, so that links can be
//! cut for real. Namespaces have no names and live as long as a process in them, so nothing stays behind,
//! however the test ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use percolator_register_etcd::testbed::Etcd;

use super::server::{self, Place, Running};
use super::{CommandOutput, PERCOLATOR, SERVERS, output_of, wait_until_ready};

const PORT: u16 = 7400;
/// The address of clients, and of etcd.
const HUB: &str = "10.77.0.1";
const WITH_STANDBYS: [&str; 5] = ["gc-master-0", "gc-master-1", "tso-0", "tso-1", "tablet-0"];

/// The network, and the servers on it.
pub(crate) struct Network {
    /// Where the bridge is, and where clients run.
    hub: Child,
    hosts: BTreeMap<&'static str, Host>,
    /// Where the bridge is, with the registers of masters and oracles, if there are several.
    etcd: Option<Etcd>,
    pub(crate) folder: tempfile::TempDir,
}

struct Host {
    /// Holds the namespace.
    holder: Child,
    server: Running,
    address: String,
    link: String,
}

/// A process that holds a new network namespace, for as long as this test has its standard input.
fn hold() -> Option<Child> {
    let mut holder = Command::new("unshare")
        .args(["--net", "sh", "-c", "echo ready; exec cat >/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take()?)
        .read_line(&mut line)
        .ok()?;
    (line == "ready\n").then_some(holder)
}

fn enter(holder: &Child, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--net", "-t", &holder.id().to_string(), program]);
    command
}

fn ip(holder: &Child, arguments: &str) -> bool {
    let done = enter(holder, "ip")
        .args(arguments.split(' '))
        .output()
        .is_ok_and(|output| output.status.success());
    if !done {
        eprintln!("ip {arguments}: not done");
    }
    done
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
        let launch = |program: &Path| enter(&network.hub, program.to_str().expect("a text"));
        network.etcd = Some(Etcd::start_at(launch, HUB)?);
        network.start_all(&WITH_STANDBYS);
        Some(network)
    }

    fn hub() -> Option<Self> {
        let skip = |why: &str| {
            eprintln!(
                "SKIPPED: {why}: network namespaces need root, and the programs unshare, nsenter and ip"
            );
        };
        let Some(hub) = hold() else {
            skip("no network namespace can be made");
            return None;
        };
        let bridged = ip(&hub, "link add br0 type bridge")
            && ip(&hub, &format!("addr add {HUB}/24 dev br0"))
            && ip(&hub, "link set br0 up")
            && ip(&hub, "link set lo up");
        if !bridged {
            skip("no bridge can be made");
            return None;
        }
        Some(Self {
            hub,
            hosts: BTreeMap::new(),
            etcd: None,
            folder: tempfile::tempdir().expect("a folder"),
        })
    }

    fn start_all(&mut self, servers: &[&'static str]) {
        for (number, &server) in servers.iter().enumerate() {
            let holder = hold().expect("another network namespace");
            let (link, address) = (format!("v{number}"), format!("10.77.0.{}", 10 + number));
            let peer = format!(
                "link add {link} type veth peer name eth0 netns {}",
                holder.id()
            );
            assert!(ip(&self.hub, &peer));
            assert!(ip(&self.hub, &format!("link set {link} master br0 up")));
            assert!(ip(&holder, &format!("addr add {address}/24 dev eth0")));
            assert!(ip(&holder, "link set eth0 up") && ip(&holder, "link set lo up"));
            let host = Host {
                holder,
                server: Running::default(),
                address,
                link,
            };
            self.hosts.insert(server, host);
        }
        for &server in servers {
            self.start(server);
        }
        wait_until_ready(|arguments| self.run(arguments));
    }

    /// The addresses of all masters.
    fn masters(&self) -> String {
        let hosts = self.hosts.iter();
        let masters = hosts.filter(|(name, _)| name.starts_with("gc-master"));
        let masters = masters.map(|(_, host)| format!("{}:{PORT}", host.address));
        masters.collect::<Vec<_>>().join(",")
    }

    fn start(&mut self, server: &'static str) {
        let master = self.masters();
        let etcd = self.etcd.as_ref().map(|etcd| etcd.address().to_owned());
        let host = self.hosts.get_mut(server).expect("a host");
        let place = Place {
            server,
            listen: &format!("{}:{PORT}", host.address),
            advertise: None,
            master: &master,
            folder: self.folder.path(),
        };
        let child = server::start(&place, |program| {
            let mut command = enter(&host.holder, program);
            if let (Some(etcd), Some((role @ ("gc-master" | "tso"), _))) =
                (etcd, server.rsplit_once('-'))
            {
                command.args(["--register", &format!("etcd:{etcd}/percolator/{role}")]);
            }
            command
        });
        host.server = Running::new(child);
    }

    /// The file that says by how many milliseconds the oracle's clock is wrong.
    pub(crate) fn clock_file(&self) -> PathBuf {
        server::clock_file(self.folder.path())
    }

    /// Kills a server with SIGKILL, and starts it again.
    pub(crate) fn kill(&mut self, server: &'static str) {
        let host = self.hosts.get_mut(server).expect("a host");
        host.server.kill();
        self.start(server);
    }

    /// Pulls a server's cable, or puts it back.
    pub(crate) fn link(&self, server: &str, up: bool) {
        let state = if up { "up" } else { "down" };
        let link = &self.hosts[server].link;
        assert!(ip(&self.hub, &format!("link set {link} {state}")));
    }

    /// The master and the oracle that lead, once they do and all others are up.
    pub(crate) fn leaders(&self) -> [String; 2] {
        server::leaders(self.hosts.len(), |arguments| self.run(arguments))
    }

    /// A command of a client, to be started by the caller.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = enter(&self.hub, PERCOLATOR);
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
        for (name, host) in &mut self.hosts {
            host.server.end(self.folder.path(), name);
            let _ = host.holder.kill();
            let _ = host.holder.wait();
        }
        let _ = self.hub.kill();
        let _ = self.hub.wait();
    }
}
