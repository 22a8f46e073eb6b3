//! A buffered store reads as a plain one would, whatever is buffered, being flushed or in the store.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use percolator_engine::{
    Batch, Buffered, Checkpoint, Column, ConcurrentStore, Direction, Error, Key, MemoryStore, Step,
    StepHook, Store, Value,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

type Model = BTreeMap<(Column, Key), Value>;

fn key(rng: &mut StdRng) -> Key {
    let length = rng.random_range(1..3);
    (0..length)
        .map(|_| b'a' + rng.random_range(0..6))
        .collect::<Vec<u8>>()
        .into()
}

fn change(rng: &mut StdRng, store: &impl Store, model: &mut Model) {
    let mut batch = Batch::default();
    for _ in 0..rng.random_range(1..6) {
        let column = Column::ALL[rng.random_range(0..Column::ALL.len())];
        let key = key(rng);
        if rng.random_range(0..5) < 3 {
            let value = Value::from(rng.random::<u32>().to_string());
            batch.put(column, key.clone(), value.clone());
            model.insert((column, key), value);
        } else {
            batch.delete(column, key.clone());
            model.remove(&(column, key));
        }
    }
    store.wait_for_room();
    store.apply(&[batch]).expect("applied");
}

fn expected(
    model: &Model,
    column: Column,
    start: &[u8],
    end: &[u8],
    direction: Direction,
) -> Vec<(Key, Value)> {
    let mut pairs: Vec<_> = model
        .iter()
        .filter(|((its, key), _)| {
            *its == column && key[..] >= *start && (end.is_empty() || key[..] < *end)
        })
        .map(|((_, key), value)| (key.clone(), value.clone()))
        .collect();
    if direction == Direction::Reverse {
        pairs.reverse();
    }
    pairs
}

/// A whole range, in chunks of `limit`.
fn scanned(
    store: &impl Store,
    column: Column,
    start: &[u8],
    end: &[u8],
    direction: Direction,
    limit: usize,
) -> Vec<(Key, Value)> {
    let (mut start, mut end) = (start.to_vec(), end.to_vec());
    let mut pairs = Vec::new();
    loop {
        let before = pairs.len();
        let done = store
            .chunk(column, &start, &end, direction, limit, &mut pairs)
            .expect("read");
        if done {
            return pairs;
        }
        assert!(
            pairs.len() > before,
            "a chunk of nothing that isn't the end"
        );
        let last = pairs.last().expect("a pair").0.to_vec();
        match direction {
            Direction::Forward => {
                start = last;
                start.push(0);
            }
            Direction::Reverse => end = last,
        }
    }
}

fn compare(rng: &mut StdRng, store: &impl Store, model: &Model) {
    let column = Column::ALL[rng.random_range(0..Column::ALL.len())];
    let (mut start, mut end) = (key(rng).to_vec(), key(rng).to_vec());
    if rng.random_range(0..4) == 0 {
        start.clear();
    }
    if rng.random_range(0..4) == 0 {
        end.clear();
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let expected = expected(model, column, &start, &end, direction);
        let limit = rng.random_range(1..8);
        assert_eq!(
            scanned(store, column, &start, &end, direction, limit),
            expected,
            "{direction:?} {limit}"
        );
    }
    let first = expected(model, column, &start, &end, Direction::Forward)
        .into_iter()
        .next();
    assert_eq!(store.first(column, &start, &end).expect("read"), first);
    let key = key(rng);
    assert_eq!(
        store.get(column, &key).expect("read"),
        model.get(&(column, key)).cloned()
    );
}

fn seed() -> u64 {
    let seed = std::env::var("PERCOLATOR_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    eprintln!("PERCOLATOR_TEST_SEED={seed}");
    seed
}

#[test]
fn reads_as_a_plain_store_between_checkpoints() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..200 {
        let store = Buffered::new(MemoryStore::default(), 1 << 20).expect("a store");
        let mut model = Model::new();
        for _ in 0..60 {
            change(&mut rng, &store, &mut model);
            compare(&mut rng, &store, &model);
            if rng.random_range(0..8) == 0 {
                store.checkpoint(&go_on).expect("flushed");
                compare(&mut rng, &store, &model);
            }
        }
    }
}

