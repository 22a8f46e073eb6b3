//! `cargo xtask bench failover`: for how long nothing goes on when the leader of several oracles, or of several masters, is
//! killed, stands still or ends, as clients see it. And what a register behind the oracle costs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{
    Args,
    cluster::{Cluster, signal},
};

const PORT: u16 = 17_400;
/// A cluster with a standby of each role.
const SEVERAL: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: failover}\n\
                       spec: {oracle: {replicas: 2}, gcMaster: {replicas: 2}, tablets: {replicas: 1}}\n";
/// How long clients run, with the fault after [`BEFORE`].
const CLIENTS_RUN: Duration = Duration::from_secs(10);
const BEFORE: Duration = Duration::from_secs(2);
/// All servers are there again within this, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of a leader.
#[derive(Clone, Copy)]
enum Fault {
    /// SIGTERM: it hands over.
    Ended,
    /// SIGKILL, and no new process until the clients are done.
    Killed,
    /// SIGSTOP, and SIGCONT when the clients are done.
    StandsStill,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Ended, Self::Killed, Self::StandsStill];

    fn about(self) -> &'static str {
        match self {
            Self::Ended => "ends (SIGTERM)",
            Self::Killed => "is killed (SIGKILL)",
            Self::StandsStill => "stands still (SIGSTOP)",
        }
    }

    fn signal(self) -> &'static str {
        match self {
            Self::Ended => "TERM",
            Self::Killed => "KILL",
            Self::StandsStill => "STOP",
        }
    }
}

/// Whose leader it is.
#[derive(Clone, Copy)]
enum Role {
    /// Transfers stop without it.
    Oracle,
    /// No setting can be changed without it.
    Master,
}

pub(super) fn run(programs: &Path, args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let turns = usize::try_from(args.turns)?;
    throughput(programs, folder.path(), args)?;
    let bench = Bench::start(programs, folder.path())?;
    println!("for how long nothing went on, {turns} faults of each kind, milliseconds");
    println!("{:<62}{:>8}{:>8}{:>8}", "", "median", "p99", "longest");
    let mut results = BTreeMap::new();
    for (role, name) in [(Role::Oracle, "oracle"), (Role::Master, "master")] {
        for fault in Fault::ALL {
            let mut gaps = Vec::with_capacity(turns);
            for _ in 0..turns {
                gaps.push(bench.gap(role, fault)?.as_millis());
            }
            gaps.sort_unstable();
            // Of fewer than a hundred, the 99th percentile is the longest.
            let at = |percent: usize| gaps[(gaps.len() * percent).div_ceil(100) - 1];
            let what = match role {
                Role::Oracle => "no transfer: the leading oracle",
                Role::Master => "no setting changed: the leading master",
            };
            let what = format!("{what} {}", fault.about());
            println!("{what:<62}{:>8}{:>8}{:>8}", at(50), at(99), at(100));
            results.insert(format!("{name} {}", fault.about()), gaps);
        }
    }
    bench.cluster.stop()?;
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
    for _ in 0..args.turns.min(10) {
        for ((_, port), rates) in clusters.iter().zip(&mut rates) {
            let said = Command::new(&percolator)
                .args(["-c", &format!("127.0.0.1:{port}"), "-o", "json"])
                .args(["bench", "oracle", "--duration", duration])
                .stderr(Stdio::inherit())
                .output()?;
            let said: Value = serde_json::from_slice(&said.stdout)?;
            let rate = said["figures"][0]["per_second"].as_f64();
            rates.push(rate.context("the benchmark answers without a figure")?);
        }
    }
    for (cluster, _) in clusters {
        cluster.stop()?;
    }
    let [without, with] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!(
        "timestamps a second, medians: {without:.0} of one oracle, {with:.0} with a register and a standby: ratio {:.3}",
        with / without
    );
    Ok(())
}

struct Bench<'a> {
    programs: &'a Path,
    data: PathBuf,
    /// Their addresses.
    masters: String,
    cluster: Cluster,
}

