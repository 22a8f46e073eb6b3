//! Transactions that are begun again: a counter that many increment counts each of them once, and only those.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use percolator_client::{Client, Error, OpenTxn, Options, Outcome};
use percolator_wire::v1::request::Body as Ask;

use crate::cluster::{TABLE, cell};
use crate::faults::{harmful, harmless};
use crate::network::{Fault, Kind, Network};
use crate::outcome::Bench;

/// The rows that count; the first is the primary.
const ROWS: [&str; 2] = ["a", "k"];

fn number(value: Option<Bytes>) -> u64 {
    let text = value.map(|value| String::from_utf8(value.to_vec()).expect("a number"));
    text.map_or(0, |text| text.parse().expect("a number"))
}

async fn increment(txn: OpenTxn) -> Result<(), Error> {
    for row in ROWS {
        let next = number(txn.get(TABLE, row, "c").await?) + 1;
        txn.put(TABLE, row, "c", next.to_string())?;
    }
    Ok(())
}

/// Increments once. How often the closure ran.
async fn increment_once(client: &Client) -> (Result<(), Error>, u64) {
    let runs = Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    let result = client
        .transact(move |txn| {
            counted.fetch_add(1, Ordering::Relaxed);
            increment(txn)
        })
        .await;
    (result, runs.load(Ordering::Relaxed))
}

fn count(bench: &Bench) -> u64 {
    let counts = ROWS.map(|row| number(bench.cluster.value(&cell(row))));
    assert_eq!(counts[0], counts[1], "half of a transaction is there");
    counts[0]
}

#[test]
fn a_counter_counts_once_whatever_becomes_of_one_message() {
    for (faults, are_harmless) in [(harmless(), true), (harmful(), false)] {
        for fault in faults {
            for at in 0..14 {
                let bench = Bench::new();
                let (once, name) = (fault.clone(), format!("{fault:?} at {at}"));
                bench
                    .network
                    .script(move |sent| (sent.number == at).then(|| once.clone()));
                let (result, runs) = bench.run(increment_once(&bench.client));
                bench.network.heal();
                bench.run(bench.sleep(Duration::from_secs(60)));
                match (result, count(&bench)) {
                    (Ok(()), 1) => {}
                    (Err(Error::Unknown { .. }), 0 | 1) | (Err(_), 0) if !are_harmless => {}
                    (result, count) => panic!("{name}: {result:?}, and it counts {count}"),
                }
                // A TooOld is the one refusal here behind which it is begun again.
                assert!(runs <= 2, "{name}: it ran {runs} times");
            }
        }
    }
}

#[test]
fn an_unknown_outcome_is_returned_and_not_tried_again() {
    for fault in [Fault::SilentlyDone, Fault::Silence] {
        let bench = Bench::new();
        bench.network.script(move |sent| {
            let is_commit = sent.kind == Kind::Commit;
            is_commit.then(|| fault.clone())
        });
        let (result, runs) = bench.run(increment_once(&bench.client));
        let Err(Error::Unknown {
            start_ts, primary, ..
        }) = result
        else {
            panic!("{result:?}");
        };
        assert_eq!(runs, 1);
        bench.network.heal();
        bench.run(bench.sleep(Duration::from_secs(60)));
        let outcome = bench.run(bench.client.outcome(start_ts, &primary));
        let is_committed = matches!(outcome, Ok(Outcome::Committed(_)));
        assert_eq!(count(&bench), u64::from(is_committed));
    }
}

#[test]
fn a_conflict_is_reported_where_the_time_ends_while_a_turn_is_waited_for() {
    let options = Options {
        retry_for: Duration::from_secs(3),
        ..Options::default()
    };
    let bench = Bench::with(options);
    let (_network, other) = bench.other();
    bench.network.script(|sent| {
        let waits = sent.kind == Kind::WaitForCell;
        waits.then_some(Fault::Silence)
    });
    let (client, other) = (&bench.client, &other);
    let result = bench.run(client.transact(|txn| async move {
        increment(txn).await?;
        increment_once(other).await.0
    }));
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
}

