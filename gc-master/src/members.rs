//! The cluster's servers, by their heartbeats since this start of the master.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

use crate::amounts::Amounts;
use crate::core::Directory;
use crate::events::{Departed, Heartbeat};
use crate::progress::ReportedProgress;
use crate::reports::{Arrival, LockObstacle};
use crate::state::{Placement, TableState};

/// So much is kept of why a server has ended, in characters.
const FAILURE_CHARS_MAX: usize = 1000;

/// What is known of a server since this start of the master.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) incarnation: u64,
    pub(crate) last_heartbeat: Duration,
    /// The version of its lists that is known here: of its tablets, and more; zero: none.
    pub(crate) lists_version: u64,
    /// Its lists are reconciled again with the next heartbeat: it has to drop a tablet, or has lost a
    /// conflict.
    pub(crate) needs_reconcile: bool,
    /// Tablets that it owns and did not report: since when, and whether that was noted.
    pub(crate) missing: BTreeMap<u64, (Duration, bool)>,
    /// How many tablets its last list had, with those that it has handed over.
    pub(crate) listed_rows: usize,
    /// Tablets that it has handed over, and those that it gets.
    pub(crate) departed: Vec<Departed>,
    pub(crate) arriving: Vec<Arrival>,
    /// Reports that were ignored, and noted.
    pub(crate) conflicts: BTreeSet<u64>,
    /// As far as it has durably taken them.
    pub(crate) points: Points,
    /// Up to where the locks in the tablets of its list are resolved.
    pub(crate) resolved_ts: Timestamp,
    /// Since when that lies below its barrier.
    pub(crate) unresolved_since: Option<Duration>,
    /// The lock that is in the way.
    pub(crate) obstacle: Option<LockObstacle>,
    /// The barrier in the reply to its last heartbeat; and since when it reports that it has not made such a barrier
    /// durable.
    pub(crate) sent_barrier: Timestamp,
    /// Another incarnation that has sent a heartbeat, and since when.
    pub(crate) rival: Option<(u64, Duration)>,
    /// How far it may answer, by the replies that it was sent.
    pub(crate) leased_to: Timestamp,
    pub(crate) behind_since: Option<Duration>,
    /// What it has to collect, and has collected.
    pub(crate) progress: ReportedProgress,
    /// How large its tablets are, in bytes, and how much they are used, in cells a second.
    pub(crate) sizes: Amounts,
    pub(crate) loads: Amounts,
    disk_stalled_ms: u32,
    /// Bytes that are free on its volume.
    pub(crate) free_bytes: Option<u64>,
    metrics_address: Option<SocketAddr>,
    failed: Option<Failed>,
    /// The term in which an oracle leads; 0: it doesn't.
    pub(crate) leads_term: u64,
    /// How long its last takeover took, in milliseconds.
    pub(crate) takeover_ms: Option<u64>,
    /// It is stopping, and waits until others have its tablets.
    pub(crate) stopping: bool,
    /// It has reported that it ends.
    pub(crate) has_left: bool,
    /// It was answered that this master is about to end.
    pub(crate) knows_end: bool,
}

/// Starts of a server that have ended because its disk failed, or what it has stored is damaged.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) times: u32,
    /// The last report.
    pub(crate) why: String,
    pub(crate) at: Duration,
}

impl Live {
    /// Bytes of tablets that it can get, if that is known: an engine needs as much again while it compacts them.
    pub(crate) fn room(&self) -> Option<u64> {
        self.free_bytes.map(|free| free / 2)
    }

    /// Whether the server, which is there, has had this tablet and doesn't have it any more.
    pub(crate) fn has_lost(&self, id: u64) -> bool {
        self.missing
            .get(&id)
            .is_some_and(|(_, is_reported)| *is_reported)
    }

