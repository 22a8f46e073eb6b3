//! What administrators ask of the master and of tablet servers.

use std::time::Duration;

use percolator_protocol::types::Timestamp;
use percolator_wire::{Malformed, v1};

use super::collect;
use crate::cluster::ServerRole;
use crate::collection::{
    GcChange, GcHolder, GcLock, GcLockPage, GcObstacle, GcServer, GcSettings, GcStatus, GcTablet,
    ProxyIntroduction, TxnOwner,
};
use crate::findings::{Finding, StoredPart, VerifiedPage, VerifiedTablet};
use crate::location_cache::KnownTable;
use crate::rebuild::{MasterRebuild, RebuiltMaster, RebuiltServer, RebuiltTable};

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl TryFrom<v1::GcStatusResponse> for GcStatus {
    type Error = Malformed;

    fn try_from(status: v1::GcStatusResponse) -> Result<Self, Malformed> {
        let ts = Timestamp::from_u64;
        Ok(Self {
            retention: Duration::from_millis(status.retention_ms),
            hold_max: status.hold_ms_max.map(Duration::from_millis),
            paused: status.paused,
            of_manifest: status.of_manifest,
            now: ts(status.now),
            barrier: ts(status.barrier),
            safe_point: ts(status.safe_point),
            resolved: ts(status.resolved_ts),
            sessions: status.sessions,
            holders: collect(status.holders)?,
            obstacles: status.obstacles.into_iter().map(GcObstacle::from).collect(),
            servers: status.servers.into_iter().map(GcServer::from).collect(),
        })
    }
}

impl TryFrom<v1::GcHolder> for GcHolder {
    type Error = Malformed;

    fn try_from(holder: v1::GcHolder) -> Result<Self, Malformed> {
        let ts = Timestamp::from_u64;
        let owner = holder
            .owner
            .ok_or(Malformed("a gc-lock without an owner"))?;
        Ok(Self {
            session: holder.session,
            owner: owner.into(),
            floor: ts(holder.floor),
            transactions: holder.transactions.into_iter().map(ts).collect(),
            lease: Duration::from_millis(holder.lease_ms.into()),
            released: holder.released,
        })
    }
}

impl From<v1::GcObstacle> for GcObstacle {
    fn from(obstacle: v1::GcObstacle) -> Self {
        Self {
            by: obstacle.by,
            server: obstacle.server,
            what: obstacle.what,
            start_ts: Timestamp::from_u64(obstacle.start_ts),
            owner: obstacle.owner.map(TxnOwner::from),
            since: Duration::from_millis(obstacle.since_ms),
        }
    }
}

impl From<v1::GcServer> for GcServer {
    fn from(server: v1::GcServer) -> Self {
        let tablet = |tablet: v1::GcTablet| GcTablet {
            tablet: tablet.tablet_id,
            waiting: tablet.waiting,
            collected: tablet.records,
            bytes: tablet.bytes,
        };
        // There is none of a server that has sent no heartbeat since the master's start.
        let progress = server.progress;
        Self {
            server: server.server,
            barrier: Timestamp::from_u64(server.barrier),
            safe_point: Timestamp::from_u64(server.safe_point),
            collected: server.collected,
            collected_per_second: server.collected_per_second,
            oldest: progress
                .as_ref()
                .map_or(Timestamp::ZERO, |it| Timestamp::from_u64(it.oldest)),
            tablets: progress.map_or_else(Vec::new, |progress| {
                progress.tablets.into_iter().map(tablet).collect()
            }),
        }
    }
}

impl From<GcChange> for v1::SetGcRequest {
    fn from(change: GcChange) -> Self {
        Self {
            retention_ms: change.retention.map(millis),
            paused: change.paused,
            hold_ms_max: change.hold_max.map(millis),
        }
    }
}

impl From<v1::SetGcResponse> for GcSettings {
    fn from(settings: v1::SetGcResponse) -> Self {
        Self {
            retention: Duration::from_millis(settings.retention_ms),
            hold_max: settings.hold_ms_max.map(Duration::from_millis),
            paused: settings.paused,
        }
    }
}

impl From<ProxyIntroduction> for v1::IntroduceProxyRequest {
    fn from(introduction: ProxyIntroduction) -> Self {
        Self {
            server: introduction.server,
            address: introduction.address,
            metrics_address: introduction.metrics_address,
            leaving: introduction.leaving,
        }
    }
}

