//! Histories written by hand: each anomaly is found and named, and what snapshot isolation allows passes.

use crate::support::{found, history, passes};
use percolator_history::{Kind, Op, Outcome, Transaction, check, parse, write};

#[test]
fn dirty_writes_are_found() {
    // x in one order, y in the other.
    let lines = ["t1: rx_ wx1 ry2 wy3", "t2: rx1 wx4 ry_ wy2"];
    found(
        &lines,
        Kind::DirtyWrite,
        &[
            "t1 wrote x, and t2 wrote it next",
            "t2 wrote y, and t1 wrote it next",
        ],
    );
}

#[test]
fn reads_of_aborted_transactions_are_found() {
    found(
        &["t1!: wx1", "t2: rx1"],
        Kind::AbortedRead,
        &["t2 read x", "written by t1"],
    );
}

#[test]
fn intermediate_reads_are_found() {
    found(
        &["t1: wx1 wx2", "t2: rx1"],
        Kind::IntermediateRead,
        &["t2 read x", "written by t1"],
    );
}

/// Who reads a value and then writes the same has not read its own write.
#[test]
fn a_later_write_of_the_same_value_explains_no_read() {
    found(
        &["t1! 1: wx1", "t2 5-7: rx1 wx1"],
        Kind::AbortedRead,
        &["t2@5 read x", "written by t1@1"],
    );
    found(&["t1 5-7: rx1 wx1"], Kind::Invented, &["t1@5 read x"]);
    found(
        &["t1 1-2: wx1 wx2", "t2 5-7: rx1 wx1"],
        Kind::IntermediateRead,
        &["t2@5 read x", "written by t1@1"],
    );
    // Of another one that did the same, without and with timestamps.
    found(
        &["t1!: rx1 wx1", "t2: rx1 wx1"],
        Kind::AbortedRead,
        &["t2 read x", "written by t1"],
    );
    found(
        &["t1 1-2: wx1", "t2 3-4: wx2", "t3 5-7: rx1 wx1"],
        Kind::LostUpdate,
        &["t3@5 read x, and t2@3 wrote the next version"],
    );
    passes(&["t1 1-2: wx1", "t2 5-7: rx1 wx1 rx1", "t3 9: rx1"]);
    passes(&["t1: rx_ wx_ rx_", "t2: wx1", "t3: rx1"]);
}

#[test]
fn values_that_nobody_wrote_are_found() {
    found(
        &["t1: wx1", "t2: rx7"],
        Kind::Invented,
        &["t2 read x = \"7\""],
    );
}

#[test]
fn circles_of_information_are_found() {
    found(
        &["t1: wx1 ry2", "t2: rx1 wy2"],
        Kind::CircularInformationFlow,
        &[
            "t1 wrote x, and t2 read that",
            "t2 wrote y, and t1 read that",
        ],
    );
}

#[test]
fn lost_updates_are_found_with_and_without_times() {
    let clients_only = ["t0: wx1", "t1: rx1 wx2", "t2: rx1 wx3"];
    found(
        &clients_only,
        Kind::LostUpdate,
        &["t1 and t2 both read t0's version of x"],
    );
    found(
        &["t0 1-2: wx1", "t1 3-5: rx1 wx2", "t2 4-6: rx1 wx3"],
        Kind::Interference,
        &[
            "t1@3 wrote x, and t2@4 wrote it next",
            "5 is above the snapshot 4",
        ],
    );
}

#[test]
fn read_skew_is_found() {
    found(
        &["t0: wx1 wy1", "t1: rx1 ry1 wx2 wy2", "t2: rx1 ry2"],
        Kind::ReadSkew,
        &[
            "t0 wrote x, and t1 wrote it next",
            "t1 wrote x, and t0 a later version: t2 saw that, and something of t1",
        ],
    );
}

