//! Leases at the master, while the read barrier moves as fast as they let it: what is open is never refused, and what a
//! client takes for covered is.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::{Client, Error, Options, Timestamp, Txn};

use crate::cluster::{Cluster, LEASE, TABLE, cell};
use crate::faults::{BEYOND_TTL, harmless};
use crate::network::{Fault, Kind};
use crate::outcome::{Bench, new, old, put_all};

/// The barrier is moved so often.
const MOVES: Duration = Duration::from_millis(50);
const ROWS: [&str; 2] = ["a", "k"];

fn keep_moving(cluster: &Arc<Cluster>, retention: Duration) {
    let cluster = cluster.clone();
    let world = cluster.world.clone();
    let moves = async move {
        loop {
            cluster.world.sleep(MOVES).await;
            cluster.move_barrier(retention);
        }
    };
    world.spawn(moves.boxed());
}

/// A client that has a lease already, or has given it back.
fn warm_up(retention: Duration) -> Bench {
    let bench = Bench::new();
    bench.fill(&ROWS);
    keep_moving(&bench.cluster, retention);
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        txn.get(TABLE, "a", "c").await.expect("an answer");
        bench.sleep(Duration::from_secs(1)).await;
    });
    bench
}

/// Waits, and checks all the time that the client is right about what is covered.
async fn wait(bench: &Bench, start_ts: Timestamp, time: Duration) -> usize {
    let mut covered = 0;
    for _ in 0..time.as_millis() / MOVES.as_millis() {
        bench.sleep(MOVES).await;
        if bench.client.is_covered(start_ts) {
            covered += 1;
            let now = bench.cluster.world.now();
            assert!(bench.cluster.holds(start_ts), "it isn't covered at {now:?}");
        }
    }
    covered
}

async fn read_and_commit(txn: Txn) -> Result<Timestamp, Error> {
    for row in ROWS {
        let value = txn.get(TABLE, row, "c").await?;
        assert_eq!(value, Some(old(row)));
    }
    put_all(&txn, &ROWS, new);
    txn.commit().await
}

#[test]
fn what_is_open_is_never_refused_whatever_becomes_of_one_message() {
    for held in [Duration::from_secs(2), Duration::from_secs(25)] {
        for fault in harmless() {
            for at in 0..9 {
                let bench = warm_up(Duration::from_millis(300));
                let so_far = bench.network.log().len();
                let (fault, name) = (fault.clone(), format!("{fault:?} at {at} for {held:?}"));
                bench.network.script(move |sent| {
                    let is_it = sent.number == so_far + at && sent.body.is_none();
                    is_it.then(|| fault.clone())
                });
                bench.run(async {
                    let txn = bench.client.begin().await.expect("it begins");
                    let start_ts = txn.start_ts();
                    wait(&bench, start_ts, held).await;
                    assert!(bench.client.is_covered(start_ts), "{name}");
                    read_and_commit(txn).await.expect(&name);
                });
            }
        }
    }
}

#[test]
fn many_that_begin_and_end_beside_each_other_are_never_refused() {
    let bench = warm_up(Duration::from_millis(300));
    // Each third timestamp is given late: others begin and end meanwhile.
    bench.network.script(|sent| {
        let is_it = sent.kind == Kind::Timestamp && sent.nth % 3 == 0;
        is_it.then_some(Fault::SlowAnswer(BEYOND_TTL))
    });
    let one = async |number: u64| {
        bench.sleep(Duration::from_millis(number * 370)).await;
        let txn = bench.client.begin().await.expect("it begins");
        let start_ts = txn.start_ts();
        wait(
            &bench,
            start_ts,
            Duration::from_millis((number * 7_919) % 20_000),
        )
        .await;
        let value = txn.get(TABLE, "a", "c").await.expect("it isn't refused");
        assert_eq!(value, Some(old("a")));
        let row = format!("r{number}");
        txn.put(TABLE, &row, "c", "x").expect("it is kept");
        txn.commit().await.expect("it isn't refused");
    };
    bench.run(futures_util::future::join_all((0..60).map(one)));
}

#[test]
fn a_lease_counts_from_before_it_was_asked_for() {
    for fault in [
        Fault::SlowAnswer(BEYOND_TTL),
        Fault::SlowRequest(BEYOND_TTL),
        Fault::SlowAnswer(Duration::from_millis(400)),
        Fault::Late(BEYOND_TTL),
    ] {
        for last in 1..5 {
            let bench = warm_up(Duration::from_millis(300));
            let fault = fault.clone();
            bench.network.script(move |sent| match sent.kind {
                Kind::Session if sent.nth == last => Some(fault.clone()),
                Kind::Session if sent.nth > last => Some(Fault::LoseRequest),
                _ => None,
            });
            bench.run(async {
                let txn = bench.client.begin().await.expect("it begins");
                let covered = wait(&bench, txn.start_ts(), LEASE * 4).await;
                assert!(covered > 80, "{covered}");
                assert!(!bench.client.is_covered(txn.start_ts()));
                // Its servers have gone on.
                let error = read_and_commit(txn).await.expect_err("it is refused");
                assert!(matches!(error, Error::TooOld(_)), "{error}");
            });
            assert_eq!(bench.cluster.locks(), 0);
        }
    }
}

