//! What the master shows.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_server::leadership::LeadershipMetrics;
use percolator_telemetry::names::master as names;
use percolator_telemetry::{
    Bounded, Error, Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Registry, Set, Volume,
};

use crate::facts::Facts;

/// The master's metrics.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
    has_state: IntGauge,
    servers: IntGaugeVec,
    tables: IntGaugeVec,
    tablets: IntGaugeVec,
    tablets_down: IntGaugeVec,
    down_names: Mutex<Bounded>,
    tablets_moving: IntGauge,
    tablets_to_drain: IntGauge,
    table_tablets: IntGaugeVec,
    table_names: Mutex<Bounded>,
    state_writes: IntCounterVec,
    state_write_seconds: Histogram,
    state_bytes: IntGauge,
    commands: IntCounterVec,
    in_flight: IntGauge,
    now: Gauge,
    barrier_age: Gauge,
    ready_age: Gauge,
    resolved_age: Gauge,
    retention: Gauge,
    held_by: IntGaugeVec,
    sessions: IntGauge,
    gc_locks: IntGauge,
    oldest_gc_lock: Gauge,
    garbage: IntGauge,
    expected: IntGaugeVec,
    disk_failures: IntCounter,
    promised: IntGauge,
    by_promises: IntGauge,
    ahead: IntGauge,
    promises: IntCounterVec,
    volume: Volume,
    pub(crate) leadership: LeadershipMetrics,
}