#[test]
fn a_long_fork_is_found() {
    found(
        &["t1: rx_ wx1", "t2: ry_ wy1", "t3: rx1 ry_", "t4: rx_ ry1"],
        Kind::LongFork,
        &[
            "t3 read y, and t2 wrote the next version",
            "t4 read x, and t1 wrote the next version",
        ],
    );
}

#[test]
fn what_was_never_there_was_so_before_every_writer() {
    // Blind writes, and no timestamps.
    found(
        &["t1: wx1", "t2: wy1", "t3: rx1 ry_", "t4: rx_ ry1"],
        Kind::LongFork,
        &["t3 read that y was not there, and t2 wrote it"],
    );
    found(
        &["t1: wx1 wy1", "t2: rx1 ry_"],
        Kind::ReadSkew,
        &["t2 read that y was not there, and t1 wrote it"],
    );
    // Not as the first: t2 read what t1 wrote.
    found(
        &["t1: wx1", "t2: rx1 wx2 wy2", "t3: rx_ ry2"],
        Kind::ReadSkew,
        &["t3 read that x was not there, and t2 wrote it"],
    );
    passes(&["t1: wx1 wy1", "t2: rx_ ry_", "t3: rx1 ry1"]);
    passes(&["t1: wx1", "t2: wy1", "t3: rx1 ry_", "t4: rx1 ry1"]);
    passes(&["t1: rx_ ry_ wx1", "t2: rx_ ry_ wy1", "t3: rx1 ry1"]);
    passes(&["t1!: wx1", "t2? : wy1", "t3: rx_ ry_"]);
    // Who finds it absent came after the one that deleted it.
    passes(&["t1: wx1 wy1", "t2: wy_", "t3: rx1 ry_"]);
    passes(&["t1: wx1 wy1", "t2?: wy_", "t3: rx1 ry_"]);
    // Which of two that was nobody can tell.
    let lines = ["t1: wx1 wy1", "t2: wy_", "t3?: wy_", "t4: rx1 ry_"];
    let report = check(&history(&lines));
    assert_eq!((report.anomaly, report.ambiguous_reads), (None, 1));
    // A deletion that was aborted is none.
    found(
        &["t1: wx1 wy1", "t2!: wy_", "t3: rx1 ry_"],
        Kind::ReadSkew,
        &["t3 read that y was not there"],
    );
}

#[test]
fn what_was_committed_later_must_not_be_seen() {
    found(
        &["t1 1-9: wx1", "t2 5-: rx1"],
        Kind::Interference,
        &[
            "t1@1 wrote x, and t2@5 read that",
            "9 is above the snapshot 5",
        ],
    );
}

#[test]
fn what_was_committed_before_must_be_seen() {
    found(
        &["t0 1-2: wx1", "t1 3-4: rx1 wx2", "t2 5-: rx1"],
        Kind::MissedEffects,
        &[
            "t2@5 read x, and t1@3 wrote the next version",
            "t1@3 had committed when t2@5 began",
        ],
    );
}

#[test]
fn what_is_allowed_passes() {
    // One after the other.
    passes(&["t0 1-2: wx1", "t1 3-4: rx1 wx2", "t2 5-: rx2"]);
    // An old snapshot.
    passes(&["t0 1-2: wx1", "t1 3-4: rx1 wx2", "t2 3-: rx1"]);
    // Write skew: snapshot isolation is not serializable.
    passes(&[
        "t0 1-2: wx1 wy1",
        "t1 3-5: rx1 ry1 wx2",
        "t2 4-6: rx1 ry1 wy2",
    ]);
    passes(&["t0: wx1 wy1", "t1: rx1 ry1 wx2", "t2: rx1 ry1 wy2"]);
    // A lost answer, of what was committed and of what wasn't.
    passes(&["t0? 1-: wx1", "t1 3-4: rx1"]);
    passes(&["t0? 1-: wx1", "t1 3-4: rx_"]);
    // Own writes that are read again.
    passes(&["t0 1-2: rx_ wx1 rx1"]);
    // A deletion.
    passes(&["t0 1-2: wx1", "t1 3-4: rx1 wx_", "t2 5-: rx_", "t3 2-: rx1"]);
}

