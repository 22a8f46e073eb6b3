//! Building the programs, and running the one for people.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
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

/// Builds the programs for release, and gives the folder that they are in.
pub(crate) fn build_for_release(context: &Context) -> anyhow::Result<PathBuf> {
    context.cargo(["build", "--release"]).run()?;
    Ok(context.metadata()?.target.join("release"))
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
