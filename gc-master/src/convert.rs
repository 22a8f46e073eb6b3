//! Between the messages and the directory's own types.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::{TableId, Tablet, Timestamp};
use percolator_wire::{Malformed, v1};
use tonic::{Code, Status};

use crate::core::Directory;
use crate::events::{Departed, Heartbeat, HeartbeatAnswer};
use crate::held::Hold;
use crate::proxies::ListedProxy;
use crate::refusal::Refusal;
use crate::reported::{Amount, Arrival, Collected, Obstacle, TabletCollected, Whereabouts};
use crate::sessions::Owner;
use crate::settings::StoredSettings;
use crate::state::{DirectoryState, Drain, Placement, Role, Table, TableState};

impl TryFrom<v1::HeartbeatRequest> for Heartbeat {
    type Error = Refusal;

    fn try_from(request: v1::HeartbeatRequest) -> Result<Self, Refusal> {
        let role = match request.role() {
            v1::Role::Oracle => Role::Oracle,
            v1::Role::Tablet => Role::Tablet,
            v1::Role::Unspecified => {
                return Err(Refusal::Heartbeat {
                    server: request.server,
                    wrong: format!("its role {} is not known", request.role),
                });
            }
        };
        let metrics_address = match &*request.metrics_address {
            "" => None,
            address => Some(address.parse().map_err(|_| Refusal::Heartbeat {
                server: request.server.clone(),
                wrong: format!("its address of metrics {address:?} is no IP:PORT"),
            })?),
        };
        let points = (&request).into();
        let tablets = request.tablets.into_iter().map(Tablet::try_from);
        let tablets = tablets.collect::<Result<_, _>>();
        let tablets = tablets.map_err(|malformed| Refusal::Heartbeat {
            server: request.server.clone(),
            wrong: malformed.to_string(),
        })?;
        let departed = request.departed.into_iter().map(|departed| {
            Ok(Departed {
                tablet: departed.tablet.unwrap_or_default().try_into()?,
                to: departed.server,
            })
        });
        let departed = departed.collect::<Result<_, Malformed>>();
        let departed = departed.map_err(|malformed| Refusal::Heartbeat {
            server: request.server.clone(),
            wrong: malformed.to_string(),
        })?;
        Ok(Self {
            cluster_id: Some(request.cluster_id).filter(|id| !id.is_empty()),
            role,
            server: request.server,
            address: request.address,
            incarnation: request.incarnation,
            tablets,
            deleted_tables: request.deleted_tables.into_iter().collect(),
            highest_tablet_id: request.highest_tablet_id,
            departed,
            arriving: request.arriving.into_iter().map(Arrival::from).collect(),
            points,
            resolved_ts: Timestamp::from_u64(request.resolved_ts),
            obstacle: request.obstacle.map(Obstacle::from),
            progress: request.progress.map(Collected::from),
            sizes: request.sizes.map(|it| amounts_of_sizes(it.tablets)),
            loads: request.loads.map(|it| amounts_of_loads(it.tablets)),
            draining: request.draining,
            stopping: request.stopping,
            settings: request.gc.unwrap_or_default().into(),
            accepted: request.accepted,
            replaces: request.replaces,
            replaces_accepted: request.replaces_accepted,
            leaving: request.leaving,
            failure: request.failure,
            high_ts: Timestamp::from_u64(request.high_ts),
            groups: request.groups,
            groups_found: request.groups_found.unwrap_or(request.groups),
            time: Timestamp::from_u64(request.time),
            disk_stalled_ms: request.disk_stalled_ms,
            free_bytes: request.free_bytes,
            metrics_address,
            lists_version: request.lists_version,
            has_lists: !request.without_lists,
            oracle_register: request.oracle_register,
            leads_term: request.leads_term,
            takeover_ms: request.takeover_ms,
        })
    }
}