#[test]
fn the_format_is_what_is_documented() {
    let text = concat!(
        r#"{"client":"c1","start_ts":"17","commit_ts":"19","outcome":"committed","#,
        r#""ops":[{"r":["a","10"]},{"w":["a",null]},{"l":"b"}]}"#,
        "\n",
        r#"{"client":"c2","outcome":"unknown","ops":[]}"#,
        "\n"
    );
    let history = parse(text).expect("a history");
    assert_eq!(history[0].start_ts, Some(17));
    assert_eq!(history[0].ops[1], Op::Write("a".to_owned(), None));
    assert_eq!(write(&history), text);
    let error = parse("{}\n").expect_err("no transaction");
    assert!(error.to_string().starts_with("line 1: "), "{error}");
}

/// A second's work, where it grows as their number does, and a day's where it grows as the square of it: the test would be ended.
#[test]
fn a_hundred_thousand_transactions_are_checked() {
    const CELLS: u64 = 1_000;
    let mut latest = vec![None; CELLS as usize];
    let mut state = 7_u64;
    let mut history = Vec::new();
    for number in 0..100_000_u64 {
        let mut ops = Vec::new();
        for write in [true, false, true, false] {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let cell = (state >> 33) % CELLS;
            let name = format!("cell{cell}");
            if ops
                .iter()
                .any(|op: &Op| matches!(op, Op::Read(other, _) if *other == name))
            {
                continue;
            }
            ops.push(Op::Read(name.clone(), latest[cell as usize].clone()));
            if write {
                let value = Some(format!("{number}"));
                ops.push(Op::Write(name, value.clone()));
                latest[cell as usize] = value;
            }
        }
        history.push(Transaction {
            client: format!("c{}", number % 10),
            start_ts: Some(10 * number + 1),
            commit_ts: Some(10 * number + 5),
            outcome: Outcome::Committed,
            times: None,
            ops,
        });
    }
    assert_eq!(check(&history).anomaly, None);
    for transaction in &mut history {
        (transaction.start_ts, transaction.commit_ts) = (None, None);
    }
    assert_eq!(check(&history).anomaly, None);
}

#[test]
fn values_that_are_written_again_and_again_are_checked_as_well() {
    // One cell that is 0, 1 and absent in turn, with readers of the latest version and of the first one.
    let values = [Some("0"), Some("1"), None];
    let history: Vec<Transaction> = (0..100_000_usize)
        .map(|number| {
            let value = values[number / 3 % 3].map(str::to_owned);
            let ts = 10 * number as u64 + 5;
            let (start_ts, commit_ts, op) = match number % 3 {
                0 => (ts, Some(ts + 1), Op::Write("x".to_owned(), value)),
                1 => (ts, None, Op::Read("x".to_owned(), value)),
                _ => (9, None, Op::Read("x".to_owned(), Some("0".to_owned()))),
            };
            Transaction {
                client: "c".to_owned(),
                start_ts: Some(start_ts),
                commit_ts,
                outcome: Outcome::Committed,
                times: None,
                ops: vec![op],
            }
        })
        .collect();
    let report = check(&history);
    assert_eq!((report.anomaly, report.ambiguous_reads), (None, 0));
}

#[test]
fn snapshots_below_what_was_answered_before_are_found() {
    // By the timestamps alone all is well: t2's snapshot is older.
    let stale = ["t1 5-7 @100-200: wx1", "t2 6-6 @201-300: rx_"];
    found(
        &stale,
        Kind::StaleSnapshot,
        &["t1@5 was answered before t2@6 began", "isn't above 7"],
    );
    // An aborted one's snapshot was in use too, and one that only read.
    for earlier in ["t1! 5 @100-200: rx_", "t1 5-5 @100-200: rx_"] {
        found(&[earlier, "t2 4-4 @201-300: rx_"], Kind::StaleSnapshot, &[]);
    }
    // Nobody knows which was first, or what an unknown one's end means.
    passes(&["t1 5-7 @100-200: wx1", "t2 6-6 @200-300: rx_"]);
    passes(&["t1 5-7 @100-: wx1", "t2 6-6 @201-300: rx_"]);
    passes(&["t1 5-7 @100-200: wx1", "t2 8-8 @201-300: rx1"]);
}

