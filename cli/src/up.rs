//! `percolator up`: a cluster on this machine, from the manifest that Kubernetes takes too.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use percolator_api::{PercolatorCluster, Spec};
use percolator_local::{
    Cluster, EphemeralFolder, Layout, LiveSettings, ProxyPorts, RunOptions, Running,
    check_programs, earlier_ended, masters, ready,
};

use crate::errors::{CannotRun, Usage};
use crate::output::{Format, Output, columns};

/// How often the manifest is read for what counts without a restart.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// A command that has had a signal already, as by Ctrl-C on a terminal, ends within this, or we send it one.
const SIGNALLED_END_TIMEOUT: Duration = Duration::from_millis(700);

/// What to run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator up -f examples/cluster.yaml
  percolator up --processes --data-dir /var/lib/percolator
  percolator up --ephemeral -- percolator bank --duration 10s

A command after -- finds the cluster in PERCOLATOR_CLUSTER, and its proxy in PERCOLATOR_PROXY; up ends with its exit code. Standard output is the \
command's alone: what runs where, as a table or as JSON (-o), goes to standard error, and -q leaves it out.

Ctrl-C or SIGTERM stops the cluster.")]
pub(crate) struct Args {
    /// Manifest of the cluster, a PercolatorCluster; - reads standard input. Without it: three tablet
    /// servers, with every default.
    #[arg(long, short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Folder of the cluster's data; made if it isn't there.
    #[arg(long, value_name = "DIR", default_value = "percolator-data")]
    data_dir: PathBuf,
    /// Keep the data in a folder that goes away with the cluster, on ports that are free.
    #[arg(long, conflicts_with = "data_dir")]
    ephemeral: bool,
    /// Run every server as a process of its own, and start it again when it dies.
    #[arg(long)]
    processes: bool,
    /// Port of the first master; the other servers take the following ones, and behind these each its metrics. 0: any that are free. Default: 7400, and 0 with --ephemeral.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Port of the proxy, for applications in any language (gRPC, and HTTP with JSON); the next one shows its metrics. 0: any
    /// that is free. Default: 90 above --port, 7490, or behind the servers' ports if these are more than 90; any that is free with --port 0 or
    /// --ephemeral.
    #[arg(long, value_name = "PORT")]
    proxy_port: Option<u16>,
    /// Run no proxy.
    #[arg(long, conflicts_with = "proxy_port")]
    no_proxy: bool,
    /// How long the cluster may have been stopped: with a clock further beyond its last timestamp it doesn't start,
    /// because timestamps never go back. Raise it once if the clock is right.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1day",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_TSO_STOPPED_MAX"
    )]
    stopped_max: Duration,
    /// Allow plain engine access, for benchmarks alone.
    #[arg(long, hide = true)]
    raw: bool,
    /// Run this command when the cluster is ready, and stop the cluster when it ends.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let say = |message: &str| output.note(message);
    let manifest = read_manifest(args.file.as_ref())?;
    if args.processes {
        check_programs(!args.no_proxy)?;
    }
    let ephemeral = args
        .ephemeral
        .then(EphemeralFolder::make)
        .transpose()
        .context("cannot make a folder for the cluster's data")?;
    let (data_dir, port) = match &ephemeral {
        Some(folder) => (folder.data_dir(), args.port.unwrap_or(0)),
        None => (args.data_dir.clone(), args.port.unwrap_or(7400)),
    };
    let how = args.run_options(port, &manifest.cluster.spec)?;
    let mut layout = Layout::open(&data_dir, &manifest.cluster, how)?;
    let without_effect = layout.proxy_fields_without_effect();
    if !without_effect.is_empty() {
        output.note(&format!(
            "{}: without effect here, where one proxy runs as long as the cluster",
            without_effect.join(", ")
        ));
    }
    let mut stop = Box::pin(percolator_server::signals::shutdown());
    tokio::select! {
        biased;
        () = &mut stop => return Ok(ExitCode::SUCCESS),
        ended = earlier_ended(&layout, &say) => ended?,
    }
    layout.begin()?;
    let followed = manifest.followed(&layout);
    followed.store(&layout.data_dir)?;
    let kept = layout.clone();
    let Some(mut cluster) = start(layout, &args, &mut stop, &say).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let running = cluster.running();
    kept.remember()?;
    let took = started.elapsed();
    say_ready(&running, &args.command, took, output)?;
    let mut command = match start_command(&args.command, &running, &kept.data_dir) {
        Ok(command) => command,
        Err(error) => {
            cluster.stop().await?;
            return Err(error.into());
        }
    };
    let result = tokio::select! {
        biased;
        () = &mut stop => match &mut command {
            Some(command) => end(command).await,
            None => Ok(ExitCode::SUCCESS),
        },
        status = wait_for(&mut command) => status,
        failed = cluster.failed() => Err(failed),
        () = follow(args.file, &kept, followed, output) => Ok(ExitCode::SUCCESS),
    };
    if let Some(command) = &mut command {
        // It may have ended already.
        let _ = command.kill().await;
    }
    let stopped = cluster.stop().await;
    let code = result?;
    stopped?;
    drop(ephemeral);
    Ok(code)
}

