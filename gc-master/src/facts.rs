//! The facts about a master for its metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_protocol::types::{TabletState, Timestamp};

use crate::core::Directory;
use crate::state::{Drain, Placement, Role, TableState};

/// Counts by a distinguishing label.
pub(crate) type Counts<K> = BTreeMap<K, i64>;

/// How the master is now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// It has its directory.
    pub(crate) has_state: bool,
    /// Servers that the manifest asks for, by role.
    pub(crate) expected: Counts<&'static str>,
    /// Servers, by role and state.
    pub(crate) servers: Counts<(&'static str, &'static str)>,
    /// Tables, by state.
    pub(crate) tables: Counts<&'static str>,
    /// Tablets, by state.
    pub(crate) tablets: Counts<&'static str>,
    /// Tablets that are not served because a tablet server is down, by the server.
    pub(crate) down_by_owner: Counts<String>,
    /// Tablets that servers are getting from others.
    pub(crate) tablets_moving: i64,
    /// Tablets of servers that are being drained.
    pub(crate) tablets_to_drain: i64,
    /// Tablets, by their table's name.
    pub(crate) by_table: Counts<String>,
    /// Commands that were not answered yet.
    pub(crate) in_flight: usize,
    /// The oracle's time when it was last asked.
    pub(crate) now: Timestamp,
    /// How far behind that the barrier is; none: there's no barrier.
    pub(crate) barrier_age: Option<Duration>,
    /// The same of the safe point; where there's none yet, of when it began to be missed.
    pub(crate) ready_age: Option<Duration>,
    /// The same of resolved.
    pub(crate) resolved_age: Option<Duration>,
    /// The same of the lowest floor of a lease.
    pub(crate) oldest_floor_age: Option<Duration>,
    /// How long versions are kept.
    pub(crate) retention: Duration,
    /// What holds collection back.
    pub(crate) held_by: Vec<&'static str>,
    /// Clients with transactions.
    pub(crate) sessions: usize,
    /// Transactions that they have named.
    pub(crate) gc_locks: usize,
    /// Versions that wait to be collected.
    pub(crate) garbage: u64,
    /// How often servers have ended because their disks failed.
    pub(crate) disk_failures: u64,
}

impl Directory {
    /// How it is now.
    pub(crate) fn facts(&self, now: Duration) -> Facts {
        let oracle = self.collection.time(now);
        let mut facts = Facts {
            has_state: self.state.is_some(),
            in_flight: self.commands.in_flight_len(),
            now: self.collection.now,
            oldest_floor_age: self.oldest_floor_age(now),
            retention: self.retention(),
            sessions: self.sessions.len(),
            gc_locks: self.sessions.named(),
            disk_failures: self.disk_failures(),
            garbage: self.live.values().map(|it| it.progress.waiting()).sum(),
            held_by: self.holds(now).into_iter().map(|hold| hold.by).collect(),
            ..Facts::default()
        };
        let expected = [
            ("master", self.manifest.masters),
            ("tablet", self.manifest.tablet_servers),
            ("tso", self.manifest.oracles),
        ];
        let expected = expected.into_iter();
        facts.expected = expected
            .map(|(role, count)| (role, count.unwrap_or_default().into()))
            .collect();
        let Some(state) = &self.state else {
            return facts;
        };
        let points = state.gc.points();
        facts.barrier_age = age(oracle, points.barrier);
        let since = Timestamp::from_u64(state.gc.since);
        facts.resolved_age = age(oracle, points.resolved);
        facts.ready_age = age(oracle, points.safe_point).or_else(|| age(oracle, since));
        for (name, server) in state.servers.iter() {
            let role = match server.role {
                Role::Oracle => "tso",
                Role::Tablet => "tablet",
            };
            let state = if self.is_alive(name, now) {
                "up"
            } else if server.drain == Drain::Drained {
                "drained"
            } else {
                "down"
            };
            *facts.servers.entry((role, state)).or_default() += 1;
            if server.role == Role::Tablet {
                facts.down_by_owner.entry(name.to_owned()).or_default();
            }
        }
        for table in state.tables.values() {
            let state = match table.state {
                TableState::Creating => "creating",
                TableState::Ready => "ready",
                TableState::Deleting => "deleting",
            };
            *facts.tables.entry(state).or_default() += 1;
        }
        let count = |tablets: usize| i64::try_from(tablets).unwrap_or(i64::MAX);
        facts.tablets_moving = count(self.arrivals(now).len());
        let to_drain = state.draining_servers();
        facts.tablets_to_drain =
            count(to_drain.map(|name| self.tablets.count_of_owner(name)).sum());
        for (table, tablets) in self.tablets.counts() {
            let table = state.tables.get(&table);
            let table = table.map_or_else(String::new, |table| table.name.clone());
            *facts.by_table.entry(table).or_default() += count(tablets);
        }
        self.count_tablets(now, |state, holder, tablets| {
            *facts.tablets.entry(state).or_default() += count(tablets);
            if state == "down" {
                *facts.down_by_owner.entry(holder.to_owned()).or_default() += count(tablets);
            }
        });
        facts
    }

