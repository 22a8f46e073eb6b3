//! Reads past locks of every kind, with every fault at every message.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::{Error, Range, Timestamp, Txn};
use percolator_wire::v1::request_error::Kind as Refused;

use crate::cluster::TABLE;
use crate::faults::{harmful, harmless_to_reads};
use crate::network::{Fault, Kind, Sent};
use crate::outcome::{Bench, new, old, put_all};

/// What is read: the primary of the other transaction is none of them, or the first, or the second.
const READ: [&str; 3] = ["a", "k", "q"];
/// The other transaction commits, or gives up, after this.
const ENDS_AFTER: Duration = Duration::from_secs(8);

/// The transaction whose locks are in the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum InTheWay {
    /// Its primary is committed, and its client died.
    Committed,
    /// Its client died before the commit, and its ttl is over.
    Dead,
    /// Its client is alive, and commits later.
    Alive,
    /// Its client died just now, so that its ttl is not over.
    JustDead,
}

/// The result of a commit, once there is one.
pub(crate) type CommitEnd = Arc<Mutex<Option<Result<Timestamp, Error>>>>;

/// A transaction that writes new values to these rows, and how its commit ends.
pub(crate) fn leave_locks(bench: &Bench, how: InTheWay, rows: &[&'static str]) -> CommitEnd {
    let (network, client) = bench.other();
    let (silent, nth) = match how {
        InTheWay::Committed => (Kind::Commit, 1),
        _ => (Kind::Timestamp, 2),
    };
    network.script(move |sent| {
        let is_it = sent.kind == silent && sent.nth >= nth;
        let fault = match how {
            InTheWay::Alive => Fault::SlowRequest(ENDS_AFTER),
            _ => Fault::Silence,
        };
        is_it.then_some(fault)
    });
    let ended = CommitEnd::default();
    let txn = bench.run(client.begin()).expect("it begins");
    put_all(&txn, rows, new);
    let (end, commit) = (ended.clone(), txn.commit());
    let commit = async move {
        let result = commit.await;
        *end.lock() = Some(result);
    };
    bench.cluster.world.spawn(commit.boxed());
    bench.run(bench.sleep(Duration::from_millis(50)));
    match how {
        InTheWay::Alive => {}
        InTheWay::Committed | InTheWay::JustDead => network.script(|_| Some(Fault::Silence)),
        InTheWay::Dead => {
            network.script(|_| Some(Fault::Silence));
            bench.run(bench.sleep(Duration::from_secs(5)));
        }
    }
    ended
}

/// How the rows are read.
#[derive(Clone, Copy, Debug)]
enum How {
    OneByOne,
    AtOnce,
    Scan,
    ScanReverse,
    /// The second cell of a row is read with all of them.
    WholeRows,
}

const HOW: [How; 5] = [
    How::OneByOne,
    How::AtOnce,
    How::Scan,
    How::ScanReverse,
    How::WholeRows,
];

async fn read(txn: &Txn, how: How) -> Result<Vec<Option<Bytes>>, Error> {
    let mut values = Vec::new();
    match how {
        How::OneByOne => {
            for row in READ {
                values.push(txn.get(TABLE, row, "c").await?);
            }
        }
        How::AtOnce => {
            let names = READ.map(|row| (TABLE, row.as_bytes(), &b"c"[..]));
            values = txn.batch_get(&names).await?;
        }
        How::Scan | How::ScanReverse => {
            let range = match how {
                How::Scan => Range::rows("a", "r"),
                _ => Range::rows("a", "r").reverse(),
            };
            let mut cells = txn.scan(TABLE, range).await?.collect().await?;
            if matches!(how, How::ScanReverse) {
                cells.reverse();
            }
            let rows: Vec<_> = cells.iter().map(|cell| cell.row.clone()).collect();
            assert_eq!(rows, READ, "a scan returns other rows");
            values = cells.into_iter().map(|cell| Some(cell.value)).collect();
        }
        How::WholeRows => {
            for row in READ {
                assert_eq!(txn.get(TABLE, row, "b").await?, None);
                values.push(txn.get(TABLE, row, "c").await?);
            }
        }
    }
    Ok(values)
}

/// What is read has to be old, or new, all of it.
fn expected(is_new: bool) -> Vec<Option<Bytes>> {
    let value = |row| if is_new { new(row) } else { old(row) };
    READ.map(|row| Some(value(row))).to_vec()
}

struct Case {
    in_the_way: InTheWay,
    /// The first is the primary.
    rows: &'static [&'static str],
    how: How,
}

