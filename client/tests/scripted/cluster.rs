//! The servers of a test: the shipped core of the tablet server over an engine in memory, and an oracle and a master of
//! a few lines each. What they hold is the truth that a client's answers are compared with.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_client::{Cell, DEAD_LETTERS, TableId, Timestamp};
use percolator_engine::{Engine, EngineKind, Options, open};
use percolator_protocol::actions::Status;
use percolator_protocol::lease::Lease;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Rows, Tablet, TabletState};
use percolator_tablet::core::{Core, Reply, TabletCommand};
use percolator_tablet::{Limits, ServerIncarnation};
use percolator_wire::v1;
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

use crate::world::World;

/// The tablet servers, by their addresses.
pub(crate) const SERVERS: [&str; 2] = ["tablet-0", "tablet-1"];
/// The table of most tests, and where it is cut: rows before h and from p on are the first server's.
pub(crate) const TABLE: &str = "t";
const SPLITS: [&str; 2] = ["h", "p"];
/// Another table, all of it the second server's.
pub(crate) const INDEX: &str = "u";
/// The time of the oracle when a test begins.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// How long the master's leases are.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// A request that has to wait is looked after so often.
const STEP: Duration = Duration::from_millis(10);

/// A tablet server.
struct Server {
    core: Core,
    engine: Arc<dyn Engine>,
    incarnation: u64,
    replies: Vec<Reply>,
}

impl Server {
    fn open(address: &str, engine: Arc<dyn Engine>, incarnation: u64) -> Self {
        let me = ServerIncarnation {
            server: address.to_owned(),
            incarnation,
        };
        let mut core = Core::open(engine.clone(), limits(), false, me).expect("readable");
        core.lease(Lease::UNLIMITED);
        Self {
            core,
            engine,
            incarnation,
            replies: Vec::new(),
        }
    }

    /// Lets time pass, and makes durable what is decided.
    fn settle(&mut self, elapsed: Duration) {
        self.core.tick(elapsed, &mut self.replies);
        while let Some(group) = self.core.take_group() {
            let result = self.engine.commit(&group);
            self.core.committed(result, &mut self.replies);
        }
    }

    fn answer(&mut self, id: u64) -> Option<v1::Response> {
        let of_request = |reply: &Reply| reply.response.id == id;
        let at = self.replies.iter().position(of_request)?;
        Some(self.replies.swap_remove(at).response)
    }
}

/// Small, so that a test takes few locks to resolve in several pieces, and a server is made at once.
fn limits() -> Limits {
    Limits {
        cache_bytes: 1 << 14,
        marks: 1 << 12,
        resolve_locks: 3,
        scan_records: 3,
        ..Limits::default()
    }
}

/// A client's lease at the master.
#[derive(Clone, Copy, Debug)]
struct ClientLease {
    floor: Timestamp,
    until: Duration,
}

struct State {
    servers: BTreeMap<&'static str, Server>,
    tablets: Vec<(Tablet, &'static str)>,
    last_id: u64,
    last_ts: Timestamp,
    barrier: Timestamp,
    leases: BTreeMap<u64, ClientLease>,
    /// Tables that are being deleted in the directory, and those that were.
    frozen: Vec<u32>,
    deleted: Vec<u32>,
    /// The directory does not have this tablet.
    hidden: Option<u64>,
}

/// All servers.
pub(crate) struct Cluster {
    pub(crate) world: Arc<World>,
    state: Mutex<State>,
}

fn tablet(id: u64, table: (u32, &str), start: &str, end: &str) -> Tablet {
    Tablet {
        id,
        table: TableId(table.0),
        table_name: table.1.to_owned(),
        rows: Rows {
            start: Bytes::copy_from_slice(start.as_bytes()),
            end: Bytes::copy_from_slice(end.as_bytes()),
        },
        epoch: 1,
        state: TabletState::Serving,
    }
}

impl Cluster {
    /// Two tablet servers with [`TABLE`], [`INDEX`] and [`DEAD_LETTERS`].
    pub(crate) fn new() -> Arc<Self> {
        let tablets = vec![
            (tablet(1, (1, TABLE), "", SPLITS[0]), SERVERS[0]),
            (tablet(2, (1, TABLE), SPLITS[0], SPLITS[1]), SERVERS[1]),
            (tablet(3, (1, TABLE), SPLITS[1], ""), SERVERS[0]),
            (tablet(4, (2, INDEX), "", ""), SERVERS[1]),
            (tablet(5, (3, DEAD_LETTERS), "", ""), SERVERS[0]),
        ];
        let mut servers: BTreeMap<&'static str, Server> = SERVERS
            .into_iter()
            .zip(1..)
            .map(|(address, incarnation)| {
                let options = Options::new(EngineKind::Memory, address);
                let engine = open(Path::new("nowhere"), &options).expect("memory");
                (address, Server::open(address, engine.into(), incarnation))
            })
            .collect();
        for (tablet, address) in &tablets {
            let server = servers.get_mut(address).expect("one of them");
            let command = TabletCommand::Create {
                tablet: tablet.clone(),
                made: false,
                barrier: Timestamp::ZERO,
            };
            let me = ServerIncarnation {
                server: (*address).to_owned(),
                incarnation: server.incarnation,
            };
            let Server { core, replies, .. } = server;
            core.command(0, 0, Some(me), command, replies);
            server.settle(STEP);
            server.replies.clear();
        }
        Arc::new(Self {
            world: Arc::default(),
            state: Mutex::new(State {
                servers,
                tablets,
                last_id: 0,
                last_ts: Timestamp::ZERO,
                barrier: Timestamp::ZERO,
                leases: BTreeMap::new(),
                frozen: Vec::new(),
                deleted: Vec::new(),
                hidden: None,
            }),
        })
    }

