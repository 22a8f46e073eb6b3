//! The suite every engine has to pass. A failure is a panic that says what was expected.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::{Batch, Column, Direction, Engine, Error, Key, MAX_KEY_BYTES, Read, Value};

use Direction::{Forward, Reverse};

/// How a case gets its engine.
pub struct Bed<'a> {
    /// Opens the engine of this bed, empty the first time; only after the one before was dropped.
    pub open: &'a dyn Fn() -> Box<dyn Engine>,
    /// True if the engine keeps what it has over an open.
    pub durable: bool,
}

/// A case: its name, and what it does with a bed of its own.
pub type Case = (&'static str, fn(&Bed<'_>));

/// All cases. Each wants a new bed.
pub const CASES: &[Case] = &[
    ("ordered_scans", ordered_scans),
    ("columns_are_apart", columns_are_apart),
    ("first_of_a_range", first_of_a_range),
    ("order_inside_a_group", order_inside_a_group),
    ("odd_keys_and_values", odd_keys_and_values),
    ("invalid_keys", invalid_keys),
    ("readers_see_whole_batches", readers_see_whole_batches),
    ("snapshots_stay", snapshots_stay),
    ("scans_of_snapshots_stay", scans_of_snapshots_stay),
    ("random_against_a_model", random_against_a_model),
    ("reopen", reopen),
    ("closed", closed),
];

fn pairs(
    from: &(impl Read + ?Sized),
    column: Column,
    start: &[u8],
    end: &[u8],
    direction: Direction,
) -> Vec<(Key, Value)> {
    from.scan(column, start, end, direction)
        .expect("a scan")
        .collect::<Result<_, Error>>()
        .expect("pairs of a scan")
}

fn keys(from: &(impl Read + ?Sized), start: &str, end: &str, direction: Direction) -> Vec<String> {
    let pairs = pairs(
        from,
        Column::Data,
        start.as_bytes(),
        end.as_bytes(),
        direction,
    );
    let text = |key: Key| String::from_utf8(key.to_vec()).expect("a key of this case");
    pairs.into_iter().map(|(key, _)| text(key)).collect()
}

fn put(engine: &dyn Engine, pairs: &[(&str, &str)]) {
    let mut batch = Batch::default();
    for (key, value) in pairs {
        batch.put(Column::Data, key.to_string(), value.to_string());
    }
    engine.commit(&[batch]).expect("a commit");
}

fn get(from: &(impl Read + ?Sized), column: Column, key: &[u8]) -> Option<Value> {
    from.get(column, key).expect("a get")
}

fn ordered_scans(bed: &Bed<'_>) {
    let engine = (bed.open)();
    put(&*engine, &[("d", "4"), ("b", "2"), ("a", "1"), ("c", "3")]);
    let all = ["a", "b", "c", "d"];
    for (start, end, from, to) in [
        ("", "", 0, 4),
        ("a", "", 0, 4),
        ("b", "d", 1, 3),
        ("b", "b", 0, 0),
        ("bb", "cc", 2, 3),
        ("c", "b", 0, 0),
        ("e", "", 0, 0),
        ("", "a", 0, 0),
    ] {
        let mut expected = all[from..to].to_vec();
        assert_eq!(
            keys(&*engine, start, end, Forward),
            expected,
            "[{start}, {end})"
        );
        expected.reverse();
        assert_eq!(
            keys(&*engine, start, end, Reverse),
            expected,
            "[{start}, {end}) reversed"
        );
    }
    // More than fits one chunk of any engine, and large values.
    let mut batch = Batch::default();
    let expected: Vec<String> = (0..5000).map(|i| format!("many{i:05}")).collect();
    for key in &expected {
        batch.put(Column::Data, key.clone(), vec![7; 300]);
    }
    engine.commit(&[batch]).expect("a commit");
    assert_eq!(keys(&*engine, "many", "n", Forward), expected);
    let reversed: Vec<String> = expected.into_iter().rev().collect();
    assert_eq!(keys(&*engine, "many", "n", Reverse), reversed);
}

fn columns_are_apart(bed: &Bed<'_>) {
    let engine = (bed.open)();
    let mut batch = Batch::default();
    for column in Column::ALL {
        batch.put(column, "key", column.name());
        batch.put(column, vec![0xff; 9], "last");
    }
    engine.commit(&[batch]).expect("a commit");
    for column in Column::ALL {
        assert_eq!(
            get(&*engine, column, b"key").as_deref(),
            Some(column.name().as_bytes())
        );
        for direction in [Forward, Reverse] {
            assert_eq!(
                pairs(&*engine, column, b"", b"", direction).len(),
                2,
                "{column:?}"
            );
        }
    }
    let mut batch = Batch::default();
    batch.delete(Column::Lock, "key");
    engine.commit(&[batch]).expect("a commit");
    assert_eq!(get(&*engine, Column::Lock, b"key"), None);
    assert!(get(&*engine, Column::Write, b"key").is_some());
}

