//! `percolator-operator`: makes every `PercolatorCluster` of a Kubernetes cluster into pods.

mod api;
mod calls;
mod cluster;
mod conditions;
mod controller;
mod deadlines;
mod definitions;
mod known;
#[cfg(feature = "late-watches")]
mod late;
mod lease;
mod masters;
mod metrics;
mod reconciles;
mod rolls;
mod watches;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use futures_util::FutureExt as _;
use kube::Client;
use kube::client::ClientBuilder;
use tokio::signal::unix::{SignalKind, signal};

use calls::Calls;
use cluster::Settings;
use controller::Shared;
use deadlines::Deadlines;
use lease::{Election, Term};
use metrics::Metrics;
use percolator_telemetry::who::ServerIdentity;
use percolator_telemetry::{endpoint, logs};
use watches::Watches;

/// Makes every PercolatorCluster into pods, services and volumes, and keeps them so.
#[derive(Debug, Parser)]
#[command(name = "percolator-operator", version, after_help = EXAMPLES)]
struct Flags {
    /// The servers' image, where a cluster names none.
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = concat!("percolator:", env!("CARGO_PKG_VERSION")),
        env = "PERCOLATOR_OPERATOR_IMAGE"
    )]
    image: String,

    /// For how long no node may take a pod before its cluster is Degraded: an autoscaler may be adding a node.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        env = "PERCOLATOR_OPERATOR_UNSCHEDULABLE_TIMEOUT"
    )]
    unschedulable_timeout: percolator_api::Duration,

    /// How many clusters change their servers at a time, when many are changed at once: the others wait until these are rolled out.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..),
        env = "PERCOLATOR_OPERATOR_ROLLS_MAX"
    )]
    rolls_max: u16,

    /// Namespaces whose clusters are reconciled, separated by commas. Default: all.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        env = "PERCOLATOR_OPERATOR_NAMESPACES"
    )]
    namespaces: Vec<String>,

    /// Where to serve /healthz, /readyz and /metrics, IP:PORT. `[::]` is every address, of IPv4 alone if there is no IPv6.
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "[::]:8080",
        env = "PERCOLATOR_OPERATOR_LISTEN"
    )]
    listen: SocketAddr,

    /// Namespace of the lease that one of several operators holds. Default: act without one, as the only
    /// operator.
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "PERCOLATOR_OPERATOR_LEASE_NAMESPACE"
    )]
    lease_namespace: Option<String>,

    /// Name of that lease.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "percolator-operator",
        env = "PERCOLATOR_OPERATOR_LEASE"
    )]
    lease: String,

    /// Name of this operator among several. Default: the host's name, which is the pod's.
    #[arg(
        long,
        value_name = "NAME",
        env = "HOSTNAME",
        default_value = "operator"
    )]
    identity: String,

    /// Ask an operator at HOST:PORT whether it is ready, and end: 0 if it is.
    #[arg(long, value_name = "HOST:PORT")]
    check: Option<String>,

    /// The format of the log's lines.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "json",
        env = "PERCOLATOR_LOG_FORMAT"
    )]
    log_format: LogFormat,

    /// For tests: by how many seconds watches delay their events.
    #[arg(
        long,
        hide = true,
        value_name = "SECONDS",
        env = "PERCOLATOR_OPERATOR_TEST_WATCH_DELAY"
    )]
    #[cfg(feature = "late-watches")]
    test_watch_delay: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

const EXAMPLES: &str = "\
Examples:
  As a pod, one of two:
    percolator-operator --image registry.example.com/percolator:0.1.0 --lease-namespace percolator-system

  On a developer's machine, for the cluster of the current kubeconfig:
    percolator-operator --log-format text --listen 127.0.0.1:8080

Its log goes to standard error; PERCOLATOR_LOG sets the level (default: info), or
PERCOLATOR_LOG_LEVEL_FILE names a file with it, which is read again every second.";

