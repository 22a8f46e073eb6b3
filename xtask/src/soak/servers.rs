//! A cluster of processes on this machine whose servers are killed and whose tablets are moved, split and merged.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{bail, ensure};
use serde_json::Value;

use crate::bench::{
    cluster::{Cluster, signal},
    test_cluster::pid,
};

const PORT: u16 = 17_800;
const MANIFEST: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: soak}\n\
                        spec: {tablets: {replicas: 3}}\n";
pub(super) const SERVERS: [&str; 3] = ["tablet-0", "tablet-1", "tablet-2"];
/// A server is killed so long after a move began, at the most: most moves take less.
const KILLED_WITHIN: u64 = 60_000;
/// A server that was killed is there again within this, or something is wrong.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time within which every request is answered.
pub(super) const ANSWERED: &str = "2m";

/// A tablet: its number, the first row, and its server.
pub(super) struct Tablet {
    pub(super) id: String,
    pub(super) start: String,
    pub(super) server: String,
}

/// The result of a move, and whether a server was killed in the middle of it.
pub(super) struct MoveOutcome {
    pub(super) done: bool,
    pub(super) killed: bool,
}

pub(super) struct Servers<'a> {
    programs: &'a Path,
    data: PathBuf,
    cluster: Cluster,
    /// The next number of a pseudorandom sequence.
    next: u64,
}

impl<'a> Servers<'a> {
    /// Starts them, with their data in this folder.
    pub(super) fn start(programs: &'a Path, folder: &Path) -> anyhow::Result<Self> {
        let (manifest, data) = (folder.join("cluster.yaml"), folder.join("data"));
        std::fs::write(&manifest, MANIFEST)?;
        let (file, place) = (manifest.to_string_lossy(), data.to_string_lossy());
        let arguments = ["-f", &*file, "--data-dir", &*place];
        let cluster = Cluster::start(&programs.join("percolator"), PORT, &arguments)?;
        let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        println!("choices by {seed}");
        Ok(Self {
            programs,
            data,
            cluster,
            next: seed,
        })
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.cluster.stop()
    }

    pub(super) fn master() -> String {
        format!("127.0.0.1:{PORT}")
    }

    pub(super) fn percolator(&self) -> Command {
        let mut command = Command::new(self.programs.join("percolator"));
        command.args(["-c", &Self::master(), "-q", "-o", "json"]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs a command that has to succeed. What it says.
    pub(super) fn done(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = self.percolator().args(arguments).output()?;
        let (out, err) = (text(&said.stdout), text(&said.stderr));
        ensure!(said.status.success(), "{arguments:?}: {out}{err}");
        Ok(out)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next = self.next.wrapping_mul(6_364_136_223_846_793_005);
        self.next = self.next.wrapping_add(1_442_695_040_888_963_407);
        (self.next >> 33) % end
    }

    pub(super) fn tablets(&self, table: &str) -> anyhow::Result<Vec<Tablet>> {
        let said = self.percolator().args(["tablet", "list", table]).output()?;
        let out = text(&said.stdout);
        let tablets = out.lines().map(|line| {
            let tablet: Value = serde_json::from_str(line)?;
            let word = |name: &str| tablet[name].as_str().unwrap_or_default().to_owned();
            Ok(Tablet {
                id: tablet["id"].to_string(),
                start: word("start_row"),
                server: word("server"),
            })
        });
        tablets.collect()
    }

    /// Kills a server, and waits until it runs again.
    pub(super) fn kill(&self, server: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut killed = None;
        while began.elapsed() < TIMEOUT {
            let pid = pid(&self.data, server)?;
            match (&killed, pid) {
                (None, Some(pid)) => {
                    signal(&pid, "KILL")?;
                    killed = Some(pid);
                }
                (Some(before), Some(pid)) if pid != *before => return Ok(()),
                _ => sleep(Duration::from_millis(5)),
            }
        }
        bail!("{server} is not started again within {TIMEOUT:?}")
    }

    /// Moves a tablet of the table to another server. In the middle of every second move, one of the two servers is killed.
    pub(super) fn move_one(&mut self, table: &str) -> anyhow::Result<MoveOutcome> {
        let mut tablets = self.tablets(table)?;
        let number = self.below(tablets.len() as u64);
        let tablet = tablets.swap_remove(usize::try_from(number)?);
        let others = SERVERS.iter().filter(|it| **it != tablet.server);
        let others: Vec<&str> = others.copied().collect();
        let to = others[usize::try_from(self.below(others.len() as u64))?];
        let mut command = self.percolator();
        command.args([
            "tablet",
            "move",
            &tablet.id,
            to,
            "--request-timeout",
            ANSWERED,
        ]);
        let moving = command.stdout(Stdio::null()).spawn()?;
        let killed = match self.below(4) {
            0 => Some(tablet.server.as_str()),
            1 => Some(to),
            _ => None,
        };
        if let Some(server) = killed {
            sleep(Duration::from_micros(self.below(KILLED_WITHIN)));
            self.kill(server)?;
        }
        let said = moving.wait_with_output()?;
        let done = said.status.success();
        if !done {
            // The attempt ends with a server that gets it, or gives it before it is decided.
            let why = text(&said.stderr);
            let is_about_it = why.contains("which stays where it was");
            ensure!(is_about_it, "tablet {} to {to}: {why}", tablet.id);
        }
        Ok(MoveOutcome {
            done,
            killed: killed.is_some(),
        })
    }
}

fn text(said: &[u8]) -> String {
    String::from_utf8_lossy(said).into_owned()
}
