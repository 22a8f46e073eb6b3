//! The traces that a cluster can leave on a machine, before `up` and after `down`, to be compared.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::machine::{self, NAMESPACES};
use super::{FOLDER, network, network::Family, nodes, sh};

/// The kernel takes its time to remove what nobody uses any more.
const TIMEOUT: Duration = Duration::from_secs(30);
/// So many levels are listed below the folders that nodes' programs use.
const DEPTH: u32 = 4;
/// Parts of the names of all that a cluster has on a machine, and of a kube-proxy's chains.
const NAMES: [&str; 3] = [nodes::PREFIX, nodes::LINK, "KUBE-"];
/// How lines begin.
const NAMESPACE: &str = "network namespace ";
const SETTING: &str = "setting ";
/// Only those that are marked as ours have lines.
const PROCESS: &str = "process ";
/// Of other container engines: what they run comes and goes.
const OTHERS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/docker.sock",
    "/run/crio/crio.sock",
];

/// How a machine is, a line each.
#[derive(Debug, PartialEq, Eq)]
pub struct Traces(BTreeSet<String>);

impl Traces {
    /// Those of this machine now.
    pub fn now() -> Self {
        let mut lines = BTreeSet::new();
        lines.extend(mounts(
            &fs::read_to_string("/proc/mounts").unwrap_or_default(),
        ));
        for program in ["iptables-save", "ip6tables-save"] {
            let said = sh::output(&mut Command::new(program)).unwrap_or_default();
            lines.extend(rules(program, &said));
        }
        for family in ["-4", "-6"] {
            let said = sh::output(Command::new("ip").args([family, "route"])).unwrap_or_default();
            // Those of routers have a time to live.
            let routes = said.lines().map(|line| line.split(" expires").next());
            let routes = routes.flatten().map(str::trim);
            lines.extend(routes.map(|route| format!("route {route}")));
        }
        for (what, folder) in [("link ", "/sys/class/net"), (NAMESPACE, NAMESPACES)] {
            lines.extend(names(Path::new(folder)).map(|name| format!("{what}{name}")));
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
            lines.insert(format!("{SETTING}{name} {}", value.trim()));
        }
        for folder in machine::FOLDERS
            .into_iter()
            .chain([FOLDER, nodes::RUN, NAMESPACES])
        {
            note(Path::new(folder), DEPTH, &mut lines);
        }
        if let Some(home) = std::env::var_os("HOME") {
            // As kubectl calls the folders of what it remembers of an API server.
            let home = PathBuf::from(home);
            for family in Family::ALL {
                let server = family.server();
                let server = server.trim_start_matches("https://");
                let server = server.replace(['[', ']', ':'], "_");
                note(
                    &home.join(".kube/cache/discovery").join(server),
                    0,
                    &mut lines,
                );
            }
        }
        let marked = sh::sh(&format!(
            "grep -lsz '^{}=1$' /proc/[0-9]*/environ | cut -d/ -f3 || true",
            sh::MARK
        ));
        lines.extend(
            marked
                .unwrap_or_default()
                .lines()
                .map(|pid| format!("{PROCESS}{pid}")),
        );
        Self(lines)
    }

    /// The differences between now and before.
    pub fn differences(&self, before: &Self) -> Differences {
        let added = self.0.difference(&before.0);
        let added = added.map(|line| (format!("+ {line}"), self.is_left(line)));
        // We put settings back, and take away nothing that we haven't made.
        let gone = before.0.difference(&self.0);
        let gone = gone.map(|line| (format!("- {line}"), is_setting(line)));
        let (ours, of_others): (Vec<_>, Vec<_>) = added.chain(gone).partition(|(_, is)| *is);
        let lines =
            |marked: Vec<(String, bool)>| marked.into_iter().map(|(line, _)| line).collect();
        Differences {
            ours: lines(ours),
            of_others: lines(of_others),
        }
    }

    /// Whether a line that wasn't there before is what a cluster of ours left.
    fn is_left(&self, line: &str) -> bool {
        // Anyone who has a namespace by now keeps the folder, anyone who made it.
        let mut kinds = ["file ", "mount "].into_iter();
        let is_folder = kinds.any(|kind| line.strip_prefix(kind) == Some(NAMESPACES));
        let is_foreign = |line: &String| line.starts_with(NAMESPACE) && !is_ours(line);
        is_ours(line) || is_folder && !self.0.iter().any(is_foreign)
    }

