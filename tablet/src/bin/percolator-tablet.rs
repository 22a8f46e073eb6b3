//! `percolator-tablet`: the tablet server as a process of its own.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    percolator_tablet::program::main()
}
