//! Real clusters and the real command, for tests. Nothing here sleeps but while a process stands still: it waits on
//! conditions, with generous bounds, and shows what it saw when they don't come.
//!
//! The servers' programs are those that lie beside the command: `cargo test -p percolator-cli` alone doesn't
//! build them anew, `cargo xtask test` does, and so does `cargo build --workspace --bins`.

pub(crate) mod clients;
pub(crate) mod collector;
pub(crate) mod http;
pub(crate) mod network;
pub(crate) mod observing;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod server;
pub(crate) mod sessions;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

pub(crate) use clients::{end_bank, start_bank, wait_for_transfers};

/// The command under test.
pub(crate) const PERCOLATOR: &str = env!("CARGO_BIN_EXE_percolator");

/// Longer than anything takes, even on a machine that does something else meanwhile.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// What a command said.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Its standard output, where it went well.
    pub(crate) fn ok(self) -> String {
        assert!(self.status.success(), "{self:#?}");
        self.out
    }

    /// Fails unless the command failed with this code and said all of these.
    pub(crate) fn refused(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code(), code, "{self:#?}");
        for words in said {
            assert!(self.err.contains(words), "no {words:?} in {self:#?}");
        }
    }
}

/// Runs the command to its end.
pub(crate) fn percolator(arguments: &[&str]) -> CommandOutput {
    percolator_with(arguments, "")
}