    /// Waits until nothing of ours is left; gives what differs still.
    pub fn wait_until_as_before(&self) -> Differences {
        let started = Instant::now();
        loop {
            let differences = Self::now().differences(self);
            if differences.ours.is_empty() || started.elapsed() > TIMEOUT {
                return differences;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// The differences between two states of a machine, a line each: `+ ` is there now, and `- ` was before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Traces that a cluster of ours left.
    pub ours: Vec<String>,
    /// Changes of others meanwhile: a login mounts a folder, a VPN adds routes.
    pub of_others: Vec<String>,
}

/// Whether this is a setting that nodes change.
fn is_setting(line: &str) -> bool {
    line.starts_with(SETTING)
}

/// Whether this is something that only we make, by its name, its address, or the place where it is.
fn is_ours(line: &str) -> bool {
    let is_named = NAMES.iter().any(|name| line.contains(name));
    // 110.96.0.1 is none.
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && !".:_".contains(c));
    let has_address = words.any(|word| {
        let word = word.trim_start_matches('_').replace('_', ":");
        network::PREFIXES.iter().any(|prefix| {
            let rest = word.strip_prefix(prefix);
            rest.is_some_and(|rest| {
                prefix.contains(':') || !rest.starts_with(char::is_alphanumeric)
            })
        })
    });
    let is_in_folder = line.split(' ').any(|word| {
        let mut folders = machine::FOLDERS.into_iter();
        folders.any(|folder| Path::new(word).starts_with(folder))
    });
    let is_process = line.starts_with(PROCESS);
    is_named || has_address || is_in_folder || is_process || is_setting(line)
}

/// The one of another container engine, whose containers come and go meanwhile.
pub fn other_containers() -> Option<&'static str> {
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

/// The places of mounts.
fn mounts(table: &str) -> impl Iterator<Item = String> {
    machine::mounted(table).map(|place| format!("mount {place}"))
}

/// The rules, and the chains that aren't the kernel's own: the kernel's own appear as soon as a table is listed.
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

    fn traces(lines: &[&str]) -> Traces {
        Traces(lines.iter().map(|&line| line.into()).collect())
    }

    #[test]
    fn what_was_added_and_what_is_gone_is_reported() {
        let before = traces(&["link lo", "link eth0"]);
        let after = traces(&["link lo", "link perc-kube"]);
        assert_eq!(before.differences(&before), Differences::default());
        let differences = after.differences(&before);
        assert_eq!(differences.ours, ["+ link perc-kube"]);
        assert_eq!(differences.of_others, ["- link eth0"]);
    }

    #[test]
    fn what_a_cluster_leaves_is_ours() {
        let none = traces(&[]);
        for line in [
            "mount /var/lib/percolator-kube/node-1/kubelet/pods/x",
            "mount /var/lib/kubelet/pods/x",
            "mount /run/netns",
            "link perc-kube-1",
            "network namespace percolator-kube-node-1",
            "control group /sys/fs/cgroup/pids/percolator-kube-node-1",
            "iptables-save nat chain KUBE-SERVICES",
            "iptables-save filter -A FORWARD -i perc-kube ! -o perc-kube -j DROP",
            "iptables-save filter -A FORWARD -d 10.96.0.1/32 -j DROP",
            "route 10.244.1.0/24 via 172.30.0.11 dev eth0",
            "route blackhole 10.244.0.0/16 proto 213",
            "file /var/lib/cni",
            "file /run/netns",
            "file /srv/.kube/cache/discovery/172.30.0.1_6443",
            "route blackhole fd70:6572:6301::/48 dev lo proto 213 metric 1024 pref medium",
            "ip6tables-save filter -A FORWARD -d fd70:6572:6302::1/128 -j DROP",
            "file /srv/.kube/cache/discovery/_fd70_6572_6300__1__6443",
            "process 4711",
        ] {
            let differences = traces(&[line]).differences(&none);
            assert_eq!(differences.ours, [format!("+ {line}")], "{differences:?}");
            assert_eq!(differences.of_others, [""; 0]);
            // What was there before us, we don't owe to anybody.
            let differences = none.differences(&traces(&[line]));
            assert_eq!(differences.ours, [""; 0]);
            assert_eq!(differences.of_others, [format!("- {line}")]);
        }
        let (off, on) = (
            "setting net/ipv4/ip_forward 0",
            "setting net/ipv4/ip_forward 1",
        );
        let differences = traces(&[on]).differences(&traces(&[off]));
        assert_eq!(differences.ours, [format!("+ {on}"), format!("- {off}")]);
        assert_eq!(differences.of_others, [""; 0]);
    }

    #[test]
    fn what_others_do_meanwhile_is_reported_and_not_ours() {
        let none = traces(&[]);
        let foreign = [
            "control group /sys/fs/cgroup/systemd/user.slice",
            "file /run/netns",
            "iptables-save filter -A INPUT -s 110.96.0.1/32 -j DROP",
            "iptables-save filter -A INPUT -s 10.2.10.244/32 -j DROP",
            "iptables-save filter chain ufw-user-input",
            "link tun0",
            "mount /run/netns",
            "mount /run/user/1000",
            "mount /var/lib/kubelets",
            "network namespace vpn",
            "route 10.8.0.0/24 dev tun0 proto kernel scope link src 10.8.0.2",
            "route 172.30.01.0/24 dev tun0",
            "route fd70:6572:64::/48 dev tun0",
        ];
        let differences = traces(&foreign).differences(&none);
        assert_eq!(differences.ours, [""; 0]);
        assert_eq!(differences.of_others.len(), foreign.len());
        let differences = none.differences(&traces(&foreign));
        assert_eq!(differences.ours, [""; 0]);
        assert_eq!(differences.of_others.len(), foreign.len());
    }

    #[test]
    fn tables_that_were_only_listed_are_no_difference() {
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
    fn every_mount_is_named_by_its_place() {
        let table = "proc /proc proc rw 0 0\n/dev/vda /run/netns ext4 rw 0 0\n";
        let places: Vec<_> = mounts(table).collect();
        assert_eq!(places, ["mount /proc", "mount /run/netns"]);
    }
}
