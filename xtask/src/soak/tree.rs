//! A copy of the committed tree, in which small bugs are built and tested, one after the other.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::fresh_seeds;
use crate::{cmd::Cmd, context::Context};

/// Seeds of the default plans that the simulator runs against a bug, at the most.
pub(super) const SEEDS: u64 = 400;
/// The tests of a package take less, in seconds.
const TESTS_SECONDS: &str = "600";

/// The package in whose folder this path lies, if it is in one.
pub(super) fn package_of(context: &Context, path: &Path) -> anyhow::Result<Option<String>> {
    let members = context.metadata()?.members();
    let folders = members
        .iter()
        .filter_map(|(name, package)| Some((*name, package.folder.as_deref()?)));
    let found = folders.filter(|(_, of)| !of.is_empty() && path.starts_with(of));
    // `operator/api` lies in the operator's folder.
    let deepest = found.max_by_key(|(_, of)| of.len());
    Ok(deepest.map(|(name, _)| name.to_owned()))
}

/// What is built goes here.
pub(super) fn builds(out: &Path) -> PathBuf {
    out.join("builds")
}

/// See the module's head.
pub(super) struct Tree<'a> {
    root: &'a Path,
    folder: PathBuf,
    builds: PathBuf,
}

impl<'a> Tree<'a> {
    /// A new one in the folder `out`, which keeps what was built there before.
    pub(super) fn new(context: &'a Context, out: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(out)?;
        let tree = Self {
            root: context.root(),
            folder: out.join("tree"),
            builds: builds(out),
        };
        if tree.folder.exists() {
            tree.worktree(&["remove", "--force"]).run()?;
        }
        tree.worktree(&["add", "--force", "--detach"]).run()?;
        Ok(tree)
    }

    fn worktree(&self, arguments: &[&str]) -> Cmd {
        Cmd::new("git")
            .arg("worktree")
            .args(arguments)
            .arg(&self.folder)
            .dir(self.root)
    }

    fn git(&self, arguments: &[&str]) -> Cmd {
        Cmd::new("git").args(arguments).dir(&self.folder)
    }

    /// The committed tree with this patch alone.
    pub(super) fn apply(&self, patch: &Path) -> anyhow::Result<()> {
        self.git(&["checkout", "--quiet", "--", "."]).run()?;
        // What an earlier one has added.
        self.git(&["clean", "--quiet", "--force", "-d"]).run()?;
        self.git(&["apply"]).arg(patch).run()
    }

    /// The files that the patch has changed, from the tree's root.
    pub(super) fn changed(&self) -> anyhow::Result<Vec<PathBuf>> {
        let names = self.git(&["diff", "--name-only"]).silent_output()?;
        Ok(names.lines().map(PathBuf::from).collect())
    }

    /// Whether a test of this package fails, or doesn't end.
    ///
    /// # Errors
    /// It can't be compiled: that is no sign that anything has noticed the bug.
    pub(super) fn tests_notice(&self, package: &str) -> anyhow::Result<bool> {
        let test = ["test", "--quiet", "--no-fail-fast", "--package", package];
        self.cargo(Cmd::cargo().args(test).arg("--no-run")).run()?;
        // With all that it has started.
        let timeout = Cmd::new("timeout").args(["--signal", "KILL", TESTS_SECONDS, "cargo"]);
        let status = self.cargo(timeout.args(test)).status()?;
        Ok(!status.success())
    }

    /// Whether a seed of the default plans fails. No more are begun after these seconds.
    ///
    /// # Errors
    /// It can't be compiled.
    pub(super) fn simulator_notices(&self, seconds: u64) -> anyhow::Result<bool> {
        let build = ["build", "--quiet", "--workspace", "--bin", "percolator-sim"];
        self.cargo(Cmd::cargo().args(build)).run()?;
        let seeds = fresh_seeds(SEEDS)?;
        let status = Cmd::new(self.builds.join("debug/percolator-sim"))
            .args(["--seeds", &seeds, "--seconds", &seconds.to_string()])
            .status()?;
        Ok(!status.success())
    }

    fn cargo(&self, command: Cmd) -> Cmd {
        command
            .arg("--target-dir")
            .arg(&self.builds)
            .dir(&self.folder)
    }
}

impl Drop for Tree<'_> {
    fn drop(&mut self) {
        let _ = self.worktree(&["remove", "--force"]).status();
    }
}
