//! The shipped log and the shipped store on devices that lose what was not synced: whatever was answered is there again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use percolator_engine::{
    Batch, Buffered, Checkpoints, Column, Direction, Durable, Engine, EngineKind, Error, Key,
    Options, Read, RedbStore, Value, Versioned,
};
use percolator_sim::disk::SimDisk;
use percolator_sim::rng::Rng;

/// A device writes these as a whole.
const SECTOR: usize = 512;

/// A device with a volatile cache: until a sync, each sector may come to it in any order, or never.
#[derive(Clone, Debug)]
struct Device(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// What is read.
    cached: Vec<u8>,
    synced: Vec<u8>,
    /// What was written to each sector since the last sync, in order.
    unsynced: BTreeMap<usize, Vec<Vec<u8>>>,
    rng: Rng,
    /// The process is dead: what it still does goes nowhere.
    life: u64,
}

/// The device as one process has it.
#[derive(Debug)]
struct Opened {
    device: Device,
    life: u64,
}

impl Device {
    fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(State {
            cached: Vec::new(),
            synced: Vec::new(),
            unsynced: BTreeMap::new(),
            rng,
            life: 0,
        })))
    }

    fn open(&self) -> Opened {
        let life = self.0.lock().life;
        Opened {
            device: self.clone(),
            life,
        }
    }

    /// Of each sector that was not synced, any version that was written since may be there, or the one before.
    fn lose_power(&self) {
        let mut state = self.0.lock();
        let State {
            cached,
            synced,
            unsynced,
            rng,
            life,
        } = &mut *state;
        *life += 1;
        // A new length may be durable or not; sectors behind it are gone.
        if rng.below(2) == 0 {
            synced.resize(cached.len(), 0);
        }
        for (sector, mut versions) in std::mem::take(unsynced) {
            let at = sector * SECTOR;
            let kept = rng.below(versions.len() as u64 + 1) as usize;
            if kept > 0 && at < synced.len() {
                let bytes = versions.swap_remove(kept - 1);
                let end = (at + bytes.len()).min(synced.len());
                synced[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
        cached.clone_from(synced);
    }
}

impl Opened {
    fn alive(&self) -> io::Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.device.0.lock();
        if state.life == self.life {
            Ok(state)
        } else {
            Err(io::Error::other("the process is dead"))
        }
    }
}

impl redb::StorageBackend for Opened {
    fn len(&self) -> io::Result<u64> {
        Ok(self.alive()?.cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.alive()?;
        let at = offset as usize;
        let found = state.cached.get(at..at + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.alive()?.cached.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.alive()?;
        state.unsynced.clear();
        state.synced = state.cached.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.alive()?;
        let (from, to) = (offset as usize, offset as usize + data.len());
        if to > state.cached.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.cached[from..to].copy_from_slice(data);
        for sector in from / SECTOR..to.div_ceil(SECTOR) {
            let end = ((sector + 1) * SECTOR).min(state.cached.len());
            let bytes = state.cached[sector * SECTOR..end].to_vec();
            state.unsynced.entry(sector).or_default().push(bytes);
        }
        Ok(())
    }
}

type Model = BTreeMap<Key, Value>;

/// `steps` of a checkpoint in each commit, at the most.
fn open(log: &SimDisk, device: &Device, steps: u32) -> Result<impl Engine + use<>, Error> {
    let options = Options {
        // A checkpoint for each dozen of commits.
        segment_bytes: 8 << 10,
        reserve_bytes: 0,
        last_reserve_bytes: 0,
        ..Options::new(EngineKind::Redb, "tablet-0")
    };
    let store = RedbStore::open_on(device.open(), Path::new("store"), 64 << 10)?;
    let store = Versioned::new(Buffered::new(store, 1 << 20)?, 1 << 20);
    let log = Arc::new(log.clone());
    let checkpoints = Checkpoints::Inline { steps };
    Durable::open(log, Path::new("log"), store, &options, checkpoints)
}

fn change(rng: &mut Rng, model: &Model) -> (Batch, Model) {
    let (mut batch, mut then) = (Batch::default(), model.clone());
    for _ in 0..rng.between(1, 6) {
        let key = Key::from(format!("{:03}", rng.below(400)));
        match rng.below(4) {
            0 => {
                batch.delete(Column::Data, key.clone());
                then.remove(&key);
            }
            _ => {
                let value = Value::from(vec![rng.below(256) as u8; rng.between(1, 900) as usize]);
                batch.put(Column::Data, key.clone(), value.clone());
                then.insert(key, value);
            }
        }
    }
    (batch, then)
}

fn content(engine: &impl Engine) -> Model {
    let all = engine.scan(Column::Data, &[], &[], Direction::Forward);
    let all = all.expect("a scan").collect::<Result<Model, Error>>();
    all.expect("every pair")
}

#[test]
fn redb_and_the_log_keep_what_was_answered() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed, "power loss");
        let log = SimDisk::new(&rng.stream("log"));
        let device = Device::new(rng.stream("device"));
        let mut model = Model::new();
        for crash in 0..12 {
            // At once, or with commits between its steps.
            let steps = [1, 2, 4, u32::MAX][rng.below(4) as usize];
            let engine = open(&log, &device, steps)
                .unwrap_or_else(|error| panic!("seed {seed}, crash {crash}: {error}"));
            assert_eq!(content(&engine), model, "seed {seed}, crash {crash}");
            for _ in 0..rng.between(0, 80) {
                let (batch, then) = change(&mut rng, &model);
                engine.commit(&[batch]).expect("a commit");
                model = then;
            }
            if rng.below(4) == 0 {
                engine.close().expect("an orderly stop");
            }
            log.crash();
            device.lose_power();
            drop(engine);
        }
    }
}

/// The test itself: a device that says that it has synced, and has not, is found out.
#[test]
fn a_device_that_lies_is_noticed() {
    let noticed = (0..20).any(|seed| {
        let mut rng = Rng::new(seed, "power loss");
        let log = SimDisk::new(&rng.stream("log"));
        let device = Device::new(rng.stream("device"));
        let mut model = Model::new();
        let engine = open(&log, &device, u32::MAX).expect("a new store");
        for _ in 0..80 {
            let (batch, then) = change(&mut rng, &model);
            engine.commit(&[batch]).expect("a commit");
            model = then;
        }
        let before = device.0.lock().synced.len();
        engine.close().expect("an orderly stop");
        drop(engine);
        // As if the last sync had done nothing: the log is gone up to there.
        let mut state = device.0.lock();
        let keep = before.min(state.synced.len()) / 2;
        state.synced[keep..].fill(0);
        state.cached = state.synced.clone();
        drop(state);
        open(&log, &device, u32::MAX).map_or(true, |engine| {
            engine
                .scan(Column::Data, &[], &[], Direction::Forward)
                .and_then(Iterator::collect::<Result<Model, Error>>)
                .map_or(true, |found| found != model)
        })
    });
    assert!(noticed);
}
