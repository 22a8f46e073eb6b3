//! What collection costs a tablet server, without a network: engine operations against a full scan's, and what the
//! engines give back of the disk.
//!
//! ```sh
//! cargo run --release -p percolator-tablet --example collection -- operations --rows 1000000
//! cargo run --release -p percolator-tablet --example collection -- disk --rows 1000000 --engine redb
//! ```
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use percolator_engine::{
    Batch, Column, Direction, Engine, EngineKind, Error, Key, Options, Read, Scan, Snapshot, Stats,
    Value, open,
};
use percolator_protocol::lease::Lease;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Rows, TableId, Tablet, TabletState, Timestamp};
use percolator_tablet::core::{Core, Reply, TabletCommand};
use percolator_tablet::{Limits, ServerIncarnation};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;

/// As the server's program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    #[arg(value_enum)]
    what: What,
    /// How many there are.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value: usize,
    /// The engine of `disk`: redb, sled or memory.
    #[arg(long, default_value = "redb")]
    engine: EngineKind,
    /// How often each row is overwritten for `disk`.
    #[arg(long, default_value_t = 10)]
    rounds: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Operations of collection where 1 % of all rows were overwritten, against a full scan's.
    Operations,
    /// Size on disk after all rows were overwritten again and again, against once.
    Disk,
}

/// Counts what the engine is asked for: look-ups, pairs that are read, and keys that are written.
struct Counting {
    engine: Box<dyn Engine>,
    operations: Arc<AtomicU64>,
}

impl Counting {
    fn count(&self, operations: usize) {
        let operations = operations as u64;
        self.operations.fetch_add(operations, Ordering::Relaxed);
    }
}

impl Read for Counting {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.count(1);
        self.engine.get(column, key)
    }

    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error> {
        self.count(1);
        let pairs = self.engine.scan(column, start, end, direction)?;
        Ok(Box::new(pairs.inspect(|_| self.count(1))))
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.count(1);
        self.engine.first(column, start, end)
    }
}

impl Engine for Counting {
    fn commit(&self, group: &[Batch]) -> Result<(), Error> {
        self.count(group.iter().map(|batch| batch.ops().count()).sum());
        self.engine.commit(group)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.engine.snapshot()
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn close(&self) -> Result<(), Error> {
        self.engine.close()
    }
}

/// A server of one tablet, and a client that knows its cells.
struct Server {
    core: Core,
    engine: Arc<dyn Engine>,
    operations: Arc<AtomicU64>,
    replies: Vec<Reply>,
    ts: u64,
    value: Bytes,
    _folder: tempfile::TempDir,
}

/// Rows of one transaction.
const AT_A_TIME: usize = 100;
/// Transactions of one group.
const IN_A_GROUP: usize = 10;

impl Server {
    fn new(engine: EngineKind, value: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(engine, "tablet-0");
        let operations = Arc::new(AtomicU64::new(0));
        let engine: Arc<dyn Engine> = Arc::new(Counting {
            engine: open(folder.path(), &options).expect("an engine"),
            operations: operations.clone(),
        });
        let me = ServerIncarnation {
            server: "tablet-0".into(),
            incarnation: 1,
        };
        let limits = Limits {
            // As a server has it, if nothing is said.
            cache_bytes: 16 << 20,
            ..Limits::default()
        };
        let mut core = Core::open(engine.clone(), limits, false, me.clone()).expect("a core");
        core.lease(Lease::UNLIMITED);
        let mut server = Self {
            core,
            engine,
            operations,
            replies: Vec::new(),
            ts: 1,
            value: vec![b'v'; value].into(),
            _folder: folder,
        };
        let tablet = Tablet {
            id: 1,
            table: TableId(5),
            table_name: "t".into(),
            rows: Rows::default(),
            epoch: 1,
            state: TabletState::Serving,
        };
        let command = TabletCommand::Create {
            tablet,
            made: false,
            barrier: Timestamp::ZERO,
        };
        let Self { core, replies, .. } = &mut server;
        core.command(1, 0, Some(me), command, replies);
        server.settle();
        server
    }

    fn settle(&mut self) {
        // Nobody else is there.
        self.core
            .tick(Duration::from_millis(100), &mut self.replies);
        while let Some(group) = self.core.take_group() {
            let result = self.engine.commit(&group);
            self.core.committed(result, &mut self.replies);
            self.replies.clear();
        }
    }