fn first_of_a_range(bed: &Bed<'_>) {
    let engine = (bed.open)();
    let first = |start: &str, end: &str| {
        engine
            .first(Column::Data, start.as_bytes(), end.as_bytes())
            .expect("a first")
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
    };
    assert_eq!(first("", ""), None);
    put(&*engine, &[("b", "2"), ("d", "4")]);
    let pair = |key: &str, value: &str| Some((key.into(), value.into()));
    assert_eq!(first("", ""), pair("b", "2"));
    assert_eq!(first("b", "c"), pair("b", "2"));
    assert_eq!(first("c", ""), pair("d", "4"));
    assert_eq!(first("c", "d"), None);
    assert_eq!(first("e", ""), None);
    assert_eq!(first("d", "b"), None);
    assert_eq!(first("b", "b"), None);
}

fn order_inside_a_group(bed: &Bed<'_>) {
    let engine = (bed.open)();
    let mut one = Batch::default();
    one.put(Column::Data, "a", "1");
    one.delete(Column::Data, "a");
    one.delete(Column::Data, "b");
    one.put(Column::Data, "b", "1");
    one.put(Column::Data, "c", "1");
    let mut two = Batch::default();
    two.put(Column::Data, "b", "2");
    two.delete(Column::Data, "c");
    engine
        .commit(&[Batch::default(), one, two])
        .expect("a commit");
    assert_eq!(keys(&*engine, "", "", Forward), ["b"]);
    assert_eq!(
        get(&*engine, Column::Data, b"b").as_deref(),
        Some(&b"2"[..])
    );
    engine.commit(&[]).expect("nothing to commit");
}

fn odd_keys_and_values(bed: &Bed<'_>) {
    let large = vec![0xab; 3 << 20];
    let model: BTreeMap<Vec<u8>, Vec<u8>> = [
        (vec![0], vec![]),
        (vec![0, 0], vec![0]),
        (vec![0, 0xff], vec![0xff]),
        (vec![1], vec![1, 0, 2]),
        (vec![0xff], vec![]),
        (vec![0xff, 0], b"x".to_vec()),
        (vec![0xff; 40], b"y".to_vec()),
        (vec![5; MAX_KEY_BYTES], b"long".to_vec()),
        (vec![6], large),
    ]
    .into();
    let mut engine = (bed.open)();
    let mut batch = Batch::default();
    for (key, value) in &model {
        batch.put(Column::Write, key.clone(), value.clone());
    }
    engine.commit(&[batch]).expect("a commit");
    for round in 0..2 {
        if round == 1 {
            if !bed.durable {
                break;
            }
            drop(engine);
            engine = (bed.open)();
        }
        for (key, value) in &model {
            let found = get(&*engine, Column::Write, key);
            assert!(
                found.as_deref() == Some(value),
                "value of {} bytes",
                value.len()
            );
        }
        let expected: Vec<&Vec<u8>> = model.keys().collect();
        let found = pairs(&*engine, Column::Write, b"", b"", Forward);
        assert!(
            found
                .iter()
                .map(|(key, _)| &key[..])
                .eq(expected.iter().map(|key| &key[..]))
        );
        let found = pairs(&*engine, Column::Write, b"\0", b"\xff\0", Reverse);
        assert_eq!(found.len(), 7);
    }
}

