//! Which incarnation of a server is accepted, and how far it may answer.

use std::time::Duration;

use crate::world::{World, oracle};
use percolator_gc_master::{HEARTBEAT_TIMEOUT, Heartbeat, LEASE, Leased, Refusal};
use percolator_protocol::types::Timestamp;

const T: u64 = 1_700_000_000_000;

fn ts(ms: u64) -> Timestamp {
    Timestamp::from_millis(T + ms)
}

/// The lease's length, in the milliseconds of a timestamp.
fn lease_ms() -> u64 {
    u64::try_from(LEASE.as_millis()).unwrap()
}

/// A cluster with an oracle and one tablet server.
struct Cluster(World);

impl Cluster {
    fn new() -> Self {
        let mut cluster = Self(World::new(1));
        cluster.time(0).unwrap();
        cluster
    }

    fn beat(&mut self, beat: Heartbeat) -> Result<Leased, Refusal> {
        let reply = self.0.directory.heartbeat(self.0.now, beat);
        self.0.carry_out();
        reply.map(|reply| reply.leased)
    }

    /// The oracle's time is so late.
    fn time(&mut self, ms: u64) -> Result<Leased, Refusal> {
        let beat = Heartbeat {
            cluster_id: Some(World::cluster_id()),
            accepted: true,
            time: ts(ms),
            high_ts: ts(ms + 3_000),
            ..oracle("tso-0")
        };
        self.beat(beat)
    }

    /// The oracle has told the master, which asked for it.
    fn asked(&mut self, ms: u64) {
        let now = self.0.now;
        self.0.directory.collect(now, Ok(ts(ms)));
        self.0.carry_out();
    }

    fn tablet(&self) -> Heartbeat {
        self.0.heartbeat_of("tablet-0")
    }

    /// Another process that calls itself so, and doesn't know the one before.
    fn another(&self) -> Heartbeat {
        Heartbeat {
            incarnation: 2,
            accepted: false,
            address: "elsewhere:7402".into(),
            ..self.tablet()
        }
    }
}

#[test]
fn a_lease_is_the_oracles_time_and_some_seconds() {
    let mut cluster = Cluster(World::new(1));
    let beat = cluster.tablet();
    let leased = cluster.beat(beat.clone()).unwrap();
    assert_eq!(leased.until, Timestamp::ZERO, "nobody knows the time");
    cluster.time(0).unwrap();
    let leased = cluster.beat(beat.clone()).unwrap();
    assert_eq!(leased.until, ts(lease_ms()));
    assert_eq!(leased.commits_above, Timestamp::ZERO);
    cluster.time(700).unwrap();
    assert_eq!(cluster.beat(beat).unwrap().until, ts(700 + lease_ms()));
}

/// Not each of them is written down: that would be a write for each heartbeat.
#[test]
fn no_lease_is_above_what_is_durable_and_few_are_written() {
    let mut cluster = Cluster::new();
    let mut written = 0;
    for ms in (0..60_000).step_by(500) {
        cluster.time(ms).unwrap();
        let before = cluster.0.disk.clone();
        let beat = cluster.tablet();
        let leased = cluster.beat(beat).unwrap();
        written += usize::from(cluster.0.disk != before);
        assert!(cluster.0.state().leased_to >= leased.until.as_u64());
    }
    assert!((5..=13).contains(&written), "{written} of 120");
}

#[test]
fn a_second_one_is_refused_while_the_first_is_alive_and_changes_nothing() {
    let mut cluster = Cluster::new();
    let (first, second) = (cluster.tablet(), cluster.another());
    cluster.beat(first.clone()).unwrap();
    let before = cluster.0.state().clone();
    // The first may have died just now.
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
    cluster.0.now += Duration::from_millis(1);
    cluster.beat(first.clone()).unwrap();
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "tablet-0 is alive at tablet-0:7402: a second tablet-0, at elsewhere:7402, is not accepted. Stop one of them; one \
         that takes the other's place has to have its folder or volume"
    );
    assert_eq!(*cluster.0.state(), before);
    // Also at its address, which may be a name: who answers there isn't known.
    let same_address = Heartbeat {
        address: first.address.clone(),
        ..second
    };
    let refused = cluster.beat(same_address);
    assert!(
        matches!(refused, Err(Refusal::Duplicate { .. })),
        "{refused:?}"
    );
    cluster.beat(first).unwrap();
}

