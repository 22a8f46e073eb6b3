//! The programs of a Kubernetes: built once from their Go modules into a cache outside the checkout, keyed by
//! version; and Debian's packages for the rest.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use super::{oci, release::Release, sh::sh};
use crate::cmd::Cmd;

/// Programs that Debian's packages have: what shows that one is there, and the package.
const PACKAGED: [(&str, &str); 12] = [
    ("/usr/bin/containerd", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/usr/bin/etcd", "etcd-server"),
    ("/usr/sbin/iptables", "iptables"),
    ("/usr/sbin/conntrack", "conntrack"),
    ("/usr/sbin/ipset", "ipset"),
    ("/usr/sbin/ip", "iproute2"),
    ("/usr/bin/socat", "socat"),
    ("/usr/bin/openssl", "openssl"),
    ("/usr/bin/strip", "binutils"),
    ("/usr/bin/nsenter", "util-linux"),
];

const PROMETHEUS_OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator";
const PROMETHEUS_ADAPTER: &str = "sigs.k8s.io/prometheus-adapter";
const KUBE_ROUTER: &str = "github.com/cloudnativelabs/kube-router/v2";

const OF_KUBERNETES: [&str; 6] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
];

/// Those of each node, and those of the machine as a whole.
const OF_NODES: [&str; 2] = ["kubelet", "kube-proxy"];

/// The places of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    release: Release,
    kubernetes: PathBuf,
    of_nodes: PathBuf,
    coredns: PathBuf,
    helm: PathBuf,
    definitions: PathBuf,
}

impl Programs {
    /// A program of Kubernetes.
    pub fn of(&self, name: &str) -> PathBuf {
        let folder = if OF_NODES.contains(&name) {
            &self.of_nodes
        } else {
            &self.kubernetes
        };
        folder.join(name)
    }

    /// The release of Kubernetes that these are of.
    pub fn release(&self) -> Release {
        self.release
    }

    /// CoreDNS.
    pub fn coredns(&self) -> PathBuf {
        self.coredns.join("coredns")
    }

    /// Helm.
    pub fn helm(&self) -> PathBuf {
        self.helm.join("helm")
    }

    /// The folder of the Prometheus operator's definitions.
    pub fn definitions(&self) -> &Path {
        &self.definitions
    }

    /// Their places, whether or not they are built.
    pub fn find(root: &Path, release: Release) -> anyhow::Result<Self> {
        let folder = |tool, module| folder(root, tool, module);
        Ok(Self {
            release,
            kubernetes: release.folder(root)?,
            of_nodes: release.of_nodes().folder(root)?,
            coredns: folder("coredns", "github.com/coredns/coredns")?,
            helm: folder("helm", "helm.sh/helm/v4")?,
            definitions: folder("prometheus-operator", PROMETHEUS_OPERATOR)?,
        })
    }

    fn are_built(&self) -> bool {
        let of_kubernetes = OF_KUBERNETES.map(|name| self.of(name));
        let others = [self.coredns(), self.helm(), self.definitions.clone()];
        of_kubernetes
            .iter()
            .chain(&others)
            .all(|path| path.exists())
    }

    /// Builds what isn't there yet: some eight minutes, once on a machine.
    pub fn build(root: &Path, release: Release) -> anyhow::Result<Self> {
        let programs = Self::find(root, release)?;
        for name in OF_KUBERNETES {
            let of_node = OF_NODES.contains(&name);
            let release = if of_node { release.of_nodes() } else { release };
            release.build(root, name)?;
        }
        go_build(root, "coredns", ".", "-s -w", &programs.coredns())?;
        let helm = "helm.sh/helm/v4/cmd/helm";
        go_build(root, "helm", helm, "-s -w", &programs.helm())?;
        copy_definitions(root, &programs.definitions)?;
        Ok(programs)
    }
}

/// Builds what gives Prometheus' metrics to autoscalers, if it isn't there yet: some two minutes, once on a machine.
pub fn prometheus_adapter(root: &Path) -> anyhow::Result<PathBuf> {
    let package = format!("{PROMETHEUS_ADAPTER}/cmd/adapter");
    build_tool(root, "prometheus-adapter", PROMETHEUS_ADAPTER, &package)
}

/// Builds what carries out NetworkPolicies on a node, if it isn't there yet: some two minutes, once on a machine.
pub fn network_policies(root: &Path) -> anyhow::Result<PathBuf> {
    build_tool(root, "network-policies", KUBE_ROUTER, ".")
}

/// Builds what calls a service of gRPC by its own description, if it isn't there yet: half a minute, once on a machine.
pub fn grpcurl(root: &Path) -> anyhow::Result<PathBuf> {
    let module = "github.com/fullstorydev/grpcurl";
    build_tool(root, "grpcurl", module, &format!("{module}/cmd/grpcurl"))
}

