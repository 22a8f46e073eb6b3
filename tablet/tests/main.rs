//! The tablet server, by what it answers and what it keeps.

mod arrivals;
mod chains;
mod changes;
mod collection;
mod core;
mod frozen;
mod large;
mod lease;
mod leases;
mod min_commit_ts;
mod mover;
mod moves;
mod observers;
mod one_phase;
mod points;
mod pressure;
mod recovering;
mod sizes;
mod split;
mod support;
mod unobserved;
mod verify;