#[test]
fn one_that_died_elsewhere_is_replaced_when_its_lease_is_over() {
    let mut cluster = Cluster::new();
    let (first, second) = (cluster.tablet(), cluster.another());
    let leased = cluster.beat(first.clone()).unwrap();
    cluster.0.now += HEARTBEAT_TIMEOUT;
    cluster.time(lease_ms()).unwrap();
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("when its lease is over, in 0 ms"),
        "{refused}"
    );
    cluster.time(lease_ms() + 1).unwrap();
    let granted = cluster.beat(second.clone()).unwrap();
    assert_eq!(granted.commits_above, leased.until);
    assert_eq!(granted.until, ts(2 * lease_ms() + 1));
    // The first one comes back.
    let refused = cluster.beat(first).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "another tablet-0 has taken the place of this one, which sent no heartbeat for too long: it must not answer any more"
    );
    // That stays so for later ones, and for a master that is started again.
    cluster.0.restart();
    let third = Heartbeat {
        incarnation: 3,
        replaces: vec![2],
        ..second
    };
    cluster.time(lease_ms() + 2).unwrap();
    assert_eq!(cluster.beat(third).unwrap().commits_above, leased.until);
}

#[test]
fn a_master_that_is_started_again_knows_who_was_accepted_and_for_how_long() {
    let mut cluster = Cluster::new();
    let (first, second) = (cluster.tablet(), cluster.another());
    let leased = cluster.beat(first.clone()).unwrap();
    cluster.0.restart();
    // The second one is heard first.
    cluster.time(1).unwrap();
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
    cluster.0.now += Duration::from_millis(1);
    cluster.beat(first).unwrap();
    // It is noted as one that came behind that: so it was there before.
    assert!(cluster.beat(second.clone()).is_err());
    // Without the first one: what is durable is above what it was granted.
    cluster.0.restart();
    let kept = Timestamp::from_u64(cluster.0.state().leased_to);
    assert!(kept >= leased.until);
    cluster.time(kept.physical_ms() - T).unwrap();
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
    cluster.time(kept.physical_ms() - T + 1).unwrap();
    assert_eq!(cluster.beat(second).unwrap().commits_above, kept);
}

/// Leases of others go on meanwhile, and so does what is written down of them.
#[test]
fn leases_of_others_delay_no_server() {
    let mut cluster = Cluster(World::new(2));
    cluster.time(0).unwrap();
    let (first, second) = (cluster.tablet(), cluster.another());
    cluster.beat(first).unwrap();
    cluster.0.restart();
    let kept = cluster.0.state().leased_to;
    let other = cluster.0.heartbeat_of("tablet-1");
    for ms in (500..).step_by(500) {
        cluster.time(ms).unwrap();
        cluster.beat(other.clone()).unwrap();
        if cluster.beat(second.clone()).is_ok() {
            assert!(ts(ms).as_u64() > kept);
            return;
        }
        assert!(ms < 2 * lease_ms(), "it is never over");
    }
}

#[test]
fn nothing_is_waited_for_after_an_orderly_end_or_a_death_that_is_sure() {
    let mut cluster = Cluster::new();
    let (first, second) = (cluster.tablet(), cluster.another());
    cluster.beat(first.clone()).unwrap();
    let leaving = Heartbeat {
        leaving: true,
        ..first
    };
    cluster.beat(leaving).unwrap();
    let leased = cluster.beat(second.clone()).unwrap();
    assert_eq!(leased.commits_above, Timestamp::ZERO);
    // Several starts of which the master has heard none.
    let third = Heartbeat {
        incarnation: 5,
        replaces: vec![2, 3, 4],
        ..second
    };
    let leased = cluster.beat(third).unwrap();
    assert_eq!(leased.commits_above, Timestamp::ZERO);
}

/// Which start of a server was accepted is lost, and up to where it may answer.
#[test]
fn a_rebuilt_state_waits_for_leases_that_it_doesnt_know() {
    for was_accepted in [true, false] {
        let mut cluster = Cluster::new();
        let (first, second) = (cluster.tablet(), cluster.another());
        cluster.beat(first.clone()).unwrap();
        cluster.0.lose_state();
        let reported = Heartbeat {
            accepted: was_accepted,
            ..first.clone()
        };
        cluster.beat(reported.clone()).unwrap_err();
        assert!(cluster.0.rebuild(true).written);
        cluster.time(10).unwrap();
        // Its lease lasts if it says so; otherwise another one may have been accepted since.
        assert_eq!(cluster.beat(reported.clone()).is_ok(), was_accepted);
        let refused = cluster.beat(second.clone()).unwrap_err();
        assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
        // A heartbeat of the oracle that was long on its way says nothing of leases that were granted since.
        cluster.time(5 * lease_ms()).unwrap();
        assert!(cluster.beat(second.clone()).is_err());
        cluster.asked(5 * lease_ms());
        assert!(cluster.beat(second.clone()).is_err());
        // The next start of the master knows as well.
        cluster.0.restart();
        cluster.time(5 * lease_ms() + 1).unwrap();
        assert!(cluster.beat(second.clone()).is_err());
        cluster.asked(7 * lease_ms());
        let next = if was_accepted { second } else { reported };
        let leased = cluster.beat(next).unwrap();
        assert!(leased.commits_above > ts(6 * lease_ms()), "{leased:?}");
        assert!(leased.until > leased.commits_above);
    }
}