    /// Writes every so many-th row, in transactions of two phases with so many rows each.
    fn write(&mut self, rows: u64, every: usize, at_a_time: usize) {
        let numbers: Vec<u64> = (0..rows).step_by(every).collect();
        for (at, numbers) in (1..).zip(numbers.chunks(at_a_time)) {
            let start_ts = self.ts;
            self.ts += 2;
            let cell = |number: &u64| v1::CellRef {
                tablet: 0,
                row: format!("row-{number:08}").into(),
                column: "v".into(),
            };
            let cells: Vec<v1::CellRef> = numbers.iter().map(cell).collect();
            let mutation = |cell: &v1::CellRef| v1::Mutation {
                cell: Some(cell.clone()),
                kind: v1::LockKind::Put.into(),
                value: self.value.clone(),
            };
            let prewrite = Ask::Prewrite(v1::PrewriteRequest {
                start_ts,
                primary: Some(v1::CellName {
                    table_id: 5,
                    row: cells[0].row.clone(),
                    column: "v".into(),
                }),
                ttl_ms: 3000,
                mutations: cells.iter().map(mutation).collect(),
                one_phase: None,
                generation: 0,
                chain: None,
            });
            let commit = Ask::Commit(v1::CommitRequest {
                start_ts,
                commit_ts: start_ts + 1,
                cells,
            });
            for body in [prewrite, commit] {
                let request = v1::Request {
                    id: start_ts,
                    tablets: vec![v1::TabletRef { id: 1, epoch: 1 }],
                    body: Some(body),
                    trace: None,
                };
                self.core.request(1, request, &mut self.replies);
            }
            if at % IN_A_GROUP == 0 {
                self.settle();
            }
        }
        self.settle();
    }

    /// Collects everything that newer versions hide.
    fn collect(&mut self) -> u64 {
        let before = self.collected();
        let now = Timestamp::from_u64(self.ts);
        let points = Points {
            barrier: now,
            safe_point: now,
            resolved: now,
        };
        for _ in 0..2 {
            self.core.reach(points, &mut self.replies);
            self.settle();
        }
        self.collected() - before
    }

    fn collected(&self) -> u64 {
        let progress = self.core.report().progress.unwrap_or_default();
        progress.tablets.iter().map(|tablet| tablet.records).sum()
    }

    fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    fn mebibytes(&self) -> f64 {
        self.engine.stats().size_bytes as f64 / f64::from(1 << 20)
    }
}

/// `at_a_time`: rows of each transaction that overwrites some.
fn operations(arguments: &Arguments, at_a_time: usize) {
    let mut server = Server::new(EngineKind::Memory, arguments.value);
    server.write(arguments.rows, 1, AT_A_TIME);
    server.write(arguments.rows, 100, at_a_time);
    let before = server.operations();
    let records = server
        .engine
        .scan(Column::Write, &[], &[], Direction::Forward);
    let read = records.expect("a scan").count() as u64;
    // Anyone who finds garbage by a scan has to remove it too.
    let garbage = read - arguments.rows;
    let full = server.operations() - before + garbage;
    let before = server.operations();
    let collected = server.collect();
    let index = server.operations() - before;
    assert_eq!(collected, garbage, "everything is collected");
    println!(
        "{} rows, {collected} hidden versions, by transactions of {at_a_time}: collection takes {index} engine operations, a \
         full scan {full}: {:.2} %",
        arguments.rows,
        100.0 * index as f64 / full as f64
    );
}

fn disk(arguments: &Arguments) {
    let mut server = Server::new(arguments.engine, arguments.value);
    server.write(arguments.rows, 1, AT_A_TIME);
    let once = server.mebibytes();
    println!(
        "{} rows on {}, written once: {once:.0} MiB",
        arguments.rows, arguments.engine
    );
    for round in 1..=arguments.rounds {
        server.write(arguments.rows, 1, AT_A_TIME);
        let collected = server.collect();
        let now = server.mebibytes();
        println!("overwritten {round} times, {collected} versions collected: {now:.0} MiB");
    }
    let now = server.mebibytes();
    println!("{:.2} times as much as written once", now / once);
}

fn main() {
    let arguments = Arguments::parse();
    match arguments.what {
        What::Operations => {
            for at_a_time in [AT_A_TIME, 1] {
                operations(&arguments, at_a_time);
            }
        }
        What::Disk => disk(&arguments),
    }
}
