//! The answers that a lease permits a tablet server, at its very ends.

use percolator_protocol::lease::{Lease, NotLeased};
use percolator_protocol::types::{Cell, Lock, LockKind, TableId, Timestamp};

fn ts(number: u64) -> Timestamp {
    Timestamp::from_u64(number)
}

fn lease(until: u64, commits_above: u64) -> Lease {
    Lease {
        until: ts(until),
        commits_above: ts(commits_above),
    }
}

fn cell(row: &'static str) -> Cell {
    Cell::new(TableId(1), row, "c")
}

/// A lock of the transaction of 5 whose primary is this cell.
fn lock(primary: &Cell, min_commit_ts: u64) -> Lock {
    Lock {
        kind: LockKind::Put,
        primary: primary.clone(),
        start_ts: ts(5),
        ttl_ms: 3_000,
        min_commit_ts: ts(min_commit_ts),
        committing: false,
        generation: 0,
        short_value: Some("v".into()),
        chain: None,
    }
}

#[test]
fn a_timestamp_is_admitted_up_to_the_lease_and_not_beyond() {
    let leased = lease(10, 0);
    assert_eq!(leased.admit(ts(9)), Ok(()));
    assert_eq!(leased.admit(ts(10)), Ok(()));
    let refused = NotLeased {
        asked: ts(11),
        until: ts(10),
    };
    assert_eq!(leased.admit(ts(11)), Err(refused));
    // A server that the master has not answered yet answers nothing.
    assert!(Lease::default().admit(ts(1)).is_err());
    assert_eq!(Lease::UNLIMITED.admit(Timestamp::MAX), Ok(()));
    assert!(Lease::UNLIMITED.may_commit_at(ts(1)));
}

#[test]
fn a_primary_is_committed_only_above_what_earlier_incarnations_could_answer() {
    let leased = lease(20, 10);
    assert!(!leased.may_commit_at(ts(9)));
    assert!(!leased.may_commit_at(ts(10)));
    assert!(leased.may_commit_at(ts(11)));
}

#[test]
fn answers_that_overtake_each_other_take_nothing_back() {
    let (early, late) = (lease(10, 3), lease(20, 7));
    assert_eq!(early.raised(late), late);
    assert_eq!(late.raised(early), late);
    assert_eq!(lease(10, 7).raised(lease(20, 3)), late);
    assert_eq!(late.raised(Lease::default()), late);
}

#[test]
fn a_primary_is_locked_with_what_readers_at_an_earlier_incarnation_were_promised() {
    let (primary, secondary) = (cell("a"), cell("b"));
    let leased = lease(20, 10);
    let of = |min_commit_ts, cell| {
        let lock = leased.promised(lock(&primary, min_commit_ts), cell);
        lock.min_commit_ts
    };
    assert_eq!(of(6, &primary), ts(11));
    assert_eq!(of(10, &primary), ts(11));
    assert_eq!(of(15, &primary), ts(15));
    // Its primary decides for a secondary.
    assert_eq!(of(6, &secondary), ts(6));
    // And nothing else changes.
    let kept = leased.promised(lock(&primary, 6), &primary);
    assert_eq!(kept, lock(&primary, 11));
}
