//! Building the programs, and running the one for people.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{cmd::Cmd, context::Context};

/// A program with test functions.
#[derive(Clone, Debug)]
pub(crate) struct TestProgram {
    pub(crate) package: String,
    pub(crate) version: String,
    /// Folder of the package, which tests run in.
    pub(crate) folder: PathBuf,
    /// As cargo calls it: lib, bin, test, example.
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
}

impl TestProgram {
    /// How cargo runs this program alone.
    pub(crate) fn cargo_line(&self) -> String {
        let Self {
            package,
            kind,
            name,
            ..
        } = self;
        match kind.as_str() {
            "bin" | "test" | "example" => format!("cargo test -p {package} --{kind} {name}"),
            _ => format!("cargo test -p {package} --lib"),
        }
    }
}

/// What was built for the tests.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    /// Folder of the programs.
    pub(crate) programs: PathBuf,
    pub(crate) tests: Vec<TestProgram>,
}

/// Builds programs and tests of the whole workspace in one go. One set of packages, features and
/// profile: with `-p` a dependency's features can differ, and it would be built again.
pub(crate) fn build_for_tests(context: &Context) -> anyhow::Result<Built> {
    let messages = context
        .cargo(["build", "--workspace", "--bins", "--tests", "--examples"])
        .arg("--message-format=json-render-diagnostics")
        .output()?;
    let mut tests = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("a message of cargo isn't JSON")?;
        tests.extend(test_program(context, &message)?);
    }
    if tests.is_empty() {
        bail!("cargo has built no tests");
    }
    tests.sort_by(|a, b| (&a.package, &a.kind, &a.name).cmp(&(&b.package, &b.kind, &b.name)));
    Ok(Built {
        programs: context.metadata()?.target.join("debug"),
        tests,
    })
}

fn test_program(context: &Context, message: &Value) -> anyhow::Result<Option<TestProgram>> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return Ok(None);
    }
    let Some(executable) = message["executable"].as_str() else {
        return Ok(None);
    };
    let folder = message["manifest_path"]
        .as_str()
        .and_then(|manifest| Path::new(manifest).parent())
        .context("a test without a package")?;
    let below = folder
        .strip_prefix(context.root())
        .unwrap_or(folder)
        .display()
        .to_string();
    let members = context.metadata()?.members();
    let package = members
        .values()
        .find(|package| package.folder.as_deref() == Some(&below))
        .with_context(|| format!("a test of {below}, which is no member"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(Some(TestProgram {
        package: package.name.clone(),
        version: package.version.clone(),
        folder: folder.to_owned(),
        kind: text(&message["target"]["kind"][0]),
        name: text(&message["target"]["name"]),
        executable: executable.into(),
    }))
}

/// What `percolator_build_info` says of a program's commit.
const REVISION: &str = "PERCOLATOR_REVISION";

/// Builds the programs for release, and gives the folder that they are in. They say of which commit they are, where a
/// checkout or who runs this says it.
pub(crate) fn build_for_release(context: &Context) -> anyhow::Result<PathBuf> {
    let build = context.cargo(["build", "--release"]);
    let said = std::env::var_os(REVISION).is_some();
    match revision(context.root()).filter(|_| !said) {
        Some(revision) => build.env(REVISION, &revision).run()?,
        None => build.run()?,
    }
    Ok(context.metadata()?.target.join("release"))
}

/// The commit of a checkout, with `-changed` where files differ from it; none without git.
pub(crate) fn revision(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let output = git.current_dir(root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let is_clean = git(&["status", "--porcelain"])?.is_empty();
    Some(if is_clean {
        commit
    } else {
        format!("{commit}-changed")
    })
}

/// `cargo xtask run`. The user's folder stays the current one, so that their paths mean what they say.
pub(crate) fn run(context: &Context, arguments: &[String]) -> anyhow::Result<ExitCode> {
    let command = Cmd::new(build_for_release(context)?.join("percolator"));
    let command = if arguments.is_empty() {
        command
            .args(["up", "-f"])
            .arg(context.root().join("examples/cluster.yaml"))
    } else {
        command.args(arguments)
    };
    Err(command.exec())
}

#[test]
fn programs_say_of_which_commit_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    assert_eq!(revision(root), None);
    for script in [
        "git init -q",
        "echo a > a && git add a",
        "git -c user.name=a -c user.email=a@example.com commit -q -m a",
    ] {
        let mut shell = Command::new("sh");
        let done = shell.current_dir(root).args(["-c", script]).status();
        assert!(done.expect("a shell").success(), "{script}");
    }
    let clean = revision(root).expect("a commit");
    assert!(
        clean.len() == 40 && clean.bytes().all(|b| b.is_ascii_hexdigit()),
        "{clean}"
    );
    std::fs::write(root.join("a"), "b").expect("a change");
    assert_eq!(revision(root), Some(format!("{clean}-changed")));
}
