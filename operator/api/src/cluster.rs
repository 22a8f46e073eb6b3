//! The types of the resource, as they stand in a manifest.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Duration, Quantity};

/// The `apiVersion` of this resource.
pub const API_VERSION: &str = "percolator.dev/v1alpha1";
/// The `kind` of this resource.
pub const KIND: &str = "PercolatorCluster";

/// A cluster: one timestamp oracle, one master, and tablet servers that hold the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PercolatorCluster {
    /// Always `percolator.dev/v1alpha1`.
    pub api_version: String,
    /// Always `PercolatorCluster`.
    pub kind: String,
    /// Which cluster this is.
    pub metadata: Metadata,
    /// What the cluster is to be. Default: every field's default.
    #[serde(default)]
    pub spec: Spec,
}

/// Which cluster this is: the part of Kubernetes' object metadata that a manifest may set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// The cluster's name: 1 to 40 of a-z, 0-9 and '-', starting and ending with a letter or
    /// digit. Names of servers and their hosts are made of it.
    pub name: String,
    /// The Kubernetes namespace; a local cluster ignores it. Default: the one that is current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels to select the resource by; they have no effect on the cluster. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Notes of people and tools; they have no effect on the cluster. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What a cluster is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Spec {
    /// The container image of every server; a local cluster ignores it. Default: the image of
    /// the operator's own release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The timestamp oracle.
    pub oracle: Oracle,
    /// The tablet servers.
    pub tablets: Tablets,
    /// The master: the directory of tables, tablets and servers.
    pub gc_master: GcMaster,
}

/// The timestamp oracle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Oracle {
    /// How many oracles. Only 1 is supported. Default: 1.
    pub replicas: u32,
    /// How far ahead of the clock a limit for timestamps is made durable, from 100ms to 60s.
    /// A longer window means fewer disk writes, and timestamps that may run further ahead of
    /// the clock after a restart. Default: 3s.
    pub window: Duration,
}

impl Default for Oracle {
    fn default() -> Self {
        Self {
            replicas: 1,
            window: Duration::from_millis(3_000),
        }
    }
}

/// The tablet servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Tablets {
    /// How many tablet servers, from 1 to 1000. Default: 3.
    pub replicas: u32,
    /// What each tablet server keeps its data in.
    pub storage: Storage,
}

impl Default for Tablets {
    fn default() -> Self {
        Self {
            replicas: 3,
            storage: Storage::default(),
        }
    }
}

/// What each tablet server keeps its data in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Storage {
    /// The embedded store. Default: sled.
    pub engine: Engine,
    /// Memory for the store's cache, in bytes for each server, at least 1Mi. Default: 256Mi.
    ///
    /// A server needs more than that: some 55Mi at rest without data, and sled keeps its table of all pages
    /// beside its cache. After 1,000,000 rows of 200 bytes, written in random order on one server, VmRSS was 255Mi
    /// at rest (388Mi at its most) with a cache of 16Mi, and 632Mi (710Mi) with one of 256Mi; started again and
    /// read once, 368Mi. To measure: `grep -E 'VmRSS|VmHWM' /proc/$(pgrep -f percolator-tablet)/status` behind
    /// `percolator import`, on `up --processes` with `spec.tablets.replicas: 1`.
    pub cache_size: Quantity,
    /// The volume's size, in bytes for each server, at least 64Mi; a local cluster uses the
    /// disk as it is and ignores this. Default: 10Gi.
    pub size: Quantity,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            cache_size: Quantity::from_bytes(256 << 20),
            size: Quantity::from_bytes(10 << 30),
        }
    }
}

/// An embedded store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Engine {
    /// sled: B+ trees on log-structured pages.
    #[default]
    Sled,
    /// fjall: log-structured merge trees.
    Fjall,
    /// Memory: nothing outlives the process. For tests.
    Memory,
}

impl Engine {
    /// The engine's name, as it stands in a manifest and in the servers' flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sled => "sled",
            Self::Fjall => "fjall",
            Self::Memory => "memory",
        }
    }
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The master: the directory of tables, tablets and servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GcMaster {
    /// How many masters. Only 1 is supported. Default: 1.
    pub replicas: u32,
}

impl Default for GcMaster {
    fn default() -> Self {
        Self { replicas: 1 }
    }
}
