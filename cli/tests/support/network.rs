//! A cluster on a network of its own: each server in a network namespace, on a bridge, so that links can be
//! cut for real. Namespaces have no names and live as long as a process in them, so nothing stays behind,
//! however the test ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::server::{self, Place, Running};
use super::{CommandOutput, PERCOLATOR, SERVERS, output_of, wait_until_ready};

const PORT: u16 = 7400;

/// The network, and the servers on it.
pub(crate) struct Network {
    /// Where the bridge is, and where clients run.
    hub: Child,
    hosts: BTreeMap<&'static str, Host>,
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
    /// `None`: this machine doesn't let us; it was said why.
    pub(crate) fn new() -> Option<Self> {
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
            && ip(&hub, "addr add 10.77.0.1/24 dev br0")
            && ip(&hub, "link set br0 up")
            && ip(&hub, "link set lo up");
        if !bridged {
            skip("no bridge can be made");
            return None;
        }
        let mut network = Self {
            hub,
            hosts: BTreeMap::new(),
            folder: tempfile::tempdir().expect("a folder"),
        };
        for (number, server) in SERVERS.into_iter().enumerate() {
            let holder = hold().expect("another network namespace");
            let (link, address) = (format!("v{number}"), format!("10.77.0.{}", 10 + number));
            let peer = format!(
                "link add {link} type veth peer name eth0 netns {}",
                holder.id()
            );
            assert!(ip(&network.hub, &peer));
            assert!(ip(&network.hub, &format!("link set {link} master br0 up")));
            assert!(ip(&holder, &format!("addr add {address}/24 dev eth0")));
            assert!(ip(&holder, "link set eth0 up") && ip(&holder, "link set lo up"));
            let host = Host {
                holder,
                server: Running::default(),
                address,
                link,
            };
            network.hosts.insert(server, host);
        }
        for server in SERVERS {
            network.start(server);
        }
        wait_until_ready(|arguments| network.run(arguments));
        Some(network)
    }

    fn start(&mut self, server: &'static str) {
        let master = format!("{}:{PORT}", self.hosts["gc-master-0"].address);
        let host = self.hosts.get_mut(server).expect("a host");
        let place = Place {
            server,
            listen: &format!("{}:{PORT}", host.address),
            advertise: None,
            master: &master,
            folder: self.folder.path(),
        };
        let child = server::start(&place, |program| enter(&host.holder, program));
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

    /// A command of a client, to be started by the caller.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = enter(&self.hub, PERCOLATOR);
        command
            .arg("-c")
            .arg(format!("{}:{PORT}", self.hosts["gc-master-0"].address))
            .args(arguments);
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
