//! Commits while servers fall silent, readers come in between, locks grow old, and callers go away.

use std::time::Duration;

use futures_util::future::{Either, join, select};
use percolator_client::{Client, Error, Options};

use crate::cluster::{SERVERS, TABLE, cell};
use crate::faults::BEYOND_TTL;
use crate::network::{Fault, Kind, Sent};
use crate::outcome::{Bench, Class, Ended, new, old, put_all};

/// What the transactions write, with all cells on one server, and on two.
const ROWS: [&[&str]; 3] = [&["a"], &["a", "b", "q"], &["a", "k", "q"]];
/// More than the messages of a commit.
const MESSAGES: usize = 14;

fn begin_and_commit(bench: &Bench, rows: &'static [&'static str]) -> Option<Ended> {
    let txn = bench.run(bench.client.begin()).ok()?;
    let start_ts = txn.start_ts();
    put_all(&txn, rows, new);
    let result = bench.run(txn.commit());
    Some(Ended {
        start_ts,
        rows: rows.to_vec(),
        result,
    })
}

#[test]
fn silence_from_any_message_on_is_reported_truly() {
    let faults = [
        Fault::Silence,
        Fault::SilentlyDone,
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::NeverSent,
        Fault::Late(BEYOND_TTL),
        Fault::DoneAndFailed,
    ];
    let mut classes = Vec::new();
    for rows in ROWS {
        // The oracle and the master have an empty address.
        for address in [Some(SERVERS[0]), Some(SERVERS[1]), Some(""), None] {
            for fault in &faults {
                for at in 0..MESSAGES {
                    let bench = Bench::new();
                    bench.fill(rows);
                    let fault = fault.clone();
                    bench.network.script(move |sent| {
                        let is_silent = address.is_none_or(|address| sent.address == address);
                        (sent.number >= at && is_silent).then(|| fault.clone())
                    });
                    let ended = begin_and_commit(&bench, rows);
                    classes.extend(ended.map(|ended| bench.check(&ended)));
                }
            }
        }
    }
    for class in [Class::Committed, Class::Aborted, Class::Unknown] {
        let seen = classes.iter().filter(|seen| **seen == class).count();
        assert!(seen > 20, "{class:?} is seen {seen} times");
    }
}

#[test]
fn a_commit_whose_caller_goes_away_is_done_or_undone() {
    let mut done = 0;
    for rows in ROWS {
        for at in 2..MESSAGES {
            let bench = Bench::new();
            bench.fill(rows);
            let txn = bench.run(bench.client.begin()).expect("it begins");
            put_all(&txn, rows, new);
            bench.run(async {
                let goes_away = async {
                    while bench.network.log().len() <= at {
                        bench.sleep(Duration::from_micros(100)).await;
                        if bench.cluster.now_ms() > 60_000 {
                            return;
                        }
                    }
                };
                if let Either::Left((result, _)) =
                    select(Box::pin(txn.commit()), Box::pin(goes_away)).await
                {
                    result.expect("nothing goes wrong");
                }
                bench.client.settle().await;
            });
            assert_eq!(bench.cluster.locks(), 0);
            let value = |row: &&str| bench.cluster.value(&cell(row));
            let values: Vec<_> = rows.iter().map(value).collect();
            let is_done = values[0] == Some(new(rows[0]));
            done += usize::from(is_done);
            let expected = |row: &&str| Some(if is_done { new(row) } else { old(row) });
            let expected: Vec<_> = rows.iter().map(expected).collect();
            assert_eq!(values, expected, "at message {at}");
        }
    }
    assert!((5..3 * MESSAGES - 10).contains(&done), "{done} were done");
}

/// Reads all rows at one snapshot: whether they are the new ones, and the snapshot.
async fn read_all(client: &Client, rows: &[&'static str]) -> Result<(bool, u64), Error> {
    let txn = client.begin().await?;
    let names: Vec<_> = rows
        .iter()
        .map(|row| (TABLE, row.as_bytes(), &b"c"[..]))
        .collect();
    let values = txn.batch_get(&names).await?;
    let is_new = values[0] == Some(new(rows[0]));
    let expected = |row: &&str| Some(if is_new { new(row) } else { old(row) });
    let expected: Vec<_> = rows.iter().map(expected).collect();
    assert_eq!(values, expected, "half of a transaction is seen");
    Ok((is_new, txn.start_ts().as_u64()))
}

/// Commits with this script, while another client reads from `first` on, every `every`.
fn with_a_reader(
    rows: &'static [&'static str],
    script: impl Fn(&Sent) -> Option<Fault> + Send + Sync + 'static,
    first: Duration,
    every: Duration,
) -> Class {
    let bench = Bench::new();
    bench.fill(rows);
    let (_network, reader) = bench.other();
    bench.network.script(script);
    let txn = bench.run(bench.client.begin()).expect("it begins");
    let start_ts = txn.start_ts();
    put_all(&txn, rows, new);
    let mut seen = Vec::new();
    let read = async {
        bench.sleep(first).await;
        for _ in 0..20 {
            seen.push(
                read_all(&reader, rows)
                    .await
                    .expect("nothing is in its way"),
            );
            bench.sleep(every).await;
        }
    };
    let (result, ()) = bench.run(join(txn.commit(), read));
    for (is_new, snapshot) in seen {
        match &result {
            Ok(commit_ts) => assert_eq!(is_new, snapshot >= commit_ts.as_u64()),
            Err(Error::Unknown { .. }) => {}
            Err(error) => assert!(!is_new, "{error}"),
        }
    }
    bench.check(&Ended {
        start_ts,
        rows: rows.to_vec(),
        result,
    })
}

