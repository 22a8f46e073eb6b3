//! Bugs that somebody has written, a patch each, and what notices them: the tests of the package that they are in, and the
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

/// What noticed a bug.
#[derive(Clone, Debug, Default)]
struct Noticed {
    by_tests: Verdict,
    by_simulator: Verdict,
}

/// Tries the patches of a folder. What became of them.
pub(super) fn run(context: &Context, folder: &Path) -> anyhow::Result<Value> {
    let patches = patches(folder)?;
    let tree = Tree::new(context, &context.root().join("target/mutants"))?;
    let mut found = Vec::new();
    let mut packages = BTreeSet::new();
    for patch in &patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy();
        let noticed = try_out(context, &tree, patch, &mut packages)
            .with_context(|| patch.display().to_string())?;
        println!("{}", line(&name, &noticed));
        found.push((name, noticed));
    }
    let bugs: Vec<String> = found
        .iter()
        .map(|(name, noticed)| line(name, noticed))
        .collect();
    println!("\nnoticed by:\n  {}", bugs.join("\n  "));
    control(&tree, &packages)?;
    let noticed: Vec<Noticed> = found.into_iter().map(|(_, noticed)| noticed).collect();
    let mut summary = summary(&noticed);
    println!("{summary}");
    summary["bugs"] = json!(bugs);
    Ok(summary)
}

/// Without a bug nothing is noticed: otherwise the figures say nothing.
fn control(tree: &Tree<'_>, packages: &BTreeSet<String>) -> anyhow::Result<()> {
    tree.clear()?;
    for package in packages {
        let verdict = tree.tests(package)?;
        ensure!(
            !verdict.is_noticed(),
            "the tests of {package} without any patch: {verdict:?}"
        );
    }
    let verdict = tree.simulator(SEEDS_SECONDS)?;
    ensure!(
        !verdict.is_noticed(),
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
) -> anyhow::Result<Noticed> {
    tree.apply(patch)?;
    let changed = tree.changed()?;
    let mut packages = BTreeSet::new();
    for file in &changed {
        let package = tree::package_of(context, file)?;
        packages.insert(package.with_context(|| format!("{} is in no package", file.display()))?);
    }
    let mut noticed = Noticed::default();
    for package in &packages {
        if !noticed.by_tests.is_noticed() {
            noticed.by_tests = tree.tests(package)?;
        }
    }
    noticed.by_simulator = tree.simulator(SEEDS_SECONDS)?;
    tested.append(&mut packages);
    Ok(noticed)
}

fn line(name: &str, noticed: &Noticed) -> String {
    let word = |verdict: &Verdict| match verdict {
        Verdict::Unnoticed => "-".to_owned(),
        Verdict::Noticed(what) => what.clone(),
        Verdict::TimedOut => "timed out".to_owned(),
    };
    let (tests, simulator) = (word(&noticed.by_tests), word(&noticed.by_simulator));
    format!("{name:<12} tests: {tests}; simulator: {simulator}")
}

fn summary(found: &[Noticed]) -> Value {
    let count = |is: &dyn Fn(&Noticed) -> bool| found.iter().filter(|noticed| is(noticed)).count();
    json!({
        "patches": found.len(),
        "noticed_by_tests": count(&|noticed| noticed.by_tests.is_noticed()),
        "of_which_timed_out": count(&|noticed| noticed.by_tests == Verdict::TimedOut),
        "noticed_by_seeds": count(&|noticed| noticed.by_simulator.is_noticed()),
        "noticed_by_either":
            count(&|noticed| noticed.by_tests.is_noticed() || noticed.by_simulator.is_noticed()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_by_what_notices_it() {
        let by = |what: &str| Verdict::Noticed(what.to_owned());
        let noticed = |by_tests, by_simulator| Noticed {
            by_tests,
            by_simulator,
        };
        let found = [
            noticed(Verdict::TimedOut, by("liveness: ends")),
            noticed(Verdict::Unnoticed, by("durable")),
            noticed(Verdict::Unnoticed, Verdict::Unnoticed),
        ];
        assert_eq!(
            summary(&found),
            json!({
                "patches": 3,
                "noticed_by_tests": 1,
                "of_which_timed_out": 1,
                "noticed_by_seeds": 2,
                "noticed_by_either": 2,
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
