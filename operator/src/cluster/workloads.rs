//! The status of Deployments: the proxies and the workers of observers. Pure.

use std::collections::BTreeMap;

use percolator_api::{ClusterObject, WorkloadStatus};
use serde_json::Value;

use super::names;
use super::object::Kind;
use super::observed::{self, Observed};

/// The status of the proxies, if the spec asks for any. While the spec is invalid, if there are any.
pub(super) fn proxies(
    cluster: &ClusterObject,
    observed: &Observed,
    is_invalid: bool,
) -> Option<WorkloadStatus> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let live = observed.get(Kind::Deployment, &names::proxies(name));
    let live = live.filter(|live| observed::is_ours(live, cluster));
    let asked = cluster.spec.proxies();
    let is_shown = if is_invalid {
        live.is_some()
    } else {
        asked.is_some()
    };
    if !is_shown {
        return None;
    }
    let asked = asked.filter(|_| !is_invalid).and_then(|it| it.replicas);
    Some(workload(live, asked))
}

/// The status of the workers of observers, by their names. While the spec is invalid, none is shown.
pub(super) fn observers(
    cluster: &ClusterObject,
    observed: &Observed,
) -> BTreeMap<String, WorkloadStatus> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let asked = cluster.spec.observers.iter();
    asked
        .map(|observer| {
            let deployment = format!("{name}-{}", names::observer(&observer.name));
            let live = observed.get(Kind::Deployment, &deployment);
            let live = live.filter(|live| observed::is_ours(live, cluster));
            let status = workload(live, observer.replicas);
            (observer.name.clone(), status)
        })
        .collect()
}

fn workload(live: Option<&Value>, asked: Option<u32>) -> WorkloadStatus {
    let at = |path| {
        let number = live.map_or(0, |live| observed::number(live, path));
        i32::try_from(number).unwrap_or(i32::MAX)
    };
    let asked = asked.and_then(|it| i32::try_from(it).ok());
    // Kubernetes begins with one.
    let others = if live.is_some() {
        at("/spec/replicas")
    } else {
        1
    };
    let (desired, ready) = (asked.unwrap_or(others), at("/status/readyReplicas"));
    WorkloadStatus {
        desired,
        created: at("/status/replicas"),
        updated: at("/status/updatedReplicas"),
        ready,
        summary: format!("{ready}/{desired}"),
    }
}
