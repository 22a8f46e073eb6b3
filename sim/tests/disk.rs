//! The simulated device: what was synced stays, and of the rest anything may be there.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use percolator_engine::disk::{Disk, DiskFile};
use percolator_engine::{
    Batch, Checkpoints, Column, Durable, Engine, EngineKind, Error, MemoryStore, Options, Read,
    Versioned,
};
use percolator_sim::disk::SimDisk;
use percolator_sim::rng::Rng;

const OLD: [u8; 2_000] = [1; 2_000];
const NEW: [u8; 1_500] = [2; 1_500];

fn write(disk: &SimDisk, name: &str, bytes: &[u8], sync: bool) -> Box<dyn DiskFile> {
    let mut file = disk.create(name).expect("a new file");
    file.append(bytes).expect("room");
    if sync {
        file.sync_data().expect("a sync");
        disk.sync_folder().expect("a sync");
    }
    file
}

/// A folder with the file `a`, removed and gone over by `b`, which wasn't synced: `None`, where this device
/// doesn't write over files.
fn written_over(seed: u64) -> Option<SimDisk> {
    let disk = SimDisk::new(&Rng::new(seed, "disk"));
    drop(write(&disk, "a", &OLD, true));
    disk.remove("a").expect("it is there");
    disk.sync_folder().expect("a sync");
    if disk.list().expect("names").is_empty() {
        return None;
    }
    drop(disk.create("b").expect("a new file"));
    disk.sync_folder().expect("a sync");
    Some(disk)
}

#[test]
fn what_was_synced_stays() {
    for seed in 0..50 {
        let disk = SimDisk::new(&Rng::new(seed, "disk"));
        let mut file = write(&disk, "a", &OLD, true);
        disk.crash();
        assert_eq!(disk.read("a").expect("a file"), OLD);
        // Cut, and not synced: either may be there, and what is there now stays.
        file.truncate(10).expect("a cut");
        disk.crash();
        let left = disk.read("a").expect("a file");
        assert!(
            OLD.starts_with(&left) && left.len() >= 10,
            "{} bytes",
            left.len()
        );
        disk.crash();
        assert_eq!(disk.read("a").expect("a file"), left);
    }
}

#[test]
fn a_file_that_is_written_over_is_torn_between_old_and_new() {
    let mut kinds = BTreeSet::new();
    for seed in 0..200 {
        let Some(disk) = written_over(seed) else {
            continue;
        };
        assert_eq!(disk.read("b").expect("a file"), OLD, "what it held");
        disk.remove("b").expect("it is there");
        drop(write(&disk, "b", &NEW, false));
        disk.sync_folder().expect("a sync");
        disk.crash();
        let left = disk.read("b").expect("a file");
        assert_eq!(left.len(), OLD.len());
        assert_eq!(left[NEW.len()..], OLD[NEW.len()..]);
        let sectors: Vec<u8> = left[..NEW.len()]
            .chunks(512)
            .map(|sector| {
                let whole = sector.iter().all(|byte| *byte == sector[0]);
                assert!(whole, "a part of a sector");
                sector[0]
            })
            .collect();
        kinds.insert(sectors);
    }
    // Every mixture of three sectors.
    assert_eq!(kinds.len(), 8, "{kinds:?}");
}

#[test]
fn names_that_were_not_synced_are_there_or_not() {
    let mut kinds = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(&Rng::new(seed, "disk"));
        drop(write(&disk, "a", &OLD, true));
        drop(disk.create("b").expect("a new file"));
        disk.remove("a").expect("it is there");
        disk.crash();
        let mut names = disk.list().expect("names");
        names.retain(|name| name != "spare");
        kinds.insert(names);
    }
    assert_eq!(kinds.len(), 4, "{kinds:?}");
}

/// What a sync that failed had on its way comes to the device in part, and no later sync brings the rest.
#[test]
fn what_a_failed_sync_gave_up_is_read_until_a_crash() {
    let mut kinds = BTreeSet::new();
    for seed in 0..300 {
        let disk = SimDisk::new(&Rng::new(seed, "disk"));
        let mut file = write(&disk, "a", &OLD, true);
        file.append(&NEW).expect("room");
        disk.set_error_ppm(1_000_000);
        file.sync_data().expect_err("a failed sync");
        disk.set_error_ppm(0);
        file.sync_data().expect("a sync");
        let read = disk.read("a").expect("a file");
        assert_eq!(read, [&OLD[..], &NEW].concat(), "as it was written");
        disk.crash();
        let left = disk.read("a").expect("a file");
        assert_eq!(left[..OLD.len()], OLD, "what was synced before");
        let sectors = left[2_048..].chunks(512).map(|sector| sector[0]);
        kinds.insert(sectors.collect::<Vec<u8>>());
    }
    // Three sectors, each there or not.
    assert_eq!(kinds.len(), 8, "{kinds:?}");
}

#[test]
fn what_is_written_again_after_a_failed_sync_is_synced() {
    for seed in 0..50 {
        let disk = SimDisk::new(&Rng::new(seed, "disk"));
        let mut file = write(&disk, "a", &[], true);
        file.append(&NEW).expect("room");
        disk.set_error_ppm(1_000_000);
        file.sync_data().expect_err("a failed sync");
        disk.set_error_ppm(0);
        drop(file);
        disk.remove("a").expect("it is there");
        let mut file = disk.create("a").expect("a new file");
        file.append(&NEW).expect("room");
        file.sync_data().expect("a sync");
        disk.sync_folder().expect("a sync");
        disk.crash();
        assert_eq!(disk.read("a").expect("a file"), NEW);
    }
}

fn open(disk: &SimDisk) -> Result<impl Engine, Error> {
    let options = Options {
        segment_bytes: 4_096,
        reserve_bytes: 0,
        last_reserve_bytes: 0,
        ..Options::new(EngineKind::Memory, "tablet-0")
    };
    let store = Versioned::new(MemoryStore::default(), 1 << 20);
    let disk = Arc::new(disk.clone());
    Durable::open(
        disk,
        Path::new("log"),
        store,
        &options,
        Checkpoints::AT_ONCE,
    )
}

fn put(key: &'static str) -> Batch {
    let mut batch = Batch::default();
    batch.put(Column::Data, key, vec![7; 1_500]);
    batch
}

fn has(engine: &impl Read, key: &str) -> bool {
    let value = engine.get(Column::Data, key.as_bytes());
    value.expect("readable").is_some()
}

/// A process that has stopped for a failed sync is started again, and the machine goes on: what it reads then, it
/// answers with, and so does every later one.
#[test]
fn what_is_replayed_after_a_failed_sync_is_brought_to_the_device() {
    let mut seen = BTreeSet::new();
    for seed in 0..500 {
        let disk = SimDisk::new(&Rng::new(seed, "disk"));
        let engine = open(&disk).expect("empty");
        engine.commit(&[put("before")]).expect("durable");
        disk.set_error_ppm(500_000);
        let refused = engine.commit(&[put("failed")]);
        disk.set_error_ppm(0);
        drop(engine);
        disk.process_died();
        let engine = open(&disk).expect("a log");
        let replayed = has(&engine, "failed");
        seen.insert((refused.is_ok(), replayed));
        engine.commit(&[put("behind")]).expect("durable");
        drop(engine);
        disk.crash();
        let engine = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(
            has(&engine, "before") && has(&engine, "behind"),
            "seed {seed}"
        );
        assert_eq!(has(&engine, "failed"), replayed, "seed {seed}");
    }
    let expected = [(false, false), (false, true), (true, true)];
    assert_eq!(seen, BTreeSet::from(expected), "what a failed sync leaves");
}