    /// Gives the states in which tablets are, each with the server whose absence keeps them from being served and with their number.
    /// Visits no tablet that its owner's present list has.
    fn count_tablets(&self, now: Duration, mut count: impl FnMut(&'static str, &str, usize)) {
        for (owner, listed) in self.tablets.listed() {
            let is_alive = self.is_alive(owner, now);
            let if_alive = |state| if is_alive { state } else { "down" };
            for (state, tablets) in [
                ("creating", listed.unmade),
                (if_alive("serving"), listed.serving),
                (if_alive("frozen"), listed.frozen),
            ] {
                if tablets > 0 {
                    count(state, owner, tablets);
                }
            }
        }
        for (id, tablet) in self.tablets.unlisted() {
            let holder = self.holder(id, tablet);
            count(self.unlisted_state(id, tablet, holder, now), holder, 1);
        }
    }

    /// How far the lowest floor of a lease lies behind.
    pub(crate) fn oldest_floor_age(&self, now: Duration) -> Option<Duration> {
        let state = self.state.as_ref();
        let barrier = state.map_or(Timestamp::ZERO, |state| state.gc.points().barrier);
        let (_, session) = self.sessions.holders(barrier).next()?;
        age(self.collection.time(now), session.floor)
    }

    fn unlisted_state(
        &self,
        id: u64,
        tablet: &Placement,
        holder: &str,
        now: Duration,
    ) -> &'static str {
        if !tablet.made {
            return "creating";
        }
        if !self.is_alive(holder, now) {
            return "down";
        }
        let owner = self.live.get(&tablet.owner);
        if owner.is_some_and(|live| live.has_lost(id)) {
            return "lost";
        }
        match tablet.state {
            TabletState::Serving => "serving",
            TabletState::Frozen => "frozen",
        }
    }
}

