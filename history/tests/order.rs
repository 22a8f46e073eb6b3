//! What is known of the order of versions without timestamps, and what may not be touched meanwhile.

use crate::support::{found, passes};
use percolator_history::Kind;

/// Nobody has read what they overwrote: only real time says which version is the later one.
#[test]
fn what_was_seen_and_is_missed_later_is_found_without_timestamps() {
    // A commit whose answer was lost, and that was seen.
    let began_later = ["t1 @1-2: wx0", "t2? @3-: wx1", "t3 @4-5: rx1"];
    let began_before_the_answer = ["t1 @1-4: wx0", "t2? @3-: wx1", "t3 @5-6: rx1"];
    for before in [began_later, began_before_the_answer] {
        let missed = [&before[..], &["t4 @7-8: rx0"]].concat();
        found(
            &missed,
            Kind::StaleSnapshot,
            &[
                "t4 read x, and t2 wrote a later version",
                "t3 was answered before t4 began",
            ],
        );
        passes(&[&before[..], &["t4 @7-8: rx1"]].concat());
    }
    // One that was answered.
    found(
        &["t1 @1-2: wx0", "t2 @3-4: wx1", "t4 @7-8: rx0"],
        Kind::StaleSnapshot,
        &["t2 was answered before t4 began"],
    );
    // Of two that were under way at the same time either may be the later one, ...
    passes(&["t1 @1-4: wx0", "t2? @3-: wx1", "t3 @7-8: rx0"]);
    passes(&[
        "t1 @1-9: wx0",
        "t2? @3-: wx1",
        "t3 @4-5: rx1",
        "t4 @7-8: rx0",
    ]);
    // ... and who began before a write was seen may not see it.
    passes(&[
        "t1 @1-2: wx0",
        "t2? @3-: wx1",
        "t3 @4-9: rx1",
        "t4 @7-8: rx0",
    ]);
}

#[test]
fn what_was_got_for_update_may_not_be_touched_meanwhile() {
    // In either order of their commits.
    found(
        &["t0 1-2: wx0", "t1 5-9: lx wy1", "t2 6-7: wx1"],
        Kind::LockIgnored,
        &["t2@6 wrote x", "t1@5 began, which got for update it"],
    );
    found(
        &["t0 1-2: wx0", "t1 5-7: lx wy1", "t2 6-9: wx1"],
        Kind::LockIgnored,
        &["t1@5 got for update x", "t2@6 began, which wrote it"],
    );
    found(
        &["t1 5-9: lx", "t2 6-7: lx"],
        Kind::LockIgnored,
        &["t2@6 got for update x", "t1@5"],
    );
    // Without timestamps: each has the other one's cell.
    found(
        &["t0: wx0 wy0", "t1: rx0 lx ry0 wy1", "t2: ry0 ly rx0 wx1"],
        Kind::LockIgnored,
        &["got x for update", "got y for update"],
    );
    passes(&[
        "t0 1-2: wx0 wy0",
        "t1 5-7: rx0 lx wy1",
        "t2 8-9: rx0 ry1 wx1",
        // Not committed: it has no right to the cell.
        "t3! 11: rx1 lx",
        "t4? 12: rx1 lx",
        "t5 10-13: wx2",
    ]);
    passes(&["t0: wx0 wy0", "t1: rx0 lx ry0 wy1", "t2: ry1 ly rx0 wx1"]);
    // Write skew, which nobody got for update.
    passes(&["t0: wx0 wy0", "t1: rx0 ry0 wy1", "t2: ry0 rx0 wx1"]);
}

