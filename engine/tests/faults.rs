//! Full disks, failed syncs, failing stores: nothing acknowledged is lost, nothing unknown is called
//! done.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{FaultyDisk, log_path, memory, open, open_with, options, put};
use percolator_engine::{
    Backend, Batch, Checkpoint, Checkpoints, Column, Direction, Durable, Engine, Error, Key,
    MemoryStore, Options, Read, Scan, Snapshot, StepHook, Store, Value, Versioned,
};

fn get(engine: &dyn Engine, key: &str) -> Option<Value> {
    engine.get(Column::Data, key.as_bytes()).expect("a get")
}

#[test]
fn a_full_disk_takes_nothing_and_goes_on_when_there_is_room() {
    // However much of the record still fits.
    for room in 0..40 {
        let disk = FaultyDisk::default();
        let engine = open(&disk, 1 << 20).expect("an engine");
        engine.commit(&[put("a", "1")]).expect("a commit");
        disk.state().room = Some(room);
        for _ in 0..2 {
            let refused = engine.commit(&[put("b", "some value"), put("c", "some value")]);
            assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
            assert_eq!(get(&engine, "b"), None);
        }
        let crashed = FaultyDisk::with(disk.state().files.clone());
        let crashed = open(&crashed, 1 << 20).expect("an engine");
        assert!(get(&crashed, "a").is_some() && get(&crashed, "b").is_none());
        disk.state().room = None;
        engine.commit(&[put("d", "4")]).expect("a commit");
        drop(engine);
        let engine = open(&disk, 1 << 20).expect("an engine");
        assert!(get(&engine, "a").is_some() && get(&engine, "d").is_some());
        assert_eq!(get(&engine, "b"), None);
    }
}

/// A process that was killed between its write and its sync leaves a record that is only in memory. Anyone who
/// replays it shows it to readers, so it has to be on the device then.
#[test]
fn what_is_replayed_is_synced_before_it_is_seen() {
    let disk = FaultyDisk::default();
    let engine = open(&disk, 1 << 20).expect("an engine");
    engine.commit(&[put("a", "1")]).expect("a commit");
    drop(engine);
    let killed = FaultyDisk::with(disk.state().files.clone());
    let engine = open(&killed, 1 << 20).expect("an engine");
    assert!(get(&engine, "a").is_some());
    assert!(killed.state().syncs > 0, "seen, and not synced");
}

#[test]
fn the_reserve_is_kept_free() {
    let disk = FaultyDisk::default();
    let options = Options {
        reserve_bytes: 1000,
        ..options(1 << 20)
    };
    let engine = open_with(&disk, memory(), &options).expect("an engine");
    disk.state().free_bytes = Some(1010);
    let refused = engine.commit(&[put("a", "1")]);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    disk.state().free_bytes = Some(1100);
    engine.commit(&[put("a", "1")]).expect("a commit");
}

#[test]
fn a_failed_sync_stops_the_engine_and_is_not_tried_again() {
    let disk = FaultyDisk::default();
    let engine = open(&disk, 1 << 20).expect("an engine");
    engine.commit(&[put("a", "1")]).expect("a commit");
    disk.state().fail_syncs = true;
    let failed = engine.commit(&[put("b", "2")]);
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
    disk.state().fail_syncs = false;
    let syncs = disk.state().syncs;
    let failed = engine.commit(&[put("c", "3")]);
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
    assert_eq!(disk.state().syncs, syncs);
    assert!(matches!(
        engine.get(Column::Data, b"a"),
        Err(Error::Poisoned { .. })
    ));
    assert!(engine.snapshot().is_err() && engine.close().is_err());
    drop(engine);
    let engine = open(&disk, 1 << 20).expect("an engine");
    assert!(get(&engine, "a").is_some() && get(&engine, "c").is_none());
}

#[test]
fn what_cannot_be_taken_back_stops_the_engine() {
    let disk = FaultyDisk::default();
    let engine = open(&disk, 1 << 20).expect("an engine");
    disk.state().room = Some(10);
    disk.state().fail_truncates = true;
    let failed = engine.commit(&[put("b", "2")]);
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
    drop(engine);
    disk.state().room = None;
    let engine = open(&disk, 1 << 20).expect("an engine");
    assert_eq!(get(&engine, "b"), None);
}

