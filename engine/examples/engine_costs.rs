//! Prints what one engine costs for the same work behind the same log and buffer:
//! `cargo run --release -p percolator-engine --example engine_costs -- --engine redb|sled
//! [--rows 2000000] [--puts rows/4] [--cache-mib 64] [--folder DIR]`.
//!
//! The work runs in child processes, so that each peak of memory is that of its own work. Values don't compress. Opens find
//! the files in the kernel's cache.
#![allow(clippy::print_stdout)]

use std::{
    fs, io,
    ops::ControlFlow,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use percolator_engine::{
    Backend, Batch, Buffered, Checkpoint, Checkpoints, Column, Direction, Durable, Engine,
    EngineKind, Error, Options, Read, RedbStore, Scan, SledStore, Snapshot, StepHook, Value,
    Versioned, disk::StdDisk,
};

type Failure = Box<dyn std::error::Error>;

/// As in `open`.
const BUFFER_BYTES: usize = 128 << 20;
const VALUE_BYTES: usize = 100;
/// Rows in one commit of the import, and puts in one of the random puts.
const IMPORT_BATCH: u64 = 1000;
const PUT_BATCH: u64 = 100;
const SCAN_PAIRS: usize = 1000;
/// How long reads are measured.
const READS: Duration = Duration::from_secs(5);

struct Work {
    kind: EngineKind,
    rows: u64,
    puts: u64,
    cache_bytes: u64,
    folder: PathBuf,
}

fn main() -> Result<(), Failure> {
    let mut values = [const { None }; 6];
    let names = [
        "--engine",
        "--rows",
        "--puts",
        "--cache-mib",
        "--folder",
        "--phase",
    ];
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let at = names.iter().position(|known| *known == name);
        let at = at.ok_or_else(|| format!("unknown flag {name}: it is one of {names:?}"))?;
        values[at] = Some(args.next().ok_or_else(|| format!("{name} has no value"))?);
    }
    let [kind, rows, puts, cache_mib, folder, phase] = values;
    let number = |text: Option<String>, default: u64| text.map_or(Ok(default), |text| text.parse());
    let rows = number(rows, 2_000_000)?.max(1);
    let parent = folder.map_or_else(std::env::temp_dir, PathBuf::from);
    let mut work = Work {
        kind: kind.ok_or("--engine is missing")?.parse()?,
        rows,
        puts: number(puts, rows / 4)?,
        cache_bytes: number(cache_mib, 64)? << 20,
        folder: parent.clone(),
    };
    match phase.as_deref() {
        Some("work") => return measure_work(&work),
        Some("open") => return measure_open(&work),
        Some("kill") => return put_and_die(&work),
        Some(other) => return Err(format!("unknown phase {other}").into()),
        None => {}
    }
    let folder = tempfile::tempdir_in(parent)?;
    work.folder = folder.path().to_owned();
    text("engine", work.kind.name());
    figure("rows", work.rows as f64, "");
    figure("cache", (work.cache_bytes >> 20) as f64, "MiB");
    run(&work, "work")?;
    text("after a clean stop", "");
    run(&work, "open")?;
    run(&work, "kill")?;
    text("after a kill without a checkpoint", "");
    run(&work, "open")
}

fn run(work: &Work, phase: &str) -> Result<(), Failure> {
    let status = Command::new(std::env::current_exe()?)
        .args(["--engine", work.kind.name(), "--phase", phase])
        .args(["--rows", &work.rows.to_string()])
        .args(["--puts", &work.puts.to_string()])
        .args(["--cache-mib", &(work.cache_bytes >> 20).to_string()])
        .arg("--folder")
        .arg(&work.folder)
        .status()?;
    if status.success() || phase == "kill" {
        Ok(())
    } else {
        Err(format!("phase {phase}: {status}").into())
    }
}

fn measure_work(work: &Work) -> Result<(), Failure> {
    let (engine, store) = open(work)?;
    let began = Instant::now();
    import(&engine, work.rows)?;
    rate("sorted import, committed", work.rows, began.elapsed());
    checkpoint(&*store)?;
    rate("sorted import, in the store", work.rows, began.elapsed());
    folder_sizes("after the import", &work.folder)?;
    memory("after the import")?;
    reads(&engine, work.rows)?;
    let began = Instant::now();
    random_puts(&engine, work, 1)?;
    rate("random puts, committed", work.puts, began.elapsed());
    checkpoint(&*store)?;
    rate("random puts, in the store", work.puts, began.elapsed());
    folder_sizes("after the puts", &work.folder)?;
    reads(&engine, work.rows)?;
    memory("at the end")?;
    let began = Instant::now();
    engine.close()?;
    drop(engine);
    drop(store);
    figure("clean stop", began.elapsed().as_secs_f64() * 1e3, "ms");
    folder_sizes("after a clean stop", &work.folder)
}

fn measure_open(work: &Work) -> Result<(), Failure> {
    let began = Instant::now();
    let (engine, _store) = open(work)?;
    let opened = began.elapsed();
    figure("open", opened.as_secs_f64() * 1e3, "ms");
    let found = engine.get(Column::Data, &key(work.rows / 2))?;
    found.ok_or("a row is missing")?;
    let replayed = engine.stats().log_bytes;
    figure("log at open", mib(replayed), "MiB");
    memory("opened")?;
    engine.close()?;
    Ok(())
}

fn put_and_die(work: &Work) -> Result<(), Failure> {
    let (engine, _store) = open(work)?;
    random_puts(&engine, work, 2)?;
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Ok(())
}

