//! What clients say about transactions and tables: outcomes, and tables that are being deleted or were.

use std::time::Duration;

use futures_util::future::join;
use percolator_client::{Error, Outcome, Range, Timestamp};

use crate::cluster::{INDEX, TABLE, cell};
use crate::faults::{frozen, harmless};
use crate::network::{Fault, Kind};
use crate::outcome::{Bench, new, old, put_all};

const ROWS: [&str; 2] = ["a", "k"];

#[test]
fn an_outcome_says_what_became_of_a_transaction_and_leaves_the_living_alone() {
    let bench = Bench::new();
    bench.fill(&ROWS);
    let (_network, other) = bench.other();
    // Its commit_ts is given late.
    bench.network.script(|sent| {
        let is_it = sent.kind == Kind::Timestamp && sent.nth > 1;
        is_it.then_some(Fault::SlowRequest(Duration::from_secs(8)))
    });
    let txn = bench.run(bench.client.begin()).expect("it begins");
    let start_ts = txn.start_ts();
    put_all(&txn, &ROWS, new);
    let primary = cell("a");
    let ask = async {
        for _ in 0..50 {
            bench.sleep(Duration::from_millis(100)).await;
            let outcome = other.outcome(start_ts, &primary).await.expect("an answer");
            assert_eq!(outcome, Outcome::Pending);
        }
    };
    let (result, ()) = bench.run(join(txn.commit(), ask));
    let commit_ts = result.expect("its client was alive");
    let outcome = bench.run(other.outcome(start_ts, &primary));
    assert_eq!(outcome.expect("an answer"), Outcome::Committed(commit_ts));
}

#[test]
fn an_outcome_is_the_same_whatever_becomes_of_one_message() {
    for fault in harmless() {
        for at in 0..4 {
            let bench = Bench::new();
            let txn = bench.run(bench.client.begin()).expect("it begins");
            let start_ts = txn.start_ts();
            put_all(&txn, &ROWS, new);
            let commit_ts = bench.run(txn.commit()).expect("it commits");
            let so_far = bench.network.log().len();
            let fault = fault.clone();
            let script = bench.network.clone();
            script.script(move |sent| (sent.number == so_far + at).then(|| fault.clone()));
            let outcome = bench.run(bench.client.outcome(start_ts, &cell("a")));
            assert_eq!(outcome.expect("an answer"), Outcome::Committed(commit_ts));
            // Nobody began there; by now its ttl would be over.
            bench.run(bench.sleep(Duration::from_secs(10)));
            let nobody = Timestamp::from_u64(start_ts.as_u64() + 1);
            let outcome = bench.run(bench.client.outcome(nobody, &cell("b")));
            assert_eq!(outcome.expect("an answer"), Outcome::RolledBack);
        }
    }
}

#[test]
fn a_timestamp_that_was_not_handed_out_names_no_transaction() {
    let bench = Bench::new();
    let now = bench.run(bench.client.timestamp()).expect("one");
    let later = Timestamp::from_millis(now.physical_ms() + 600_000);
    for start_ts in [Timestamp::ZERO, later] {
        let error = bench.run(bench.client.outcome(start_ts, &cell("a")));
        assert!(
            matches!(error, Err(Error::NoTransaction { .. })),
            "{error:?}"
        );
    }
    let error = bench.run(bench.client.begin_at(later)).err();
    assert!(matches!(error, Some(Error::NoSnapshot { .. })), "{error:?}");
}

#[test]
fn timestamps_are_asked_for_after_the_call_and_never_given_twice() {
    for fault in harmless() {
        for at in 0..3 {
            let bench = Bench::new();
            let fault = fault.clone();
            bench.network.script(move |sent| {
                (sent.kind == Kind::Timestamp && sent.nth == at).then(|| fault.clone())
            });
            let mut last = Timestamp::ZERO;
            for _ in 0..4 {
                let before = bench.cluster.timestamp();
                let timestamp = bench.run(bench.client.timestamp()).expect("one");
                assert!(timestamp > before && timestamp > last);
                last = timestamp;
            }
        }
    }
}

