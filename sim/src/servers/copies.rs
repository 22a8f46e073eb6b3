//! The copy of the master's state in a folder, for one process: durable there while the register of the state is away. As
//! `gc-master/src/copies.rs` has it.

use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::{CopyDecision, StateNumber};
use percolator_server::promises::PromiseRefusal;
use percolator_server::{DurableValue as _, SmallFile};
use tokio::sync::Mutex;

use crate::disk::SimDisk;
use crate::servers::STEPS;
use crate::servers::under_way::UnderWay;
use crate::world::World;

/// The register, the term and the number.
const HEADER_BYTES: usize = 24;

/// A state of a register, and which one it is.
#[derive(Clone, Debug)]
pub(super) struct StateCopy {
    register: u64,
    pub(super) number: StateNumber,
    pub(super) state: Arc<Vec<u8>>,
}

/// The file of the copy in a master's folder.
pub(super) struct CopyFile {
    disk: SimDisk,
    /// Writes take turns.
    durable: Mutex<Option<StateCopy>>,
    writing: UnderWay<StateCopy>,
    /// What the file holds, for those who look on.
    shown: parking_lot::Mutex<Option<StateCopy>>,
}

impl CopyFile {
    /// Reads the copy of a folder.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn open(disk: &SimDisk) -> Result<Self, percolator_server::Error> {
        let found = file(disk).load()?.map(|bytes| decode(&bytes));
        Ok(Self {
            disk: disk.clone(),
            durable: Mutex::new(found.clone()),
            writing: UnderWay::default(),
            shown: parking_lot::Mutex::new(found),
        })
    }

    /// Keeps the copy of a state, which takes so long from its turn on, unless the folder has this one or a later one.
    ///
    /// # Errors
    /// The folder has a later leader's, or doesn't take it.
    pub(super) async fn keep(
        &self,
        world: &Arc<World>,
        takes: &(dyn Fn() -> Duration + Send + Sync),
        (register, number): (u64, StateNumber),
        state: Arc<Vec<u8>>,
    ) -> Result<(), PromiseRefusal> {
        let mut durable = self.durable.lock().await;
        let own = durable.as_ref().filter(|own| own.register == register);
        match number.decide_copy(own.map(|own| own.number)) {
            CopyDecision::Keep => {}
            CopyDecision::HasIt => return Ok(()),
            CopyDecision::Outdated => return Err(PromiseRefusal::Refused),
        }
        let copy = StateCopy {
            register,
            number,
            state,
        };
        let copy = self.writing.wait(copy, world.sleep(takes())).await;
        let stored = file(&self.disk).store(&encode(&copy));
        stored.map_err(|error| PromiseRefusal::Failed(error.to_string()))?;
        *self.shown.lock() = Some(copy.clone());
        *durable = Some(copy);
        Ok(())
    }

    /// The copy of a state of this register, if the folder has one, when the write that is under way has ended.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn load(
        &self,
        register: u64,
    ) -> Result<Option<StateCopy>, percolator_server::Error> {
        let durable = self.durable.lock().await;
        if durable
            .as_ref()
            .is_none_or(|copy| copy.register != register)
        {
            return Ok(None);
        }
        Ok(file(&self.disk).load()?.map(|bytes| decode(&bytes)))
    }

    /// What the file holds now.
    pub(super) fn shown(&self) -> Option<StateCopy> {
        self.shown.lock().clone()
    }

    /// The process is killed: a write that is under way may have begun.
    pub(super) fn killed(&self) {
        self.writing.killed(&self.disk, STEPS, |copy| {
            let _ = file(&self.disk).store(&encode(&copy));
        });
    }
}

fn file(disk: &SimDisk) -> SmallFile {
    SmallFile::on(Arc::new(disk.clone()), "state-copy")
}

fn encode(copy: &StateCopy) -> Vec<u8> {
    let numbers = [copy.register, copy.number.term, copy.number.number];
    let header = numbers.into_iter().flat_map(u64::to_le_bytes);
    header.chain(copy.state.iter().copied()).collect()
}

/// Of what [`encode`] has made: the file has a checksum of its own.
fn decode(bytes: &[u8]) -> StateCopy {
    let (header, state) = bytes.split_at(bytes.len().min(HEADER_BYTES));
    let number = |at: usize| {
        let bytes = header.get(8 * at..8 * (at + 1)).unwrap_or_default();
        bytes.try_into().map_or(0, u64::from_le_bytes)
    };
    StateCopy {
        register: number(0),
        number: StateNumber {
            term: number(1),
            number: number(2),
        },
        state: Arc::new(state.to_vec()),
    }
}