impl From<HeartbeatAnswer> for v1::HeartbeatResponse {
    fn from(heard: HeartbeatAnswer) -> Self {
        Self {
            cluster_id: heard.cluster_id,
            interval_ms: millis_u32(heard.interval),
            lists_version: heard.lists_version,
            barrier: heard.points.barrier.as_u64(),
            safe_point: heard.points.safe_point.as_u64(),
            resolved_ts: heard.points.resolved.as_u64(),
            gc: Some(heard.settings.into()),
            missing_tablets: heard.missing,
            settled_moves: heard.settled_moves,
            owners: heard.owners.into_iter().map(v1::MovedTo::from).collect(),
            settled_arrivals: heard.settled_arrivals.into_iter().map(tablet_ref).collect(),
            split_bytes: heard.split_bytes,
            split_load: heard.split_load,
            draining: heard.draining,
            may_stop: heard.may_stop,
            lease: heard.leased.until.as_u64(),
            commits_above: heard.leased.commits_above.as_u64(),
            timestamps_above: heard.leased.timestamps_above.as_u64(),
            lease_ms: millis_u32(heard.leased.lasts),
        }
    }
}

impl From<v1::GcSettings> for StoredSettings {
    fn from(settings: v1::GcSettings) -> Self {
        Self {
            revision: settings.revision,
            retention_ms: settings.retention_ms,
            hold_ms_max: settings.hold_ms_max,
            paused: settings.paused,
        }
    }
}

impl From<StoredSettings> for v1::GcSettings {
    fn from(kept: StoredSettings) -> Self {
        Self {
            revision: kept.revision,
            retention_ms: kept.retention_ms,
            hold_ms_max: kept.hold_ms_max,
            paused: kept.paused,
        }
    }
}

impl From<v1::TabletArrival> for Arrival {
    fn from(arrival: v1::TabletArrival) -> Self {
        Self {
            tablet: arrival.tablet_id,
            epoch: arrival.epoch,
            bytes: arrival.bytes,
            is_complete: arrival.complete,
            failure: Some(arrival.failure).filter(|why| !why.is_empty()),
            from: arrival.from,
            table: TableId(arrival.table_id),
            start_row: arrival.start_row,
        }
    }
}

impl From<v1::LockObstacle> for Obstacle {
    fn from(obstacle: v1::LockObstacle) -> Self {
        Self {
            what: obstacle.what,
            start_ts: Timestamp::from_u64(obstacle.start_ts),
            since: Duration::from_millis(obstacle.since_ms),
        }
    }
}

impl From<v1::GcProgress> for Collected {
    fn from(progress: v1::GcProgress) -> Self {
        let tablets = progress.tablets.into_iter().map(|it| TabletCollected {
            tablet: it.tablet_id,
            waiting: it.waiting,
            records: it.records,
            bytes: it.bytes,
        });
        Self {
            oldest: Timestamp::from_u64(progress.oldest),
            tablets: tablets.collect(),
        }
    }
}

impl From<&Collected> for v1::GcProgress {
    fn from(collected: &Collected) -> Self {
        let tablets = collected.tablets.iter().map(|it| v1::GcTablet {
            tablet_id: it.tablet,
            waiting: it.waiting,
            records: it.records,
            bytes: it.bytes,
        });
        Self {
            oldest: collected.oldest.as_u64(),
            tablets: tablets.collect(),
        }
    }
}

fn amounts_of_sizes(sizes: Vec<v1::TabletSize>) -> Vec<Amount> {
    let sizes = sizes.into_iter();
    sizes
        .map(|it| amount(it.tablet_id, it.bytes, it.split_at))
        .collect()
}

fn amounts_of_loads(loads: Vec<v1::TabletLoad>) -> Vec<Amount> {
    let loads = loads.into_iter();
    loads
        .map(|it| amount(it.tablet_id, it.cells, it.split_at))
        .collect()
}

fn amount(tablet: u64, amount: u64, split_at: Bytes) -> Amount {
    Amount {
        tablet,
        amount,
        split_at: Some(split_at).filter(|row| !row.is_empty()),
    }
}

impl From<Whereabouts> for v1::MovedTo {
    fn from(place: Whereabouts) -> Self {
        Self {
            server: Some(v1::Addressee {
                server: place.server,
                incarnation: place.incarnation,
            }),
            address: place.address,
        }
    }
}

impl From<Owner> for v1::Owner {
    fn from(owner: Owner) -> Self {
        Self {
            host: owner.host,
            process: owner.process,
            application: owner.application,
            label: owner.label,
        }
    }
}

