//! What the oracles and the masters of a run share when there are several of each: their register, and their times.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::election::Timing;
use percolator_register::Register;

use super::oracle::Oracle;
use super::register::{RegisterStore, SimRegister};
use crate::mutation::Mutation;
use crate::rng::{Dice, Rng};
use crate::world::{NodeId, World};

/// What a replica needs to take part in an election.
#[derive(Clone)]
pub struct Replicated {
    /// The store of the registers.
    pub store: Arc<RegisterStore>,
    /// The times of the election.
    pub timing: Timing,
    /// A request to a register is given up after this.
    pub timeout: Duration,
    /// They promise to each other.
    pub promises: bool,
    /// The oracles of the register.
    pub oracles: Arc<Mutex<Vec<Weak<Oracle>>>>,
    /// What is wrong on purpose.
    pub mutation: Option<Mutation>,
}

impl Replicated {
    /// The way of a process to a register.
    pub(super) fn register(
        &self,
        world: &Arc<World>,
        from: NodeId,
        name: &'static str,
        dice: &Dice,
    ) -> Arc<dyn Register> {
        let names = Rng::new(dice.of("writes of registers", Rng::next), "names");
        let (store, timeout) = (self.store.node, self.timeout);
        Arc::new(SimRegister::new(world, from, store, name, timeout, names))
    }

    /// How often a replica checks whether a command is due.
    pub(super) fn poll(&self) -> Duration {
        Duration::from_millis(self.timing.poll_ms)
    }
}
