//! The gRPC messages, and their conversion from and to protocol types; nothing else.

/// Messages, clients and servers as generated from `proto/`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]
pub mod v1 {
    tonic::include_proto!("percolator.v1");
}

/// The proxy's messages, client and server, as generated from `proto/proxy.proto`.
pub mod proxy {
    /// The first version.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]
    pub mod v1 {
        tonic::include_proto!("percolator.proxy.v1");
    }

    /// The description of all of it, a `google.protobuf.FileDescriptorSet`: for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/proxy.bin"));
}

mod cluster;
mod convert;
mod leader;
mod masters;
mod trace;

pub use cluster::{CLUSTER, check_cluster, name_cluster, named_cluster, of_cluster};
pub use convert::{Malformed, commit_response, commit_result, met_lock, prewrite_rejection};
pub use leader::{leader_of, not_leader, right_ended};
pub use masters::{MASTERS, MasterAddresses, NoMasterAddress, is_address};