    /// A tablet server's answer.
    pub(crate) async fn tablet(&self, address: &str, mut request: v1::Request) -> v1::Response {
        let asked_id = request.id;
        let id = self.begin(address, &mut request);
        loop {
            if let Some(mut response) = self.poll(address, id, Duration::ZERO) {
                response.id = asked_id;
                return response;
            }
            self.world.sleep(STEP).await;
            self.poll(address, 0, STEP);
        }
    }

    fn begin(&self, address: &str, request: &mut v1::Request) -> u64 {
        let mut state = self.state.lock();
        state.last_id += 1;
        request.id = state.last_id;
        let server = state.servers.get_mut(address).expect("a server");
        let Server { core, replies, .. } = server;
        core.request(0, request.clone(), replies);
        request.id
    }

    fn poll(&self, address: &str, id: u64, elapsed: Duration) -> Option<v1::Response> {
        let mut state = self.state.lock();
        let server = state.servers.get_mut(address).expect("a server");
        server.settle(elapsed);
        server.answer(id)
    }

    /// Starts the server's process again, with what its engine holds.
    pub(crate) fn restart(&self, address: &'static str) {
        let mut state = self.state.lock();
        let old = state.servers.remove(address).expect("a server");
        let incarnation = old.incarnation + SERVERS.len() as u64;
        let next = Server::open(address, old.engine, incarnation);
        state.servers.insert(address, next);
    }

    /// Milliseconds since the test began.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.world.now().as_millis()).expect("a short test")
    }

    /// The oracle's next timestamp.
    pub(crate) fn timestamp(&self) -> Timestamp {
        let now_ms = self.now_ms();
        let mut state = self.state.lock();
        state.last_ts = state
            .last_ts
            .next()
            .max(Timestamp::from_millis(EPOCH_MS + now_ms));
        state.last_ts
    }

    /// The highest timestamp that was handed out.
    pub(crate) fn last_timestamp(&self) -> Timestamp {
        self.state.lock().last_ts
    }

    /// The master's answer to a client that renews its lease.
    pub(crate) fn session(&self, request: &v1::SessionRequest) -> v1::SessionResponse {
        let now = self.world.now();
        let mut state = self.state.lock();
        if request.floor == 0 {
            state.leases.remove(&request.session);
        } else {
            let lease = ClientLease {
                floor: Timestamp::from_u64(request.floor),
                until: now + LEASE,
            };
            state.leases.insert(request.session, lease);
        }
        v1::SessionResponse {
            lease_ms: u32::try_from(LEASE.as_millis()).expect("short"),
            barrier: state.barrier.as_u64(),
            cluster_id: "here".to_owned(),
        }
    }

    /// Moves the read barrier to one retention ago, or as far as the leases let it, at every server.
    pub(crate) fn move_barrier(&self, retention: Duration) {
        let (now, now_ms) = (self.world.now(), self.now_ms());
        let retention_ms = u64::try_from(retention.as_millis()).expect("short");
        let aim = Timestamp::from_millis((EPOCH_MS + now_ms).saturating_sub(retention_ms));
        let mut state = self.state.lock();
        state.leases.retain(|_, lease| now < lease.until);
        let floors = state.leases.values().map(|lease| lease.floor);
        let barrier = floors.min().unwrap_or(aim).min(aim).max(state.barrier);
        state.barrier = barrier;
        let points = Points {
            barrier,
            safe_point: Timestamp::ZERO,
            resolved: Timestamp::ZERO,
        };
        for server in state.servers.values_mut() {
            let Server { core, replies, .. } = server;
            core.reach(points, replies);
            server.settle(STEP);
        }
    }