/// The engine as `open` makes it, and its store for checkpoints at a time of our own.
fn open(work: &Work) -> Result<(Durable<Shared>, Arc<dyn Backend>), Failure> {
    let options = Options {
        cache_bytes: work.cache_bytes,
        ..Options::new(work.kind, "measured")
    };
    let (path, log) = (work.folder.join("store"), work.folder.join("log"));
    let store: Arc<dyn Backend> = match work.kind {
        EngineKind::Sled => {
            let store = Buffered::new(SledStore::open(&path, work.cache_bytes)?, BUFFER_BYTES)?;
            Arc::new(Versioned::new(store, options.history_bytes))
        }
        EngineKind::Redb => {
            let store = Buffered::new(RedbStore::open(&path, work.cache_bytes)?, BUFFER_BYTES)?;
            Arc::new(Versioned::new(store, options.history_bytes))
        }
        EngineKind::Memory => return Err("memory has no folder".into()),
    };
    let engine = Durable::open(
        Arc::new(StdDisk::open(&log)?),
        &log,
        Shared(Arc::clone(&store)),
        &options,
        Checkpoints::Background,
    )?;
    Ok((engine, store))
}

fn import(engine: &dyn Engine, rows: u64) -> Result<(), Failure> {
    for from in (0..rows).step_by(IMPORT_BATCH as usize) {
        let mut batch = Batch::default();
        for number in from..rows.min(from + IMPORT_BATCH) {
            batch.put(Column::Data, key(number).to_vec(), value(number, 0));
        }
        engine.commit(&[batch])?;
    }
    Ok(())
}

fn random_puts(engine: &dyn Engine, work: &Work, round: u64) -> Result<(), Failure> {
    let mut random = round;
    for from in (0..work.puts).step_by(PUT_BATCH as usize) {
        let mut batch = Batch::default();
        for _ in from..work.puts.min(from + PUT_BATCH) {
            let number = next(&mut random) % work.rows;
            batch.put(Column::Data, key(number).to_vec(), value(number, round));
        }
        engine.commit(&[batch])?;
    }
    Ok(())
}

/// With nothing else to do, and no rests.
fn checkpoint(store: &dyn Backend) -> Result<(), Failure> {
    match store.checkpoint(&|_| ControlFlow::Continue(()))? {
        Checkpoint::Durable => Ok(()),
        other => Err(format!("no checkpoint: {other:?}").into()),
    }
}

fn reads(engine: &dyn Engine, rows: u64) -> Result<(), Failure> {
    let mut random = 7;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < READS {
        for _ in 0..100 {
            let number = next(&mut random) % rows;
            let found = engine.get(Column::Data, &key(number))?;
            found.ok_or("a row is missing")?;
            count += 1;
        }
    }
    rate("point reads", count, began.elapsed());
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < READS {
        let from = key(next(&mut random) % rows);
        let scan = engine.scan(Column::Data, &from, b"", Direction::Forward)?;
        for pair in scan.take(SCAN_PAIRS) {
            pair?;
            count += 1;
        }
    }
    rate("scans of 1,000, pairs", count, began.elapsed());
    Ok(())
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"row:....\0\0\0\0\0\0\0\0";
    key[4..12].copy_from_slice(&number.to_be_bytes());
    key
}

/// Not compressible.
fn value(number: u64, round: u64) -> Vec<u8> {
    let mut random = number ^ (round << 48);
    (0..VALUE_BYTES)
        .map(|_| (next(&mut random) >> 24) as u8)
        .collect()
}

fn next(random: &mut u64) -> u64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *random >> 16
}

fn text(name: &str, value: &str) {
    println!("{name:<44} {value:>14}");
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name:<44} {value:>14.1} {unit}");
}

fn rate(name: &str, count: u64, took: Duration) {
    figure(name, took.as_secs_f64(), "s");
    let name = format!("{name}, rate");
    figure(&name, count as f64 / took.as_secs_f64(), "/s");
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn memory(when: &str) -> Result<(), Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    for (name, field) in [("resident now", "VmRSS:"), ("resident peak", "VmHWM:")] {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib.ok_or("no such field in /proc/self/status")?.parse()?;
        figure(&format!("{name}, {when}"), mib(kib << 10), "MiB");
    }
    Ok(())
}

/// Bytes that take room; and lengths, where files have holes.
fn folder_sizes(when: &str, folder: &Path) -> Result<(), Failure> {
    for part in ["store", "log"] {
        let (room, length) = sizes(&folder.join(part))?;
        figure(&format!("{part} on disk, {when}"), mib(room), "MiB");
        if length > room {
            let name = format!("{part} with holes, {when}");
            figure(&name, mib(length), "MiB");
        }
    }
    Ok(())
}

fn sizes(folder: &Path) -> io::Result<(u64, u64)> {
    let (mut room, mut length) = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.is_dir() => {
                let inner = sizes(&entry.path())?;
                room += inner.0;
                length += inner.1;
            }
            Ok(found) => {
                room += found.blocks() * 512;
                length += found.len();
            }
            // Stores remove old files whenever they like.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok((room, length))
}

/// A backend that the engine and this program share.
struct Shared(Arc<dyn Backend>);

impl Read for Shared {
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

impl Backend for Shared {
    fn apply(&self, group: &[Batch]) -> Result<(), Error> {
        self.0.apply(group)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.0.snapshot()
    }

    fn checkpoint(&self, rest: StepHook<'_>) -> Result<Checkpoint, Error> {
        self.0.checkpoint(rest)
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn live_snapshots(&self) -> u64 {
        self.0.live_snapshots()
    }
}
