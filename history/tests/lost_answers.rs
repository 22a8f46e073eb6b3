//! Transactions whose answer was lost: anyone who saw one knows that it had committed by then.

use crate::support::{found, history, passes};
use percolator_history::{Kind, check};

#[test]
fn what_was_seen_of_a_lost_answer_stays() {
    let seen = ["t1? 1: wx1", "t2 5: rx1"];
    found(
        &[&seen[..], &["t3 7: rx_"]].concat(),
        Kind::MissedEffects,
        &[
            "t3@7 read x, and t1@1 wrote",
            "t1@1 had committed when t3@7 began",
        ],
    );
    // At the snapshot of who saw it, too, in either order of the lines.
    found(
        &[&seen[..], &["t3 5: rx_"]].concat(),
        Kind::MissedEffects,
        &["t1@1 had committed when t3@5 began"],
    );
    found(
        &["t1? 1: wx1", "t3 5: rx_", "t2 5: rx1"],
        Kind::MissedEffects,
        &["t1@1 had committed when t3@5 began"],
    );
    // Two that were under way at the same time, so that no clock tells.
    found(
        &["t1? 1 @0-: wx1", "t2 5 @10-20: rx1", "t3 7 @12-22: rx_"],
        Kind::MissedEffects,
        &["t1@1 had committed when t3@7 began"],
    );
    passes(&[&seen[..], &["t3 4: rx_"]].concat());
    passes(&[&seen[..], &["t3 7: rx1"]].concat());
}

/// Of two that wrote one cell, the first had committed when the other one began.
#[test]
fn a_lost_answer_that_was_overwritten_was_committed_before() {
    let overwritten = ["t1? 10: wx1 wy1", "t2 20-40: wx2", "t4 50: ry1 rx2"];
    found(
        &[&overwritten[..], &["t3 30: ry_"]].concat(),
        Kind::MissedEffects,
        &["t1@10 had committed when t3@30 began"],
    );
    passes(&[&overwritten[..], &["t3 15: ry_"]].concat());
    passes(&[&overwritten[..], &["t3 30: ry1"]].concat());
}

/// Where several wrote one value, a lost answer is in doubt only for anyone who may have seen it.
#[test]
fn a_lost_answer_does_not_hide_who_else_wrote_its_value() {
    for value in ["1", "_"] {
        let write = format!("wx{value}");
        let [first, lost, last] =
            ["t1 1-2", "t2? 3", "t4 7-8"].map(|who| format!("{who}: {write}"));
        let lines = |reader: &'static str, read: &str| {
            let reader = format!("{reader}: rx{read}");
            [
                &first,
                &lost,
                "t3 5-6: wx2",
                &last,
                "t5 11-12: wx3",
                &reader,
            ]
            .map(str::to_owned)
        };
        let check = |lines: [String; 6]| check(&history(&lines.each_ref().map(String::as_str)));
        // By t1, and by t4: who reads that behind the next one is wrong.
        for reader in ["t6 3", "t6 10"] {
            let report = check(lines(reader, value));
            assert_eq!((report.anomaly, report.ambiguous_reads), (None, 0));
        }
        let anomaly = check(lines("t6 13", value)).anomaly.expect("t5 is missed");
        assert_eq!(anomaly.kind, Kind::MissedEffects);
        assert!(
            anomaly.to_string().contains("t5@11 wrote the next version"),
            "{anomaly}"
        );
        // By t1 or by t2.
        let report = check(lines("t6 4", value));
        assert_eq!((report.anomaly, report.ambiguous_reads), (None, 1));
    }
}

/// Those of them who was committed, it was so before who was committed after it had begun.
#[test]
fn no_lost_answer_explains_a_read_past_a_committed_write() {
    for (lines, overwriter) in [
        (&["d? 1: wx_", "p 5-6: wx1", "r 10: rx_"][..], "p@5"),
        (
            &["a? 5: wx1", "b? 6: wx1", "p 7-8: wx2", "r 12: rx1"],
            "p@7",
        ),
        (&["a? 5: wx1", "b 6: wx1", "p 7-8: wx2", "r 12: rx1"], "p@7"),
    ] {
        let missed = format!("read x, and {overwriter} wrote a later version");
        found(lines, Kind::MissedEffects, &[&missed]);
    }
    // Not yet committed at the snapshot, and before either of them began.
    for lines in [
        ["a? 5: wx1", "b? 6: wx1", "p 7-13: wx2", "r 12: rx1"],
        ["a? 5: wx1", "b? 6: wx1", "p 2-3: wx2", "r 12: rx1"],
    ] {
        let report = check(&history(&lines));
        assert_eq!((report.anomaly, report.ambiguous_reads), (None, 1));
    }
}

/// Anyone who finds absent what was written before has seen the only deletion that there was.
#[test]
fn a_lost_deletion_that_was_seen_stays() {
    let seen = ["t1 1-2: wx1 wy1", "t2? 3: wx_ wy_", "t3 5: rx_"];
    for reader in ["t4 7: rx1", "t4 5: rx1", "t4 7: ry1"] {
        found(
            &[&seen[..], &[reader]].concat(),
            Kind::MissedEffects,
            &[
                "t2@3 had committed when t4@",
                "and t2@3 wrote the next version",
            ],
        );
    }
    // Half of it, by one reader.
    found(
        &["t1 1-2: wx1 wy1", "t2? 3: wx_ wy_", "t3 5: rx_ ry1"],
        Kind::ReadSkew,
        &[
            "t2@3 wrote x, and t3@5 read that",
            "t3@5 read y, and t2@3 wrote",
        ],
    );
    // Without timestamps: t1 was answered before t3 began, and t3 before t4 did.
    let seen_later = ["t1 @1-2: wx1", "t2? @3-: wx_", "t3 @4-5: rx_"];
    found(
        &[&seen_later[..], &["t4 @6-7: rx1"]].concat(),
        Kind::StaleSnapshot,
        &["t3 was answered before t4 began", "t4 read x, and t2 wrote"],
    );
    // Without times: t3 has seen what t1 wrote besides.
    found(
        &["t1: wx1 wy1", "t2?: rx1 wx_ ry1 wy_", "t3: rx_ ry1"],
        Kind::ReadSkew,
        &["t2 wrote y, and t1 a later version: t3 saw that, and something of t2"],
    );
    passes(&[&seen[..], &["t4 4: rx1 ry1", "t5 7: rx_ ry_"]].concat());
    passes(&[&seen_later[..], &["t4 @4-7: rx1"]].concat());
}

#[test]
fn what_was_perhaps_never_there_proves_no_deletion() {
    // t3 may have come before t1.
    let nothing_known = ["t1: wx1", "t2?: wx_", "t3: rx_", "t4: rx1"];
    // Their snapshot may lie before t1's commit.
    let old = ["t1 1-6: wx1", "t2? 7: wx_", "t3 5: rx_", "t4 9: rx1"];
    // Either of two may have deleted it, and neither need be behind t4.
    let two = [
        "t1 1-2: wx1",
        "t2? 3: wx_",
        "t5? 4: wx_",
        "t3 5: rx_",
        "t4 7: rx1",
    ];
    for (lines, ambiguous) in [(&nothing_known[..], 1), (&old, 0), (&two, 1)] {
        let report = check(&history(lines));
        assert_eq!((report.anomaly, report.ambiguous_reads), (None, ambiguous));
    }
}
