//! `cargo xtask bench failover`: for how long nothing goes on when the leader of several oracles, or of several masters, is
//! killed, stands still, is cut off or ends, as clients see it. And what a register behind the oracle costs.

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
    cluster::Cluster,
    test_cluster::{ClusterKind, Fault, SEVERAL, TestCluster},
    turns::{median, order},
};
use crate::{context::Context, debian};

pub(crate) const PORT: u16 = 17_400;
/// The fault comes when clients have run for so long.
const BEFORE: Duration = Duration::from_secs(1);
/// All servers are there again within this, or something is wrong.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Clients that run for some seconds commit many more than this.
const COMMITTED_LEAST: u64 = 50;

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

pub(super) fn run(context: &Context, programs: &Path, args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut faults = args.faults.clone();
    if faults.is_empty() {
        throughput(programs, folder.path(), args)?;
        faults = Fault::possible()?;
    }
    let etcd = debian::ETCD.find(context);
    let turns = args.turns;
    println!("for how long nothing went on, {turns} faults of each kind, milliseconds");
    println!("{:<70}{:>8}{:>8}{:>8}", "", "median", "p99", "longest");
    let mut results = BTreeMap::new();
    for kind in ClusterKind::ALL {
        let faults: Vec<Fault> = faults
            .iter()
            .copied()
            .filter(|it| it.cluster_kind() == kind)
            .collect();
        if faults.is_empty() {
            continue;
        }
        let start = |role: Role, port| {
            let folder = folder.path().join(format!("{kind:?}-{}", role.name()));
            std::fs::create_dir(&folder)?;
            TestCluster::start(kind, programs, &folder, port, etcd.as_deref()).map(Bench::on)
        };
        let oracles = start(Role::Oracle, PORT)?;
        let masters = start(Role::Master, PORT + 100)?;
        for fault in faults {
            let both = gaps_of_both(&oracles, &masters, fault, turns)?;
            for (role, mut gaps) in Role::ALL.into_iter().zip(both) {
                let what = match role {
                    Role::Oracle => "no transfer: the leading oracle",
                    Role::Master => "no setting changed: the leading master",
                };
                show(&format!("{what} {}", fault.about()), &mut gaps);
                results.insert(format!("{} {}", role.name(), fault.about()), gaps);
            }
            if fault == Fault::Ended {
                // A new leader needs a heartbeat of each tablet server before it creates one.
                let gaps = (0..turns).map(|turn| Ok(masters.gap_of_tables(turn)?.as_millis()));
                let mut gaps = gaps.collect::<anyhow::Result<Vec<_>>>()?;
                let what = format!("table {}", fault.about());
                show(
                    &format!("no table made: the leading master {}", fault.about()),
                    &mut gaps,
                );
                results.insert(what, gaps);
            }
        }
        oracles.stop()?;
        masters.stop()?;
    }
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec(&results)?)?;
    }
    Ok(())
}

fn show(what: &str, gaps: &mut [u128]) {
    let [median, p99, longest] = distribution(gaps);
    println!("{what:<70}{median:>8}{p99:>8}{longest:>8}");
}

