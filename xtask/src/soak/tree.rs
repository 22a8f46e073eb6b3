//! A copy of the committed tree, in which small bugs are built and tested, one after the other.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
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

/// What is run with these arguments is killed after so many seconds, with all that it has started.
fn within(seconds: &str) -> Cmd {
    Cmd::new("timeout").args(["--signal", "KILL", seconds])
}

/// Of what was run [`within`] a time.
fn verdict(status: ExitStatus, output: &str) -> Verdict {
    match status.code() {
        Some(0) => Verdict::Survived,
        None | Some(KILLED) => Verdict::TimedOut,
        _ => Verdict::Killed(first_failure(output)),
    }
}

/// The folder of builds.
pub(super) fn builds(out: &Path) -> PathBuf {
    out.join("builds")
}

/// The result of a run against a bug.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing failed.
    #[default]
    Survived,
    /// This failed.
    Killed(String),
    /// It was not done in time.
    TimedOut,
}

impl Verdict {
    pub(super) fn is_killed(&self) -> bool {
        *self != Self::Survived
    }
}

/// The exit code of `timeout` when it has killed the command.
const KILLED: i32 = 128 + 9;
/// The most characters of a failure's description.
const WHAT_CHARS: usize = 100;

/// The first line of this that says what failed.
fn first_failure(output: &str) -> String {
    let failed = |line: &&str| line.contains("FAILED") || line.contains(" panicked at ");
    let line = output
        .lines()
        .find(failed)
        .unwrap_or("it ended with an error");
    line.trim().chars().take(WHAT_CHARS).collect()
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
        self.clear()?;
        self.git(&["apply"]).arg(patch).run()
    }

    /// The committed tree.
    pub(super) fn clear(&self) -> anyhow::Result<()> {
        self.git(&["checkout", "--quiet", "--", "."]).run()?;
        // What an earlier patch has added.
        self.git(&["clean", "--quiet", "--force", "-d"]).run()
    }

    /// The files that the patch has changed, from the tree's root.
    pub(super) fn changed(&self) -> anyhow::Result<Vec<PathBuf>> {
        let names = self.git(&["diff", "--name-only"]).silent_output()?;
        Ok(names.lines().map(PathBuf::from).collect())
    }

    /// The verdict of this package's tests.
    ///
    /// # Errors
    /// It can't be compiled: that kills no bug.
    pub(super) fn tests(&self, package: &str) -> anyhow::Result<Verdict> {
        let test = ["test", "--quiet", "--no-fail-fast", "--package", package];
        self.cargo(Cmd::cargo().args(test).arg("--no-run")).run()?;
        let tests = within(TESTS_SECONDS).arg("cargo").args(test);
        let (status, output) = self.cargo(tests).ended()?;
        Ok(verdict(status, &output))
    }

    /// The verdict of fresh seeds of the default plans. No more are begun after these seconds.
    ///
    /// # Errors
    /// It can't be compiled.
    pub(super) fn simulator(&self, seconds: u64) -> anyhow::Result<Verdict> {
        let build = ["build", "--quiet", "--workspace", "--bin", "percolator-sim"];
        self.cargo(Cmd::cargo().args(build)).run()?;
        let seeds = fresh_seeds(SEEDS)?;
        // A bug may be an endless loop.
        let (status, output) = within(&(3 * seconds).to_string())
            .arg(self.builds.join("debug/percolator-sim"))
            .args(["--seeds", &seeds, "--seconds", &seconds.to_string()])
            .ended()?;
        // How many seeds these were.
        println!("{}", output.lines().last().unwrap_or_default());
        Ok(verdict(status, &output))
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
