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
        chart: tree.join("charts/percolator-operator"),
    })
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
