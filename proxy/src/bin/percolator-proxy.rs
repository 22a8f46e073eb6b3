//! `percolator-proxy`: the proxy as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    percolator_proxy::program::main()
}
