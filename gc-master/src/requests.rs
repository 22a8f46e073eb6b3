//! The master's requests, as messages: how each is carried out on a served directory. The service and the simulator's master both
//! call these methods.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::convert::{self, millis, millis_u32, places, role, server, table_info, tablet_place};
use crate::core::Directory;
use crate::cuts::{Merging, Splitting};
use crate::events::{Deletion, Heartbeat};
use crate::locate::locate;
use crate::moves::Moving;
use crate::pending::{Creation, Pending, Removal};
use crate::proxies::ProxyReport;
use crate::rebuild_command::RebuildCommand;
use crate::refusal::Refusal;
use crate::runner::{RequestError, Runner, RunnerHost};
use crate::sessions::Renewal;
use crate::settings::SettingsChange;

/// The most transactions that one response names.
const NAMED_MAX: usize = 10_000;

/// One method a request. Each returns when what its response shows is durable. The errors of all are [`RequestError`]s.
impl<H: RunnerHost> Runner<H> {
    /// A server's heartbeat.
    pub async fn heartbeat(
        self: Arc<Self>,
        request: v1::HeartbeatRequest,
    ) -> Result<v1::HeartbeatResponse, RequestError> {
        let beat = Heartbeat::try_from(request)?;
        let accepted = self.step(|directory, now| directory.heartbeat(now, beat));
        Ok(accepted.await??.into())
    }

    /// Returns the tablets of rows and their owners' addresses.
    pub async fn locate(
        self: Arc<Self>,
        request: v1::LocateRequest,
    ) -> Result<v1::LocateResponse, RequestError> {
        Ok(self
            .read(|directory, _| locate(directory, &request))
            .await??)
    }

    /// Returns all servers, tables and tablets, or the oracles alone.
    pub async fn directory(
        self: Arc<Self>,
        request: v1::DirectoryRequest,
    ) -> Result<v1::DirectoryResponse, RequestError> {
        if request.oracles_only {
            return Ok(self.read(convert::oracles).await??);
        }
        Ok(v1::DirectoryResponse {
            master_term: self.term(),
            ..self.read(convert::directory).await??
        })
    }

    /// Renews a client's lease.
    pub async fn session(
        self: Arc<Self>,
        request: v1::SessionRequest,
    ) -> Result<v1::SessionResponse, RequestError> {
        Ok(self
            .step(|directory, now| session(directory, now, request))
            .await??)
    }

    /// Returns how far garbage collection is.
    pub async fn gc_status(
        self: Arc<Self>,
        _: v1::GcStatusRequest,
    ) -> Result<v1::GcStatusResponse, RequestError> {
        Ok(self.read(convert::gc_status).await??)
    }

    /// Changes settings of garbage collection, and returns those in effect.
    pub async fn set_gc(
        self: Arc<Self>,
        request: v1::SetGcRequest,
    ) -> Result<v1::SetGcResponse, RequestError> {
        Ok(self
            .step(|directory, _| set_gc(directory, &request))
            .await??)
    }

    /// Registers a proxy, or removes one that ends.
    pub async fn introduce_proxy(
        self: Arc<Self>,
        request: v1::IntroduceProxyRequest,
    ) -> Result<v1::IntroduceProxyResponse, RequestError> {
        Ok(self
            .step(|directory, now| introduce_proxy(directory, now, request))
            .await??)
    }

    /// Rebuilds a lost state, or returns what it would hold.
    pub async fn rebuild(
        self: Arc<Self>,
        request: v1::RebuildRequest,
    ) -> Result<v1::RebuildResponse, RequestError> {
        Ok(self
            .step(|directory, now| rebuild(directory, now, request))
            .await??)
    }

    /// Returns the oldest transactions that clients have named.
    pub async fn transactions(
        self: Arc<Self>,
        request: v1::TransactionsRequest,
    ) -> Result<v1::TransactionsResponse, RequestError> {
        let most = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let most = most.min(NAMED_MAX);
        Ok(self
            .read(|directory, now| transactions(directory, now, most))
            .await??)
    }

    /// Releases the gc-locks of a transaction by hand.
    pub async fn release_gc_lock(
        self: Arc<Self>,
        request: v1::ReleaseGcLockRequest,
    ) -> Result<v1::ReleaseGcLockResponse, RequestError> {
        Ok(self
            .step(|directory, now| release_gc_lock(directory, now, &request))
            .await??)
    }

    /// Drains tablet servers, or ends that.
    pub async fn drain_servers(
        self: Arc<Self>,
        request: v1::DrainServersRequest,
    ) -> Result<v1::DrainServersResponse, RequestError> {
        Ok(self
            .step(|directory, now| drain_servers(directory, now, &request))
            .await??)
    }

    /// Makes a table.
    pub async fn create_table(
        self: Arc<Self>,
        request: v1::CreateTableRequest,
    ) -> Result<v1::CreateTableResponse, RequestError> {
        self.finish(create_table(request)).await
    }