fn main() -> ExitCode {
    let flags = Flags::parse();
    let operator = ServerIdentity {
        role: "operator",
        server: flags.identity.clone(),
    };
    operator.is_process();
    logs::init_with(logs::Settings {
        json: Some(matches!(flags.log_format, LogFormat::Json)),
        // kube logs every request at info.
        ..logs::Settings::from("warn,percolator_operator=info")
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = runtime
        .context("the system gives no runtime")
        .and_then(|runtime| runtime.block_on(run(flags)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopping");
            ExitCode::FAILURE
        }
    }
}

/// How long reconciles may take after the process was asked to stop. With the next timeout, that is less than the chart's grace
/// period of 15 s.
const RECONCILES_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the release of the lease may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

async fn run(flags: Flags) -> anyhow::Result<()> {
    if let Some(address) = &flags.check {
        return endpoint::check(address).await.map_err(anyhow::Error::msg);
    }
    let shutdown = shutdown()?.shared();
    let metrics = Metrics::new()?;
    let (watches, term) = (Watches::default(), Term::default());
    let client = client(
        #[cfg(feature = "late-watches")]
        &flags,
        &metrics,
        &watches,
        &term,
    );
    let client = client.await.context(
        "cannot find the Kubernetes API: neither a pod's service account nor a kubeconfig",
    )?;
    let timeout_seconds = flags.unschedulable_timeout.as_millis() / 1_000;
    let settings = Settings {
        image: flags.image,
        unschedulable_timeout_seconds: i64::try_from(timeout_seconds)?,
        rolls_max: flags.rolls_max.into(),
    };
    let shared = Shared::new(client.clone(), settings, &flags.identity, metrics, watches);
    let shared = Arc::new(shared);
    let _endpoint = endpoint::listen(flags.listen)?.serve(metrics::pages(&shared))?;
    let Some(namespace) = flags.lease_namespace else {
        shared.metrics.leader.set(1);
        until_stopped(
            controller::run(shared, &flags.namespaces, shutdown.clone()),
            shutdown,
        )
        .await;
        return Ok(());
    };
    let election = Election {
        client,
        namespace,
        name: flags.lease,
        me: flags.identity,
        term,
    };
    let is_won = tokio::select! {
        () = shutdown.clone() => false,
        () = election.win() => true,
    };
    if !is_won {
        // The request that takes it may be under way.
        give_back(&election).await;
        return Ok(());
    }
    tracing::info!(lease = election.name, "acquired the lease");
    shared.metrics.leader.set(1);
    tokio::select! {
        () = until_stopped(controller::run(shared, &flags.namespaces, shutdown.clone()), shutdown) => {}
        () = election.keep() => anyhow::bail!("the lease {} is lost", election.name),
    }
    give_back(&election).await;
    Ok(())
}

/// Runs until the end, or until reconciles have had their time after a shutdown began: a response may never come. The next operator
/// reads everything anew.
async fn until_stopped(running: impl Future<Output = ()>, shutdown: impl Future<Output = ()>) {
    let cut_off = async {
        shutdown.await;
        tokio::time::sleep(RECONCILES_TIMEOUT).await;
    };
    tokio::select! {
        () = running => {}
        () = cut_off => tracing::warn!("a reconcile is cut off: it has not ended in time"),
    }
}

/// Hands the lease back, so that another operator need not wait until it ends.
async fn give_back(election: &Election) {
    match tokio::time::timeout(RELEASE_TIMEOUT, election.give_back()).await {
        Ok(Ok(())) => tracing::info!(lease = election.name, "released the lease"),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot release the lease: the next operator waits until it ends")
        }
        Err(_) => tracing::warn!(
            "the release of the lease timed out: the next operator waits until it ends"
        ),
    }
}

/// The API server of the pod's service account, or of a kubeconfig. Every request is counted.
async fn client(
    #[cfg(feature = "late-watches")] flags: &Flags,
    metrics: &Metrics,
    watches: &Watches,
    term: &Term,
) -> anyhow::Result<Client> {
    let config = kube::Config::infer().await?;
    let builder = ClientBuilder::try_from(config)?;
    let builder = builder
        .with_layer(&Deadlines)
        .with_layer(&Calls(metrics.requests.clone()))
        .with_layer(watches)
        .with_layer(term);
    #[cfg(feature = "late-watches")]
    if let Some(seconds) = flags.test_watch_delay {
        let delay = Duration::from_secs(seconds);
        tracing::warn!(?delay, "a test's switch is on: watches delay their events");
        return Ok(builder.with_layer(&late::DelayedWatches { delay }).build());
    }
    Ok(builder.build())
}

/// Ends when the process is asked to stop.
fn shutdown() -> anyhow::Result<impl Future<Output = ()> + Send + Sync> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kubernetes kills the operator after its grace period, which the chart says.
    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_does_not_end_is_cut_off_within_the_grace_period() {
        let began = tokio::time::Instant::now();
        until_stopped(std::future::pending(), std::future::ready(())).await;
        let chart = include_str!("../../charts/percolator-operator/templates/deployment.yaml");
        let grace = "terminationGracePeriodSeconds: ";
        let grace = chart
            .lines()
            .find_map(|line| line.trim().strip_prefix(grace));
        let grace = Duration::from_secs(grace.expect("a grace period").parse().expect("seconds"));
        assert!(began.elapsed() + RELEASE_TIMEOUT < grace);
        // What ends by itself is not waited for any longer.
        let began = tokio::time::Instant::now();
        until_stopped(std::future::ready(()), std::future::pending()).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[test]
    fn the_flags_are_sound() {
        use clap::CommandFactory;
        Flags::command().debug_assert();
    }
}
