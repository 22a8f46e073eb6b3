//! Mutants of the code, one after the other (cargo-mutants), and what kills them: first the tests of the package, then the
//! simulator. A mutant that nothing kills is a survivor, and needs a test, or a line with a verdict in [`KNOWN`].

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::tree::{self, SEEDS, Tree};
use crate::{cmd::Cmd, context::Context};

const VERSION: &str = "27.1.0";
/// Survivors that are no gap, each with the reason: `FILE: what is changed | why nothing can kill it`.
const KNOWN: &str = "xtask/testdata/survivors.txt";
/// For how long the simulator runs against a mutant, in seconds.
const SEEDS_SECONDS: u64 = 120;
/// The tests of a package take less.
const TESTS_SECONDS: &str = "300";

/// A mutant that the tests of its package did not kill.
struct MissedMutant {
    /// Without its line.
    name: String,
    diff: PathBuf,
}

/// The pattern that stands for the files of all of [`FOLDERS`].
pub(super) const ALL: &str = "all";
/// The folders whose bugs make wrong answers.
const FOLDERS: [&str; 6] = ["protocol", "tablet", "client", "gc-master", "tso", "engine"];

/// Mutates the files of a pattern, such as `protocol/src/**`, or of all packages in which it matters most, one after the other.
/// Returns the outcomes of the mutants.
///
/// # Errors
/// Something survives that has no verdict.
pub(super) fn run(context: &Context, files: &str, shard: Option<&str>) -> anyhow::Result<Value> {
    if files != ALL {
        return mutate(context, files, shard);
    }
    let (mut ran, mut failed) = (Vec::new(), Vec::new());
    for folder in FOLDERS {
        match mutate(context, &format!("{folder}/src/**"), shard) {
            Ok(of_folder) => ran.push(of_folder),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    ensure!(failed.is_empty(), "{}; {ran:?}", failed.join("; "));
    Ok(Value::from(ran))
}

fn mutate(context: &Context, files: &str, shard: Option<&str>) -> anyhow::Result<Value> {
    let folder = Path::new(files.split('*').next().unwrap_or_default());
    let package = tree::package_of(context, folder)?.with_context(|| {
        format!("{files} is in no package: a pattern is FOLDER/src/**, as protocol/src/**")
    })?;
    let out = context.root().join("target/mutants");
    let Outcomes {
        missed,
        timed_out,
        all,
    } = run_tests(context, &package, files, shard, &out)?;
    let (by_simulator, listed, survivors) = run_simulator(context, &out, &missed)?;
    let said = format!(
        "{files}: {all} mutants, {} killed by tests ({timed_out} of them by a time-out), {by_simulator} more by {SEEDS} seeds, \
         {listed} listed, {} survive: not killed are {:.0} %",
        all - missed.len(),
        survivors.len(),
        100.0 * (listed + survivors.len()) as f64 / all.max(1) as f64,
    );
    println!("{said}");
    ensure!(
        survivors.is_empty(),
        "{said}. Each needs a test that kills it, or a verdict in {KNOWN}: {}",
        survivors.join("; ")
    );
    Ok(json!({
        "files": files,
        "shard": shard,
        "mutants": all,
        "killed_by_tests": all - missed.len(),
        "timed_out": timed_out,
        "killed_by_seeds": by_simulator,
        "listed": listed,
        "survivors": survivors,
    }))
}

/// Runs the tests of a package against each mutant of its files.
fn run_tests(
    context: &Context,
    package: &str,
    files: &str,
    shard: Option<&str>,
    out: &Path,
) -> anyhow::Result<Outcomes> {
    let program = install(context)?;
    fs::create_dir_all(out)?;
    let mut tests = Cmd::new(&program).args(["mutants", "--package", package, "--file", files]);
    if let Some(shard) = shard {
        // From all files.
        tests = tests.args(["--shard", shard, "--sharding", "round-robin"]);
    }
    let status = tests
        .args([
            "--timeout",
            TESTS_SECONDS,
            "--no-shuffle",
            "--colors",
            "never",
        ])
        .arg("--output")
        .arg(out)
        // What no mutant changes is built once.
        .env("CARGO_TARGET_DIR", &tree::builds(out).to_string_lossy())
        .dir(context.root())
        .status()?;
    // 2: some were missed; 3: some ran into the time limit, which counts as killed.
    ensure!(
        matches!(status.code(), Some(0 | 2 | 3)),
        "cargo-mutants failed: {status}"
    );
    outcomes(&out.join("mutants.out"))
}

/// Runs the simulator against each mutant that the tests missed, unless it is listed. Returns how many it kills, how many are listed, and
/// the names of the survivors.
fn run_simulator(
    context: &Context,
    out: &Path,
    missed: &[MissedMutant],
) -> anyhow::Result<(usize, usize, Vec<String>)> {
    let known = known(context)?;
    let tree = Tree::new(context, out)?;
    if missed
        .iter()
        .any(|mutant| !known.contains_key(&mutant.name))
    {
        // Otherwise a failure of its own counts as a kill.
        tree.clear()?;
        let control = tree.simulator(SEEDS_SECONDS)?;
        ensure!(
            !control.is_killed(),
            "the simulator fails without any mutant: fix that first: {control:?}"
        );
    }
    let (mut by_simulator, mut listed, mut survivors) = (0, 0, Vec::new());
    for mutant in missed {
        if known.contains_key(&mutant.name) {
            listed += 1;
        } else if simulator_kills(&tree, out, mutant)? {
            by_simulator += 1;
        } else {
            println!("SURVIVES: {}", mutant.name);
            survivors.push(mutant.name.clone());
        }
    }
    Ok((by_simulator, listed, survivors))
}

/// Whether a seed fails with this mutant.
fn simulator_kills(tree: &Tree<'_>, out: &Path, mutant: &MissedMutant) -> anyhow::Result<bool> {
    let diff = fs::read_to_string(&mutant.diff);
    let diff = diff.with_context(|| format!("cannot read {}", mutant.diff.display()))?;
    let applied = out.join("mutant.patch");
    fs::write(&applied, patch(&diff)?)?;
    tree.apply(&applied)?;
    let verdict = tree.simulator(SEEDS_SECONDS)?;
    println!("{}: {verdict:?}", mutant.name);
    Ok(verdict.is_killed())
}

/// Makes sure of cargo-mutants, in the folder of builds.
fn install(context: &Context) -> anyhow::Result<PathBuf> {
    let root = context.root().join("target/tools");
    let program = root.join(format!("bin/cargo-mutants-{VERSION}"));
    if !program.exists() {
        let install = ["install", "cargo-mutants", "--locked", "--version", VERSION];
        let installed = context.cargo(install).arg("--root").arg(&root);
        installed.run()?;
        fs::rename(root.join("bin/cargo-mutants"), &program)?;
    }
    Ok(program)
}

/// The outcomes of the mutants that compile.
struct Outcomes {
    /// The tests missed these.
    missed: Vec<MissedMutant>,
    /// So many had the tests run into the time limit.
    timed_out: usize,
    /// How many there are.
    all: usize,
}

fn outcomes(folder: &Path) -> anyhow::Result<Outcomes> {
    let file = folder.join("outcomes.json");
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let outcomes: Value = serde_json::from_slice(&text)?;
    let outcomes = outcomes["outcomes"].as_array();
    let outcomes = outcomes.context("outcomes.json has no outcomes")?;
    let (mut missed, mut timed_out, mut all) = (Vec::new(), 0, 0);
    for outcome in outcomes {
        let Some(name) = outcome.pointer("/scenario/Mutant/name") else {
            continue;
        };
        let name = name.as_str().context("a mutant without a name")?;
        match outcome["summary"].as_str() {
            Some("Unviable") => continue,
            Some("MissedMutant") => {
                let diff = outcome["diff_path"].as_str();
                let diff = diff.with_context(|| format!("no diff of {name}"))?;
                missed.push(MissedMutant {
                    name: without_line(name),
                    diff: folder.join(diff),
                });
            }
            Some("Timeout") => timed_out += 1,
            _ => {}
        }
        all += 1;
    }
    Ok(Outcomes {
        missed,
        timed_out,
        all,
    })
}

/// `FILE:LINE:COLUMN: what` as `FILE: what`: lines move.
fn without_line(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_), Some(_), Some(what)) => format!("{file}:{what}"),
        _ => name.to_owned(),
    }
}

