//! Bugs that a person has written, a patch each, and what kills them: the tests of the package that they are in, and the
//! simulator with its default plans. Both are asked, so that each has a figure of its own.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::tree::{self, Tree, Verdict};
use crate::context::Context;

/// For how long the simulator runs against a bug, in seconds.
const SEEDS_SECONDS: u64 = 600;

/// The verdicts about a bug.
#[derive(Clone, Debug, Default)]
struct KilledBy {
    by_tests: Verdict,
    by_simulator: Verdict,
}

/// Tries the patches of a folder, and returns a summary.
pub(super) fn run(context: &Context, folder: &Path) -> anyhow::Result<Value> {
    let patches = patches(folder)?;
    let tree = Tree::new(context, &context.root().join("target/mutants"))?;
    let mut found = Vec::new();
    let mut packages = BTreeSet::new();
    for patch in &patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy();
        let killed = try_out(context, &tree, patch, &mut packages)
            .with_context(|| patch.display().to_string())?;
        println!("{}", line(&name, &killed));
        found.push((name, killed));
    }
    let bugs: Vec<String> = found
        .iter()
        .map(|(name, killed)| line(name, killed))
        .collect();
    println!("\nkilled by:\n  {}", bugs.join("\n  "));
    control(&tree, &packages)?;
    let killed: Vec<KilledBy> = found.into_iter().map(|(_, killed)| killed).collect();
    let mut summary = summary(&killed);
    println!("{summary}");
    summary["bugs"] = json!(bugs);
    Ok(summary)
}

/// Checks that nothing fails without a bug: otherwise the figures mean nothing.
fn control(tree: &Tree<'_>, packages: &BTreeSet<String>) -> anyhow::Result<()> {
    tree.clear()?;
    for package in packages {
        let verdict = tree.tests(package)?;
        ensure!(
            !verdict.is_killed(),
            "the tests of {package} without any patch: {verdict:?}"
        );
    }
    let verdict = tree.simulator(SEEDS_SECONDS)?;
    ensure!(
        !verdict.is_killed(),
        "the simulator without any patch: {verdict:?}"
    );
    Ok(())
}

/// In the order of their names.
fn patches(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let files: BTreeSet<PathBuf> = files
        .map(|file| Ok(fs::canonicalize(file?.path())?))
        .collect::<anyhow::Result<_>>()?;
    let is_patch = |file: &PathBuf| file.extension().is_some_and(|it| it == "patch");
    let patches: Vec<PathBuf> = files.into_iter().filter(is_patch).collect();
    ensure!(
        !patches.is_empty(),
        "{} has no *.patch: each is what `git diff` prints of one bug",
        folder.display()
    );
    Ok(patches)
}

fn try_out(
    context: &Context,
    tree: &Tree<'_>,
    patch: &Path,
    tested: &mut BTreeSet<String>,
) -> anyhow::Result<KilledBy> {
    tree.apply(patch)?;
    let changed = tree.changed()?;
    let mut packages = BTreeSet::new();
    for file in &changed {
        let package = tree::package_of(context, file)?;
        packages.insert(package.with_context(|| format!("{} is in no package", file.display()))?);
    }
    let mut killed = KilledBy::default();
    for package in &packages {
        if !killed.by_tests.is_killed() {
            killed.by_tests = tree.tests(package)?;
        }
    }
    killed.by_simulator = tree.simulator(SEEDS_SECONDS)?;
    tested.append(&mut packages);
    Ok(killed)
}

fn line(name: &str, killed: &KilledBy) -> String {
    let word = |verdict: &Verdict| match verdict {
        Verdict::Survived => "-".to_owned(),
        Verdict::Killed(what) => what.clone(),
        Verdict::TimedOut => "timed out".to_owned(),
    };
    let (tests, simulator) = (word(&killed.by_tests), word(&killed.by_simulator));
    format!("{name:<12} tests: {tests}; simulator: {simulator}")
}

fn summary(found: &[KilledBy]) -> Value {
    let count = |is: &dyn Fn(&KilledBy) -> bool| found.iter().filter(|killed| is(killed)).count();
    json!({
        "patches": found.len(),
        "killed_by_tests": count(&|killed| killed.by_tests.is_killed()),
        "of_which_timed_out": count(&|killed| killed.by_tests == Verdict::TimedOut),
        "killed_by_seeds": count(&|killed| killed.by_simulator.is_killed()),
        "killed_by_either":
            count(&|killed| killed.by_tests.is_killed() || killed.by_simulator.is_killed()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_by_what_kills_it() {
        let by = |what: &str| Verdict::Killed(what.to_owned());
        let killed = |by_tests, by_simulator| KilledBy {
            by_tests,
            by_simulator,
        };
        let found = [
            killed(Verdict::TimedOut, by("liveness: ends")),
            killed(Verdict::Survived, by("durable")),
            killed(Verdict::Survived, Verdict::Survived),
        ];
        assert_eq!(
            summary(&found),
            json!({
                "patches": 3,
                "killed_by_tests": 1,
                "of_which_timed_out": 1,
                "killed_by_seeds": 2,
                "killed_by_either": 2,
            })
        );
        assert_eq!(
            line("07", &found[1]),
            "07           tests: -; simulator: durable"
        );
    }

    #[test]
    fn a_folder_without_patches_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = patches(folder.path()).expect_err("it is empty").to_string();
        assert!(error.contains("no *.patch"), "{error}");
        for name in ["2.patch", "1.patch", "index.md"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let found = patches(folder.path()).expect("two");
        let names: Vec<_> = found.iter().filter_map(|it| it.file_name()).collect();
        assert_eq!(names, ["1.patch", "2.patch"]);
    }
}
