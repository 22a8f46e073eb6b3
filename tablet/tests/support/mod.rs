//! A server's core with an engine in memory, for tests: requests in, groups made durable one by one.

pub(crate) mod moves;
pub(crate) mod observers;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine, EngineKind, Options, open};
use percolator_protocol::lease::Lease;
use percolator_protocol::types::{Rows, TableId, Tablet, TabletState, Timestamp};
use percolator_tablet::Limits;
use percolator_tablet::core::{Core, Reply, TabletCommand};
use percolator_wire::v1;
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

pub(crate) const ME: u64 = 7;
/// The server's first incarnation.
pub(crate) const INCARNATION: u64 = 1;

pub(crate) struct Server {
    pub(crate) core: Core,
    pub(crate) engine: Arc<dyn Engine>,
    next_id: u64,
    pub(crate) replies: Vec<Reply>,
}

impl Server {
    /// With the tablet 1 of table 5, rows a to m.
    pub(crate) fn new() -> Self {
        Self::within(Limits::default())
    }

    /// Without any tablet.
    pub(crate) fn empty() -> Self {
        Self::over(Limits::default())
    }

    /// The same with these limits.
    pub(crate) fn within(limits: Limits) -> Self {
        let mut server = Self::over(limits);
        server.create(1, "a", "m");
        server
    }

    fn over(limits: Limits) -> Self {
        let options = Options::new(EngineKind::Memory, "tablet-0");
        let engine: Arc<dyn Engine> =
            Arc::from(open(std::path::Path::new("nowhere"), &options).expect("memory"));
        let mut server = Self {
            core: Core::open(engine.clone(), limits, false, me(INCARNATION).into()).expect("empty"),
            engine,
            next_id: 0,
            replies: Vec::new(),
        };
        server.core.lease(Lease::UNLIMITED);
        server
    }

    /// Its next incarnation, on what the engine holds.
    pub(crate) fn start_again(&mut self) {
        self.start_again_as(INCARNATION + 1);
    }

    /// The same, before the master has answered it.
    pub(crate) fn start_again_without_lease(&mut self) {
        let (engine, limits) = (self.engine.clone(), Limits::default());
        self.core = Core::open(engine, limits, false, me(INCARNATION).into()).expect("readable");
    }

    /// The same, as this incarnation.
    pub(crate) fn start_again_as(&mut self, incarnation: u64) {
        let (engine, limits) = (self.engine.clone(), Limits::default());
        self.core = Core::open(engine, limits, false, me(incarnation).into()).expect("readable");
        self.core.lease(Lease::UNLIMITED);
    }

    /// From now on it takes the benchmark's plain reads and writes.
    pub(crate) fn allow_raw(&mut self) {
        let (engine, limits) = (self.engine.clone(), Limits::default());
        self.core = Core::open(engine, limits, true, me(INCARNATION + 1).into()).expect("readable");
        self.core.lease(Lease::UNLIMITED);
    }

    /// All that a column has.
    pub(crate) fn content(&self, column: Column) -> Vec<(Vec<u8>, Vec<u8>)> {
        let pairs = self.engine.scan(column, &[], &[], Direction::Forward);
        let pairs = pairs.expect("readable").map(|pair| pair.expect("readable"));
        pairs
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect()
    }

    /// Makes it own a tablet of table 5.
    pub(crate) fn create(&mut self, id: u64, start_row: &'static str, end_row: &'static str) {
        assert!(self.own(tablet(id, 5, start_row, end_row)).is_none());
    }

    /// The master's command to own the tablet so, and its answer: none, if all is well.
    pub(crate) fn own(&mut self, tablet: Tablet) -> Option<Body> {
        self.command(TabletCommand::Create {
            tablet,
            made: false,
            barrier: Timestamp::ZERO,
        })
    }

    /// A command of the master, and its answer: none, if all is well.
    pub(crate) fn command(&mut self, command: TabletCommand) -> Option<Body> {
        self.core.command(
            ME,
            0,
            Some(me(INCARNATION).into()),
            command,
            &mut self.replies,
        );
        self.settle();
        self.replies.pop().expect("an answer").response.body
    }

    /// The command to drop a tablet of table 5, which is not carried out yet.
    pub(crate) fn drop_tablet(&mut self, id: u64) {
        let command = TabletCommand::Drop { id, table: 5 };
        self.core.command(
            ME,
            0,
            Some(me(INCARNATION).into()),
            command,
            &mut self.replies,
        );
    }

    /// How many keys there are.
    pub(crate) fn left(&self) -> usize {
        let keys = |column| {
            let pairs = self.engine.scan(column, &[], &[], Direction::Forward);
            let pairs = pairs.expect("readable");
            // What the server keeps whatever it owns.
            pairs
                .filter(|pair| {
                    !matches!(pair, Ok((key, _)) if [&b"reached"[..], b"highest tablet"].contains(&&**key)
                        || key.starts_with(b"deleted/"))
                })
                .count()
        };
        // Entries of the index of garbage go by time, whatever they are of.
        let columns = Column::ALL.into_iter();
        columns
            .filter(|column| *column != Column::Garbage)
            .map(keys)
            .sum()
    }

    pub(crate) fn send(&mut self, body: Ask) -> u64 {
        self.send_to(1, 1, body)
    }

    pub(crate) fn send_to(&mut self, tablet: u64, epoch: u64, body: Ask) -> u64 {
        self.next_id += 1;
        let request = v1::Request {
            id: self.next_id,
            tablets: vec![v1::TabletRef { id: tablet, epoch }],
            body: Some(body),
            trace: None,
        };
        self.core.request(ME, request, &mut self.replies);
        self.next_id
    }