    /// Deletes a table.
    pub async fn delete_table(
        self: Arc<Self>,
        request: v1::DeleteTableRequest,
    ) -> Result<v1::DeleteTableResponse, RequestError> {
        self.finish(delete_table(request)).await
    }

    /// Splits tablets of a table.
    pub async fn split_table(
        self: Arc<Self>,
        request: v1::SplitTableRequest,
    ) -> Result<v1::SplitTableResponse, RequestError> {
        self.finish(split_table(request)).await
    }

    /// Merges two tablets.
    pub async fn merge_table(
        self: Arc<Self>,
        request: v1::MergeTableRequest,
    ) -> Result<v1::MergeTableResponse, RequestError> {
        self.finish(merge_table(request)).await
    }

    /// Moves a tablet.
    pub async fn move_tablet(
        self: Arc<Self>,
        request: v1::MoveTabletRequest,
    ) -> Result<v1::MoveTabletResponse, RequestError> {
        self.finish(move_tablet(request)).await
    }
}

/// A request that takes several steps: each call takes the next one.
pub trait Awaited<R>: FnMut(&mut Directory, Duration) -> Result<Pending<R>, Refusal> {}

impl<R, F> Awaited<R> for F where F: FnMut(&mut Directory, Duration) -> Result<Pending<R>, Refusal> {}

/// Makes a table. The errors are those of [`Creation::go_on`].
fn create_table(request: v1::CreateTableRequest) -> impl Awaited<v1::CreateTableResponse> {
    let mut creation = Creation::new(request.name, rows(request.split_at));
    move |directory: &mut Directory, now| {
        let created = creation.go_on(directory, now)?;
        created.try_map(|id| {
            let table = directory.table(id);
            Ok(v1::CreateTableResponse {
                table: table.map(|table| table_info(id, table)),
                tablets: places(directory, now, id)?,
            })
        })
    }
}

/// Deletes a table. The errors are those of [`Removal::go_on`].
fn delete_table(request: v1::DeleteTableRequest) -> impl Awaited<v1::DeleteTableResponse> {
    let mut removal = Removal::new(&Deletion {
        name: &request.name,
        table: Some(request.table_id).filter(|id| *id != 0),
        accept_data_loss: request.accept_data_loss,
    });
    move |directory: &mut Directory, now| {
        let removed = removal.go_on(directory, now)?;
        removed.try_map(|id| {
            Ok(v1::DeleteTableResponse {
                table: Some(v1::TableInfo {
                    id,
                    name: request.name.clone(),
                    state: v1::TableState::Deleting.into(),
                }),
            })
        })
    }
}

/// Cuts a table. The errors are those of [`Splitting::go_on`].
fn split_table(request: v1::SplitTableRequest) -> impl Awaited<v1::SplitTableResponse> {
    let mut splitting = Splitting::new(request.table, rows(request.rows));
    move |directory: &mut Directory, now| {
        let split = splitting.go_on(directory, now)?;
        split.try_map(|table| {
            let tablets = places(directory, now, table)?;
            Ok(v1::SplitTableResponse { tablets })
        })
    }
}

/// Makes one of two tablets. The errors are those of [`Merging::go_on`].
fn merge_table(request: v1::MergeTableRequest) -> impl Awaited<v1::MergeTableResponse> {
    let mut merging = Merging::new(request.table, request.row);
    move |directory: &mut Directory, now| {
        let merged = merging.go_on(directory, now)?;
        merged.try_map(|table| {
            let tablets = places(directory, now, table)?;
            Ok(v1::MergeTableResponse { tablets })
        })
    }
}

/// Moves a tablet. The errors are those of [`Moving::go_on`].
pub fn move_tablet(request: v1::MoveTabletRequest) -> impl Awaited<v1::MoveTabletResponse> {
    let id = request.tablet_id;
    let mut moving = Moving::new(id, request.server);
    move |directory: &mut Directory, now| {
        let moved = moving.go_on(directory, now)?;
        moved.try_map(|()| {
            let tablet = directory.tablets().get(id);
            let tablet = tablet.ok_or(Refusal::NoSuchTablet { tablet: id })?;
            Ok(v1::MoveTabletResponse {
                tablet: Some(tablet_place(directory, id, tablet)?),
            })
        })
    }
}

fn rows(rows: Vec<Bytes>) -> Vec<Vec<u8>> {
    rows.into_iter().map(Vec::from).collect()
}

/// Renews a client's lease.
///
/// # Errors
/// Those of [`Directory::session`].
pub fn session(
    directory: &mut Directory,
    now: Duration,
    request: v1::SessionRequest,
) -> Result<v1::SessionResponse, Refusal> {
    let transactions = request.transactions.into_iter();
    let renewal = Renewal {
        session: request.session,
        owner: request.owner.unwrap_or_default().into(),
        floor: Timestamp::from_u64(request.floor),
        transactions: transactions.map(Timestamp::from_u64).collect(),
        unnamed: request.unnamed,
    };
    let renewed = directory.session(now, renewal)?;
    Ok(v1::SessionResponse {
        lease_ms: millis_u32(renewed.lease),
        barrier: renewed.barrier.as_u64(),
        cluster_id: renewed.cluster_id,
    })
}