/// Found by the simulator: the tablets that it didn't have yet were taken for lost, and an older folder for better than that.
#[test]
fn a_heartbeat_that_was_overtaken_is_ignored() {
    let mut cluster = Cluster::new();
    let beat = |groups| Heartbeat {
        groups,
        ..cluster.tablet()
    };
    let (late, next) = (beat(6), beat(7));
    cluster.beat(next.clone()).unwrap();
    let refused = cluster.beat(late).unwrap_err();
    assert!(
        matches!(refused, Refusal::LateHeartbeat { .. }),
        "{refused}"
    );
    cluster.beat(next).unwrap();
}

/// Found by the simulator.
#[test]
fn a_heartbeat_from_before_a_tablet_was_made_is_ignored() {
    let mut cluster = Cluster::new();
    let late = cluster.tablet();
    cluster.0.create("t", &[]).unwrap();
    for restarts in [false, true] {
        if restarts {
            cluster.0.restart();
        }
        let refused = cluster.beat(late.clone()).unwrap_err();
        assert!(
            matches!(refused, Refusal::LateHeartbeat { .. }),
            "{refused}"
        );
        let older = Heartbeat {
            incarnation: 2,
            replaces: vec![1],
            accepted: false,
            ..late.clone()
        };
        let refused = cluster.beat(older).unwrap_err();
        assert!(matches!(refused, Refusal::OlderFolder { .. }), "{refused}");
    }
    let next = cluster.tablet();
    cluster.beat(next).unwrap();
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn a_folder_that_went_back_is_refused() {
    let mut cluster = Cluster::new();
    let reported = Heartbeat {
        high_ts: ts(5),
        ..cluster.tablet()
    };
    cluster.beat(reported.clone()).unwrap();
    let older = Heartbeat {
        incarnation: 2,
        replaces: vec![1],
        accepted: false,
        high_ts: ts(4),
        ..reported.clone()
    };
    let refused = cluster.beat(older.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::OlderFolder { .. }), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("bring its last folder or volume back"),
        "{refused}"
    );
    // Its last groups only locked something, which has no write record.
    let locked = Heartbeat {
        groups: 7,
        ..reported.clone()
    };
    cluster.beat(locked).unwrap();
    // It has written more since it was started.
    let cut = Heartbeat {
        high_ts: ts(5),
        groups: 8,
        groups_found: 6,
        ..older.clone()
    };
    let refused = cluster.beat(cut).unwrap_err().to_string();
    assert!(
        refused.contains("reported group of changes 7, and the folder ends at group of changes 6"),
        "{refused}"
    );
    let (reported, older) = (
        Heartbeat {
            groups: 7,
            ..reported
        },
        Heartbeat {
            groups: 7,
            groups_found: 7,
            ..older
        },
    );
    // A barrier that it had refused what this one would serve.
    let barrier = Heartbeat {
        points: percolator_protocol::safe_point::Points {
            barrier: ts(3),
            safe_point: Timestamp::ZERO,
            resolved: Timestamp::ZERO,
        },
        ..reported.clone()
    };
    cluster.beat(barrier).unwrap();
    let older = Heartbeat {
        high_ts: ts(5),
        ..older
    };
    let refused = cluster.beat(older.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::OlderFolder { .. }), "{refused}");
    // An empty one has lost its tablets, which is known by that.
    let empty = Heartbeat {
        cluster_id: None,
        high_ts: Timestamp::ZERO,
        groups: 0,
        groups_found: 0,
        ..older
    };
    cluster.beat(empty.clone()).unwrap();
    let next = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        incarnation: 3,
        replaces: vec![2],
        ..empty
    };
    cluster.beat(next).unwrap();
}

