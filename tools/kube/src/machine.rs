//! The changes of a cluster to the machine itself: the state before is saved, and restored when the cluster goes.

use std::{
    fs,
    io::ErrorKind,
    os::unix::{fs::FileTypeExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::sh;

/// The kernel settings that nodes' networks need, and those that kubelets set.
pub(super) const SETTINGS: [&str; 7] = [
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];
/// Folders that the nodes' programs make wherever they run; those within come first.
pub(super) const FOLDERS: [&str; 17] = [
    "/var/log/containers",
    "/var/log/pods",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/opt/containerd/lib",
    "/opt/containerd/bin",
    "/opt/containerd",
    "/var/lib/cni/cache/results",
    "/var/lib/cni/cache",
    "/var/lib/cni/results",
    "/var/lib/cni",
    "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
    "/usr/libexec/kubernetes/kubelet-plugins/volume",
    "/usr/libexec/kubernetes/kubelet-plugins",
    "/usr/libexec/kubernetes",
    "/run/containerd/s",
    "/run/containerd",
];

/// The folder that `ip netns add` makes, and mounts onto itself, if it isn't there yet.
pub(super) const NAMESPACES: &str = "/run/netns";

/// Folders of sockets whose names don't say whose they are.
const SOCKETS: [&str; 2] = ["/run/containerd/s", "/var/lib/kubelet/device-plugins"];

/// How it was.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    /// Files below /proc/sys with what they said.
    settings: Vec<(PathBuf, String)>,
    /// Folders that weren't there.
    missing: Vec<PathBuf>,
    /// Whether nothing was mounted where network namespaces have their names.
    #[serde(default)]
    no_namespaces: bool,
}

impl Before {
    fn now(
        settings: impl Iterator<Item = PathBuf>,
        folders: impl Iterator<Item = PathBuf>,
    ) -> Self {
        // A kernel may be without one: then nobody changes it either.
        let settings = settings.filter_map(|file| {
            let value = fs::read_to_string(&file).ok()?;
            Some((file, value))
        });
        Self {
            settings: settings.collect(),
            missing: folders.filter(|folder| !folder.exists()).collect(),
            no_namespaces: false,
        }
    }

    fn put_back(&self) -> anyhow::Result<()> {
        for (file, value) in &self.settings {
            // Writing what is there already may do more than nothing: forwarding is set for each link anew.
            if fs::read_to_string(file).is_ok_and(|now| now != *value) {
                fs::write(file, value)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
        if self.no_namespaces {
            unmount_if_empty(Path::new(NAMESPACES));
        }
        for folder in &self.missing {
            // Anyone else who uses it by now keeps it.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// The places of mounts, by the kernel's table.
pub(super) fn mounted(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter_map(|line| line.split(' ').nth(1))
}

fn is_mounted(place: &Path) -> bool {
    let table = fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounted(&table).any(|mounted| Path::new(mounted) == place)
}

/// Unless somebody has network namespaces there by now.
fn unmount_if_empty(place: &Path) {
    let is_empty = fs::read_dir(place).is_ok_and(|mut names| names.next().is_none());
    if is_empty && is_mounted(place) {
        // Anyone who has just made one keeps it: the kernel says that it is busy then.
        let _ = sh::output(Command::new("umount").arg(place));
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("before.json")
}

/// Writes down how the machine is, in the cluster's folder.
pub(crate) fn remember(folder: &Path) -> anyhow::Result<()> {
    let settings = SETTINGS.map(|name| Path::new("/proc/sys").join(name));
    let folders = FOLDERS.into_iter().chain([NAMESPACES]).map(PathBuf::from);
    let mut before = Before::now(settings.into_iter(), folders);
    before.no_namespaces = !is_mounted(Path::new(NAMESPACES));
    // Under its name only when it's whole.
    let part = folder.join("before.part");
    fs::write(&part, serde_json::to_vec(&before)?)?;
    fs::rename(part, file(folder)).context("cannot write down how the machine is")
}

/// Makes the machine as it was; nothing where that isn't known, because nothing was changed yet.
pub(crate) fn restore(folder: &Path) -> anyhow::Result<()> {
    let Ok(before) = fs::read(file(folder)) else {
        return Ok(());
    };
    let before: Before = serde_json::from_slice(&before)
        .with_context(|| format!("{} can't be read", file(folder).display()))?;
    for folder in SOCKETS {
        remove_dead_sockets(Path::new(folder));
    }
    before.put_back()
}

/// Removes the sockets that nobody listens on, as those of who was killed: others' stay.
fn remove_dead_sockets(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_dead = UnixStream::connect(entry.path())
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_dead && is_socket {
            // Somebody else may have been faster.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_put_back_and_what_others_use_stays() {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        fs::write(at("forward"), "0\n").unwrap();
        fs::create_dir(at("old")).unwrap();
        let settings = || ["forward", "none"].map(at).into_iter();
        let folders = || ["old", "ours", "theirs", "never"].map(at).into_iter();
        let before = Before::now(settings(), folders());

        fs::write(at("forward"), "1\n").unwrap();
        fs::write(at("none"), "1\n").unwrap();
        fs::create_dir(at("ours")).unwrap();
        fs::create_dir(at("theirs")).unwrap();
        fs::write(at("theirs/file"), "").unwrap();
        let text = serde_json::to_vec(&before).unwrap();
        let before: Before = serde_json::from_slice(&text).unwrap();
        before.put_back().unwrap();

        assert_eq!(fs::read_to_string(at("forward")).unwrap(), "0\n");
        assert!(at("old").exists() && at("theirs/file").exists());
        assert!(!at("ours").exists() && !at("never").exists());
    }

    #[test]
    fn a_socket_stays_that_somebody_listens_on() {
        use std::os::unix::net::UnixListener;
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        let alive = UnixListener::bind(at("alive")).unwrap();
        drop(UnixListener::bind(at("dead")).unwrap());
        fs::write(at("file"), "").unwrap();
        remove_dead_sockets(temporary.path());
        assert!(at("alive").exists() && at("file").exists() && !at("dead").exists());
        drop(alive);
        remove_dead_sockets(&at("never"));
    }
}