/// The transactions that clients have named, at most so many.
///
/// # Errors
/// Those of [`Directory::transactions`].
fn transactions(
    directory: &Directory,
    now: Duration,
    most: usize,
) -> Result<v1::TransactionsResponse, Refusal> {
    let gc_locks = directory.transactions(now, most)?;
    let oldest = gc_locks.oldest.into_iter().map(|it| v1::GcLock {
        start_ts: it.start_ts.as_u64(),
        session: it.session,
        owner: Some(it.owner.into()),
        lease_ms: millis_u32(it.lease),
    });
    Ok(v1::TransactionsResponse {
        gc_locks: oldest.collect(),
        more: gc_locks.more,
        unnamed: gc_locks.unnamed,
    })
}

/// Ends gc-locks by hand.
///
/// # Errors
/// Those of [`Directory::release`].
fn release_gc_lock(
    directory: &mut Directory,
    now: Duration,
    request: &v1::ReleaseGcLockRequest,
) -> Result<v1::ReleaseGcLockResponse, Refusal> {
    let owners = directory.release(now, Timestamp::from_u64(request.start_ts))?;
    Ok(v1::ReleaseGcLockResponse {
        owners: owners.into_iter().map(v1::Owner::from).collect(),
    })
}

/// A proxy introduces itself, or ends.
///
/// # Errors
/// Those of [`Directory::introduce_proxy`].
fn introduce_proxy(
    directory: &mut Directory,
    now: Duration,
    request: v1::IntroduceProxyRequest,
) -> Result<v1::IntroduceProxyResponse, Refusal> {
    let introduction = ProxyReport {
        server: request.server,
        address: request.address,
        metrics_address: request.metrics_address,
        is_leaving: request.leaving,
    };
    directory.introduce_proxy(now, introduction)?;
    Ok(v1::IntroduceProxyResponse {})
}

/// Rebuilds a lost state, or returns what it would hold.
///
/// # Errors
/// Those of [`Directory::rebuild`].
fn rebuild(
    directory: &mut Directory,
    now: Duration,
    request: v1::RebuildRequest,
) -> Result<v1::RebuildResponse, Refusal> {
    let command = RebuildCommand {
        tablet_servers: request.tablet_servers,
        write: request.write,
        accept_data_loss: request.accept_data_loss,
    };
    let rebuilt = directory.rebuild(now, &command)?;
    let servers = rebuilt.servers.into_iter().map(|it| v1::RebuiltServer {
        server: it.server,
        role: role(it.role).into(),
        address: it.address,
        tablets: it.tablets as u64,
    });
    let tables = rebuilt.tables.iter().map(|it| v1::RebuiltTable {
        table: Some(table_info(it.id, &it.table)),
        tablets: it.tablets as u64,
        gaps: it.gaps,
    });
    Ok(v1::RebuildResponse {
        cluster_id: rebuilt.cluster_id,
        servers: servers.collect(),
        tables: tables.collect(),
        barrier: rebuilt.points.barrier.as_u64(),
        safe_point: rebuilt.points.safe_point.as_u64(),
        resolved_ts: rebuilt.points.resolved.as_u64(),
        gc: Some(rebuilt.settings.into()),
        next_table_id: rebuilt.next_table_id,
        problems: rebuilt.problems,
        losses: rebuilt.losses,
        written: rebuilt.written,
    })
}

/// Changes settings of garbage collection, and returns those in effect.
///
/// # Errors
/// Those of [`Directory::set_collection`].
fn set_gc(
    directory: &mut Directory,
    request: &v1::SetGcRequest,
) -> Result<v1::SetGcResponse, Refusal> {
    directory.set_collection(SettingsChange {
        retention: request.retention_ms.map(Duration::from_millis),
        hold_max: request.hold_ms_max.map(Duration::from_millis),
        paused: request.paused,
    })?;
    Ok(v1::SetGcResponse {
        retention_ms: millis(directory.retention()),
        paused: directory.paused(),
        hold_ms_max: directory.hold_max().map(millis),
    })
}

/// Drains tablet servers, or ends that.
///
/// # Errors
/// Those of [`Directory::drain_servers`].
pub fn drain_servers(
    directory: &mut Directory,
    now: Duration,
    request: &v1::DrainServersRequest,
) -> Result<v1::DrainServersResponse, Refusal> {
    match directory.drain_servers(now, &request.servers, request.drain) {
        Ok(()) => {}
        // The operator distinguishes it from other refusals.
        Err(refusal @ Refusal::NoRoomToDrain { .. }) => {
            return Ok(v1::DrainServersResponse {
                servers: Vec::new(),
                no_room: refusal.to_string(),
            });
        }
        Err(refusal) => return Err(refusal),
    }
    let servers = request.servers.iter();
    let servers = servers.map(|name| server(directory, now, name));
    Ok(v1::DrainServersResponse {
        servers: servers.collect::<Result<_, _>>()?,
        no_room: String::new(),
    })
}
