//! The status of a cluster, as the operator reports it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Quantity;

/// How a cluster is, as the operator last saw it. No field changes while nothing happens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation of the spec that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Available, Progressing, Degraded, Reconciling, Stalled, Drifted, Paused and Monitored, each with a reason and
    /// what to do.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Where clients connect: HOST:PORT within the Kubernetes cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The tag of the image that all servers run; while they change, each of them, as `0.1.0, 0.2.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The image that the operator resolved when the spec named none: its own default at that time. It stays until the spec
    /// names an image, whatever the default of a later operator is. Unset: the spec names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_image: Option<String>,
    /// By which of the operator's templates the servers' pods are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub templates: Option<Templates>,
    /// The last spec that was valid, as JSON: the cluster is kept as it says while the spec is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_valid_spec: Option<String>,
    /// Selects the tablet servers' pods, for `kubectl scale` and autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The tablet servers.
    pub tablets: RoleStatus,
    /// The timestamp oracle.
    pub oracle: RoleStatus,
    /// The master.
    pub master: RoleStatus,
    /// The proxies. Unset: the spec asks for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<WorkloadStatus>,
    /// The workers of the observers, by their names. Unset: the spec asks for none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub observers: BTreeMap<String, WorkloadStatus>,
}

/// By which templates pods are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Templates {
    /// Which of the operator's revisions they are, counted from 1. A newer operator keeps it until the image changes.
    pub revision: u32,
    /// The image with which the cluster took them.
    pub image: String,
}

/// How the pods of a Deployment are: none of them keeps anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatus {
    /// How many there are to be: as the spec says, or as others have scaled the Deployment.
    pub desired: i32,
    /// How many pods there are.
    pub created: i32,
    /// How many run as the spec says.
    pub updated: i32,
    /// How many serve.
    pub ready: i32,
    /// Ready of desired, to read: `2/3`.
    pub summary: String,
}

/// How the servers of one role are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleStatus {
    /// How many there are to be.
    pub desired: i32,
    /// How many pods there are.
    pub created: i32,
    /// How many run as the spec says.
    pub updated: i32,
    /// How many serve.
    pub ready: i32,
    /// How many of them, from the first on, have served: `Available` asks for these. Others hold no rows yet.
    pub joined: i32,
    /// The numbers of others that have served, in order: `Available` asks for these as well. Unset: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub joined_beyond: Vec<i32>,
    /// How many of them, up to the last such one, have a volume, or left one behind.
    pub volumes: i32,
    /// The most that one of these volumes was asked for: they can't be smaller. Unset: there's none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed: Option<Quantity>,
    /// Ready of desired, to read: `2/3`.
    pub summary: String,
    /// Of several oracles the leader at the last reconcile. The operator reconciles when a pod changes, and at least every
    /// quarter of an hour. Unset: none led, or there is no register.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<Leader>,
    /// The numbers of the tablet servers that the operator has the master drain, or has had it drain before it took them
    /// away, in order. It undrains these alone when the spec asks for them again. Unset: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub draining: Vec<i32>,
}

/// The server that leads its role, by the register that they share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Leader {
    /// Its name, which is its pod's.
    pub server: String,
    /// Which leadership it is, counted from 1.
    pub term: i64,
}

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// The cluster is what the spec says, everything is rolled out, and all servers serve.
    Ready,
    /// Every row can be read and written: the master, an oracle and all tablet servers serve that ever did.
    Available,
    /// The cluster is being made what the spec says.
    Progressing,
    /// Something is wrong that doesn't go by itself, or not soon.
    Degraded,
    /// The same as Progressing, but for what is stalled: kstatus goes by this name.
    Reconciling,
    /// The operator gets no further until a person changes something.
    Stalled,
    /// The API server keeps objects otherwise than the operator applied them.
    Drifted,
    /// The operator changes nothing of the cluster, because the spec says `paused: true`.
    Paused,
    /// What the spec asks for of the Prometheus operator is there.
    Monitored,
}

impl ConditionType {
    /// All of them, in the order in which a status lists them.
    pub const ALL: [Self; 9] = [
        Self::Ready,
        Self::Available,
        Self::Progressing,
        Self::Degraded,
        Self::Reconciling,
        Self::Stalled,
        Self::Drifted,
        Self::Paused,
        Self::Monitored,
    ];

    /// Those by which kstatus goes, and with it Flux, Argo CD and Helm. They summarize the others.
    pub const OF_KSTATUS: [Self; 3] = [Self::Ready, Self::Reconciling, Self::Stalled];

    /// As it stands in a status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Available => "Available",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Drifted => "Drifted",
            Self::Paused => "Paused",
            Self::Monitored => "Monitored",
        }
    }
}

/// Why a condition is as it is: there are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// All servers serve that ever did, and at first all that there are to be.
    AllServersReady,
    /// All servers serve that are needed; of several oracles at least one does.
    StandbysNotReady,
    /// Some server doesn't serve yet, or any more.
    ServersNotReady,
    /// The cluster is what the spec says.
    UpToDate,
    /// Waits for the master, which comes first.
    WaitingForMaster,
    /// Waits for the oracle, which comes second.
    WaitingForOracle,
    /// Waits for tablet servers, which come last, one at a time when they change.
    WaitingForTablets,
    /// Waits for the proxies, which come behind the tablet servers.
    WaitingForProxy,
    /// Waits for the workers of an observer, which come behind the tablet servers, too.
    WaitingForObservers,
    /// Volumes are growing.
    GrowingVolumes,
    /// The master moves tablets off servers that the spec takes away.
    DrainingTablets,
    /// Claims that never had a volume make room for those that the spec asks for now.
    ReplacingClaims,
    /// Objects of a former cluster of this name, or all of the namespace, are still being removed.
    WaitingForRemoval,
    /// As many other clusters change their servers as may at a time.
    WaitingForTurn,
    /// A newer operator made the pods, by templates that this one doesn't know.
    NewerTemplates,
    /// Nothing is wrong that the operator could see.
    AsExpected,
    /// The spec can't be carried out as it is.
    InvalidSpec,
    /// An object of another owner has a name that this cluster needs.
    ObjectConflict,
    /// The API server refused something that the operator asked for.
    ApplyRefused,
    /// A server runs without rows that it had, or the oracles' register has lost its value.
    DataLost,
    /// Kubernetes doesn't let a StatefulSet make its pods.
    PodsRefused,
    /// A pod's image can't be had.
    ImageUnavailable,
    /// No node takes a pod.
    PodUnschedulable,
    /// A pod's node doesn't answer Kubernetes.
    NodeUnreachable,
    /// A server ends again and again.
    ServerCrashing,
    /// A pod has a node, and doesn't start there.
    PodNotStarted,
    /// A volume can't have what was asked for.
    VolumeNotGrown,
    /// Something keeps the master from moving tablets off servers that the spec takes away, or from undraining servers that
    /// are to stay.
    DrainBlocked,
    /// The operator can go on.
    NotStalled,
    /// An admission webhook or policy changes what the operator applies.
    AlteredByAdmission,
    /// Nothing changes it.
    NotAltered,
    /// The spec says `paused: true`.
    PausedBySpec,
    /// The spec doesn't say so.
    NotPaused,
    /// What the spec asks for of the Prometheus operator is there.
    AsAskedFor,
    /// The spec asks for nothing of it.
    NotAskedFor,
    /// There are no definitions of what the spec asks for: the Prometheus operator isn't installed.
    WaitingForDefinitions,
    /// The operator may not make what the spec asks for.
    WaitingForPermission,
}

impl Reason {
    /// As it stands in a status.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}
