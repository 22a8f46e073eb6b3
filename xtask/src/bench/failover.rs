//! `cargo xtask bench failover`: for how long nothing goes on when the leader of several oracles, or of several masters, is
//! killed, stands still or ends, as clients see it. And what a register behind the oracle costs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{
    Args,
    cluster::{Cluster, signal},
    turns::{median, order},
    volume::Volume,
};

pub(crate) const PORT: u16 = 17_400;
/// A cluster with a standby of each role.
const SEVERAL: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: failover}\n\
                       spec: {oracle: {replicas: 2}, gcMaster: {replicas: 2}, tablets: {replicas: 1}}\n";
/// The fault comes when clients have run for so long.
const BEFORE: Duration = Duration::from_secs(1);
/// A leader has a disk that hangs for so long before it is killed: a write waits for it then.
const DISK_HANGS: Duration = Duration::from_secs(1);
/// All servers are there again within this, or something is wrong.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What becomes of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fault {
    /// SIGTERM: it hands over.
    Ended,
    /// SIGKILL, and no new process until the clients are done.
    Killed,
    /// SIGSTOP, and SIGCONT when the clients are done.
    StandsStill,
    /// SIGKILL, when its folder takes no write: it can't even end until the clients are done. Needs root.
    KilledInWrite,
}

impl Fault {
    /// Those that need no volumes.
    pub(crate) const OF_PROCESSES: [Self; 3] = [Self::Ended, Self::Killed, Self::StandsStill];

    /// How long clients run: well beyond the longest gap.
    fn clients_run(self) -> Duration {
        Duration::from_secs(match self {
            Self::Ended => 4,
            Self::Killed | Self::StandsStill => 8,
            Self::KilledInWrite => 10,
        })
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Ended => "ends (SIGTERM)",
            Self::Killed => "is killed (SIGKILL)",
            Self::StandsStill => "stands still (SIGSTOP)",
            Self::KilledInWrite => "is killed while its disk hangs",
        }
    }
}

/// A leader: its name and its process.
struct Leader {
    name: String,
    pid: String,
}

/// Whose leader it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Transfers stop without it.
    Oracle,
    /// No setting can be changed without it.
    Master,
}

impl Role {
    pub(crate) const ALL: [Self; 2] = [Self::Oracle, Self::Master];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::Master => "master",
        }
    }
}

/// The median, the 99th percentile and the longest of some gaps in milliseconds.
pub(crate) fn distribution(gaps: &mut [u128]) -> [u128; 3] {
    gaps.sort_unstable();
    // Of fewer than a hundred, the 99th percentile is the longest.
    [50, 99, 100].map(|percent| gaps[(gaps.len() * percent).div_ceil(100) - 1])
}

pub(super) fn run(programs: &Path, args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let turns = usize::try_from(args.turns)?;
    let mut faults = args.faults.clone();
    if faults.is_empty() {
        throughput(programs, folder.path(), args)?;
        faults.extend(Fault::OF_PROCESSES);
    }
    let on_volumes = faults.contains(&Fault::KilledInWrite);
    let start = |role: Role, port| {
        let folder = folder.path().join(role.name());
        std::fs::create_dir(&folder)?;
        Bench::start(programs, &folder, port, on_volumes)
    };
    let oracles = start(Role::Oracle, PORT)?;
    let masters = start(Role::Master, PORT + 100)?;
    println!("for how long nothing went on, {turns} faults of each kind, milliseconds");
    println!("{:<62}{:>8}{:>8}{:>8}", "", "median", "p99", "longest");
    let mut results = BTreeMap::new();
    for fault in faults {
        let gaps = |bench: &Bench, role| -> anyhow::Result<Vec<u128>> {
            let gaps = (0..turns).map(|_| Ok(bench.gap(role, fault)?.as_millis()));
            gaps.collect()
        };
        // What takes milliseconds is measured alone; what waits for a right to end, side by side.
        let (of_oracles, of_masters) = if fault == Fault::Ended {
            let of_oracles = gaps(&oracles, Role::Oracle);
            (of_oracles, gaps(&masters, Role::Master))
        } else {
            std::thread::scope(|scope| {
                let of_oracles = scope.spawn(|| gaps(&oracles, Role::Oracle));
                let of_masters = gaps(&masters, Role::Master);
                let of_oracles = of_oracles.join();
                let panicked = |_| Err(anyhow::anyhow!("the bench panicked"));
                (of_oracles.unwrap_or_else(panicked), of_masters)
            })
        };
        for (role, gaps) in [(Role::Oracle, of_oracles), (Role::Master, of_masters)] {
            let mut gaps = gaps?;
            let [median, p99, longest] = distribution(&mut gaps);
            let what = match role {
                Role::Oracle => "no transfer: the leading oracle",
                Role::Master => "no setting changed: the leading master",
            };
            let what = format!("{what} {}", fault.about());
            println!("{what:<62}{median:>8}{p99:>8}{longest:>8}");
            results.insert(format!("{} {}", role.name(), fault.about()), gaps);
        }
    }
    oracles.stop()?;
    masters.stop()?;
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec(&results)?)?;
    }
    Ok(())
}

