//! Commits of small transactions: every fault at every message.

use std::time::Duration;

use percolator_client::{Error, Timestamp};
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind as Refused;

use crate::cluster::TABLE;
use crate::faults::{harmful, harmless};
use crate::network::{Fault, Kind, Sent};
use crate::outcome::{Bench, Class, Ended, new, old, put_all};

/// A commit takes no longer than it is tried, and its rollback.
const LONGEST: Duration = Duration::from_secs(10 + 5 + 1);

/// A transaction that commits, if nothing goes wrong.
struct Scenario {
    name: &'static str,
    /// What it writes; the first is the primary.
    rows: &'static [&'static str],
    /// What others have done before it commits.
    prepare: fn(&Bench),
    /// What others do between its begin and its commit.
    meanwhile: fn(&Bench),
    /// Locks that it leaves to others, as it does not meet them.
    left: usize,
}

fn nothing(_: &Bench) {}

/// A client that has died behind the first prewrite of an older transaction.
fn leave_locks_of_the_dead(bench: &Bench) {
    let (network, client) = bench.other();
    network.script(|sent| (sent.kind == Kind::Timestamp && sent.nth > 0).then_some(Fault::Silence));
    bench.run(async {
        let txn = client.begin().await.expect("it begins");
        put_all(&txn, &["a", "k", "zz"], old);
        let commit = txn.commit();
        let dies = bench.sleep(Duration::from_secs(8));
        futures_util::future::select(Box::pin(commit), Box::pin(dies)).await;
    });
    network.script(|_| Some(Fault::Silence));
    bench.run(bench.sleep(Duration::from_secs(4)));
}

/// A client that has died behind the commit of its primary, which is row zz.
fn leave_locks_of_a_commit(bench: &Bench) {
    let (network, client) = bench.other();
    network.script(|sent| (sent.kind == Kind::Commit && sent.nth > 0).then_some(Fault::Silence));
    bench.run(async {
        let txn = client.begin().await.expect("it begins");
        put_all(&txn, &["9", "a", "k"], old);
        txn.commit().await.expect("its primary is committed");
    });
    network.script(|_| Some(Fault::Silence));
}

/// A younger transaction that is alive and has the cells.
fn leave_locks_of_a_younger_one(bench: &Bench) {
    let (network, client) = bench.other();
    network.script(|sent| (sent.kind == Kind::Timestamp && sent.nth > 0).then_some(Fault::Silence));
    bench.run(async {
        let txn = client.begin().await.expect("it begins");
        put_all(&txn, &["9", "a", "k"], old);
        let commit = txn.commit();
        let lives_on = bench.sleep(Duration::from_millis(100));
        futures_util::future::select(Box::pin(commit), Box::pin(lives_on)).await;
    });
    network.script(|_| Some(Fault::Silence));
}

const SCENARIOS: [Scenario; 6] = [
    Scenario {
        name: "one cell",
        rows: &["a"],
        prepare: nothing,
        meanwhile: nothing,
        left: 0,
    },
    Scenario {
        name: "three cells of one server",
        rows: &["a", "b", "q"],
        prepare: nothing,
        meanwhile: nothing,
        left: 0,
    },
    Scenario {
        name: "two servers",
        rows: &["a", "b", "k"],
        prepare: nothing,
        meanwhile: nothing,
        left: 0,
    },
    Scenario {
        name: "locks of the dead",
        rows: &["a", "k"],
        prepare: leave_locks_of_the_dead,
        meanwhile: nothing,
        left: 1,
    },
    Scenario {
        name: "locks of a commit",
        rows: &["a", "k"],
        prepare: leave_locks_of_a_commit,
        meanwhile: nothing,
        left: 0,
    },
    Scenario {
        name: "locks of a younger one",
        rows: &["a", "k"],
        prepare: nothing,
        meanwhile: leave_locks_of_a_younger_one,
        left: 0,
    },
];

/// A server forgets what became of a transaction only when none of its locks is left.
fn is_honest(sent: &Sent, fault: &Fault) -> bool {
    !matches!(
        (sent.kind, fault),
        (Kind::CheckStatus, Fault::Refuse(Refused::TooOld(_)))
    )
}

/// Runs it with this fault at this message. `None`: it has not begun. The message that had the fault, too.
fn run(
    scenario: &Scenario,
    at: usize,
    fault: Option<&Fault>,
) -> (Bench, Option<Ended>, Option<Sent>) {
    let bench = Bench::new();
    let mut filled = scenario.rows.to_vec();
    filled.push("zz");
    bench.fill(&filled);
    (scenario.prepare)(&bench);
    let fault = fault.cloned();
    bench.network.script(move |sent| {
        fault
            .clone()
            .filter(|fault| sent.number == at && is_honest(sent, fault))
    });
    let before = bench.cluster.last_timestamp();
    let Ok(txn) = bench.run(bench.client.begin()) else {
        let sent = bench.network.log().get(at).cloned();
        return (bench, None, sent);
    };
    let start_ts = txn.start_ts();
    assert!(start_ts > before, "{start_ts} is from before it began");
    put_all(&txn, scenario.rows, new);
    (scenario.meanwhile)(&bench);
    let began = bench.cluster.world.now();
    let result = bench.run(txn.commit());
    let took = bench.cluster.world.now() - began;
    assert!(took <= LONGEST, "it took {took:?}");
    let ended = Ended {
        start_ts,
        rows: scenario.rows.to_vec(),
        result,
    };
    let sent = bench.network.log().get(at).cloned();
    (bench, Some(ended), sent)
}

