//! Every server as a process of its own, started again when it dies.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::followed;
use crate::layout::{LOGS, Layout};
use crate::planned::{NEW_CLUSTER, Role};
use crate::running::{self, Running};

/// A server that dies this soon after its start is failing, not unlucky.
const SOON: Duration = Duration::from_secs(2);
/// After so many early deaths in a row it isn't started again.
const EARLY_DEATHS_MAX: u32 = 5;
/// The first pause before a server is started again that has died soon twice in a row, and the longest: where it leads, a standby
/// takes over meanwhile.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Between two attempts to start a server that could not be started.
const RELAUNCH_PAUSE: Duration = Duration::from_millis(300);
/// A server says within this where it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);
/// A server that was asked to stop is killed after this.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// A cluster of processes.
pub(crate) struct Processes {
    servers: Servers,
    supervisors: Vec<JoinHandle<()>>,
    failures: mpsc::UnboundedReceiver<anyhow::Error>,
    stop: watch::Sender<bool>,
}

/// What runs; it is also written to the data folder, so that others can find the processes.
#[derive(Clone)]
struct Servers {
    list: Arc<Mutex<Vec<Running>>>,
    data_dir: PathBuf,
}

/// Where a server listens.
#[derive(Clone)]
struct Addresses {
    /// For its clients.
    serves: String,
    /// For anyone who asks how it is.
    metrics: String,
}

/// A server that runs.
struct Process {
    child: Child,
    /// Waiting for a child closes its standard input, unless that is held elsewhere.
    _lifeline: Option<ChildStdin>,
}

/// A server ended before it listened.
#[derive(Debug)]
struct EarlyExit {
    status: ExitStatus,
    message: String,
}

impl std::fmt::Display for EarlyExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EarlyExit {}

/// SIGKILL comes from outside and says nothing of the server.
fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

/// How to start a server.
#[derive(Clone)]
struct Recipe {
    role: &'static str,
    server: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    data: Option<PathBuf>,
    log: PathBuf,
    log_level: PathBuf,
}

/// Whether all programs are there that a cluster of processes runs: to be asked before anything is made.
///
/// # Errors
/// One is missing: where it was expected.
pub fn check_programs(with_proxy: bool) -> anyhow::Result<()> {
    let proxy = with_proxy.then_some(Role::Proxy);
    for role in [Role::Master, Role::Oracle, Role::Tablet]
        .into_iter()
        .chain(proxy)
    {
        beside_us(role.program())?;
    }
    Ok(())
}

/// Starts all; none if `stop` ends before they listen: then those that do are stopped.
pub(crate) async fn start(
    layout: Layout,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Option<Processes>> {
    let logs = layout.data_dir.join(LOGS);
    std::fs::create_dir_all(&logs)
        .with_context(|| format!("cannot make the folder {}", logs.display()))?;
    let (failed, failures) = mpsc::unbounded_channel();
    let (ends, _) = watch::channel(false);
    let mut processes = Processes {
        servers: Servers {
            list: Arc::default(),
            data_dir: layout.data_dir.clone(),
        },
        supervisors: Vec::new(),
        failures,
        stop: ends,
    };
    let started = tokio::select! {
        biased;
        // The one that doesn't listen yet is killed. It serves nobody.
        () = stop => Ok(false),
        started = processes.start_each(&layout, &logs, &failed) => started.map(|()| true),
    };
    if matches!(started, Ok(true)) {
        return Ok(Some(processes));
    }
    processes.stop().await?;
    started.map(|_| None)
}

impl Processes {
    async fn start_each(
        &mut self,
        layout: &Layout,
        logs: &Path,
        failed: &mpsc::UnboundedSender<anyhow::Error>,
    ) -> anyhow::Result<()> {
        let mut masters: Vec<String> = Vec::new();
        for planned in layout.servers()? {
            let at = Addresses {
                serves: planned.listen.to_string(),
                metrics: planned.metrics_listen.to_string(),
            };
            let recipe = Recipe {
                role: planned.role.name(),
                program: beside_us(planned.role.program())?,
                arguments: planned.arguments(&masters.join(",")),
                log: logs.join(format!("{}.log", planned.server)),
                log_level: followed::log_level_file(&layout.data_dir),
                server: planned.server,
                data: planned.data,
            };
            let address = self.supervise(recipe, at, failed).await?;
            if planned.role == Role::Master {
                masters.push(address);
            }
        }
        Ok(())
    }

    /// Starts a server, waits until it listens, and supervises it from then on. Returns its address.
    async fn supervise(
        &mut self,
        mut recipe: Recipe,
        listen: Addresses,
        failed: &mpsc::UnboundedSender<anyhow::Error>,
    ) -> anyhow::Result<String> {
        let (process, at) = launch(&recipe, &listen).await?;
        // It has begun one by now. Should its folder get lost, it is not to begin another.
        recipe.arguments.retain(|argument| argument != NEW_CLUSTER);
        self.servers.set(&recipe, &at, process.child.id());
        let address = at.serves.clone();
        let supervisor = Supervisor {
            recipe,
            at,
            servers: self.servers.clone(),
            stop: self.stop.subscribe(),
        };
        let failed = failed.clone();
        self.supervisors.push(tokio::spawn(async move {
            if let Err(error) = supervisor.run(process).await {
                let _ = failed.send(error);
            }
        }));
        Ok(address)
    }

    pub(crate) fn running(&self) -> Vec<Running> {
        self.servers.list.lock().clone()
    }

    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        match self.failures.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(true);
        for supervisor in self.supervisors {
            supervisor.await?;
        }
        Ok(running::forget(&self.servers.data_dir)?)
    }
}