/// A store that fails on request: in the middle of a group, or at a checkpoint.
#[derive(Default)]
struct Failing {
    store: MemoryStore,
    fail: AtomicBool,
    /// There's no room for a checkpoint.
    full: AtomicBool,
    /// How often a checkpoint had no room.
    refused: AtomicUsize,
    /// How many were made.
    made: AtomicUsize,
    /// Says that a checkpoint is on the device.
    durable: AtomicBool,
}

impl Failing {
    fn check(&self) -> Result<(), Error> {
        if self.fail.load(Ordering::Relaxed) {
            Err(Error::Store {
                damaged: false,
                engine: "failing",
                path: log_path().to_owned(),
                detail: "no space".to_owned(),
            })
        } else {
            Ok(())
        }
    }
}

/// Shared, so that the test can make it fail.
struct Shared(std::sync::Arc<Failing>);

impl Store for Shared {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.0.store.get(column, key)
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
        self.0
            .store
            .chunk(column, start, end, direction, limit, into)
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.0.store.first(column, start, end)
    }

    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        let half = group.len() / 2;
        self.0.store.apply(&group[..half])?;
        self.0.check()?;
        self.0.store.apply(&group[half..])
    }

    fn checkpoint(&self, _rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        self.0.check()?;
        if self.0.full.load(Ordering::Relaxed) {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Error::Full {
                path: log_path().to_owned(),
                needed_bytes: 1,
                reserve_bytes: 0,
            });
        }
        self.0.made.fetch_add(1, Ordering::Relaxed);
        Ok(if self.0.durable.load(Ordering::Relaxed) {
            Checkpoint::Durable
        } else {
            Checkpoint::Volatile
        })
    }

    fn size_bytes(&self) -> u64 {
        0
    }
}

/// After a loss of power nobody could say whether the new segment's name is there.
#[test]
fn a_segment_whose_name_is_not_synced_stops_the_engine_though_there_was_no_room() {
    let disk = FaultyDisk::default();
    let engine = open(&disk, 10).expect("an engine");
    disk.state().is_full_for_names = true;
    engine.commit(&[put("a", "1")]).expect("it is in the log");
    let failed = engine.commit(&[put("b", "2")]);
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
}

#[test]
fn a_long_log_is_replayed_in_parts() {
    let disk = FaultyDisk::default();
    let engine = open(&disk, 100).expect("an engine");
    for i in 0..40 {
        engine
            .commit(&[put(&format!("{i}"), "some value")])
            .expect("a commit");
    }
    drop(engine);
    let segments = disk.state().files.len();
    assert!(segments > 10, "{segments}");
    for (is_full, fewest) in [(true, 1), (false, segments / 4)] {
        let store = std::sync::Arc::new(Failing::default());
        store.durable.store(true, Ordering::Relaxed);
        store.full.store(is_full, Ordering::Relaxed);
        let backend = Versioned::new(Shared(std::sync::Arc::clone(&store)), 1 << 20);
        let opened = open_with(&disk, backend, &options(100)).expect("an engine");
        assert!((0..40).all(|i| get(&opened, &format!("{i}")).is_some()));
        let counted = if is_full { &store.refused } else { &store.made };
        let counted = counted.load(Ordering::Relaxed);
        assert!(counted >= fewest, "{counted} checkpoints of {segments}");
        assert_eq!(is_full, disk.state().files.len() > segments, "all stay");
    }
}

#[test]
fn a_failing_store_stops_the_engine_and_the_log_has_the_group() {
    let disk = FaultyDisk::default();
    let store = std::sync::Arc::new(Failing::default());
    let backend = Versioned::new(Shared(std::sync::Arc::clone(&store)), 1 << 20);
    let engine = open_with(&disk, backend, &options(1 << 20)).expect("an engine");
    let snapshot = engine.snapshot().expect("a snapshot");
    store.fail.store(true, Ordering::Relaxed);
    let failed = engine.commit(&[put("a", "1"), put("b", "2")]);
    assert!(
        matches!(failed, Err(Error::DurableButStopped { .. })),
        "{failed:?}"
    );
    store.fail.store(false, Ordering::Relaxed);
    let failed = engine.commit(&[put("c", "3")]);
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
    // Half of the group is in the store: nobody may read it.
    assert!(engine.get(Column::Data, b"a").is_err());
    assert!(snapshot.get(Column::Data, b"a").is_err());
    drop(snapshot);
    drop(engine);
    let engine = open(&disk, 1 << 20).expect("an engine");
    assert!(get(&engine, "a").is_some() && get(&engine, "b").is_some());
    assert_eq!(get(&engine, "c"), None);
}