    /// Of a server that sends its first heartbeat.
    pub(crate) fn new(incarnation: u64, now: Duration) -> Self {
        Self {
            incarnation,
            last_heartbeat: now,
            lists_version: 0,
            needs_reconcile: false,
            missing: BTreeMap::new(),
            listed_rows: 0,
            departed: Vec::new(),
            arriving: Vec::new(),
            conflicts: BTreeSet::new(),
            points: Points::default(),
            resolved_ts: Timestamp::ZERO,
            unresolved_since: None,
            obstacle: None,
            sent_barrier: Timestamp::ZERO,
            rival: None,
            leased_to: Timestamp::ZERO,
            behind_since: None,
            progress: ReportedProgress::default(),
            sizes: Amounts::default(),
            loads: Amounts::default(),
            disk_stalled_ms: 0,
            free_bytes: None,
            metrics_address: None,
            failed: None,
            leads_term: 0,
            takeover_ms: None,
            stopping: false,
            has_left: false,
            knows_end: false,
        }
    }

    /// Another process has its name, or lists that are not known here: what was known counts no more.
    pub(crate) fn forget_lists(&mut self) {
        self.lists_version = 0;
    }

    /// Whether its list is known here, and it reports that it gets no tablets.
    pub(crate) fn gets_none(&self) -> bool {
        self.lists_version != 0 && self.arriving.iter().all(|it| it.failure.is_some())
    }

    /// Its report of a tablet that it gets.
    pub(crate) fn arrival(&self, tablet: u64) -> Option<&Arrival> {
        self.arriving.iter().find(|it| it.tablet == tablet)
    }

    /// Takes in what a heartbeat reports of barriers, collection and tablets. `sent_barrier`: in the reply.
    pub(crate) fn record_reports(
        &mut self,
        now: Duration,
        beat: &mut Heartbeat,
        sent_barrier: Timestamp,
    ) {
        self.behind_since = if beat.points.barrier >= self.sent_barrier {
            None
        } else {
            self.behind_since.or(Some(now))
        };
        self.sent_barrier = sent_barrier;
        self.progress.update(now, beat.progress.take());
        self.sizes.update(beat.sizes.take());
        self.loads.update(beat.loads.take());
    }

    /// Takes in a heartbeat's facts about the server itself.
    pub(crate) fn record_heartbeat(&mut self, now: Duration, beat: &Heartbeat) {
        self.incarnation = beat.incarnation;
        self.last_heartbeat = now;
        self.leads_term = beat.leads_term;
        self.takeover_ms = beat.takeover_ms;
        self.stopping = beat.stopping;
        self.has_left = beat.leaving;
        self.arriving.clone_from(&beat.arriving);
        self.disk_stalled_ms = beat.disk_stalled_ms;
        self.free_bytes = beat.free_bytes;
        self.metrics_address = beat.metrics_address;
        self.points = beat.points;
        self.resolved_ts = beat.resolved_ts;
        self.unresolved_since = if beat.resolved_ts < beat.points.barrier {
            self.unresolved_since.or(Some(now))
        } else {
            None
        };
        self.obstacle.clone_from(&beat.obstacle);
        if beat.leaving && !beat.failure.is_empty() {
            let times = self.failed.as_ref().map_or(0, |failed| failed.times);
            self.failed = Some(Failed {
                times: times.saturating_add(1),
                why: beat.failure.chars().take(FAILURE_CHARS_MAX).collect(),
                at: now,
            });
        }
    }
}

impl Directory {
    /// The incarnation of the server that sent the last heartbeat; zero: none since the master's own start.
    pub fn incarnation(&self, server: &str) -> u64 {
        self.live.get(server).map_or(0, |live| live.incarnation)
    }

    /// Whether a heartbeat came within three intervals, which did not say that the server ends.
    pub fn is_alive(&self, server: &str, now: Duration) -> bool {
        let live = self.live.get(server).filter(|live| !live.has_left);
        live.is_some_and(|live| now.saturating_sub(live.last_heartbeat) < self.heartbeat_timeout())
    }

