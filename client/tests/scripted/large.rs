//! Large transactions: flushes in any order, cells that are written again, and every fault at every message.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use percolator_client::{Client, Error, Options, Range, Timestamp, Txn};
use percolator_protocol::actions::Status;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind as Refused;

use crate::cluster::{TABLE, cell};
use crate::faults::{BEYOND_TTL, busy, failed, harmful, not_served};
use crate::network::{Fault, Kind, Sent};
use crate::outcome::{Bench, Class};

/// Rows of all three tablets; the first is the primary.
const ROWS: [&str; 12] = [
    "a0", "a1", "a2", "a3", "k0", "k1", "k2", "k3", "q0", "q1", "q2", "q3",
];
/// How often each row is written.
const ROUNDS: usize = 3;

type Values = BTreeMap<&'static str, Option<Bytes>>;

fn olds() -> Values {
    ROWS.map(|row| (row, Some(Bytes::from(format!("old-{row}")))))
        .into()
}

/// Some four cells in a flush.
fn small_flushes() -> Options {
    Options {
        buffer_bytes: 600,
        ..Options::default()
    }
}

fn fill(bench: &Bench) {
    let (_network, client) = bench.other();
    bench.run(async {
        let txn = client.begin().await.expect("it begins");
        for (row, value) in olds() {
            txn.put(TABLE, row, "c", value.expect("one"))
                .expect("it is kept");
        }
        txn.commit().await.expect("it commits");
        client.settle().await;
    });
}

async fn expect_own(txn: &Txn, values: &Values) -> Result<(), Error> {
    let names = ROWS.map(|row| (TABLE, row.as_bytes(), &b"c"[..]));
    let read = txn.batch_get(&names).await?;
    let expected: Vec<_> = ROWS.iter().map(|row| values[row].clone()).collect();
    assert_eq!(read, expected, "own writes are not read");
    let one = txn.get(TABLE, ROWS[5], "c").await?;
    assert_eq!(one, values[ROWS[5]], "an own write is not read");
    let scanned = txn
        .scan(TABLE, Range::rows("a", "r"))
        .await?
        .collect()
        .await?;
    let expected: Vec<_> = values
        .iter()
        .filter_map(|(row, value)| Some((Bytes::from_static(row.as_bytes()), value.clone()?)))
        .collect();
    let scanned: Vec<_> = scanned
        .into_iter()
        .map(|cell| (cell.row, cell.value))
        .collect();
    assert_eq!(scanned, expected, "own writes are not scanned");
    Ok(())
}

/// Writes every row in each round, deletes some between, reads what it wrote, and commits. `wait`: for room.
async fn write_all(txn: Txn, values: &mut Values, wait: bool) -> Result<Timestamp, Error> {
    for round in 0..ROUNDS {
        for (number, row) in ROWS.into_iter().enumerate() {
            if wait {
                txn.ready().await?;
            }
            if (number + round) % 5 == 4 {
                txn.delete(TABLE, row, "c")?;
                values.insert(row, None);
            } else {
                let value = Bytes::from(format!("{round}-{row}"));
                txn.put(TABLE, row, "c", value.clone())?;
                values.insert(row, Some(value));
            }
            if number == 7 {
                expect_own(&txn, values).await?;
            }
        }
    }
    txn.commit().await
}

struct Ended {
    start_ts: Timestamp,
    values: Values,
    result: Result<Timestamp, Error>,
}

/// Runs it with this script.
fn run(
    options: Options,
    wait: bool,
    script: impl Fn(&Sent) -> Option<Fault> + Send + Sync + 'static,
) -> (Bench, Option<Ended>) {
    let bench = Bench::with(options);
    fill(&bench);
    bench.network.script(script);
    let Ok(txn) = bench.run(bench.client.begin()) else {
        return (bench, None);
    };
    let start_ts = txn.start_ts();
    let mut values = olds();
    let result = bench.run(write_all(txn, &mut values, wait));
    let ended = Ended {
        start_ts,
        values,
        result,
    };
    (bench, Some(ended))
}

