//! Every server as a thread of this process, each with a runtime of its own.

use std::any::Any;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use percolator_telemetry::who::ServerIdentity;
use tokio::sync::{mpsc, oneshot, watch};

use crate::layout::Layout;
use crate::planned::{PlannedServer, Role};
use crate::running::{self, Running};

/// The stack of a server as a thread: as much as the main thread of its process has.
const STACK_BYTES: usize = 8 << 20;

/// A cluster of threads.
pub(crate) struct Threads {
    servers: Vec<Thread>,
    data_dir: PathBuf,
    failures: mpsc::UnboundedReceiver<anyhow::Error>,
}

struct Thread {
    running: Running,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// Starts all; none if `stop` ends before they listen: then those that do are stopped.
pub(crate) async fn start(
    layout: Layout,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Option<Threads>> {
    let (failed, failures) = mpsc::unbounded_channel();
    let mut threads = Threads {
        servers: Vec::new(),
        data_dir: layout.data_dir.clone(),
        failures,
    };
    let started = tokio::select! {
        biased;
        // The one that doesn't listen yet, as it waits for a register, ends with this process.
        () = stop => Ok(false),
        started = start_each(&layout, &mut threads.servers, &failed) => started.map(|()| true),
    };
    let runs = started.and_then(|all| {
        if all {
            running::tell(&layout.data_dir, &threads.running())?;
        }
        Ok(all)
    });
    if matches!(runs, Ok(true)) {
        return Ok(Some(threads));
    }
    threads.stop().await?;
    runs.map(|_| None)
}

async fn start_each(
    layout: &Layout,
    servers: &mut Vec<Thread>,
    failed: &mpsc::UnboundedSender<anyhow::Error>,
) -> anyhow::Result<()> {
    let mut masters: Vec<String> = Vec::new();
    for planned in layout.servers()? {
        let mut arguments = vec![OsString::from(planned.role.program())];
        arguments.extend(planned.arguments(&masters.join(",")));
        arguments.extend([
            format!("--listen={}", planned.listen).into(),
            format!("--metrics-listen={}", planned.metrics_listen).into(),
        ]);
        let role = planned.role;
        let server = match role {
            Role::Master => {
                let options = percolator_gc_master::Options::parse(arguments)?;
                spawn(planned, failed, |bound, stop| async move {
                    let server = percolator_gc_master::Server::bind(options).await?;
                    let _ = bound.send((server.address(), server.metrics_address()));
                    Ok(server.run(stop).await?)
                })
                .await?
            }
            Role::Oracle => {
                let options = percolator_tso::Options::parse(arguments)?;
                spawn(planned, failed, |bound, stop| async move {
                    let server = percolator_tso::Server::bind(options).await?;
                    let _ = bound.send((server.address(), server.metrics_address()));
                    Ok(server.run(stop).await?)
                })
                .await?
            }
            Role::Tablet => {
                let options = percolator_tablet::Options::parse(arguments)?;
                spawn(planned, failed, |bound, stop| async move {
                    let server = percolator_tablet::Server::bind(options).await?;
                    let _ = bound.send((server.address(), server.metrics_address()));
                    Ok(server.run(stop).await?)
                })
                .await?
            }
            Role::Proxy => {
                let options = percolator_proxy::Options::parse(arguments)?;
                spawn(planned, failed, |bound, stop| async move {
                    let server = percolator_proxy::Server::bind(options)?;
                    let _ = bound.send((server.address(), server.metrics_address()));
                    Ok(server.run(stop).await?)
                })
                .await?
            }
        };
        if role == Role::Master {
            masters.push(server.running.address.clone());
        }
        servers.push(server);
    }
    Ok(())
}

/// Starts a server in a thread, and waits until it listens.
async fn spawn<F, Fut>(
    planned: PlannedServer,
    failed: &mpsc::UnboundedSender<anyhow::Error>,
    serve: F,
) -> anyhow::Result<Thread>
where
    F: FnOnce(oneshot::Sender<Addresses>, Stop) -> Fut + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let (bound, address) = oneshot::channel();
    let (stop, mut stopped) = watch::channel(false);
    let asked = stopped.clone();
    let (could_not, mut why) = oneshot::channel();
    let (server, failed) = (planned.server.clone(), failed.clone());
    let role = planned.role.name();
    let who = ServerIdentity {
        // The oracle and the master have other names in logs and metrics than in what people are shown.
        role: planned.role.logged_as(),
        server: server.clone(),
    };
    let thread = std::thread::Builder::new()
        .name(planned.server.clone())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let stop: Stop = Box::pin(async move {
                // An error means that the cluster is gone: that stops it as well.
                let _ = stopped.wait_for(|stop| *stop).await;
            });
            who.is_thread();
            let run = || -> anyhow::Result<()> {
                let serving = async { serve(bound, stop).await };
                percolator_server::run_on_current_thread(&server, serving)?
            };
            let (result, panic) = run_to_end(run, &asked);
            if let Err(error) = result.with_context(|| format!("{role} {server}"))
                && let Err(error) = could_not.send(error)
            {
                let _ = failed.send(error);
            }
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
        })
        .with_context(|| format!("cannot start a thread for {}", planned.server))?;
    let (address, metrics) = match address.await {
        Ok(addresses) => addresses,
        Err(_) => {
            return Err(why.await.unwrap_or_else(|_| {
                anyhow!("{role} {} ended before it listened", planned.server)
            }));
        }
    };
    // It may have ended since. What happens from now on is a failure of the cluster.
    why.close();
    if let Ok(error) = why.try_recv() {
        return Err(error);
    }
    Ok(Thread {
        running: Running {
            role,
            server: planned.server,
            address: address.to_string(),
            metrics: metrics.map(|address| address.to_string()),
            pid: None,
            data: planned.data,
        },
        stop,
        thread,
    })
}