/// Reads with this fault at this message. Its result, and the message.
fn run(case: &Case, at: usize, fault: Option<&Fault>) -> (Bench, Option<Sent>, bool) {
    let bench = Bench::new();
    bench.fill(&["5", "a", "k", "q"]);
    let ended = leave_locks(&bench, case.in_the_way, case.rows);
    let fault = fault.cloned();
    bench.network.script(move |sent| {
        let is_honest = sent.kind != Kind::CheckStatus
            || !matches!(fault, Some(Fault::Refuse(Refused::TooOld(_))));
        fault.clone().filter(|_| sent.number == at && is_honest)
    });
    let is_new = case.in_the_way == InTheWay::Committed;
    let Ok(txn) = bench.run(bench.client.begin()) else {
        return (bench, None, false);
    };
    let result = bench.run(read(&txn, case.how));
    let sent = bench.network.log().get(at).cloned();
    let is_read = result.is_ok();
    if let Ok(values) = result {
        // A transaction that was begun behind the other one's end sees that.
        let is_late = ended.lock().is_some();
        if !is_late {
            assert_eq!(values, expected(is_new), "{fault_at:?}", fault_at = sent);
        }
        bench.network.heal();
        bench.run(bench.sleep(ENDS_AFTER * 3));
        let again = bench
            .run(read(&txn, How::AtOnce))
            .expect("nothing is in its way");
        assert_eq!(again, values, "a snapshot changes");
    }
    if case.in_the_way == InTheWay::Alive {
        bench.run(bench.sleep(ENDS_AFTER * 3));
        let ended = ended.lock().take().expect("it has ended");
        ended.expect("its client was alive");
        let txn = bench.run(bench.client.begin()).expect("it begins");
        let values = bench
            .run(read(&txn, How::AtOnce))
            .expect("nothing is in its way");
        let value = |row| {
            Some(if case.rows.contains(&row) {
                new(row)
            } else {
                old(row)
            })
        };
        assert_eq!(values, READ.map(value));
    }
    (bench, sent, is_read)
}

fn every_message(case: &Case, faults: &[Fault], expect: impl Fn(&Sent, &Fault, bool)) {
    let messages = {
        let (bench, _, is_read) = run(case, usize::MAX, None);
        assert!(is_read);
        bench.network.log().len().min(16)
    };
    for at in 0..messages {
        for fault in faults {
            let (bench, sent, is_read) = run(case, at, Some(fault));
            if let Some(sent) = sent {
                expect(&sent, fault, is_read);
            }
            let to_tablets = bench.network.log().into_iter();
            let requests = to_tablets.filter(|sent| sent.body.is_some()).count();
            assert!(requests < 200, "{requests} requests for {at} {fault:?}");
        }
    }
}

/// The other transaction writes all that is read, or its primary lies elsewhere.
const ROWS: [&[&str]; 2] = [&["a", "k", "q"], &["5", "a", "k", "q"]];

fn cases() -> impl Iterator<Item = Case> {
    use InTheWay::{Alive, Committed, Dead, JustDead};
    let in_the_way = [Committed, Dead, Alive, JustDead];
    let cases = in_the_way
        .into_iter()
        .enumerate()
        .flat_map(|(nth, in_the_way)| {
            HOW.into_iter().enumerate().map(move |(at, how)| Case {
                in_the_way,
                rows: ROWS[(nth + at) % 2],
                how,
            })
        });
    cases.collect::<Vec<_>>().into_iter()
}

#[test]
fn a_read_gets_over_every_harmless_fault() {
    for case in cases() {
        every_message(&case, &harmless_to_reads(), |sent, fault, is_read| {
            let Case {
                in_the_way, how, ..
            } = case;
            assert!(is_read, "{in_the_way:?}, {how:?}: {fault:?} at {sent:?}");
        });
    }
}

#[test]
fn a_read_is_right_or_an_error_with_every_harmful_fault() {
    for case in cases() {
        every_message(&case, &harmful(), |_, _, _| {});
    }
}

#[test]
fn a_scan_goes_on_behind_the_cells_before_a_lock() {
    const ALL: [&str; 6] = ["a", "b", "c", "d", "e", "q"];
    for in_the_way in [InTheWay::Committed, InTheWay::Dead, InTheWay::Alive] {
        for reverse in [false, true] {
            let bench = Bench::new();
            bench.fill(&ALL);
            // Cells of the same tablet lie before the lock, in both directions.
            leave_locks(&bench, in_the_way, &["5", "c", "k"]);
            let range = Range::rows("a", "z");
            let range = if reverse { range.reverse() } else { range };
            let cells = bench.run(async {
                let txn = bench.client.begin().await.expect("it begins");
                let scan = txn.scan(TABLE, range).await.expect("it begins");
                scan.collect().await.expect("an answer")
            });
            let mut rows: Vec<_> = cells.into_iter().map(|cell| cell.row).collect();
            if reverse {
                rows.reverse();
            }
            let mut expected = ALL.to_vec();
            if in_the_way == InTheWay::Committed {
                expected.insert(5, "k");
            }
            assert_eq!(rows, expected, "{in_the_way:?}");
        }
    }
}