#[test]
fn a_commit_behind_the_barrier_is_refused_before_anything_is_locked() {
    let bench = warm_up(Duration::from_millis(300));
    bench
        .network
        .script(|sent| (sent.kind == Kind::Session).then_some(Fault::LoseRequest));
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        put_all(&txn, &ROWS, new);
        bench.sleep(LEASE * 2).await;
        bench.network.heal();
        bench.sleep(Duration::from_secs(5)).await;
        let sent = bench.network.log().len();
        let error = txn.commit().await.expect_err("it is refused");
        assert!(matches!(error, Error::TooOld(_)), "{error}");
        let log = bench.network.log();
        assert!(log[sent..].iter().all(|sent| sent.body.is_none()));
    });
}

#[test]
fn a_commit_does_not_wait_for_a_master_that_is_away() {
    for fault in [Fault::Silence, Fault::LoseRequest] {
        let bench = Bench::new();
        bench.fill(&ROWS);
        let fault = fault.clone();
        bench
            .network
            .script(move |sent| (sent.kind == Kind::Session).then(|| fault.clone()));
        bench.run(async {
            let txn = bench.client.begin().await.expect("it begins");
            bench.sleep(Duration::from_secs(20)).await;
            let began = bench.cluster.world.now();
            read_and_commit(txn).await.expect("nothing is in its way");
            let took = bench.cluster.world.now() - began;
            assert!(took < Duration::from_millis(1_200), "{took:?}");
        });
    }
}

#[test]
fn a_snapshot_of_before_is_held_from_when_it_is_begun() {
    for at in 0..6 {
        let bench = warm_up(Duration::from_secs(3));
        bench.run(async {
            let snapshot = bench.client.timestamp().await.expect("one");
            bench.sleep(Duration::from_millis(2_500)).await;
            let so_far = bench.network.log().len();
            bench.network.script(move |sent| {
                let is_it = sent.number == so_far + at && sent.body.is_none();
                is_it.then_some(Fault::LoseRequest)
            });
            let txn = bench.client.begin_at(snapshot).await.expect("it begins");
            wait(&bench, snapshot, Duration::from_secs(20)).await;
            let value = txn.get(TABLE, "a", "c").await.expect("it is held");
            assert_eq!(value, Some(old("a")));
        });
    }
}

async fn use_once(bench: &Bench, client: &Client) {
    let txn = client.begin().await.expect("it begins");
    wait(bench, txn.start_ts(), Duration::from_secs(1)).await;
    let value = txn.get(TABLE, "a", "c").await.expect("it isn't refused");
    assert_eq!(value, Some(old("a")));
}

#[test]
fn a_client_that_has_settled_holds_nothing_and_may_begin_again() {
    let bench = warm_up(Duration::from_secs(2));
    bench.run(async {
        for _ in 0..3 {
            use_once(&bench, &bench.client).await;
            bench.client.settle().await;
            assert_eq!(bench.cluster.leases(), 0, "the lease is given back");
            bench.sleep(LEASE * 2).await;
        }
        // What is open keeps it.
        let open = bench.client.begin().await.expect("it begins");
        bench.sleep(Duration::from_secs(1)).await;
        bench.client.settle().await;
        wait(&bench, open.start_ts(), LEASE * 2).await;
        open.get(TABLE, "a", "c").await.expect("it isn't refused");
    });
}

#[test]
fn a_lease_that_is_given_back_late_takes_no_other_one_along() {
    for late_ms in [0, 20, 1_500, 5_000] {
        let bench = warm_up(Duration::from_millis(300));
        bench.network.script(move |sent| {
            let late = Fault::Late(Duration::from_millis(late_ms));
            sent.gives_back.then_some(late)
        });
        bench.run(async {
            bench.client.settle().await;
            let txn = bench.client.begin().await.expect("it begins");
            wait(&bench, txn.start_ts(), Duration::from_secs(8)).await;
            read_and_commit(txn).await.expect("it is held");
        });
    }
}

#[test]
fn a_client_that_is_gone_holds_nothing() {
    let bench = Bench::new();
    bench.fill(&ROWS);
    bench.run(bench.sleep(LEASE * 2));
    let (_network, client) = bench.other();
    bench.run(async {
        let txn = client.begin().await.expect("it begins");
        bench.sleep(Duration::from_secs(1)).await;
        assert_eq!(bench.cluster.leases(), 1);
        drop(txn);
        drop(client);
        bench.sleep(Duration::from_secs(1)).await;
        assert_eq!(bench.cluster.leases(), 0);
    });
}

#[test]
fn a_transaction_is_held_until_its_last_prewrite_is_in_place() {
    for at in 0..12 {
        for options in [
            Options::default(),
            Options {
                buffer_bytes: 1,
                ..Options::default()
            },
        ] {
            let bench = Bench::with(options);
            bench.fill(&ROWS);
            keep_moving(&bench.cluster, Duration::from_millis(300));
            bench.run(async {
                let txn = bench.client.begin().await.expect("it begins");
                bench.sleep(Duration::from_millis(100)).await;
                let so_far = bench.network.count(Kind::Prewrite);
                bench.network.script(move |sent| {
                    let is_it = sent.kind == Kind::Prewrite && sent.nth == so_far + at;
                    is_it.then_some(Fault::SlowRequest(BEYOND_TTL))
                });
                put_all(&txn, &["a", "b", "k", "q"], new);
                txn.commit().await.expect("it isn't refused");
            });
            assert_eq!(bench.cluster.value(&cell("k")), Some(new("k")));
        }
    }
}
