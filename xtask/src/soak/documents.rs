//! Documents that flow through a chain of three observers (the example `documents`), while workers and servers are killed and
//! tablets split and moved: what the observers make of them is what one pass makes.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use serde_json::{Value, json};

use super::servers::{ANSWERED, SERVERS, Servers};

/// What runs the observers; see there.
pub(super) const EXAMPLE: &str = "documents";
/// Of the example, and what is moved.
const TABLES: [&str; 4] = ["documents", "linked", "copies", "degrees"];
const WORKERS: usize = 3;
/// Between one disturbance and the next, at the most, in milliseconds.
const PAUSE_MAX: u64 = 2_000;
/// Tables are split into so many tablets.
const TABLETS_MAX: usize = 6;

/// The faults of workers, servers and tablets.
#[derive(Default)]
struct Counts {
    workers: u32,
    servers: u32,
    moves: u32,
    splits: u32,
}

struct Soak<'a> {
    example: &'a Path,
    servers: Servers<'a>,
    workers: Vec<Child>,
    counts: Counts,
}

/// Lets so many documents flow.
pub(super) fn run(programs: &Path, documents: u32) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let example = programs.join("examples").join(EXAMPLE);
    ensure!(
        example.exists(),
        "{} isn't there: cargo build --release --example {EXAMPLE}",
        example.display()
    );
    let mut soak = Soak {
        example: &example,
        servers: Servers::start(programs, folder.path())?,
        workers: Vec::new(),
        counts: Counts::default(),
    };
    for _ in 0..WORKERS {
        let worker = soak.part(&["work"]).spawn()?;
        soak.workers.push(worker);
    }
    let count = documents.to_string();
    let began = Instant::now();
    let mut writer = soak.part(&["write", &count]).spawn()?;
    while soak.servers.tablets(TABLES[0])?.is_empty() {
        sleep(Duration::from_millis(100));
    }
    let written = soak.disturb_until_it_ends(&mut writer)?;
    ensure!(written, "the writer failed");
    println!(
        "{documents} documents, and what changed, were written after {:?}",
        began.elapsed()
    );
    let mut check = soak.part(&["check", &count]).spawn()?;
    let agrees = soak.disturb_until_it_ends(&mut check)?;
    let took = began.elapsed();
    ensure!(agrees, "what observers made is not what one pass makes");
    let Counts {
        workers,
        servers,
        moves,
        splits,
    } = soak.counts;
    println!(
        "what observers made is what one pass makes, after {took:?}; {workers} workers and {servers} servers were killed, {moves} \
         tablets moved, {splits} split"
    );
    for mut worker in soak.workers {
        worker.kill()?;
        worker.wait()?;
    }
    soak.servers.done(&["gc", "verify"])?;
    soak.servers.stop()?;
    Ok(json!({
        "documents": documents,
        "seconds": took.as_secs(),
        "workers_killed": workers,
        "servers_killed": servers,
        "moves": moves,
        "splits": splits,
    }))
}

impl Soak<'_> {
    fn part(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.example);
        command.arg(Servers::master()).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Whether the process succeeded.
    fn disturb_until_it_ends(&mut self, process: &mut Child) -> anyhow::Result<bool> {
        loop {
            if let Some(ended) = process.try_wait()? {
                return Ok(ended.success());
            }
            sleep(Duration::from_millis(self.servers.below(PAUSE_MAX)));
            self.disturb()?;
        }
    }

    fn disturb(&mut self) -> anyhow::Result<()> {
        let table = TABLES[usize::try_from(self.servers.below(4))?];
        match self.servers.below(4) {
            0 => self.kill_a_worker()?,
            1 => {
                let server = SERVERS[usize::try_from(self.servers.below(3))?];
                self.servers.kill(server)?;
                self.counts.servers += 1;
            }
            2 => self.split(table)?,
            _ => {
                let moved = self.servers.move_one(table)?;
                self.counts.moves += u32::from(moved.done);
                self.counts.servers += u32::from(moved.killed);
            }
        }
        Ok(())
    }

    fn kill_a_worker(&mut self) -> anyhow::Result<()> {
        let at = usize::try_from(self.servers.below(WORKERS as u64))?;
        if let Some(ended) = self.workers[at].try_wait()? {
            bail!("a worker ended by itself: {ended}");
        }
        self.workers[at].kill()?;
        self.workers[at].wait()?;
        self.workers[at] = self.part(&["work"]).spawn()?;
        self.counts.workers += 1;
        Ok(())
    }

    /// Splits a table in front of any letter or digit.
    fn split(&mut self, table: &str) -> anyhow::Result<()> {
        let tablets = self.servers.tablets(table)?;
        let letters = b"1357acegiklmnoprstuw";
        let at = usize::try_from(self.servers.below(letters.len() as u64))?;
        let row = char::from(letters[at]).to_string();
        if tablets.len() < TABLETS_MAX && tablets.iter().all(|it| it.start != row) {
            self.servers.done(&[
                "tablet",
                "split",
                table,
                &row,
                "--request-timeout",
                ANSWERED,
            ])?;
            self.counts.splits += 1;
        }
        Ok(())
    }
}
