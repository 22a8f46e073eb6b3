//! Transactions whose answer was lost: whoever saw one knows that it had committed by then.

mod support;

use percolator_history::Kind;
use support::{found, passes};

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
