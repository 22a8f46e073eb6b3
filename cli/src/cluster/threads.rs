//! Every server as a thread of this process, each with a runtime of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow};
use percolator_telemetry::otlp::Settings;
use percolator_telemetry::who::Who;
use tokio::sync::{mpsc, oneshot, watch};

use super::followed;
use super::layout::{Layout, MASTER, ORACLE};
use super::running::{self, Running};

/// A disk that takes no write for so long ends the server, and `up` with it.
const DISK_STALL_MAX: Duration = Duration::from_secs(30);

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
    let options = percolator_gc_master::Options {
        data_dir: layout.folder(MASTER),
        listen: layout.listen(0)?,
        metrics_listen: Some(layout.listen_metrics(0)?),
        traces: Settings::of_environment(),
        server: MASTER.to_owned(),
        new_cluster: layout.new,
        settings: percolator_gc_master::Settings::default(),
        manifest: Some(followed::manifest_file(&layout.data_dir)),
    };
    let master = spawn(
        "master",
        MASTER,
        layout,
        failed,
        move |bound, stop| async move {
            let server = percolator_gc_master::Server::bind(options).await?;
            let _ = bound.send((server.address(), server.metrics_address()));
            Ok(server.run(stop).await?)
        },
    )
    .await?;
    let address = master.running.address.clone();
    servers.push(master);

    let mut options = percolator_tso::Options::new(layout.folder(ORACLE));
    options.listen = layout.listen(1)?;
    options.metrics_listen = Some(layout.listen_metrics(1)?);
    options.master = Some(address.clone());
    options.server = ORACLE.to_owned();
    options.traces = Settings::of_environment();
    options.settings.window_ms = layout.window_ms;
    options.settings.stopped_ms_max =
        u64::try_from(layout.stopped_max.as_millis()).unwrap_or(u64::MAX);
    let oracle = spawn(
        "oracle",
        ORACLE,
        layout,
        failed,
        move |bound, stop| async move {
            let server = percolator_tso::Server::bind(options).await?;
            let _ = bound.send((server.address(), server.metrics_address()));
            Ok(server.run(stop).await?)
        },
    )
    .await?;
    servers.push(oracle);

    for (number, name) in layout.tablet_servers().enumerate() {
        let number = 2 + u16::try_from(number).unwrap_or(u16::MAX - 2);
        let options = percolator_tablet::Options {
            data_dir: layout.folder(&name),
            listen: layout.listen(number)?,
            metrics_listen: Some(layout.listen_metrics(number)?),
            traces: Settings::of_environment(),
            slow_request: None,
            advertise: None,
            master: address.clone(),
            server: name.clone(),
            engine: layout.engine,
            cache_bytes: layout.cache_bytes,
            raw: layout.raw,
            disk_stall_max: DISK_STALL_MAX,
            index_garbage: true,
        };
        let tablet = spawn(
            "tablet",
            &name,
            layout,
            failed,
            move |bound, stop| async move {
                let server = percolator_tablet::Server::bind(options).await?;
                let _ = bound.send((server.address(), server.metrics_address()));
                Ok(server.run(stop).await?)
            },
        )
        .await?;
        servers.push(tablet);
    }
    Ok(())
}

/// Starts a server in a thread, and waits until it listens.
async fn spawn<F, Fut>(
    role: &'static str,
    name: &str,
    layout: &Layout,
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
    let (server, failed) = (name.to_owned(), failed.clone());
    let who = Who {
        // The oracle and the master have other names in logs and metrics than in what people are shown.
        role: logged_as(role),
        server: name.to_owned(),
    };
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
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
        .with_context(|| format!("cannot start a thread for {name}"))?;
    let (address, metrics) = match address.await {
        Ok(addresses) => addresses,
        Err(_) => {
            return Err(why
                .await
                .unwrap_or_else(|_| anyhow!("{role} {name} ended before it listened")));
        }
    };
    drop(why);
    Ok(Thread {
        running: Running {
            role,
            server: name.to_owned(),
            address: address.to_string(),
            metrics: metrics.map(|address| address.to_string()),
            pid: None,
            data: layout.folder(name),
        },
        stop,
        thread,
    })
}

/// What logs, metrics and traces call a role.
fn logged_as(role: &'static str) -> &'static str {
    match role {
        "master" => "gc-master",
        "oracle" => "tso",
        role => role,
    }
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

    /// The master last: the others tell it of themselves until they end.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        tokio::task::spawn_blocking(move || {
            for server in self.servers.iter().skip(1) {
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