/// Each way to use a table, and its error within a second.
fn expect_unknown(bench: &Bench) {
    let soon = |began: Duration| {
        let took = bench.cluster.world.now() - began;
        assert!(took < Duration::from_secs(1), "it took {took:?}");
    };
    let expect = |error: Option<Error>| {
        assert!(
            matches!(error, Some(Error::UnknownTable { .. })),
            "{error:?}"
        );
    };
    // A transaction each, as a table is looked up once in each.
    let mut began = bench.cluster.world.now();
    let txn = bench.run(bench.client.begin()).expect("it begins");
    expect(bench.run(txn.get(TABLE, "a", "c")).err());
    soon(began);
    began = bench.cluster.world.now();
    let txn = bench.run(bench.client.begin()).expect("it begins");
    let names = ROWS.map(|row| (TABLE, row.as_bytes(), &b"c"[..]));
    expect(bench.run(txn.batch_get(&names)).err());
    soon(began);
    began = bench.cluster.world.now();
    let txn = bench.run(bench.client.begin()).expect("it begins");
    let scanned = bench.run(async {
        let scan = txn.scan(TABLE, Range::all()).await?;
        scan.collect().await
    });
    expect(scanned.err());
    soon(began);
    began = bench.cluster.world.now();
    let txn = bench.run(bench.client.begin()).expect("it begins");
    put_all(&txn, &ROWS, new);
    expect(bench.run(txn.commit()).err());
    soon(began);
}

#[test]
fn a_table_that_goes_is_unknown_at_once() {
    for is_gone in [false, true] {
        let bench = Bench::new();
        bench.fill(&ROWS);
        // The client knows where the table was.
        bench.run(async {
            let txn = bench.client.begin().await.expect("it begins");
            txn.get(TABLE, "a", "c").await.expect("an answer");
        });
        let refusal = if is_gone {
            bench.cluster.delete(1);
            crate::faults::not_served()
        } else {
            bench.cluster.freeze(1);
            frozen()
        };
        bench
            .network
            .script(move |sent| sent.body.is_some().then(|| Fault::Refuse(refusal.clone())));
        expect_unknown(&bench);
    }
}

#[test]
fn a_lock_whose_primary_went_with_its_table_is_rolled_back() {
    let bench = Bench::new();
    bench.fill(&ROWS);
    let (network, other) = bench.other();
    network.script(|sent| (sent.kind == Kind::Timestamp && sent.nth > 1).then_some(Fault::Silence));
    bench.run(async {
        let txn = other.begin().await.expect("it begins");
        put_all(&txn, &ROWS, new);
        txn.put(INDEX, "x", "c", "new").expect("it is kept");
        let commit = Box::pin(txn.commit());
        let dies = Box::pin(bench.sleep(Duration::from_millis(100)));
        futures_util::future::select(commit, dies).await;
        network.script(|_| Some(Fault::Silence));
    });
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        assert_eq!(txn.get(INDEX, "y", "c").await.expect("an answer"), None);
        bench.sleep(Duration::from_secs(5)).await;
        bench.cluster.delete(1);
        bench.network.script(|sent| {
            let is_gone = sent.kind == Kind::CheckStatus;
            is_gone.then(|| Fault::Refuse(crate::faults::not_served()))
        });
        assert_eq!(txn.get(INDEX, "x", "c").await.expect("an answer"), None);
    });
    assert_eq!(bench.cluster.value(&cell("a")), Some(old("a")));
}

#[test]
fn what_the_master_does_not_know_for_a_moment_is_waited_for() {
    for (hidden, rows) in [(1, ["a", "k"]), (2, ["a", "k"]), (3, ["a", "q"])] {
        let bench = Bench::new();
        bench.fill(&["a", "k", "q"]);
        bench.cluster.hide_tablet(Some(hidden));
        let known_again = async {
            bench.sleep(Duration::from_millis(700)).await;
            bench.cluster.hide_tablet(None);
        };
        let work = async {
            let txn = bench.client.begin().await.expect("it begins");
            let names = rows.map(|row| (TABLE, row.as_bytes(), &b"c"[..]));
            let values = txn.batch_get(&names).await.expect("it is known again");
            assert_eq!(values, rows.map(|row| Some(old(row))));
            bench.cluster.hide_tablet(Some(hidden));
            for range in [Range::all(), Range::all().reverse()] {
                let scan = txn.scan(TABLE, range).await.expect("it begins");
                let cells = scan.collect().await.expect("the client knows it");
                assert_eq!(cells.len(), 3);
            }
            bench.cluster.hide_tablet(None);
        };
        bench.run(join(work, known_again));
        // A client that does not know the tablet yet writes all cells, or none.
        let (_network, other) = bench.other();
        bench.cluster.hide_tablet(Some(hidden));
        let known_again = async {
            bench.sleep(Duration::from_millis(700)).await;
            bench.cluster.hide_tablet(None);
        };
        let work = async {
            let txn = other.begin().await.expect("it begins");
            put_all(&txn, &rows, new);
            txn.commit().await.expect("it is known again");
            other.settle().await;
        };
        bench.run(join(work, known_again));
        for row in rows {
            assert_eq!(bench.cluster.value(&cell(row)), Some(new(row)), "{row}");
        }
    }
}
