//! `cargo xtask generate`: files that are made from the code, and committed. Tests prove them fresh.

use crate::context::Context;

/// Tests that compare such files, and write them when they are told to.
const TESTS: [&[&str]; 7] = [
    &["-p", "percolator-protocol", "--test", "scripts"],
    &["-p", "percolator-wire", "--test", "go"],
    &[
        "-p",
        "percolator-api",
        "--test",
        "definition",
        "--test",
        "reference",
    ],
    &["-p", "percolator-operator", "golden"],
    &["-p", "percolator-telemetry", "--test", "document"],
    &["-p", "xtask", "--test", "chart"],
    &["-p", "xtask", "--test", "monitoring"],
];

pub(crate) fn run(context: &Context) -> anyhow::Result<()> {
    for test in TESTS {
        context
            .cargo(["test"])
            .args(test)
            .env("REWRITE", "1")
            .run()?;
    }
    Ok(())
}
