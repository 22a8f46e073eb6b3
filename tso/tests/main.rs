//! The timestamp oracle, as processes.

mod crashes;
mod failover;
mod oracles;
mod promises;
mod serving;