/// Lets everything arrive and end, and compares the client's result with what the servers hold.
fn check(bench: &Bench, ended: Option<Ended>) -> Class {
    let Some(ended) = ended else {
        return Class::Aborted;
    };
    bench.network.heal();
    bench.run(bench.sleep(Duration::from_secs(90)));
    let value = |row| (row, bench.cluster.value(&cell(row)));
    let values: Values = ROWS.map(value).into();
    let is_committed = values == ended.values;
    let result = &ended.result;
    assert!(is_committed || values == olds(), "{result:?}: {values:?}");
    match result {
        Ok(commit_ts) => {
            assert!(is_committed, "{} is not committed", ended.start_ts);
            let status = bench.cluster.status(ended.start_ts, &cell(ROWS[0]));
            assert_eq!(status, Status::Committed(*commit_ts));
            Class::Committed
        }
        Err(Error::Unknown { .. }) => {
            assert!(bench.network.monitor.has_sent_commit(ended.start_ts));
            Class::Unknown
        }
        Err(error) => {
            assert!(!is_committed, "{} is committed: {error}", ended.start_ts);
            Class::Aborted
        }
    }
}

/// Those that are tried at each message.
fn gets_over() -> Vec<Fault> {
    vec![
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Late(Duration::from_millis(60)),
        Fault::Late(BEYOND_TTL),
        Fault::SlowAnswer(BEYOND_TTL),
        Fault::Twice(BEYOND_TTL),
        Fault::Refuse(not_served()),
        Fault::Refuse(busy()),
        Fault::Refuse(failed(false)),
        Fault::DoneAndFailed,
    ]
}

fn messages(options: Options) -> usize {
    let (bench, ended) = run(options, true, |_| None);
    let messages = bench.network.log().len();
    let flushes = bench
        .network
        .log()
        .into_iter()
        .filter_map(|sent| match sent.body {
            Some(Ask::Prewrite(prewrite)) => Some(prewrite.generation),
            _ => None,
        });
    assert!(flushes.max() > Some(4), "it is flushed in several parts");
    assert_eq!(check(&bench, ended), Class::Committed);
    assert_eq!(bench.cluster.locks(), 0);
    messages
}

#[test]
fn a_large_transaction_gets_over_every_harmless_fault() {
    for at in 0..messages(small_flushes()) {
        for fault in gets_over() {
            let name = format!("{fault:?} at {at}");
            let (bench, ended) = run(small_flushes(), true, move |sent| {
                (sent.number == at).then(|| fault.clone())
            });
            assert_eq!(check(&bench, ended), Class::Committed, "{name}");
            assert_eq!(bench.cluster.locks(), 0, "{name}");
        }
    }
}

#[test]
fn a_large_transaction_ends_as_it_says_with_every_harmful_fault() {
    let mut classes = Vec::new();
    for at in 0..messages(small_flushes()) {
        for fault in harmful() {
            let script = move |sent: &Sent| {
                let is_honest = sent.kind != Kind::CheckStatus && sent.kind != Kind::Resolve
                    || !matches!(fault, Fault::Refuse(Refused::TooOld(_)));
                (sent.number == at && is_honest).then(|| fault.clone())
            };
            let (bench, ended) = run(small_flushes(), true, script);
            classes.push(check(&bench, ended));
        }
    }
    for class in [Class::Committed, Class::Aborted, Class::Unknown] {
        assert!(classes.contains(&class), "{class:?}");
    }
}

#[test]
fn silence_from_any_message_on_is_reported_truly_of_a_large_transaction() {
    for fault in [Fault::Silence, Fault::LoseAnswer, Fault::LoseRequest] {
        for at in 0..messages(small_flushes()) {
            let fault = fault.clone();
            let (bench, ended) = run(small_flushes(), true, move |sent| {
                (sent.number >= at).then(|| fault.clone())
            });
            check(&bench, ended);
        }
    }
}

#[test]
fn flushes_arrive_in_any_order() {
    for seed in 0..60_u64 {
        // Without waiting for room a flush is as large as what came meanwhile.
        for (wait, buffer_bytes) in [(true, 600), (false, 600), (true, 1)] {
            let options = Options {
                buffer_bytes,
                ..Options::default()
            };
            let script = move |sent: &Sent| {
                let number = sent.number as u64 + 1;
                let drawn = number
                    .wrapping_mul(seed * 2 + 1)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let time = Duration::from_millis((drawn >> 40) % 50);
                match (drawn >> 60, sent.kind) {
                    (0..2, _) => Some(Fault::SlowAnswer(time)),
                    (2..4, _) => Some(Fault::Late(time)),
                    (4..6, _) => Some(Fault::Twice(time)),
                    (_, Kind::Prewrite) => Some(Fault::SlowRequest(time)),
                    _ => None,
                }
            };
            let (bench, ended) = run(options, wait, script);
            assert_eq!(check(&bench, ended), Class::Committed, "seed {seed}");
        }
    }
}

