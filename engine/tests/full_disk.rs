//! A real file system that is full: a small tmpfs, where this may be mounted.

use std::{fs, ops::ControlFlow};

use crate::common::tmpfs::Tmpfs;
use percolator_engine::{
    Batch, Checkpoint, Column, Engine, EngineKind, Error, Options, RedbStore, SledStore, Store,
    open,
};

const MIB: usize = 1 << 20;
const ON_DISK: [EngineKind; 2] = [EngineKind::Redb, EngineKind::Sled];

fn batch(i: u32) -> Batch {
    let mut batch = Batch::default();
    // Not compressible, so that every store needs the room.
    let mut number = u64::from(i) + 1;
    let value: Vec<u8> = (0..10_000)
        .map(|_| {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695);
            (number >> 56) as u8
        })
        .collect();
    batch.put(Column::Data, i.to_be_bytes().to_vec(), value);
    batch
}

fn is_there(engine: &dyn Engine, i: u32) -> bool {
    engine
        .get(Column::Data, &i.to_be_bytes())
        .expect("a get")
        .is_some()
}

fn options(kind: EngineKind, reserve: usize) -> Options {
    Options {
        segment_bytes: 2 * MIB as u64,
        reserve_bytes: reserve as u64,
        ..Options::new(kind, "tablet-0")
    }
}

/// With the reserve, the log refuses while the store still has room: nothing stops.
#[test]
fn full_and_then_room_again() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(mounted) = Tmpfs::mount(folder.path(), "96m") else {
            return;
        };
        fs::write(mounted.ballast(), vec![1; 24 * MIB]).expect("ballast");
        let options = options(kind, 16 * MIB);
        let data = mounted.0.join("data");
        let engine = open(&data, &options).expect("an engine");
        let mut next = 0;
        let error = loop {
            match engine.commit(&[batch(next)]) {
                Ok(()) => next += 1,
                Err(error) => break error,
            }
            assert!(next < 100_000, "the disk is never full");
        };
        assert!(matches!(error, Error::Full { .. }), "{kind}: {error}");
        eprintln!("{kind}: full after {next} commits: {error}");
        assert!((0..next).all(|i| is_there(&*engine, i)) && !is_there(&*engine, next));
        mounted.make_room();
        for _ in 0..50 {
            engine
                .commit(&[batch(next)])
                .expect("a commit, now that there is room");
            next += 1;
        }
        drop(engine);
        let engine = open(&data, &options).expect("an engine");
        assert!((0..next).all(|i| is_there(&*engine, i)) && !is_there(&*engine, next));
    }
}

/// Without a reserve anything may run out of space first, and may stop the engine; what was
/// acknowledged is there when it is opened with more room.
#[test]
fn full_without_a_reserve() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(mounted) = Tmpfs::mount(folder.path(), "112m") else {
            return;
        };
        fs::write(mounted.ballast(), vec![1; 72 * MIB]).expect("ballast");
        let data = mounted.0.join("data");
        let mut acknowledged = Vec::new();
        let engine = open(&data, &options(kind, 0)).expect("an engine");
        let mut refusals = 0;
        for i in 0..20_000 {
            match engine.commit(&[batch(i)]) {
                Ok(()) => acknowledged.push(i),
                Err(Error::Full { .. }) if refusals < 100 => refusals += 1,
                Err(error) => {
                    eprintln!("{kind}: {} commits, then {error}", acknowledged.len());
                    break;
                }
            }
        }
        assert!(acknowledged.len() < 20_000, "the disk is never full");
        drop(engine);
        mounted.make_room();
        let engine = open(&data, &options(kind, 0)).expect("an engine");
        for i in &acknowledged {
            assert!(
                is_there(&*engine, *i),
                "{kind}: {i} of {}",
                acknowledged.len()
            );
        }
    }
}

