//! Every engine passes the one suite; and memory behind the log as the simulator has it.

use std::sync::Arc;

use percolator_engine::{
    Checkpoints, Durable, Engine, EngineKind, MemoryStore, Options, Versioned,
    conformance::{Bed, CASES},
    disk::StdDisk,
    open,
};

fn run(kind: EngineKind) {
    for (name, case) in CASES {
        eprintln!("{kind}: {name}");
        let folder = tempfile::tempdir().expect("a folder");
        // Small segments: checkpoints happen all the time.
        let options = Options {
            segment_bytes: 64 << 10,
            reserve_bytes: 0,
            last_reserve_bytes: 0,
            ..Options::new(kind, "tablet-0")
        };
        case(&Bed {
            open: &|| open(folder.path(), &options).expect("an engine"),
            durable: kind != EngineKind::Memory,
        });
    }
}

#[test]
fn sled() {
    run(EngineKind::Sled);
}

#[test]
fn redb() {
    run(EngineKind::Redb);
}

#[test]
fn memory() {
    run(EngineKind::Memory);
}

#[test]
fn memory_behind_a_log() {
    for (name, case) in CASES {
        eprintln!("memory behind a log: {name}");
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options {
            segment_bytes: 64 << 10,
            reserve_bytes: 0,
            last_reserve_bytes: 0,
            ..Options::new(EngineKind::Memory, "tablet-0")
        };
        let open = || -> Box<dyn Engine> {
            let disk = StdDisk::open(folder.path()).expect("a disk");
            let backend = Versioned::new(MemoryStore::default(), options.history_bytes);
            let engine = Durable::open(
                Arc::new(disk),
                folder.path(),
                backend,
                &options,
                Checkpoints::AT_ONCE,
            );
            Box::new(engine.expect("an engine"))
        };
        case(&Bed {
            open: &open,
            durable: true,
        });
    }
}
