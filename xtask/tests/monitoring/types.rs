//! The dashboards against Grafana's published types: TypeScript reads each as a value of `tools/grafana/board.ts`.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::{boards::BOARDS, read, root};

const TOOLS: &str = "tools/grafana";

fn run(folder: &Path, program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .ok()
}

/// A folder with the packages that `tools/grafana` names; none, and a word about it, where they can't be had.
#[allow(clippy::print_stdout, reason = "the word that xtask listens for")]
fn packages() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    for file in fs::read_dir(root().join(TOOLS)).expect(TOOLS) {
        let file = file.expect(TOOLS);
        if file.file_type().expect(TOOLS).is_file() {
            fs::copy(file.path(), folder.path().join(file.file_name())).expect(TOOLS);
        }
    }
    let clean = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"];
    let installed = run(folder.path(), "npm", &clean);
    match installed {
        Some(output) if output.status.success() => Some(folder),
        other => {
            let said = other.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            println!(
                "SKIPPED: npm doesn't get Grafana's types: {}",
                said.as_deref().unwrap_or("there's no npm")
            );
            None
        }
    }
}

/// What TypeScript says of these dashboards.
fn check(packages: &Path, boards: &[(&str, String)]) -> String {
    for (name, board) in boards {
        let text = format!(
            "import type {{ Board }} from './board';\nexport const board: Board = {};\n",
            board.trim()
        );
        fs::write(packages.join(format!("{name}.ts")), text).expect("a file");
    }
    let compiler = ["node_modules/typescript/bin/tsc", "-p", "."];
    let output = run(packages, "node", &compiler).expect("npm comes with node");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn dashboards_are_of_grafanas_types() {
    let Some(folder) = packages() else { return };
    let packages = folder.path();
    let text = |uid: &str| {
        read(&format!(
            "charts/percolator-operator/files/dashboards/{uid}.json"
        ))
    };
    let boards: Vec<(&str, String)> = BOARDS
        .iter()
        .map(|board| (board.uid, text(board.uid)))
        .collect();
    assert_eq!(check(packages, &boards), "");
    // And it would have noticed.
    let (uid, good) = &boards[0];
    for (right, wrong) in [
        ("\"bottom\"", "\"down\""),
        ("\"mode\": \"absolute\"", "\"mode\": \"about\""),
        ("\"thresholdsStyle\"", "\"thresholdStyle\""),
        ("\"gridPos\"", "\"position\""),
    ] {
        let bad = good.replacen(right, wrong, 1);
        assert_ne!(bad, *good, "{right}");
        let said = check(packages, &[(uid, bad)]);
        assert!(said.starts_with(&format!("{uid}.ts(")), "{wrong}: {said:?}");
    }
}
