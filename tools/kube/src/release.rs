//! Versions of Kubernetes that the tests know.

use std::path::{Path, PathBuf};

use clap::ValueEnum as _;

use super::programs::{folder, go_build, version};

const MODULE: &str = "k8s.io/kubernetes";

/// A Kubernetes, by its age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Release {
    /// The oldest that the operator supports.
    Oldest,
    /// The one that each change is tested on.
    #[default]
    Usual,
    /// The newest one known here, with nodes of the usual one: newer ones need a newer containerd.
    Newest,
}

impl Release {
    /// As it is given on a command line.
    pub(super) fn name(self) -> String {
        let name = self.to_possible_value();
        name.map(|name| name.get_name().to_owned())
            .unwrap_or_default()
    }

    /// The one of this name.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// The folder below tools/ that names its version.
    fn tool(self) -> &'static str {
        match self {
            Self::Oldest => "kubernetes-oldest",
            Self::Usual => "kubernetes",
            Self::Newest => "kubernetes-newest",
        }
    }

    /// The one whose programs its nodes run.
    pub(super) fn of_nodes(self) -> Self {
        match self {
            Self::Oldest | Self::Usual => self,
            Self::Newest => Self::Usual,
        }
    }

    /// Whether its API server changes objects by policies, where it is asked to.
    pub fn has_mutating_policies(self) -> bool {
        self != Self::Oldest
    }

    pub(super) fn folder(self, root: &Path) -> anyhow::Result<PathBuf> {
        folder(root, self.tool(), MODULE)
    }

    /// Builds one of its programs, if it isn't there yet.
    pub(super) fn build(self, root: &Path, name: &str) -> anyhow::Result<()> {
        let version = version(root, self.tool(), MODULE)?;
        let mut parts = version.trim_start_matches('v').split('.');
        let mut part = || parts.next().unwrap_or_default();
        let (major, minor) = (part(), part());
        let set = "-X k8s.io/component-base/version";
        let flags = format!(
            "-s -w {set}.gitVersion={version} {set}.gitMajor={major} {set}.gitMinor={minor}"
        );
        let package = format!("{MODULE}/cmd/{name}");
        let program = self.folder(root)?.join(name);
        go_build(root, self.tool(), &package, &flags, &program)
    }
}
