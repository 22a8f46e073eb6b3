//! Histories in a short form, and what a check of them has to say.

use percolator_history::{Kind, Op, Outcome, Times, Transaction, check};

/// `"t1 5-7: rx1 wy2"`: t1 began at 5 and committed at 7, read x as 1 and wrote y as 2. `_` is nothing.
/// Without times: `"t1: rx1"`. `!` behind the name: aborted; `?`: unknown. `"t1 5-7 @100-200: rx1"`: it was asked
/// for after 100 microseconds, and answered before 200; `@100-`: it wasn't answered.
pub(crate) fn history(lines: &[&str]) -> Vec<Transaction> {
    lines.iter().map(|line| transaction(line)).collect()
}

fn transaction(line: &str) -> Transaction {
    let (head, ops) = line.split_once(':').expect("a colon");
    let (head, clock) = head.split_once('@').unwrap_or((head, ""));
    let head = head.trim_end();
    let (began_us, ended_us) = clock.split_once('-').unwrap_or((clock, ""));
    let (name, times) = head.split_once(' ').unwrap_or((head, ""));
    let outcome = match name.chars().last() {
        Some('!') => Outcome::Aborted,
        Some('?') => Outcome::Unknown,
        _ => Outcome::Committed,
    };
    let (start_ts, commit_ts) = times.split_once('-').unwrap_or((times, ""));
    let value = |text: &str| (text != "_").then(|| text.to_owned());
    Transaction {
        client: name.trim_end_matches(['!', '?']).to_owned(),
        start_ts: start_ts.parse().ok(),
        commit_ts: commit_ts.parse().ok(),
        outcome,
        times: began_us.parse().ok().map(|began_us| Times {
            clock: "c".to_owned(),
            began_us: Some(began_us),
            ended_us: ended_us.parse().ok(),
        }),
        ops: ops
            .split_whitespace()
            .map(|op| match op.split_at(1) {
                ("r", rest) => Op::Read(rest[..1].to_owned(), value(&rest[1..])),
                ("w", rest) => Op::Write(rest[..1].to_owned(), value(&rest[1..])),
                (_, rest) => Op::Lock(rest.to_owned()),
            })
            .collect(),
    }
}

#[track_caller]
pub(crate) fn found(lines: &[&str], kind: Kind, parts: &[&str]) {
    let anomaly = check(&history(lines)).anomaly.expect("an anomaly");
    assert_eq!(anomaly.kind, kind, "{anomaly}");
    for part in parts {
        assert!(anomaly.to_string().contains(part), "{anomaly}: no {part:?}");
    }
}

#[track_caller]
pub(crate) fn passes(lines: &[&str]) {
    let report = check(&history(lines));
    assert_eq!(report.anomaly, None);
    assert_eq!(report.ambiguous_reads, 0);
}
