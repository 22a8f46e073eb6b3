//! Reads a manifest: from YAML text to a checked resource, or to all of its problems.

mod fields;
mod tree;

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::validate::Problem;
use crate::{API_VERSION, KIND, PercolatorCluster};
use fields::{Fault, Fields};
use tree::{Node, Value};

/// Why a text is no usable manifest. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is not YAML.
    #[error("line {line}, column {column}: not valid YAML: {message}")]
    Syntax {
        /// Where reading stopped.
        line: u64,
        /// Where in that line.
        column: u64,
        /// The reader's reason.
        message: String,
    },
    /// There is nothing but blanks and comments.
    #[error(
        "the manifest is empty: it needs `apiVersion: {API_VERSION}`, `kind: {KIND}` and \
         `metadata.name`"
    )]
    Empty,
    /// There is a second YAML document.
    #[error(
        "line {line}: a second document begins here: keep one {KIND} in a file, \
         and put other resources into files of their own"
    )]
    SeveralDocuments {
        /// Where the second document begins.
        line: u64,
    },
    /// It is YAML, but not a good resource: every problem found, in the order of the text.
    #[error("{}", lines(.problems))]
    Invalid {
        /// Never empty.
        problems: Vec<Problem>,
    },
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

impl PercolatorCluster {
    /// Reads a manifest and checks it, as [`PercolatorCluster::validate`] does.
    ///
    /// All problems are reported at once, each with its line: fields that are unknown or missing, values of a wrong type, values out
    /// of bounds. Only a text that is no YAML, or another kind of resource, ends it earlier. Fields that Kubernetes adds, `status` and
    /// parts of `metadata`, are ignored, so that the output of kubectl can be read.
    pub fn from_yaml(text: &str) -> Result<Self, ManifestError> {
        let mut root = tree::parse(text)?;
        let mut problems = kind_of_resource(&mut root)?;
        without_the_servers_fields(&mut root);

        let mut mended = BTreeSet::new();
        let cluster = loop {
            let fields = Fields::default();
            let read = Self::deserialize(fields.of(&root));
            let unknown = fields.into_problems();
            match read {
                Ok(cluster) => {
                    problems.extend(unknown);
                    problems.extend(cluster.validate().into_iter().map(|problem| Problem {
                        line: root.line_of(&problem.path),
                        ..problem
                    }));
                    break Some(cluster);
                }
                // Reading stops at a value that is none of its type. Without that, what else is wrong is found.
                Err(Fault(problem)) if mended.insert(problem.path.clone()) => {
                    mend(&mut root, &problem.path);
                    problems.push(problem);
                }
                Err(_) => {
                    problems.extend(unknown);
                    break None;
                }
            }
        };
        problems.sort_by_key(|problem| problem.line);
        match cluster {
            Some(cluster) if problems.is_empty() => Ok(cluster),
            _ => Err(ManifestError::Invalid { problems }),
        }
    }
}

/// The problems of the resource's kind and version, which are mended. They are checked first: in another kind of resource every
/// field would be reported as unknown.
fn kind_of_resource(root: &mut Node) -> Result<Vec<Problem>, ManifestError> {
    let invalid = |problems| Err(ManifestError::Invalid { problems });
    let Value::Map(entries) = &root.value else {
        return invalid(vec![Problem {
            path: String::new(),
            line: Some(root.line),
            message: format!(
                "expected a {KIND} with the fields apiVersion, kind, metadata and spec, found {}",
                root.value.describe()
            ),
        }]);
    };
    let wanted = [("apiVersion", API_VERSION), ("kind", KIND)];
    let mut problems = Vec::new();
    for (field, wanted) in wanted {
        let entry = entries.iter().find(|entry| entry.key == field);
        let message = match entry.map(|entry| &entry.node.value) {
            Some(Value::String(found)) if found == wanted => continue,
            Some(found) => format!("expected \"{wanted}\", found {}", found.describe()),
            None => format!("missing: write `{field}: {wanted}`"),
        };
        problems.push(Problem {
            path: field.into(),
            line: Some(entry.map_or(root.line, |entry| entry.line)),
            message,
        });
    }
    if problems.len() == wanted.len() {
        return invalid(problems);
    }
    for (field, wanted) in wanted {
        root.put(field, Value::String(wanted.into()));
    }
    Ok(problems)
}

/// Takes the wrong field of this path out of a tree. The cluster's name, which is required, is replaced by another one.
fn mend(root: &mut Node, path: &str) {
    root.take_out(path);
    if path != "metadata" && path != "metadata.name" {
        return;
    }
    if root.get_mut("metadata").is_none() {
        root.put("metadata", Value::Map(Vec::new()));
    }
    if let Some(metadata) = root.get_mut("metadata") {
        metadata.put("name", Value::String("some".into()));
    }
}

/// Fields that Kubernetes writes into a resource's metadata.
const METADATA_OF_SERVER: [&str; 11] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Takes out the fields that Kubernetes writes: they have no effect on the cluster.
fn without_the_servers_fields(root: &mut Node) {
    let Value::Map(entries) = &mut root.value else {
        return;
    };
    entries.retain(|entry| entry.key != "status");
    let metadata = entries.iter_mut().find(|entry| entry.key == "metadata");
    if let Some(Value::Map(fields)) = metadata.map(|entry| &mut entry.node.value) {
        fields.retain(|entry| !METADATA_OF_SERVER.contains(&entry.key.as_str()));
    }
}
