//! What a spec may not ask for: its own rules, and those that need what is there. The API server refuses most of
//! it by the rules in the definition; this is for what gets past them, as an older definition lets it, and what several fields
//! come to.

use percolator_api::{ClusterObject, Problem};
use serde_json::Value;

use super::names::{self, Role};
use super::observed::{self, Observed};
use super::revisions;
use super::scale_in;

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
    let tablets = &cluster.spec.tablets;
    let least = observed.volumes_but(name, Role::Tablet, &scale_in::recorded(cluster));
    // Those of a set that is there are drained before they go.
    if tablets.replicas < least && observed.set(name, Role::Tablet).is_none() {
        let first = names::claim(name, Role::Tablet, tablets.replicas);
        let last = names::claim(name, Role::Tablet, least - 1);
        let message = format!(
            "{} must be at least {least}: the claim {last} holds the data of a tablet server. It is there from a former cluster \
             of this name: ask for as many servers as that one had, and for fewer when they serve; or, if its rows may be lost, \
             delete the claims from {first} on (kubectl delete pvc)",
            tablets.replicas
        );
        add("spec.tablets.replicas", message);
    }
    if let Some(set) = observed.set(name, Role::Tablet) {
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
    for role in Role::ALL {
        let asked = role.asked(&cluster.spec);
        let path = format!("spec.{}.storage", asked.path);
        let claimed = observed.claimed(name, role);
        let set = observed.own_set(cluster, role);
        let made_with = set.and_then(observed::made_with);
        // Anyone else who grew a claim did no harm: servers that are there keep what they have.
        let last = set.and_then(observed::last_size);
        let is_shrunk = last.is_none_or(|last| asked.size < last);
        if let Some(largest) = claimed.filter(|largest| *largest > asked.size && is_shrunk) {
            let size = asked.size;
            add(
                &format!("{path}.size"),
                format!("{size} must be at least {largest}: volumes can only grow"),
            );
        }
        if let Some((class, _)) = made_with
            && claimed.is_some()
            && class != asked.class
        {
            let class =
                |class: Option<&str>| class.map_or("unset".to_owned(), |name| format!("{name:?}"));
            add(
                &format!("{path}.storageClassName"),
                format!(
                    "{} must stay {}: volumes can't move from one class to another",
                    class(asked.class),
                    class(made_with.and_then(|(class, _)| class))
                ),
            );
        }
    }
    problems.extend(revisions::problem(cluster));
    problems
}

fn argument<'a>(set: &'a Value, flag: &str) -> Option<&'a str> {
    let arguments = set.pointer("/spec/template/spec/containers/0/args")?;
    let mut arguments = arguments.as_array()?.iter().filter_map(Value::as_str);
    arguments.find(|argument| argument.starts_with(flag))
}