/// Timestamps a second of one oracle without a register, and of a leader with a register and a standby, in turns.
fn throughput(programs: &Path, folder: &Path, args: &Args) -> anyhow::Result<()> {
    let percolator = programs.join("percolator");
    let mut rates = [Vec::new(), Vec::new()];
    let sides = [
        SEVERAL.replace("oracle: {replicas: 2}, ", ""),
        SEVERAL.to_owned(),
    ];
    let mut clusters = Vec::new();
    for (side, manifest) in sides.iter().enumerate() {
        let (file, data) = (
            folder.join(format!("{side}.yaml")),
            folder.join(format!("side-{side}")),
        );
        std::fs::write(&file, manifest)?;
        let port = PORT + 100 * u16::try_from(side)?;
        let (file, data) = (file.to_string_lossy(), data.to_string_lossy());
        let arguments = ["-f", &*file, "--data-dir", &*data];
        clusters.push((Cluster::start(&percolator, port, &arguments)?, port));
    }
    let duration = args.duration.as_deref().unwrap_or("3s");
    for round in 1..=args.turns.min(10) {
        for side in order(round) {
            let (_, port) = &clusters[side];
            let said = Command::new(&percolator)
                .args(["-c", &format!("127.0.0.1:{port}"), "-o", "json"])
                .args(["bench", "oracle", "--duration", duration])
                .stderr(Stdio::inherit())
                .output()?;
            let said: Value = serde_json::from_slice(&said.stdout)?;
            let rate = said["figures"][0]["per_second"].as_f64();
            rates[side].push(rate.context("the benchmark answers without a figure")?);
        }
    }
    for (cluster, _) in clusters {
        cluster.stop()?;
    }
    let [without, with] = rates;
    let ratios: Vec<f64> = without
        .iter()
        .zip(&with)
        .map(|(it, with)| with / it)
        .collect();
    println!(
        "timestamps a second, medians: {:.0} of one oracle, {:.0} with a register and a standby; of the turns' ratios: {:.3}",
        median(&without),
        median(&with),
        median(&ratios)
    );
    Ok(())
}

pub(crate) struct Bench<'a> {
    programs: &'a Path,
    data: PathBuf,
    /// Their addresses.
    masters: String,
    /// Under the folders of all that can lead; by server.
    volumes: BTreeMap<&'static str, Volume>,
    /// What was answered to the bank, once all clients are recorded.
    recorded: Option<Recorded>,
    cluster: Cluster,
}

/// Where clients record what they were told.
pub(crate) struct Recorded {
    /// Of the bank.
    pub(crate) ledger: PathBuf,
    pub(crate) history: PathBuf,
}

impl Recorded {
    /// What clients were told is there, and snapshot isolation explains it. `percolator`: a command at the cluster that answers in JSON.
    pub(crate) fn check(&self, percolator: impl Fn() -> Command) -> anyhow::Result<()> {
        check_bank(percolator(), &self.ledger)?;
        println!(
            "the history: {}",
            check_history(percolator(), &self.history)?
        );
        Ok(())
    }
}

/// The transfers that were answered as done are there, and no others.
pub(crate) fn check_bank(mut percolator: Command, ledger: &Path) -> anyhow::Result<()> {
    percolator.args(["bank", "--accounts", "1000", "--verify"]);
    let said = percolator.arg(ledger).output()?;
    let found: Value = serde_json::from_slice(&said.stdout)?;
    for wrong in ["lost", "aborted_but_there", "wrong_accounts"] {
        anyhow::ensure!(found[wrong] == 0, "the bank: {found}");
    }
    println!("the bank: {found}");
    Ok(())
}

/// Snapshot isolation explains the history: what the check says of it.
pub(crate) fn check_history(mut percolator: Command, file: &Path) -> anyhow::Result<String> {
    let said = percolator.args(["history", "check"]).arg(file).output()?;
    let report = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    let failure = String::from_utf8_lossy(&said.stderr);
    let ended = said.status;
    anyhow::ensure!(ended.success(), "the history, {ended}: {report}{failure}");
    Ok(report)
}

