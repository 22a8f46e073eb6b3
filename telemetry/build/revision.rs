//! The commit of a checkout, and what changes when another one is checked out.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A checkout.
#[derive(Debug)]
pub(crate) struct Checkout {
    /// Of what is checked out, in hexadecimal. Files may differ from it.
    pub(crate) commit: String,
    /// Files and folders, one of which changes with the commit.
    pub(crate) watched: Vec<PathBuf>,
}

/// Of the checkout whose top this folder is; none of one that merely lies in another repository, or without git.
pub(crate) fn of(root: &Path) -> Option<Checkout> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let output = git.current_dir(root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let place = |name: &str| {
        let path = git(&["rev-parse", "--git-path", name])?;
        Some(root.join(path)).filter(|path| path.exists())
    };
    let mut watched: Vec<PathBuf> = ["HEAD", "logs/HEAD", "packed-refs"]
        .into_iter()
        .filter_map(place)
        .collect();
    if let Some(branch) = &branch {
        // A branch that is packed has no file until its next commit: its folder changes then.
        let folder = branch
            .rsplit_once('/')
            .and_then(|(folder, _)| place(folder));
        watched.extend(place(branch).or(folder).or_else(|| place("refs/heads")));
    }
    Some(Checkout { commit, watched })
}
