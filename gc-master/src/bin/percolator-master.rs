//! `percolator-master`: the master as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    percolator_gc_master::program::main()
}
