//! What a manifest may say about pods, services and volumes: nothing here has an effect on a local cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, PodSecurityContext, SecurityContext, Toleration, TopologySpreadConstraint,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::definition::{quantity_at_least, rules};
use crate::{PodPatch, Quantity, Resources};

// Of a field that may be null, the definition and the reference show this text, and not the field's own.
/// When to pull the image: Always, IfNotPresent or Never. Changing it restarts the servers, one after the other. Default:
/// Kubernetes' own, Always for the tag latest and IfNotPresent for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At each start of a container.
    Always,
    /// When the node doesn't have it.
    IfNotPresent,
    /// Never: the node has it, or the container doesn't start.
    Never,
}

impl PullPolicy {
    /// The policy's name, as Kubernetes spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// A secret of the cluster's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretName {
    /// The secret's name.
    pub name: String,
}

/// What becomes of the volumes' claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Claims {
    /// What becomes of the claims, and with them of all data, when the cluster is deleted: Retain or
    /// Delete. A cluster that is made again with the same name takes retained claims up. Default: Retain.
    pub when_deleted: ClaimRetention,
    /// What becomes of the claim of a tablet server that `tablets.replicas` takes away, after the master has moved all
    /// tablets off it: Retain or Delete. Delete also counts for claims that were retained before. Default: Retain.
    pub when_scaled: ClaimRetention,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClaimRetention {
    /// It stays.
    #[default]
    Retain,
    /// It goes, and the data with it.
    Delete,
}

impl ClaimRetention {
    /// The name of the value in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retain => "Retain",
            Self::Delete => "Delete",
        }
    }
}

/// What the servers log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Log {
    /// From which level on: error, warn, info, debug or trace. A change counts within two minutes and restarts nobody.
    /// Default: info.
    pub level: LogLevel,
    /// The format of a line: text for people, json for programs. Changing it restarts the servers, one after the other.
    /// Default: json.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: LogLevel::Info,
            format: LogFormat::Json,
        }
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogLevel {
    /// What went wrong.
    Error,
    /// And what may go wrong.
    Warn,
    /// And what happens.
    Info,
    /// And how.
    Debug,
    /// And everything else.
    Trace,
}

impl LogLevel {
    /// The level's name, as the servers take it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// The format of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// The format's name, as the servers take it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// How a service is marked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// More labels of the service; not those that every object of the cluster has. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the service. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A service that clients connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientService {
    /// More labels of the service; not those that every object of the cluster has. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the service. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// ClusterIP, NodePort or LoadBalancer. Clients outside of the Kubernetes cluster that don't go through proxies also need
    /// every role's `advertise`. Default: ClusterIP.
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// Which load balancer serves it, as Kubernetes' own `loadBalancerClass`; only with the type LoadBalancer, and it
    /// can't be changed while the type stays. Default: the Kubernetes cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
}

/// How a service is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Within the Kubernetes cluster.
    #[default]
    ClusterIP,
    /// At a port of every node.
    NodePort,
    /// By a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The name of the value in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// Who may mount a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// The pods of one node.
    #[default]
    ReadWriteOnce,
    /// One pod.
    ReadWriteOncePod,
}

impl AccessMode {
    /// The name of the value in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }
}

/// The claims of a role's volumes, beyond their size and class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    /// ReadWriteOnce, or ReadWriteOncePod, with which Kubernetes keeps a second pod from the volume; it can't be changed.
    /// Default: ReadWriteOnce.
    #[schemars(extend("x-kubernetes-validations" = rules(&[("self == oldSelf", "must not change: claims keep the access mode that they were made with")])))]
    pub access_mode: AccessMode,
    /// The VolumeAttributesClass of the volumes, such as one with more I/O operations a second. A change applies to claims
    /// that are there, and restarts nobody. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,
    /// More labels of the claims; not below app.kubernetes.io or percolator.dev. They are added to claims that are there, and
    /// stay if they are taken out here. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the claims, as for a backup. They are added to claims that are there, and stay if they are taken out
    /// here. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The volume of a server that keeps little.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// The volume's size, in bytes, at least 16Mi; it may grow, and not shrink below what the volume was asked for.
    /// Default: 1Gi.
    #[schemars(extend("x-kubernetes-validations" = quantity_at_least("16Mi")))]
    pub size: Quantity,
    /// The volume's storage class; it can't be changed once there is a volume. Default: the Kubernetes cluster's default
    /// class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// The volume's claim.
    pub claim: Claim,
}

