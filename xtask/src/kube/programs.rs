//! The programs of a Kubernetes: built once from their Go modules into a cache outside the checkout, keyed by
//! version; and Debian's packages for the rest.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::{cmd::Cmd, context::Context};

/// Programs that Debian's packages have: what shows that one is there, and the package.
const PACKAGED: [(&str, &str); 11] = [
    ("/usr/bin/containerd", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/usr/bin/etcd", "etcd-server"),
    ("/usr/sbin/iptables", "iptables"),
    ("/usr/sbin/conntrack", "conntrack"),
    ("/usr/sbin/ip", "iproute2"),
    ("/usr/bin/socat", "socat"),
    ("/usr/bin/openssl", "openssl"),
    ("/usr/bin/strip", "binutils"),
    ("/usr/bin/nsenter", "util-linux"),
];

const OF_KUBERNETES: [&str; 6] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
];

/// Where the programs are.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    kubernetes: PathBuf,
    coredns: PathBuf,
    helm: PathBuf,
}

impl Programs {
    /// A program of Kubernetes.
    pub(crate) fn of(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    pub(crate) fn coredns(&self) -> PathBuf {
        self.coredns.join("coredns")
    }

    pub(crate) fn helm(&self) -> PathBuf {
        self.helm.join("helm")
    }

    /// Where they would be, built or not.
    pub(crate) fn find(context: &Context) -> anyhow::Result<Self> {
        let folder = |tool: &str, module: &str| -> anyhow::Result<PathBuf> {
            let version = version(context, tool, module)?;
            Ok(cache()?.join(format!("{tool}-{version}")))
        };
        Ok(Self {
            kubernetes: folder("kubernetes", "k8s.io/kubernetes")?,
            coredns: folder("coredns", "github.com/coredns/coredns")?,
            helm: folder("helm", "helm.sh/helm/v4")?,
        })
    }

    /// Builds what isn't there yet: some eight minutes, once on a machine.
    pub(crate) fn build(context: &Context) -> anyhow::Result<Self> {
        let programs = Self::find(context)?;
        let version = version(context, "kubernetes", "k8s.io/kubernetes")?;
        let mut parts = version.trim_start_matches('v').split('.');
        let mut part = || parts.next().unwrap_or_default();
        let (major, minor) = (part(), part());
        let set = "-X k8s.io/component-base/version";
        let flags = format!(
            "-s -w {set}.gitVersion={version} {set}.gitMajor={major} {set}.gitMinor={minor}"
        );
        for name in OF_KUBERNETES {
            let package = format!("k8s.io/kubernetes/cmd/{name}");
            go_build(context, "kubernetes", &package, &flags, &programs.of(name))?;
        }
        go_build(context, "coredns", ".", "-s -w", &programs.coredns())?;
        let helm = "helm.sh/helm/v4/cmd/helm";
        go_build(context, "helm", helm, "-s -w", &programs.helm())?;
        Ok(programs)
    }
}

/// The folder of the Prometheus operator's definitions, which tests take from its Go module.
pub(crate) fn definitions(context: &Context) -> anyhow::Result<PathBuf> {
    let module = "github.com/prometheus-operator/prometheus-operator";
    let said = Cmd::new("go")
        .args(["mod", "download", "-json", module])
        .dir(&context.root().join("tools/prometheus-operator"))
        .output()?;
    let said: serde_json::Value = serde_json::from_str(&said)?;
    let folder = said["Dir"].as_str().context("go doesn't say where it is")?;
    Ok(Path::new(folder).join("example/prometheus-operator-crd"))
}

/// Outside of the checkout: a clean one need not build what the last one did.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .context("there is no folder for caches: set XDG_CACHE_HOME or HOME")?;
    Ok(base.join("percolator"))
}

/// The version that go.mod names.
fn version(context: &Context, tool: &str, module: &str) -> anyhow::Result<String> {
    let file = context.root().join("tools").join(tool).join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    text.lines()
        .find_map(|line| {
            let mut words = line.trim().trim_start_matches("require ").split(' ');
            (words.next() == Some(module)).then(|| words.next())?
        })
        .map(str::to_owned)
        .with_context(|| format!("{} doesn't require {module}", file.display()))
}

fn go_build(
    context: &Context,
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
        .dir(&context.root().join("tools").join(tool))
        .env("CGO_ENABLED", "0")
        .run()?;
    fs::rename(&part, program).with_context(|| format!("cannot make {}", program.display()))
}

/// Installs the packages that are missing.
pub(crate) fn install_packages() -> anyhow::Result<()> {
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

/// Why no Kubernetes can be run here, if so.
pub(crate) fn why_not() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("it needs Linux".to_owned());
    }
    let root = Cmd::new("sh").args(["-c", "test $(id -u) = 0"]).works();
    if !root {
        return Some("it needs root, for network namespaces and containers".to_owned());
    }
    if !Path::new("/sys/fs/cgroup/cpuset/cpuset.cpus").exists() {
        return Some("it needs control groups of version 1, with cpuset".to_owned());
    }
    let missing = PACKAGED.iter().find(|(file, _)| !Path::new(file).exists());
    if let Some((file, package)) = missing
        && !Path::new("/usr/bin/apt-get").exists()
    {
        return Some(format!(
            "there is no {file} (package {package}), and no apt-get to install it with"
        ));
    }
    None
}