#[test]
fn reads_as_a_plain_store_while_checkpoints_are_made() {
    let mut rng = StdRng::seed_from_u64(seed());
    // So small that commits wait for checkpoints too.
    let store = Buffered::new(MemoryStore::default(), 2000).expect("a store");
    let mut model = Model::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.checkpoint(&go_on).expect("flushed");
            }
        });
        for _ in 0..20_000 {
            change(&mut rng, &store, &mut model);
            compare(&mut rng, &store, &model);
        }
        stop.store(true, Ordering::Relaxed);
    });
    for column in Column::ALL {
        assert_eq!(
            scanned(&store, column, &[], &[], Direction::Forward, 7),
            expected(&model, column, &[], &[], Direction::Forward)
        );
    }
}

/// A store that has no room at every other question, or so, and counts how often it is to write.
struct Tight {
    store: MemoryStore,
    /// Without it, there is always room.
    answers: Option<Mutex<StdRng>>,
    writes: Arc<AtomicUsize>,
}

impl Tight {
    fn new(seed: Option<u64>) -> Self {
        Self {
            store: MemoryStore::default(),
            answers: seed.map(|seed| Mutex::new(StdRng::seed_from_u64(seed))),
            writes: Arc::default(),
        }
    }
}

impl ConcurrentStore for Tight {}

impl Store for Tight {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.store.get(column, key)
    }

    fn chunk(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
        limit: usize,
        into: &mut Vec<(Key, Value)>,
    ) -> Result<bool, Error> {
        self.store.chunk(column, start, end, direction, limit, into)
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.store.first(column, start, end)
    }

    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let has_room = |answers: &Mutex<StdRng>| answers.lock().expect("the generator").random();
        if self.answers.as_ref().is_none_or(has_room) {
            return Ok(());
        }
        Err(Error::Full {
            path: "somewhere".into(),
            needed_bytes: bytes as u64,
            reserve_bytes: 0,
        })
    }

    fn write_out(&self) -> Result<(), Error> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        self.store.apply(group)
    }

    fn checkpoint(&self, _rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        Ok(Checkpoint::Durable)
    }

    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }
}

