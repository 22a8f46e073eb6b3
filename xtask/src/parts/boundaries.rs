//! Which crate may depend on which. The rules are those of ARCHITECTURE.md; this proves that they hold.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::{context::Context, metadata::Metadata};

/// What `protocol` may use from elsewhere: nothing that waits, reads a clock or throws dice.
const PROTOCOL_MAY_NEED: [&str; 2] = ["bytes", "thiserror"];

/// What the standard library has for I/O, clocks, threads and the world outside.
const IMPURE: [&str; 9] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];
const IMPURE_MACROS: [&str; 5] = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];

/// The programs that own data.
const SERVERS: [&str; 3] = [
    "percolator-gc-master",
    "percolator-tablet",
    "percolator-tso",
];

enum Siblings {
    /// Of the workspace's members, only these.
    Only(&'static [&'static str]),
    /// None of these.
    None(&'static [&'static str]),
}

/// Rules by folder, for the folder and those below. What tests alone need is free.
const RULES: [(&str, Siblings); 18] = [
    ("protocol", Siblings::Only(&[])),
    ("wire", Siblings::Only(&["percolator-protocol"])),
    ("engine", Siblings::Only(&[])),
    ("history", Siblings::Only(&[])),
    ("hosts", Siblings::Only(&[])),
    ("transcript", Siblings::Only(&[])),
    ("tools/kube", Siblings::Only(&[])),
    ("telemetry", Siblings::Only(&[])),
    ("register", Siblings::Only(&[])),
    // Each store's client stays in a crate of its own: servers depend on the trait.
    ("register-etcd", Siblings::Only(&["percolator-register"])),
    ("register-kube", Siblings::Only(&["percolator-register"])),
    // What all servers share must not know any of them.
    (
        "server",
        Siblings::Only(&[
            "percolator-protocol",
            "percolator-register",
            "percolator-register-etcd",
            "percolator-register-kube",
            "percolator-telemetry",
            "percolator-wire",
        ]),
    ),
    (
        "client",
        Siblings::Only(&[
            "percolator-protocol",
            "percolator-telemetry",
            "percolator-wire",
        ]),
    ),
    // It is an application: what it knows of a cluster it knows by the client library.
    (
        "proxy",
        Siblings::Only(&[
            "percolator-client",
            "percolator-protocol",
            "percolator-register",
            "percolator-register-etcd",
            "percolator-register-kube",
            "percolator-server",
            "percolator-telemetry",
            "percolator-wire",
        ]),
    ),
    ("gc-master", Siblings::None(&SERVERS)),
    ("tablet", Siblings::None(&SERVERS)),
    ("tso", Siblings::None(&SERVERS)),
    ("operator", Siblings::None(&SERVERS)),
];

/// Where servers turn messages into types of their own, and back. Their other files know no message.
const EDGES: [(&str, &[&str]); 4] = [
    (
        "client/src",
        &[
            // These turn messages into types, and back.
            "convert/admin.rs",
            "convert/cluster.rs",
            "convert/mod.rs",
            // These send requests to the master and the oracle.
            "master.rs",
            "network.rs",
            "oracle/driver.rs",
            "tables.rs",
            "transport.rs",
            // These send requests to tablet servers, and read the responses.
            "attempts.rs",
            "changes.rs",
            "commit.rs",
            "connection.rs",
            "group.rs",
            "large.rs",
            "lock_resolver.rs",
            "locks.rs",
            "metrics.rs",
            "observer/acknowledge.rs",
            "observer/requests.rs",
            "observer/worker.rs",
            "peers.rs",
            "raw.rs",
            "reading.rs",
            "resolver.rs",
            "router.rs",
            "scan.rs",
            "trace.rs",
            "transact.rs",
        ],
    ),
    (
        "gc-master/src",
        &[
            "beats.rs",
            "command_sender.rs",
            "convert.rs",
            "leadership.rs",
            "locate.rs",
            "measured.rs",
            "requests.rs",
            "server.rs",
            "service.rs",
            "standbys.rs",
        ],
    ),
    ("tso/src", &["beats.rs", "server.rs", "service.rs"]),
    // Requests and responses are decided as messages, and are not converted twice.
    (
        "tablet/src",
        &[
            "asked.rs",
            "changes.rs",
            "convert.rs",
            "core/answer.rs",
            "core/flushes.rs",
            "core/mod.rs",
            "core/observing.rs",
            "core/queue.rs",
            "core/report.rs",
            "core/waits.rs",
            "decision.rs",
            "endings.rs",
            "load.rs",
            "locks.rs",
            "meter.rs",
            "notify.rs",
            "outbox.rs",
            "places.rs",
            "prewrite.rs",
            "probe.rs",
            "rates.rs",
            "reads.rs",
            "resolve.rs",
            "resolver.rs",
            "runner.rs",
            "scan_part.rs",
            "server.rs",
            "service.rs",
            "stored.rs",
            "trace.rs",
            "verify.rs",
            "work.rs",
        ],
    ),
];