#[test]
fn times_of_two_clocks_are_not_compared() {
    let mut history = history(&["t1 5-7 @100-200: wx1", "t2 6-6 @201-300: rx_"]);
    if let Some(times) = &mut history[1].times {
        times.clock = "another".to_owned();
    }
    assert_eq!(check(&history).anomaly, None);
}

#[test]
fn stale_reads_are_found_without_timestamps() {
    found(
        &["t1 @100-200: rx_ wx1", "t2 @201-300: rx_"],
        Kind::StaleSnapshot,
        &[
            "t1 was answered before t2 began",
            "t2 read x, and t1 wrote the next version",
        ],
    );
    // Two readers, one after the other: the second one has to see what the first one saw.
    found(
        &["t1 @1-900: rx_ wx1", "t2 @100-200: rx1", "t3 @201-300: rx_"],
        Kind::StaleSnapshot,
        &["t2 was answered before t3 began"],
    );
    passes(&[
        "t1 @100-900: rx_ wx1",
        "t2 @201-300: rx_",
        "t3 @301-400: rx1",
    ]);
}

#[test]
fn readers_that_are_not_committed_have_snapshots_too() {
    for reader in ["t3! 20", "t3? 20"] {
        let skew = format!("{reader}: rx1 ry0 wz1");
        found(
            &["t1 1-2: wx0 wy0", "t2 15-17: wx1 wy1", &skew],
            Kind::ReadSkew,
            &["t3@20 read y, and t2@15 wrote the next version"],
        );
        let missed = format!("{reader}: rx0");
        found(
            &["t1 1-2: wx0", "t2 15-17: wx1", &missed],
            Kind::MissedEffects,
            &["t2@15 had committed when t3@20 began"],
        );
        let future = format!("{reader}: rx1");
        found(
            &["t2 15-21: wx1", &future],
            Kind::Interference,
            &["21 is above the snapshot 20"],
        );
    }
    found(
        &["t1: wx0 wy0", "t2: rx0 ry0 wx1 wy1", "t3!: rx1 ry0"],
        Kind::ReadSkew,
        &["t2 wrote y, and t1 a later version: t3 saw that, and something of t2"],
    );
    found(
        &["t1 @100-200: rx_ wx1", "t2! @201-300: rx_"],
        Kind::StaleSnapshot,
        &["t1 was answered before t2 began"],
    );
    // What they wrote is nobody's business, and another one may overwrite what they read.
    passes(&[
        "t1 1-2: wx0 wy0",
        "t2! 3: rx0 wx1",
        "t3 4-9: rx0 wx2",
        "t4? 5: rx0 ry0 wx3",
        "t5 10-11: rx2 ry0 wx4",
    ]);
}

#[test]
fn reads_that_contradict_their_own_transaction_are_found() {
    for (line, what) in [
        (
            "t1: wx1 rx9",
            "t1 read x = Some(\"9\"), and had written Some(\"1\")",
        ),
        (
            "t1: wx1 rx_",
            "t1 read x = None, and had written Some(\"1\")",
        ),
        ("t1!: wx1 wx2 rx1", "had written Some(\"2\")"),
        ("t1 5-6: rx1 rx2", "had read Some(\"1\")"),
        ("t1?: rx1 ly rx_", "had read Some(\"1\")"),
    ] {
        found(&["t0 1-2: wx1", line], Kind::InternalRead, &[what]);
    }
    passes(&["t0 1-2: wx1", "t1 3-4: rx1 rx1 wx2 rx2 wx_ rx_"]);
}

