//! Which cluster a stream, a request to a master or its answer is of: said in its metadata. Tables and tablets of two clusters
//! may have the same numbers, a cluster may be deleted and made again at the same addresses, and the address of a pod may be
//! another cluster's next.

use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

/// The name of it in the metadata.
pub const CLUSTER: &str = "percolator-cluster";

/// A request of this cluster's; empty: it isn't known yet.
pub fn of_cluster<T>(message: T, cluster_id: &str) -> Request<T> {
    let mut request = Request::new(message);
    name_cluster(request.metadata_mut(), cluster_id);
    request
}

/// Names this cluster; empty: it isn't known yet.
pub fn name_cluster(metadata: &mut MetadataMap, cluster_id: &str) {
    if let Ok(id) = cluster_id.parse()
        && !cluster_id.is_empty()
    {
        metadata.insert(CLUSTER, id);
    }
}

/// The cluster that is named, if one is.
pub fn named_cluster(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(CLUSTER)?.to_str().ok()
}

/// Checks that a request belongs to this cluster, if it names one. A server that belongs to none yet accepts all.
///
/// # Errors
/// `FAILED_PRECONDITION`: it is of another one.
pub fn check_cluster(metadata: &MetadataMap, ours: Option<&str>) -> Result<(), Status> {
    match (named_cluster(metadata), ours) {
        (Some(asked), Some(ours)) if asked != ours => Err(Status::failed_precondition(format!(
            "this server belongs to cluster {ours}, and the client to cluster {asked}, which was here before, or is \
             elsewhere"
        ))),
        _ => Ok(()),
    }
}
