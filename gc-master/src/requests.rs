//! What clients and people ask of the master, as messages: each is put to the directory, and its answer is a message again. The service and
//! the simulator's master both go through here.

use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::convert::{millis, millis_u32, places, role, server, table_info, tablet_place};
use crate::core::Directory;
use crate::cuts::{Merging, Splitting};
use crate::events::Deletion;
use crate::moves::Moving;
use crate::pending::{Creation, Pending, Removal};
use crate::proxies::ProxyIntroduction;
use crate::rebuilt::RebuildCommand;
use crate::refusal::Refusal;
use crate::sessions::Renewal;
use crate::settings::Change;

/// A request that is gone on with until it is done.
pub trait Awaited<R>: FnMut(&mut Directory, Duration) -> Result<Pending<R>, Refusal> {}

impl<R, F> Awaited<R> for F where F: FnMut(&mut Directory, Duration) -> Result<Pending<R>, Refusal> {}

/// Makes a table. The errors are those of [`Creation::go_on`].
pub fn create_table(request: v1::CreateTableRequest) -> impl Awaited<v1::CreateTableResponse> {
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
pub fn delete_table(request: v1::DeleteTableRequest) -> impl Awaited<v1::DeleteTableResponse> {
    let mut removal = Removal::new(&Deletion {
        name: &request.name,
        table: Some(request.table_id).filter(|id| *id != 0),
        give_up_lost: request.give_up_lost,
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
pub fn split_table(request: v1::SplitTableRequest) -> impl Awaited<v1::SplitTableResponse> {
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
pub fn merge_table(request: v1::MergeTableRequest) -> impl Awaited<v1::MergeTableResponse> {
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
pub(crate) fn transactions(
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
pub(crate) fn release_gc_lock(
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
pub(crate) fn introduce_proxy(
    directory: &mut Directory,
    now: Duration,
    request: v1::IntroduceProxyRequest,
) -> Result<v1::IntroduceProxyResponse, Refusal> {
    let introduction = ProxyIntroduction {
        server: request.server,
        address: request.address,
        metrics_address: request.metrics_address,
        is_leaving: request.leaving,
    };
    directory.introduce_proxy(now, introduction)?;
    Ok(v1::IntroduceProxyResponse {})
}

/// Rebuilds a lost state, or says what it would have.
///
/// # Errors
/// Those of [`Directory::rebuild`].
pub(crate) fn rebuild(
    directory: &mut Directory,
    now: Duration,
    request: v1::RebuildRequest,
) -> Result<v1::RebuildResponse, Refusal> {
    let command = RebuildCommand {
        tablet_servers: request.tablet_servers,
        write: request.write,
        give_up_lost: request.give_up_lost,
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

/// Changes settings of garbage collection, as somebody asks for it: those that count then.
///
/// # Errors
/// Those of [`Directory::set_collection`].
pub fn set_gc(
    directory: &mut Directory,
    request: &v1::SetGcRequest,
) -> Result<v1::SetGcResponse, Refusal> {
    directory.set_collection(Change {
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

/// Drains tablet servers, or ends that, as somebody asks for it.
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
        // The operator tells it from other refusals.
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