impl TryFrom<v1::TransactionsResponse> for GcLockPage {
    type Error = Malformed;

    fn try_from(response: v1::TransactionsResponse) -> Result<Self, Malformed> {
        Ok(Self {
            gc_locks: collect(response.gc_locks)?,
            more: response.more,
            unnamed: response.unnamed,
        })
    }
}

impl TryFrom<v1::GcLock> for GcLock {
    type Error = Malformed;

    fn try_from(gc_lock: v1::GcLock) -> Result<Self, Malformed> {
        let owner = gc_lock
            .owner
            .ok_or(Malformed("a gc-lock without an owner"))?;
        Ok(Self {
            start_ts: Timestamp::from_u64(gc_lock.start_ts),
            owner: owner.into(),
            lease: Duration::from_millis(gc_lock.lease_ms.into()),
        })
    }
}

impl From<MasterRebuild> for v1::RebuildRequest {
    fn from(rebuild: MasterRebuild) -> Self {
        Self {
            tablet_servers: rebuild.tablet_servers,
            write: rebuild.write,
            accept_data_loss: rebuild.accept_data_loss,
        }
    }
}

impl TryFrom<v1::RebuildResponse> for RebuiltMaster {
    type Error = Malformed;

    fn try_from(response: v1::RebuildResponse) -> Result<Self, Malformed> {
        let gc = response.gc.ok_or(Malformed("a state without settings"))?;
        Ok(Self {
            cluster_id: response.cluster_id,
            servers: collect(response.servers)?,
            tables: collect(response.tables)?,
            barrier: Timestamp::from_u64(response.barrier),
            safe_point: Timestamp::from_u64(response.safe_point),
            resolved: Timestamp::from_u64(response.resolved_ts),
            retention: gc.retention_ms.map(Duration::from_millis),
            hold_max: gc.hold_ms_max.map(Duration::from_millis),
            paused: gc.paused,
            next_table_id: response.next_table_id,
            problems: response.problems,
            losses: response.losses,
            written: response.written,
        })
    }
}

impl TryFrom<v1::RebuiltServer> for RebuiltServer {
    type Error = Malformed;

    fn try_from(server: v1::RebuiltServer) -> Result<Self, Malformed> {
        Ok(Self {
            is_oracle: ServerRole::try_from(server.role())? == ServerRole::Oracle,
            name: server.server,
            address: server.address,
            tablets: server.tablets,
        })
    }
}

impl TryFrom<v1::RebuiltTable> for RebuiltTable {
    type Error = Malformed;

    fn try_from(rebuilt: v1::RebuiltTable) -> Result<Self, Malformed> {
        let table = rebuilt.table.ok_or(Malformed("a table without a name"))?;
        let table = KnownTable::try_from(table)?;
        Ok(Self {
            id: table.id.0,
            name: table.name,
            deleting: table.deleting,
            tablets: rebuilt.tablets,
            gaps: rebuilt.gaps,
        })
    }
}

impl From<StoredPart> for v1::VerifyPart {
    fn from(part: StoredPart) -> Self {
        match part {
            StoredPart::Records => Self::Records,
            StoredPart::Values => Self::Values,
            StoredPart::Index => Self::Index,
        }
    }
}

/// The page of the server of this name.
pub(crate) fn verified_page(
    server: &str,
    response: v1::VerifyResponse,
) -> Result<VerifiedPage, Malformed> {
    let tablet = |it: v1::VerifiedTablet| VerifiedTablet {
        tablet: it.tablet_id,
        seen: it.seen,
        waiting: it.waiting,
        wrong: it.wrong,
    };
    let finding = |it: v1::VerifyFinding| {
        Ok(Finding {
            server: server.to_owned(),
            tablet: it.tablet_id,
            cell: it.cell.ok_or(Malformed("a finding without a cell"))?.into(),
            ts: Timestamp::from_u64(it.ts),
            what: it.what,
        })
    };
    Ok(VerifiedPage {
        tablets: response.tablets.into_iter().map(tablet).collect(),
        findings: response
            .findings
            .into_iter()
            .map(finding)
            .collect::<Result<_, _>>()?,
        resume: response.resume,
    })
}
