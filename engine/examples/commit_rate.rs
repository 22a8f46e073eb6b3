//! Prints commits and reads a second of each engine:
//! `cargo run --release -p percolator-engine --example commit_rate [folder] [seconds a figure]`.
#![allow(clippy::print_stdout)]

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use percolator_engine::{Batch, Column, Direction, Engine, EngineKind, Options, Read, open};

type Failure = Box<dyn std::error::Error>;

const KEYS: u64 = 100_000;
const BATCH_BYTES: usize = 200;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let time = Duration::from_secs_f64(args.next().map_or(Ok(2.0), |text| text.parse())?);
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir_in(&folder)?;
        let engine = open(folder.path(), &Options::new(kind, "bench"))?;
        println!("{kind}");
        fill(&*engine)?;
        let mut next = KEYS;
        for group in [1, 16, 64, 256] {
            let (mut commits, mut worst) = (0, Duration::ZERO);
            let start = Instant::now();
            while start.elapsed() < time {
                let batches: Vec<Batch> = (0..group)
                    .map(|_| {
                        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        batch(next)
                    })
                    .collect();
                let begin = Instant::now();
                engine.commit(&batches)?;
                worst = worst.max(begin.elapsed());
                commits += 1;
            }
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "  groups of {group:3}: {:8.0} commits/s, {:8.0} batches/s, mean {:5.0} us, max {:6.0} us; last sync {:4.0} us",
                f64::from(commits) / seconds,
                f64::from(commits * group) / seconds,
                seconds * 1e6 / f64::from(commits),
                worst.as_secs_f64() * 1e6,
                engine.stats().last_sync.as_secs_f64() * 1e6,
            );
        }
        reads("live", &*engine, time)?;
        let snapshot = engine.snapshot()?;
        reads("snapshot", &*snapshot, time)?;
        drop(snapshot);
        let stats = engine.stats();
        println!(
            "  {} MiB on disk, {} MiB of it log; process {} MiB",
            stats.size_bytes >> 20,
            stats.log_bytes >> 20,
            resident_mib()
        );
        let begin = Instant::now();
        drop(engine);
        let dropped = begin.elapsed();
        let begin = Instant::now();
        let engine = open(folder.path(), &Options::new(kind, "bench"))?;
        println!(
            "  drop {dropped:.0?}, open with replay {:.0?}",
            begin.elapsed()
        );
        engine.close()?;
        drop(engine);
        let begin = Instant::now();
        let engine = open(folder.path(), &Options::new(kind, "bench"))?;
        let opened = begin.elapsed();
        let begin = Instant::now();
        drop(engine);
        println!(
            "  open after close {opened:.0?}, drop {:.0?}",
            begin.elapsed()
        );
    }
    Ok(())
}

/// Two puts, of some 200 bytes together.
fn batch(number: u64) -> Batch {
    let key = number.to_be_bytes();
    let mut batch = Batch::default();
    batch.put(Column::Data, key.to_vec(), vec![7; BATCH_BYTES - 40]);
    batch.put(Column::Write, key.to_vec(), vec![1; 24]);
    batch
}

fn read_key(i: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(i % KEYS).to_be_bytes());
    key[8..].copy_from_slice(&u64::MAX.to_be_bytes());
    key
}

fn fill(engine: &dyn Engine) -> Result<(), Failure> {
    for from in (0..KEYS).step_by(1000) {
        let mut batch = Batch::default();
        for i in from..from + 1000 {
            batch.put(Column::Lock, read_key(i).to_vec(), vec![7; 100]);
        }
        engine.commit(&[batch])?;
    }
    Ok(())
}

fn reads(what: &str, from: &dyn Read, time: Duration) -> Result<(), Failure> {
    let measure = |name: &str, read: &dyn Fn(u64) -> Result<usize, Failure>| {
        let (mut i, mut count) = (0_u64, 0);
        let start = Instant::now();
        while start.elapsed() < time / 2 {
            for _ in 0..100 {
                i = i
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695);
                count += read(i >> 20)?;
            }
        }
        let nanos = start.elapsed().as_secs_f64() * 1e9 / count as f64;
        println!("  {what} {name}: {:9.0}/s, {nanos:5.0} ns", 1e9 / nanos);
        Ok::<(), Failure>(())
    };
    measure("get", &|i| {
        let found = from.get(Column::Lock, &read_key(i))?;
        found.ok_or("no value")?;
        Ok(1)
    })?;
    // As a versioned read does: from a row and timestamp to the end of the row.
    measure("first", &|i| {
        let key = read_key(i);
        let mut end = key;
        end[8..].fill(0xff);
        let end = [&end[..], &[0]].concat();
        let found = from.first(Column::Lock, &key[..8], &end)?;
        found.ok_or("no pair")?;
        Ok(1)
    })?;
    measure("scan, a pair", &|i| {
        let scan = from.scan(Column::Lock, &read_key(i), b"", Direction::Forward)?;
        let mut count = 0;
        for pair in scan.take(1000) {
            pair?;
            count += 1;
        }
        Ok(count)
    })
}

/// Memory of this process, in MiB; 0 where there is no /proc.
fn resident_mib() -> u64 {
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok())
        .map_or(0, |pages| (pages * 4096) >> 20)
}