#[test]
fn one_writer_without_timestamps_does_not_hide_the_order_of_the_others() {
    let written = ["t1 1-2: wx1", "t2 3-4: wx2", "t3: wx3"];
    found(
        &[&written[..], &["t4 9: rx1"]].concat(),
        Kind::MissedEffects,
        &[
            "t4@9 read x, and t2@3 wrote",
            "t2@3 had committed when t4@9 began",
        ],
    );
    found(
        &[&written[..], &["t4 9: rx_"]].concat(),
        Kind::MissedEffects,
        &["had committed when t4@9 began"],
    );
    for read in ["t4 3: rx1", "t4 9: rx2", "t4 9: rx3"] {
        passes(&[&written[..], &[read]].concat());
    }
    // Others may lie between two whose order is known: t3 read t1's version, and t2 that of t3.
    passes(&["t1 1-2: wx1", "t3: rx1 wx3", "t2 7-8: rx3 wx2", "t4 9: rx2"]);
    passes(&["t1 1-2: wx1", "t3: rx1 wx3", "t2 7-8: wx2", "t4 5: rx3"]);
}

/// Who finds nothing and writes, or locks until it has committed, is before everybody who writes there.
#[test]
fn who_found_a_cell_absent_and_touched_it_was_the_first() {
    found(
        &["t1: rx_ wx1 wy2", "t2: ry_ wy3 wx4"],
        Kind::DirtyWrite,
        &[
            "t1 wrote x, and t2 wrote a later version",
            "t2 wrote y, and t1 wrote a later version",
        ],
    );
    found(
        &["t1: lx rx_ wy1", "t2: ry_ wx2"],
        Kind::LockIgnored,
        &["t1 got x for update", "t2 read that y was not there"],
    );
    passes(&["t1: rx_ wx1 wy2", "t2: ry2 wx4"]);
    passes(&["t1: rx_ wx1 wy2", "t2: rx_", "t3: wx3 wy3", "t4: ry_"]);
    passes(&["t1: lx rx_ wy1", "t2: wx2", "t3: lx rx_ ry1"]);
    // The first one's snapshot is known, and not when it was committed.
    passes(&["t1 5: rx_ wx1", "t2: wx2"]);
    // Not committed.
    passes(&["t1!: rx_ wx1 wy2", "t2: ry_ wy3 wx4"]);
    passes(&["t1!: lx rx_ wy1", "t2: ry_ wx2"]);
}

/// Nobody has read what they overwrote, and no clock tells: who sees a part of a transaction sees all of it.
#[test]
fn read_skew_of_blind_writes_is_found_from_what_was_seen() {
    let skew = ["t0: wx0 wy0", "t1: wx1 wy1", "r: rx0 ry1"];
    let seen_whole = [&skew[..], &["r1: rx0 ry0", "r2: rx1 ry1"]].concat();
    for history in [&skew[..], &seen_whole] {
        found(
            history,
            Kind::ReadSkew,
            &[
                "t1 wrote x, and t0 a later version: r saw that, and something of t1",
                "t0 wrote y, and t1 a later version: r saw that, and something of t0",
            ],
        );
    }
    found(
        &["t1: rx_ wx1 wy1", "t2: rx1 wx2 wy2", "r: rx2 ry1"],
        Kind::ReadSkew,
        &["t2 wrote y, and t1 a later version: r saw that, and something of t2"],
    );
    // In one order for one reader, and in the other one for another.
    found(
        &[
            "t1: wx1 wy1 wa1",
            "t2: wx2 wy2 wb2",
            "r1: rx1 rb2",
            "r2: ry2 ra1",
        ],
        Kind::ReadSkew,
        &["r1 saw that", "r2 saw that"],
    );
    // Who sees the older version of a cell has seen nothing else of who wrote the later one.
    found(
        &[
            "t1: wx1 wa1",
            "t2: wx2 wb2 wc2",
            "r1: rx2 ra1",
            "r2: rx1 rc2",
        ],
        Kind::ReadSkew,
        &["r2 saw that"],
    );
    passes(&["t0: wx0 wy0", "t1: wx1 wy1", "r1: rx1 ry1", "r0: rx0 ry0"]);
    passes(&["t0: wx0 wy0", "t1: wx1", "r: rx1 ry0", "r0: rx0 ry0"]);
    passes(&[
        "t0: wx0 wy0",
        "t1: wx1 wz1",
        "r: rx1 ry0 rz1",
        "t2: rx1 wx2",
    ]);
}