/// How it may end with a harmful fault at this message.
fn allowed(run: &Faulty<'_>) -> &'static [Class] {
    let Faulty {
        scenario,
        start_ts,
        sent,
        fault,
    } = run;
    let of_primary = match &sent.body {
        Some(Ask::Commit(commit)) if commit.start_ts != start_ts.as_u64() => {
            // It clears somebody's lock.
            return &[Class::Committed, Class::Aborted];
        }
        Some(Ask::Commit(commit)) => commit.cells[0].row == scenario.rows[0],
        _ => false,
    };
    match (sent.kind, fault) {
        // What is carried out is found by the next request.
        (Kind::OnePhase, Fault::Silence | Fault::Refuse(Refused::TooOld(_))) => &[Class::Aborted],
        (Kind::OnePhase, _) => &[Class::Committed],
        (Kind::Prewrite, _) => &[Class::Aborted],
        (Kind::Commit, _) if of_primary => &[Class::Unknown],
        (Kind::Commit, _) => &[Class::Committed],
        // Of the transaction, or of its client's lease.
        (Kind::Timestamp, Fault::Silence | Fault::SilentlyDone) => {
            &[Class::Committed, Class::Aborted]
        }
        (Kind::Locate, Fault::Silence | Fault::SilentlyDone) => &[Class::Aborted],
        (Kind::Timestamp | Kind::Locate | Kind::Session | Kind::KeepAlive, _) => {
            &[Class::Committed]
        }
        _ => &[Class::Committed, Class::Aborted],
    }
}

/// A run with a fault.
struct Faulty<'a> {
    scenario: &'a Scenario,
    start_ts: Timestamp,
    sent: Sent,
    fault: &'a Fault,
}

fn every_message(scenario: &Scenario, faults: &[Fault], expect: impl Fn(&Faulty<'_>, Class)) {
    let (bench, ended, _) = run(scenario, 0, None);
    let messages = bench.network.log().len();
    let class = bench.check(&ended.expect("it begins"));
    assert_eq!(class, Class::Committed, "{}", scenario.name);
    assert_eq!(bench.cluster.locks(), scenario.left, "{}", scenario.name);
    for at in 0..messages {
        for fault in faults {
            let (bench, ended, sent) = run(scenario, at, Some(fault));
            let Some(sent) = sent else {
                continue;
            };
            let start_ts = ended
                .as_ref()
                .map_or(Timestamp::ZERO, |ended| ended.start_ts);
            let class = match ended {
                Some(ended) => bench.check(&ended),
                None => Class::Aborted,
            };
            let run = Faulty {
                scenario,
                start_ts,
                sent,
                fault,
            };
            expect(&run, class);
            let to_tablets = bench.network.log().into_iter();
            let sent = to_tablets.filter(|sent| sent.body.is_some()).count();
            assert!(sent < 150, "{sent} requests for {at} {fault:?}");
        }
    }
}

#[test]
fn a_commit_gets_over_every_harmless_fault() {
    for scenario in &SCENARIOS {
        every_message(scenario, &harmless(), |run, class| {
            let (name, fault, sent) = (run.scenario.name, run.fault, &run.sent);
            assert_eq!(class, Class::Committed, "{name}: {fault:?} at {sent:?}");
        });
    }
}

#[test]
fn a_commit_ends_as_it_says_with_every_harmful_fault() {
    for scenario in &SCENARIOS {
        every_message(scenario, &harmful(), |run, class| {
            let (name, fault, sent) = (run.scenario.name, run.fault, &run.sent);
            let is_allowed = allowed(run).contains(&class);
            assert!(is_allowed, "{name}: {class:?} with {fault:?} at {sent:?}");
        });
    }
}

#[test]
fn a_conflict_is_reported_as_such() {
    for rows in [&["a"][..], &["a", "k"]] {
        let bench = Bench::new();
        bench.fill(rows);
        let (_network, other) = bench.other();
        let error = bench.run(async {
            let txn = bench.client.begin().await.expect("it begins");
            let first = other.begin().await.expect("it begins");
            first.put(TABLE, rows[0], "c", "first").expect("it is kept");
            first.commit().await.expect("it commits");
            put_all(&txn, rows, new);
            txn.commit().await.expect_err("the other one was first")
        });
        assert!(matches!(error, Error::Conflict(_)), "{error}");
    }
}

/// Found by the simulator: where disks hung, a commit had hundreds of them under way.
#[test]
fn a_ttl_is_renewed_by_one_request_at_a_time() {
    let bench = Bench::new();
    bench.network.script(|sent| match sent.kind {
        Kind::Prewrite | Kind::KeepAlive => Some(Fault::Refuse(crate::faults::busy())),
        _ => None,
    });
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        put_all(&txn, &["a", "k"], new);
        let commit = txn.commit();
        let while_refused = bench.sleep(Duration::from_secs(8));
        futures_util::future::select(Box::pin(commit), Box::pin(while_refused)).await;
    });
    // Two servers are asked to prewrite, at most, for each that is asked to keep the transaction alive.
    let (renewals, prewrites) = (
        bench.network.count(Kind::KeepAlive),
        bench.network.count(Kind::Prewrite),
    );
    assert!(
        renewals > 0 && renewals <= prewrites,
        "{renewals} renewals beside {prewrites} prewrites"
    );
}
