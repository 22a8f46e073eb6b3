//! The `PercolatorCluster` resource: its types, reading it from a manifest, and checking it.
//!
//! One manifest serves everywhere: `percolator up -f cluster.yaml` runs it as local processes,
//! and the operator runs it as pods. So this crate knows nothing of processes, pods or any
//! Kubernetes client; it only says what a manifest may contain, what is wrong with one, and what a status
//! may say.

mod arguments;
mod cluster;
mod definition;
mod duration;
mod manifest;
mod monitoring;
mod observer;
mod pod;
mod proxy;
mod quantity;
mod resources;
mod status;
mod template;
mod validate;

pub use cluster::{
    API_VERSION, Balance, ClusterObject, Engine, KIND, MASTERS_MAX, Master, Metadata, Oracle,
    PercolatorCluster, Spec, Storage, Tablets,
};
pub use definition::{KUBERNETES_OWN, definition};
pub use duration::{Duration, DurationError};
pub use manifest::ManifestError;
pub use monitoring::{Monitoring, PodMonitor, PrometheusRule};
pub use observer::{Observer, SecretKey, Webhook};
pub use pod::{
    AccessMode, Claim, ClaimRetention, Claims, ClientService, Log, LogFormat, LogLevel, Pod,
    PullPolicy, SecretName, Service, ServiceType, Volume,
};
pub use proxy::Proxy;
pub use quantity::{Quantity, QuantityError};
pub use resources::{Amount, Needs, Resources};
pub use status::{ConditionType, Leader, Reason, RoleStatus, Status, Templates, WorkloadStatus};
pub use template::{PodPatch, merge};
pub use validate::Problem;
