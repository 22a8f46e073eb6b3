//! `cargo xtask bench starts`: how long a server that was replaced takes, from its start to the first answer that a client
//! has of the cluster.

use std::{
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use super::{Args, cluster::signal};

/// The end of the process before a start.
#[derive(Clone, Copy)]
enum Before {
    /// The server has ended by itself.
    Orderly,
    /// It was killed, on this machine.
    Killed,
    /// It was killed, and another machine has its volume: its folder isn't the one whose lock this machine knows.
    KilledElsewhere,
}

impl Before {
    const ALL: [Self; 3] = [Self::Orderly, Self::Killed, Self::KilledElsewhere];

    fn about(self) -> &'static str {
        match self {
            Self::Orderly => "after an orderly end",
            Self::Killed => "killed on the same machine",
            Self::KilledElsewhere => "killed on another machine",
        }
    }
}

/// Servers of a cluster, each a process of its own.
struct Servers<'a> {
    programs: &'a Path,
    folder: PathBuf,
    /// Of the master, the oracle and the tablet server.
    addresses: Vec<String>,
    running: Vec<Child>,
}

const MASTER: usize = 0;
const NAMES: [&str; 3] = ["master-0", "tso-0", "tablet-0"];
/// Rows that are there.
const ROWS: u32 = 100_000;
/// Long enough for any of these, and short enough to wait for.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn run(programs: &Path, args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut servers = Servers::start_all(programs, folder.path())?;
    servers.fill()?;
    println!("from a server's start to a client's first read, {ROWS} rows, seconds");
    println!("{:<30}{:>10}{:>10}", "", "median", "longest");
    // The oracle last: one that was started again is up to a window ahead of its clock, and then its time goes at half the pace.
    for server in [2, 1] {
        for before in Before::ALL {
            let mut took = Vec::new();
            for _ in 0..args.turns {
                took.push(servers.replace(server, before)?.as_secs_f64());
            }
            took.sort_by(f64::total_cmp);
            let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
            let what = format!("{} {}", NAMES[server], before.about());
            println!("{what:<40}{median:>10.2}{longest:>10.2}");
        }
    }
    Ok(())
}

impl<'a> Servers<'a> {
    fn start_all(programs: &'a Path, folder: &Path) -> anyhow::Result<Self> {
        // Free a moment ago; anyone who takes one of them meanwhile has the start fail.
        let free = (0..NAMES.len()).map(|_| TcpListener::bind("127.0.0.1:0"));
        let free: Vec<TcpListener> = free.collect::<Result<_, _>>()?;
        let addresses = free.iter().map(|free| Ok(free.local_addr()?.to_string()));
        let mut servers = Self {
            programs,
            folder: folder.to_owned(),
            addresses: addresses.collect::<anyhow::Result<_>>()?,
            running: Vec::new(),
        };
        drop(free);
        for server in 0..NAMES.len() {
            let child = servers.start(server)?;
            servers.running.push(child);
        }
        Ok(servers)
    }

    fn start(&self, server: usize) -> anyhow::Result<Child> {
        let name = NAMES[server];
        let (role, _) = name.rsplit_once('-').context("a name with a number")?;
        let data = self.folder.join(name);
        let mut command = Command::new(self.programs.join(format!("percolator-{role}")));
        command
            .args(["--server", name, "--listen", &self.addresses[server]])
            .arg("--data-dir")
            .arg(&data);
        if server != MASTER {
            command.args(["--master", &self.addresses[MASTER]]);
        } else if !data.exists() {
            command.arg("--new-cluster");
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{name}.log")))?;
        let started = command.stdin(Stdio::null()).stdout(Stdio::null());
        started
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))
    }

    fn percolator(&self, arguments: &[&str]) -> anyhow::Result<bool> {
        let done = Command::new(self.programs.join("percolator"))
            .args(["-c", &self.addresses[MASTER]])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        Ok(done.success())
    }

    /// Again until it succeeds.
    fn until(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.percolator(arguments)? {
            if began.elapsed() > TIMEOUT {
                bail!(
                    "`percolator {}` fails for {} s",
                    arguments.join(" "),
                    TIMEOUT.as_secs()
                );
            }
        }
        Ok(())
    }

    fn fill(&self) -> anyhow::Result<()> {
        self.until(&["table", "create", "t"])?;
        let rows = self.folder.join("rows.csv");
        let line = |number| format!("{number:08},{}\n", "v".repeat(100));
        let lines: String = (0..ROWS).map(line).collect();
        std::fs::write(&rows, format!("id,text\n{lines}"))?;
        let rows = rows.to_string_lossy().into_owned();
        self.until(&["import", "-q", "--table", "t", "--key", "id", &rows])
    }

    /// Ends a server and starts it again. Returns how long that took from its start to a client's first read.
    fn replace(&mut self, server: usize, before: Before) -> anyhow::Result<Duration> {
        let running = &mut self.running[server];
        match before {
            Before::Orderly => signal(&running.id().to_string(), "TERM")?,
            Before::Killed | Before::KilledElsewhere => running.kill()?,
        }
        running.wait()?;
        if matches!(before, Before::KilledElsewhere) {
            let data = self.folder.join(NAMES[server]);
            let copy = data.with_extension("copy");
            let copied = Command::new("cp").arg("-a").args([&data, &copy]).status()?;
            if !copied.success() {
                bail!("cannot copy {}", data.display());
            }
            std::fs::remove_dir_all(&data)?;
            std::fs::rename(&copy, &data)?;
        }
        let began = Instant::now();
        self.running[server] = self.start(server)?;
        self.until(&["get", "t", "00000007", "text"])?;
        Ok(began.elapsed())
    }
}

impl Drop for Servers<'_> {
    fn drop(&mut self) {
        for process in &mut self.running {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