/// Runs the command to its end, with this on its standard input.
pub(crate) fn percolator_with(arguments: &[&str], input: &str) -> CommandOutput {
    let mut child = Command::new(PERCOLATOR)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A command that refuses its arguments doesn't read.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().expect("the command ends");
    writer.join().expect("the writer ends");
    CommandOutput {
        status: output.status,
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A cluster under `percolator up`, stopped when it is dropped.
pub(crate) struct Cluster {
    child: Child,
    pub(crate) master: String,
    pub(crate) data_dir: PathBuf,
    errors: mpsc::Receiver<String>,
    reader: Option<JoinHandle<()>>,
    folder: Option<tempfile::TempDir>,
}

impl Cluster {
    /// Servers as threads of one process.
    pub(crate) fn threads() -> Self {
        Self::start(&[])
    }

    /// Servers as processes of their own.
    pub(crate) fn processes() -> Self {
        Self::start(&["--processes"])
    }

    /// With more arguments for `up`.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// With more arguments, and with these variables.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data_dir = folder.path().join("data");
        let mut cluster = Self::start_by(&data_dir, arguments, variables);
        cluster.folder = Some(folder);
        cluster
    }

    /// Three tablet servers and the others, each a process of its own.
    pub(crate) fn of_three() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = Self::of_three_in(folder.path());
        cluster.folder = Some(folder);
        cluster
    }

    /// The same in a folder that the caller keeps.
    pub(crate) fn of_three_in(folder: &Path) -> Self {
        const MANIFEST: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: three}\n\
                                spec: {tablets: {replicas: 3}}\n";
        let manifest = folder.join("cluster.yaml");
        std::fs::write(&manifest, MANIFEST).expect("written");
        let up = ["--processes", "-f", manifest.to_str().expect("text")];
        Self::start_by(&folder.join("data"), &up, &[])
    }

    /// The tablets of a table: their numbers and their servers.
    pub(crate) fn tablets(&self, table: &str) -> Vec<(String, String)> {
        let listed = self.run(&["tablet", "list", table, "-o", "json"]).ok();
        let tablets = listed.lines().map(|line| {
            let tablet: Value = serde_json::from_str(line).expect("JSON");
            let server = tablet["server"].as_str().expect("a server").to_owned();
            (tablet["id"].to_string(), server)
        });
        tablets.collect()
    }

    /// The first rows of a table's tablets.
    pub(crate) fn starts(&self, table: &str) -> Vec<String> {
        let listed = self.run(&["tablet", "list", table, "-o", "json"]).ok();
        let starts = listed.lines().map(|line| {
            let tablet: Value = serde_json::from_str(line).expect("JSON");
            tablet["start_row"].as_str().expect("a row").to_owned()
        });
        starts.collect()
    }

    /// A tablet of a table, and one of three servers that doesn't have it.
    pub(crate) fn tablet_to_move(&self, table: &str, choices: &mut Choices) -> (String, String) {
        let mut tablets = self.tablets(table);
        let number = choices.below(tablets.len() as u64);
        let (tablet, server) = tablets.swap_remove(number as usize);
        let others = (0..3).map(|number| format!("tablet-{number}"));
        let mut others: Vec<String> = others.filter(|other| *other != server).collect();
        let number = choices.below(others.len() as u64);
        (tablet, others.swap_remove(number as usize))
    }

    /// In a folder that the caller keeps.
    pub(crate) fn start_in(data_dir: &Path, arguments: &[&str]) -> Self {
        Self::start_by(data_dir, arguments, &[])
    }

    /// In a folder that the caller keeps, with these variables.
    pub(crate) fn start_by(
        data_dir: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut child = Command::new(PERCOLATOR)
            .args(["up", "-o", "json", "--port", "0", "--data-dir"])
            .arg(data_dir)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let stderr = child.stderr.take().expect("a pipe");
        let (sender, errors) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("readable output");
        let running: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            let _ = child.kill();
            panic!(
                "the cluster did not start: {line:?}\n{}",
                errors.iter().collect::<Vec<_>>().join("\n")
            )
        });
        let servers = running.as_array().expect("a list").iter();
        let masters = servers.filter(|server| server["role"] == "master");
        let masters: Vec<&str> = masters
            .map(|master| master["address"].as_str().expect("an address"))
            .collect();
        Self {
            master: masters.join(","),
            data_dir: data_dir.to_owned(),
            child,
            errors,
            reader: Some(reader),
            folder: None,
        }
    }

    /// Runs a command against the cluster.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_with(arguments, "")
    }

    /// Runs a command against the cluster, with this on its standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &str) -> CommandOutput {
        percolator_with(&[&["-c", self.master.as_str()], arguments].concat(), input)
    }

    /// Checks what the bank of these accounts and options answered against what is there, and returns what was found.
    pub(crate) fn bank_holds(&self, bank: &[&str], ledger: &str) -> Value {
        let verify = ["--verify", ledger, "-o", "json"];
        let said = self.run(&[&["bank"], bank, &verify].concat());
        eprintln!("{}{}", said.err, said.out);
        let found: Value = serde_json::from_str(&said.ok()).expect("JSON");
        for wrong in ["lost", "aborted_but_there", "wrong_accounts"] {
            assert_eq!(found[wrong], 0, "{found}");
        }
        found
    }

    /// The sum of the balances of table accounts: the first word of each value.
    pub(crate) fn money(&self) -> u64 {
        let scanned = wait_for("the balances", || {
            let scanned = self.run(&["scan", "accounts"]);
            (scanned.code() == 0).then_some(scanned.out)
        });
        let balance = |line: &str| {
            let value = line.rsplit('\t').next()?;
            value.split(' ').next()?.parse::<u64>().ok()
        };
        let balances = scanned
            .lines()
            .map(|line| balance(line).expect("a balance"));
        balances.sum()
    }

    /// A command against the cluster, to be started by the caller.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PERCOLATOR);
        command.args(["-c", self.master.as_str()]).args(arguments);
        command
    }

    /// The process of a server, of a cluster of processes.
    pub(crate) fn pid(&self, server: &str) -> u32 {
        wait_for(&format!("a process of {server}"), || {
            let pid = self.running(server)?["pid"].as_u64();
            pid.and_then(|pid| u32::try_from(pid).ok())
        })
    }

    /// Where the server shows metrics and health.
    pub(crate) fn metrics_address(&self, server: &str) -> String {
        wait_for(&format!("the endpoint of {server}"), || {
            let running = self.running(server)?;
            running["metrics"].as_str().map(str::to_owned)
        })
    }

    /// Where the proxy for other languages listens.
    pub(crate) fn proxy(&self) -> String {
        wait_for("the proxy's address", || {
            let running = self.running("proxy-0")?;
            running["address"].as_str().map(str::to_owned)
        })
    }

    /// What `up` says of the server.
    fn running(&self, server: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.data_dir.join("servers.json")).ok()?;
        let running: Value = serde_json::from_str(&text).ok()?;
        let mut running = running.as_array()?.iter();
        running.find(|running| running["server"] == server).cloned()
    }

    /// Does this while nobody starts a server again that is killed.
    pub(crate) fn without_restarts<T>(&self, act: impl FnOnce(&Self) -> T) -> T {
        signal(self.child.id(), "STOP");
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(self)));
        signal(self.child.id(), "CONT");
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Kills a server with SIGKILL, and waits until it was started again.
    pub(crate) fn kill(&self, server: &str) {
        let before = self.pid(server);
        signal(before, "KILL");
        wait_for(&format!("{server} to be started again"), || {
            (self.pid(server) != before).then_some(())
        });
    }

    /// Takes a server's folder away in one step, whatever it writes meanwhile, and kills it as [`Self::kill`] does.
    pub(crate) fn lose_folder(&self, server: &str) {
        let lost = self.data_dir.join("logs").join(format!("{server}-lost"));
        std::fs::rename(self.data_dir.join(server), lost).expect("moved");
        self.kill(server);
    }

    /// Waits until `up` says a line of which this is true on standard error, and gives all that it has said since the last
    /// time somebody waited.
    pub(crate) fn wait_for_line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> Vec<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut said = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.errors.recv_timeout(left) {
                Ok(line) => said.push(line),
                Err(error) => panic!("waited for {what}: {error}\n{}", said.join("\n")),
            }
            if said.last().is_some_and(|line| is_it(line)) {
                return said;
            }
        }
    }

    /// Kills `up` itself with SIGKILL: its servers are left to end by themselves.
    pub(crate) fn kill_up(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("up ends");
    }

    /// What it says until it ends.
    fn said(&self) -> String {
        self.errors.iter().collect::<Vec<_>>().join("\n")
    }

    /// Waits until it ends by itself, with a failure. Returns what it said.
    pub(crate) fn ended(mut self) -> String {
        let status = wait_for("up to end", || self.child.try_wait().expect("a child"));
        let said = self.said();
        assert!(!status.success(), "{said}");
        said
    }

    /// Stops it as Ctrl-C does. Returns its exit code and what it said.
    pub(crate) fn stop(mut self) -> (i32, String) {
        signal(self.child.id(), "TERM");
        let status = self.child.wait().expect("up ends");
        let said = self.said();
        (status.code().unwrap_or(-1), said)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if std::thread::panicking() {
            for line in self.errors.try_iter() {
                eprintln!("up: {line}");
            }
        }
    }
}

