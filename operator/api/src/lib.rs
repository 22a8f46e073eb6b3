//! The `PercolatorCluster` resource: its types, reading it from a manifest, and checking it.
//!
//! One manifest serves everywhere: `percolator up -f cluster.yaml` runs it as local processes,
//! and the operator runs it as pods. So this crate knows nothing of processes, pods or any
//! Kubernetes client; it only says what a manifest may contain and what is wrong with one.

mod cluster;
mod duration;
mod manifest;
mod quantity;
mod validate;

pub use cluster::{
    API_VERSION, Engine, GcMaster, KIND, Metadata, Oracle, PercolatorCluster, Spec, Storage,
    Tablets,
};
pub use duration::{Duration, DurationError};
pub use manifest::ManifestError;
pub use quantity::{Quantity, QuantityError};
pub use validate::Problem;
