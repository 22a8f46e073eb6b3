//! What holds the points of collection back: decided here, for people, who are told of it, and for metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::collection::ORACLE;
use crate::core::Directory;
use crate::state::DirectoryState;

/// A tablet server that is alive may take so long over a barrier that it was told of.
const BEHIND_MAX: Duration = Duration::from_secs(10);
/// Locks are resolved for so long before that is told of.
const RESOLVING_MAX: Duration = Duration::from_secs(10);

/// Something that is in the way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hold {
    /// One of the metric's.
    pub(crate) by: &'static str,
    /// The server; empty: none alone.
    pub(crate) server: String,
    /// In words, where [`Self::by`] says too little.
    pub(crate) what: String,
    /// Whose lock it is; zero: nobody's.
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
        if self.is_held_by_gc_lock() {
            named("gc_lock");
        }
        if let Some(blocked) = &self.collection.blocked {
            let by = if blocked.server == ORACLE {
                "oracle"
            } else {
                "locks"
            };
            holds.push(Hold {
                by,
                server: blocked.server.clone(),
                what: blocked.what.clone(),
                start_ts: blocked.start_ts,
                since: now.saturating_sub(blocked.since),
            });
        }
        let Some(state) = &self.state else {
            holds.push(Hold {
                by: "starting",
                what: "the master has lost its state, and waits for servers that tell it".into(),
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
        holds.extend(self.lost_tables(state));
        if let Some(since) = self.collection.resolving {
            let since = now.saturating_sub(since);
            if since >= RESOLVING_MAX {
                holds.push(Hold {
                    by: "resolving",
                    what: "locks of transactions from before the barrier are being resolved".into(),
                    since,
                    ..Hold::default()
                });
            }
        }
        holds
    }

    /// Whether the lowest floor is older than the retention.
    fn is_held_by_gc_lock(&self) -> bool {
        let age = self.oldest_floor_age();
        age.is_some_and(|age| age > self.retention())
    }

    /// What a master waits for that was started a while ago.
    fn starting(&self, state: &DirectoryState, now: Duration) -> Option<String> {
        if self.waits_for_unknown(now) {
            // They are told of as what has to be started.
            return None;
        }
        if self.may_lack_points(now) {
            let unheard = self.unheard();
            return Some(if unheard.is_empty() {
                "the master has lost its state, and waits for servers that may come back".into()
            } else {
                format!(
                    "the master has lost its state, and waits for tablet servers that it has not heard: {}",
                    unheard.join(", ")
                )
            });
        }
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

    /// Tablet servers that keep the safe point back.
    fn servers_in_the_way(&self, state: &DirectoryState, now: Duration) -> Vec<Hold> {
        let points = state.gc.points();
        // Just after the master's start nobody can have been heard.
        let moves = points.safe_point >= points.barrier && !self.may_lack_points(now);
        if moves || now < self.settled_at {
            return Vec::new();
        }
        let in_the_way = |server: &str| {
            let hold = Hold {
                server: server.to_owned(),
                ..Hold::default()
            };
            let reported = self.reported(server);
            let behind = reported.is_none_or(|barrier| barrier < points.barrier);
            if behind && !self.is_alive(server, now) {
                let heard_at = self.live.get(server).map(|live| live.heard_at);
                return Some(Hold {
                    by: "server_down",
                    what: "the tablet server does not answer".into(),
                    since: now.saturating_sub(heard_at.unwrap_or_default()),
                    ..hold
                });
            }
            let since = now.saturating_sub(self.live.get(server)?.behind_since?);
            (since >= BEHIND_MAX).then(|| Hold {
                by: "server_behind",
                what: "the tablet server answers, and does not take the barrier: its log says why"
                    .into(),
                since,
                ..hold
            })
        };
        let servers = state.tablet_servers();
        let mut holds: Vec<Hold> = servers.into_iter().filter_map(in_the_way).collect();
        if self.waits_for_unknown(now) {
            holds.push(Hold {
                by: "server_down",
                what: "the master has lost its state, and those tablet servers that were there before don't answer, whose names it \
                       doesn't know. If all are gone for good, so are all rows: begin a new cluster"
                    .into(),
                ..Hold::default()
            });
        }
        holds
    }

    /// Tablet servers whose folder is another one now.
    fn lost_tables(&self, state: &DirectoryState) -> Vec<Hold> {
        // Not for the moment in which a tablet was made and a heartbeat was under way.
        let is_told = |(server, _): &(&str, BTreeSet<u32>)| !self.lost_tablets(server).is_empty();
        let lost = |(server, tables): (&str, BTreeSet<u32>)| {
            let names = tables.iter().map(|id| &*state.tables[id].name);
            Hold {
                by: "tablets_lost",
                server: server.to_owned(),
                what: format!(
                    "the tablet server lacks tablets that it had, of {}: locks of any transaction may be there",
                    names.collect::<Vec<_>>().join(", ")
                ),
                ..Hold::default()
            }
        };
        self.losers()
            .into_iter()
            .filter(is_told)
            .map(lost)
            .collect()
    }

    /// Who has named this transaction.
    pub(crate) fn owner_of(&self, start_ts: Timestamp) -> Option<v1::Owner> {
        match start_ts {
            Timestamp::ZERO => None,
            start_ts => self.sessions.owner_of(start_ts),
        }
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::safe_point::Points;

    use super::*;
    use crate::collection::Progress;
    use crate::core::Settings;
    use crate::events::Start;

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
        });
        let held = directory.holds(Duration::from_secs(20));
        assert_eq!(held.len(), 1, "{held:?}");
        assert_eq!(held[0].by, "starting");
        assert!(held[0].what.contains("40 s more"), "{held:?}");
        assert_eq!(by(&directory, LATER), Vec::<&str>::new());
    }

    #[test]
    fn a_lock_is_told_of_with_its_transaction_and_since_when() {
        let mut directory = begun();
        let start_ts = Timestamp::from_millis(5);
        let of = |start_ts: Timestamp, what: &str| Progress::Blocked {
            server: "tablet-0".into(),
            what: what.into(),
            start_ts,
        };
        let blocked = |what: &str| of(start_ts, what);
        directory.collect(LATER, blocked("once"));
        let later = LATER + Duration::from_secs(7);
        directory.collect(later, blocked("again"));
        let held = directory.holds(later);
        assert_eq!(
            held,
            [Hold {
                by: "locks",
                server: "tablet-0".into(),
                what: "again".into(),
                start_ts,
                since: Duration::from_secs(7),
            }]
        );
        // Another one is in the way since it is told of.
        directory.collect(later, of(start_ts.next(), "another"));
        assert_eq!(directory.holds(later)[0].since, Duration::ZERO);
        let request = v1::SessionRequest {
            session: 1,
            floor: NOW.as_u64(),
            transactions: vec![start_ts.as_u64()],
            unnamed: 0,
            owner: Some(v1::Owner {
                host: "here".into(),
                ..v1::Owner::default()
            }),
        };
        directory.session(later, request).unwrap();
        assert_eq!(directory.owner_of(start_ts).unwrap().host, "here");
        assert_eq!(directory.owner_of(start_ts.next()), None);
    }
}
