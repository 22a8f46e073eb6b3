//! How far collection may go: moves the barrier, the safe point and resolved (`protocol::safe_point`), as far as the
//! retention, the sessions and the tablet servers let it.

use std::collections::BTreeSet;
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::{self, Points};
use percolator_protocol::types::Timestamp;

use crate::core::Directory;
use crate::state::{DirectoryState, Drain, Role, Server, TableRecord, TableState};

/// The longest lease of a session; the retention if that is shorter. A program that stands still for longer, for example because
/// its output is not read, may find its transactions too old.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(60);
/// The longest pause between two steps; shorter where the retention is short. Each step is written down by the
/// master and by every tablet server.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The longest that collection waits for locks to be resolved; shorter where the retention is.
const STALL_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// How the oracle is called where it is in the way.
pub(crate) const ORACLE: &str = "the oracle";

/// What is known of collection since this start of the master.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    /// The oracle's time when it was last asked.
    pub(crate) now: Timestamp,
    /// Why the oracle doesn't answer, and since when.
    pub(crate) silent: Option<(String, Duration)>,
    /// Tables that are being deleted and were frozen when the oracle's time was last asked for.
    frozen: BTreeSet<u32>,
    /// Since when resolved has not moved, though the barrier lies above it.
    stuck_since: Option<Duration>,
    /// Leases are so long now, which is shorter than some that were granted, since then.
    shorter: Option<(Duration, Duration)>,
    /// The longest lease that a master of before this start may have granted.
    pub(crate) granted_before: Duration,
}

impl Collection {
    /// The oracle's time, about: while it doesn't answer it goes on by this machine's clock.
    pub(crate) fn time(&self, now: Duration) -> Timestamp {
        let silent = self.silent.as_ref();
        let silent = silent.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(*since));
        let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
        if self.now == Timestamp::ZERO || silent_ms == 0 {
            return self.now;
        }
        Timestamp::from_millis(self.now.physical_ms().saturating_add(silent_ms))
    }
}

impl Directory {
    /// How long a session's floor is held without a renewal.
    pub fn lease(&self) -> Duration {
        self.retention().min(LEASE_MAX)
    }

    /// How long to wait between two steps.
    pub fn collection_pause(&self) -> Duration {
        (self.retention() / 10).min(PAUSE_MAX)
    }

    /// For how long collection waits for locks to be resolved. After that it keeps fates: a server that restarts is back
    /// sooner, and keeping them costs more than to wait a little.
    fn stall_timeout(&self) -> Duration {
        self.retention().min(STALL_TIMEOUT_MAX)
    }

    /// Moves the points forward, as far as that is possible. `oracle`: a timestamp that was taken since the last call, or why
    /// there is none.
    pub fn collect(&mut self, now: Duration, oracle: Result<Timestamp, String>) {
        let oracle = match oracle {
            Ok(oracle) => oracle,
            Err(what) => {
                let since = self
                    .collection
                    .silent
                    .take()
                    .map_or(now, |(_, since)| since);
                self.collection.silent = Some((what, since));
                return;
            }
        };
        self.collection.silent = None;
        self.learn_oracle_time(oracle);
        self.wait_for_ready(oracle);
        self.watch_gaps(now);
        self.time_frozen_tables(oracle);
        if self.paused() {
            return;
        }
        self.move_barrier(now, oracle);
        self.move_safe_point(now);
    }

    /// Tables that are being deleted get the timestamp behind which their tablets may go: one that was taken after all of
    /// them were frozen.
    fn time_frozen_tables(&mut self, oracle: Timestamp) {
        let Some(state) = &self.state else { return };
        let waiting = state
            .tables
            .iter()
            .filter(|(_, table)| table.state == TableState::Deleting && table.drop_at.is_none());
        let frozen: BTreeSet<u32> = waiting
            .map(|(id, _)| *id)
            .filter(|id| self.is_frozen(*id))
            .collect();
        let before = std::mem::replace(&mut self.collection.frozen, frozen);
        let Some(state) = &mut self.state else { return };
        for id in before.intersection(&self.collection.frozen) {
            if let Some(table) = state.tables.get_mut(id) {
                table.drop_at = Some(oracle.as_u64());
                state.forget_unreported(*id);
                self.dirty = true;
            }
        }
    }