/// Writes so much that something is flushed.
async fn write_much(client: &Client, rows: &[&'static str]) -> Txn {
    let txn = client.begin().await.expect("it begins");
    for row in rows {
        txn.put(TABLE, row, "c", "much").expect("it is kept");
        txn.ready().await.expect("nothing is in its way");
    }
    txn
}

/// The client keeps rows that were read as a whole.
#[test]
fn a_row_that_was_read_before_shows_what_was_flushed_over_it() {
    let bench = Bench::with(small_flushes());
    fill(&bench);
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        for (column, value) in [("c", olds()[ROWS[0]].clone()), ("d", None)] {
            let read = txn.get(TABLE, ROWS[0], column).await.expect("an answer");
            assert_eq!(read, value);
        }
        for row in ROWS {
            txn.put(TABLE, row, "c", "much").expect("it is kept");
            txn.ready().await.expect("nothing is in its way");
        }
        let read = txn.get(TABLE, ROWS[0], "c").await.expect("an answer");
        assert_eq!(read.as_deref(), Some(&b"much"[..]));
        txn.commit().await.expect("it commits");
    });
}

#[test]
fn a_large_transaction_lives_as_long_as_its_client_renews_its_primary() {
    let bench = Bench::with(small_flushes());
    fill(&bench);
    let (_network, reader) = bench.other();
    // Renewals are lost for some seconds; one that is sent again has to count from then.
    bench.network.script(|sent| {
        let lost = Duration::from_secs(6)..Duration::from_millis(6_900);
        let is_it = sent.kind == Kind::KeepAlive && lost.contains(&sent.at);
        is_it.then_some(Fault::LoseRequest)
    });
    bench.run(async {
        let txn = write_much(&bench.client, &ROWS).await;
        for _ in 0..200 {
            bench.sleep(Duration::from_millis(100)).await;
            let read = reader.begin().await.expect("it begins");
            let value = read.get(TABLE, ROWS[0], "c").await.expect("an answer");
            assert_eq!(value, olds()[ROWS[0]]);
        }
        txn.commit().await.expect("its client was alive");
    });
}

#[test]
fn a_large_transaction_that_is_rolled_back_by_others_fails_at_its_next_call() {
    for (lost, expected) in [(Fault::LoseRequest, true), (Fault::Silence, true)] {
        let bench = Bench::with(small_flushes());
        fill(&bench);
        let (_network, reader) = bench.other();
        bench.network.script(move |sent| {
            let is_it = sent.kind == Kind::KeepAlive && sent.at < Duration::from_secs(8);
            is_it.then(|| lost.clone())
        });
        let error = bench.run(async {
            let txn = write_much(&bench.client, &ROWS).await;
            bench.sleep(Duration::from_secs(5)).await;
            let read = reader.begin().await.expect("it begins");
            let value = read.get(TABLE, ROWS[0], "c").await.expect("an answer");
            assert_eq!(value, olds()[ROWS[0]]);
            bench.sleep(Duration::from_secs(15)).await;
            txn.put(TABLE, ROWS[1], "c", "late")
                .expect_err("it was rolled back")
        });
        assert_eq!(matches!(error, Error::Conflict(_)), expected, "{error}");
        bench.run(bench.client.settle());
        for row in ROWS {
            assert_eq!(bench.cluster.value(&cell(row)), olds()[row]);
        }
    }
}

#[test]
fn what_was_flushed_goes_with_a_transaction_that_is_given_up() {
    for is_dropped in [true, false] {
        let bench = Bench::with(small_flushes());
        fill(&bench);
        bench.run(async {
            let txn = write_much(&bench.client, &ROWS).await;
            bench.sleep(Duration::from_millis(500)).await;
            assert!(bench.cluster.locks() > 4);
            if is_dropped {
                drop(txn);
            } else {
                txn.rollback();
            }
            bench.sleep(Duration::from_secs(5)).await;
            bench.client.settle().await;
        });
        assert_eq!(bench.cluster.locks(), 0);
        for row in ROWS {
            assert_eq!(bench.cluster.value(&cell(row)), olds()[row]);
        }
    }
}