/// What the right of one of several masters rests on, and where its newest state is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownRight {
    /// All that could take over promise not to.
    pub(crate) is_promised: bool,
    /// It rests on that alone.
    pub(crate) is_by_promises: bool,
    /// Only folders have the newest state.
    pub(crate) is_ahead: bool,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let set = Set::new(&registry, names::ALL);
        let metrics = Self {
            registry: registry.clone(),
            requests: set.counters(names::REQUESTS)?,
            durations: set.histograms(names::REQUEST_SECONDS)?,
            has_state: set.gauge(names::HAS_STATE)?,
            servers: set.gauges(names::SERVERS)?,
            tables: set.gauges(names::TABLES)?,
            tablets: set.gauges(names::TABLETS)?,
            tablets_down: set.gauges(names::TABLETS_DOWN)?,
            down_names: Mutex::new(Bounded::of(&names::TABLETS_DOWN)),
            tablets_moving: set.gauge(names::TABLETS_MOVING)?,
            tablets_to_drain: set.gauge(names::TABLETS_TO_DRAIN)?,
            table_tablets: set.gauges(names::TABLE_TABLETS)?,
            table_names: Mutex::new(Bounded::of(&names::TABLE_TABLETS)),
            state_writes: set.counters(names::STATE_WRITES)?,
            state_write_seconds: set.histogram(names::STATE_WRITE_SECONDS)?,
            state_bytes: set.gauge(names::STATE_BYTES)?,
            commands: set.counters(names::COMMANDS)?,
            in_flight: set.gauge(names::COMMANDS_IN_FLIGHT)?,
            now: set.seconds(names::NOW)?,
            barrier_age: set.seconds(names::BARRIER_AGE)?,
            ready_age: set.seconds(names::READY_AGE)?,
            resolved_age: set.seconds(names::RESOLVED_AGE)?,
            retention: set.seconds(names::RETENTION)?,
            held_by: set.gauges(names::HELD_BY)?,
            sessions: set.gauge(names::SESSIONS)?,
            gc_locks: set.gauge(names::GC_LOCKS)?,
            oldest_gc_lock: set.seconds(names::OLDEST_GC_LOCK)?,
            garbage: set.gauge(names::GARBAGE)?,
            expected: set.gauges(names::EXPECTED)?,
            disk_failures: set.counter(names::DISK_FAILURES)?,
            promised: set.gauge(names::PROMISED)?,
            by_promises: set.gauge(names::BY_PROMISES)?,
            ahead: set.gauge(names::STATE_AHEAD)?,
            promises: set.counters(names::PROMISES)?,
            volume: Volume::new(set.gauge(names::DISK_FREE)?, set.gauge(names::DISK_SIZE)?),
            leadership: LeadershipMetrics::new(&registry, "master")?,
        };
        set.finish();
        Ok(metrics)
    }

    /// A request was answered.
    pub(crate) fn answered(&self, method: &str, ok: bool, took: Duration) {
        self.requests.with_label_values(&[method, result(ok)]).inc();
        self.durations
            .with_label_values(&[method])
            .observe(took.as_secs_f64());
    }

    /// The state was to be made durable since then.
    pub(crate) fn persisted(&self, bytes: &[u8], ok: bool, took: Duration) {
        self.state_writes.with_label_values(&[result(ok)]).inc();
        self.state_write_seconds.observe(took.as_secs_f64());
        self.state_bytes.set(whole(bytes.len()));
    }

    /// This became of a promise.
    pub(crate) fn promise(&self, result: &'static str) {
        self.promises.with_label_values(&[result]).inc();
    }

    /// What the right of one of several masters rests on.
    pub(crate) fn show_right(&self, right: ShownRight) {
        self.promised.set(right.is_promised.into());
        self.by_promises.set(right.is_by_promises.into());
        self.ahead.set(right.is_ahead.into());
    }

    /// A command to a tablet server has ended.
    pub(crate) fn commanded(&self, ok: bool) {
        self.commands.with_label_values(&[result(ok)]).inc();
    }

    /// The volume of the master's folder.
    pub(crate) fn show_volume(&self, folder: &Path) {
        self.volume.show(folder);
    }

    /// The master as it is now.
    pub(crate) fn show(&self, facts: &Facts) {
        self.has_state.set(facts.has_state.into());
        for role in ["tso", "tablet"] {
            for state in names::SERVER_STATES {
                let count = facts.servers.get(&(role, *state)).copied();
                let gauge = self.servers.with_label_values(&[role, *state]);
                gauge.set(count.unwrap_or_default());
            }
        }
        let show = |gauges: &IntGaugeVec, states: &[&str], counts: &BTreeMap<&str, i64>| {
            for state in states {
                let count = counts.get(state).copied().unwrap_or_default();
                gauges.with_label_values(&[*state]).set(count);
            }
        };
        self.tablets_moving.set(facts.tablets_moving);
        self.tablets_to_drain.set(facts.tablets_to_drain);
        show(&self.tables, names::TABLE_STATES, &facts.tables);
        show(&self.tablets, names::TABLET_STATES, &facts.tablets);
        for (names, gauges, counts) in [
            (&self.table_names, &self.table_tablets, &facts.by_table),
            (&self.down_names, &self.tablets_down, &facts.down_by_owner),
        ] {
            let counts = counts.iter();
            let counts = counts.map(|(name, count)| (name.as_str(), *count));
            names.lock().set(gauges, &counts.collect());
        }
        self.in_flight.set(whole(facts.in_flight));
        self.now.set(facts.now.physical_ms() as f64 / 1_000.0);
        let age = |gauge: &Gauge, age: Option<Duration>| {
            gauge.set(age.unwrap_or_default().as_secs_f64());
        };
        age(&self.barrier_age, facts.barrier_age);
        age(&self.ready_age, facts.ready_age);
        age(&self.resolved_age, facts.resolved_age);
        age(&self.oldest_gc_lock, facts.oldest_floor_age);
        self.retention.set(facts.retention.as_secs_f64());
        for by in names::HOLDERS {
            let held = facts.held_by.contains(by);
            self.held_by.with_label_values(&[*by]).set(held.into());
        }
        let known = self.disk_failures.get();
        self.disk_failures
            .inc_by(facts.disk_failures.saturating_sub(known));
        for role in names::ROLES {
            let count = facts.expected.get(role).copied().unwrap_or_default();
            self.expected.with_label_values(&[*role]).set(count);
        }
        self.sessions.set(whole(facts.sessions));
        self.gc_locks.set(whole(facts.gc_locks));
        self.garbage
            .set(i64::try_from(facts.garbage).unwrap_or(i64::MAX));
    }
}

fn result(ok: bool) -> &'static str {
    if ok { "ok" } else { "error" }
}

fn whole(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
