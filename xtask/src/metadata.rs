//! The output of `cargo metadata`: the packages, their licences and who depends on whom.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::context::Context;

/// A package, of the workspace or from elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// SPDX expression, as its author wrote it.
    pub(crate) licence: Option<String>,
    /// Folder below the workspace's root, for members.
    pub(crate) folder: Option<String>,
    /// Names of the packages that it needs to run or to build. Not what only its tests need.
    pub(crate) needs: BTreeSet<String>,
}

impl Package {
    pub(crate) fn is_member(&self) -> bool {
        self.folder.is_some()
    }
}

/// The workspace with everything it depends on, on any platform.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

impl Metadata {
    pub(crate) fn load(context: &Context) -> anyhow::Result<Self> {
        let text = context
            .cargo(["metadata", "--format-version=1", "--locked"])
            .output()?;
        let value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
        Self::parse(&value, context.root())
    }

    fn parse(value: &Value, root: &Path) -> anyhow::Result<Self> {
        let members: BTreeSet<&str> = array(value, "workspace_members")?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let mut packages = Vec::new();
        for package in array(value, "packages")? {
            let folder = Path::new(text(package, "manifest_path")?).parent();
            let folder = folder.and_then(|folder| folder.strip_prefix(root).ok());
            let needs = array(package, "dependencies")?
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .filter_map(|dependency| dependency["name"].as_str())
                .map(str::to_owned)
                .collect();
            packages.push(Package {
                name: text(package, "name")?.to_owned(),
                version: text(package, "version")?.to_owned(),
                licence: package["license"].as_str().map(str::to_owned),
                folder: members
                    .contains(text(package, "id")?)
                    .then(|| folder.unwrap_or(Path::new("")).display().to_string()),
                needs,
            });
        }
        if packages.is_empty() {
            bail!("cargo metadata names no packages");
        }
        Ok(Self {
            target: text(value, "target_directory")?.into(),
            packages,
        })
    }

    /// Members of the workspace by name.
    pub(crate) fn members(&self) -> BTreeMap<&str, &Package> {
        self.packages
            .iter()
            .filter(|package| package.is_member())
            .map(|package| (package.name.as_str(), package))
            .collect()
    }

    /// Members that `name` needs, directly or through other members.
    pub(crate) fn siblings(&self, name: &str) -> BTreeSet<&str> {
        let members = self.members();
        let mut found = BTreeSet::new();
        let mut open = vec![name];
        while let Some(member) = open.pop().and_then(|name| members.get(name)) {
            for need in &member.needs {
                if let Some((sibling, _)) = members.get_key_value(need.as_str())
                    && found.insert(*sibling)
                {
                    open.push(sibling);
                }
            }
        }
        found
    }
}

fn array<'a>(value: &'a Value, field: &str) -> anyhow::Result<&'a Vec<Value>> {
    value[field]
        .as_array()
        .with_context(|| format!("cargo metadata has no list {field}"))
}

fn text<'a>(value: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    value[field]
        .as_str()
        .with_context(|| format!("cargo metadata has no text {field}"))
}
