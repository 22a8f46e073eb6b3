//! What holds the read barrier and the safe point back, for people and for metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use percolator_protocol::types::Timestamp;

use crate::collection::ORACLE;
use crate::core::Directory;
use crate::sessions::Owner;
use crate::state::{DirectoryState, TableRecord, TableState};

/// How long a tablet server that is alive may take to make a barrier durable before that is reported.
const BEHIND_MAX: Duration = Duration::from_secs(10);
/// How long the resolution of locks may take before that is reported.
const RESOLVING_MAX: Duration = Duration::from_secs(10);

/// Something that is in the way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hold {
    /// One of the metric's.
    pub(crate) by: &'static str,
    /// The server; empty: none alone.
    pub(crate) server: String,
    /// In words, if [`Self::by`] is not enough.
    pub(crate) what: String,
    /// Whose lock it is; zero: no one's.
    pub(crate) start_ts: Timestamp,
    /// For how long.
    pub(crate) since: Duration,
}

impl Directory {
    /// Everything that is.
    pub(crate) fn holds(&self, now: Duration) -> Vec<Hold> {
        let mut holds = Vec::new();
        let mut named = |by| {
            let hold = Hold::default();
            holds.push(Hold { by, ..hold });
        };
        if self.paused() {
            named("paused");
        }
        if self.is_held_by_gc_lock(now) {
            named("gc_lock");
        }
        if let Some((what, since)) = &self.collection.silent {
            holds.push(Hold {
                by: "oracle",
                server: ORACLE.to_owned(),
                what: what.clone(),
                since: now.saturating_sub(*since),
                ..Hold::default()
            });
        }
        let Some(state) = &self.state else {
            holds.push(Hold {
                by: "starting",
                what: "the master has no state: see `percolator master rebuild`".into(),
                ..Hold::default()
            });
            return holds;
        };
        holds.extend(self.starting(state, now).map(|what| Hold {
            by: "starting",
            what,
            ..Hold::default()
        }));
        holds.extend(self.servers_in_the_way(state, now));
        holds.extend(self.tables_in_the_way(state, now));
        holds.extend(self.lost_tables(state, now));
        holds
    }

    /// Whether the lowest floor is older than the retention.
    fn is_held_by_gc_lock(&self, now: Duration) -> bool {
        let age = self.oldest_floor_age(now);
        age.is_some_and(|age| age > self.retention())
    }

    /// What a master waits for that was started a while ago.
    fn starting(&self, state: &DirectoryState, now: Duration) -> Option<String> {
        // Before it has ever moved, nothing may be old enough to be kept back.
        let since = Timestamp::from_u64(state.gc.since).physical_ms();
        let age = self.collection.now.physical_ms().saturating_sub(since);
        let is_old = state.gc.since != 0 && Duration::from_millis(age) > self.retention();
        if state.gc.barrier == 0 && !is_old {
            return None;
        }
        let left = self.leases_end_at().saturating_sub(now);
        (!left.is_zero()).then(|| {
            format!(
                "the master was started a short while ago, and waits for transactions of before: {} s more",
                left.as_secs().max(1)
            )
        })
    }

    /// Tablet servers that keep resolved back, and the safe point for a while.
    fn servers_in_the_way(&self, state: &DirectoryState, now: Duration) -> Vec<Hold> {
        let points = state.gc.points();
        // Just after the master's start no server can have reported.
        if points.resolved >= points.barrier || now < self.settled_at() {
            return Vec::new();
        }
        let servers = self.waited_for(state).into_iter();
        let in_the_way = |server| self.in_the_way(state, server, now);
        servers.filter_map(in_the_way).collect()
    }

    /// The tablet servers whose statements resolved needs.
    fn waited_for<'a>(&'a self, state: &'a DirectoryState) -> BTreeSet<&'a str> {
        let in_use = self.tablets.in_use().map(|tablets| tablets.owner);
        let mut servers: BTreeSet<&str> = in_use.collect();
        // Rows that no server has reported may be at any that has sent no heartbeat.
        let is_waited_for = |(_, table): (u32, &TableRecord)| table.drop_at.is_none();
        if self.tables_with_gaps(state).any(is_waited_for) {
            servers.extend(self.unreported_servers(state));
        }
        servers
    }

    /// Tables that keep resolved back, because some of their rows may be anywhere.
    fn tables_in_the_way(&self, state: &DirectoryState, now: Duration) -> Vec<Hold> {
        let points = state.gc.points();
        if points.resolved >= points.barrier || now < self.settled_at() {
            return Vec::new();
        }
        let held = |(id, table): (&u32, &TableRecord)| {
            let (by, what) = match table.state {
                TableState::Ready => return None,
                TableState::Creating => ("table_creating", "is being created"),
                TableState::Deleting if table.drop_at.is_some() || self.is_frozen(*id) => {
                    return None;
                }
                TableState::Deleting => ("table_deleting", "is being deleted, and not frozen yet"),
            };
            let waits_for = self.waits_for(*id, now);
            Some(Hold {
                by,
                what: format!("table {} {what}: it waits for {waits_for}", table.name),
                ..Hold::default()
            })
        };
        state.tables.iter().filter_map(held).collect()
    }

