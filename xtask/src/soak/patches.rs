//! Bugs that somebody has written, a patch each, and what notices them: the tests of the package that they are in, and the
//! simulator with its default plans. Both are asked, so that each has a figure of its own.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};

use super::tree::{self, SEEDS, Tree};
use crate::context::Context;

/// For how long the simulator runs against a bug, in seconds.
const SEEDS_SECONDS: u64 = 600;

/// What noticed a bug.
#[derive(Clone, Copy, Debug, Default)]
struct Noticed {
    by_tests: bool,
    by_simulator: bool,
}

/// Tries the patches of a folder. What became of them.
pub(super) fn run(context: &Context, folder: &Path) -> anyhow::Result<String> {
    let patches = patches(folder)?;
    let tree = Tree::new(context, &context.root().join("target/mutants"))?;
    let mut found = Vec::new();
    for patch in &patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy();
        let noticed =
            try_out(context, &tree, patch).with_context(|| patch.display().to_string())?;
        println!("{}", line(&name, noticed));
        found.push((name, noticed));
    }
    println!("\nnoticed by:");
    for (name, noticed) in &found {
        println!("  {}", line(name, *noticed));
    }
    let noticed: Vec<Noticed> = found.iter().map(|(_, noticed)| *noticed).collect();
    Ok(summary(&noticed))
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

fn try_out(context: &Context, tree: &Tree<'_>, patch: &Path) -> anyhow::Result<Noticed> {
    tree.apply(patch)?;
    let changed = tree.changed()?;
    let mut packages = BTreeSet::new();
    for file in &changed {
        let package = tree::package_of(context, file)?;
        packages.insert(package.with_context(|| format!("{} is in no package", file.display()))?);
    }
    let mut noticed = Noticed::default();
    for package in &packages {
        noticed.by_tests |= tree.tests_notice(package)?;
    }
    noticed.by_simulator = tree.simulator_notices(SEEDS_SECONDS)?;
    Ok(noticed)
}

fn line(name: &str, noticed: Noticed) -> String {
    let word = |is_noticed, by| if is_noticed { by } else { "-" };
    let tests = word(noticed.by_tests, "tests");
    let simulator = word(noticed.by_simulator, "simulator");
    format!("{name:<24} {tests:<8} {simulator}")
}

fn summary(found: &[Noticed]) -> String {
    let count = |is: &dyn Fn(&Noticed) -> bool| found.iter().filter(|noticed| is(noticed)).count();
    format!(
        "{} patches: {} noticed by the tests of their packages, {} by {SEEDS} seeds, {} by either",
        found.len(),
        count(&|noticed| noticed.by_tests),
        count(&|noticed| noticed.by_simulator),
        count(&|noticed| noticed.by_tests || noticed.by_simulator),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_by_what_notices_it() {
        let noticed = |by_tests, by_simulator| Noticed {
            by_tests,
            by_simulator,
        };
        let found = [
            noticed(true, true),
            noticed(false, true),
            noticed(false, false),
        ];
        assert_eq!(
            summary(&found),
            "3 patches: 1 noticed by the tests of their packages, 2 by 400 seeds, 2 by either"
        );
        assert_eq!(
            line("07", found[1]),
            "07                       -        simulator"
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