const REPLICAS: [&str; 4] = ["gc-master-0", "gc-master-1", "tso-0", "tso-1"];

impl<'a> Bench<'a> {
    /// `on_volumes`: each server that can lead has its folder on a volume of its own, which needs root.
    pub(crate) fn start(
        programs: &'a Path,
        folder: &Path,
        port: u16,
        on_volumes: bool,
    ) -> anyhow::Result<Self> {
        let (manifest, data) = (folder.join("failover.yaml"), folder.join("data"));
        std::fs::write(&manifest, SEVERAL)?;
        let (file, folder) = (manifest.to_string_lossy(), data.to_string_lossy());
        let arguments = ["-f", &*file, "--data-dir", &*folder];
        let start = || Cluster::start(&programs.join("percolator"), port, &arguments);
        let mut cluster = start()?;
        let mut volumes = BTreeMap::new();
        if on_volumes {
            cluster.stop()?;
            let place = manifest.with_file_name("volumes");
            for server in REPLICAS {
                let moved = Volume::under(&data.join(server), &place.join(server))?;
                volumes.insert(server, moved);
            }
            cluster = start()?;
        }
        let masters = running(&data)?.into_iter();
        let masters = masters.filter(|running| running["role"] == "master");
        let addresses = masters.filter_map(|master| Some(master["address"].as_str()?.to_owned()));
        Ok(Self {
            programs,
            masters: addresses.collect::<Vec<_>>().join(","),
            data,
            volumes,
            recorded: None,
            cluster,
        })
    }

