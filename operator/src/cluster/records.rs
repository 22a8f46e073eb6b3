//! The records of a status for later reconciles, also by another operator. They stay as they are while the spec is invalid.

use percolator_api::{ClusterObject, Templates};

use super::build::{self, Settings};
use super::observed::Observed;
use super::revisions;

/// The image of a cluster that names none. While the spec is invalid, the recorded image: the last valid spec uses it.
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

/// The templates by which the pods are made. While the spec is invalid, the recorded ones.
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

/// The spec as JSON, if it is valid, or else the recorded one.
pub(super) fn last_valid_spec(cluster: &ClusterObject, is_invalid: bool) -> Option<String> {
    if is_invalid {
        return cluster.status.as_ref()?.last_valid_spec.clone();
    }
    serde_json::to_string(&cluster.spec).ok()
}