#[test]
fn a_failed_checkpoint_stops_the_engine_and_keeps_the_log() {
    let disk = FaultyDisk::default();
    let store = std::sync::Arc::new(Failing::default());
    let backend = Versioned::new(Shared(std::sync::Arc::clone(&store)), 1 << 20);
    let engine = open_with(&disk, backend, &options(100)).expect("an engine");
    engine.commit(&[put("a", "1")]).expect("a commit");
    store.fail.store(true, Ordering::Relaxed);
    assert!(engine.close().is_err());
    drop(engine);
    let engine = open(&disk, 100).expect("an engine");
    assert!(get(&engine, "a").is_some());
}

#[test]
fn what_ends_something_may_use_the_reserve() {
    let disk = FaultyDisk::default();
    let options = Options {
        reserve_bytes: 1000,
        last_reserve_bytes: 400,
        ..options(1 << 20)
    };
    let engine = open_with(&disk, memory(), &options).expect("an engine");
    let ending = |key| {
        let mut batch = put(key, "1");
        batch.spend_reserve();
        batch
    };
    let full = |refused: Result<(), Error>, bound: u64| {
        assert!(
            matches!(refused, Err(Error::Full { reserve_bytes, .. }) if reserve_bytes == bound),
            "{refused:?}"
        );
    };
    disk.state().free_bytes = Some(900);
    full(engine.commit(&[put("a", "1")]), 1000);
    // One that is not marked makes the group an ordinary one.
    full(engine.commit(&[ending("b"), put("a", "1")]), 1000);
    assert_eq!(get(&engine, "b"), None);
    engine
        .commit(&[ending("b"), ending("c")])
        .expect("a commit");
    disk.state().free_bytes = Some(410);
    full(engine.commit(&[ending("d")]), 400);
    assert!(get(&engine, "b").is_some() && get(&engine, "c").is_some());
}

/// A checkpoint that has no room is no damage: the log has everything, and it is made when there is room.
#[test]
fn a_checkpoint_without_room_is_made_later() {
    let disk = FaultyDisk::default();
    let store = std::sync::Arc::new(Failing::default());
    let backend = Versioned::new(Shared(std::sync::Arc::clone(&store)), 1 << 20);
    let engine = open_with(&disk, backend, &options(100)).expect("an engine");
    store.durable.store(true, Ordering::Relaxed);
    store.full.store(true, Ordering::Relaxed);
    for i in 0..20 {
        let key = format!("{i}");
        engine.commit(&[put(&key, "some value")]).expect("a commit");
        assert!(get(&engine, &key).is_some());
    }
    assert!(
        disk.state().files.len() > 5,
        "what is not in the store stays in the log"
    );
    let crashed = FaultyDisk::with(disk.state().files.clone());
    let crashed = open(&crashed, 100).expect("an engine");
    assert!((0..20).all(|i| get(&crashed, &format!("{i}")).is_some()));
    store.full.store(false, Ordering::Relaxed);
    engine
        .commit(&[put("more", "some value")])
        .expect("a commit");
    assert!(
        disk.state().files.len() <= 2,
        "the checkpoint was not made up for"
    );
    store.full.store(true, Ordering::Relaxed);
    engine.commit(&[put("last", "1")]).expect("a commit");
    engine.close().expect("closing needs no room");
}

/// The same where checkpoints are made beside the commits: nobody has to ask for it again.
#[test]
fn a_checkpoint_in_the_background_waits_for_room() {
    let disk = FaultyDisk::default();
    let store = std::sync::Arc::new(Failing::default());
    store.durable.store(true, Ordering::Relaxed);
    store.full.store(true, Ordering::Relaxed);
    let engine = Durable::open(
        std::sync::Arc::new(disk.clone()),
        log_path(),
        Versioned::new(Shared(std::sync::Arc::clone(&store)), 1 << 20),
        &options(100),
        Checkpoints::Background,
    )
    .expect("an engine");
    for i in 0..20 {
        engine
            .commit(&[put(&format!("{i}"), "some value")])
            .expect("a commit");
    }
    while store.refused.load(Ordering::Relaxed) < 2 {
        std::thread::yield_now();
    }
    assert!(disk.state().files.len() > 5);
    engine.commit(&[put("a", "1")]).expect("a commit");
    store.full.store(false, Ordering::Relaxed);
    while disk.state().files.len() > 2 {
        assert!(get(&engine, "a").is_some());
        std::thread::yield_now();
    }
}