/// How far a point lies behind; none for one that was never set.
fn age(now: Timestamp, point: Timestamp) -> Option<Duration> {
    let behind = now.physical_ms().saturating_sub(point.physical_ms());
    (point > Timestamp::ZERO).then(|| Duration::from_millis(behind))
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::core::Settings;
    use crate::events::{Heartbeat, Start};
    use crate::sessions::Renewal;
    use crate::settings::Manifest;

    /// After every lease of an earlier start.
    const LATER: Duration = Duration::from_secs(3_600);
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn begun() -> Directory {
        Directory::open(Start::NewCluster, Settings::default(), 7).unwrap()
    }

    #[test]
    fn a_master_without_state_says_so() {
        let start = Start::NoState { cluster_id: None };
        let lost = Directory::open(start, Settings::default(), 7).unwrap();
        let facts = lost.facts(LATER);
        assert!(!facts.has_state);
        assert_eq!(facts.held_by, ["starting"]);
        assert!(begun().facts(LATER).has_state);
    }

    #[test]
    fn tablets_that_are_listed_are_counted_and_not_visited() {
        let mut directory = begun();
        for server in ["tablet-0", "tablet-1"] {
            let beat = Heartbeat::first(Role::Tablet, server, format!("{server}:7402"));
            directory.heartbeat(LATER, beat).unwrap();
        }
        // None of it in any table that there is.
        for id in 0..1_000_u64 {
            let key = |id: u64| bytes::Bytes::from(format!("{id:04}"));
            let (start, end) = (key(id), key(id + 1));
            let placement = Placement {
                table: 7,
                rows: percolator_protocol::types::Rows { start, end },
                epoch: 1,
                owner: ["tablet-0", "tablet-1", "tablet-2"][(id % 3) as usize].into(),
                made: id % 5 != 0,
                state: [TabletState::Serving, TabletState::Frozen][usize::from(id % 7 == 0)],
                listed: id % 100 != 0,
            };
            directory.tablets.place(id, placement);
        }
        let live = directory.live.get_mut("tablet-0").unwrap();
        live.missing.insert(300, (LATER, true));
        let before = directory.tablets.visited();
        let facts = directory.facts(LATER);
        assert_eq!(directory.tablets.visited() - before, 10);
        let (mut tablets, mut down) = (Counts::<&str>::new(), 0);
        for (id, tablet) in directory.tablets.iter() {
            let holder = directory.holder(id, tablet);
            let state = directory.unlisted_state(id, tablet, holder, LATER);
            *tablets.entry(state).or_default() += 1;
            down += i64::from(state == "down");
        }
        assert_eq!(facts.tablets, tablets);
        assert_eq!(facts.down_by_owner["tablet-2"], down);
        assert_eq!(facts.by_table.values().sum::<i64>(), 1_000);
    }

    #[test]
    fn a_safe_point_that_never_came_grows_old_as_well() {
        let mut directory = begun();
        let at = |seconds: u64| Timestamp::from_millis(NOW.physical_ms() + seconds * 1_000);
        directory.collect(LATER, Ok(at(0)));
        assert_eq!(directory.facts(LATER).ready_age, None, "nobody misses it");
        let beat = Heartbeat::first(Role::Tablet, "tablet-0", "tablet-0:7402");
        directory.heartbeat(LATER, beat).unwrap();
        let paused = Manifest {
            paused: Some(true),
            ..Manifest::default()
        };
        directory.take_manifest(paused);
        for seconds in [60, 90, 3_660] {
            directory.collect(LATER, Ok(at(seconds)));
        }
        let waited = Some(Duration::from_secs(3_600));
        assert_eq!(directory.facts(LATER).ready_age, waited);
        // The first point is as old as it is.
        directory.state.as_mut().unwrap().gc.safe_point = at(3_000).as_u64();
        let facts = directory.facts(LATER);
        assert_eq!(facts.ready_age, Some(Duration::from_secs(660)));
        // An oracle that is away stops collection, and not the time.
        directory.collect(LATER, Err("away".into()));
        let facts = directory.facts(LATER + Duration::from_secs(100));
        assert_eq!(facts.ready_age, Some(Duration::from_secs(760)));
    }

    #[test]
    fn what_holds_collection_back_is_named() {
        let mut directory = begun();
        directory.collect(LATER, Ok(NOW));
        let facts = directory.facts(LATER);
        assert_eq!(facts.held_by, Vec::<&str>::new());
        assert_eq!(facts.barrier_age, Some(facts.retention));
        assert_eq!(facts.ready_age, None, "there's no tablet server");

        // What began where the barrier is now holds it there.
        let before = directory.state().unwrap().gc.points().barrier;
        let session = Renewal {
            session: 1,
            floor: before,
            transactions: vec![before],
            ..Renewal::default()
        };
        directory.session(LATER, session).unwrap();
        assert_eq!(directory.facts(LATER).held_by, Vec::<&str>::new());
        let later = Timestamp::from_millis(before.physical_ms() + 4_000_000);
        directory.collect(LATER, Ok(later));
        let facts = directory.facts(LATER);
        assert_eq!(facts.held_by, ["gc_lock"]);
        assert_eq!((facts.sessions, facts.gc_locks), (1, 1));
        assert_eq!(facts.oldest_floor_age, Some(Duration::from_secs(4_000)));

        directory.collect(LATER, Err("no answer".into()));
        let paused = Manifest {
            paused: Some(true),
            ..Manifest::default()
        };
        directory.take_manifest(paused);
        let held = directory.facts(LATER).held_by;
        assert_eq!(held, ["paused", "gc_lock", "oracle"]);
    }
}