/// Cells of one flush that takes many rounds of requests.
const MANY: usize = 3_000;
/// Requests of a flush that are under way at a time, and some more that are sent until the first is answered.
const FEW_REQUESTS: usize = 30;

/// Writes so much at once that it is flushed together.
async fn write_many(client: &Client) -> Txn {
    let txn = client.begin().await.expect("it begins");
    put_many(&txn);
    txn
}

fn put_many(txn: &Txn) {
    for row in 0..MANY {
        txn.put(TABLE, format!("k{row:04}"), "c", "much")
            .expect("it is kept");
    }
}

#[test]
fn a_flush_ends_with_the_first_conflict() {
    let bench = Bench::with(small_flushes());
    let (_network, other) = bench.other();
    let error = bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        let first = other.begin().await.expect("it begins");
        first.put(TABLE, "k0000", "c", "first").expect("it is kept");
        first.commit().await.expect("it commits");
        put_many(&txn);
        txn.commit().await.expect_err("another one was first")
    });
    assert!(matches!(error, Error::Conflict(_)), "{error}");
    bench.run(bench.client.settle());
    let sent = bench.network.count(Kind::Prewrite);
    assert!(sent <= FEW_REQUESTS, "{sent} requests");
    assert_eq!(bench.cluster.locks(), 0);
}

#[test]
fn a_flush_to_a_server_that_is_away_is_given_up_in_time() {
    let options = small_flushes();
    let bench = Bench::with(options);
    bench.network.script(|sent| {
        let is_it = sent.kind == Kind::Prewrite;
        is_it.then_some(Fault::Silence)
    });
    let took = bench.run(async {
        let txn = write_many(&bench.client).await;
        let began = bench.cluster.world.now();
        txn.commit().await.expect_err("nobody answers");
        bench.cluster.world.now() - began
    });
    let most = options.request_timeout * 2;
    assert!(took < most, "{took:?} of {most:?}");
}

#[test]
fn a_flush_that_nobody_waits_for_ends() {
    let bench = Bench::with(small_flushes());
    bench.run(async {
        let txn = write_many(&bench.client).await;
        let commit = Box::pin(txn.commit());
        let gone = Box::pin(bench.sleep(Duration::from_millis(3)));
        futures_util::future::select(commit, gone).await;
        bench.sleep(Duration::from_secs(5)).await;
        bench.client.settle().await;
    });
    let sent = bench.network.count(Kind::Prewrite);
    assert!(sent <= FEW_REQUESTS, "{sent} requests");
    assert_eq!(bench.cluster.locks(), 0);
}

#[test]
fn a_reader_that_meets_one_lock_of_a_large_transaction_clears_its_tablet() {
    for is_committed in [true, false] {
        let bench = Bench::with(small_flushes());
        fill(&bench);
        let (network, reader) = bench.other();
        network.page(2);
        // The client dies behind the commit of its primary, or before.
        bench.network.script(move |sent| match sent.kind {
            Kind::Resolve => Some(Fault::Silence),
            Kind::Commit if !is_committed => Some(Fault::Silence),
            _ => None,
        });
        bench.run(async {
            let txn = write_much(&bench.client, &ROWS).await;
            let commit = Box::pin(txn.commit());
            let dies = Box::pin(bench.sleep(Duration::from_millis(500)));
            futures_util::future::select(commit, dies).await;
            bench.network.script(|_| Some(Fault::Silence));
            bench.sleep(Duration::from_secs(5)).await;
            assert!(bench.cluster.locks() >= 8, "locks are left");
            let read = reader.begin().await.expect("it begins");
            for row in ["a1", "k1", "q1"] {
                let value = read.get(TABLE, row, "c").await.expect("an answer");
                let much = Some(Bytes::from("much"));
                let expected = if is_committed {
                    much
                } else {
                    olds()[row].clone()
                };
                assert_eq!(value, expected, "{row}");
            }
            bench.sleep(Duration::from_secs(5)).await;
        });
        assert_eq!(bench.cluster.locks(), 0, "others were behind it");
        assert!(network.count(Kind::Resolve) >= 4, "in pieces");
    }
}