/// Runs a server: what came of it, and its panic if there was one. It may end well only if it was asked to.
fn run_to_end(
    run: impl FnOnce() -> anyhow::Result<()>,
    asked: &watch::Receiver<bool>,
) -> (anyhow::Result<()>, Option<Panic>) {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) if !*asked.borrow() => (Err(anyhow!("it ended by itself")), None),
        Ok(result) => (result, None),
        Err(panic) => (Err(anyhow!("it ended in a panic")), Some(panic)),
    }
}

/// What a thread panicked with.
type Panic = Box<dyn Any + Send>;

/// Where a server serves, and where it shows its metrics.
type Addresses = (SocketAddr, Option<SocketAddr>);

type Stop = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Threads {
    pub(crate) fn running(&self) -> Vec<Running> {
        self.servers
            .iter()
            .map(|server| server.running.clone())
            .collect()
    }

    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        match self.failures.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// The masters last: the others report to them until they end.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        tokio::task::spawn_blocking(move || {
            for server in self.servers.iter().filter(|it| !it.running.is_master()) {
                let _ = server.stop.send(true);
            }
            let mut ended = Ok(());
            for server in self.servers.into_iter().rev() {
                let _ = server.stop.send(true);
                if server.thread.join().is_err() {
                    ended = Err(anyhow!("{} ended in a panic", server.running.server));
                }
            }
            running::forget(&self.data_dir)?;
            ended
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::path::Path;
    use std::time::Duration;

    use percolator_api::PercolatorCluster;

    use super::*;
    use crate::layout::RunOptions;

    const MANIFEST: &str =
        "{apiVersion: percolator.dev/v1alpha1, kind: PercolatorCluster, metadata: {name: local}}";
    const ANYWHERE: Addresses = (SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), None);

    fn master(folder: &Path) -> PlannedServer {
        let manifest = PercolatorCluster::from_yaml(MANIFEST).expect("a manifest");
        let how = RunOptions {
            port: 0,
            proxy_ports: None,
            raw: false,
            stopped_max: Duration::ZERO,
        };
        let layout = Layout::open(folder, &manifest, how).expect("a layout");
        layout.servers().expect("servers").remove(0)
    }

    #[tokio::test]
    async fn an_end_that_nobody_asked_for_is_a_failure() {
        let folder = tempfile::tempdir().expect("a folder");
        for (panics, why) in [
            (true, "master master-0: it ended in a panic"),
            (false, "master master-0: it ended by itself"),
        ] {
            let (failed, mut failures) = mpsc::unbounded_channel();
            let (end, ends) = oneshot::channel::<()>();
            let server = spawn(master(folder.path()), &failed, move |bound, _| async move {
                bound.send(ANYWHERE).expect("it is waited for");
                let _ = ends.await;
                assert!(!panics, "as a defect does");
                Ok(())
            });
            let server = server.await.expect("it listens");
            drop((failed, end));
            let failure = failures.recv().await.expect("a failure");
            assert_eq!(format!("{failure:#}"), why);
            assert_eq!(server.thread.join().is_err(), panics);
        }
    }

    #[tokio::test]
    async fn an_end_that_was_asked_for_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let (failed, mut failures) = mpsc::unbounded_channel();
        let server = spawn(master(folder.path()), &failed, |bound, stop| async move {
            bound.send(ANYWHERE).expect("it is waited for");
            stop.await;
            Ok(())
        });
        let server = server.await.expect("it listens");
        drop(failed);
        server.stop.send(true).expect("it runs");
        let failure = failures.recv().await;
        assert!(failure.is_none(), "{failure:?}");
        server.thread.join().expect("no panic");
    }
}