/// A tablet by its id and its epoch.
pub(crate) fn tablet_ref((id, epoch): (u64, u64)) -> v1::TabletRef {
    v1::TabletRef { id, epoch }
}

/// Milliseconds, as messages have them.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The same, of what is shorter than a month.
pub(crate) fn millis_u32(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

pub(crate) fn role(role: Role) -> v1::Role {
    match role {
        Role::Oracle => v1::Role::Oracle,
        Role::Tablet => v1::Role::Tablet,
    }
}

fn proxy_info(proxy: ListedProxy<'_>) -> v1::ProxyInfo {
    v1::ProxyInfo {
        server: proxy.server.to_owned(),
        address: proxy.address.to_owned(),
        metrics_address: text(proxy.metrics_address),
        alive: proxy.is_alive,
        silent_ms: millis(proxy.silent),
        known_ms: millis(proxy.known),
    }
}

/// The oracles alone.
///
/// # Errors
/// [`Refusal::NoState`].
pub(crate) fn oracles(
    directory: &Directory,
    now: Duration,
) -> Result<v1::DirectoryResponse, Refusal> {
    let state = directory.state()?;
    let oracles = state.servers.oracles();
    Ok(v1::DirectoryResponse {
        cluster_id: state.cluster_id.clone(),
        servers: oracles
            .map(|(name, server)| server_info(directory, now, name, server))
            .collect(),
        ..v1::DirectoryResponse::default()
    })
}

/// Everything, sorted: servers by role and name, tables by id, tablets by table and first row.
///
/// # Errors
/// [`Refusal::NoState`].
pub fn directory(directory: &Directory, now: Duration) -> Result<v1::DirectoryResponse, Refusal> {
    let state = directory.state()?;
    let mut servers: Vec<_> = state.servers.iter().collect();
    servers.sort_by_key(|(name, server)| (server.role, *name));
    let tables = state.tables.keys();
    let tablets = tables.flat_map(|table| directory.tablets().of_table(*table));
    let arrivals = directory.arrivals(now);
    Ok(v1::DirectoryResponse {
        cluster_id: state.cluster_id.clone(),
        servers: servers
            .into_iter()
            .map(|(name, server)| server_info(directory, now, name, server))
            .collect(),
        tables: state
            .tables
            .iter()
            .map(|(id, table)| table_info(*id, table))
            .collect(),
        tablets: tablets
            .map(|(id, tablet)| {
                // For people: the server that its rows wait for.
                let holder = directory.holder(id, tablet);
                place(directory, &arrivals, (id, tablet), holder)
            })
            .collect(),
        complete_below: state.next_table_id,
        tablet_servers_expected: directory.manifest.tablet_servers.unwrap_or(0),
        // The process' own, not the directory's.
        master: String::new(),
        master_metrics_address: String::new(),
        master_term: 0,
        standby_masters: Vec::new(),
        proxies: directory.proxies.list(now).map(proxy_info).collect(),
        master_takeover_ms: None,
        masters_expected: directory.manifest.masters_expected(),
        oracles_expected: directory.manifest.oracles_expected(),
    })
}

/// A server, as people see it.
///
/// # Errors
/// [`Refusal::NoState`], [`Refusal::NoSuchServer`].
pub fn server(directory: &Directory, now: Duration, name: &str) -> Result<v1::ServerInfo, Refusal> {
    directory.check_tablet_server(name)?;
    let server = &directory.state()?.servers[name];
    Ok(server_info(directory, now, name, server))
}

fn server_info(
    directory: &Directory,
    now: Duration,
    name: &str,
    server: &crate::state::Server,
) -> v1::ServerInfo {
    let failed = directory.failed(name);
    let mut lost = directory.lost_tablets(name);
    lost.extend(directory.lost_in_deletion(name));
    lost.sort_unstable();
    v1::ServerInfo {
        role: role(server.role).into(),
        server: name.to_owned(),
        address: server.address.clone(),
        alive: directory.is_alive(name, now),
        incarnation: directory.incarnation(name),
        silent_ms: directory.silence(name, now).map(millis),
        lost_tablets: lost,
        disk_stalled_ms: directory.disk_stalled_ms(name),
        metrics_address: text(directory.metrics_address(name)),
        failure: failed.map_or_else(String::new, |failed| failed.why.clone()),
        failed_ms_ago: failed.map_or(0, |failed| millis(now.saturating_sub(failed.at))),
        failures: failed.map_or(0, |failed| failed.times),
        leads_term: directory.leads_term(name),
        takeover_ms: directory.takeover_ms(name),
        stopping: directory.is_stopping(name, now),
        draining: server.drain != Drain::Off,
        drained: server.drain == Drain::Drained,
        tablets: directory.tablets_at(name),
        bytes: directory.bytes_of(name),
        load: directory.load_of(name),
        without_room: directory.is_without_room(name),
    }
}

/// Empty: there's none.
pub(crate) fn text(address: Option<SocketAddr>) -> String {
    address
        .map(|address| address.to_string())
        .unwrap_or_default()
}

/// A table's tablets, in the order of their rows.
pub(crate) fn places(
    directory: &Directory,
    now: Duration,
    table: u32,
) -> Result<Vec<v1::TabletPlace>, Refusal> {
    directory.state()?;
    let tablets = directory.tablets().of_table(table);
    let arrivals = directory.arrivals(now);
    Ok(tablets
        .map(|(id, tablet)| place(directory, &arrivals, (id, tablet), &tablet.owner))
        .collect())
}

/// A tablet.
pub(crate) fn tablet_place(
    directory: &Directory,
    id: u64,
    tablet: &Placement,
) -> Result<v1::TabletPlace, Refusal> {
    directory.state()?;
    // Where it is asked for.
    let place = place(directory, &BTreeMap::new(), (id, tablet), &tablet.owner);
    Ok(place)
}

/// A table, as clients see it.
pub(crate) fn table_info(id: u32, table: &Table) -> v1::TableInfo {
    let state = match table.state {
        TableState::Creating => v1::TableState::Creating,
        TableState::Ready => v1::TableState::Ready,
        TableState::Deleting => v1::TableState::Deleting,
    };
    v1::TableInfo {
        id,
        name: table.name.clone(),
        state: state.into(),
    }
}

fn place(
    directory: &Directory,
    arrivals: &BTreeMap<u64, (&str, &Arrival)>,
    (id, tablet): (u64, &Placement),
    server: &str,
) -> v1::TabletPlace {
    let arrival = arrivals.get(&id);
    let arrival = arrival.filter(|(to, _)| *to != server);
    v1::TabletPlace {
        tablet: directory
            .state
            .as_ref()
            .map(|state| tablet_info(state, id, tablet)),
        server: server.to_owned(),
        moving_to: arrival.map_or_else(String::new, |(to, _)| (*to).to_owned()),
        moved_bytes: arrival.map_or(0, |(_, arrival)| arrival.bytes),
        bytes: directory.tablet_bytes(&tablet.owner, id),
        load: directory.tablet_load(&tablet.owner, id),
    }
}

/// A tablet, as clients see it.
pub(crate) fn tablet_info(state: &DirectoryState, id: u64, tablet: &Placement) -> v1::TabletInfo {
    let table_name = state.tables.get(&tablet.table).map(|table| &table.name);
    let tablet = Tablet {
        id,
        table: TableId(tablet.table),
        table_name: table_name.cloned().unwrap_or_default(),
        rows: tablet.rows.clone(),
        epoch: tablet.epoch,
        state: tablet.state,
    };
    tablet.into()
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            // A server stops when it hears FAILED_PRECONDITION to its heartbeat: so that is kept
            // for what does not change by itself.
            Refusal::OtherCluster { .. }
            | Refusal::SecondOracle { .. }
            | Refusal::ForgetfulOracle { .. }
            | Refusal::OtherRegister { .. }
            | Refusal::OtherRole { .. }
            | Refusal::OfManifest { .. }
            // Not ALREADY_EXISTS: anyone who asks again takes that for the outcome of asking first.
            | Refusal::OtherCuts { .. }
            | Refusal::HasState { .. }
            | Refusal::NowhereToDrain { .. }
            | Refusal::NoRoomToDrain { .. }
            | Refusal::Draining { .. }
            | Refusal::NoRoom { .. }
            | Refusal::Duplicate { .. }
            | Refusal::Replaced { .. }
            | Refusal::OlderFolder { .. } => Code::FailedPrecondition,
            // A server asks again until a person has done something.
            Refusal::NoState
            | Refusal::LostState { .. }
            | Refusal::ServerNotInState { .. }
            | Refusal::TableNotInState { .. }
            | Refusal::Settling { .. }
            | Refusal::StillLeased { .. }
            | Refusal::LateHeartbeat { .. }
            | Refusal::BeingDeleted { .. }
            | Refusal::NoTabletServer { .. }
            | Refusal::NotReady { .. }
            | Refusal::Unplaced { .. }
            | Refusal::OwnerAway { .. }
            | Refusal::ServerAway { .. }
            | Refusal::Stopping { .. }
            | Refusal::NotMoved { .. }
            | Refusal::NotCut { .. }
            | Refusal::UnmetTabletServers { .. } => Code::Unavailable,
            Refusal::Pending { .. } => Code::DeadlineExceeded,
            Refusal::DeletedMeanwhile { .. } => Code::Aborted,
            Refusal::TableExists { .. } => Code::AlreadyExists,
            Refusal::Heartbeat { .. }
            | Refusal::TableName { .. }
            | Refusal::TooManyCuts { .. }
            | Refusal::Cut { .. }
            | Refusal::Session { .. }
            | Refusal::Proxy { .. }
            | Refusal::TooManyToLocate { .. }
            | Refusal::Retention { .. }
            | Refusal::HoldMax { .. } => Code::InvalidArgument,
            Refusal::NoSuchTable { .. }
            | Refusal::NoSuchTablet { .. }
            | Refusal::NoSuchServer { .. } => Code::NotFound,
            Refusal::NoTableIds | Refusal::DirectoryFull { .. } => Code::ResourceExhausted,
        };
        Self::new(code, refusal.to_string())
    }
}

