//! The rules of a spec: its own, and those that depend on what is there. The API server refuses most bad specs by the rules in
//! the definition. This is for those that an older definition lets pass, and for rules about several fields.

use percolator_api::{ClusterObject, Problem};
use serde_json::Value;

use super::names::{self, Role};
use super::observed::{self, Observed};
use super::revisions;
use super::scale_in;

pub(crate) fn validate(cluster: &ClusterObject, observed: &Observed) -> Vec<Problem> {
    let mut problems = cluster.spec.validate();
    problems.extend(too_few_servers(cluster, observed));
    problems.extend(another_engine(cluster, observed));
    for role in Role::ALL {
        problems.extend(volume_problems(cluster, observed, role));
    }
    problems.extend(revisions::problem(cluster));
    problems
}

fn problem(path: String, message: String) -> Problem {
    Problem {
        path,
        line: None,
        message,
    }
}

/// Fewer tablet servers than claims with data, before there is a set: those of a set that is there are drained before they go.
fn too_few_servers(cluster: &ClusterObject, observed: &Observed) -> Option<Problem> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let replicas = cluster.spec.tablets.replicas;
    let least = observed.volumes_but(name, Role::Tablet, &scale_in::recorded(cluster));
    if replicas >= least || observed.set(name, Role::Tablet).is_some() {
        return None;
    }
    let first = names::claim(name, Role::Tablet, replicas);
    let last = names::claim(name, Role::Tablet, least - 1);
    let message = format!(
        "{replicas} must be at least {least}: the claim {last} holds the data of a tablet server. It is there from a former cluster \
         of this name: ask for as many servers as that one had, and for fewer when they serve; or, if its rows may be lost, \
         delete the claims from {first} on (kubectl delete pvc)",
    );
    Some(problem("spec.tablets.replicas".to_owned(), message))
}

fn another_engine(cluster: &ClusterObject, observed: &Observed) -> Option<Problem> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let asked = cluster.spec.tablets.storage.engine;
    let set = observed.set(name, Role::Tablet)?;
    let live = argument(set, "--engine=")?.trim_start_matches("--engine=");
    (live != asked.name()).then(|| {
        let message = format!(
            "{asked} must stay {live}: a server's data stays in the store it was written with"
        );
        problem("spec.tablets.storage.engine".to_owned(), message)
    })
}

/// A smaller size or another class than the role's volumes have.
fn volume_problems(cluster: &ClusterObject, observed: &Observed, role: Role) -> Vec<Problem> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let asked = role.asked(&cluster.spec);
    let path = format!("spec.{}.storage", asked.path);
    let claimed = observed.claimed(name, role);
    let set = observed.own_set(cluster, role);
    let made_with = set.and_then(observed::made_with);
    let mut problems = Vec::new();
    // Claims that others grew may be larger than the spec asks for: servers that are there keep what they have.
    let last = set.and_then(observed::last_size);
    let is_shrunk = last.is_none_or(|last| asked.size < last);
    if let Some(largest) = claimed.filter(|largest| *largest > asked.size && is_shrunk) {
        let message = format!(
            "{} must be at least {largest}: volumes can only grow",
            asked.size
        );
        problems.push(problem(format!("{path}.size"), message));
    }
    if let Some((class, _)) = made_with
        && claimed.is_some()
        && class != asked.class
    {
        let quoted =
            |class: Option<&str>| class.map_or("unset".to_owned(), |name| format!("{name:?}"));
        let message = format!(
            "{} must stay {}: volumes can't move from one class to another",
            quoted(asked.class),
            quoted(class)
        );
        problems.push(problem(format!("{path}.storageClassName"), message));
    }
    problems
}

fn argument<'a>(set: &'a Value, flag: &str) -> Option<&'a str> {
    let arguments = set.pointer("/spec/template/spec/containers/0/args")?;
    let mut arguments = arguments.as_array()?.iter().filter_map(Value::as_str);
    arguments.find(|argument| argument.starts_with(flag))
}