pub(crate) fn run(context: &Context) -> anyhow::Result<String> {
    let metadata = context.metadata()?;
    let mut broken = broken_rules(metadata);
    let protocol = metadata
        .packages
        .iter()
        .find(|package| package.folder.as_deref() == Some("protocol"))
        .context("there is no protocol crate")?;
    for need in &protocol.needs {
        if !PROTOCOL_MAY_NEED.contains(&need.as_str()) {
            broken.push(format!("protocol must not depend on {need}"));
        }
    }
    for (path, text) in sources(&context.root().join("protocol/src"))? {
        for found in impure(&text) {
            broken.push(format!("{} uses {found}", path.display()));
        }
    }
    for (folder, edges) in EDGES {
        let folder = context.root().join(folder);
        for edge in edges {
            if !folder.join(edge).is_file() {
                broken.push(format!("{} has no {edge}", folder.display()));
            }
        }
        for (path, text) in sources(&folder)? {
            let is_edge = edges.iter().any(|edge| path == folder.join(edge));
            if !is_edge && has_messages(&text) {
                broken.push(format!(
                    "{} uses messages (v1::): convert them at an edge, {}",
                    path.display(),
                    edges.join(", ")
                ));
            }
        }
    }
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    let rules = RULES.len() + EDGES.len() + 1;
    Ok(format!("{}, {rules} rules", context.crates()?))
}

fn broken_rules(metadata: &Metadata) -> Vec<String> {
    let mut broken = Vec::new();
    for package in metadata.packages.iter() {
        let Some(folder) = package.folder.as_deref() else {
            continue;
        };
        let siblings = metadata.siblings(&package.name);
        for (_, rule) in RULES
            .iter()
            .filter(|(rules, _)| Path::new(folder).starts_with(rules))
        {
            for sibling in siblings.iter().filter(|sibling| **sibling != package.name) {
                let allowed = match rule {
                    Siblings::Only(only) => only.contains(sibling),
                    Siblings::None(none) => !none.contains(sibling),
                };
                if !allowed {
                    broken.push(format!("{folder} must not depend on {sibling}"));
                }
            }
        }
    }
    broken
}

/// The source files in a folder and below, with their texts.
fn sources(folder: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
            found.push((path, text));
        }
    }
    Ok(found)
}

/// Whether the code names messages of `wire`.
fn has_messages(text: &str) -> bool {
    code(text).contains("v1::")
}

/// The text without comments that end a line.
fn code(text: &str) -> String {
    let lines = text.lines();
    let code: Vec<&str> = lines
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect();
    code.join("\n")
}