impl Servers {
    fn set(&self, recipe: &Recipe, at: &Addresses, pid: Option<u32>) {
        let mut list = self.list.lock();
        let running = Running {
            role: recipe.role,
            server: recipe.server.clone(),
            address: at.serves.clone(),
            metrics: Some(at.metrics.clone()),
            pid,
            data: recipe.data.clone(),
        };
        match list.iter_mut().find(|known| known.server == recipe.server) {
            Some(known) => *known = running,
            None => list.push(running),
        }
        if let Err(error) = running::tell(&self.data_dir, &list) {
            say(&format!("{error:#}"));
        }
    }
}

/// Before a server is started again that has died soon so often in a row.
fn pause(short_lives: u32) -> Duration {
    match short_lives {
        0 | 1 => Duration::ZERO,
        more => PAUSE_FIRST
            .saturating_mul(1 << (more - 2).min(10))
            .min(PAUSE_MAX),
    }
}

struct Supervisor {
    recipe: Recipe,
    at: Addresses,
    servers: Servers,
    stop: watch::Receiver<bool>,
}

impl Supervisor {
    async fn run(mut self, mut process: Process) -> anyhow::Result<()> {
        let (mut early_deaths, mut short_lives) = (0, 0);
        let mut started = Instant::now();
        loop {
            let ended = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => None,
                status = process.child.wait() => Some(status?),
            };
            let Some(status) = ended else {
                return self.end(process).await;
            };
            if started.elapsed() >= SOON {
                (early_deaths, short_lives) = (0, 0);
            } else {
                early_deaths += u32::from(!killed(status));
                short_lives += 1;
            }
            if early_deaths >= EARLY_DEATHS_MAX {
                bail!("{}", self.recipe.gave_up(status));
            }
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return Ok(()),
                () = tokio::time::sleep(pause(short_lives)) => {}
            }
            started = Instant::now();
            let Some(next) = self.relaunch(&mut early_deaths).await? else {
                return Ok(());
            };
            process = next;
            self.servers.set(&self.recipe, &self.at, process.child.id());
            say(&format!(
                "{} ended ({status}) and was started again as process {}",
                self.recipe.server,
                process.child.id().unwrap_or_default()
            ));
        }
    }

    /// Starts the server again, at the same address, which a dead process has left. A start that fails
    /// is tried again, as often as a server may die early. `None`: the cluster stops.
    async fn relaunch(&mut self, early_deaths: &mut u32) -> anyhow::Result<Option<Process>> {
        loop {
            let launched = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return Ok(None),
                launched = launch(&self.recipe, &self.at) => launched,
            };
            match launched {
                Ok((process, _)) => return Ok(Some(process)),
                Err(error) => {
                    let killed = error
                        .downcast_ref::<EarlyExit>()
                        .is_some_and(|ended| killed(ended.status));
                    *early_deaths += u32::from(!killed);
                    if *early_deaths >= EARLY_DEATHS_MAX {
                        return Err(error);
                    }
                    say(&format!("{error:#}\nstarting it again"));
                    tokio::time::sleep(RELAUNCH_PAUSE).await;
                }
            }
        }
    }

    async fn end(&self, mut process: Process) -> anyhow::Result<()> {
        let child = &mut process.child;
        if let Some(pid) = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(rustix::process::Pid::from_raw)
        {
            // It may have ended by itself meanwhile.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        match tokio::time::timeout(STOPS_WITHIN, child.wait()).await {
            Ok(status) => {
                status?;
                Ok(())
            }
            Err(_) => {
                say(&format!(
                    "{} did not stop within {STOPS_WITHIN:?} and is killed",
                    self.recipe.server
                ));
                Ok(child.kill().await?)
            }
        }
    }
}

