//! Histories of large transactions: each takes seconds, and minutes where a transaction's size counted twice.

use percolator_history::{Op, Outcome, Transaction, check};

const CELLS: usize = 50_000;

fn transaction(number: usize, is_timed: bool, ops: Vec<Op>) -> Transaction {
    let ts = 10 * number as u64;
    let writes = ops.iter().any(|op| !matches!(op, Op::Read(..)));
    Transaction {
        client: format!("c{number}"),
        start_ts: is_timed.then_some(ts),
        commit_ts: (is_timed && writes).then_some(ts + 1),
        outcome: Outcome::Committed,
        times: None,
        ops,
    }
}

fn on_all<const OPS: usize>(ops: impl Fn(String) -> [Op; OPS]) -> Vec<Op> {
    (0..CELLS)
        .flat_map(|cell| ops(format!("c{cell}")))
        .collect()
}

fn value(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[track_caller]
fn passes(history: &[Transaction]) {
    let report = check(history);
    assert_eq!((report.anomaly, report.ambiguous_reads), (None, 0));
}

#[test]
fn all_cells_are_written_read_and_got_for_update_at_once() {
    for is_timed in [true, false] {
        passes(&[
            transaction(0, is_timed, on_all(|cell| [Op::Write(cell, value("1"))])),
            transaction(
                1,
                is_timed,
                on_all(|cell| [Op::Read(cell.clone(), value("1")), Op::Lock(cell)]),
            ),
            transaction(
                2,
                is_timed,
                on_all(|cell| {
                    [
                        Op::Read(cell.clone(), value("1")),
                        Op::Write(cell, value("2")),
                    ]
                }),
            ),
        ]);
    }
}

#[test]
fn many_read_from_one_that_wrote_all_cells() {
    for is_timed in [true, false] {
        let deleted = || "c0".to_owned();
        let mut history = vec![
            transaction(0, is_timed, on_all(|cell| [Op::Write(cell, value("1"))])),
            transaction(
                1,
                is_timed,
                vec![Op::Read(deleted(), value("1")), Op::Write(deleted(), None)],
            ),
        ];
        for number in 2..10_000 {
            let seen = format!("c{number}");
            let ops = vec![Op::Read(seen, value("1")), Op::Read(deleted(), None)];
            history.push(transaction(number, is_timed, ops));
        }
        passes(&history);
    }
}
