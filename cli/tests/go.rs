//! The Go package against a real cluster: its own tests, and its examples.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Cluster, CommandOutput, has_go, output_of};

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../go")
}

/// A cluster, if there is a Go toolchain.
fn cluster() -> Option<Cluster> {
    has_go().then(Cluster::threads)
}

/// Runs Go in the package.
fn go(cluster: &Cluster, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(package())
        .env("PERCOLATOR_PROXY", cluster.proxy());
    output_of(command)
}

#[test]
fn the_client_passes_its_tests() {
    let Some(cluster) = cluster() else { return };
    cluster.run(&["table", "create", "t"]).ok();
    go(&cluster, &["vet", "./..."]).ok();
    let said = go(&cluster, &["test", "-count=1", "-v", "."]);
    eprintln!("{}{}", said.out, said.err);
    assert!(
        said.out
            .contains("--- PASS: TestTransactCommitsOrRollsBack")
    );
    assert!(!said.out.contains("--- SKIP"), "{}", said.out);
    said.ok();
    let unformatted = Command::new("gofmt")
        .args(["-l", "."])
        .current_dir(package())
        .output()
        .expect("gofmt comes with Go");
    assert_eq!(String::from_utf8_lossy(&unformatted.stdout), "");
}

#[test]
fn the_bank_loses_no_money() {
    let Some(cluster) = cluster() else { return };
    let create = ["table", "create", "accounts", "--split-at", "account-0010"];
    cluster.run(&create).ok();
    let said = go(&cluster, &["run", "./examples/bank"]).ok();
    assert!(said.starts_with("transfers 200, "), "{said}");
    assert!(said.ends_with("no money was lost or made\n"), "{said}");
    // As reads without the proxy see it.
    assert_eq!(cluster.money(), 2000);
}

#[test]
fn an_index_agrees_with_what_it_is_of() {
    let Some(cluster) = cluster() else { return };
    let said = go(&cluster, &["run", "./examples/uniqueindex"]).ok();
    let expected = "ann@a.example: \"\"\nann@b.example: \"ann\"\nrefused: 7\nusers: 2\n";
    assert_eq!(said, expected);
}
