//! What a status records for the reconciles that follow, also by another operator. While the spec is invalid it stays.

use percolator_api::{ClusterObject, Templates};

use super::build::{self, Settings};
use super::observed::Observed;
use super::revisions;

/// The image of a cluster that names none; of an invalid spec what was recorded before: the last valid one goes by it.
pub(super) fn default_image(
    cluster: &ClusterObject,
    settings: &Settings,
    is_invalid: bool,
) -> Option<String> {
    match &cluster.status {
        Some(before) if is_invalid => before.default_image.clone(),
        _ if cluster.spec.image.is_some() => None,
        _ => Some(build::default_image(cluster, settings).to_owned()),
    }
}

/// By which templates the pods are made; of an invalid spec what was recorded before.
pub(super) fn templates(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
    is_invalid: bool,
) -> Option<Templates> {
    match &cluster.status {
        Some(before) if is_invalid => before.templates.clone(),
        _ => Some(revisions::record(cluster, observed, settings)),
    }
}

/// The spec as JSON, if it's valid, or else what was recorded before.
pub(super) fn last_valid_spec(cluster: &ClusterObject, is_invalid: bool) -> Option<String> {
    if is_invalid {
        return cluster.status.as_ref()?.last_valid_spec.clone();
    }
    serde_json::to_string(&cluster.spec).ok()
}