/// Starts a cluster, and waits until it is ready. None if `stop` ends before that: it is stopped.
async fn start(
    layout: Layout,
    args: &Args,
    stop: &mut (impl Future<Output = ()> + Unpin),
    say: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<Option<Cluster>> {
    let has_command = !args.command.is_empty();
    // Connections to servers that are threads are this process'. A command would have its limit, and programs of servers ask themselves.
    if !has_command {
        percolator_server::many_connections();
    }
    let kept = layout.clone();
    let Some(mut cluster) = Cluster::start(layout, args.processes, &mut *stop).await? else {
        return Ok(None);
    };
    let running = cluster.running();
    let failed = tokio::select! {
        biased;
        () = stop => {
            cluster.stop().await?;
            return Ok(None);
        }
        failed = cluster.failed() => failed,
        ready = ready(&running, &kept, has_command, say) => match ready {
            Ok(()) => return Ok(Some(cluster)),
            Err(error) => error,
        },
    };
    let _ = cluster.stop().await;
    Err(failed)
}

fn say_ready(
    running: &[Running],
    command: &[String],
    took: Duration,
    output: Output,
) -> anyhow::Result<()> {
    let shown = shown(running, output.format)?;
    // A command's own results have standard output to themselves.
    if command.is_empty() {
        output.line(&shown)?;
    } else {
        output.note(&shown);
    }
    let next = if command.is_empty() {
        let masters = masters(running);
        let proxy = running.iter().find(|server| server.is_proxy());
        let proxy = proxy.map(|proxy| format!(" (other languages: http://{})", proxy.address));
        let proxy = proxy.unwrap_or_default();
        format!("percolator -c {masters} reaches it{proxy}, Ctrl-C stops it")
    } else {
        format!("running {}", command.join(" "))
    };
    output.note(&format!("ready in {:.1} s; {next}", took.as_secs_f64()));
    Ok(())
}

/// Puts changes of the manifest into effect that need no restart, and reports the others.
async fn follow(file: Option<PathBuf>, layout: &Layout, mut last: LiveSettings, output: Output) {
    let file = file.filter(|file| file.as_os_str() != "-");
    let Some(file) = file else {
        return std::future::pending().await;
    };
    let mut reported = String::new();
    loop {
        tokio::time::sleep(FOLLOW_EVERY).await;
        let changed = read_manifest(Some(&file)).and_then(|manifest| {
            let followed = manifest.followed(layout);
            if followed != last {
                followed.store(&layout.data_dir)?;
                last = followed;
            }
            Ok(layout.differences(&manifest.cluster))
        });
        let report = match changed {
            Ok(differences) if differences.is_empty() => String::new(),
            Ok(differences) => format!(
                "{}: another value counts when `percolator up` is started again; until then it goes on as it was",
                differences.join(", ")
            ),
            Err(error) => format!("{error:#}\nit goes on as it was"),
        };
        if reported != report && !report.is_empty() {
            output.note(&report);
        }
        reported = report;
    }
}

/// A manifest, and what its text says that the resource doesn't.
struct Manifest {
    cluster: PercolatorCluster,
    /// Where it says no level of the log, servers that are threads have another than processes.
    says_log_level: bool,
}

impl Manifest {
    /// What counts without a restart: not how many servers there are.
    fn followed(&self, layout: &Layout) -> LiveSettings {
        LiveSettings::of(&self.cluster.spec, layout, self.says_log_level)
    }
}

fn read_manifest(file: Option<&PathBuf>) -> anyhow::Result<Manifest> {
    let (name, text) = match file {
        None => ("the defaults".to_owned(), Ok(DEFAULT_MANIFEST.to_owned())),
        Some(file) if file.as_os_str() == "-" => (
            "standard input".to_owned(),
            std::io::read_to_string(std::io::stdin()),
        ),
        Some(file) => (file.display().to_string(), std::fs::read_to_string(file)),
    };
    let text =
        text.map_err(|error| Usage(format!("cannot read the manifest from {name}: {error}")))?;
    let cluster = PercolatorCluster::from_yaml(&text)
        .with_context(|| format!("{name} is no valid manifest"))?;
    let tree: Option<serde_json::Value> = serde_saphyr::from_str(&text).ok();
    let level = tree
        .as_ref()
        .and_then(|tree| tree.pointer("/spec/log/level"));
    Ok(Manifest {
        cluster,
        says_log_level: level.is_some(),
    })
}

const DEFAULT_MANIFEST: &str =
    "{apiVersion: percolator.dev/v1alpha1, kind: PercolatorCluster, metadata: {name: local}}";

fn shown(running: &[Running], format: Format) -> serde_json::Result<String> {
    match format {
        Format::Text => Ok(table(running)),
        Format::Json => serde_json::to_string(running),
    }
}

fn table(running: &[Running]) -> String {
    let with_pid = running.iter().any(|server| server.pid.is_some());
    let mut rows = vec![vec!["ROLE".to_owned(), "NAME".into(), "ADDRESS".into()]];
    let with_metrics = running.iter().any(|server| server.metrics.is_some());
    if with_metrics {
        rows[0].push("METRICS".into());
    }
    if with_pid {
        rows[0].push("PID".into());
    }
    rows[0].push("DATA".into());
    rows.extend(running.iter().map(|server| {
        let mut row = vec![
            server.role.to_owned(),
            server.server.clone(),
            server.address.clone(),
        ];
        if with_metrics {
            row.push(server.metrics.clone().unwrap_or_default());
        }
        if with_pid {
            row.push(server.pid.map(|pid| pid.to_string()).unwrap_or_default());
        }
        let data = server.data.as_ref().map(|data| data.display().to_string());
        row.push(data.unwrap_or_default());
        row
    }));
    columns(&rows)
}

impl Args {
    /// With the first master at this port.
    fn run_options(&self, port: u16, spec: &Spec) -> anyhow::Result<RunOptions> {
        let beside = || ProxyPorts::beside(spec, port, self.proxy_port);
        let proxy_ports = (!self.no_proxy).then(beside);
        Ok(RunOptions {
            port,
            proxy_ports: proxy_ports.transpose()?,
            raw: self.raw,
            stopped_max: self.stopped_max,
        })
    }
}

fn start_command(
    command: &[String],
    running: &[Running],
    data_dir: &Path,
) -> Result<Option<tokio::process::Child>, CannotRun> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(None);
    };
    // `percolator` is this very program, wherever it lies.
    let itself = std::env::current_exe()
        .ok()
        .filter(|_| program == "percolator");
    let proxy = running.iter().find(|server| server.is_proxy());
    let child = tokio::process::Command::new(itself.unwrap_or_else(|| program.into()))
        .args(arguments)
        .env("PERCOLATOR_CLUSTER", masters(running))
        .envs(proxy.map(|proxy| ("PERCOLATOR_PROXY", &proxy.address)))
        .env("PERCOLATOR_DATA_DIR", data_dir)
        .kill_on_drop(true)
        .spawn();
    child.map(Some).map_err(|error| CannotRun {
        program: program.clone(),
        error,
    })
}

/// Waits for the end of a command that may have had a signal, as by Ctrl-C on a terminal, or sends it one. Its result counts.
async fn end(command: &mut tokio::process::Child) -> anyhow::Result<ExitCode> {
    let once_more = percolator_server::signals::shutdown();
    let ending = async {
        match tokio::time::timeout(SIGNALLED_END_TIMEOUT, command.wait()).await {
            Ok(status) => status,
            Err(_) => {
                if let Some(pid) = command.id().and_then(|pid| i32::try_from(pid).ok())
                    && let Some(pid) = rustix::process::Pid::from_raw(pid)
                {
                    // It may just have ended.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
                command.wait().await
            }
        }
    };
    tokio::select! {
        status = ending => Ok(exit_code(status.context("cannot wait for the command")?)),
        () = once_more => Ok(ExitCode::from(130)),
    }
}

/// Ends with the command, or never where there's none.
async fn wait_for(command: &mut Option<tokio::process::Child>) -> anyhow::Result<ExitCode> {
    let Some(command) = command else {
        return std::future::pending().await;
    };
    let status = command.wait().await;
    Ok(exit_code(status.context("cannot wait for the command")?))
}

/// As shells do for a command that a signal ended.
fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
