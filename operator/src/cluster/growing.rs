//! Volumes that are to have more than they have: which of them are waited for, and which don't grow by themselves. Pure.

use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, Quantity, Reason};
use serde_json::Value;

use super::names::Role;
use super::observed::{self, Observed, condition, seconds_since};

/// A node that can grow a file system under a running server has done so by then, as a rule.
const NODE_GROWS_SECONDS: i64 = 120;

/// A claim whose volume is smaller than it is to be.
struct Growth<'a> {
    claim: &'a Value,
    has: Quantity,
    /// By the spec.
    asks: Quantity,
    /// In the spec.
    path: &'static str,
    pod: String,
}

/// The claims of servers that are to be there, with a volume that grows. Those that drained servers left behind are waited for
/// by nobody.
fn growths<'a>(cluster: &ClusterObject, observed: &'a Observed) -> Vec<Growth<'a>> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let mut growths = Vec::new();
    for role in Role::ALL {
        let (set, asked) = (role.set(name), role.asked(&cluster.spec));
        let live = observed.set(name, role);
        let servers = live.map_or(i64::MAX, |live| observed::number(live, "/spec/replicas"));
        for (ordinal, claim) in observed.claims_of(name, role) {
            let Some(has) = observed::claim_capacity(claim) else {
                continue;
            };
            if observed::is_bound(claim) && has < asked.size && i64::from(ordinal) < servers {
                growths.push(Growth {
                    claim,
                    has,
                    asks: asked.size,
                    path: asked.path,
                    pod: format!("{set}-{ordinal}"),
                });
            }
        }
    }
    growths
}

impl Growth<'_> {
    /// For how long the file system has waited for a restart of its server, in seconds: the volume below it has grown.
    fn waits_for_restart(&self, now: Timestamp) -> Option<i64> {
        let pending = condition(self.claim, "FileSystemResizePending")?;
        let since = || seconds_since(&pending["lastTransitionTime"], now).unwrap_or_default();
        (pending["status"] == "True").then(since)
    }

    /// Why the last attempt failed, if it did, as the storage driver says.
    fn failure(&self) -> Option<&str> {
        let mut kinds = ["ControllerResizeError", "NodeResizeError"].into_iter();
        let failed = kinds.find_map(|kind| {
            let failed = condition(self.claim, kind)?;
            (failed["status"] == "True").then(|| failed["message"].as_str().unwrap_or_default())
        });
        let state = self
            .claim
            .pointer("/status/allocatedResourceStatuses/storage");
        let state = state.and_then(Value::as_str).unwrap_or_default();
        failed.or_else(|| state.ends_with("Infeasible").then_some(""))
    }

    /// What is wrong with it, and what to do.
    fn trouble(&self, now: Timestamp) -> Option<String> {
        let claim = observed::name(self.claim);
        let Self {
            has,
            asks,
            path,
            pod,
            ..
        } = self;
        if let Some(seconds) = self.waits_for_restart(now)
            && seconds >= NODE_GROWS_SECONDS
        {
            return Some(format!(
                "the volume of claim {claim} has grown, and its file system grows when its server restarts: \
                 kubectl delete pod {pod}"
            ));
        }
        let why = match self.failure()?.trim() {
            "" => "the storage doesn't say why",
            why => why,
        };
        Some(format!(
            "the volume of claim {claim} can't grow from {has} to {asks}: {why}; make room in the storage, or take \
             spec.{path}.storage.size back as docs/kubernetes.md says"
        ))
    }
}

/// What is awaited, if volumes grow.
pub(super) fn awaited(cluster: &ClusterObject, observed: &Observed) -> Option<(Reason, String)> {
    let growths = growths(cluster, observed);
    let first = growths.first()?;
    let message = format!(
        "waiting for {} volume(s) to grow, {} among them: its storage class must allow that (allowVolumeExpansion)",
        growths.len(),
        observed::name(first.claim),
    );
    Some((Reason::GrowingVolumes, message))
}

/// A volume that doesn't grow by itself.
pub(super) fn trouble(
    cluster: &ClusterObject,
    observed: &Observed,
    now: Timestamp,
) -> Option<(Reason, String)> {
    let growths = growths(cluster, observed);
    let mut troubles = growths.iter().filter_map(|growth| growth.trouble(now));
    Some((Reason::VolumeNotGrown, troubles.next()?))
}

/// In how many seconds something will be wrong that isn't yet, unless it passes.
pub(super) fn due_in(cluster: &ClusterObject, observed: &Observed, now: Timestamp) -> Vec<i64> {
    let growths = growths(cluster, observed);
    let waits = growths.iter().filter_map(|it| it.waits_for_restart(now));
    waits.map(|seconds| NODE_GROWS_SECONDS - seconds).collect()
}
