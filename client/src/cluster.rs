//! What the master knows of a cluster, for people and for tools.

use std::time::Duration;

use percolator_protocol::types::TableId;
use percolator_wire::v1;

use crate::Bytes;
use crate::directory::Directory;

/// A cluster, as the master has it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its id.
    pub id: String,
    /// The master's name.
    pub master: String,
    /// Where the master shows metrics, as it listens: an unspecified address stands for its host. Empty: nowhere.
    pub master_metrics_address: String,
    /// The servers that have reported to the master, but for itself.
    pub servers: Vec<v1::ServerInfo>,
    /// How many tablet servers the manifest has; 0: the master was not told.
    pub tablet_servers_expected: u32,
    /// The tables, by name and number: one that is being deleted may have the name of another one.
    pub tables: Vec<Table>,
}

/// A table, as the master has it.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Whether every tablet is in place.
    pub ready: bool,
    /// Whether it is being deleted: nobody can use it, and its rows go when the safe point has passed its deletion.
    pub deleting: bool,
    /// Its tablets, in order.
    pub tablets: Vec<Tablet>,
}

/// A tablet, as the master has it.
#[derive(Clone, Debug)]
pub struct Tablet {
    /// Its number.
    pub id: u64,
    /// Its first row.
    pub start_row: Bytes,
    /// The row behind its last one; empty: none.
    pub end_row: Bytes,
    /// How often it has changed.
    pub epoch: u64,
    /// Its owner.
    pub server: String,
    /// Whether the owner has sent the master a sign of life lately.
    pub server_alive: bool,
    /// How long ago the last one was. `None`: the master has had none since it was started.
    pub server_silence: Option<Duration>,
}

impl Cluster {
    pub(crate) fn new(directory: &Directory) -> Self {
        let (master, master_metrics_address) = directory.master.clone();
        let tables = directory.tables.values();
        let mut tables: Vec<Table> = tables.map(|info| table(directory, info)).collect();
        tables.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Self {
            id: directory.cluster_id.clone(),
            master,
            master_metrics_address,
            servers: directory.servers.clone(),
            tablet_servers_expected: directory.tablet_servers_expected,
            tables,
        }
    }
}

fn table(directory: &Directory, info: &v1::TableInfo) -> Table {
    Table {
        name: info.name.clone(),
        id: info.id,
        ready: info.state() == v1::TableState::Ready,
        deleting: info.state() == v1::TableState::Deleting,
        tablets: directory
            .tablets(TableId(info.id))
            .iter()
            .map(|place| {
                let owner = directory.server(&place.server);
                Tablet {
                    id: place.tablet.id,
                    start_row: place.tablet.start_row.clone(),
                    end_row: place.tablet.end_row.clone(),
                    epoch: place.tablet.epoch,
                    server: place.server.clone(),
                    server_alive: owner.is_some_and(|owner| owner.alive),
                    server_silence: owner
                        .and_then(|owner| owner.silent_ms)
                        .map(Duration::from_millis),
                }
            })
            .collect(),
    }
}
