//! The timestamp oracle, as processes.

mod crashes;
mod elected;
mod failover;
mod oracles;
mod promises;
mod serving;