/// What a pure source text must not name, of all that it names. It reads words, not Rust: anyone who wants
/// to get around it can, and a lint would notice no more.
fn impure(text: &str) -> BTreeSet<String> {
    let code = code(text);
    let mut found = BTreeSet::new();
    for name in IMPURE_MACROS {
        let is_word = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if code.match_indices(name).any(|(at, _)| is_word(at)) {
            found.insert(name.to_owned());
        }
    }
    for (at, _) in code.match_indices("std::") {
        for path in paths(&code[at..]) {
            let is_below = |name: &&&str| {
                path.strip_prefix(**name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            found.extend(IMPURE.iter().find(is_below).map(|name| (*name).to_owned()));
        }
    }
    found
}

/// The paths at the start of the text: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(text: &str) -> Vec<String> {
    let end = text
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .unwrap_or(text.len());
    let (stem, rest) = text.split_at(end);
    let Some(group) = rest.strip_prefix('{').filter(|_| stem.ends_with("::")) else {
        return vec![stem.trim_end_matches(':').to_owned()];
    };
    let mut found = Vec::new();
    let mut depth = 0;
    let mut starts_path = true;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => starts_path = true,
            c if starts_path && !c.is_whitespace() => {
                starts_path = false;
                let inner = paths(&group[at..]);
                found.extend(inner.into_iter().map(|path| format!("{stem}{path}")));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    fn member(folder: &str, needs: &[&str]) -> Package {
        Package {
            name: format!("percolator-{}", folder.replace('/', "-")),
            folder: Some(folder.to_owned()),
            needs: needs
                .iter()
                .map(|need| format!("percolator-{need}"))
                .collect(),
            ..Package::default()
        }
    }

    fn broken(packages: &[Package]) -> Vec<String> {
        broken_rules(&Metadata {
            packages: packages.to_vec(),
            ..Metadata::default()
        })
    }

    #[test]
    fn messages_are_seen_and_comments_about_them_are_not() {
        assert!(has_messages("let it: v1::Lock = x;"));
        assert!(has_messages("use percolator_wire::v1::Lock;"));
        assert!(!has_messages(
            "// not v1::Lock\nlet lock = Lock::default();"
        ));
    }

    #[test]
    fn what_the_architecture_allows_passes() {
        let packages = [
            member("protocol", &[]),
            member("wire", &["protocol"]),
            member("engine", &[]),
            member("register", &[]),
            member("register-etcd", &["register"]),
            member("register-kube", &["register"]),
            member("server", &["register", "wire"]),
            member("tso", &["server", "protocol"]),
            member("tablet", &["server", "engine"]),
            member("client", &["wire"]),
            member("proxy", &["client", "server"]),
            member("cli", &["client", "tso", "tablet"]),
            member("operator/api", &[]),
        ];
        assert_eq!(broken(&packages), Vec::<String>::new());
    }

    #[test]
    fn what_it_does_not_allow_is_named() {
        let packages = [
            member("protocol", &["wire"]),
            member("wire", &[]),
            member("engine", &["protocol"]),
            member("register", &["register-kube"]),
            member("register-kube", &[]),
        ];
        assert_eq!(
            broken(&packages),
            [
                "protocol must not depend on percolator-wire",
                "engine must not depend on percolator-protocol",
                "engine must not depend on percolator-wire",
                "register must not depend on percolator-register-kube",
            ]
        );
    }

    #[test]
    fn going_through_another_crate_does_not_help() {
        let packages = [
            member("operator/controller", &["helper"]),
            member("helper", &["tablet"]),
            member("tablet", &[]),
        ];
        assert_eq!(
            broken(&packages),
            ["operator/controller must not depend on percolator-tablet"]
        );
    }

    #[test]
    fn impure_names_are_found_however_they_are_imported() {
        let found = |text| impure(text).into_iter().collect::<Vec<_>>();
        assert_eq!(found("use std::fs::File;"), ["std::fs"]);
        assert_eq!(found("use std::{fmt, thread};"), ["std::thread"]);
        assert_eq!(
            found("use std::{\n  fmt::{self, Display},\n  time::{Duration, SystemTime},\n};"),
            ["std::time::SystemTime"]
        );
        assert_eq!(
            found("let now = std::time::Instant::now();"),
            ["std::time::Instant"]
        );
        assert_eq!(found("println!(\"{x}\")"), ["println!"]);
    }

    #[test]
    fn pure_names_pass() {
        for text in [
            "use std::{collections::BTreeMap, fmt, time::Duration};",
            "// as std::fs does",
            "use std::iter::once;",
            "let environment = std::environment;",
        ] {
            assert_eq!(impure(text), BTreeSet::new(), "{text}");
        }
    }
}