#[test]
fn checkpoints_that_find_no_room_lose_nothing_and_hold_up_nobody() {
    let mut rng = StdRng::seed_from_u64(seed());
    let tight = Tight::new(Some(rng.random()));
    // So small that commits would wait all the time.
    let store = Buffered::new(tight, 100).expect("a store");
    let mut model = Model::new();
    let mut made = 0;
    for _ in 0..2000 {
        for _ in 0..4 {
            change(&mut rng, &store, &mut model);
            compare(&mut rng, &store, &model);
        }
        match store.checkpoint(&go_on) {
            Ok(_) => made += 1,
            Err(Error::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        compare(&mut rng, &store, &model);
    }
    assert!((100..1900).contains(&made), "{made} checkpoints were made");
}

#[test]
fn a_checkpoint_goes_on_where_the_last_one_found_no_room() {
    let store = Buffered::new(Tight::new(Some(seed())), 1 << 30).expect("a store");
    // Many steps of a checkpoint, which one run of good luck doesn't make.
    let mut batch = Batch::default();
    for i in 0..8_004_u32 {
        batch.put(
            Column::ALL[i as usize % Column::ALL.len()],
            i.to_be_bytes().to_vec(),
            "value",
        );
    }
    store.apply(&[batch]).expect("applied");
    let mut tries = 1;
    while store.checkpoint(&go_on).is_err() {
        tries += 1;
        assert!(tries < 1000, "each try starts anew");
    }
    for column in Column::ALL {
        let all = scanned(&store, column, &[], &[], Direction::Forward, 1000);
        assert_eq!(all.len(), 8_004 / Column::ALL.len());
    }
}

fn go_on(_: Step) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_checkpoint_rests_while_there_is_room_for_more() {
    const HALF_FULL: u32 = 20_000;
    let store = Buffered::new(MemoryStore::default(), 8 << 20).expect("a store");
    let put = |from: u32, to: u32| {
        let mut batch = Batch::default();
        for i in from..to {
            batch.put(Column::Data, i.to_be_bytes().to_vec(), vec![0; 64]);
        }
        store.apply(&[batch]).expect("applied");
    };
    put(0, 10_000);
    let (steps, hasty) = (Cell::new(0), Cell::new(0));
    store
        .checkpoint(&|step| {
            steps.set(steps.get() + 1);
            hasty.set(hasty.get() + usize::from(step.leisure <= 0.0));
            // Neither reads nor changes wait for a checkpoint that rests.
            assert!(store.get(Column::Data, &[0; 4]).expect("a get").is_some());
            put(10_000, 10_001);
            go_on(step)
        })
        .expect("made");
    assert!(steps.get() > 10 && hasty.get() == 0, "{steps:?} {hasty:?}");
    put(0, 10_000);
    steps.set(0);
    store
        .checkpoint(&|step| {
            steps.set(steps.get() + 1);
            hasty.set(hasty.get() + usize::from(step.leisure <= 0.0));
            if steps.get() == 1 {
                put(0, HALF_FULL);
            }
            go_on(step)
        })
        .expect("made");
    assert_eq!(hasty.get(), steps.get() - 1, "the next buffer is half full");
}

#[test]
fn a_checkpoint_writes_as_it_goes_while_there_is_time_and_rests_the_less_the_less_there_is() {
    const BUFFER_BYTES: usize = 8 << 20;
    let put = |store: &Buffered<Tight>, from: u32, to: u32| {
        let mut batch = Batch::default();
        for i in from..to {
            batch.put(Column::Data, i.to_be_bytes().to_vec(), vec![0; 64]);
        }
        store.apply(&[batch]).expect("applied");
    };
    let writes = |fills: bool| {
        let tight = Tight::new(None);
        let writes = tight.writes.clone();
        let store = Buffered::new(tight, BUFFER_BYTES).expect("a store");
        put(&store, 0, 10_000);
        let mut seen = Vec::new();
        let steps = Mutex::new(&mut seen);
        let made = store.checkpoint(&|step| {
            let mut steps = steps.lock().expect("the steps");
            let count = u32::try_from(steps.len()).expect("few");
            steps.push(step.leisure);
            if fills {
                put(&store, 100 * count, 100 * (count + 1));
            }
            ControlFlow::Continue(())
        });
        made.expect("made");
        (seen, writes.load(Ordering::Relaxed))
    };
    let (alone, written) = writes(false);
    assert!(alone.iter().all(|leisure| *leisure == 1.0), "{alone:?}");
    assert!(
        (alone.len() / 8..alone.len()).contains(&written),
        "{written}"
    );
    let (beside, written_beside) = writes(true);
    assert_eq!(beside.first(), Some(&1.0));
    assert!(
        beside.is_sorted_by(|one, next| one >= next),
        "it falls: {beside:?}"
    );
    assert!(
        beside.iter().any(|leisure| (0.2..0.8).contains(leisure)),
        "by and by: {beside:?}"
    );
    assert_eq!(beside.last(), Some(&0.0));
    assert!(
        written_beside < written,
        "{written_beside} of {written}: in haste it doesn't wait for the device"
    );
}

#[test]
fn a_checkpoint_that_was_broken_off_goes_on() {
    let store = Buffered::new(MemoryStore::default(), 1 << 30).expect("a store");
    let mut batch = Batch::default();
    for i in 0..4_002_u32 {
        let column = Column::ALL[i as usize % Column::ALL.len()];
        batch.put(column, i.to_be_bytes().to_vec(), "value");
    }
    store.apply(&[batch]).expect("applied");
    let steps = Cell::new(0);
    let one = |_| {
        steps.set(steps.get() + 1);
        ControlFlow::Break(())
    };
    let mut made = Checkpoint::BrokenOff;
    while made == Checkpoint::BrokenOff {
        assert!(steps.get() < 300, "each try starts anew");
        made = store.checkpoint(&one).expect("no error");
        for column in Column::ALL {
            let all = scanned(&store, column, &[], &[], Direction::Forward, 1000);
            assert_eq!(all.len(), 4_002 / Column::ALL.len(), "after {steps:?}");
        }
    }
}