/// Builds a program that is kept by the version of the module which it is made of.
fn build_tool(root: &Path, tool: &str, module: &str, package: &str) -> anyhow::Result<PathBuf> {
    let program = folder(root, tool, module)?.join(tool);
    go_build(root, tool, package, "-s -w", &program)?;
    Ok(program)
}

/// Outside of the checkout: a clean one need not build what the last one did.
pub fn cache() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .context("there is no folder for caches: set XDG_CACHE_HOME or HOME")?;
    Ok(base.join("percolator"))
}

/// The folder of a module's builds: by its version, and by the program that is made of it here, if there is one.
pub(super) fn folder(root: &Path, tool: &str, module: &str) -> anyhow::Result<PathBuf> {
    let version = version(root, tool, module)?;
    let program = root.join("tools").join(tool).join("main.go");
    let own = if program.exists() {
        let digest = oci::digest(&program)?;
        format!("-{}", digest.get(..8).unwrap_or(&digest))
    } else {
        String::new()
    };
    Ok(cache()?.join(format!("{tool}-{version}{own}")))
}

/// The version that go.mod names.
pub(super) fn version(root: &Path, tool: &str, module: &str) -> anyhow::Result<String> {
    let file = root.join("tools").join(tool).join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    text.lines()
        .find_map(|line| {
            let mut words = line.trim().trim_start_matches("require ").split(' ');
            (words.next() == Some(module)).then(|| words.next())?
        })
        .map(str::to_owned)
        .with_context(|| format!("{} doesn't require {module}", file.display()))
}

/// Builds a program of a Go module, if it isn't there yet.
pub(super) fn go_build(
    root: &Path,
    tool: &str,
    package: &str,
    flags: &str,
    program: &Path,
) -> anyhow::Result<()> {
    if program.exists() {
        return Ok(());
    }
    if !Cmd::new("go").arg("version").works() {
        bail!("there is no Go toolchain (go), which {package} is built with");
    }
    let folder = program.parent().context("a program without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Under its name only when it's whole.
    let part = program.with_extension("part");
    Cmd::new("go")
        .args(["build", "-trimpath", "-mod=readonly", "-buildvcs=false"])
        .args(["-ldflags", flags, "-o"])
        .arg(&part)
        .arg(package)
        .dir(&root.join("tools").join(tool))
        .env("CGO_ENABLED", "0")
        .run()?;
    fs::rename(&part, program).with_context(|| format!("cannot make {}", program.display()))
}

/// Copies the Prometheus operator's definitions from its Go module, which isn't asked for again then.
fn copy_definitions(root: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let said = Cmd::new("go")
        .args(["mod", "download", "-json", PROMETHEUS_OPERATOR])
        .dir(&root.join("tools/prometheus-operator"))
        .output()?;
    let said: serde_json::Value = serde_json::from_str(&said)?;
    let module = said["Dir"].as_str().context("go doesn't say where it is")?;
    let folder = Path::new(module).join("example/prometheus-operator-crd");
    let parent = to.parent().context("a folder without a parent")?;
    fs::create_dir_all(parent)?;
    let part = tempfile::tempdir_in(parent)?;
    for entry in fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))? {
        let entry = entry?;
        fs::copy(entry.path(), part.path().join(entry.file_name()))?;
    }
    fs::rename(part.keep(), to).with_context(|| format!("cannot make {}", to.display()))
}

/// Installs the packages that are missing.
pub fn install_packages() -> anyhow::Result<()> {
    let missing: Vec<&str> = PACKAGED
        .iter()
        .filter(|(file, _)| !Path::new(file).exists())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let quiet = ("DEBIAN_FRONTEND", "noninteractive");
    Cmd::new("apt-get").args(["update", "-q"]).run()?;
    Cmd::new("apt-get")
        .args(["install", "-q", "-y", "--no-install-recommends"])
        .args(&missing)
        .env(quiet.0, quiet.1)
        .run()
}

/// All reasons why no Kubernetes can run here, with what to do; none if it can.
pub fn why_not(root: &Path, release: Release) -> Option<String> {
    let reasons = Machine::find(root, release).missing_requirements();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// # Errors
/// No Kubernetes can be run here.
pub fn is_possible(root: &Path, release: Release) -> anyhow::Result<()> {
    match why_not(root, release) {
        Some(why) => bail!("no Kubernetes can be run here: {why}"),
        None => Ok(()),
    }
}

/// The control groups of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Groups {
    /// Version 1, with what is needed of it.
    V1,
    /// Version 1, without cpuset.
    V1WithoutCpuset,
    /// Version 2 alone.
    V2,
    None,
}

