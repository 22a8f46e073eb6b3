//! A master's state that was lost, rebuilt from what the cluster's tablet servers report.

use std::time::Duration;

use percolator_protocol::types::Timestamp;

/// What to rebuild a master's lost state from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterRebuild {
    /// The names of all tablet servers of the cluster: rows that none of these has are gone.
    pub tablet_servers: Vec<String>,
    /// The state is written, if nothing is in the way. Otherwise it is only shown.
    pub write: bool,
    /// It is written although something is lost: empty tablets take the place of lost rows, and locks in other tables about
    /// which these would decide are rolled back.
    pub accept_data_loss: bool,
}

/// The state that is rebuilt, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltMaster {
    /// The cluster; empty: no server of one reports.
    pub cluster_id: String,
    /// The tablet servers that are named or report, and the oracles.
    pub servers: Vec<RebuiltServer>,
    /// By id.
    pub tables: Vec<RebuiltTable>,
    /// What is below is refused.
    pub barrier: Timestamp,
    /// What no snapshot at or above it sees is collected.
    pub safe_point: Timestamp,
    /// Up to where locks are resolved in all tablets.
    pub resolved: Timestamp,
    /// How long versions are kept; `None`: it was not set.
    pub retention: Option<Duration>,
    /// How long a gc-lock may be held; `None`: as long as its owner renews it.
    pub hold_max: Option<Duration>,
    /// Neither point moves.
    pub paused: bool,
    /// The first id of a new table.
    pub next_table_id: u32,
    /// What has to be mended before the state can be written.
    pub problems: Vec<String>,
    /// What is lost.
    pub losses: Vec<String>,
    /// The state is written: the master goes on with it.
    pub written: bool,
}

/// A server of such a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltServer {
    /// Its stable name.
    pub name: String,
    /// It is an oracle, and no tablet server.
    pub is_oracle: bool,
    /// HOST:PORT; empty: it doesn't report.
    pub address: String,
    /// How many it has.
    pub tablets: u64,
}

/// A table of such a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltTable {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its deletion goes on.
    pub deleting: bool,
    /// How many tablets the servers have.
    pub tablets: u64,
    /// How many ranges of rows no server has.
    pub gaps: u64,
}
