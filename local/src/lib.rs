//! A cluster on one machine, from the manifest that Kubernetes takes too: [`Layout`] says which servers there are, where they
//! listen and where their data lies, and a [`Cluster`] runs them, as threads or as processes.

mod cluster;
mod earlier;
mod ephemeral;
mod followed;
mod layout;
mod leftovers;
mod lost_state;
mod planned;
mod ports;
mod processes;
mod proxy;
mod ready;
mod running;
mod threads;

use std::path::{Path, PathBuf};

pub use cluster::Cluster;
pub use earlier::earlier_ended;
pub use ephemeral::EphemeralFolder;
pub use followed::LiveSettings;
pub use layout::{Layout, RunOptions};
pub use ports::ProxyPorts;
pub use processes::check_programs;
pub use ready::ready;
pub use running::{Running, SERVERS, masters};

/// What a data folder says of its cluster's settings, as far as it can be read.
pub fn settings(data_dir: &Path) -> serde_json::Value {
    let file = |path: PathBuf| -> Option<serde_json::Value> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    };
    serde_json::json!({
        "cluster": layout::described(data_dir),
        "manifest": file(followed::manifest_file(data_dir)),
        "servers": file(data_dir.join(SERVERS)),
    })
}

/// The logs in a data folder, by name.
pub fn logs(data_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir.join(layout::LOGS));
    let entries = entries.into_iter().flatten().filter_map(Result::ok);
    let mut logs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    logs.sort();
    logs
}