impl<'a> Bench<'a> {
    fn start(programs: &'a Path, folder: &Path) -> anyhow::Result<Self> {
        let (manifest, data) = (folder.join("failover.yaml"), folder.join("data"));
        std::fs::write(&manifest, SEVERAL)?;
        let (file, folder) = (manifest.to_string_lossy(), data.to_string_lossy());
        let arguments = ["-f", &*file, "--data-dir", &*folder];
        let cluster = Cluster::start(&programs.join("percolator"), PORT, &arguments)?;
        let masters = running(&data)?.into_iter();
        let masters = masters.filter(|running| running["role"] == "master");
        let addresses = masters.filter_map(|master| Some(master["address"].as_str()?.to_owned()));
        Ok(Self {
            programs,
            masters: addresses.collect::<Vec<_>>().join(","),
            data,
            cluster,
        })
    }

    fn percolator(&self) -> Command {
        let mut command = Command::new(self.programs.join("percolator"));
        command.args(["-c", &self.masters, "-q", "-o", "json"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// The status, as soon as every server is up.
    fn status(&self) -> anyhow::Result<Value> {
        let began = Instant::now();
        loop {
            let said = self.percolator().arg("status").output()?;
            let status: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
            let servers = status["servers"].as_array();
            let is_up = |server: &Value| server["up"] == true;
            // Two oracles and a tablet server.
            if servers.is_some_and(|servers| servers.len() == 3 && servers.iter().all(is_up)) {
                return Ok(status);
            }
            if began.elapsed() > PATIENCE {
                bail!("after {PATIENCE:?} not every server is up: {status}");
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// The process of the leader.
    fn leader(&self, role: Role) -> anyhow::Result<String> {
        let status = self.status()?;
        let name = match role {
            Role::Master => status["master_name"].as_str(),
            Role::Oracle => {
                let mut servers = status["servers"].as_array().into_iter().flatten();
                let leads = |server: &&Value| server["leads_term"].as_u64().is_some();
                servers.find(leads).and_then(|it| it["server"].as_str())
            }
        };
        let name = name.context("nobody leads")?;
        let mut running = running(&self.data)?.into_iter();
        let process = running.find(|running| running["server"] == name);
        let pid = process.and_then(|process| process["pid"].as_u64());
        Ok(pid.context("it has no process")?.to_string())
    }

    /// The longest time without a success while this happens to the leader of this role.
    fn gap(&self, role: Role, fault: Fault) -> anyhow::Result<Duration> {
        // One that was just started is a standby only after it has seen its leader, and promised not to take over.
        self.status()?;
        sleep(Duration::from_secs(4));
        let leader = self.leader(role)?;
        let up = self.cluster.id();
        let strike = || {
            sleep(BEFORE);
            // Otherwise the same one may be there again before another one takes over.
            signal(&up, "STOP")?;
            signal(&leader, fault.signal())
        };
        let gap = match role {
            Role::Oracle => self.transfers(strike),
            Role::Master => self.settings(strike),
        };
        if matches!(fault, Fault::StandsStill) {
            signal(&leader, "CONT")?;
        }
        signal(&up, "CONT")?;
        gap
    }

    fn transfers(&self, strike: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
        let bank = self
            .percolator()
            .args(["bank", "--accounts", "1000", "--clients", "8"])
            .args(["--duration", &format!("{}s", CLIENTS_RUN.as_secs())])
            .stdout(Stdio::piped())
            .spawn()?;
        strike()?;
        let said = bank.wait_with_output()?;
        let summary: Value = serde_json::from_slice(&said.stdout)?;
        if summary["failed"] != 0 || summary["wrong_sums"] != 0 {
            bail!("transfers failed: {summary}");
        }
        let stall = summary["longest_stall_ms"].as_f64();
        Ok(Duration::from_secs_f64(
            stall.context("no figure of the bank")? / 1000.0,
        ))
    }

    fn settings(&self, strike: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let change = || {
            let (mut last, mut longest) = (began, Duration::ZERO);
            for retention in ["10m", "11m"].into_iter().cycle() {
                if began.elapsed() >= CLIENTS_RUN {
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

/// What `percolator up` says of its processes.
fn running(data: &Path) -> anyhow::Result<Vec<Value>> {
    Ok(serde_json::from_slice(&std::fs::read(
        data.join("servers.json"),
    )?)?)
}
