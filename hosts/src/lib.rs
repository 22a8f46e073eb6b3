//! Hosts on a network of their own, for tests and benchmarks: each is a network namespace with a link to one bridge, and links can
//! be cut for real. Namespaces have no names, and last as long as a process in them: nothing stays behind, however the caller ends.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// The address of the host with the bridge, for clients and for what all others use.
pub const HUB: &str = "10.77.0.1";
/// The last byte of the first other host's address.
const FIRST: usize = 10;
/// More don't fit into the network.
const HOSTS_MAX: usize = 200;

/// There is no such network, or no such host in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This machine doesn't allow it.
    #[error(
        "no network namespace can be made: that needs root, and the programs unshare and nsenter"
    )]
    NoNamespace,
    /// A command of the program `ip` failed, or there is no such program.
    #[error("`ip {0}` failed: network namespaces with links need root, and the program ip")]
    NoLink(String),
    /// All addresses are taken.
    #[error("there are {HOSTS_MAX} hosts, and no address is left")]
    Full,
    /// Nobody has added it.
    #[error("there is no host {0}")]
    Unknown(String),
}

/// A network, with the hosts on it. They end with this value, and so does their network; processes on them don't.
#[derive(Debug)]
pub struct Hosts {
    hub: Namespace,
    others: BTreeMap<String, Host>,
}

#[derive(Debug)]
struct Host {
    namespace: Namespace,
    address: String,
    /// Its end at the bridge.
    link: String,
}

/// A process that holds a network namespace, for as long as this process has its standard input.
#[derive(Debug)]
struct Namespace(Child);

impl Namespace {
    fn new() -> Result<Self, Error> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|_| Error::NoNamespace)?;
        let said = holder.stdout.take();
        let namespace = Self(holder);
        let mut line = String::new();
        let read = said.map(|said| BufReader::new(said).read_line(&mut line));
        match (read, &*line) {
            (Some(Ok(_)), "ready\n") => Ok(namespace),
            _ => Err(Error::NoNamespace),
        }
    }

    fn enter(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let holder = self.0.id().to_string();
        command.args(["--net", "-t", &holder]).arg(program);
        command
    }

    fn ip(&self, arguments: &str) -> Result<(), Error> {
        let done = self.enter("ip").args(arguments.split(' ')).output();
        if done.is_ok_and(|done| done.status.success()) {
            return Ok(());
        }
        Err(Error::NoLink(arguments.to_owned()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Hosts {
    /// A network with nobody on it but the hub.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], [`Error::NoLink`]: what is missing on this machine.
    pub fn new() -> Result<Self, Error> {
        let hub = Namespace::new()?;
        hub.ip("link add br0 type bridge")?;
        hub.ip(&format!("addr add {HUB}/24 dev br0"))?;
        hub.ip("link set br0 up")?;
        hub.ip("link set lo up")?;
        let others = BTreeMap::new();
        Ok(Self { hub, others })
    }

    /// Adds a host, whose link is up, and gives its address.
    ///
    /// # Errors
    /// As [`Self::new`], and [`Error::Full`].
    pub fn add(&mut self, name: &str) -> Result<String, Error> {
        let number = self.others.len();
        if number == HOSTS_MAX {
            return Err(Error::Full);
        }
        let namespace = Namespace::new()?;
        let (link, address) = (format!("v{number}"), format!("10.77.0.{}", FIRST + number));
        let holder = namespace.0.id();
        let hub = &self.hub;
        hub.ip(&format!(
            "link add {link} type veth peer name eth0 netns {holder}"
        ))?;
        hub.ip(&format!("link set {link} master br0 up"))?;
        namespace.ip(&format!("addr add {address}/24 dev eth0"))?;
        namespace.ip("link set eth0 up")?;
        namespace.ip("link set lo up")?;
        let host = Host {
            namespace,
            address: address.clone(),
            link,
        };
        self.others.insert(name.to_owned(), host);
        Ok(address)
    }

    fn host(&self, name: &str) -> Result<&Host, Error> {
        let host = self.others.get(name);
        host.ok_or_else(|| Error::Unknown(name.to_owned()))
    }

    /// The address of a host.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn address(&self, name: &str) -> Result<&str, Error> {
        Ok(&self.host(name)?.address)
    }

    /// A command that runs a program on a host. Its process is the program's.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn on(&self, name: &str, program: impl AsRef<OsStr>) -> Result<Command, Error> {
        Ok(self.host(name)?.namespace.enter(program))
    }

    /// A command that runs a program where the bridge is.
    pub fn on_hub(&self, program: impl AsRef<OsStr>) -> Command {
        self.hub.enter(program)
    }

    /// Cuts the link of a host, or restores it.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::NoLink`].
    pub fn set_link(&self, name: &str, up: bool) -> Result<(), Error> {
        let link = &self.host(name)?.link;
        let state = if up { "up" } else { "down" };
        self.hub.ip(&format!("link set {link} {state}"))
    }
}
