//! One transaction that locks more rows than memory has room for, on a tablet server that is killed in the middle and at
//! the end, started again each time, and then resolves all of its locks. Says what each process took of memory, and how
//! long each start took.
//!
//! ```sh
//! cargo run --release -p percolator-tablet --example many_locks -- --rows 20000000
//! ```
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use percolator_engine::{Engine, EngineKind, Options, open};
use percolator_protocol::lease::Lease;
use percolator_protocol::types::{Rows, TableId, Tablet, TabletState, Timestamp};
use percolator_tablet::core::{Core, Reply, TabletCommand};
use percolator_tablet::{Limits, ServerIncarnation};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

/// As the server's program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    /// How many the transaction locks.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value: usize,
    /// redb, sled or memory.
    #[arg(long, default_value = "redb")]
    engine: EngineKind,
    /// A folder beside which there is room. Default: the system's one for temporary files.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// What a child process of this one does.
    #[arg(long, hide = true)]
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    FirstHalf,
    SecondHalf,
    Resolve,
}

impl Part {
    const ALL: [Self; 3] = [Self::FirstHalf, Self::SecondHalf, Self::Resolve];

    fn name(self) -> &'static str {
        match self {
            Self::FirstHalf => "first-half",
            Self::SecondHalf => "second-half",
            Self::Resolve => "resolve",
        }
    }
}

/// Rows of one request.
const AT_A_TIME: u64 = 1_000;
/// Requests of one group.
const IN_A_GROUP: u64 = 4;
const START_TS: u64 = 10;
/// The last that a child says, after which it waits to be killed.
const DONE: &str = "done";

/// A server of one tablet.
struct Server {
    core: Core,
    engine: Arc<dyn Engine>,
    replies: Vec<Reply>,
}

impl Server {
    fn open(folder: &Path, engine: EngineKind) -> Self {
        let options = Options::new(engine, "tablet-0");
        let engine: Arc<dyn Engine> = open(folder, &options).expect("an engine").into();
        let me = ServerIncarnation {
            server: "tablet-0".into(),
            incarnation: 1,
        };
        let limits = Limits {
            // As a server has it, if nothing is said; but for the pace, which leaves time for others.
            cache_bytes: 16 << 20,
            large_cells_a_second: u32::MAX,
            ..Limits::default()
        };
        let mut core = Core::open(engine.clone(), limits, false, me.clone()).expect("a core");
        core.lease(Lease::UNLIMITED);
        let mut server = Self {
            core,
            engine,
            replies: Vec::new(),
        };
        if server.core.report().tablets.is_empty() {
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
            server
                .core
                .command(1, 0, Some(me), command, &mut server.replies);
            server.settle();
        }
        server
    }

    /// Makes durable what is decided, and returns the answers.
    fn settle(&mut self) -> Vec<Body> {
        self.core
            .tick(Duration::from_millis(100), &mut self.replies);
        while let Some(group) = self.core.take_group() {
            let result = self.engine.commit(&group);
            self.core.committed(result, &mut self.replies);
        }
        let bodies = self.replies.drain(..);
        bodies.filter_map(|reply| reply.response.body).collect()
    }

    fn ask(&mut self, body: Ask) {
        let request = v1::Request {
            id: 1,
            tablets: vec![v1::TabletRef { id: 1, epoch: 1 }],
            body: Some(body),
            trace: None,
        };
        self.core.request(1, request, &mut self.replies);
    }

    fn lock(&mut self, rows: Range<u64>, value: usize) {
        let value = bytes::Bytes::from(vec![b'v'; value]);
        let row = |number: u64| bytes::Bytes::from(format!("row-{number:010}"));
        let mut requests = 0;
        for first in rows.clone().step_by(AT_A_TIME as usize) {
            let mutation = |number: u64| v1::Mutation {
                cell: Some(v1::CellRef {
                    tablet: 0,
                    row: row(number),
                    column: "v".into(),
                }),
                kind: v1::LockKind::Put.into(),
                value: value.clone(),
            };
            let numbers = first..(first + AT_A_TIME).min(rows.end);
            self.ask(Ask::Prewrite(v1::PrewriteRequest {
                start_ts: START_TS,
                primary: Some(v1::CellName {
                    table_id: 5,
                    row: row(0),
                    column: "v".into(),
                }),
                ttl_ms: 3_000,
                mutations: numbers.map(mutation).collect(),
                one_phase: None,
                generation: 1,
                chain: None,
            }));
            requests += 1;
            if requests % IN_A_GROUP == 0 {
                self.check_locked();
            }
        }
        self.check_locked();
    }

    fn check_locked(&mut self) {
        for body in self.settle() {
            assert!(!matches!(body, Body::Error(_)), "{body:?}");
        }
    }

    /// Commits every lock, a piece at a time, and returns how many there were.
    fn resolve(&mut self) -> usize {
        let locks = self.core.locks();
        let mut after = None;
        loop {
            self.ask(Ask::Resolve(v1::ResolveRequest {
                start_ts: START_TS,
                commit_ts: START_TS + 1,
                after: after.take(),
                ..v1::ResolveRequest::default()
            }));
            let answers = self.settle();
            let [Body::Resolve(answer)] = &answers[..] else {
                panic!("{answers:?}");
            };
            after.clone_from(&answer.resume);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(self.core.locks(), 0, "every lock is resolved");
        locks
    }
}

/// The most memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

fn carry_out(part: Part, arguments: &Arguments, folder: &Path) {
    let began = Instant::now();
    let mut server = Server::open(folder, arguments.engine);
    let start = began.elapsed();
    let at_start = (server.core.locks(), peak_mib());
    let (half, began) = (arguments.rows / 2, Instant::now());
    let rows = match part {
        Part::FirstHalf => {
            server.lock(0..half, arguments.value);
            half
        }
        Part::SecondHalf => {
            server.lock(half..arguments.rows, arguments.value);
            arguments.rows - half
        }
        Part::Resolve => {
            let resolved = server.resolve() as u64;
            assert_eq!(resolved, arguments.rows, "each row was locked");
            resolved
        }
    };
    println!(
        "{}: started in {:.1} s with {} locks, {} MiB at the most till then; {rows} rows in {:.0} s; {} MiB at the most",
        part.name(),
        start.as_secs_f64(),
        at_start.0,
        at_start.1,
        began.elapsed().as_secs_f64(),
        peak_mib()
    );
    println!("{DONE}");
    // Killed in the middle of what it does: nothing is closed.
    std::thread::sleep(Duration::from_secs(3_600));
}

fn main() {
    let arguments = Arguments::parse();
    let place = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    if let Some(part) = arguments.part {
        return carry_out(part, &arguments, &place);
    }
    let folder = tempfile::tempdir_in(place).expect("a folder");
    for part in Part::ALL {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["--part", part.name(), "--folder"])
            .arg(folder.path())
            .args(["--rows", &arguments.rows.to_string()])
            .args(["--value", &arguments.value.to_string()])
            .args(["--engine", &arguments.engine.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts again");
        let said = child.stdout.take().expect("a pipe");
        let mut is_done = false;
        for line in BufReader::new(said).lines() {
            let line = line.expect("text");
            if line == DONE {
                is_done = true;
                break;
            }
            println!("{line}");
        }
        child.kill().expect("it is killed");
        let _ = child.wait();
        assert!(is_done, "{} has ended too early", part.name());
    }
}
