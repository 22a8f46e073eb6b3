//! What the operator shows.

use std::sync::Arc;
use std::time::Instant;

use percolator_telemetry::endpoint::Pages;
use percolator_telemetry::names::operator as names;
use percolator_telemetry::{
    Error, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, Set,
};

use crate::controller::Shared;

/// The operator's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    /// Reconciles of clusters, by `result`: ok, error.
    pub(crate) reconciles: IntCounterVec,
    /// How long a reconcile takes, in seconds.
    pub(crate) durations: Histogram,
    /// Reconciles that wrote something.
    pub(crate) writes: IntCounter,
    /// Watches that broke, and reconciles that failed.
    pub(crate) watch_errors: IntCounter,
    /// Requests to the API server, by `method` and `result`.
    pub(crate) requests: IntCounterVec,
    /// Conditions of clusters, by `namespace`, `name`, `type` and `status`.
    pub(crate) conditions: IntGaugeVec,
    clusters: IntGauge,
    queue: IntGaugeVec,
    rolling: IntGauge,
    /// 1 where this process is the one that acts.
    pub(crate) leader: IntGauge,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let set = Set::new(&registry, names::ALL);
        let metrics = Self {
            registry: registry.clone(),
            reconciles: set.counters(names::RECONCILES)?,
            durations: set.histogram(names::RECONCILE_SECONDS)?,
            writes: set.counter(names::WRITES)?,
            watch_errors: set.counter(names::ERRORS)?,
            requests: set.counters(names::API_REQUESTS)?,
            conditions: set.gauges(names::CONDITION)?,
            clusters: set.gauge(names::CLUSTERS)?,
            queue: set.gauges(names::QUEUE)?,
            rolling: set.gauge(names::ROLLING)?,
            leader: set.gauge(names::LEADER)?,
        };
        set.finish();
        Ok(metrics)
    }

    /// How many clusters are known, being reconciled, and tried again.
    fn show(&self, (clusters, reconciling, retrying): (usize, usize, usize)) {
        let whole = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.clusters.set(whole(clusters));
        for (state, count) in names::QUEUE_STATES.iter().zip([reconciling, retrying]) {
            self.queue.with_label_values(&[*state]).set(whole(count));
        }
    }
}

/// The pages of an operator. It is healthy as long as its reconciles end and its watches deliver events, and ready if the API
/// server lets it watch.
pub(crate) fn pages(shared: &Arc<Shared>) -> Pages {
    fn is_alive(shared: &Shared) -> Result<(), String> {
        let now = Instant::now();
        let standstill = shared.reconciles.standstill(now);
        standstill
            .or_else(|| shared.watches.standstill(now))
            .map_or(Ok(()), Err)
    }
    let (asked, watched, shown) = (shared.clone(), shared.clone(), shared.clone());
    Pages {
        registry: shared.metrics.registry.clone(),
        role: "operator",
        refresh: Box::new(move || {
            shown.metrics.show(shown.count());
            let rolling = i64::try_from(shown.rolls().count());
            shown.metrics.rolling.set(rolling.unwrap_or(i64::MAX));
            shown
                .conditions
                .show(&shown.metrics.conditions, |namespace, name| {
                    shown.is_there(namespace, name)
                });
        }),
        ready: Box::new(move || {
            is_alive(&asked).and_then(|()| asked.watches.failing().map_or(Ok(()), Err))
        }),
        healthy: Box::new(move || is_alive(&watched)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use percolator_telemetry::endpoint;

    use super::*;

    #[test]
    fn every_metric_is_there_from_the_start() {
        let metrics = Metrics::new().unwrap();
        metrics.reconciles.with_label_values(&["ok"]).inc();
        let text = percolator_telemetry::text(&metrics.registry).unwrap();
        for line in [
            "percolator_operator_reconciles_total{result=\"ok\"} 1",
            "percolator_operator_reconciles_total{result=\"error\"} 0",
            "percolator_operator_writes_total 0",
            "percolator_operator_errors_total 0",
            "percolator_operator_api_requests_total{method=\"GET\",result=\"ok\"} 0",
            "percolator_operator_queued_clusters{state=\"retrying\"} 0",
            "percolator_operator_leader 0",
            "percolator_operator_reconcile_duration_seconds_count 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    /// As `/metrics` shows it; Prometheus' own tool has an opinion on it, where it is here.
    #[tokio::test]
    #[allow(clippy::print_stdout, reason = "the word that xtask listens for")]
    async fn promtool_finds_nothing_wrong_with_the_page() {
        let metrics = Metrics::new().unwrap();
        metrics.reconciles.with_label_values(&["ok"]).inc();
        metrics.durations.observe(0.1);
        let listener = endpoint::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.address().to_string();
        let _endpoint = listener
            .serve(Pages {
                registry: metrics.registry,
                role: "operator",
                refresh: Box::new(|| {}),
                ready: Box::new(|| Ok(())),
                healthy: Box::new(|| Ok(())),
            })
            .unwrap();
        let page = endpoint::get(&address, "/metrics").await.unwrap().body;
        for words in [
            "process_open_fds ",
            "role=\"operator\"",
            "percolator_operator_leader 0",
        ] {
            assert!(page.contains(words), "{words}\n{page}");
        }
        let tool = std::env::var_os("PERCOLATOR_PROMTOOL").unwrap_or_else(|| "promtool".into());
        let child = Command::new(tool)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            println!("SKIPPED: there's no promtool, of Debian's package prometheus");
            return;
        };
        // The pipe is closed with the value.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(page.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.is_empty(), "{said}\n{page}");
    }
}
