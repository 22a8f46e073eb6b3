//! The context of every command: the folder of the workspace, and what has been built already.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
};

use crate::{
    cmd::Cmd,
    metadata::Metadata,
    programs::{self, Built},
};

/// Where the project is, and what was found out about it. What takes long is done once, when it is
/// first asked for.
#[derive(Debug)]
pub(crate) struct Context {
    root: PathBuf,
    metadata: OnceCell<Metadata>,
    built: OnceCell<Result<Built, String>>,
}

impl Context {
    pub(crate) fn new() -> Self {
        // At run time cargo sets it; a program that was moved knows where it was built.
        let here = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        Self {
            root: here.parent().map(Path::to_owned).unwrap_or(here),
            metadata: OnceCell::new(),
            built: OnceCell::new(),
        }
    }

    /// The folder of the workspace.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo command in the workspace's folder.
    pub(crate) fn cargo<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Cmd {
        Cmd::cargo().args(arguments).dir(&self.root)
    }

    pub(crate) fn metadata(&self) -> anyhow::Result<&Metadata> {
        if let Some(metadata) = self.metadata.get() {
            return Ok(metadata);
        }
        let metadata = Metadata::load(self)?;
        Ok(self.metadata.get_or_init(|| metadata))
    }

    /// How many crates the workspace has, for a part that checks all of them.
    pub(crate) fn crates(&self) -> anyhow::Result<String> {
        let packages = &self.metadata()?.packages;
        let members = packages.iter().filter(|package| package.is_member());
        Ok(format!("{} crates", members.count()))
    }

    /// The programs and tests, built with the profile that all parts of the tests share.
    pub(crate) fn built(&self) -> anyhow::Result<&Built> {
        self.built
            .get_or_init(|| programs::build_for_tests(self).map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow::anyhow!("{error}"))
    }
}