#[test]
fn a_second_oracle_waits_until_the_first_surely_gives_nothing_any_more() {
    let mut cluster = Cluster::new();
    let second = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        incarnation: 2,
        high_ts: ts(1),
        ..oracle("tso-0")
    };
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
    cluster.0.now += HEARTBEAT_TIMEOUT;
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
    cluster.0.now += LEASE;
    let leased = cluster.beat(second).unwrap();
    // Its folder is behind: the first one may have gone on until its lease was over.
    assert!(
        leased.timestamps_above >= ts(3_000 + lease_ms()),
        "{leased:?}"
    );
    let beat = cluster.tablet();
    let tablet = cluster.beat(beat).unwrap();
    assert_eq!(tablet.commits_above, leased.timestamps_above);
    assert!(matches!(cluster.time(1), Err(Refusal::Replaced { .. })));
}

#[test]
fn an_oracle_goes_on_above_what_any_server_has_seen() {
    let mut cluster = Cluster::new();
    let seen = Heartbeat {
        high_ts: ts(90_000),
        ..cluster.tablet()
    };
    cluster.beat(seen).unwrap();
    // From a backup, on the same machine.
    let restored = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        incarnation: 2,
        replaces: vec![1],
        high_ts: ts(1),
        ..oracle("tso-0")
    };
    let leased = cluster.beat(restored).unwrap();
    assert_eq!(leased.timestamps_above, ts(90_000));
    assert_eq!(leased.lasts, LEASE);
}

#[test]
fn a_master_waits_for_the_lease_of_an_oracle_without_a_heartbeat() {
    let mut cluster = Cluster::new();
    cluster.0.restart();
    let second = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        incarnation: 2,
        ..oracle("tso-0")
    };
    cluster.0.now = LEASE.saturating_sub(Duration::from_millis(1));
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the tso-0 before this one may still answer, as it has not ended in order, and not surely on this machine: this \
         one is accepted when its lease is over, in 1 ms"
    );
    cluster.0.now = LEASE;
    cluster.beat(second).unwrap();
}

/// The answer with the shorter lease may be lost: then the oracle goes on by the longer one.
#[test]
fn a_longer_lease_of_before_is_waited_for_although_the_oracle_has_reported() {
    let mut cluster = Cluster::new();
    cluster.0.settings.lease = LEASE / 5;
    cluster.0.restart();
    cluster.time(1_000).unwrap();
    let second = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        incarnation: 2,
        high_ts: ts(1),
        ..oracle("tso-0")
    };
    cluster.0.now = LEASE.saturating_sub(Duration::from_millis(1));
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
    cluster.0.now = LEASE;
    let leased = cluster.beat(second).unwrap();
    // As far as the first one may have gone on by it.
    assert!(
        leased.timestamps_above >= ts(4_000 + lease_ms()),
        "{leased:?}"
    );
}

#[test]
fn an_oracle_on_a_copied_folder_goes_on_above_what_the_first_may_have_given_since() {
    let mut cluster = Cluster::new();
    let told = cluster.time(1_000).unwrap();
    assert_eq!(told.timestamps_above, Timestamp::ZERO);
    // The copy has the limit that was reported last, and the first one has gone on behind that.
    let second = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        incarnation: 2,
        high_ts: ts(4_000),
        time: ts(1_001),
        ..oracle("tso-0")
    };
    cluster.beat(second.clone()).unwrap_err();
    cluster.0.now += LEASE;
    let leased = cluster.beat(second).unwrap();
    assert_eq!(leased.timestamps_above, ts(1_000 + lease_ms()));
}

#[test]
fn a_lease_that_is_shorter_since_a_masters_start_is_waited_for_as_it_was() {
    let mut cluster = Cluster::new();
    cluster.time(1).unwrap();
    cluster.0.settings.lease = LEASE / 5;
    cluster.0.restart();
    let second = Heartbeat {
        cluster_id: Some(World::cluster_id()),
        incarnation: 2,
        high_ts: ts(4_000),
        ..oracle("tso-0")
    };
    cluster.0.now += LEASE / 2;
    let refused = cluster.beat(second.clone()).unwrap_err();
    assert!(matches!(refused, Refusal::StillLeased { .. }), "{refused}");
    cluster.0.now += LEASE / 2;
    cluster.beat(second.clone()).unwrap();
    // What the master before had granted is over, and the next one waits as long as leases are now.
    cluster.0.restart();
    cluster.0.now += LEASE / 5;
    let third = Heartbeat {
        incarnation: 3,
        ..second
    };
    cluster.beat(third).unwrap();
}