impl Groups {
    fn find(mounted: &Path) -> Self {
        if mounted.join("cpuset/cpuset.cpus").exists() {
            Self::V1
        } else if mounted.join("cgroup.controllers").exists() {
            Self::V2
        } else if mounted.join("memory").exists() || mounted.join("cpu").exists() {
            Self::V1WithoutCpuset
        } else {
            Self::None
        }
    }
}

/// What nodes do that a container's root may not: what it is, and how to try it without a trace. Programs that aren't
/// installed yet are not tried.
const DEEDS: [(&str, &str); 6] = [
    ("network namespaces", "unshare --net true"),
    (
        "mounts",
        "unshare --mount mount -t tmpfs percolator-kube /tmp",
    ),
    (
        "links between network namespaces",
        "command -v ip > /dev/null || exit 0; unshare --net ip link add probe-1 type veth peer name probe-2",
    ),
    (
        "bridges",
        "command -v ip > /dev/null || exit 0; unshare --net ip link add probe type bridge",
    ),
    (
        "firewall rules",
        "command -v iptables > /dev/null || exit 0; unshare --net iptables -A FORWARD -i probe -j DROP",
    ),
    ("control groups", GROUP),
];

/// Others may try it at the same time, each with a name of its own; what those left that were killed goes.
const GROUP: &str = "cd /sys/fs/cgroup/pids; name=percolator-kube-probe; own=$name-$$
for old in $name*; do
  if [ $old = $own ] || [ ! -d /proc/${old##*-} ]; then rmdir $old 2> /dev/null || true; fi
done
mkdir $own; rmdir $own";

/// The first thing that this process may not do, and in what words it was refused.
fn refusal<'a>(deeds: &[(&'a str, &str)]) -> Option<(&'a str, String)> {
    deeds.iter().find_map(|(what, script)| {
        let error = sh(script).err()?;
        let said = error.root_cause().to_string();
        Some((*what, said.lines().collect::<Vec<_>>().join(" ")))
    })
}

/// The requirements of a Kubernetes that a machine has.
#[derive(Clone, Debug)]
struct Machine {
    is_linux: bool,
    is_root: bool,
    /// Something that this process may not make, though it is root, and why.
    refused: Option<(&'static str, String)>,
    groups: Groups,
    has_go: bool,
    /// All that Go is for was built earlier.
    is_built: bool,
    has_compiler: bool,
    has_apt: bool,
    /// A packaged program that isn't there, and its package.
    missing: Option<(&'static str, &'static str)>,
}

impl Machine {
    fn find(root: &Path, release: Release) -> Self {
        let works = |program: &str, argument| Cmd::new(program).args([argument]).works();
        let is_root = Cmd::new("sh").args(["-c", "test $(id -u) = 0"]).works();
        let groups = Groups::find(Path::new("/sys/fs/cgroup"));
        // Where something else is in the way, it stands for this.
        let is_to_be_tried = cfg!(target_os = "linux") && is_root && groups == Groups::V1;
        Self {
            is_linux: cfg!(target_os = "linux"),
            is_root,
            refused: is_to_be_tried.then(|| refusal(&DEEDS)).flatten(),
            groups,
            has_go: works("go", "version"),
            is_built: Programs::find(root, release).is_ok_and(|programs| programs.are_built()),
            has_compiler: works("cc", "--version"),
            has_apt: Path::new("/usr/bin/apt-get").exists(),
            missing: PACKAGED
                .into_iter()
                .find(|(file, _)| !Path::new(file).exists()),
        }
    }

