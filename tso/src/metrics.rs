//! What the oracle counts.

use std::path::Path;
use std::time::Duration;

use percolator_server::leadership::LeadershipMetrics;
use percolator_telemetry::names::tso as names;
use percolator_telemetry::{
    Error, Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, LocalHistogram, LocalIntCounter,
    Registry, Set, Volume,
};

use crate::core::Facts;
use crate::granting::Right;

/// The oracle's metrics.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    requests: IntCounterVec,
    waits: Histogram,
    timestamps: IntCounter,
    batch: Histogram,
    pub(crate) limit_waits: IntCounter,
    limit_writes: IntCounterVec,
    limit_write_seconds: Histogram,
    limit_failing: IntGauge,
    remaining: Gauge,
    offset: Gauge,
    followed: IntGauge,
    pub(crate) clock_jumps: IntCounter,
    pub(crate) streams: IntGauge,
    promised: IntGauge,
    by_promises: IntGauge,
    register_age: Gauge,
    promises: IntCounterVec,
    volume: Volume,
    pub(crate) leadership: LeadershipMetrics,
}

/// What is counted with every request, under the lock that it takes anyway.
pub(crate) struct RequestCounters {
    granted: LocalIntCounter,
    timestamps: LocalIntCounter,
    batch: LocalHistogram,
    waits: LocalHistogram,
}

impl Metrics {
    /// Those of an oracle with this window.
    pub(crate) fn new(window_ms: u64) -> Result<Self, Error> {
        let registry = Registry::new();
        let set = Set::new(&registry, names::ALL);
        let metrics = Self {
            requests: set.counters(names::REQUESTS)?,
            waits: set.histogram(names::REQUEST_WAIT)?,
            timestamps: set.counter(names::TIMESTAMPS)?,
            batch: set.histogram(names::BATCH)?,
            limit_waits: set.counter(names::LIMIT_WAITS)?,
            limit_writes: set.counters(names::LIMIT_WRITES)?,
            limit_write_seconds: set.histogram(names::LIMIT_WRITE_SECONDS)?,
            limit_failing: set.gauge(names::LIMIT_FAILING)?,
            remaining: set.seconds(names::LIMIT_REMAINING)?,
            offset: set.seconds(names::CLOCK_OFFSET)?,
            followed: set.gauge(names::CLOCK_FOLLOWED)?,
            clock_jumps: set.counter(names::CLOCK_JUMPS)?,
            streams: set.gauge(names::STREAMS)?,
            promised: set.gauge(names::PROMISED)?,
            by_promises: set.gauge(names::BY_PROMISES)?,
            register_age: set.seconds(names::REGISTER_AGE)?,
            promises: set.counters(names::PROMISES)?,
            volume: Volume::new(set.gauge(names::DISK_FREE)?, set.gauge(names::DISK_SIZE)?),
            leadership: LeadershipMetrics::new(&registry, "tso")?,
            registry: registry.clone(),
        };
        set.seconds(names::WINDOW)?.set(seconds(window_ms));
        set.finish();
        Ok(metrics)
    }

    pub(crate) fn counted(&self) -> RequestCounters {
        RequestCounters {
            granted: self.requests.with_label_values(&["granted"]).local(),
            timestamps: self.timestamps.local(),
            batch: self.batch.local(),
            waits: self.waits.local(),
        }
    }

    /// A request was not granted.
    pub(crate) fn failed(&self, result: &'static str) {
        self.requests.with_label_values(&[result]).inc();
    }

    /// An attempt to make a limit durable took this long.
    pub(crate) fn limit_written(&self, ok: bool, took: Duration) {
        let result = if ok { "ok" } else { "error" };
        self.limit_writes.with_label_values(&[result]).inc();
        self.limit_write_seconds.observe(took.as_secs_f64());
        self.limits_fail(!ok);
    }

    /// Whether no further limit can be made durable, as far as the last attempt has shown.
    pub(crate) fn limits_fail(&self, fail: bool) {
        self.limit_failing.set(fail.into());
    }

    /// This became of a promise.
    pub(crate) fn promise(&self, result: &'static str) {
        self.promises.with_label_values(&[result]).inc();
    }

    /// What the right of one of several oracles rests on.
    pub(crate) fn show_right(&self, right: Right) {
        self.promised.set(right.is_promised.into());
        self.by_promises.set(right.is_by_promises.into());
        self.register_age.set(seconds(right.register_age_ms));
    }

    /// The oracle as it is now, and the volume of its folder.
    pub(crate) fn show(&self, facts: Facts, folder: &Path) {
        self.volume.show(folder);
        self.remaining.set(seconds(facts.remaining_ms));
        self.offset.set(facts.offset_ms as f64 / 1_000.0);
        self.followed.set(facts.followed.into());
    }
}

impl RequestCounters {
    /// A request was granted so many, having waited so long.
    pub(crate) fn granted(&mut self, timestamps: u32, waited: Duration) {
        self.granted.inc();
        self.timestamps.inc_by(timestamps.into());
        self.batch.observe(timestamps.into());
        self.waits.observe(waited.as_secs_f64());
    }

    pub(crate) fn flush(&mut self) {
        self.granted.flush();
        self.timestamps.flush();
        self.batch.flush();
        self.waits.flush();
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_shown_as_seconds() {
        assert_eq!(seconds(1_500), 1.5);
    }
}
