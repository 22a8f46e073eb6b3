//! Moves of tablets, one after the other, with splits, merges and drains between them, while clients record the answers.
//! In the middle of every second one, the server that gives the tablet or the one that gets it is killed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde_json::{Value, json};

use super::servers::{ANSWERED, SERVERS, Servers};
use crate::bench::failover::{check_bank, check_history, summary};

/// Of the bank, whose table this is.
const TABLE: &str = "bank";
const ACCOUNTS: u64 = 1_000;
/// Each client runs for so long, and then another one. A history is checked then: those of all rounds together would take all
/// memory.
const CLIENTS_RUN: &str = "20s";
/// Tablets are split, up to so many, and merged then.
const TABLETS_MAX: usize = 12;

/// The results of moves.
#[derive(Default)]
struct Counts {
    done: u32,
    given_up: u32,
    killed: u32,
    cuts: u32,
    drains: u32,
}

struct Soak<'a> {
    servers: Servers<'a>,
    /// The answers to the bank.
    ledger: PathBuf,
    histories: u32,
    counts: Counts,
}

/// Clients, which are started again when they have ended.
struct Clients {
    bank: Child,
    history: Child,
    /// The table of the history, and its file.
    table: String,
    file: PathBuf,
}

/// Runs so many moves, and checks the answers that clients received.
pub(super) fn run(programs: &Path, moves: u32) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let mut soak = Soak {
        servers: Servers::start(programs, folder.path())?,
        ledger: folder.path().join("transfers.jsonl"),
        histories: 0,
        counts: Counts::default(),
    };
    let mut clients = soak.start_clients()?;
    while soak.servers.tablets(TABLE)?.is_empty() {
        sleep(Duration::from_millis(100));
    }
    let began = Instant::now();
    for number in 1..=moves {
        clients = soak.go_on_with_clients(clients)?;
        soak.move_one(number, &clients.table)?;
        if number % 7 == 0 {
            soak.cut()?;
        }
        if number % 50 == 0 {
            soak.drain()?;
            let Counts {
                done,
                given_up,
                killed,
                cuts,
                drains,
            } = soak.counts;
            println!(
                "{number} of {moves} after {:?}: {done} moved, {given_up} given up, {killed} servers killed, {cuts} splits and \
                 merges, {drains} drains",
                began.elapsed()
            );
        }
    }
    ensure!(soak.counts.done > moves / 2, "most moves were given up");
    soak.end(clients)?;
    check_bank(soak.servers.percolator(), &soak.ledger)?;
    println!(
        "{} histories: snapshot isolation explains each",
        soak.histories
    );
    soak.servers.done(&["gc", "verify"])?;
    soak.servers.stop()?;
    let counts = &soak.counts;
    Ok(json!({
        "moved": counts.done,
        "given_up": counts.given_up,
        "killed": counts.killed,
        "splits_and_merges": counts.cuts,
        "drains": counts.drains,
        "histories": soak.histories,
    }))
}

impl Soak<'_> {
    fn start_clients(&mut self) -> anyhow::Result<Clients> {
        let mut bank = self.servers.percolator();
        let accounts = ACCOUNTS.to_string();
        bank.args(["bank", "--accounts", &accounts, "--clients", "8"]);
        bank.args(["--duration", CLIENTS_RUN, "--ledger"]);
        bank.arg(&self.ledger).stdout(Stdio::piped());
        self.histories += 1;
        let table = format!("history{}", self.histories);
        let file = self.ledger.with_file_name(&table);
        let mut history = self.servers.percolator();
        history.args(["history", "record", "--duration", CLIENTS_RUN]);
        history.args(["--table", &table]).arg(&file);
        Ok(Clients {
            bank: bank.stderr(Stdio::null()).spawn()?,
            history: history
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
            table,
            file,
        })
    }

    fn go_on_with_clients(&mut self, mut clients: Clients) -> anyhow::Result<Clients> {
        if clients.bank.try_wait()?.is_none() {
            return Ok(clients);
        }
        self.end(clients)?;
        self.start_clients()
    }

    fn end(&self, mut clients: Clients) -> anyhow::Result<()> {
        summary(clients.bank)?;
        let ended = clients.history.wait()?;
        ensure!(ended.success(), "a recorder failed: {ended}");
        check_history(self.servers.percolator(), &clients.file)?;
        // Its table stays: the tablets of one that is being deleted don't move.
        fs::remove_file(&clients.file)?;
        Ok(())
    }

    /// Of the bank, or of each third move of the history, whose table may not be there yet.
    fn move_one(&mut self, number: u32, history: &str) -> anyhow::Result<()> {
        let is_there = number.is_multiple_of(3) && !self.servers.tablets(history)?.is_empty();
        let moved = self
            .servers
            .move_one(if is_there { history } else { TABLE })?;
        self.counts.killed += u32::from(moved.killed);
        self.counts.done += u32::from(moved.done);
        self.counts.given_up += u32::from(!moved.done);
        Ok(())
    }

    /// Splits a tablet, or merges two if there are many.
    fn cut(&mut self) -> anyhow::Result<()> {
        let tablets = self.servers.tablets(TABLE)?;
        if tablets.len() < TABLETS_MAX {
            let account = self.servers.below(ACCOUNTS);
            let row = format!("{account:08}");
            self.servers.done(&[
                "tablet",
                "split",
                TABLE,
                &row,
                "--request-timeout",
                ANSWERED,
            ])?;
        } else {
            let second = 1 + self.servers.below(tablets.len() as u64 - 1);
            let second = &tablets[usize::try_from(second)?];
            self.servers.done(&[
                "tablet",
                "merge",
                TABLE,
                &second.start,
                "--request-timeout",
                ANSWERED,
            ])?;
        }
        self.counts.cuts += 1;
        Ok(())
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        let server = SERVERS[usize::try_from(self.servers.below(3))?];
        self.servers
            .done(&["server", "drain", server, "--request-timeout", ANSWERED])?;
        self.servers.done(&["server", "undrain", server])?;
        self.counts.drains += 1;
        Ok(())
    }
}