    /// How a tablet server keeps resolved back, if it does.
    fn in_the_way(&self, state: &DirectoryState, server: &str, now: Duration) -> Option<Hold> {
        let points = state.gc.points();
        let hold = Hold {
            server: server.to_owned(),
            ..Hold::default()
        };
        let reported = self.reported(server);
        let behind = reported.is_none_or(|barrier| barrier < points.barrier);
        if behind && !self.is_alive(server, now) {
            let last_heartbeat = self.live.get(server).map(|live| live.last_heartbeat);
            return Some(Hold {
                by: "server_down",
                what: "the tablet server does not answer".into(),
                since: now.saturating_sub(last_heartbeat.unwrap_or_default()),
                ..hold
            });
        }
        let live = self.live.get(server)?;
        if let Some(obstacle) = &live.obstacle {
            return Some(Hold {
                by: "locks",
                what: obstacle.what.clone(),
                start_ts: obstacle.start_ts,
                since: obstacle.since + now.saturating_sub(live.last_heartbeat),
                ..hold
            });
        }
        let for_long = |since: Option<Duration>, at_most: Duration| {
            let for_so_long = now.saturating_sub(since?);
            (for_so_long >= at_most).then_some(for_so_long)
        };
        if let Some(since) = for_long(live.behind_since, BEHIND_MAX) {
            return Some(Hold {
                by: "server_behind",
                what: "the tablet server answers, and does not take the barrier: its log has the reason"
                    .into(),
                since,
                ..hold
            });
        }
        let since = for_long(live.unresolved_since, RESOLVING_MAX)?;
        Some(Hold {
            by: "resolving",
            what: "it resolves the locks of transactions from before the barrier".into(),
            since,
            ..hold
        })
    }

    /// Tablet servers whose folder is another one now.
    fn lost_tables(&self, state: &DirectoryState, now: Duration) -> Vec<Hold> {
        // Not for the moment in which a tablet was made and a heartbeat was under way.
        let has_lost = |(server, _): &(&str, BTreeSet<u32>)| !self.lost_tablets(server).is_empty();
        let lost = |(server, tables): (&str, BTreeSet<u32>)| {
            let names = tables.iter().map(|id| &*state.tables[id].name);
            Hold {
                by: "tablets_lost",
                server: server.to_owned(),
                what: format!(
                    "the tablet server has lost tablets of {}: locks of any transaction may be there",
                    names.collect::<Vec<_>>().join(", ")
                ),
                ..Hold::default()
            }
        };
        let losers = self.losers().into_iter().filter(has_lost).map(lost);
        let mut holds: Vec<Hold> = losers.collect();
        if now >= self.settled_at() && self.have_all_reported(state) {
            let waited_for = |(_, table): &(u32, &TableRecord)| table.drop_at.is_none();
            let with_gaps = self.tables_with_gaps(state).filter(waited_for);
            let nowhere = with_gaps.map(|(_, table)| Hold {
                by: "tablets_lost",
                what: format!(
                    "no tablet server has all rows of table {}, though all have reported: locks of any transaction may be there",
                    table.name
                ),
                ..Hold::default()
            });
            holds.extend(nowhere);
        }
        holds
    }

    /// The clients that have named this transaction.
    pub(crate) fn owner_of(&self, start_ts: Timestamp) -> Option<Owner> {
        match start_ts {
            Timestamp::ZERO => None,
            start_ts => self.sessions.owner_of(start_ts),
        }
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::safe_point::Points;
    use percolator_protocol::types::TabletState;

    use super::*;
    use crate::core::Settings;
    use crate::events::{Action, Deletion, Done, Heartbeat, Start};
    use crate::reports::LockObstacle;
    use crate::sessions::Renewal;
    use crate::state::Role;

    /// After every lease of an earlier start.
    const LATER: Duration = Duration::from_secs(3_600);
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn begun() -> Directory {
        Directory::open(Start::NewCluster, Settings::default(), 7).unwrap()
    }

    fn by(directory: &Directory, now: Duration) -> Vec<&'static str> {
        directory.holds(now).iter().map(|hold| hold.by).collect()
    }

