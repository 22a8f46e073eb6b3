//! The suite every engine has to pass. A failure is a panic that says what was expected.

mod random;
mod snapshots;

use std::collections::BTreeMap;

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
    ("long_values", long_values),
    (
        "readers_see_whole_batches",
        snapshots::readers_see_whole_batches,
    ),
    ("snapshots_stay", snapshots::snapshots_stay),
    (
        "scans_of_snapshots_stay",
        snapshots::scans_of_snapshots_stay,
    ),
    ("random_against_a_model", random::random_against_a_model),
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

/// Values of every length that a store may treat in its own way, replaced by each other and deleted.
fn long_values(bed: &Bed<'_>) {
    const LENGTHS: [usize; 9] = [
        0,
        1,
        1 << 10,
        (16 << 10) - 1,
        16 << 10,
        (16 << 10) + 1,
        100_000,
        1 << 20,
        4 << 20,
    ];
    let value = |at: usize| -> Value {
        let len = LENGTHS[at % LENGTHS.len()];
        (0..len).map(|i| (i + at) as u8).collect()
    };
    let mut engine = (bed.open)();
    let mut model = BTreeMap::new();
    for round in 0..4 {
        let mut batch = Batch::default();
        for number in 0..LENGTHS.len() {
            let key = format!("key{number}");
            if (round + number) % 5 == 4 {
                batch.delete(Column::Data, key.clone());
                model.remove(&key);
            } else {
                let at = number + round * 4;
                batch.put(Column::Data, key.clone(), value(at));
                model.insert(key, value(at));
            }
        }
        engine.commit(&[batch]).expect("a commit");
        if bed.durable {
            engine.close().expect("a close");
            drop(engine);
            engine = (bed.open)();
        }
        let found = pairs(&*engine, Column::Data, b"", b"", Reverse);
        let expected = model.iter().rev();
        let expected: Vec<(Key, Value)> = expected
            .map(|(key, value)| (key.clone().into(), value.clone()))
            .collect();
        assert!(
            found == expected,
            "round {round}: a scan finds other values"
        );
        for (key, value) in &model {
            let got = get(&*engine, Column::Data, key.as_bytes());
            assert!(
                got.as_ref() == Some(value),
                "round {round}: {key} has another value"
            );
        }
    }
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
