//! The master, by what it answers and what it keeps.

mod balance;
mod clusters;
mod deletion;
mod drains;
mod failover;
mod fencing;
mod given_up;
mod heartbeats;
mod masters;
mod moves;
mod promises;
mod rebuild;
mod rooms;
mod scale;
mod server;
mod sessions;
mod settings;
mod soft_state;
mod splits;
mod startup;
mod tables;
mod world;