    #[test]
    fn a_master_says_how_long_it_still_waits_for_leases_of_before_its_start() {
        let mut directory = begun();
        assert_eq!(by(&directory, Duration::ZERO), Vec::<&str>::new());
        directory.learn_points(Points {
            barrier: Timestamp::from_millis(7),
            safe_point: Timestamp::from_millis(7),
            resolved: Timestamp::from_millis(7),
        });
        let held = directory.holds(Duration::from_secs(20));
        assert_eq!(held.len(), 1, "{held:?}");
        assert_eq!(held[0].by, "starting");
        assert!(held[0].what.contains("40 s more"), "{held:?}");
        assert_eq!(by(&directory, LATER), Vec::<&str>::new());
    }

    /// A tablet server with a table, that has taken no barrier.
    fn with_a_table() -> (Directory, Heartbeat) {
        let mut directory = begun();
        let mut beat = Heartbeat::first(Role::Tablet, "tablet-0", "tablet-0:7402");
        directory.heartbeat(LATER, beat.clone()).unwrap();
        beat.cluster_id = Some(directory.state().unwrap().cluster_id.clone());
        directory.create_table(LATER, "t", &[]).unwrap();
        for command in directory.take_effects().commands {
            if let Action::Create { tablet, .. } = &command.action {
                beat.tablets.push(tablet.clone());
            }
            directory.finished(LATER, &command, Ok(Done::of(1)));
        }
        beat.groups = 1;
        directory.heartbeat(LATER, beat.clone()).unwrap();
        directory.collect(LATER, Ok(NOW));
        (directory, beat)
    }

    #[test]
    fn a_lock_is_reported_with_its_transaction_and_since_when() {
        let (mut directory, beat) = with_a_table();
        let barrier = directory.state().unwrap().gc.points().barrier;
        let start_ts = Timestamp::from_millis(5);
        let obstacle = |start_ts: Timestamp| LockObstacle {
            what: "a lock".into(),
            start_ts,
            since: Duration::from_secs(7),
        };
        let blocked = Heartbeat {
            points: Points {
                barrier,
                safe_point: Timestamp::ZERO,
                resolved: Timestamp::ZERO,
            },
            obstacle: Some(obstacle(start_ts)),
            ..beat
        };
        directory.heartbeat(LATER, blocked).unwrap();
        let held = directory.holds(LATER + Duration::from_secs(1));
        assert_eq!(
            held,
            [Hold {
                by: "locks",
                server: "tablet-0".into(),
                what: "a lock".into(),
                start_ts,
                since: Duration::from_secs(8),
            }]
        );
        let renewal = Renewal {
            session: 1,
            floor: NOW,
            transactions: vec![start_ts],
            unnamed: 0,
            owner: Owner {
                host: "here".into(),
                ..Owner::default()
            },
        };
        directory.session(LATER, renewal).unwrap();
        assert_eq!(directory.owner_of(start_ts).unwrap().host, "here");
        assert_eq!(directory.owner_of(start_ts.next()), None);
    }

    #[test]
    fn a_server_that_resolves_for_long_is_named() {
        let (mut directory, mut beat) = with_a_table();
        beat.points.barrier = directory.state().unwrap().gc.points().barrier;
        directory.heartbeat(LATER, beat.clone()).unwrap();
        assert_eq!(by(&directory, LATER), Vec::<&str>::new());
        let later = LATER + RESOLVING_MAX;
        directory.heartbeat(later, beat.clone()).unwrap();
        assert_eq!(by(&directory, later), ["resolving"]);
        beat.resolved_ts = beat.points.barrier;
        directory.heartbeat(later, beat).unwrap();
        assert_eq!(by(&directory, later), Vec::<&str>::new());
    }

    #[test]
    fn a_table_that_is_not_whole_is_named() {
        let mut directory = begun();
        let beat = Heartbeat::first(Role::Tablet, "tablet-0", "tablet-0:7402");
        directory.heartbeat(LATER, beat).unwrap();
        directory.create_table(LATER, "t", &[]).unwrap();
        directory.collect(LATER, Ok(NOW));
        let held = directory.holds(LATER);
        assert_eq!(held[0].by, "table_creating");
        assert!(
            held[0].what.contains("table t is being created"),
            "{held:?}"
        );
        assert!(held[0].what.contains("tablet-0"), "{held:?}");
    }

    #[test]
    fn a_table_that_is_being_deleted_is_named_until_it_is_frozen() {
        let (mut directory, mut beat) = with_a_table();
        beat.points.barrier = directory.state().unwrap().gc.points().barrier;
        directory.heartbeat(LATER, beat.clone()).unwrap();
        assert_eq!(by(&directory, LATER), Vec::<&str>::new());
        directory.delete_table(LATER, &Deletion::of("t")).unwrap();
        assert_eq!(by(&directory, LATER), ["table_deleting"]);
        for tablet in &mut beat.tablets {
            tablet.state = TabletState::Frozen;
        }
        beat.groups += 1;
        directory.heartbeat(LATER, beat).unwrap();
        assert_eq!(by(&directory, LATER), Vec::<&str>::new());
    }
}