/// Holders that are named at a time.
const HOLDERS_MAX: usize = 100;

/// How far collection is, and what is in its way.
///
/// # Errors
/// [`Refusal::NoState`].
pub fn gc_status(directory: &Directory, now: Duration) -> Result<v1::GcStatusResponse, Refusal> {
    let state = directory.state()?;
    let points = state.gc.points();
    let holders = directory.sessions.holders(points.barrier);
    let holders = holders.take(HOLDERS_MAX);
    let mut servers = Vec::new();
    for server in state.tablet_servers() {
        let live = directory.live.get(server);
        let known = live.map(|live| live.points).unwrap_or_default();
        servers.push(v1::GcServer {
            server: server.to_owned(),
            barrier: known.barrier.as_u64(),
            safe_point: known.safe_point.as_u64(),
            collected: live.map_or(0, |live| live.progress.records()),
            collected_per_second: live.map_or(0, |live| live.progress.per_second()),
            progress: live.map(|live| (&live.progress.last).into()),
        });
    }
    let obstacle = |hold: Hold| v1::GcObstacle {
        by: hold.by.to_owned(),
        owner: directory.owner_of(hold.start_ts).map(v1::Owner::from),
        server: hold.server,
        what: hold.what,
        start_ts: hold.start_ts.as_u64(),
        since_ms: millis(hold.since),
    };
    // Those that say all by themselves are seen by the settings and the holders.
    let holds = directory.holds(now).into_iter();
    let obstacles = holds.filter(|hold| !hold.what.is_empty());
    Ok(v1::GcStatusResponse {
        retention_ms: millis(directory.retention()),
        paused: directory.paused(),
        hold_ms_max: directory.hold_max().map(millis),
        of_manifest: directory.manifest.fields().map(String::from).collect(),
        now: directory.collection.now.as_u64(),
        barrier: points.barrier.as_u64(),
        safe_point: points.safe_point.as_u64(),
        resolved_ts: points.resolved.as_u64(),
        holders: holders
            .map(|(id, session)| v1::GcHolder {
                session: id,
                owner: Some(session.owner.clone().into()),
                floor: session.floor.as_u64(),
                transactions: session.named().map(Timestamp::as_u64).collect(),
                lease_ms: millis_u32(session.until.saturating_sub(now)),
                released: session.is_released(),
            })
            .collect(),
        obstacles: obstacles.map(obstacle).collect(),
        servers,
        sessions: u32::try_from(directory.sessions.len()).unwrap_or(u32::MAX),
    })
}
