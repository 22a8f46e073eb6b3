//! Volumes that are smaller than the spec asks for: which of them the operator waits for, and which don't grow by themselves. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use percolator_api::{ClusterObject, Quantity, Reason};

use super::names::Role;
use super::observed::{self, Observed, claim_condition, seconds_since};

/// How long a node may take to grow a file system under a running server.
const NODE_RESIZE_TIMEOUT: i64 = 120;

/// A claim whose volume is smaller than the spec asks for.
struct Growth<'a> {
    claim: &'a PersistentVolumeClaim,
    capacity: Quantity,
    /// The size in the spec.
    asked: Quantity,
    /// The role's field in the spec.
    path: &'static str,
    pod: String,
}

/// The claims with a volume that grows, of servers that the StatefulSets have. Claims of drained servers don't count.
fn growths<'a>(cluster: &ClusterObject, observed: &'a Observed) -> Vec<Growth<'a>> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let mut growths = Vec::new();
    for role in Role::ALL {
        let (set, asked) = (role.set(name), role.asked(&cluster.spec));
        let live = observed.set(name, role);
        let servers = live.map_or(i64::MAX, |live| observed::number(live, "/spec/replicas"));
        for (ordinal, claim) in observed.claims_of(name, role) {
            let Some(capacity) = observed::claim_capacity(claim) else {
                continue;
            };
            if observed::is_bound(claim) && capacity < asked.size && i64::from(ordinal) < servers {
                growths.push(Growth {
                    claim,
                    capacity,
                    asked: asked.size,
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
        let pending = claim_condition(self.claim, "FileSystemResizePending")?;
        let since = pending.last_transition_time.as_ref();
        let since = since.map_or(0, |since| seconds_since(since, now));
        (pending.status == "True").then_some(since)
    }

    /// Why the last attempt failed, if it did, as the storage driver says.
    fn failure(&self) -> Option<&str> {
        let mut kinds = ["ControllerResizeError", "NodeResizeError"].into_iter();
        let failed = kinds.find_map(|kind| {
            let failed = claim_condition(self.claim, kind)?;
            (failed.status == "True").then(|| failed.message.as_deref().unwrap_or_default())
        });
        let status = self.claim.status.as_ref();
        let states = status.and_then(|status| status.allocated_resource_statuses.as_ref());
        let state = states.and_then(|states| states.get("storage"));
        let is_infeasible = state.is_some_and(|state| state.ends_with("Infeasible"));
        failed.or_else(|| is_infeasible.then_some(""))
    }

    /// The fault of the growth, and what to do.
    fn trouble(&self, now: Timestamp) -> Option<String> {
        let claim = observed::name_of(self.claim);
        let Self {
            capacity,
            asked,
            path,
            pod,
            ..
        } = self;
        if let Some(seconds) = self.waits_for_restart(now)
            && seconds >= NODE_RESIZE_TIMEOUT
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
            "the volume of claim {claim} can't grow from {capacity} to {asked}: {why}; make room in the storage, or take \
             spec.{path}.storage.size back as docs/kubernetes.md says"
        ))
    }
}

/// The reason and the message of Progressing while volumes grow.
pub(super) fn wait(cluster: &ClusterObject, observed: &Observed) -> Option<(Reason, String)> {
    let growths = growths(cluster, observed);
    let first = growths.first()?;
    let message = format!(
        "waiting for {} volume(s) to grow, {} among them: its storage class must allow that (allowVolumeExpansion)",
        growths.len(),
        observed::name_of(first.claim),
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

/// In how many seconds the growths that still wait become Degraded.
pub(super) fn due_in(cluster: &ClusterObject, observed: &Observed, now: Timestamp) -> Vec<i64> {
    let growths = growths(cluster, observed);
    let waits = growths.iter().filter_map(|it| it.waits_for_restart(now));
    waits.map(|seconds| NODE_RESIZE_TIMEOUT - seconds).collect()
}