    /// How long leases were is not known: the retention that tablet servers still know may be a shortened one.
    pub(crate) fn distrust_leases(&mut self) {
        self.collection.granted_before = LEASE_MAX;
        self.keep_longest_lease(LEASE_MAX);
    }

    /// From now on a safe point is missed, unless there is one.
    fn wait_for_ready(&mut self, oracle: Timestamp) {
        let Some(state) = &mut self.state else { return };
        let waits = state.gc.safe_point == 0 && state.servers.tablet_servers_len() > 0;
        if waits && state.gc.since == 0 {
            state.gc.since = oracle.as_u64();
            self.dirty = true;
        }
    }

    fn move_barrier(&mut self, now: Duration, oracle: Timestamp) {
        if !self.leases_have_ended(now) {
            return;
        }
        self.forget_longer_leases(now);
        let lowest = self.sessions.lowest(now, self.lease());
        let to = safe_point::barrier(oracle, self.retention_policy(), lowest);
        let Some(state) = &mut self.state else { return };
        if to > state.gc.points().barrier {
            state.gc.barrier = to.as_u64();
            // What began there is refused from now on.
            state.gc.released.retain(|_, up_to| *up_to >= to.as_u64());
            self.dirty = true;
        }
    }

    /// Whether sessions of before this start, or of before it found its cluster, have come back, or have ended.
    pub(crate) fn leases_have_ended(&self, now: Duration) -> bool {
        now >= self.leases_end_at() || mutants::on(Mutant::SessionsNotAwaited)
    }

    /// When the last of these ends that was not renewed.
    pub(crate) fn leases_end_at(&self) -> Duration {
        let (since, lease) = (self.known_since, self.lease());
        if mutants::on(Mutant::LongerSessionsForgotten) {
            return since + lease;
        }
        since + lease.max(self.collection.granted_before)
    }

    /// The longest lease that may still be held, as it is kept; zero: none was granted.
    pub(crate) fn longest_lease(&self) -> Duration {
        let kept = self.state.as_ref().map_or(0, |state| state.gc.lease_ms);
        Duration::from_millis(kept)
    }

    /// Grants a lease. It is durable before the client learns of it: a master that starts after the retention was shortened could not
    /// derive from it how long leases were.
    pub(crate) fn grant_lease(&mut self) -> Duration {
        let lease = self.lease();
        if self.collection.shorter.is_some_and(|(now, _)| now != lease) {
            self.collection.shorter = None;
        }
        if lease > self.longest_lease() {
            self.keep_longest_lease(lease);
        }
        lease
    }

    /// Where leases are shorter than before, the longer ones end.
    fn forget_longer_leases(&mut self, now: Duration) {
        let (lease, longest) = (self.lease(), self.longest_lease());
        match self.collection.shorter {
            _ if lease >= longest => self.collection.shorter = None,
            Some((shorter, since)) if shorter == lease => {
                if now >= since + longest {
                    self.keep_longest_lease(lease);
                }
            }
            _ => self.collection.shorter = Some((lease, now)),
        }
    }

    fn keep_longest_lease(&mut self, lease: Duration) {
        if let Some(state) = &mut self.state {
            state.gc.lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
            self.dirty = true;
        }
    }

