//! Registers, with what a crash leaves of them.

mod conformance;
mod crash_points;
mod processes;
