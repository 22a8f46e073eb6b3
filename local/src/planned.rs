//! The servers of a local cluster, and the arguments of their programs: the same for a process and for a thread.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use percolator_api::Spec;

use crate::layout::Layout;
use crate::{followed, proxy};

/// The name of the proxy.
const PROXY: &str = "proxy-0";

/// The master begins a cluster.
pub(crate) const NEW_CLUSTER: &str = "--new-cluster";

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Master,
    Oracle,
    Tablet,
    Proxy,
}

impl Role {
    /// What people call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Oracle => "oracle",
            Self::Tablet => "tablet",
            Self::Proxy => "proxy",
        }
    }

    /// What logs, metrics and traces call it.
    pub(crate) fn logged_as(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Oracle => "tso",
            Self::Tablet => "tablet",
            Self::Proxy => "proxy",
        }
    }

    /// Its program.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Master => "percolator-master",
            Self::Oracle => "percolator-tso",
            Self::Tablet => "percolator-tablet",
            Self::Proxy => "percolator-proxy",
        }
    }
}

/// A server that is to run.
#[derive(Clone, Debug)]
pub(crate) struct PlannedServer {
    pub(crate) role: Role,
    pub(crate) server: String,
    /// None for a proxy, which keeps nothing.
    pub(crate) data: Option<PathBuf>,
    /// For its clients.
    pub(crate) listen: SocketAddr,
    /// For metrics and health.
    pub(crate) metrics_listen: SocketAddr,
    /// What the manifest and the command line of `up` say to it.
    said: Vec<OsString>,
}

impl PlannedServer {
    /// The arguments of its program, but for where it listens. `masters`: where these are, for all other servers.
    pub(crate) fn arguments(&self, masters: &str) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--server".into(), self.server.clone().into()];
        if let Some(data) = &self.data {
            arguments.extend(["--data-dir".into(), data.clone().into()]);
        }
        if self.role != Role::Master {
            arguments.push(format!("--master={masters}").into());
        }
        arguments.extend(self.said.iter().cloned());
        arguments
    }
}

impl Layout {
    /// Its servers, in the order in which they are started: the masters first, whose addresses the others need.
    pub(crate) fn servers(&self) -> anyhow::Result<Vec<PlannedServer>> {
        let tablets = self.tablet_servers().map(|name| (Role::Tablet, name));
        // The first master and the first oracle begin the registers. Their numbers are the first ones, and those of the
        // others the last ones: so servers keep their ports.
        let mut masters = self.masters().map(|name| (Role::Master, name));
        let mut oracles = self.oracles().map(|name| (Role::Oracle, name));
        let first = masters.next().into_iter().chain(oracles.next());
        let all = first.chain(tablets).chain(oracles).chain(masters);
        let mut numbered: Vec<(u16, (Role, String))> = (0..).zip(all).collect();
        numbered.sort_by_key(|(number, (role, _))| (*role != Role::Master, *number));
        let servers = numbered.into_iter().map(|(number, (role, server))| {
            Ok(PlannedServer {
                role,
                data: Some(self.folder(&server)),
                listen: self.listen(number)?,
                metrics_listen: self.listen_metrics(number)?,
                said: self.said(role, number == 0),
                server,
            })
        });
        let proxy = self.how.proxy_ports.map(|ports| {
            Ok(PlannedServer {
                role: Role::Proxy,
                server: PROXY.to_owned(),
                data: None,
                listen: ports.listen(),
                metrics_listen: ports.listen_metrics(),
                said: self.said(Role::Proxy, false),
            })
        });
        servers.chain(proxy).collect()
    }

    /// What the manifest and the command line say to a server. `begins`: it begins the cluster, if that is new.
    fn said(&self, role: Role, begins: bool) -> Vec<OsString> {
        let mut said: Vec<OsString> = to_args(&self.spec, role)
            .into_iter()
            .map(OsString::from)
            .collect();
        match role {
            Role::Master => {
                let manifest = followed::manifest_file(&self.data_dir);
                said.extend(["--manifest".into(), manifest.into()]);
                said.extend((self.new && begins).then(|| NEW_CLUSTER.into()));
                said.extend(register(self.master_register()));
            }
            Role::Oracle => {
                let stopped_max = self.how.stopped_max.as_millis();
                said.push(format!("--stopped-max={stopped_max}ms").into());
                said.extend(register(self.oracle_register()));
            }
            Role::Tablet => said.extend(self.how.raw.then(|| "--raw".into())),
            Role::Proxy => {}
        }
        said
    }
}

/// The argument with the folder of a register, if there is one.
fn register(folder: Option<PathBuf>) -> impl Iterator<Item = OsString> {
    let arguments = folder.map(|folder| {
        let mut file = OsString::from("file:");
        file.push(folder);
        ["--register".into(), file]
    });
    arguments.into_iter().flatten()
}

/// The arguments that the manifest has for a server, by the mapping that pods use.
fn to_args(spec: &Spec, role: Role) -> Vec<String> {
    match role {
        // It reads a file.
        Role::Master => Vec::new(),
        Role::Oracle => spec.oracle.to_args(),
        Role::Tablet => spec.tablets.to_args(),
        Role::Proxy => proxy::to_args(spec),
    }
}