#[test]
fn a_snapshot_held_too_long_is_refused_and_newer_ones_go_on() {
    let disk = FaultyDisk::default();
    let backend = Versioned::new(MemoryStore::default(), 64 << 10);
    let engine: Durable<_> = open_with(&disk, backend, &options(1 << 20)).expect("an engine");
    let value = |i: u32| "x".repeat(1000) + &i.to_string();
    engine
        .commit(&[put("key", &value(0)), put("stays", "1")])
        .expect("a commit");
    let old = engine.snapshot().expect("a snapshot");
    let mut scan = old
        .scan(Column::Data, b"", b"", Direction::Forward)
        .expect("a scan");
    let mut newer = None;
    for i in 0..200 {
        if i == 150 {
            newer = Some(engine.snapshot().expect("a snapshot"));
        }
        engine
            .commit(&[put("key", &value(i)), put(&format!("{i}"), &value(i))])
            .expect("a commit");
        // Every snapshot makes the next overwrite save a value again.
        if i % 2 == 0 {
            drop(engine.snapshot().expect("a snapshot"));
        }
    }
    // A new snapshot each time, so that each overwrite has to be saved for somebody.
    let mut held = Vec::new();
    for i in 0..200 {
        held.push(engine.snapshot().expect("a snapshot"));
        engine.commit(&[put("key", &value(i))]).expect("a commit");
    }
    let too_old = |result: Result<(), Error>| matches!(result, Err(Error::SnapshotTooOld { .. }));
    assert!(too_old(old.get(Column::Data, b"key").map(|_| ())));
    assert!(too_old(scan.next().transpose().map(|_| ())));
    assert!(scan.next().is_none());
    assert!(too_old(
        newer
            .expect("one")
            .first(Column::Data, b"", b"")
            .map(|_| ())
    ));
    for (i, snapshot) in held.iter().enumerate().skip(160).skip(1) {
        let found = snapshot.get(Column::Data, b"key").expect("a get");
        assert_eq!(found.as_deref(), Some(value(i as u32 - 1).as_bytes()));
    }
    drop(scan);
}

/// Only so that the trait's object safety is used: what the simulator does.
#[test]
fn a_backend_of_ones_own() {
    struct Mine(Versioned<MemoryStore>);
    impl Read for Mine {
        fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
            self.0.get(column, key)
        }
        fn scan<'a>(
            &'a self,
            column: Column,
            start: &[u8],
            end: &[u8],
            direction: Direction,
        ) -> Result<Scan<'a>, Error> {
            self.0.scan(column, start, end, direction)
        }
    }
    impl Backend for Mine {
        fn apply(&self, group: &[Batch]) -> Result<(), Error> {
            self.0.apply(group)
        }
        fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
            self.0.snapshot()
        }
        /// Says it is durable: the log is cut.
        fn checkpoint(&self, _rest: StepHook<'_>) -> Result<Checkpoint, Error> {
            Ok(Checkpoint::Durable)
        }
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }
        fn live_snapshots(&self) -> u64 {
            self.0.live_snapshots()
        }
    }
    let disk = FaultyDisk::default();
    let engine = Durable::open(
        std::sync::Arc::new(disk.clone()),
        log_path(),
        Mine(memory()),
        &options(100),
        Checkpoints::AT_ONCE,
    )
    .expect("an engine");
    for i in 0..20 {
        engine
            .commit(&[put(&format!("{i}"), "some value")])
            .expect("a commit");
        assert!(
            disk.state().files.len() <= 2,
            "a checkpoint removes older segments"
        );
    }
    assert_eq!(
        engine
            .first(Column::Data, b"5", b"6")
            .expect("a first")
            .map(|p| p.0),
        Some("5".into())
    );
    assert_eq!(engine.stats().syncs, 20);
}
