//! What runs where, for people and for programs: a file in the data folder.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::planned::Role;

/// What runs where.
#[derive(Clone, Debug, Serialize)]
pub struct Running {
    /// What people call its task: `master`, `oracle`, `tablet` or `proxy`.
    pub role: &'static str,
    /// Its name.
    pub server: String,
    /// Where its clients reach it: HOST:PORT.
    pub address: String,
    /// Where it shows metrics and health, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// The process, where it's one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its folder, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
}

impl Running {
    /// Whether it is one of the masters.
    pub fn is_master(&self) -> bool {
        self.role == Role::Master.name()
    }

    /// Whether it is the proxy.
    pub fn is_proxy(&self) -> bool {
        self.role == Role::Proxy.name()
    }
}

/// Where clients reach the masters: HOST:PORT, with commas between.
pub fn masters(running: &[Running]) -> String {
    let masters = running.iter().filter(|server| server.is_master());
    let addresses: Vec<&str> = masters.map(|master| &*master.address).collect();
    addresses.join(",")
}

/// Where a cluster says what runs, in its data folder.
pub const SERVERS: &str = "servers.json";

/// Writes the file, at once, as others read it whenever they like.
pub(crate) fn tell(data_dir: &Path, running: &[Running]) -> anyhow::Result<()> {
    let file = data_dir.join(SERVERS);
    let temporary = file.with_extension("json.new");
    serde_json::to_vec(running)
        .map_err(io::Error::from)
        .and_then(|json| std::fs::write(&temporary, json))
        .and_then(|()| std::fs::rename(&temporary, &file))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Removes the file: stale addresses and process numbers must not be taken for ours.
pub(crate) fn forget(data_dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(data_dir.join(SERVERS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
