//! What a cluster could leave on a machine: how that is before `up`, and after `down`, to be compared.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{FOLDER, HUB, PORT, machine, nodes, sh};

/// The kernel takes its time to remove what nobody uses any more.
const PATIENCE: Duration = Duration::from_secs(30);
/// Below the folders that nodes' programs use, so many levels are looked at.
const DEPTH: u32 = 4;
/// Of other container engines: what they run comes and goes.
const OTHERS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/docker.sock",
    "/run/crio/crio.sock",
];

/// How a machine is, a line each.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traces(BTreeSet<String>);

impl Traces {
    pub(crate) fn now() -> Self {
        let mut lines = BTreeSet::new();
        lines.extend(mounts(
            &fs::read_to_string("/proc/mounts").unwrap_or_default(),
        ));
        for program in ["iptables-save", "ip6tables-save"] {
            let said = sh::output(&mut Command::new(program)).unwrap_or_default();
            lines.extend(rules(program, &said));
        }
        let routes = sh::output(Command::new("ip").args(["route"])).unwrap_or_default();
        lines.extend(
            routes
                .lines()
                .map(|route| format!("route {}", route.trim())),
        );
        for (what, folder) in [
            ("link", "/sys/class/net"),
            ("network namespace", "/run/netns"),
        ] {
            lines.extend(names(Path::new(folder)).map(|name| format!("{what} {name}")));
        }
        // Those of the machine's services come and go further down.
        for controller in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let groups = fs::read_dir(controller.path())
                .into_iter()
                .flatten()
                .flatten();
            let groups = groups.filter(|group| group.path().is_dir());
            lines.extend(groups.map(|group| format!("control group {}", group.path().display())));
        }
        for name in machine::SETTINGS {
            let value = fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
            lines.insert(format!("setting {name} {}", value.trim()));
        }
        for folder in machine::FOLDERS
            .into_iter()
            .chain([FOLDER, nodes::RUN, "/run/netns"])
        {
            note(Path::new(folder), DEPTH, &mut lines);
        }
        if let Some(home) = std::env::var_os("HOME") {
            // As kubectl calls the folders of what it remembers of an API server.
            let server = format!(".kube/cache/discovery/{HUB}_{PORT}");
            note(&PathBuf::from(home).join(server), 0, &mut lines);
        }
        let marked = sh::sh(&format!(
            "grep -lsz '^{}=1$' /proc/[0-9]*/environ | cut -d/ -f3 || true",
            sh::MARK
        ));
        lines.extend(
            marked
                .unwrap_or_default()
                .lines()
                .map(|pid| format!("process {pid}")),
        );
        Self(lines)
    }

    /// What differs now, a line each: `+ ` is there now, and `- ` was before.
    pub(crate) fn differences(&self, before: &Self) -> Vec<String> {
        let added = self.0.difference(&before.0).map(|line| format!("+ {line}"));
        let gone = before.0.difference(&self.0).map(|line| format!("- {line}"));
        added.chain(gone).collect()
    }

    /// Waits until the machine is as it was; gives what differs still.
    pub(crate) fn wait_until_as_before(&self) -> Vec<String> {
        let started = Instant::now();
        loop {
            let differences = Self::now().differences(self);
            if differences.is_empty() || started.elapsed() > PATIENCE {
                return differences;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// The one of another container engine, whose containers come and go meanwhile.
pub(crate) fn other_containers() -> Option<&'static str> {
    OTHERS.into_iter().find(|socket| Path::new(socket).exists())
}

fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// A folder, if it is there, and what is in it.
fn note(path: &Path, depth: u32, lines: &mut BTreeSet<String>) {
    if path.symlink_metadata().is_err() {
        return;
    }
    lines.insert(format!("file {}", path.display()));
    if depth > 0 && path.is_dir() && !path.is_symlink() {
        for name in names(path) {
            note(&path.join(name), depth - 1, lines);
        }
    }
}

/// Where something is mounted.
fn mounts(table: &str) -> impl Iterator<Item = String> {
    let places = table.lines().filter_map(|line| line.split(' ').nth(1));
    places.map(|place| format!("mount {place}"))
}

/// The rules, and the chains that aren't the kernel's own: those of a table are shown as soon as anybody looks at it.
fn rules(program: &str, said: &str) -> Vec<String> {
    let mut table = "";
    let mut found = Vec::new();
    for line in said.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let chain = line.strip_prefix(':');
        let chain = chain.and_then(|chain| chain.split(' ').next());
        let is_own = chain.is_some_and(|chain| chain.chars().all(|c| c.is_ascii_uppercase()));
        if line.starts_with("-A") {
            found.push(format!("{program} {table} {line}"));
        } else if let Some(chain) = chain.filter(|_| !is_own) {
            found.push(format!("{program} {table} chain {chain}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_and_what_is_gone_is_told() {
        let traces = |lines: &[&str]| Traces(lines.iter().map(|&line| line.into()).collect());
        let before = traces(&["link lo", "link eth0"]);
        let after = traces(&["link lo", "link perc-kube"]);
        assert_eq!(before.differences(&before), [""; 0]);
        assert_eq!(
            after.differences(&before),
            ["+ link perc-kube", "- link eth0"]
        );
    }

    #[test]
    fn tables_that_only_were_looked_at_are_no_difference() {
        let empty = "# Generated\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\nCOMMIT\n";
        assert_eq!(rules("iptables-save", empty), [""; 0]);
        let some = "*nat\n:KUBE-SERVICES - [0:0]\n-A FORWARD -i perc-kube -j DROP\nCOMMIT\n";
        assert_eq!(
            rules("iptables-save", some),
            [
                "iptables-save nat chain KUBE-SERVICES",
                "iptables-save nat -A FORWARD -i perc-kube -j DROP"
            ]
        );
    }

    #[test]
    fn files_are_found_however_deep_they_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b/c")).unwrap();
        let mut lines = BTreeSet::new();
        note(&at("a"), 1, &mut lines);
        note(&at("none"), 1, &mut lines);
        let expected = ["a", "a/b"].map(|name| format!("file {}", at(name).display()));
        assert_eq!(lines.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_mount_is_told_by_its_place() {
        let table = "proc /proc proc rw 0 0\n/dev/vda /run/netns ext4 rw 0 0\n";
        let places: Vec<_> = mounts(table).collect();
        assert_eq!(places, ["mount /proc", "mount /run/netns"]);
    }
}
