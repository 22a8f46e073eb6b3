//! What the operator counts.

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};

/// The operator's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Registry,
    /// Looks at clusters, by `result`: ok, error.
    pub(crate) looks: IntCounterVec,
    /// How long a look takes, in seconds.
    pub(crate) durations: Histogram,
    /// Looks that wrote something.
    pub(crate) writes: IntCounter,
    /// Watches that broke, and looks that failed.
    pub(crate) watch_errors: IntCounter,
    /// Requests to the API server, by `method`.
    pub(crate) requests: IntCounterVec,
    /// 1 where this process is the one that acts.
    pub(crate) leader: IntGauge,
}

impl Metrics {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let metrics = Self {
            registry: Registry::new_custom(Some("percolator_operator".to_owned()), None)?,
            looks: IntCounterVec::new(
                Opts::new("reconciles_total", "Reconciliations, by result."),
                &["result"],
            )?,
            durations: Histogram::with_opts(HistogramOpts::new(
                "reconcile_duration_seconds",
                "How long a reconciliation takes.",
            ))?,
            writes: IntCounter::new(
                "writes_total",
                "Times that objects, or a status, were written.",
            )?,
            watch_errors: IntCounter::new(
                "errors_total",
                "Watches that broke, and reconciliations that failed.",
            )?,
            requests: IntCounterVec::new(
                Opts::new(
                    "api_requests_total",
                    "Requests to the Kubernetes API server, by method of HTTP.",
                ),
                &["method"],
            )?,
            leader: IntGauge::new("leader", "1 where this process is the one that acts.")?,
        };
        let Self {
            registry,
            looks,
            durations,
            writes,
            watch_errors,
            requests,
            leader,
        } = &metrics;
        // So that they are there before anything happened.
        for result in ["ok", "error"] {
            looks.with_label_values(&[result]);
        }
        for method in ["DELETE", "GET", "PATCH", "POST", "PUT"] {
            requests.with_label_values(&[method]);
        }
        registry.register(Box::new(looks.clone()))?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(durations.clone()))?;
        registry.register(Box::new(writes.clone()))?;
        registry.register(Box::new(watch_errors.clone()))?;
        registry.register(Box::new(leader.clone()))?;
        Ok(metrics)
    }

    /// In Prometheus' text format.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut bytes)?;
        Ok(String::from_utf8(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_there_from_the_start() {
        let metrics = Metrics::new().unwrap();
        metrics.looks.with_label_values(&["ok"]).inc();
        let text = metrics.text().unwrap();
        for line in [
            "percolator_operator_reconciles_total{result=\"ok\"} 1",
            "percolator_operator_reconciles_total{result=\"error\"} 0",
            "percolator_operator_writes_total 0",
            "percolator_operator_errors_total 0",
            "percolator_operator_api_requests_total{method=\"GET\"} 0",
            "percolator_operator_leader 0",
            "percolator_operator_reconcile_duration_seconds_count 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
