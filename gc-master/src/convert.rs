//! Between the messages and the directory's own types.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use percolator_protocol::types::{TableId, Tablet, Timestamp};
use percolator_wire::v1;
use tonic::{Code, Status};

use crate::core::Directory;
use crate::holds::Hold;
use crate::proxies::ListedProxy;
use crate::refusal::Refusal;
use crate::reports::Arrival;
use crate::sessions::Owner;
use crate::state::{DirectoryState, Drain, Placement, Role, TableRecord, TableState};

impl From<v1::Owner> for Owner {
    fn from(owner: v1::Owner) -> Self {
        Self {
            host: owner.host,
            process: owner.process,
            application: owner.application,
            label: owner.label,
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
        silent_ms: directory.time_since_heartbeat(name, now).map(millis),
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
        waits_for: directory.drain_waits_for(now, name).unwrap_or_default(),
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
pub(crate) fn table_info(id: u32, table: &TableRecord) -> v1::TableInfo {
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
            // A server stops when its heartbeat is refused with FAILED_PRECONDITION: so that code is kept
            // for what does not change by itself.
            Refusal::OtherCluster { .. }
            | Refusal::SecondOracle { .. }
            | Refusal::ForgetfulOracle { .. }
            | Refusal::OtherRegister { .. }
            | Refusal::OtherRole { .. }
            | Refusal::OfManifest { .. }
            // Not ALREADY_EXISTS: a caller that retries takes that for the outcome of its first attempt.
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
                lease_ms: millis_u32(directory.sessions.left(session, now)),
                released: session.is_released(),
            })
            .collect(),
        obstacles: obstacles.map(obstacle).collect(),
        servers,
        sessions: u32::try_from(directory.sessions.len()).unwrap_or(u32::MAX),
    })
}
