//! The metrics of a tablet server.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use percolator_engine::{Batch, Error as EngineError, RESERVE_BYTES, Stats};
use percolator_protocol::types::{TabletState, Timestamp};
use percolator_telemetry::names::tablet as names;
use percolator_telemetry::{
    Bounded, Error, Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Registry, Set, Volume, keep_up,
};

use crate::core::Facts;
use crate::load::LoadCounters;

/// The server's metrics.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    began: Instant,
    pub(crate) requests: IntCounterVec,
    pub(crate) durations: HistogramVec,
    pub(crate) steps: HistogramVec,
    pub(crate) latch_waits: IntCounter,
    pub(crate) limit_hits: IntCounterVec,
    pub(crate) transactions: IntCounterVec,
    pub(crate) one_phase: IntCounter,
    pub(crate) locks_met: IntCounterVec,
    pub(crate) status_checks: IntCounterVec,
    lock_resolutions: IntCounterVec,
    pub(crate) scan_cells: Histogram,
    pub(crate) scans_cut: IntCounter,
    pub(crate) streams: IntGauge,
    pub(crate) slow_clients: IntCounter,
    waiting: IntGaugeVec,
    waiting_bytes: IntGaugeVec,
    group_requests: Histogram,
    group_bytes: Histogram,
    group_seconds: Histogram,
    groups: IntCounterVec,
    sync_seconds: Gauge,
    locks: IntGauge,
    notifications: IntGauge,
    notification_oldest: Gauge,
    tablets: IntGaugeVec,
    table_tablets: IntGaugeVec,
    tables: Mutex<Bounded>,
    pub(crate) loads: LoadCounters,
    engine_bytes: IntGauge,
    log_bytes: IntGauge,
    syncs: IntCounter,
    snapshots: IntGauge,
    cache_bytes: IntGauge,
    cache_lookups: IntCounterVec,
    volume: Volume,
    disk_full: IntGauge,
    pub(crate) disk_stalled: Gauge,
    barrier: Gauge,
    safe_point: Gauge,
    garbage: IntGauge,
    garbage_oldest: Gauge,
    collected_versions: IntCounter,
    collected_bytes: IntCounter,
    master_answered: Gauge,
}

impl Metrics {
    /// The metrics of a server with this limit of its caches.
    pub(crate) fn new(cache_limit: u64) -> Result<Self, Error> {
        let registry = Registry::new();
        let set = Set::new(&registry, names::ALL);
        let metrics = Self {
            registry: registry.clone(),
            began: Instant::now(),
            requests: set.counters(names::REQUESTS)?,
            durations: set.histograms(names::REQUEST_SECONDS)?,
            steps: set.histograms(names::STEP_SECONDS)?,
            latch_waits: set.counter(names::LATCH_WAITS)?,
            limit_hits: set.counters(names::LIMIT_HITS)?,
            transactions: set.counters(names::TRANSACTIONS)?,
            one_phase: set.counter(names::ONE_PHASE)?,
            locks_met: set.counters(names::LOCKS_MET)?,
            status_checks: set.counters(names::STATUS_CHECKS)?,
            lock_resolutions: set.counters(names::LOCK_RESOLUTIONS)?,
            scan_cells: set.histogram(names::SCAN_CELLS)?,
            scans_cut: set.counter(names::SCANS_CUT)?,
            streams: set.gauge(names::STREAMS)?,
            slow_clients: set.counter(names::SLOW_CLIENTS)?,
            waiting: set.gauges(names::WAITING_REQUESTS)?,
            waiting_bytes: set.gauges(names::WAITING_BYTES)?,
            group_requests: set.histogram(names::GROUP_REQUESTS)?,
            group_bytes: set.histogram(names::GROUP_BYTES)?,
            group_seconds: set.histogram(names::GROUP_SECONDS)?,
            groups: set.counters(names::GROUPS)?,
            sync_seconds: set.seconds(names::SYNC_SECONDS)?,
            locks: set.gauge(names::LOCKS)?,
            notifications: set.gauge(names::NOTIFICATIONS)?,
            notification_oldest: set.seconds(names::NOTIFICATION_OLDEST)?,
            tablets: set.gauges(names::TABLETS)?,
            table_tablets: set.gauges(names::TABLE_TABLETS)?,
            tables: Mutex::new(Bounded::of(&names::TABLE_TABLETS)),
            loads: LoadCounters::new(&set)?,
            engine_bytes: set.gauge(names::ENGINE_BYTES)?,
            log_bytes: set.gauge(names::LOG_BYTES)?,
            syncs: set.counter(names::SYNCS)?,
            snapshots: set.gauge(names::SNAPSHOTS)?,
            cache_bytes: set.gauge(names::CACHE_BYTES)?,
            cache_lookups: set.counters(names::CACHE_LOOKUPS)?,
            volume: Volume::new(set.gauge(names::DISK_FREE)?, set.gauge(names::DISK_SIZE)?),
            disk_full: set.gauge(names::DISK_FULL)?,
            disk_stalled: set.seconds(names::DISK_STALLED)?,
            barrier: set.seconds(names::BARRIER)?,
            safe_point: set.seconds(names::SAFE_POINT)?,
            garbage: set.gauge(names::GARBAGE)?,
            garbage_oldest: set.seconds(names::GARBAGE_OLDEST)?,
            collected_versions: set.counter(names::COLLECTED_VERSIONS)?,
            collected_bytes: set.counter(names::COLLECTED_BYTES)?,
            master_answered: set.seconds(names::MASTER_ANSWERED)?,
        };
        let limit = set.gauge(names::CACHE_LIMIT)?;
        limit.set(whole(cache_limit));
        set.finish();
        Ok(metrics)
    }

