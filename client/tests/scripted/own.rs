//! Own writes before the commit: what is read of them, what a cell that is got for update promises, and what a scan that
//! is under way sees.

use std::time::Duration;

use bytes::Bytes;
use percolator_client::{Error, NotAdded, Options, Range, Txn};

use crate::cluster::{TABLE, cell};
use crate::network::{Fault, Kind};
use crate::outcome::{Bench, new, old, put_all};

const ROWS: [&str; 3] = ["a", "k", "q"];

/// What is written stays in memory, or each write is flushed.
fn options() -> [Options; 2] {
    [16 << 20, 1].map(|buffer_bytes| Options {
        buffer_bytes,
        ..Options::default()
    })
}

async fn get(txn: &Txn, row: &str) -> Option<Bytes> {
    txn.get(TABLE, row, "c").await.expect("an answer")
}

#[test]
fn a_cell_that_is_got_for_update_keeps_what_was_written_to_it() {
    for options in options() {
        let bench = Bench::with(options);
        bench.fill(&ROWS);
        bench.run(async {
            let txn = bench.client.begin().await.expect("it begins");
            put_all(&txn, &["a"], new);
            txn.delete(TABLE, "k", "c").expect("it is kept");
            for (row, expected) in [("a", Some(new("a"))), ("k", None), ("q", Some(old("q")))] {
                let got = txn.get_for_update(TABLE, row, "c").await;
                assert_eq!(got.expect("an answer"), expected, "{row}");
                assert_eq!(get(&txn, row).await, expected, "{row}");
            }
            txn.commit().await.expect("it commits");
        });
        let values = ROWS.map(|row| bench.cluster.value(&cell(row)));
        assert_eq!(values, [Some(new("a")), None, Some(old("q"))]);
    }
}

#[test]
fn a_cell_that_is_got_for_update_has_not_changed_at_the_commit() {
    for options in options() {
        let bench = Bench::with(options);
        bench.fill(&ROWS);
        let (_network, other) = bench.other();
        bench.run(async {
            let txn = bench.client.begin().await.expect("it begins");
            // The other one is first to commit, as nothing of this one is flushed.
            let first = other.begin().await.expect("it begins");
            put_all(&first, &["k"], new);
            first.commit().await.expect("it commits");
            let result = async {
                txn.get_for_update(TABLE, "k", "c").await?;
                txn.put(TABLE, "a", "c", "x")?;
                txn.commit().await
            };
            let error = result.await.expect_err("the cell was changed");
            assert!(matches!(error, Error::Conflict(_)), "{error}");
            bench.client.settle().await;
        });
        assert_eq!(bench.cluster.value(&cell("a")), Some(old("a")));
        assert_eq!(bench.cluster.locks(), 0);
    }
}

#[test]
fn a_write_is_read_while_its_flush_is_under_way() {
    let bench = Bench::with(Options {
        buffer_bytes: 1,
        ..Options::default()
    });
    bench.fill(&ROWS);
    // The first flush takes half a second; what is written meanwhile is newer.
    bench.network.script(|sent| {
        let is_it = sent.kind == Kind::Prewrite || sent.kind == Kind::OnePhase;
        is_it.then_some(Fault::SlowRequest(Duration::from_millis(500)))
    });
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        put_all(&txn, &["a", "k"], old);
        txn.put(TABLE, "a", "c", "newer").expect("it is kept");
        txn.delete(TABLE, "k", "c").expect("it is kept");
        for _ in 0..30 {
            assert_eq!(get(&txn, "a").await, Some("newer".into()));
            assert_eq!(get(&txn, "k").await, None);
            let scan = txn.scan(TABLE, Range::all()).await.expect("it begins");
            let cells = scan.collect().await.expect("an answer");
            let values: Vec<_> = cells.into_iter().map(|cell| cell.value).collect();
            assert_eq!(values, [Bytes::from("newer"), old("q")]);
            bench.sleep(Duration::from_millis(100)).await;
        }
        txn.commit().await.expect("it commits");
    });
    let values = ROWS.map(|row| bench.cluster.value(&cell(row)));
    assert_eq!(values, [Some("newer".into()), None, Some(old("q"))]);
}

