//! What the operator shows.

use std::sync::Arc;
use std::time::Instant;

use percolator_telemetry::endpoint::Pages;
use percolator_telemetry::names::operator as names;
use percolator_telemetry::{Error, Histogram, IntCounter, IntCounterVec, IntGauge, Registry, Set};

use crate::controller::Shared;

/// The operator's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
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
    pub(crate) fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let set = Set::new(&registry, names::ALL);
        let metrics = Self {
            registry: registry.clone(),
            looks: set.counters(names::RECONCILES)?,
            durations: set.histogram(names::RECONCILE_SECONDS)?,
            writes: set.counter(names::WRITES)?,
            watch_errors: set.counter(names::ERRORS)?,
            requests: set.counters(names::API_REQUESTS)?,
            leader: set.gauge(names::LEADER)?,
        };
        set.finish();
        Ok(metrics)
    }
}

/// What is served of an operator: it is ready, and healthy, as long as its looks at clusters get on.
pub(crate) fn pages(shared: &Arc<Shared>) -> Pages {
    let gets_on = |shared: &Arc<Shared>| {
        let shared = shared.clone();
        move || match shared.looks.standstill(Instant::now()) {
            Some(what) => Err(what),
            None => Ok(()),
        }
    };
    Pages {
        registry: shared.metrics.registry.clone(),
        role: "operator",
        refresh: Box::new(|| {}),
        ready: Box::new(gets_on(shared)),
        healthy: Box::new(gets_on(shared)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_there_from_the_start() {
        let metrics = Metrics::new().unwrap();
        metrics.looks.with_label_values(&["ok"]).inc();
        let text = percolator_telemetry::text(&metrics.registry).unwrap();
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
