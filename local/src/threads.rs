//! Every server as a thread of this process, each with a runtime of its own.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use percolator_telemetry::who::ServerIdentity;
use tokio::sync::{mpsc, oneshot, watch};

use crate::layout::Layout;
use crate::planned::{PlannedServer, Role};
use crate::running::{self, Running};

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

pub(crate) async fn start(layout: Layout) -> anyhow::Result<Threads> {
    let (failed, failures) = mpsc::unbounded_channel();
    let mut threads = Threads {
        servers: Vec::new(),
        data_dir: layout.data_dir.clone(),
        failures,
    };
    let started = start_each(&layout, &mut threads.servers, &failed).await;
    let told = match started {
        Ok(()) => running::tell(&layout.data_dir, &threads.running()),
        Err(error) => Err(error),
    };
    if let Err(error) = told {
        threads.stop().await?;
        return Err(error);
    }
    Ok(threads)
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
    let (could_not, why) = oneshot::channel();
    let (server, failed) = (planned.server.clone(), failed.clone());
    let role = planned.role.name();
    let who = ServerIdentity {
        // The oracle and the master have other names in logs and metrics than in what people are shown.
        role: planned.role.logged_as(),
        server: server.clone(),
    };
    let thread = std::thread::Builder::new()
        .name(planned.server.clone())
        .spawn(move || {
            let stop: Stop = Box::pin(async move {
                // An error means that the cluster is gone: that stops it as well.
                let _ = stopped.wait_for(|stop| *stop).await;
            });
            who.is_thread();
            let result = percolator_server::run_on_current_thread(&server, async {
                serve(bound, stop).await
            })
            .map_err(anyhow::Error::from)
            .and_then(|result| result)
            .with_context(|| format!("{role} {server}"));
            if let Err(error) = result
                && let Err(error) = could_not.send(error)
            {
                let _ = failed.send(error);
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
    drop(why);
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

    /// The masters last: the others tell them of themselves until they end.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        tokio::task::spawn_blocking(move || {
            for server in self.servers.iter().filter(|it| !it.running.is_master()) {
                let _ = server.stop.send(true);
            }
            for server in self.servers.into_iter().rev() {
                let _ = server.stop.send(true);
                let name = server.running.server;
                server
                    .thread
                    .join()
                    .map_err(|_| anyhow!("{name} ended in a panic"))?;
            }
            Ok(running::forget(&self.data_dir)?)
        })
        .await?
    }
}
