//! Alerts, their runbooks, and dashboards: that they fit together, and say what they should.

mod boards;
mod dashboards;
mod rules;
mod types;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs promtool, and panics with its words where it finds something wrong.
#[allow(clippy::print_stdout, reason = "the word that xtask listens for")]
fn promtool(arguments: &[&str]) {
    let tool = std::env::var_os("PERCOLATOR_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let command = Command::new(tool)
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null())
        .output();
    let Ok(output) = command else {
        println!("SKIPPED: there's no promtool, of Debian's package prometheus");
        return;
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "promtool {}:\n{}{}",
        arguments.join(" "),
        said(&output.stdout),
        said(&output.stderr)
    );
}

/// The metrics of `docs/metrics.md`, with what Prometheus makes of a histogram.
fn metrics() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in read("docs/metrics.md").lines() {
        let mut fields = line.split('|').map(str::trim).skip(1);
        let (Some(name), Some(kind)) = (fields.next(), fields.next()) else {
            continue;
        };
        let name = name.trim_matches('`').to_owned();
        if kind == "histogram" {
            names.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
        }
        if ["counter", "gauge"].contains(&kind) {
            names.insert(name);
        }
    }
    names
}

/// The names in an expression that can be metrics of ours, or of every process.
fn metrics_of(expression: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_alphanumeric() || c == '_');
    expression
        .split(word)
        .filter(|word| word.starts_with("percolator_") || word.starts_with("process_"))
        // A label, of what scrapes.
        .filter(|word| *word != "percolator_cluster")
        .map(str::to_owned)
        .collect()
}
