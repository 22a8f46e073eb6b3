//! What a spec may not ask for: its own rules, and those that need what is there. The API server refuses all of
//! it by the rules in the definition; this is for what gets past them, as an older definition lets it.

use percolator_api::{ClusterObject, Problem};
use serde_json::Value;

use super::names::Role;
use super::observed::{self, Observed};

pub(crate) fn validate(cluster: &ClusterObject, observed: &Observed) -> Vec<Problem> {
    let mut problems = cluster.spec.validate();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let mut add = |path: &str, message: String| {
        problems.push(Problem {
            path: path.to_owned(),
            line: None,
            message,
        });
    };
    if let Some(set) = observed.set(name, Role::Tablet) {
        let tablets = &cluster.spec.tablets;
        let there = observed::number(set, "/spec/replicas");
        if i64::from(tablets.replicas) < there {
            add(
                "spec.tablets.replicas",
                format!(
                    "{} must be at least {there}: tablet servers own data, and tablets can't be moved off a \
                     server yet",
                    tablets.replicas
                ),
            );
        }
        let engine = format!("--engine={}", tablets.storage.engine);
        if let Some(other) = argument(set, "--engine=").filter(|other| *other != engine) {
            add(
                "spec.tablets.storage.engine",
                format!(
                    "{} must stay {}: a server's data stays in the store it was written with",
                    tablets.storage.engine,
                    other.trim_start_matches("--engine=")
                ),
            );
        }
    }
    for (role, path, size) in [
        (
            Role::GcMaster,
            "gcMaster",
            cluster.spec.gc_master.storage.size,
        ),
        (Role::Oracle, "oracle", cluster.spec.oracle.storage.size),
        (Role::Tablet, "tablets", cluster.spec.tablets.storage.size),
    ] {
        let largest = observed
            .claims_of(name, role)
            .filter_map(observed::claim_size)
            .max();
        if let Some(largest) = largest.filter(|largest| *largest > size) {
            add(
                &format!("spec.{path}.storage.size"),
                format!("{size} must be at least {largest}: volumes can only grow"),
            );
        }
    }
    problems
}

fn argument<'a>(set: &'a Value, flag: &str) -> Option<&'a str> {
    let arguments = set.pointer("/spec/template/spec/containers/0/args")?;
    let mut arguments = arguments.as_array()?.iter().filter_map(Value::as_str);
    arguments.find(|argument| argument.starts_with(flag))
}
