//! Random groups, snapshots and reopens, compared with a map.

use std::collections::BTreeMap;

use super::{Bed, get, pairs};
use crate::{
    Batch, Column,
    Direction::{Forward, Reverse},
    Read,
};

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
    let column = Column::ALL[numbers.below(Column::ALL.len() as u64) as usize];
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

pub(super) fn random_against_a_model(bed: &Bed<'_>) {
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
                        let column = Column::ALL[numbers.below(Column::ALL.len() as u64) as usize];
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
