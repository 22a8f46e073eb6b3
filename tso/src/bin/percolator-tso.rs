//! `percolator-tso`: the timestamp oracle as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    percolator_tso::program::main()
}
