//! What the build script finds out of a checkout.

#[path = "../build/revision.rs"]
mod revision;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn git(root: &Path, arguments: &[&str]) {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
    let mut git = Command::new("git");
    git.current_dir(root).args(identity).args(arguments);
    // Neither signatures nor hooks of anyone who runs this.
    git.env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env_remove("GIT_DIR")
        .env_remove("GIT_INDEX_FILE");
    let output = git.output().expect("git");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

fn commit(root: &Path, message: &str) {
    git(root, &["commit", "-q", "--allow-empty", "-m", message]);
}

/// What is watched, with what is there.
fn seen(watched: &[PathBuf]) -> BTreeMap<&Path, String> {
    let content = |path: &Path| {
        if path.is_dir() {
            let names = std::fs::read_dir(path).expect("a folder");
            let mut names: Vec<_> = names.map(|it| it.expect("a file").file_name()).collect();
            names.sort();
            format!("{names:?}")
        } else {
            std::fs::read_to_string(path).expect("a file")
        }
    };
    watched
        .iter()
        .map(|path| (&**path, content(path)))
        .collect()
}

#[test]
fn a_checkouts_commit_is_known_and_what_changes_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    assert!(revision::of(root).is_none(), "no checkout");
    git(root, &["init", "-q"]);
    assert!(revision::of(root).is_none(), "no commit");
    commit(root, "first");
    let inner = root.join("vendored");
    std::fs::create_dir(&inner).expect("a folder");
    assert!(revision::of(&inner).is_none(), "another's checkout");

    let no_log: &[&str] = &["config", "core.logAllRefUpdates", "false"];
    let worktree = root.join("worktree").display().to_string();
    let steps: [&[&[&str]]; 5] = [
        &[],
        &[&["pack-refs", "--all"]],
        &[no_log, &["reflog", "expire", "--expire=now", "--all"]],
        &[&["pack-refs", "--all"]],
        &[&["checkout", "-q", "--detach"]],
    ];
    for step in steps {
        step.iter().for_each(|arguments| git(root, arguments));
        let before = revision::of(root).expect("a commit");
        let is_digit = |byte: u8| byte.is_ascii_hexdigit();
        assert!(before.commit.bytes().all(is_digit), "{before:?}");
        let watched = seen(&before.watched);
        assert_eq!(watched, seen(&before.watched));
        commit(root, "next");
        let after = revision::of(root).expect("a commit");
        assert_ne!(before.commit, after.commit);
        assert_ne!(watched, seen(&before.watched), "{step:?}: {before:?}");
    }
    git(root, &["worktree", "add", "-q", "-b", "other", &worktree]);
    let before = revision::of(Path::new(&worktree)).expect("a commit");
    let watched = seen(&before.watched);
    commit(Path::new(&worktree), "there");
    assert_ne!(watched, seen(&before.watched), "{before:?}");
}