impl Default for Volume {
    fn default() -> Self {
        Self {
            size: Quantity::from_bytes(1 << 30),
            storage_class_name: None,
            claim: Claim::default(),
        }
    }
}

/// How a role's pods run. Changing anything here restarts the role's servers, one at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// What a server asks for, and what it may not exceed. An amount that is left out has the role's default; an
    /// amount of 0 is none at all. docs/kubernetes.md lists the defaults.
    pub resources: Resources,
    /// Labels that a node must have. Default: any node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Rules about nodes, and about other pods on them, as Kubernetes' own `affinity`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints of nodes to put up with, as Kubernetes' own `tolerations`. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How pods are spread, as Kubernetes' own `topologySpreadConstraints`. Default: tablet servers over
    /// zones and over nodes, as evenly as can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Priority class of the pods. Default: the Kubernetes cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Service account of the pods. Several oracles or masters use its token, for their registers; no other pod has one. Default:
    /// one that the operator makes, of the cluster's name, and of such a role's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// More labels of the pods; not below app.kubernetes.io or percolator.dev. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// More variables of the environment, as Kubernetes' own `env`; `OTEL_EXPORTER_OTLP_ENDPOINT` turns traces on. Default:
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Replaces the pods' security context. Default: user and group 65532, not root, the runtime's
    /// default seccomp profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    /// Replaces the containers' security context, as Kubernetes' own `securityContext` of a container; what both say, counts
    /// from here. Default: no more rights than at the start, a root file system that can't be written, no capabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_security_context: Option<SecurityContext>,
    /// Merged into the pods' spec: a part of Kubernetes' own PodSpec, such as sidecars in `containers`, `initContainers`,
    /// `volumes`, `dnsConfig` or `runtimeClassName`. Elements of lists are merged by their names; the server's own container
    /// (`tso`, `tablet`, `master` or `proxy`) takes `envFrom`, `volumeMounts`, `ports` and `lifecycle`. What has a field of its own
    /// here, or what a server needs, is refused. Default: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_patch: Option<PodPatch>,
}

impl Pod {
    /// These settings, with those of `defaults` in place of what is left out. Maps, amounts of resources and variables of the
    /// environment are joined by their names; of anything else that both have, this one's counts alone.
    pub fn over(&self, defaults: &Self) -> Self {
        // Each keeps its place: a variable may be made of those before it.
        let own_env = |name: &str| self.env.iter().find(|own| own.name == name);
        let of_defaults = defaults.env.iter();
        let of_defaults = of_defaults.map(|default| own_env(&default.name).unwrap_or(default));
        let is_new = |own: &&EnvVar| defaults.env.iter().all(|it| it.name != own.name);
        let more_env = self.env.iter().filter(is_new);
        let tolerations = if self.tolerations.is_empty() {
            &defaults.tolerations
        } else {
            &self.tolerations
        };
        Self {
            resources: Resources {
                requests: joined(&self.resources.requests, &defaults.resources.requests),
                limits: joined(&self.resources.limits, &defaults.resources.limits),
            },
            node_selector: joined(&self.node_selector, &defaults.node_selector),
            affinity: either(&self.affinity, &defaults.affinity),
            tolerations: tolerations.clone(),
            topology_spread_constraints: either(
                &self.topology_spread_constraints,
                &defaults.topology_spread_constraints,
            ),
            priority_class_name: either(&self.priority_class_name, &defaults.priority_class_name),
            service_account_name: either(
                &self.service_account_name,
                &defaults.service_account_name,
            ),
            labels: joined(&self.labels, &defaults.labels),
            annotations: joined(&self.annotations, &defaults.annotations),
            env: of_defaults.chain(more_env).cloned().collect(),
            security_context: either(&self.security_context, &defaults.security_context),
            container_security_context: either(
                &self.container_security_context,
                &defaults.container_security_context,
            ),
            spec_patch: either(&self.spec_patch, &defaults.spec_patch),
        }
    }
}

fn either<T: Clone>(own: &Option<T>, default: &Option<T>) -> Option<T> {
    own.as_ref().or(default.as_ref()).cloned()
}

fn joined<T: Clone>(
    own: &BTreeMap<String, T>,
    defaults: &BTreeMap<String, T>,
) -> BTreeMap<String, T> {
    let all = defaults.iter().chain(own);
    all.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