    /// From now on clients record the answers.
    pub(crate) fn record(&mut self, recorded: Recorded) {
        self.recorded = Some(recorded);
    }

    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.cluster.stop()
    }

    /// What clients were told is there, and snapshot isolation explains it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let recorded = self.recorded.as_ref().context("nothing was recorded")?;
        recorded.check(|| self.percolator())
    }

    /// Clients beside those that measure.
    fn beside(&self, role: Role, runs: Duration) -> anyhow::Result<Vec<Child>> {
        let Some(recorded) = &self.recorded else {
            return Ok(Vec::new());
        };
        let mut history = self.percolator();
        history.args(["history", "record", "--duration", &seconds(runs)]);
        let mut clients = vec![
            history
                .arg(&recorded.history)
                .stdout(Stdio::null())
                .spawn()?,
        ];
        if role == Role::Master {
            clients.push(self.bank(runs).stdout(Stdio::null()).spawn()?);
        }
        Ok(clients)
    }

    fn bank(&self, runs: Duration) -> Command {
        let mut bank = self.percolator();
        bank.args(["bank", "--accounts", "1000", "--clients", "8"]);
        bank.args(["--duration", &seconds(runs)]);
        bank.stderr(Stdio::inherit());
        if let Some(recorded) = &self.recorded {
            bank.arg("--ledger").arg(&recorded.ledger);
        }
        bank
    }

    fn percolator(&self) -> Command {
        let mut command = Command::new(self.programs.join("percolator"));
        command.args(["-c", &self.masters, "-q", "-o", "json"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// What is found in the status, as soon as it is there.
    fn find<T>(&self, what: &str, find: impl Fn(&Value) -> Option<T>) -> anyhow::Result<T> {
        let began = Instant::now();
        loop {
            let said = self.percolator().arg("status").output()?;
            let status: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
            if let Some(found) = find(&status) {
                return Ok(found);
            }
            if began.elapsed() > TIMEOUT {
                bail!("after {TIMEOUT:?} the status doesn't show {what}: {status}");
            }
            sleep(Duration::from_millis(100));
        }
    }

    fn all_are_up(&self) -> anyhow::Result<()> {
        self.find("that every server is up", |status| {
            let servers = status["servers"].as_array().into_iter().flatten();
            let servers = servers.filter(|server| server["role"] != "proxy");
            let up = servers.filter(|server| server["up"] == true).count();
            // A standby master, two oracles and a tablet server.
            (up == 4).then_some(())
        })
    }

    fn leader(&self, role: Role) -> anyhow::Result<Leader> {
        let name = self.find("who leads", |status| leader_of(status, role))?;
        Ok(Leader {
            pid: pid(&self.data, &name)?.context("it has no process")?,
            name,
        })
    }

    /// Another one leads than before the fault, which has not ended yet.
    fn another_leads(&self, role: Role, before: &Leader) -> anyhow::Result<()> {
        let what = format!("that another {} than {} leads", role.name(), before.name);
        self.find(&what, |status| {
            let leader = leader_of(status, role)?;
            (leader != before.name).then_some(())
        })
    }

    /// What begins the fault, or ends it.
    fn set(&self, fault: Fault, leader: &Leader, is_there: bool) -> anyhow::Result<()> {
        let volume = || self.volumes.get(&*leader.name).context("it has no volume");
        match (fault, is_there) {
            (Fault::Ended, true) => signal(&leader.pid, "TERM"),
            (Fault::Killed, true) => signal(&leader.pid, "KILL"),
            (Fault::StandsStill, true) => signal(&leader.pid, "STOP"),
            (Fault::StandsStill, false) => signal(&leader.pid, "CONT"),
            (Fault::KilledInWrite, true) => {
                volume()?.freeze()?;
                sleep(DISK_HANGS);
                signal(&leader.pid, "KILL")
            }
            (Fault::KilledInWrite, false) => volume()?.go_on(),
            (Fault::Ended | Fault::Killed, false) => Ok(()),
        }
    }

    /// The longest time without a success while this happens to the leader of this role.
    pub(crate) fn gap(&self, role: Role, fault: Fault) -> anyhow::Result<Duration> {
        // One that was just started is a standby only after it has seen its leader, and promised not to take over.
        self.all_are_up()?;
        sleep(Duration::from_secs(4));
        let leader = self.leader(role)?;
        let up = self.cluster.id();
        let strike = || {
            sleep(BEFORE);
            // Otherwise the same one may be there again before another one takes over.
            signal(&up, "STOP")?;
            self.set(fault, &leader, true)
        };
        let runs = fault.clients_run();
        let beside = self.beside(role, runs)?;
        let gap = match role {
            Role::Oracle => self.transfers(runs, strike),
            Role::Master => self.settings(runs, strike),
        };
        let taken_over = self.another_leads(role, &leader);
        self.set(fault, &leader, false)?;
        signal(&up, "CONT")?;
        taken_over?;
        for mut client in beside {
            let ended = client.wait()?;
            anyhow::ensure!(ended.success(), "a client beside failed: {ended}");
        }
        gap
    }

    fn transfers(
        &self,
        runs: Duration,
        strike: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        let bank = self.bank(runs).stdout(Stdio::piped()).spawn()?;
        strike()?;
        let summary = summary(bank)?;
        let stall = summary["longest_stall_ms"].as_f64();
        Ok(Duration::from_secs_f64(
            stall.context("no figure of the bank")? / 1000.0,
        ))
    }

    fn settings(
        &self,
        runs: Duration,
        strike: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let change = || {
            let (mut last, mut longest) = (began, Duration::ZERO);
            for retention in ["10m", "11m"].into_iter().cycle() {
                if began.elapsed() >= runs {
                    break;
                }
                let mut command = self.percolator();
                command.args(["gc", "set", "--retention", retention]);
                if command.stdout(Stdio::null()).status()?.success() {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            anyhow::Ok(longest.max(last.elapsed()))
        };
        std::thread::scope(|scope| {
            let changed = scope.spawn(change);
            strike()?;
            changed
                .join()
                .map_err(|_| anyhow::anyhow!("the client panicked"))?
        })
    }
}

/// The server of this role that leads, as a status shows it.
fn leader_of(status: &Value, role: Role) -> Option<String> {
    let name = match role {
        Role::Master => status["master_name"].as_str(),
        Role::Oracle => {
            let mut servers = status["servers"].as_array()?.iter();
            let oracle = servers.find(|server| server["leads_term"].is_u64())?;
            oracle["server"].as_str()
        }
    };
    name.map(str::to_owned)
}

fn seconds(runs: Duration) -> String {
    format!("{}s", runs.as_secs())
}

/// What a bank says when it ends: no transfer has failed, and the outcome of each is known.
pub(crate) fn summary(bank: Child) -> anyhow::Result<Value> {
    let said = bank.wait_with_output()?;
    let summary: Value = serde_json::from_slice(&said.stdout)?;
    // What is unknown at the end was asked for, and nobody answered.
    let failures = ["failed", "unknown", "wrong_sums"];
    if failures.into_iter().any(|it| summary[it] != 0) {
        bail!("transfers failed: {summary}");
    }
    Ok(summary)
}

/// The process of a server.
pub(crate) fn pid(data: &Path, server: &str) -> anyhow::Result<Option<String>> {
    let mut running = running(data)?.into_iter();
    let process = running.find(|running| running["server"] == server);
    let pid = process.and_then(|process| process["pid"].as_u64());
    Ok(pid.map(|pid| pid.to_string()))
}

/// What `percolator up` says of its processes.
fn running(data: &Path) -> anyhow::Result<Vec<Value>> {
    Ok(serde_json::from_slice(&std::fs::read(
        data.join("servers.json"),
    )?)?)
}
