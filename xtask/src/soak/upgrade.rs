//! An upgrade from an older commit: its programs and its chart are built from the history, and brought up to date on a real
//! Kubernetes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde_json::json;

use super::StepResult;
use crate::{
    cmd::Cmd,
    context::Context,
    kube::{self, release::Release},
    parts::e2e::{self, E2eArgs, OLDER, OlderRelease},
};

/// A value of the chart that was renamed last, together with the roles of a cluster's spec.
const LAST_RENAMED: &str = "unschedulableTimeout";

/// Builds what was at a commit, and runs the test of an upgrade from it. Gives what was run.
pub(super) fn run(context: &Context, commit: &str) -> anyhow::Result<StepResult> {
    if let Some(why) = kube::programs::why_not(context.root(), Release::Usual) {
        anyhow::bail!("no Kubernetes can be run here: {why}");
    }
    let older = build(context, commit)?;
    let args = E2eArgs {
        only: vec![OLDER.to_owned()],
        older: Some(older),
        ..E2eArgs::default()
    };
    Ok(StepResult::part(|report| {
        e2e::run(context, &args, report)?;
        Ok(json!({"from": commit}))
    }))
}

/// The programs are built as tests' programs are, in a folder that the next older commit uses, too.
fn build(context: &Context, commit: &str) -> anyhow::Result<OlderRelease> {
    let root = context.root();
    let name = Cmd::new("git")
        .args(["rev-parse", "--verify", &format!("{commit}^{{commit}}")])
        .dir(root)
        .silent_output()
        .with_context(|| format!("{commit} is no commit that this checkout has"))?;
    let folder: PathBuf = context.metadata()?.target.join("older");
    let tree = folder.join("tree");
    // Goes with the tree: one that was unpacked in part has none.
    let which = tree.join(".commit");
    if fs::read_to_string(&which).is_ok_and(|unpacked| unpacked == name.trim()) {
        println!("{} has this commit", tree.display());
    } else {
        unpack(context, name.trim(), &folder)?;
        fs::write(&which, name.trim())?;
    }
    let chart = tree.join("charts/percolator-operator");
    check_names(commit, &chart)?;
    let target = folder.join("target");
    Cmd::cargo()
        .args(["build", "--locked", "--workspace", "--bins"])
        .arg("--target-dir")
        .arg(&target)
        // Nobody changes it.
        .env("CARGO_INCREMENTAL", "0")
        .dir(&tree)
        .run()?;
    Ok(OlderRelease {
        programs: target.join("debug"),
        chart,
    })
}

/// A commit from before fields were given the names that they have: clusters of it can't be brought up to date, and the test's
/// manifest is refused.
fn check_names(commit: &str, chart: &Path) -> anyhow::Result<()> {
    let values = chart.join("values.yaml");
    let read = fs::read_to_string(&values);
    let read = read.with_context(|| format!("{commit} has no {}", values.display()))?;
    if read.contains(LAST_RENAMED) {
        return Ok(());
    }
    anyhow::bail!(
        "{commit} is from before the renaming of fields (its chart has no {LAST_RENAMED}): its clusters have to be made anew; \
         `git log --reverse -S{LAST_RENAMED} -- charts/percolator-operator/values.yaml` begins with the oldest commit that can be \
         taken"
    )
}

/// Puts the files of a commit into the folder's `tree`, in place of those of another one.
fn unpack(context: &Context, commit: &str, folder: &Path) -> anyhow::Result<()> {
    let (tree, archive) = (folder.join("tree"), folder.join("tree.tar"));
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    fs::create_dir_all(&tree)?;
    let packed = archive.display().to_string();
    Cmd::new("git")
        .args(["archive", "--output", &packed, commit])
        .dir(context.root())
        .run()?;
    // Without the commit's times: cargo would take files that are older than its last build for those that it has built.
    Cmd::new("tar")
        .args(["-xmf", &packed, "-C"])
        .arg(&tree)
        .run()?;
    fs::remove_file(archive)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_from_before_the_renaming_is_refused_before_it_is_built() {
        let chart = tempfile::tempdir().expect("a folder");
        let check = |values: &str| {
            fs::write(chart.path().join("values.yaml"), values).expect("written");
            check_names("HEAD~900", chart.path())
        };
        check("unschedulableTimeout: 5m\n").expect("it can be taken");
        let refused = check("unschedulableGrace: 5m\n").expect_err("too old");
        let refused = refused.to_string();
        assert!(refused.starts_with("HEAD~900 is from before"), "{refused}");
    }
}