#[test]
fn readers_in_between_see_all_or_nothing_and_delay_a_commit_only() {
    for rows in ROWS {
        for at in 1..MESSAGES {
            for time_ms in [0, 7, 60] {
                let slow = Fault::SlowRequest(Duration::from_millis(time_ms));
                let class = with_a_reader(
                    rows,
                    move |sent| (sent.number == at).then(|| slow.clone()),
                    Duration::ZERO,
                    Duration::from_millis(3),
                );
                assert_eq!(class, Class::Committed, "message {at}, {time_ms} ms");
            }
        }
    }
}

#[test]
fn a_transaction_that_renews_its_locks_outlives_their_ttl() {
    let mut outlived = 0;
    for at in 2..MESSAGES {
        for fault in [
            Fault::SlowRequest(BEYOND_TTL),
            Fault::SlowAnswer(BEYOND_TTL),
        ] {
            let rows = ROWS[2];
            let slow = move |sent: &Sent| {
                let is_it = sent.number == at
                    && matches!(sent.kind, Kind::Timestamp | Kind::Commit | Kind::Session);
                is_it.then(|| fault.clone())
            };
            let (first, every) = (Duration::from_secs(4), Duration::from_millis(50));
            let class = with_a_reader(rows, slow, first, every);
            assert_eq!(class, Class::Committed, "message {at}");
            outlived += 1;
        }
    }
    assert!(outlived > 10);
}

#[test]
fn a_transaction_whose_locks_grew_too_old_is_rolled_back_or_committed_as_it_says() {
    let mut classes = Vec::new();
    for rows in ROWS {
        for at in 2..MESSAGES {
            for fault in [
                Fault::SlowRequest(BEYOND_TTL),
                Fault::SlowAnswer(BEYOND_TTL),
            ] {
                let slow = move |sent: &Sent| match sent.kind {
                    Kind::KeepAlive => Some(Fault::LoseRequest),
                    _ => (sent.number == at).then(|| fault.clone()),
                };
                let (first, every) = (Duration::from_secs(4), Duration::from_millis(50));
                classes.push(with_a_reader(rows, slow, first, every));
            }
        }
    }
    assert!(classes.contains(&Class::Aborted));
    assert!(classes.contains(&Class::Committed));
}

#[test]
fn a_server_that_starts_again_is_asked_for_two_phases() {
    let bench = Bench::new();
    bench.fill(ROWS[1]);
    let txn = bench.run(bench.client.begin()).expect("it begins");
    let start_ts = txn.start_ts();
    put_all(&txn, ROWS[1], new);
    let commit = txn.commit();
    // Behind its answer about the tables, which names the server's start.
    let restart = async {
        while bench.network.count(Kind::Locate) == 0 {
            bench.sleep(Duration::from_micros(100)).await;
        }
        bench.sleep(Duration::from_micros(2_500)).await;
        bench.cluster.restart(SERVERS[0]);
    };
    let (result, ()) = bench.run(join(commit, restart));
    assert_eq!(bench.network.count(Kind::OnePhase), 1);
    assert_eq!(bench.network.count(Kind::Commit), 2);
    // The next one knows the new start, and needs one request.
    let next = bench.run(bench.client.begin()).expect("it begins");
    put_all(&next, &["b2"], new);
    bench.run(next.commit()).expect("nothing is in its way");
    assert_eq!(bench.network.count(Kind::OnePhase), 2);
    assert_eq!(bench.network.count(Kind::Commit), 2);
    let rows = ROWS[1].to_vec();
    let class = bench.check(&Ended {
        start_ts,
        rows,
        result,
    });
    assert_eq!(class, Class::Committed);
}

#[test]
fn locks_are_renewed_three_times_in_a_ttl_for_as_long_as_it_takes() {
    let bench = Bench::with(Options {
        request_timeout: Duration::from_secs(20),
        ..Options::default()
    });
    bench.fill(ROWS[2]);
    // The commit_ts takes 12 s.
    bench.network.script(|sent| {
        let is_it = sent.kind == Kind::Timestamp && sent.nth > 1;
        is_it.then_some(Fault::SlowRequest(Duration::from_secs(12)))
    });
    let ended = begin_and_commit(&bench, ROWS[2]).expect("it begins");
    let kept = bench.network.log().into_iter();
    let kept: Vec<_> = kept.filter(|sent| sent.kind == Kind::KeepAlive).collect();
    assert!((11..=13).contains(&kept.len()), "{}", kept.len());
    for pair in kept.windows(2) {
        let between = pair[1].at - pair[0].at;
        assert!(between <= Duration::from_millis(1_010), "{between:?}");
    }
    assert_eq!(bench.check(&ended), Class::Committed);
}
