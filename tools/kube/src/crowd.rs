//! `cargo xtask kube crowd`: what the operator takes for many clusters, with an API server and no nodes.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{Kube, down, network::Network, release::Release, sh::wait, up};

const LISTEN: &str = "127.0.0.1:18080";
const NAMESPACE: &str = "crowd";
const TIMEOUT: Duration = Duration::from_secs(1_200);
/// The most memory of the operator for one cluster, and for as many as it is made for.
const RESIDENT_MIB_MAX: [f64; 2] = [20.0, 40.0];
/// A file with more clusters than this takes kubectl long to read.
const CLUSTERS_A_FILE: u32 = 250;

/// Ends with the value.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The measurements of the process at one moment.
#[derive(Debug)]
struct Sample {
    resident_mib: f64,
    processor: Duration,
    requests: f64,
    writes: f64,
}

/// Starts a Kubernetes without nodes, and the operator on it; makes so many clusters, and prints what that takes.
pub(crate) fn run(
    root: &Path,
    build_operator: impl FnOnce() -> anyhow::Result<PathBuf>,
    clusters: u32,
    idle: Duration,
) -> anyhow::Result<()> {
    let program = build_operator()?;
    let kube = up(root, Release::Usual, Network::IPV4, 0)?;
    let result = measure(root, &kube, &program, clusters, idle);
    down()?;
    result
}

fn measure(
    root: &Path,
    kube: &Kube,
    program: &Path,
    clusters: u32,
    idle: Duration,
) -> anyhow::Result<()> {
    let definitions = root.join("crds");
    kube.kubectl([
        "apply",
        "--server-side",
        "-f",
        &definitions.display().to_string(),
    ])?;
    kube.kubectl(["create", "namespace", NAMESPACE])?;
    let log = fs::File::create(kube.folder.join("log/operator.log"))?;
    let operator = kube
        .command(program)
        .args(["--listen", LISTEN])
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot run the operator")?;
    let operator = Operator(operator);
    apply(kube, 0..1)?;
    wait_until_reconciled(kube, 1)?;
    thread::sleep(idle);
    let [of_one, of_all] = RESIDENT_MIB_MAX;
    print("1 cluster", &operator.sample()?, of_one)?;
    let started = Instant::now();
    apply(kube, 1..clusters)?;
    let applied = started.elapsed();
    wait_until_reconciled(kube, clusters)?;
    println!(
        "{clusters} clusters: applied within {:.1} s, all reconciled {:.1} s after that",
        applied.as_secs_f64(),
        (started.elapsed() - applied).as_secs_f64()
    );
    thread::sleep(idle);
    let before = operator.sample()?;
    print(&format!("{clusters} clusters"), &before, of_all)?;
    thread::sleep(idle);
    let after = operator.sample()?;
    let minutes = idle.as_secs_f64() / 60.0;
    println!(
        "and in a minute: {:.2} s of processor time, {:.0} requests, {:.0} writes",
        (after.processor - before.processor).as_secs_f64() / minutes,
        (after.requests - before.requests) / minutes,
        (after.writes - before.writes) / minutes,
    );
    anyhow::ensure!(
        after.writes <= before.writes,
        "nothing changes, and it writes: {} says what",
        kube.audit().display()
    );
    Ok(())
}

fn print(what: &str, sample: &Sample, mib_max: f64) -> anyhow::Result<()> {
    let mib = sample.resident_mib;
    println!("{what}: {mib:.1} MiB resident");
    anyhow::ensure!(mib <= mib_max, "that is more than {mib_max} MiB");
    Ok(())
}

/// Makes the clusters of these numbers. No class makes volumes for them: there are no nodes to have them.
fn apply(kube: &Kube, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
    let numbers: Vec<u32> = numbers.collect();
    for piece in numbers.chunks(CLUSTERS_A_FILE as usize) {
        let mut manifest = String::new();
        for number in piece {
            write!(
                manifest,
                "---
apiVersion: percolator.dev/v1alpha1
kind: PercolatorCluster
metadata: {{name: c{number}, namespace: {NAMESPACE}}}
spec:
  oracle: {{storage: {{storageClassName: none}}}}
  master: {{storage: {{storageClassName: none}}}}
  tablets: {{storage: {{storageClassName: none}}}}
"
            )?;
        }
        kube.apply(&manifest)?;
    }
    Ok(())
}

/// Waits until the status of so many clusters is of their newest spec.
fn wait_until_reconciled(kube: &Kube, clusters: u32) -> anyhow::Result<()> {
    wait(TIMEOUT, || {
        let generations = kube
            .kubectl([
                "get",
                "percolatorclusters",
                "-n",
                NAMESPACE,
                "-o",
                "jsonpath={range .items[*]}{.metadata.generation}={.status.observedGeneration} {end}",
            ])
            .map_err(|error| format!("{error:#}"))?;
        let reconciled = generations
            .split_whitespace()
            .filter(|word| word.split_once('=').is_some_and(|(is, seen)| is == seen))
            .count();
        if reconciled == clusters as usize {
            Ok(())
        } else {
            Err(format!(
                "{reconciled} of {clusters} clusters are reconciled"
            ))
        }
    })
}

impl Operator {
    fn sample(&self) -> anyhow::Result<Sample> {
        let folder = Path::new("/proc").join(self.0.id().to_string());
        let status = fs::read_to_string(folder.join("status")).context("the operator has ended")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|line| line.split_whitespace().next());
        let stat = fs::read_to_string(folder.join("stat"))?;
        // Behind the name, which may have blanks: user and system time, in hundredths of a second.
        let behind = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = behind.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|word| word.parse::<u64>().ok()).sum();
        let metrics = metrics()?;
        let sum = |name: &str| {
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            values.sum()
        };
        Ok(Sample {
            resident_mib: kib.context("no VmRSS")?.parse::<f64>()? / 1024.0,
            processor: Duration::from_millis(ticks * 10),
            requests: sum("percolator_operator_api_requests_total"),
            writes: sum("percolator_operator_writes_total"),
        })
    }
}

fn metrics() -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(LISTEN)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