#[test]
fn a_transaction_that_has_ended_takes_and_gives_nothing() {
    let bench = Bench::new();
    bench.fill(&ROWS);
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        let copy = txn.clone();
        put_all(&txn, &ROWS, new);
        txn.rollback();
        let put = copy.put(TABLE, "a", "c", "late");
        assert!(matches!(put, Err(Error::Ended)), "{put:?}");
        let got = copy.get(TABLE, "a", "c").await;
        assert!(matches!(got, Err(Error::Ended)), "{got:?}");
        let committed = copy.commit().await;
        assert!(matches!(committed, Err(Error::Ended)), "{committed:?}");
    });
    assert_eq!(bench.cluster.value(&cell("a")), Some(old("a")));
}

/// What was done to a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Put,
    Deleted,
    Locked,
}

impl Done {
    const ALL: [Self; 3] = [Self::Put, Self::Deleted, Self::Locked];

    fn to(self, txn: &Txn) {
        let done = match self {
            Self::Put => txn.put(TABLE, "a", "c", new("a")),
            Self::Deleted => txn.delete(TABLE, "a", "c"),
            Self::Locked => txn.lock(TABLE, "a", "c"),
        };
        done.expect("it is kept");
    }
}

/// What was flushed is at servers, and looked for nowhere: also where it is flushed while more is added.
#[test]
fn a_transaction_that_has_flushed_takes_no_participants_writes() {
    let bench = Bench::with(Options {
        buffer_bytes: 300,
        ..Options::default()
    });
    bench.fill(&ROWS);
    bench.run(async {
        let begun = async || bench.client.begin().await.expect("it begins");
        let joined = async |txn: &Txn, rows: &[&str]| {
            let joined = bench.client.join(txn.start_ts()).await;
            let joined = joined.expect("it joins");
            for row in rows {
                joined.put(TABLE, row, "c", new(row)).expect("it is kept");
            }
            joined.end_with_buffered().expect("it ends")
        };
        let txn = begun().await;
        let (one, other) = (
            joined(&txn, &["a", "q"]).await,
            joined(&txn, &["k", "q"]).await,
        );
        txn.add(one).expect("nothing was written before");
        let refused = txn.add(other).expect_err("two have written a cell");
        assert!(matches!(refused, NotAdded::Twice(..)), "{refused:?}");

        let txn = begun().await;
        let (one, other) = (
            joined(&txn, &["a", "k", "q"]).await,
            joined(&txn, &["k"]).await,
        );
        txn.add(one).expect("nothing was written before");
        let refused = txn.add(other).expect_err("two have written a cell");
        assert!(
            matches!(refused, NotAdded::Failed(Error::Invalid(_))),
            "{refused:?}"
        );
    });
}

/// Of two that have a cell, nobody's write is lost without a word: neither that of a participant, nor that of the client that commits.
#[test]
fn no_write_takes_the_place_of_that_of_another_one_that_shares_the_transaction() {
    for first in Done::ALL {
        for second in Done::ALL {
            for is_manager in [true, false] {
                let bench = Bench::with(Options::default());
                bench.fill(&ROWS);
                bench.run(async {
                    let txn = bench.client.begin().await.expect("it begins");
                    let join = async || {
                        let joined = bench.client.join(txn.start_ts()).await;
                        joined.expect("it joins")
                    };
                    if is_manager {
                        first.to(&txn);
                    } else {
                        let one = join().await;
                        first.to(&one);
                        let written = one.end_with_buffered().expect("it ends");
                        txn.add(written).expect("nobody else has it");
                    }
                    let other = join().await;
                    second.to(&other);
                    let written = other.end_with_buffered().expect("it ends");
                    match txn.add(written) {
                        Ok(()) => assert_eq!([first, second], [Done::Locked; 2]),
                        Err(NotAdded::Twice(table, row, column)) => {
                            assert_ne!([first, second], [Done::Locked; 2]);
                            assert_eq!((&*table, &*row, &*column), (TABLE, &b"a"[..], &b"c"[..]));
                        }
                        Err(error) => panic!("{first:?}, {second:?}: {error:?}"),
                    }
                });
            }
        }
    }
}