fn invalid_keys(bed: &Bed<'_>) {
    let engine = (bed.open)();
    for key in [vec![], vec![1; MAX_KEY_BYTES + 1]] {
        let mut good = Batch::default();
        good.put(Column::Data, "good", "1");
        let mut bad = Batch::default();
        bad.put(Column::Data, key, "1");
        let refused = engine.commit(&[good, bad]);
        assert!(
            matches!(refused, Err(Error::InvalidKey { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(keys(&*engine, "", "", Forward), Vec::<String>::new());
    put(&*engine, &[("good", "1")]);
}

/// One writer sets the same number in keys of all columns in one batch; readers must never find two
/// numbers in a snapshot, in a chunk of a scan, or an older one after a newer.
fn readers_see_whole_batches(bed: &Bed<'_>) {
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
        // Comes and goes, so that the number of pairs tells too.
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

fn snapshots_stay(bed: &Bed<'_>) {
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
fn scans_of_snapshots_stay(bed: &Bed<'_>) {
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

/// A generator of numbers that are all the same from run to run (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn key(&mut self) -> Vec<u8> {
        let len = 1 + self.below(3);
        (0..len)
            .map(|_| [0, 1, 0x7f, 0xff][self.below(4) as usize])
            .collect()
    }

    fn bound(&mut self) -> Vec<u8> {
        if self.below(4) == 0 {
            Vec::new()
        } else {
            self.key()
        }
    }
}

type Model = BTreeMap<(Column, Vec<u8>), Vec<u8>>;

fn check_against(from: &dyn Read, model: &Model, numbers: &mut Numbers, seed: u64) {
    let column = Column::ALL[numbers.below(4) as usize];
    let (start, end) = (numbers.bound(), numbers.bound());
    let mut expected: Vec<(&[u8], &[u8])> = model
        .iter()
        .filter(|((of, key), _)| *of == column && *key >= start && (end.is_empty() || *key < end))
        .map(|((_, key), value)| (&key[..], &value[..]))
        .collect();
    let first = from.first(column, &start, &end).expect("a first");
    let first = first.as_ref().map(|(key, value)| (&key[..], &value[..]));
    assert_eq!(
        first,
        expected.first().copied(),
        "seed {seed}: first of [{start:?}, {end:?})"
    );
    for direction in [Forward, Reverse] {
        let found = pairs(from, column, &start, &end, direction);
        let found: Vec<_> = found
            .iter()
            .map(|(key, value)| (&key[..], &value[..]))
            .collect();
        assert_eq!(
            found, expected,
            "seed {seed}: {direction:?} [{start:?}, {end:?})"
        );
        expected.reverse();
    }
    let key = numbers.key();
    let found = get(from, column, &key).map(|value| value.to_vec());
    assert_eq!(
        found.as_ref(),
        model.get(&(column, key.clone())),
        "seed {seed}: get {key:?}"
    );
}

fn random_against_a_model(bed: &Bed<'_>) {
    let mut engine = (bed.open)();
    let mut model = Model::new();
    for seed in 1..=12 {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut held = Vec::new();
        for _ in 0..80 {
            let group: Vec<Batch> = (0..numbers.below(4))
                .map(|_| {
                    let mut batch = Batch::default();
                    for _ in 0..numbers.below(6) {
                        let column = Column::ALL[numbers.below(4) as usize];
                        let key = numbers.key();
                        if numbers.below(3) == 0 {
                            model.remove(&(column, key.clone()));
                            batch.delete(column, key);
                        } else {
                            let value = numbers.bound();
                            model.insert((column, key.clone()), value.clone());
                            batch.put(column, key, value);
                        }
                    }
                    batch
                })
                .collect();
            engine.commit(&group).expect("a commit");
            match numbers.below(6) {
                0 if held.len() < 5 => {
                    held.push((engine.snapshot().expect("a snapshot"), model.clone()));
                }
                1 if !held.is_empty() => {
                    held.swap_remove(numbers.below(held.len() as u64) as usize);
                }
                _ => {}
            }
            check_against(&*engine, &model, &mut numbers, seed);
            for (snapshot, model) in &held {
                check_against(&**snapshot, model, &mut numbers, seed);
            }
        }
        drop(held);
        if bed.durable && seed % 3 == 0 {
            if seed % 2 == 0 {
                engine.close().expect("a close");
            }
            drop(engine);
            engine = (bed.open)();
        }
    }
}

fn reopen(bed: &Bed<'_>) {
    for round in 0..4 {
        let engine = (bed.open)();
        let expected: Vec<String> = (0..if bed.durable { round } else { 0 })
            .map(|i| format!("round{i}"))
            .collect();
        assert_eq!(keys(&*engine, "", "", Forward), expected);
        put(&*engine, &[(&format!("round{round}"), ""), ("gone", "1")]);
        let mut batch = Batch::default();
        batch.delete(Column::Data, "gone");
        engine.commit(&[batch]).expect("a commit");
        if round == 2 {
            engine.close().expect("a close");
        }
    }
}

fn closed(bed: &Bed<'_>) {
    let engine = (bed.open)();
    put(&*engine, &[("a", "1")]);
    engine.close().expect("a close");
    engine.close().expect("a second close");
    let mut batch = Batch::default();
    batch.put(Column::Data, "b", "1");
    let refused = engine.commit(&[batch]);
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    assert_eq!(keys(&*engine, "", "", Forward), ["a"]);
}