    /// Whether the server is stopping, and has not ended yet.
    pub(crate) fn is_stopping(&self, server: &str, now: Duration) -> bool {
        let live = self.live.get(server);
        self.is_alive(server, now) && live.is_some_and(|live| live.stopping)
    }

    /// Tablets that the server had and has not reported for a while, in order: see [`Note::Missing`](crate::Note).
    pub(crate) fn lost_tablets(&self, server: &str) -> Vec<u64> {
        let live = self.live.get(server).into_iter();
        let lost = live.flat_map(|live| live.missing.keys().filter(|id| live.has_lost(**id)));
        lost.copied().collect()
    }

    /// Whether the present list of a tablet's owner, if it is known, doesn't have it.
    pub(crate) fn is_absent(&self, tablet: &Placement) -> bool {
        !tablet.listed && self.reported(&tablet.owner).is_some()
    }

    /// Tablets of tables that are being deleted that the server had and has no more. They have to be given up.
    pub(crate) fn lost_in_deletion(&self, server: &str) -> Vec<u64> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let tablets = self.tablets.of_owner(server);
        let lost = tablets.filter(|(_, tablet)| {
            let table = state.tables.get(&tablet.table);
            let is_meant = table.is_some_and(|table| table.state == TableState::Deleting);
            is_meant && tablet.made && self.is_absent(tablet) && !state.may_drop(tablet.table)
        });
        lost.map(|(id, _)| id).collect()
    }

    /// The tablet servers that don't have tablets which they had, and the tables of these; but not tables that are being
    /// deleted, whose rows are not needed any more.
    pub(crate) fn losers(&self) -> BTreeMap<&str, BTreeSet<u32>> {
        let Some(state) = &self.state else {
            return BTreeMap::new();
        };
        let is_kept = |table: &u32| {
            let table = state.tables.get(table);
            table.is_some_and(|table| table.state != TableState::Deleting)
        };
        let lost = |(server, live): (&'_ String, &Live)| {
            let tablets = live.missing.keys().filter_map(|id| self.tablets.get(*id));
            let tables = tablets.filter(|tablet| tablet.owner == *server);
            tables.map(|tablet| tablet.table).filter(is_kept).collect()
        };
        let losers = self.live.iter().map(|live| (&**live.0, lost(live)));
        losers
            .filter(|(_, tables): &(_, BTreeSet<u32>)| !tables.is_empty())
            .collect()
    }

    /// The time since the server's last heartbeat; none: it has sent none since this start.
    pub(crate) fn time_since_heartbeat(&self, server: &str, now: Duration) -> Option<Duration> {
        let live = self.live.get(server)?;
        Some(now.saturating_sub(live.last_heartbeat))
    }

    /// How long the server's disk stalls, by its last report.
    pub(crate) fn disk_stalled_ms(&self, server: &str) -> u32 {
        self.live.get(server).map_or(0, |live| live.disk_stalled_ms)
    }

    /// How the server's disk has failed since this start of the master.
    pub(crate) fn failed(&self, server: &str) -> Option<&Failed> {
        self.live.get(server)?.failed.as_ref()
    }

    /// How often servers have ended because their disks failed.
    pub(crate) fn disk_failures(&self) -> u64 {
        let failed = self.live.values().filter_map(|live| live.failed.as_ref());
        failed.map(|failed| u64::from(failed.times)).sum()
    }

    /// Where the server shows metrics, by its last report.
    pub(crate) fn metrics_address(&self, server: &str) -> Option<SocketAddr> {
        self.live.get(server)?.metrics_address
    }

    /// How many tablet servers the manifest has that the cluster has never met.
    pub(crate) fn unmet_tablet_servers(&self) -> usize {
        let met = self
            .state
            .as_ref()
            .map(|state| state.servers.tablet_servers_len());
        let expected = self.manifest.tablet_servers.unwrap_or(0) as usize;
        expected.saturating_sub(met.unwrap_or(0))
    }
}