/// Clients increment beside each other, while some of their messages get lost.
fn many(lost_in: u64, seed: u64) {
    let bench = Bench::new();
    let clients: Vec<(Arc<Network>, Client)> = (0..4).map(|_| bench.other()).collect();
    for (number, (network, _)) in (1_u64..).zip(&clients) {
        network.script(move |sent| {
            let drawn = (sent.number as u64 + 1)
                .wrapping_mul(seed * 2 + 1)
                .wrapping_mul(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            match (drawn >> 32) % lost_in {
                0 => Some(Fault::LoseAnswer),
                1 => Some(Fault::LoseRequest),
                2 => Some(Fault::Late(Duration::from_millis((drawn >> 50) % 100))),
                3 => Some(Fault::SilentlyDone),
                _ => None,
            }
        });
    }
    let results = bench.run(join_all(clients.iter().map(async |(_, client)| {
        let mut results = Vec::new();
        for _ in 0..4 {
            results.push(increment_once(client).await.0);
        }
        results
    })));
    for (network, _) in &clients {
        network.heal();
    }
    bench.run(bench.sleep(Duration::from_secs(60)));
    let results: Vec<_> = results.into_iter().flatten().collect();
    let done = results.iter().filter(|result| result.is_ok()).count() as u64;
    let is_unknown = |result: &&Result<(), Error>| matches!(result, Err(Error::Unknown { .. }));
    let unknown = results.iter().filter(is_unknown).count() as u64;
    let counted = count(&bench);
    if lost_in == u64::MAX {
        assert_eq!((done, counted), (results.len() as u64, done));
    }
    assert!(
        (done..=done + unknown).contains(&counted),
        "seed {seed}: {done} and perhaps {unknown} were done, and {counted} are counted"
    );
}

#[test]
fn a_counter_counts_all_who_increment_it_beside_each_other() {
    for seed in 0..25 {
        many(u64::MAX, seed);
        many(40, seed);
        many(10, seed);
    }
}

#[test]
fn a_closure_is_run_again_behind_a_conflict_until_its_time_is_over() {
    let bench = Bench::with(Options {
        retry_for: Duration::from_secs(5),
        ..Options::default()
    });
    let (_network, other) = bench.other();
    let runs = AtomicU64::new(0);
    let began = bench.cluster.world.now();
    // Somebody else is always first.
    let result = bench.run(bench.client.transact(|txn| {
        runs.fetch_add(1, Ordering::Relaxed);
        let other = &other;
        async move {
            increment(txn).await?;
            let first = other.begin().await?;
            first.put(TABLE, ROWS[0], "c", "7")?;
            first.commit().await.map(drop)
        }
    }));
    let took = bench.cluster.world.now() - began;
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
    let expected = Duration::from_secs(5)..Duration::from_secs(16);
    assert!(expected.contains(&took), "{took:?}");
    assert!(runs.load(Ordering::Relaxed) > 2);
}

#[test]
fn a_closure_that_gives_up_leaves_nothing() {
    let bench = Bench::new();
    let result: Result<(), Error> = bench.run(bench.client.transact(|txn| async move {
        increment(txn).await?;
        Err(Error::application("it gives up"))
    }));
    assert!(matches!(result, Err(Error::Application(_))));
    assert_eq!(count(&bench), 0);
    assert_eq!(bench.cluster.locks(), 0);
}

/// So that nobody is overtaken for ever.
#[test]
fn a_transaction_that_is_begun_again_waits_as_the_first_attempt_did() {
    let bench = Bench::with(Options {
        retry_for: Duration::from_secs(5),
        ..Options::default()
    });
    let (_network, other) = bench.other();
    let attempts = Mutex::new(Vec::new());
    let result = bench.run(bench.client.transact(|txn| {
        attempts.lock().push(txn.start_ts().as_u64());
        let other = &other;
        async move {
            increment(txn).await?;
            increment_once(other).await.0
        }
    }));
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
    let log = bench.network.log().into_iter();
    let waiters = log.filter_map(|sent| match sent.body {
        Some(Ask::WaitForCell(wait)) => Some(wait.waiter),
        _ => None,
    });
    let waiters: Vec<u64> = waiters.collect();
    let first = attempts.lock()[0];
    assert!(waiters.len() > 1, "{waiters:?}");
    assert!(
        waiters.iter().all(|it| *it == first),
        "{waiters:?}, and {first}"
    );
}
