//! The Python package against a real cluster: its own tests, and its examples.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Cluster, CommandOutput, output_of};

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python")
}

/// Runs Python 3 with the package.
fn python(cluster: &Cluster, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new("python3");
    command
        .args(["-W", "error"])
        .args(arguments)
        .current_dir(package())
        .env("PYTHONPATH", package())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PERCOLATOR_PROXY", cluster.proxy());
    output_of(command)
}

#[test]
fn the_client_passes_its_tests() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let said = python(&cluster, &["-m", "unittest", "discover", "-s", "tests"]);
    eprintln!("{}", said.err);
    assert!(!said.err.contains("Ran 0 tests"), "{said:?}");
    said.ok();
}

#[test]
fn the_bank_loses_no_money() {
    let cluster = Cluster::threads();
    let create = ["table", "create", "accounts", "--split-at", "account-0010"];
    cluster.run(&create).ok();
    let said = python(&cluster, &["examples/bank.py"]).ok();
    assert!(said.starts_with("transfers 200, "), "{said}");
    assert!(said.ends_with("no money was lost or made\n"), "{said}");
    // As reads without the proxy see it.
    assert_eq!(cluster.money(), 2000);
}

#[test]
fn an_index_agrees_with_what_it_is_of() {
    let cluster = Cluster::threads();
    let said = python(&cluster, &["examples/unique_index.py"]).ok();
    let expected = "ann@a.example: None\nann@b.example: ann\nrefused: 7\nusers: 2\n";
    assert_eq!(said, expected);
}