/// Somebody else fills the volume to the last byte while a checkpoint is due. The stores would break for
/// good, so they aren't asked.
#[test]
fn filled_by_somebody_else_and_then_room_again() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(mounted) = Tmpfs::mount(folder.path(), "96m") else {
            return;
        };
        let options = options(kind, 16 * MIB);
        let data = mounted.0.join("data");
        let engine = open(&data, &options).expect("an engine");
        for i in 0..100 {
            engine.commit(&[batch(i)]).expect("a commit");
        }
        mounted.leave(0);
        for _ in 0..3 {
            // Each refusal asks for a checkpoint, which may be what makes room.
            let refused = engine.commit(&[batch(100)]);
            assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
            assert!((0..100).all(|i| is_there(&*engine, i)) && !is_there(&*engine, 100));
        }
        engine.close().expect("nothing is wrong with it");
        assert!((0..100).all(|i| is_there(&*engine, i)));
        drop(engine);
        mounted.make_room();
        let engine = open(&data, &options).expect("an engine");
        for i in 100..1000 {
            engine.commit(&[batch(i)]).expect("a commit");
        }
        assert!((0..1000).all(|i| is_there(&*engine, i)));
    }
}

/// An engine asks for a checkpoint when it is opened, which may come after somebody has filled the volume: a store that was
/// made just now isn't on the device yet, though nothing was brought into it.
#[test]
fn filled_by_somebody_else_before_the_first_checkpoint() {
    type OpenStore = fn(&std::path::Path) -> Result<Box<dyn Store>, Error>;
    const CACHE_BYTES: u64 = 1 << 20;
    let stores: [OpenStore; 2] = [
        |path| Ok(Box::new(RedbStore::open(path, CACHE_BYTES)?)),
        |path| Ok(Box::new(SledStore::open(path, CACHE_BYTES)?)),
    ];
    for open_store in stores {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(mounted) = Tmpfs::mount(folder.path(), "96m") else {
            return;
        };
        let store = open_store(&mounted.0.join("store")).expect("a store");
        mounted.leave(0);
        let checkpoint = || store.checkpoint(&|_| ControlFlow::Continue(()));
        for _ in 0..3 {
            let refused = checkpoint();
            assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        }
        mounted.make_room();
        store.apply(&[batch(0)]).expect("applied");
        assert_eq!(checkpoint().expect("made"), Checkpoint::Durable);
        let found = store.get(Column::Data, &0_u32.to_be_bytes());
        assert!(found.expect("a get").is_some());
    }
}

/// Rows as tablet servers write them, in no order, until there is no room for new ones. Bringing them into the store takes
/// none of what is kept for those that end something, as a deletion, which makes room.
#[test]
fn the_store_leaves_the_last_reserve() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mounted) = Tmpfs::mount(folder.path(), "192m") else {
        return;
    };
    let options = Options {
        segment_bytes: 16 * MIB as u64,
        ..Options::new(EngineKind::Redb, "tablet-0")
    };
    let engine = open(&mounted.0.join("data"), &options).expect("an engine");
    let mut number = 1_u64;
    let mut cell = || {
        number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) + 1;
        let name = format!("row {number:016x} column");
        (name, number.to_be_bytes().repeat(6))
    };
    let mut lowest = u64::MAX;
    // Each refusal asks for a checkpoint.
    let mut refusals = 0;
    while refusals < 200 {
        let mut batch = Batch::default();
        for _ in 0..64 {
            let (name, value) = cell();
            batch.put(Column::Data, name, value);
        }
        match engine.commit(&[batch]) {
            Ok(()) => {}
            Err(Error::Full { .. }) => {
                refusals += 1;
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
        lowest = lowest.min(mounted.free_bytes());
    }
    let reserve = options.last_reserve_bytes;
    assert!(
        lowest >= reserve,
        "{lowest} bytes were left, and {reserve} are kept"
    );
    let mut ends = Batch::default();
    ends.delete(Column::Data, cell().0);
    ends.spend_reserve();
    engine
        .commit(&[ends])
        .expect("there is room for a deletion");
}
