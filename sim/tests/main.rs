//! The simulator, and what it can be trusted for.

mod determinism;
mod disk;
mod independence;
mod plans;
mod power_loss;
mod seeds;
mod words;
