//! `percolator debug bundle --kubernetes`: what `kubectl` tells, here one of the test's own.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{CommandOutput, PERCOLATOR, output_of};
use flate2::read::GzDecoder;
use serde_json::Value;

const SECRET: &str = "zanzibar4711";

/// The `kubectl` of these tests. It lies in the tree: a program that a test writes may still be open for writing in a
/// process that another test starts at that moment, and can't be run then.
const KUBECTL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kubectl");

struct Here {
    folder: tempfile::TempDir,
}

impl Here {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("bin")).expect("a folder");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn with_kubectl(self) -> Self {
        std::os::unix::fs::symlink(KUBECTL, self.path("bin/kubectl")).expect("a link");
        self
    }

    /// Makes a bundle where no master answers, with the programs of the test's folder, and those that its script needs.
    fn bundle(&self, path: &str, more: &[&str]) -> (CommandOutput, BTreeMap<String, String>) {
        let file = self.path("bundle.tar.gz");
        let _ = std::fs::remove_file(&file);
        let mut command = Command::new(PERCOLATOR);
        command
            .args(["-c", "127.0.0.1:1", "debug", "bundle"])
            .args([
                "--request-timeout",
                "1s",
                "--for",
                "0s",
                "--data-dir",
                "nowhere",
            ])
            .arg("--file")
            .arg(&file)
            .args(more)
            .env("PATH", format!("{}{path}", self.path("bin").display()))
            .env("CALLS", self.path("calls"));
        let said = output_of(command);
        assert_eq!(said.code(), 0, "{said:?}");
        (said, unpacked(&file))
    }
}

fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(path).expect("the bundle");
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a name").display().to_string();
        let name = name.replace("percolator-debug/", "");
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("readable");
        files.insert(name, text);
    }
    files
}

#[test]
fn a_bundle_has_what_kubectl_tells_and_says_what_it_was_refused() {
    let here = Here::new().with_kubectl();
    let more = ["--kubernetes", "shop/demo", "--context", "far"];
    let (said, files) = here.bundle(":/usr/bin:/bin", &more);
    let json = |name: &str| -> Value {
        let text = files.get(name);
        let text = text.unwrap_or_else(|| panic!("{name}: {:?}", files.keys()));
        serde_json::from_str(text).expect(name)
    };
    let cluster = json("kubernetes/percolatorcluster.json");
    assert_eq!(cluster["metadata"]["name"], "demo");
    for kind in ["statefulsets", "pods", "configmaps", "operator-pods"] {
        assert!(json(&format!("kubernetes/{kind}.json")).is_object());
    }
    let events = json("kubernetes/events.json");
    assert_eq!(events.as_array().map(Vec::len), Some(1), "{events}");
    for (log, words) in [
        ("demo-tso-0.server.log", "the oracle serves"),
        ("demo-tso-0.server.previous.log", "its last words"),
        ("operator-1.operator.log", "the oracle serves"),
    ] {
        let text = files.get(&format!("logs/{log}")).expect(log);
        assert!(text.contains(words), "{log}: {text}");
    }
    assert!(!files.contains_key("logs/operator-1.operator.previous.log"));
    for (name, text) in &files {
        assert!(!text.contains(SECRET), "{name}: {text}");
    }
    let refused = &files["kubernetes/refused.txt"];
    assert!(
        refused.contains("persistentvolumeclaims is forbidden")
            && said.err.contains(refused.trim()),
        "{refused}\n{said:?}"
    );
    let readme = &files["README.txt"];
    assert!(
        readme.contains("kubernetes/refused.txt says why"),
        "{readme}"
    );
    assert!(
        !readme.contains("kubectl get percolatorcluster"),
        "{readme}"
    );

    let calls = std::fs::read_to_string(here.path("calls")).expect("calls");
    for call in calls.lines() {
        let (context, rest) = call.split_once(' ').expect("flags");
        assert_eq!(context, "--context=far", "{call}");
        let of_operator = rest.contains("operator");
        let namespace = if of_operator {
            "--namespace=percolator-system "
        } else {
            "--namespace=shop "
        };
        assert!(rest.starts_with(namespace), "{call}");
        let verb = rest[namespace.len()..].split(' ').next();
        assert!(matches!(verb, Some("get" | "logs")), "{call}");
    }

    let (_, files) = here.bundle(":/usr/bin:/bin", &[&more[..], &["--with-keys"]].concat());
    let log = &files["logs/demo-tso-0.server.log"];
    assert!(log.contains(SECRET), "{log}");
    let cluster = &files["kubernetes/percolatorcluster.json"];
    assert!(!cluster.contains(SECRET), "{cluster}");
}

#[test]
fn without_kubectl_a_bundle_says_so_and_is_made() {
    let here = Here::new();
    let (said, files) = here.bundle("", &["--kubernetes", "demo"]);
    assert!(said.err.contains("kubectl can't be run here"), "{said:?}");
    assert!(files["kubernetes/refused.txt"].contains("kubectl can't be run here"));
    let readme = &files["README.txt"];
    assert!(readme.contains("kubectl get percolatorcluster"), "{readme}");
    let (_, files) = here.bundle("", &[]);
    assert!(!files.contains_key("kubernetes/refused.txt"));
}