/// The gaps of so many faults of leading oracles, and of leading masters.
fn gaps_of_both(
    oracles: &Bench,
    masters: &Bench,
    fault: Fault,
    turns: u32,
) -> anyhow::Result<[Vec<u128>; 2]> {
    let gaps = |bench: &Bench, role| -> anyhow::Result<Vec<u128>> {
        let gaps = (0..turns).map(|_| Ok(bench.gap(role, fault)?.as_millis()));
        gaps.collect()
    };
    // What takes milliseconds is measured alone; what waits for a right to end, side by side.
    if fault == Fault::Ended {
        return Ok([gaps(oracles, Role::Oracle)?, gaps(masters, Role::Master)?]);
    }
    std::thread::scope(|scope| {
        let of_oracles = scope.spawn(|| gaps(oracles, Role::Oracle));
        let of_masters = gaps(masters, Role::Master);
        let of_oracles = of_oracles.join();
        let panicked = |_| Err(anyhow::anyhow!("the bench panicked"));
        Ok([of_oracles.unwrap_or_else(panicked)?, of_masters?])
    })
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

/// A cluster whose leaders are struck.
pub(crate) struct Bench {
    cluster: TestCluster,
    /// The answers to the bank, once all clients are recorded.
    recorded: Option<RecordedFiles>,
}

/// The files in which clients record the answers they received.
pub(crate) struct RecordedFiles {
    /// Of the bank.
    pub(crate) ledger: PathBuf,
    pub(crate) history: PathBuf,
}

impl RecordedFiles {
    /// Checks that what clients received is there, and that snapshot isolation explains it. `percolator`: a command at the cluster that answers in JSON.
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
    let found = found("the bank", percolator.arg(ledger))?;
    for wrong in ["lost", "aborted_but_there", "wrong_accounts"] {
        anyhow::ensure!(found[wrong] == 0, "the bank: {found}");
    }
    has_enough("the bank", &found)?;
    println!("the bank: {found}");
    Ok(())
}

/// Snapshot isolation explains the history: what the check says of it.
pub(crate) fn check_history(mut percolator: Command, file: &Path) -> anyhow::Result<Value> {
    let found = found(
        "the history",
        percolator.args(["history", "check"]).arg(file),
    )?;
    has_enough("the history", &found)?;
    Ok(found)
}

/// The output of a check that has found nothing wrong.
fn found(what: &str, check: &mut Command) -> anyhow::Result<Value> {
    let said = check.output()?;
    let report = String::from_utf8_lossy(&said.stdout);
    let failure = String::from_utf8_lossy(&said.stderr);
    let ended = said.status;
    anyhow::ensure!(ended.success(), "{what}, {ended}: {report}{failure}");
    serde_json::from_str(&report).with_context(|| format!("{what}: {report}"))
}

/// Fails if next to nothing was committed: then next to nothing was checked.
fn has_enough(what: &str, found: &Value) -> anyhow::Result<()> {
    let committed = found["committed"].as_u64();
    anyhow::ensure!(
        committed >= Some(COMMITTED_LEAST),
        "{what}: fewer than {COMMITTED_LEAST} were committed: {found}"
    );
    Ok(())
}

impl Bench {
    pub(crate) fn on(cluster: TestCluster) -> Self {
        Self {
            cluster,
            recorded: None,
        }
    }

    /// From now on clients record the answers.
    pub(crate) fn record(&mut self, recorded: RecordedFiles) {
        self.recorded = Some(recorded);
    }

    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.cluster.stop()
    }

    /// Checks that what clients received is there, and that snapshot isolation explains it.
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
        let mut command = self.cluster.percolator();
        command.args(["-q", "-o", "json"]);
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

    fn leader(&self, role: Role) -> anyhow::Result<String> {
        self.find("who leads", |status| leader_of(status, role))
    }

    /// Another one leads than before the fault, which has not ended yet.
    fn another_leads(&self, role: Role, before: &str) -> anyhow::Result<()> {
        let what = format!("that another {} than {before} leads", role.name());
        self.find(&what, |status| {
            let leader = leader_of(status, role)?;
            (leader != before).then_some(())
        })
    }

    /// The longest time without a success while this happens to the leader of this role.
    pub(crate) fn gap(&self, role: Role, fault: Fault) -> anyhow::Result<Duration> {
        self.gap_of(role, fault, |number| {
            let retention = if number % 2 == 0 { "10m" } else { "11m" };
            format!("gc set --retention {retention}")
        })
    }

    /// For how long no table is made when the leading master ends, for the first time or another one.
    fn gap_of_tables(&self, turn: u32) -> anyhow::Result<Duration> {
        self.gap_of(Role::Master, Fault::Ended, |number| {
            format!("table create made-{turn}-{number}")
        })
    }

    /// `asked`: the command that a master is asked, by its number.
    fn gap_of(
        &self,
        role: Role,
        fault: Fault,
        asked: impl Fn(usize) -> String + Sync,
    ) -> anyhow::Result<Duration> {
        // One that was just started is a standby only after it has seen its leader, and promised not to take over.
        self.all_are_up()?;
        sleep(Duration::from_secs(4));
        let leader = self.leader(role)?;
        let strike = || {
            sleep(BEFORE);
            self.cluster.strike(fault, &leader)
        };
        let runs = fault.clients_run();
        let beside = self.beside(role, runs)?;
        let gap = match role {
            Role::Oracle => self.transfers(runs, strike),
            Role::Master => self.commands(runs, asked, strike),
        };
        let taken_over = self.another_leads(role, &leader);
        self.cluster.mend(fault, &leader)?;
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

    fn commands(
        &self,
        runs: Duration,
        asked: impl Fn(usize) -> String + Sync,
        strike: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let ask = || {
            let (mut last, mut longest) = (began, Duration::ZERO);
            for number in 0.. {
                if began.elapsed() >= runs {
                    break;
                }
                let mut command = self.percolator();
                command.args(asked(number).split(' '));
                if command.stdout(Stdio::null()).status()?.success() {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            anyhow::Ok(longest.max(last.elapsed()))
        };
        std::thread::scope(|scope| {
            let asked = scope.spawn(ask);
            strike()?;
            asked
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

/// The last line of a bank: no transfer has failed, and the outcome of each is known.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::has_enough;

    #[test]
    fn a_check_of_next_to_nothing_is_none() {
        assert!(has_enough("it", &json!({"committed": 50, "lost": 0})).is_ok());
        for found in [json!({"committed": 49}), json!({"committed": 0}), json!({})] {
            assert!(has_enough("it", &found).is_err(), "{found}");
        }
    }
}