    /// The missing requirements, with what to do; empty if a Kubernetes can run.
    fn missing_requirements(&self) -> Vec<String> {
        if !self.is_linux {
            // Nothing else would help.
            return vec!["it needs Linux".to_owned()];
        }
        let mut missing: Vec<String> = Vec::new();
        if !self.is_root {
            missing.push("it needs root, for network namespaces and containers".to_owned());
        }
        if let Some((what, said)) = &self.refused {
            missing.push(format!(
                "this machine doesn't let its root make {what} ({said}), as in a container without privileges: take a \
                 machine, or a container that may"
            ));
        }
        let groups = match self.groups {
            Groups::V1 => None,
            Groups::V1WithoutCpuset => Some(
                "it needs control groups of version 1 with cpuset, which isn't mounted at /sys/fs/cgroup/cpuset",
            ),
            Groups::V2 => Some(
                "it needs control groups of version 1, and here are those of version 2: start Linux with \
                 systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1, or take another machine",
            ),
            Groups::None => {
                Some("it needs control groups of version 1, and none are mounted at /sys/fs/cgroup")
            }
        };
        missing.extend(groups.map(str::to_owned));
        if !self.has_go && !self.is_built {
            missing.push(
                "there is no go, which Kubernetes is built with: install Go of the version that tools/kubernetes/go.mod \
                 names, and put it into PATH"
                    .to_owned(),
            );
        }
        if !self.has_compiler {
            missing.push(
                "there is no C compiler, cc: install one, and the C library to link with, as Debian's gcc and libc6-dev"
                    .to_owned(),
            );
        }
        if let Some((file, package)) = self.missing
            && !self.has_apt
        {
            missing.push(format!(
                "there is no {file} (package {package}), and no apt-get to install it with"
            ));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABLE: Machine = Machine {
        is_linux: true,
        is_root: true,
        refused: None,
        groups: Groups::V1,
        has_go: true,
        is_built: false,
        has_compiler: true,
        has_apt: true,
        missing: Some(("/usr/bin/etcd", "etcd-server")),
    };

    #[test]
    fn what_a_machine_lacks_is_said_with_what_to_do() {
        assert_eq!(ABLE.missing_requirements(), Vec::<String>::new());
        let mut built = ABLE;
        (built.has_go, built.is_built) = (false, true);
        assert_eq!(built.missing_requirements(), Vec::<String>::new());
        let mut changed: [(Machine, &str); 7] = [
            (ABLE, "needs root"),
            (ABLE, "systemd.unified_cgroup_hierarchy=0"),
            (ABLE, "none are mounted"),
            (ABLE, "install Go"),
            (ABLE, "gcc and libc6-dev"),
            (ABLE, "package etcd-server"),
            (ABLE, "make mounts (permission denied)"),
        ];
        changed[0].0.is_root = false;
        changed[1].0.groups = Groups::V2;
        changed[2].0.groups = Groups::None;
        changed[3].0.has_go = false;
        changed[4].0.has_compiler = false;
        changed[5].0.has_apt = false;
        changed[6].0.refused = Some(("mounts", "permission denied".to_owned()));
        for (machine, words) in changed {
            let missing_requirements = machine.missing_requirements();
            assert!(
                missing_requirements.len() == 1 && missing_requirements[0].contains(words),
                "{words}: {missing_requirements:?}"
            );
        }
        let mut nothing = ABLE;
        (nothing.is_root, nothing.has_go) = (false, false);
        assert_eq!(nothing.missing_requirements().len(), 2);
        nothing.is_linux = false;
        assert_eq!(nothing.missing_requirements(), ["it needs Linux"]);
    }

    #[test]
    fn the_first_thing_that_is_refused_is_reported() {
        let deeds = [
            ("this", "true"),
            ("that", "echo not permitted >&2; echo really >&2; false"),
            ("more", "false"),
        ];
        let (what, said) = refusal(&deeds).unwrap();
        assert_eq!(what, "that");
        assert!(said.contains("not permitted really"), "{said}");
        assert_eq!(refusal(&deeds[..1]), None);
    }

    #[test]
    fn control_groups_are_tried_beside_others_and_what_was_left_goes() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().display().to_string();
        let script = GROUP.replace("/sys/fs/cgroup/pids", &folder);
        // No process has a number like this.
        let left = ["percolator-kube-probe", "percolator-kube-probe-99999999"];
        let running = format!("percolator-kube-probe-{}", std::process::id());
        let stay = ["percolator-kube-node-1", &running, "system.slice"];
        for name in left.iter().chain(&stay) {
            fs::create_dir(temporary.path().join(name)).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(refusal(&[("groups", &script)]), None);
            let names = fs::read_dir(temporary.path()).unwrap();
            let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
            names.sort();
            let mut stay = stay.map(std::ffi::OsString::from);
            stay.sort();
            assert_eq!(names, stay);
        }
        let none = GROUP.replace("/sys/fs/cgroup/pids", &format!("{folder}/none"));
        assert!(refusal(&[("groups", &none)]).is_some());
    }

    #[test]
    fn versions_of_control_groups_are_distinguished() {
        let mounted = |files: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                let path = folder.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            Groups::find(folder.path())
        };
        // With both, as systemd calls it hybrid, those of version 1 are there.
        let hybrid = [
            "cpuset/cpuset.cpus",
            "memory/tasks",
            "unified/cgroup.controllers",
        ];
        assert_eq!(mounted(&hybrid), Groups::V1);
        assert_eq!(mounted(&["memory/tasks"]), Groups::V1WithoutCpuset);
        assert_eq!(mounted(&["cgroup.controllers"]), Groups::V2);
        assert_eq!(mounted(&[]), Groups::None);
    }
}