    /// Resolved and the safe point follow the locks that are resolved, and tables that resolved has passed may go.
    fn move_safe_point(&mut self, now: Duration) {
        let covered = self.covered();
        let is_stuck = self.is_stuck(now, covered);
        let Some(state) = &mut self.state else { return };
        let before = state.gc.points();
        let points = before.moved(covered, is_stuck);
        if points == before {
            return;
        }
        state.gc.safe_point = points.safe_point.as_u64();
        state.gc.resolved = points.resolved.as_u64();
        state.gc.since = 0;
        self.dirty = true;
        let deleting = state.tables.iter();
        let deleting = deleting.filter(|(_, table)| table.state == TableState::Deleting);
        let mut owners = BTreeSet::new();
        for id in deleting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.settle(id);
            if self.state.as_ref().is_some_and(|state| state.may_drop(id)) {
                owners.extend(self.tablets.owners_of(id).into_iter().map(String::from));
            }
        }
        for owner in owners {
            self.command(now, &owner);
        }
    }

    /// Whether resolved has not moved for so long that the safe point goes on without it.
    fn is_stuck(&mut self, now: Duration, covered: Option<Timestamp>) -> bool {
        let stall_timeout = self.stall_timeout();
        let Some(state) = &self.state else {
            return false;
        };
        let points = state.gc.points();
        let moves = covered > Some(points.resolved) || points.resolved >= points.barrier;
        if moves || state.servers.tablet_servers_len() == 0 {
            self.collection.stuck_since = None;
            return false;
        }
        let since = *self.collection.stuck_since.get_or_insert(now);
        now.saturating_sub(since) >= stall_timeout && !mutants::on(Mutant::StuckForEver)
    }

    /// Up to where the locks in all tablets are resolved that may serve, by what their owners report. `None`: nothing is
    /// known of some rows, as while a table is being made, and of a tablet that its owner has lost: its locks may come back
    /// with its folder, and then ask for what would have been collected.
    fn covered(&self) -> Option<Timestamp> {
        let state = self.state.as_ref()?;
        // All tablets of a table that was timed were frozen then, also those that were not reported since.
        let is_known = |(id, table): (&u32, &TableRecord)| match table.state {
            TableState::Creating => false,
            TableState::Deleting if table.drop_at.is_some() => true,
            TableState::Ready | TableState::Deleting => self.tablets.is_covered(*id),
        };
        if !state.tables.iter().all(is_known) && !mutants::on(Mutant::CoveredByThoseHeard) {
            return None;
        }
        // A tablet that isn't frozen serves reads, also one of a table that is being deleted: its server may be away, and not
        // know of the deletion.
        let mut in_use = self.tablets.in_use().peekable();
        let barrier = state.gc.points().barrier;
        if in_use.peek().is_none() {
            // Before the first tablet server comes there is no row, and no server that could collect.
            return (state.servers.tablet_servers_len() > 0).then_some(barrier);
        }
        let reported = in_use.map(|tablets| {
            let owner = self.live.get(tablets.owner)?;
            tablets.are_listed.then_some(owner.resolved_ts)
        });
        Some(safe_point::covered(reported)?.min(barrier))
    }

    /// Whether every known tablet server has reported since this start.
    pub(crate) fn have_all_reported(&self, state: &DirectoryState) -> bool {
        self.unreported_servers(state).next().is_none()
    }

    /// The known tablet servers that have not reported since this start. One that is drained has no tablets, and may be gone
    /// for good.
    pub(crate) fn unreported_servers<'a>(
        &self,
        state: &'a DirectoryState,
    ) -> impl Iterator<Item = &'a str> {
        let counts =
            |server: &Server| server.role == Role::Tablet && server.drain != Drain::Drained;
        let servers = state.servers.iter().filter(move |(_, it)| counts(it));
        let names = servers.map(|(name, _)| name.as_str());
        names.filter(|name| self.reported(name).is_none())
    }

    /// The barrier that a tablet server has durably; none if it has not reported.
    pub(crate) fn reported(&self, server: &str) -> Option<Timestamp> {
        let live = self.live.get(server)?;
        (live.lists_version != 0).then_some(live.points.barrier)
    }

    /// A tablet server has these. They are only news if an answer of a master that has lost its state came late.
    pub(crate) fn learn_points(&mut self, points: Points) {
        let Some(state) = &mut self.state else { return };
        let known = state.gc.points();
        let raised = known.raised(points);
        if raised != known {
            state.gc.barrier = raised.barrier.as_u64();
            state.gc.safe_point = raised.safe_point.as_u64();
            state.gc.resolved = raised.resolved.as_u64();
            self.dirty = true;
        }
    }
}