    /// Whether a lease of a client holds a transaction that began here.
    pub(crate) fn holds(&self, start_ts: Timestamp) -> bool {
        let now = self.world.now();
        let state = self.state.lock();
        let holds = |lease: &ClientLease| lease.floor <= start_ts && now < lease.until;
        start_ts >= state.barrier && state.leases.values().any(holds)
    }

    /// How many leases the master has granted that have not ended.
    pub(crate) fn leases(&self) -> usize {
        let now = self.world.now();
        let state = self.state.lock();
        let lasts = |lease: &&ClientLease| now < lease.until;
        state.leases.values().filter(lasts).count()
    }

    /// From now on this table is being deleted in the directory.
    pub(crate) fn freeze(&self, table: u32) {
        self.state.lock().frozen.push(table);
    }

    /// From now on this table is deleted in the directory.
    pub(crate) fn delete(&self, table: u32) {
        self.state.lock().deleted.push(table);
    }

    /// The directory lacks this tablet, as a master's does for a moment that has lost its state.
    pub(crate) fn hide_tablet(&self, id: Option<u64>) {
        self.state.lock().hidden = id;
    }

    /// The master's answer: all tablets of the tables that are asked for.
    pub(crate) fn locate(&self, request: &v1::LocateRequest) -> v1::LocateResponse {
        let state = self.state.lock();
        let tables = [(1, TABLE), (2, INDEX), (3, DEAD_LETTERS)];
        let is_left = |id: u32| !state.deleted.contains(&id);
        let is_deleting = |id: u32| state.frozen.contains(&id);
        let asked = |id: u32| request.rows.iter().any(|row| row.table_id == id);
        let is_named = |(id, name): &(u32, &str)| {
            let by_name = request.names.iter().any(|asked| asked == name);
            is_left(*id) && (asked(*id) || (by_name && !is_deleting(*id)))
        };
        let located = |(tablet, address): &(Tablet, &str)| v1::LocatedTablet {
            tablet: Some(v1::TabletInfo {
                id: tablet.id,
                table_id: tablet.table.0,
                table_name: tablet.table_name.clone(),
                start_row: tablet.rows.start.clone(),
                end_row: tablet.rows.end.clone(),
                epoch: tablet.epoch,
                state: v1::TabletState::Serving.into(),
            }),
            server: (*address).to_owned(),
            address: (*address).to_owned(),
            incarnation: state.servers[address].incarnation,
        };
        let table = |(id, name): (u32, &str)| v1::TableInfo {
            id,
            name: name.to_owned(),
            state: if is_deleting(id) {
                v1::TableState::Deleting.into()
            } else {
                v1::TableState::Ready.into()
            },
        };
        let is_asked = |(tablet, _): &&(Tablet, &str)| {
            let id = tablet.table.0;
            let named = tables.into_iter().find(|(table, _)| *table == id);
            named.is_some_and(|table| is_named(&table))
                && is_left(id)
                && state.hidden != Some(tablet.id)
        };
        let deleted = tables.into_iter().map(|(id, _)| id);
        v1::LocateResponse {
            cluster_id: "here".to_owned(),
            tables: tables.into_iter().filter(is_named).map(table).collect(),
            tablets: state.tablets.iter().filter(is_asked).map(located).collect(),
            deleted_tables: deleted.filter(|id| asked(*id) && !is_left(*id)).collect(),
        }
    }

    fn place(&self, cell: &Cell) -> (&'static str, v1::TabletRef) {
        let state = self.state.lock();
        let is_here = |(tablet, _): &&(Tablet, &str)| {
            tablet.table == cell.table && tablet.rows.contains(&cell.row)
        };
        let (tablet, address) = state.tablets.iter().find(is_here).expect("a tablet");
        let tablet = v1::TabletRef {
            id: tablet.id,
            epoch: tablet.epoch,
        };
        (address, tablet)
    }

    /// Asks a cell's server beside the client, and without a fault.
    fn ask(&self, cell: &Cell, body: impl FnOnce(v1::CellRef) -> Ask) -> Body {
        let (address, tablet) = self.place(cell);
        let body = body(v1::CellRef {
            tablet: 0,
            row: cell.row.clone(),
            column: cell.column.clone(),
        });
        self.ask_server(address, vec![tablet], body)
    }