/// The diff of a mutant as `git apply` takes it: its second line has what is changed, where git searches for the file.
fn patch(diff: &str) -> anyhow::Result<String> {
    let mut lines = diff.splitn(3, '\n');
    let file = lines.next().and_then(|line| line.strip_prefix("--- "));
    match (file, lines.next(), lines.next()) {
        (Some(file), Some(_), Some(hunks)) => Ok(format!("--- a/{file}\n+++ b/{file}\n{hunks}")),
        _ => bail!("cargo-mutants gives another kind of diff: {diff}"),
    }
}

/// The verdicts.
fn known(context: &Context) -> anyhow::Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(context.root().join(KNOWN))?;
    verdicts(&text)
}

fn verdicts(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let lines = text.lines().zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(line, number)| match line.split_once(" | ") {
            Some((name, why)) if !why.trim().is_empty() => {
                Ok((name.trim().to_owned(), why.to_owned()))
            }
            _ => {
                bail!("{KNOWN}:{number}: a line is FILE: what is changed | why nothing can kill it")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The function that a mutant changes.
    fn function_of(mutant: &str) -> &str {
        let (_, what) = mutant.split_once(": ").expect("a file and what is changed");
        let path = match what.rsplit_once(" in ") {
            Some((_, path)) => path,
            None => what.split(" -> ").next().expect("it has a start"),
        };
        let path = path.split(" with ").next().expect("it has a start");
        path.rsplit("::")
            .next()
            .expect("it has an end")
            .trim_start_matches("replace ")
    }

    #[test]
    fn each_verdict_is_about_something_that_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let known = fs::read_to_string(root.join(KNOWN)).expect("the verdicts");
        for mutant in verdicts(&known).expect("verdicts").keys() {
            let (file, _) = mutant.split_once(": ").expect("a file");
            let text = fs::read_to_string(root.join(file));
            let text = text.unwrap_or_else(|error| panic!("{mutant}: {error}"));
            let function = format!("fn {}", function_of(mutant));
            assert!(
                text.contains(&function),
                "{mutant}: {file} has no {function}"
            );
        }
    }

    #[test]
    fn a_mutant_is_known_whatever_its_line() {
        let name = "protocol/src/lease.rs:45:9: replace Lease::ends -> bool with true";
        let expected = "protocol/src/lease.rs: replace Lease::ends -> bool with true";
        assert_eq!(without_line(name), expected);
        let text = format!("# Why\n\n{expected} | it is never asked\n");
        assert_eq!(
            verdicts(&text).expect("verdicts")[expected],
            "it is never asked"
        );
        for wrong in [expected.to_owned(), format!("{expected} | ")] {
            let error = verdicts(&wrong).expect_err("no reason").to_string();
            assert!(error.contains("survivors.txt:1"), "{error}");
        }
    }

    #[test]
    fn a_diff_names_its_file_twice() {
        let diff = "--- a/src/x.rs\n+++ replace x -> bool with true\n@@ -1 +1 @@\n-false\n+true\n";
        let expected = "--- a/a/src/x.rs\n+++ b/a/src/x.rs\n@@ -1 +1 @@\n-false\n+true\n";
        assert_eq!(patch(diff).expect("a patch"), expected);
        let error = patch("nothing").expect_err("no diff").to_string();
        assert!(error.contains("another kind of diff"), "{error}");
    }

    #[test]
    fn outcomes_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let mutant = |name: &str, summary: &str| {
            format!(
                r#"{{"scenario":{{"Mutant":{{"name":"{name}"}}}},"summary":"{summary}","diff_path":"diff/{name}.diff"}}"#
            )
        };
        let outcomes = [
            r#"{"scenario":"Baseline","summary":"Success"}"#.to_owned(),
            mutant("a.rs:1:2: x", "CaughtMutant"),
            mutant("a.rs:2:2: y", "MissedMutant"),
            mutant("a.rs:3:2: z", "Unviable"),
            mutant("a.rs:4:2: t", "Timeout"),
        ];
        let text = format!(r#"{{"outcomes":[{}]}}"#, outcomes.join(","));
        fs::write(folder.path().join("outcomes.json"), text).expect("written");
        let found = super::outcomes(folder.path()).expect("outcomes");
        assert_eq!((found.missed.len(), found.timed_out, found.all), (1, 1, 3));
        assert_eq!(found.missed[0].name, "a.rs: y");
    }
}