impl Recipe {
    fn gave_up(&self, status: ExitStatus) -> String {
        self.with_end_of_log(&format!("ended ({status})"))
    }

    /// What a server did, with the last lines that it has logged.
    fn with_end_of_log(&self, what: &str) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!(
            "{} {} {what}; the end of its log {}:\n  {}",
            self.role,
            self.server,
            self.log.display(),
            last.join("\n  ")
        )
    }
}

/// Starts a process and waits until it says where it listens.
async fn launch(recipe: &Recipe, listen: &Addresses) -> anyhow::Result<(Process, Addresses)> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&recipe.log)
        .with_context(|| format!("cannot write the log {}", recipe.log.display()))?;
    let mut child = Command::new(&recipe.program)
        .args(&recipe.arguments)
        .args(["--listen", &listen.serves])
        .args(["--metrics-listen", &listen.metrics])
        // The end of this pipe shows the server that we are gone, also when we are killed.
        .env(percolator_server::signals::LIFELINE_VARIABLE, "1")
        .env(
            percolator_server::logs::LEVEL_FILE_VARIABLE,
            &recipe.log_level,
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        // Ctrl-C is for us; we stop the servers.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", recipe.program.display()))?;
    let lifeline = child.stdin.take();
    let stdout = child
        .stdout
        .take()
        .ok_or_else(|| anyhow!("{} has no output", recipe.server))?;
    let mut lines = BufReader::new(stdout).lines();
    let said = async {
        let metrics = said(&mut lines, "metrics on ").await?;
        let serves = said(&mut lines, "listening on ").await?;
        anyhow::Ok(metrics.zip(serves))
    };
    let Ok(said) = tokio::time::timeout(LISTENS_WITHIN, said).await else {
        let what = format!("did not listen within {LISTENS_WITHIN:?}");
        bail!("{}", recipe.with_end_of_log(&what));
    };
    match said? {
        Some((metrics, serves)) => {
            let process = Process {
                child,
                _lifeline: lifeline,
            };
            Ok((process, Addresses { serves, metrics }))
        }
        None => {
            let status = child.wait().await?;
            let message = recipe.gave_up(status);
            Err(EarlyExit { status, message }.into())
        }
    }
}

/// What the next line says behind this; none where it is another one, or the last has been.
async fn said(
    lines: &mut Lines<BufReader<ChildStdout>>,
    behind: &str,
) -> anyhow::Result<Option<String>> {
    let line = lines.next_line().await?;
    Ok(line.and_then(|line| line.strip_prefix(behind).map(str::to_owned)))
}

/// A program that lies beside this one.
fn beside_us(name: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find out where this program lies")?;
    let program = us.with_file_name(name);
    if !program.exists() {
        bail!(
            "{} is not there: --processes runs the servers' own programs, and `cargo build --release` makes \
             all of them",
            program.display()
        );
    }
    Ok(program)
}

fn say(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn of_a_server_that_does_not_listen_the_end_of_its_log_is_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("tso-0.log");
        std::fs::write(&log, "the register can't be read\n").expect("a log");
        let recipe = Recipe {
            role: "oracle",
            server: "tso-0".to_owned(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), "exec sleep 600".into()],
            data: None,
            log: log.clone(),
            log_level: folder.path().join("log-level"),
        };
        let anywhere = Addresses {
            serves: "127.0.0.1:0".to_owned(),
            metrics: "127.0.0.1:0".to_owned(),
        };
        let launched = launch(&recipe, &anywhere).await.map(drop);
        let error = launched.expect_err("it doesn't listen").to_string();
        for words in [
            "oracle tso-0 did not listen within 60s",
            &log.display().to_string(),
            "the register can't be read",
        ] {
            assert!(error.contains(words), "no {words:?} in {error}");
        }
    }
}