    /// Nanoseconds since these metrics began.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts a round of resolving locks, and whether a lock blocked it.
    pub(crate) fn resolved_locks(&self, ok: bool) {
        let result = if ok { "ok" } else { "blocked" };
        self.lock_resolutions.with_label_values(&[result]).inc();
    }

    /// Counts a group, and the time that it took.
    pub(crate) fn committed(
        &self,
        group: &[Batch],
        result: &Result<(), EngineError>,
        took: Duration,
    ) {
        let result = match result {
            Ok(()) => "ok",
            Err(EngineError::Full { .. }) => "full",
            Err(_) => "failed",
        };
        self.groups.with_label_values(&[result]).inc();
        let bytes: usize = group.iter().map(Batch::size_bytes).sum();
        self.group_requests.observe(group.len() as f64);
        self.group_bytes.observe(bytes as f64);
        self.group_seconds.observe(took.as_secs_f64());
    }

    /// Notes that the master has answered a heartbeat.
    pub(crate) fn master_has_answered(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.master_answered
            .set(now.unwrap_or_default().as_secs_f64());
    }

    /// Shows the facts about the server.
    pub(crate) fn show(&self, facts: &Facts) {
        let waiting = |what: &str, count: usize| {
            let gauge = self.waiting.with_label_values(&[what]);
            gauge.set(whole(count as u64));
        };
        waiting("rows", facts.queued);
        waiting("disk", facts.decided);
        waiting("readable", facts.reads);
        waiting("cells", facts.cells);
        let bytes = |what: &str, bytes: usize| {
            let gauge = self.waiting_bytes.with_label_values(&[what]);
            gauge.set(whole(bytes as u64));
        };
        bytes("rows", facts.queued_bytes);
        bytes("disk", facts.decided_bytes);
        self.locks.set(whole(facts.locks as u64));
        let (waiting, oldest) = facts.notifications;
        self.notifications.set(whole(waiting));
        self.notification_oldest.set(seconds(oldest));
        let (hits, misses) = facts.cache;
        keep_up(&self.cache_lookups.with_label_values(&["hit"]), hits);
        keep_up(&self.cache_lookups.with_label_values(&["miss"]), misses);
        self.cache_bytes.set(whole(facts.cache_bytes as u64));
        self.disk_full.set(facts.short_of_room.into());
        self.barrier.set(seconds(facts.points.barrier));
        self.safe_point.set(seconds(facts.points.safe_point));
        self.garbage_oldest.set(seconds(facts.oldest_garbage));
        let garbage = facts.garbage.iter();
        let waiting: u64 = garbage.clone().map(|tablet| tablet.waiting).sum();
        self.garbage.set(whole(waiting));
        let versions = garbage.clone().map(|tablet| tablet.records).sum();
        keep_up(&self.collected_versions, versions);
        let bytes = garbage.map(|tablet| tablet.bytes).sum();
        keep_up(&self.collected_bytes, bytes);
        self.show_tablets(facts);
    }

    fn show_tablets(&self, facts: &Facts) {
        let mut by_state = [0_i64; names::STATES.len()];
        let mut by_table: BTreeMap<&str, i64> = BTreeMap::new();
        for tablet in &facts.tablets {
            let state = match tablet.state {
                TabletState::Serving => 0,
                TabletState::Frozen => 1,
            };
            by_state[state] += 1;
            *by_table.entry(tablet.table_name.as_str()).or_default() += 1;
        }
        for (state, count) in names::STATES.iter().zip(by_state) {
            self.tablets.with_label_values(&[*state]).set(count);
        }
        self.tables.lock().set(&self.table_tablets, &by_table);
        self.loads.show(&facts.tablets);
    }

    /// Shows the engine, and the volume of its folder.
    pub(crate) fn show_engine(&self, stats: &Stats, folder: &Path) {
        self.engine_bytes.set(whole(stats.size_bytes));
        self.log_bytes.set(whole(stats.log_bytes));
        self.snapshots.set(whole(stats.snapshots));
        self.sync_seconds.set(stats.last_sync.as_secs_f64());
        keep_up(&self.syncs, stats.syncs);
        self.volume.show(folder);
        // The disk may be full before a write shows it.
        if self.volume.has_less_than(RESERVE_BYTES) {
            self.disk_full.set(1);
        }
    }
}

/// The seconds of a timestamp since 1970.
fn seconds(ts: Timestamp) -> f64 {
    ts.physical_ms() as f64 / 1_000.0
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