    /// A request that is about no tablet, or names its own.
    pub(crate) fn send_as_it_is(&mut self, body: Ask) -> u64 {
        self.next_id += 1;
        let request = v1::Request {
            id: self.next_id,
            body: Some(body),
            ..v1::Request::default()
        };
        self.core.request(ME, request, &mut self.replies);
        self.next_id
    }

    /// Makes one group durable; how many batches it had.
    pub(crate) fn commit_group(&mut self) -> usize {
        let Some(group) = self.core.take_group() else {
            return 0;
        };
        self.commit_taken(&group);
        group.len()
    }

    /// Makes a group durable that was taken.
    pub(crate) fn commit_taken(&mut self, group: &[Batch]) {
        let result = self.engine.commit(group);
        self.core.committed(result, &mut self.replies);
    }

    /// Makes one group durable if all of it may spend the reserve, and refuses it otherwise.
    pub(crate) fn commit_group_short_of_room(&mut self) -> usize {
        let Some(group) = self.core.take_group() else {
            return 0;
        };
        let result = if group.iter().all(Batch::spends_reserve) {
            self.engine.commit(&group)
        } else {
            Err(full())
        };
        self.core.committed(result, &mut self.replies);
        group.len()
    }

    /// Refuses one group, for want of any room.
    pub(crate) fn refuse_group(&mut self) -> usize {
        self.fail_group(full())
    }

    /// One group ends in this error.
    pub(crate) fn fail_group(&mut self, error: percolator_engine::Error) -> usize {
        let Some(group) = self.core.take_group() else {
            return 0;
        };
        self.core.committed(Err(error), &mut self.replies);
        group.len()
    }

    /// Runs until nothing is left to do on an idle server.
    pub(crate) fn settle(&mut self) {
        self.core
            .tick(Duration::from_millis(100), &mut self.replies);
        while self.commit_group() > 0 {}
    }

    pub(crate) fn answer(&mut self, id: u64) -> Option<Body> {
        let at = self
            .replies
            .iter()
            .position(|reply| reply.response.id == id)?;
        self.replies.remove(at).response.body
    }

    pub(crate) fn ask(&mut self, body: Ask) -> Body {
        let id = self.send(body);
        self.settle();
        self.answer(id).expect("an answer")
    }

    pub(crate) fn get(&mut self, row: &'static str, ts: u64) -> Got {
        let Body::Get(mut got) = self.ask(Ask::Get(v1::GetRequest {
            start_ts: ts,
            cells: vec![cell(row)],
            ..Default::default()
        })) else {
            panic!("no answer to a get");
        };
        got.results.remove(0).result.expect("a result")
    }

    pub(crate) fn value(&mut self, row: &'static str, ts: u64) -> Option<String> {
        match self.get(row, ts) {
            Got::Found(found) => Some(String::from_utf8_lossy(&found.value).into_owned()),
            Got::Absent(_) => None,
            Got::Locked(met) => panic!("locked by {}", met.start_ts),
            Got::RolledBack(_) => panic!("it was rolled back"),
        }
    }

    pub(crate) fn put(&mut self, row: &'static str, value: &'static str, start: u64, commit: u64) {
        self.ask(prewrite(row, value, start));
        self.ask(Ask::Commit(v1::CommitRequest {
            start_ts: start,
            commit_ts: commit,
            cells: vec![cell(row)],
        }));
    }
}

/// The server, in this incarnation of its.
pub(crate) fn me(incarnation: u64) -> v1::Addressee {
    v1::Addressee {
        server: "tablet-0".into(),
        incarnation,
    }
}

pub(crate) fn tablet(
    id: u64,
    table_id: u32,
    start_row: &'static str,
    end_row: &'static str,
) -> Tablet {
    Tablet {
        id,
        table: TableId(table_id),
        table_name: "t".into(),
        rows: Rows {
            start: start_row.into(),
            end: end_row.into(),
        },
        epoch: 1,
        state: TabletState::Serving,
    }
}

pub(crate) fn cell(row: &'static str) -> v1::CellRef {
    v1::CellRef {
        tablet: 0,
        row: row.into(),
        column: "c".into(),
    }
}

fn full() -> percolator_engine::Error {
    percolator_engine::Error::Full {
        path: "data".into(),
        needed_bytes: 1,
        reserve_bytes: 1,
    }
}

/// The group may be in the log, or not.
pub(crate) fn poisoned() -> percolator_engine::Error {
    percolator_engine::Error::Poisoned {
        cause: "fdatasync failed".into(),
    }
}

pub(crate) fn prewrite(row: &'static str, value: &'static str, start_ts: u64) -> Ask {
    prewrite_row(Bytes::from_static(row.as_bytes()), value, start_ts)
}

pub(crate) fn prewrite_row(row: Bytes, value: &'static str, start_ts: u64) -> Ask {
    Ask::Prewrite(v1::PrewriteRequest {
        start_ts,
        primary: Some(v1::CellName {
            table_id: 5,
            row: row.clone(),
            column: "c".into(),
        }),
        ttl_ms: 3000,
        mutations: vec![v1::Mutation {
            cell: Some(v1::CellRef { row, ..cell("") }),
            kind: v1::LockKind::Put.into(),
            value: value.into(),
        }],
        one_phase: None,
        generation: 0,
        chain: None,
    })
}

pub(crate) fn refused(body: Option<Body>) -> Kind {
    match body {
        Some(Body::Error(error)) => error.kind.expect("a reason"),
        other => panic!("not refused: {other:?}"),
    }
}
