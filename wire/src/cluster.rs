//! Which cluster a stream is of: said once, in its metadata. Tables and tablets of two clusters may have the same
//! numbers, and a cluster may be deleted and made again at the same addresses.

use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

/// The name of it in the metadata.
const CLUSTER: &str = "percolator-cluster";

/// A request of this cluster's; empty: it isn't known yet.
pub fn of_cluster<T>(message: T, cluster_id: &str) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(id) = cluster_id.parse()
        && !cluster_id.is_empty()
    {
        request.metadata_mut().insert(CLUSTER, id);
    }
    request
}

/// Whether a request is of this cluster, as far as it says. A server that belongs to none yet has nothing to tell.
///
/// # Errors
/// `FAILED_PRECONDITION`: it is of another one.
pub fn check_cluster(metadata: &MetadataMap, ours: Option<&str>) -> Result<(), Status> {
    let asked = metadata.get(CLUSTER).and_then(|id| id.to_str().ok());
    match (asked, ours) {
        (Some(asked), Some(ours)) if asked != ours => Err(Status::failed_precondition(format!(
            "this server belongs to cluster {ours}, and the client to cluster {asked}, which was here before, or is \
             elsewhere"
        ))),
        _ => Ok(()),
    }
}
