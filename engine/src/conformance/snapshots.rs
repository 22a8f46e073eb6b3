//! Whole batches for concurrent readers, and snapshots that stay.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{Bed, get, keys, pairs, put};
use crate::{
    Batch, Column,
    Direction::{Forward, Reverse},
    Read, Value,
};

/// One writer sets the same number in keys of all columns in one batch; readers must never find two
/// numbers in a snapshot, in a chunk of a scan, or an older one after a newer.
pub(super) fn readers_see_whole_batches(bed: &Bed<'_>) {
    const ROUNDS: u32 = 200;
    let engine = (bed.open)();
    let number = |round: u32| Value::copy_from_slice(&round.to_be_bytes());
    let batch = |round: u32| {
        let mut batch = Batch::default();
        for column in Column::ALL {
            for key in ["a", "b", "c"] {
                batch.put(column, key, number(round));
            }
        }
        // Comes and goes, so that the number of pairs differs too.
        if round.is_multiple_of(2) {
            batch.put(Column::Lock, "d", number(round));
        } else {
            batch.delete(Column::Lock, "d");
        }
        batch
    };
    engine.commit(&[batch(0)]).expect("a commit");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = Value::new();
                while !done.load(Ordering::Acquire) {
                    // Of two reads the second may not be older, whatever the column.
                    for column in Column::ALL {
                        for key in ["c", "b", "a"] {
                            let now = get(&*engine, column, key.as_bytes()).expect("a value");
                            assert!(now >= last, "{now:?} after {last:?}");
                            last = now;
                        }
                    }
                    let found = pairs(&*engine, Column::Lock, b"", b"", Forward);
                    let now = found[0].1.clone();
                    assert!(found.iter().all(|(_, value)| *value == now), "{found:?}");
                    assert_eq!(found.len() == 4, now[3].is_multiple_of(2), "{found:?}");
                    last = now;
                    let snapshot = engine.snapshot().expect("a snapshot");
                    let now = get(&*snapshot, Column::Meta, b"a").expect("a value");
                    assert!(now >= last, "{now:?} after {last:?}");
                    for column in Column::ALL {
                        let found = pairs(&*snapshot, column, b"", b"", Reverse);
                        assert!(found.iter().all(|(_, value)| *value == now), "{found:?}");
                    }
                    last = now;
                }
            });
        }
        for round in (1..ROUNDS).step_by(3) {
            engine
                .commit(&[batch(round), batch(round + 1), batch(round + 2)])
                .expect("a commit");
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(engine.stats().snapshots, 0);
}

pub(super) fn snapshots_stay(bed: &Bed<'_>) {
    let engine = (bed.open)();
    put(&*engine, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let one = engine.snapshot().expect("a snapshot");
    let mut batch = Batch::default();
    batch.put(Column::Data, "a", "2");
    batch.delete(Column::Data, "b");
    batch.put(Column::Data, "aa", "2");
    engine.commit(&[batch]).expect("a commit");
    let two = engine.snapshot().expect("a snapshot");
    assert_eq!(engine.stats().snapshots, 2);
    let mut batch = Batch::default();
    batch.delete(Column::Data, "a");
    batch.put(Column::Data, "b", "3");
    batch.delete(Column::Data, "c");
    engine.commit(&[batch]).expect("a commit");

    let value = |from: &dyn Read, key: &str| get(from, Column::Data, key.as_bytes());
    let text = |from: &dyn Read, key: &str| value(from, key).map(|value| value.to_vec());
    assert_eq!(keys(&*one, "", "", Forward), ["a", "b", "c"]);
    assert_eq!(keys(&*one, "", "", Reverse), ["c", "b", "a"]);
    assert_eq!(keys(&*one, "b", "c", Forward), ["b"]);
    assert_eq!(text(&*one, "a"), Some(b"1".to_vec()));
    assert_eq!(text(&*one, "b"), Some(b"1".to_vec()));
    assert_eq!(text(&*one, "aa"), None);
    assert_eq!(keys(&*two, "", "", Forward), ["a", "aa", "c"]);
    assert_eq!(text(&*two, "a"), Some(b"2".to_vec()));
    assert_eq!(text(&*two, "b"), None);
    assert_eq!(keys(&*engine, "", "", Forward), ["aa", "b"]);
    let first = |from: &dyn Read, start: &str| {
        let pair = from
            .first(Column::Data, start.as_bytes(), b"")
            .expect("a first");
        pair.map(|(key, _)| key.to_vec())
    };
    assert_eq!(first(&*one, "aaa"), Some(b"b".to_vec()));
    assert_eq!(first(&*two, "aaa"), Some(b"c".to_vec()));
    assert_eq!(first(&*two, "d"), None);
    drop(one);
    assert_eq!(text(&*two, "a"), Some(b"2".to_vec()));
    drop(two);
    assert_eq!(engine.stats().snapshots, 0);
}

/// A scan of a snapshot is exactly the snapshot, though everything changes while it goes on.
pub(super) fn scans_of_snapshots_stay(bed: &Bed<'_>) {
    const KEYS: usize = 1500;
    let engine = (bed.open)();
    let key = |i: usize| format!("{i:06}");
    let mut batch = Batch::default();
    for i in (0..KEYS).step_by(2) {
        batch.put(Column::Data, key(i), key(i));
    }
    engine.commit(&[batch]).expect("a commit");
    let expected: Vec<String> = (0..KEYS).step_by(2).map(key).collect();
    for direction in [Forward, Reverse] {
        let snapshot = engine.snapshot().expect("a snapshot");
        let before = pairs(&*snapshot, Column::Data, b"", b"", direction);
        let mut scan = snapshot
            .scan(Column::Data, b"", b"", direction)
            .expect("a scan");
        let mut found = Vec::new();
        for step in 0.. {
            let Some(pair) = scan.next().transpose().expect("a pair") else {
                break;
            };
            found.push(pair);
            if step % 20 == 0 {
                let mut batch = Batch::default();
                for i in (0..KEYS).filter(|i| (i + step) % 7 == 0) {
                    match i % 3 {
                        0 => batch.put(Column::Data, key(i), "changed"),
                        1 => batch.delete(Column::Data, key(i)),
                        _ => batch.put(Column::Data, key(i) + "+", "new"),
                    }
                }
                engine.commit(&[batch]).expect("a commit");
            }
        }
        assert_eq!(found.len(), before.len());
        assert!(found == before, "the scan is not the snapshot");
        if direction == Forward {
            let names: Vec<_> = found.iter().map(|(key, _)| key.to_vec()).collect();
            assert!(names.iter().eq(expected.iter().map(|key| key.as_bytes())));
        }
    }
}
