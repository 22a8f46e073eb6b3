//! A master's state that was lost, rebuilt from what the cluster's tablet servers report.

use std::time::Duration;

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::Error;
use crate::admin::{Admin, error};

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

impl Admin {
    /// Rebuilds the state of a master that has lost it, or shows what it would have.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the master has a state; [`Error::Unavailable`].
    pub async fn rebuild_master(&self, rebuild: MasterRebuild) -> Result<RebuiltMaster, Error> {
        let MasterRebuild {
            tablet_servers,
            write,
            accept_data_loss,
        } = rebuild;
        let request = v1::RebuildRequest {
            tablet_servers,
            write,
            accept_data_loss,
        };
        let answer = self.network.rebuild(request).await.map_err(error)?;
        Ok(answer.into())
    }
}

impl From<v1::RebuildResponse> for RebuiltMaster {
    fn from(answer: v1::RebuildResponse) -> Self {
        let set = answer.gc.unwrap_or_default();
        let server = |it: v1::RebuiltServer| RebuiltServer {
            is_oracle: it.role() == v1::Role::Oracle,
            name: it.server,
            address: it.address,
            tablets: it.tablets,
        };
        let table = |it: v1::RebuiltTable| {
            let info = it.table.unwrap_or_default();
            RebuiltTable {
                id: info.id,
                deleting: info.state() == v1::TableState::Deleting,
                name: info.name,
                tablets: it.tablets,
                gaps: it.gaps,
            }
        };
        Self {
            cluster_id: answer.cluster_id,
            servers: answer.servers.into_iter().map(server).collect(),
            tables: answer.tables.into_iter().map(table).collect(),
            barrier: Timestamp::from_u64(answer.barrier),
            safe_point: Timestamp::from_u64(answer.safe_point),
            resolved: Timestamp::from_u64(answer.resolved_ts),
            retention: set.retention_ms.map(Duration::from_millis),
            hold_max: set.hold_ms_max.map(Duration::from_millis),
            paused: set.paused,
            next_table_id: answer.next_table_id,
            problems: answer.problems,
            losses: answer.losses,
            written: answer.written,
        }
    }
}
