//! Building the programs, and running the one for people.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{cmd::Cmd, context::Context, platform::Platform};

/// A program with test functions.
#[derive(Clone, Debug)]
pub(crate) struct TestProgram {
    pub(crate) package: String,
    pub(crate) version: String,
    /// Folder of the package, which tests run in.
    pub(crate) folder: PathBuf,
    /// As cargo calls it: lib, bin, test, example.
    pub(crate) kind: String,
    /// Of the program, or of the module that is run alone.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// The tests to run, where these aren't all.
    pub(crate) only: Vec<String>,
}

/// A crate's test files are modules of one program, which is compiled and linked once. Each is run as if it were a program.
const OF_MODULES: &str = "integration";

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
            _ if !self.only.is_empty() => {
                format!("cargo test -p {package} --{kind} {OF_MODULES} {name}::")
            }
            "bin" | "test" | "example" => format!("cargo test -p {package} --{kind} {name}"),
            _ => format!("cargo test -p {package} --lib"),
        }
    }

    /// Arguments that have it run its tests and no others.
    pub(crate) fn selection(&self) -> impl Iterator<Item = &str> {
        let exact = (!self.only.is_empty()).then_some("--exact");
        exact
            .into_iter()
            .chain(self.only.iter().map(String::as_str))
    }

    /// Its modules, each as a program; or itself.
    fn modules(self) -> anyhow::Result<Vec<Self>> {
        if self.kind != "test" || self.name != OF_MODULES {
            return Ok(vec![self]);
        }
        let list = Cmd::new(&self.executable).args(["--list", "--format", "terse"]);
        let list = list.dir(&self.folder).silent_output()?;
        let modules = by_module(&list).into_iter().map(|(name, only)| Self {
            name,
            only,
            ..self.clone()
        });
        Ok(modules.collect())
    }
}

/// The tests of a list of the test harness, by the module that they are in.
fn by_module(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or(test, |(module, _)| module);
        modules.entry(module.into()).or_default().push(test.into());
    }
    modules
}

/// The programs that were built for the tests.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    /// Folder of the programs.
    pub(crate) programs: PathBuf,
    pub(crate) tests: Vec<TestProgram>,
}

/// Mutants, which nothing but the simulator turns on.
pub(crate) const MUTANTS: [&str; 2] = ["--features", "percolator-sim/mutants"];

/// The features of builds for tests, which no release has: mutants, and operators whose watches are late. They are the same for all,
/// so that each crate is built once.
pub(crate) const FEATURES: [&str; 2] = [
    "--features",
    "percolator-sim/mutants,percolator-operator/late-watches",
];

/// Builds programs and tests of the whole workspace in one go. One set of packages, features and
/// profile: with `-p` a dependency's features can differ, and it would be built again.
pub(crate) fn build_for_tests(context: &Context) -> anyhow::Result<Built> {
    let messages = context
        .cargo(["build", "--workspace", "--bins", "--tests", "--examples"])
        .args(FEATURES)
        .arg("--message-format=json-render-diagnostics")
        .output()?;
    let mut tests = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("a message of cargo isn't JSON")?;
        if let Some(program) = test_program(context, &message)? {
            tests.extend(program.modules()?);
        }
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
        only: Vec::new(),
    }))
}

/// The commit in `percolator_build_info`.
const REVISION: &str = "PERCOLATOR_REVISION";

/// Builds the operator for release.
pub(crate) fn operator(context: &Context) -> anyhow::Result<PathBuf> {
    let build = ["build", "--release", "-p", "percolator-operator"];
    context.cargo(build).run()?;
    Ok(context
        .metadata()?
        .target
        .join("release/percolator-operator"))
}

/// Builds the programs for release, and gives the folder that they are in. They say of which commit they are, where a
/// checkout or who runs this says it.
pub(crate) fn build_for_release(context: &Context) -> anyhow::Result<PathBuf> {
    build_for(context, Platform::native()?)
}

/// The same, for machines of this kind.
pub(crate) fn build_for(context: &Context, platform: Platform) -> anyhow::Result<PathBuf> {
    let mut build = context.cargo(["build", "--release"]);
    let mut folder = context.metadata()?.target.clone();
    if !platform.is_native() {
        build = build.args(["--target", platform.target()]);
        folder.push(platform.target());
    }
    for (name, value) in platform.toolchain()? {
        build = build.env(&name, &value);
    }
    let said = std::env::var_os(REVISION).is_some();
    match revision(context.root()).filter(|_| !said) {
        Some(revision) => build.env(REVISION, &revision).run()?,
        None => build.run()?,
    }
    Ok(folder.join("release"))
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

/// A file that isn't one would not be compiled, and nobody would know.
#[test]
fn each_file_of_tests_is_a_module() {
    let context = Context::new();
    for (name, package) in context.metadata().expect("metadata").members() {
        let folder = context
            .root()
            .join(package.folder.as_ref().expect("a folder"));
        let tests = folder.join("tests");
        let Ok(main) = std::fs::read_to_string(tests.join("main.rs")) else {
            continue;
        };
        for file in std::fs::read_dir(&tests).expect("a folder") {
            let path = file.expect("a file").path();
            let module = path.file_stem().expect("a name").to_string_lossy();
            let is_module = path.extension().is_some_and(|it| it == "rs") && module != "main";
            if is_module || path.join("mod.rs").exists() {
                let line = format!("mod {module};");
                assert!(
                    main.lines().any(|it| it == line),
                    "{name}: tests/main.rs has no `{line}`"
                );
            }
        }
    }
}

#[test]
fn tests_are_found_by_their_module() {
    let list = "moves::two: test\nimport_moves::one: test\nmoves::deep::three: test\nchild: test\n";
    let modules: Vec<_> = by_module(list).into_iter().collect();
    let expected = [
        ("child", vec!["child"]),
        ("import_moves", vec!["import_moves::one"]),
        ("moves", vec!["moves::two", "moves::deep::three"]),
    ];
    let expected = expected.map(|(module, tests)| {
        let tests: Vec<String> = tests.into_iter().map(ToOwned::to_owned).collect();
        (module.to_owned(), tests)
    });
    assert_eq!(modules, expected);
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