#[test]
fn timestamps_that_no_oracle_gave_are_found() {
    found(
        &["t1 1-3: wx1", "t2 1-4: wy1"],
        Kind::Timestamps,
        &["t1@1 and t2@1 both began at 1"],
    );
    found(
        &["t1 1-3: wx1", "t2 2-3: ly"],
        Kind::Timestamps,
        &["t1@1 and t2@2 both committed at 3"],
    );
    found(
        &["t1 1-10: wx1", "t2 10-11: rx1 wy1"],
        Kind::Timestamps,
        &["t1@1 committed at 10, where t2@10 began"],
    );
    for commit in ["t1 5-5: lx", "t1 5-4: lx", "t1 5-4: wx1"] {
        found(&[commit], Kind::Timestamps, &["isn't above its snapshot"]);
    }
    // Who only reads has no timestamp of its own.
    passes(&["t1 1-3: wx1", "t2 3-3: rx1", "t3 3-3: rx1", "t4 1-1: rx_"]);
}

#[test]
fn a_repeated_value_must_not_be_seen_before_any_of_its_commits() {
    found(
        &["t1 15-20: wx5", "t2 30-40: wx5", "t3 10-: rx5"],
        Kind::Interference,
        &[
            "t1@15 wrote x, and t3@10 read that",
            "20 is above the snapshot 10",
        ],
    );
}

#[test]
fn one_unknown_writer_does_not_hide_the_order_of_the_others() {
    // Blind writes: only the timestamps say who came first. t4 sees t3's of both, and must see t2's x.
    let skew = |unknown: &'static str| {
        vec![
            "t1 1-2: wx1",
            "t2 3-4: wx2 wy2",
            unknown,
            "t4 9-9: rx1 ry2",
            "t5 19-19: rx3",
        ]
    };
    found(
        &skew("t3? 10: wx3"),
        Kind::ReadSkew,
        &["t4@9 read x", "t2@3 wrote the next version"],
    );
    // It stands behind its snapshot, and before whatever came after that: anyone who sees it there is right, ...
    passes(&[
        "t1 1-2: wx1",
        "t2? 3: wx2",
        "t3 6-7: wx3",
        "t4 5-5: rx2",
        "t5 8-8: rx3",
    ]);
    // ... and anyone who sees it later, or sees past it, is not.
    found(
        &["t1 1-2: wx1", "t2? 3: wx2", "t3 6-7: wx3", "t5 8-8: rx2"],
        Kind::MissedEffects,
        &["t3@6"],
    );
    found(
        &["t1 1-2: wx1", "t2? 3: wx2 wy2", "t4 5-5: rx1 ry2"],
        Kind::ReadSkew,
        &["t4@5 read x", "t2@3"],
    );
    // Seen by a snapshot that is older than its own.
    found(
        &["t1 1-2: wx1", "t2? 6: wx2", "t4 5-5: rx2"],
        Kind::Interference,
        &["t2@6", "above the snapshot 5"],
    );
}

#[test]
fn of_two_unknown_writers_of_one_value_none_counts_as_seen() {
    let report = check(&history(&[
        "t1 1-2: wx1",
        "t2? 3: wx2 wy1",
        "t3? 4: wx2 wy1",
        "t4 9-9: rx2",
        "t5 12-12: rx1",
    ]));
    assert_eq!(report.anomaly, None);
    assert_eq!(report.ambiguous_reads, 1);
}

#[test]
fn times_are_part_of_the_format() {
    let history = history(&["t1 5-7 @100-200: wx1", "t2? 8 @201-: wx2", "t3 9-9: rx1"]);
    let text = write(&history);
    assert!(
        text.contains(r#""times":{"clock":"c","began_us":100,"ended_us":200}"#),
        "{text}"
    );
    assert_eq!(parse(&text).expect("a history"), history);
}