/// Runs a client's part of a test.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// Sends a signal, by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .expect("kill runs");
    // Anyone who has ended can't be signalled, and that is what was wanted.
    let _ = status;
}

/// Stops a process for longer than a lock lives, 3 s, and than a server may be silent, 1.5 s, and lets it go on: what
/// it held may be others' by then.
pub(crate) fn stand_still(pid: u32, choices: &mut Choices) {
    signal(pid, "STOP");
    std::thread::sleep(Duration::from_millis(3_500 + choices.below(2_000)));
    signal(pid, "CONT");
}

/// Asks again and again until there's an answer.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Whether there is a Go toolchain; without one, what needs it is skipped.
pub(crate) fn has_go() -> bool {
    let is_there = Command::new("go").arg("version").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED: there is no Go toolchain (go)");
    }
    is_there
}

/// Runs a command of a client to its end.
pub(crate) fn output_of(mut command: Command) -> CommandOutput {
    let output = command.output().expect("the command runs");
    CommandOutput {
        status: output.status,
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Waits until a cluster, whose commands `run` runs, makes a table.
pub(crate) fn wait_until_ready(run: impl Fn(&[&str]) -> CommandOutput) {
    let mut seen = None;
    wait_for("the cluster", || {
        let said = run(&[
            "table",
            "create",
            "ready",
            "--split-at",
            "h",
            "--split-at",
            "p",
        ]);
        let ready = said.code() == 0 || said.err.contains("already");
        seen = Some(said);
        ready.then_some(())
    });
    eprintln!("{seen:?}");
}

/// The servers of a cluster as it is by default.
pub(crate) const SERVERS: [&str; 5] = ["master-0", "tso-0", "tablet-0", "tablet-1", "tablet-2"];

/// A small generator, so that a seed gives the same choices everywhere.
pub(crate) struct Choices(u64);

impl Choices {
    pub(crate) fn from_env() -> Self {
        let seed = std::env::var("PERCOLATOR_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(rand::random);
        eprintln!("PERCOLATOR_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Draws from a list at random, each entry once before any comes again.
pub(crate) struct Deck<T> {
    all: Vec<T>,
    left: Vec<T>,
}

impl<T: Clone> Deck<T> {
    pub(crate) fn new(all: impl IntoIterator<Item = T>) -> Self {
        let all: Vec<T> = all.into_iter().collect();
        assert!(!all.is_empty(), "nothing to draw");
        Self {
            all,
            left: Vec::new(),
        }
    }

    pub(crate) fn draw(&mut self, choices: &mut Choices) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        let at = usize::try_from(choices.below(self.left.len() as u64)).expect("small");
        self.left.swap_remove(at)
    }

    /// Rounds that draw each entry once.
    pub(crate) fn len(&self) -> u64 {
        self.all.len() as u64
    }
}

/// The rounds that a test goes: as many as PERCOLATOR_ROUNDS says; or `usual`, for as long as there's time: 90 s, and
/// until PERCOLATOR_UNTIL, in seconds since 1970. But `least` in any case, below which it hasn't tested what it is for.
/// Says how many it were.
pub(crate) fn rounds(least: u64, usual: u64) -> impl Iterator<Item = u64> {
    const TIME: Duration = Duration::from_secs(90);
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let asked = number("PERCOLATOR_ROUNDS");
    let planned = asked.unwrap_or(usual).max(least);
    let until = number("PERCOLATOR_UNTIL").map(|at| UNIX_EPOCH + Duration::from_secs(at));
    let started = Instant::now();
    let mut rounds = 0..planned;
    std::iter::from_fn(move || {
        let done = rounds.start;
        let is_over =
            started.elapsed() > TIME || until.is_some_and(|until| SystemTime::now() > until);
        let next = if asked.is_none() && done >= least && is_over {
            None
        } else {
            rounds.next()
        };
        if next.is_none() {
            eprintln!("{done} of {planned} rounds in {:.0?}", started.elapsed());
        }
        next
    })
}
