//! Moves of tablets, one after the other, with splits, merges and drains between them, while clients record the answers.
//! In the middle of every second one, the server that gives the tablet or the one that gets it is killed.

use std::{
    path::Path,
    process::{Child, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::servers::{ANSWERED, SERVERS, Servers};
use crate::bench::failover::{Recorded, summary};

/// Of the bank, whose table this is.
const TABLE: &str = "bank";
const ACCOUNTS: u64 = 1_000;
/// Each client runs for so long, and then another one.
const CLIENTS_RUN: &str = "20s";
/// Tablets are split, up to so many, and merged then.
const TABLETS_MAX: usize = 12;

/// What became of moves.
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
    recorded: Recorded,
    counts: Counts,
}

/// Clients, which are started again when they have ended.
struct Clients {
    bank: Child,
    history: Child,
}

/// Runs so many moves, and checks what clients were told.
pub(super) fn run(programs: &Path, moves: u32) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut soak = Soak {
        servers: Servers::start(programs, folder.path())?,
        recorded: Recorded {
            ledger: folder.path().join("transfers.jsonl"),
            history: folder.path().join("history.jsonl"),
        },
        counts: Counts::default(),
    };
    let mut clients = soak.start_clients()?;
    while soak.servers.tablets(TABLE)?.is_empty() {
        sleep(Duration::from_millis(100));
    }
    let began = Instant::now();
    for number in 1..=moves {
        clients = soak.go_on_with_clients(clients)?;
        soak.move_one()?;
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
    soak.recorded.check(|| soak.servers.percolator())?;
    soak.servers.done(&["gc", "verify"])?;
    soak.servers.stop()
}

impl Soak<'_> {
    fn start_clients(&self) -> anyhow::Result<Clients> {
        let mut bank = self.servers.percolator();
        let accounts = ACCOUNTS.to_string();
        bank.args(["bank", "--accounts", &accounts, "--clients", "8"]);
        bank.args(["--duration", CLIENTS_RUN, "--ledger"]);
        bank.arg(&self.recorded.ledger).stdout(Stdio::piped());
        let mut history = self.servers.percolator();
        history.args(["history", "record", "--duration", CLIENTS_RUN]);
        history.arg(&self.recorded.history).stdout(Stdio::null());
        Ok(Clients {
            bank: bank.stderr(Stdio::null()).spawn()?,
            history: history.stderr(Stdio::null()).spawn()?,
        })
    }

    fn go_on_with_clients(&self, mut clients: Clients) -> anyhow::Result<Clients> {
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
        Ok(())
    }

    fn move_one(&mut self) -> anyhow::Result<()> {
        let moved = self.servers.move_one(TABLE)?;
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
            self.servers
                .done(&["tablet", "split", TABLE, &row, "--patience", ANSWERED])?;
        } else {
            let second = 1 + self.servers.below(tablets.len() as u64 - 1);
            let second = &tablets[usize::try_from(second)?];
            self.servers.done(&[
                "tablet",
                "merge",
                TABLE,
                &second.start,
                "--patience",
                ANSWERED,
            ])?;
        }
        self.counts.cuts += 1;
        Ok(())
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        let server = SERVERS[usize::try_from(self.servers.below(3))?];
        self.servers
            .done(&["server", "drain", server, "--patience", ANSWERED])?;
        self.servers.done(&["server", "undrain", server])?;
        self.counts.drains += 1;
        Ok(())
    }
}