    fn ask_server(&self, address: &str, tablets: Vec<v1::TabletRef>, body: Ask) -> Body {
        let mut request = v1::Request {
            id: 0,
            tablets,
            body: Some(body),
            trace: None,
        };
        let id = self.begin(address, &mut request);
        let response = self.poll(address, id, STEP).expect("an answer at once");
        response.body.expect("an answer")
    }

    /// The locks on a server of transactions that began below this, as it lists them for itself.
    pub(crate) fn locks_below(&self, address: &str, below: Timestamp) -> v1::LocksBelowResponse {
        let incarnation = self.state.lock().servers[address].incarnation;
        let ask = Ask::LocksBelow(v1::LocksBelowRequest {
            below: below.as_u64(),
            after: None,
            to: Some(v1::Addressee {
                server: address.to_owned(),
                incarnation,
            }),
        });
        match self.ask_server(address, Vec::new(), ask) {
            Body::LocksBelow(page) => page,
            other => panic!("no locks: {other:?}"),
        }
    }

    fn check_status(&self, start_ts: Timestamp, primary: &Cell, now: Timestamp) -> Status {
        if self.state.lock().deleted.contains(&primary.table.0) {
            // Its locks elsewhere were resolved before, if it committed.
            return Status::RolledBack;
        }
        let ask = |primary| {
            Ask::CheckStatus(v1::CheckStatusRequest {
                primary: Some(primary),
                start_ts: start_ts.as_u64(),
                now: now.as_u64(),
                push_past: 0,
                force: false,
                met_ttl_ms: 60_000,
            })
        };
        match self.ask(primary, ask) {
            Body::CheckStatus(status) => status.try_into().expect("well formed"),
            // Nothing of it is left, so that none of its locks can be committed.
            Body::Error(v1::RequestError {
                kind: Some(Kind::TooOld(_)),
            }) => Status::RolledBack,
            other => panic!("no status: {other:?}"),
        }
    }

    /// What became of a transaction, without any effect on it.
    pub(crate) fn status(&self, start_ts: Timestamp, primary: &Cell) -> Status {
        self.check_status(start_ts, primary, start_ts)
    }

    /// The cell's value at this snapshot, when whatever is in the way has ended.
    pub(crate) fn value_at(&self, cell: &Cell, snapshot: Timestamp) -> Option<Bytes> {
        loop {
            let get = |cell| {
                Ask::Get(v1::GetRequest {
                    start_ts: snapshot.as_u64(),
                    cells: vec![cell],
                    ..v1::GetRequest::default()
                })
            };
            let Body::Get(mut got) = self.ask(cell, get) else {
                panic!("{cell} can't be read");
            };
            let met = match got.results.remove(0).result.expect("a result") {
                Got::Found(found) => return Some(found.value),
                Got::Absent(_) | Got::RolledBack(_) => return None,
                Got::Locked(met) => met,
            };
            self.clear(&met);
        }
    }

    /// Clears a lock whose transaction has ended, or is so old that this ends it.
    fn clear(&self, met: &v1::MetLock) {
        let cell = Cell::from(met.cell.clone().expect("a cell"));
        let primary = Cell::from(met.primary.clone().expect("a primary"));
        let start_ts = Timestamp::from_u64(met.start_ts);
        let much_later = Timestamp::from_millis(self.timestamp().physical_ms() + 3_600_000);
        let start_ts_u64 = met.start_ts;
        match self.check_status(start_ts, &primary, much_later) {
            Status::Committed(commit_ts) => self.ask(&cell, |cell| {
                Ask::Commit(v1::CommitRequest {
                    start_ts: start_ts_u64,
                    commit_ts: commit_ts.as_u64(),
                    cells: vec![cell],
                })
            }),
            Status::RolledBack => self.ask(&cell, |cell| {
                Ask::Rollback(v1::RollbackRequest {
                    start_ts: start_ts_u64,
                    cells: vec![cell],
                })
            }),
            other => panic!("transaction {start_ts} is {other:?} after an hour"),
        };
    }

    /// The cell's newest value.
    pub(crate) fn value(&self, cell: &Cell) -> Option<Bytes> {
        let now = self.timestamp();
        self.value_at(cell, now)
    }

    /// How many cells are locked.
    pub(crate) fn locks(&self) -> usize {
        let state = self.state.lock();
        state
            .servers
            .values()
            .map(|server| server.core.locks())
            .sum()
    }
}

/// A cell of [`TABLE`].
pub(crate) fn cell(row: &str) -> Cell {
    Cell::new(TableId(1), row.to_owned(), "c")
}
