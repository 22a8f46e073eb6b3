//! The storage engines.

mod buffered;
mod common;
mod conformance;
mod crash;
mod faults;
mod folder;
mod full_disk;
mod log;
