//! The command to rebuild a lost state, and its result: see [`Directory::rebuild`](crate::Directory::rebuild).

use percolator_protocol::safe_point::Points;

use crate::settings::StoredSettings;
use crate::state::{Role, TableRecord};

/// What a person asks who has a lost state rebuilt.
#[derive(Clone, Debug, Default)]
pub struct RebuildCommand {
    /// The names of all tablet servers of the cluster: what none of them has is gone.
    pub tablet_servers: Vec<String>,
    /// The state is written, if nothing is in the way. Otherwise nothing is changed.
    pub write: bool,
    /// It is written although something is lost: empty tablets take the place of lost rows.
    pub accept_data_loss: bool,
}

/// What a rebuilt state has, for people.
#[derive(Clone, Debug, Default)]
pub struct Rebuilt {
    /// Empty: no server of a cluster reports.
    pub cluster_id: String,
    /// The tablet servers that are named or report, and the oracles, by name.
    pub servers: Vec<RebuildSource>,
    /// By id.
    pub tables: Vec<RebuiltTableRecord>,
    /// How far collection was.
    pub points: Points,
    /// Its settings.
    pub settings: StoredSettings,
    /// The first id of a new table.
    pub next_table_id: u32,
    /// What has to be mended before the state can be written.
    pub problems: Vec<String>,
    /// What is lost: the state is only written if that is given up.
    pub losses: Vec<String>,
    /// The master goes on with the state.
    pub written: bool,
}

/// A server that a state is rebuilt from.
#[derive(Clone, Debug)]
pub struct RebuildSource {
    /// Its name.
    pub server: String,
    /// What it is.
    pub role: Role,
    /// Where clients reach it; empty: it doesn't report.
    pub address: String,
    /// How many tablets it reports.
    pub tablets: usize,
}

/// A table of a rebuilt state, and what is there of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltTableRecord {
    /// Its id.
    pub id: u32,
    /// The table.
    pub table: TableRecord,
    /// Tablets that servers have.
    pub tablets: usize,
    /// Rows that no server has.
    pub gaps: u64,
}
