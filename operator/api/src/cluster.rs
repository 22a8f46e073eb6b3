//! The types of the resource, as they stand in a manifest.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printed column has a type of its own"
)]

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Monitoring;
use crate::definition::{count_between, duration_between, quantity_at_least, rules};
use crate::observer::Observer;
use crate::pod::{Claim, Claims, ClientService, Log, Pod, PullPolicy, SecretName, Service, Volume};
use crate::proxy::Proxy;
use crate::resources::{MASTER_LEAST, ORACLE_LEAST, least_memory, least_memory_with_cache};
use crate::status::Status;
use crate::{Duration, Quantity};

/// The `apiVersion` of this resource.
pub const API_VERSION: &str = "percolator.dev/v1alpha1";
/// The `kind` of this resource.
pub const KIND: &str = "PercolatorCluster";
/// How many masters there may be: a leader and two standbys.
pub const MASTERS_MAX: u32 = 3;

/// A cluster: timestamp oracles of which one leads, one master, and tablet servers that hold the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// digit. Names of servers and their hosts are made of it. Kubernetes wants a letter first.
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

/// What a cluster is to be. A local cluster (`percolator up`) takes the oracle's window, garbage collection, the
/// tablet servers' number, engine and cache, the proxy's limits and the log's level from it, and ignores what is about
/// pods.
// Unknown fields are passed over, here and in all that is below: the API server writes the defaults of a newer
// definition into every object, and an older operator has to read it. Manifests are checked by their own reader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "percolator.dev",
    version = "v1alpha1",
    kind = "PercolatorCluster",
    root = "ClusterObject",
    doc = "A cluster of Percolator: timestamp oracles of which one leads, one master, and tablet servers that hold the data.",
    namespaced,
    status = "Status",
    derive = "PartialEq",
    shortname = "perc",
    category = "percolator",
    scale(
        spec_replicas_path = ".spec.tablets.replicas",
        status_replicas_path = ".status.tablets.created",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the cluster is what the spec says, and serves."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why the cluster is ready or not: the reason of the condition Ready."
    ),
    printcolumn(
        name = "Degraded",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Degraded\")].reason",
        description = "What is wrong: the reason of the condition Degraded, AsExpected if nothing is."
    ),
    printcolumn(
        name = "Tablets",
        type_ = "string",
        json_path = ".status.tablets.summary",
        description = "Tablet servers: ready of desired."
    ),
    printcolumn(
        name = "Oracle",
        type_ = "string",
        json_path = ".status.oracle.summary",
        description = "Timestamp oracle: ready of desired."
    ),
    printcolumn(
        name = "Master",
        type_ = "string",
        json_path = ".status.master.summary",
        description = "Master: ready of desired."
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.version",
        description = "The tag of the image that all servers run."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Available",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type==\"Available\")].status",
        description = "Whether every row can be read and written."
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        description = "What the operator waits for: the message of the condition Ready."
    ),
    printcolumn(
        name = "Proxies",
        type_ = "string",
        priority = 1,
        json_path = ".status.proxy.summary",
        description = "Proxies: ready of desired."
    ),
    printcolumn(
        name = "Engine",
        type_ = "string",
        priority = 1,
        json_path = ".spec.tablets.storage.engine",
        description = "The embedded store."
    ),
    printcolumn(
        name = "Size",
        type_ = "string",
        priority = 1,
        json_path = ".spec.tablets.storage.size",
        description = "The volume of each tablet server."
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        priority = 1,
        json_path = ".status.endpoint",
        description = "Where clients connect."
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The container image of every server, by a tag (`name:1.2.3`) or a digest (`name@sha256:...`); a local cluster
    /// ignores it. Changing it restarts the servers, one after the other. Default: the operator's default image when
    /// the operator first needed one (`status.defaultImage`); a later operator with another default changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When to pull the image: Always, IfNotPresent or Never. Changing it restarts the servers, one after the other.
    /// Default: Kubernetes' own, Always for the tag latest and IfNotPresent for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secrets with the credentials of the image's registry. Changing them restarts the servers, one after the other.
    /// Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<SecretName>,
    /// By which revision of its templates the operator makes the servers' pods, from 1 on. Changing it restarts the servers, one
    /// after the other. Default: the newest that the operator knew and the image fits when the image was last changed
    /// (`status.templates`): a newer operator restarts no server. docs/kubernetes.md has the revisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub template_revision: Option<u32>,
    /// Leave everything as it is: the operator changes nothing of this cluster, and goes on to say
    /// how it is. Default: false.
    pub paused: bool,
    /// What becomes of the volumes' claims, of all roles alike: one role's data is of no use without the others'.
    pub claims: Claims,
    /// What the servers log.
    pub log: Log,
    /// The service that clients connect to: it has the cluster's name, and leads to the master.
    pub service: ClientService,
    /// How the pods of every role, of proxies and of observers run, if a role's own `pod` doesn't say it. `specPatch` takes no server's
    /// container here. Changing anything here restarts the servers, one after the other. Default: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_defaults: Option<Pod>,
    /// What is made for the Prometheus operator.
    pub monitoring: Monitoring,
    /// The timestamp oracle.
    pub oracle: Oracle,
    /// The tablet servers.
    pub tablets: Tablets,
    /// The master: the directory of tables, tablets and servers.
    pub master: Master,
    /// The proxies: they carry out transactions for applications in any language, over gRPC and over HTTP with JSON, at the
    /// service with the cluster's name and `-proxy`. A local cluster has one proxy, and
    /// takes `idleMax` and `sessionMax` from here. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Proxy>,
    /// Workers that run a program, or call a URL, for each change of a column: each with a name, a table and a column, and either
    /// `exec` with an `image`, or `webhook`. docs/kubernetes.md has an example. A local cluster ignores them. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observers: Vec<Observer>,
    /// Garbage collection: how long versions are kept that newer ones hide.
    pub gc: Gc,
    /// How tablets are spread over the tablet servers.
    pub balance: Balance,
}

impl Spec {
    /// Sets `podDefaults` in the settings of each role's pods.
    pub fn apply_pod_defaults(&mut self) {
        let Some(defaults) = &self.pod_defaults else {
            return;
        };
        let of_proxies = self.proxy.as_mut().map(|proxy| &mut proxy.pod);
        let of_roles = [
            &mut self.oracle.pod,
            &mut self.tablets.pod,
            &mut self.master.pod,
        ];
        for pod in of_roles.into_iter().chain(of_proxies) {
            *pod = pod.over(defaults);
        }
    }

    /// How an observer's pods run, with `podDefaults`.
    pub fn pod_of(&self, observer: &Observer) -> Pod {
        match &self.pod_defaults {
            Some(defaults) => observer.pod().over(defaults),
            None => observer.pod(),
        }
    }

    /// The proxies, if there are to be any.
    pub fn proxies(&self) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|it| it.replicas != Some(0))
    }

    /// What the master reads: JSON, as `{"retentionMs":600000,"tabletServers":3}` with what is set.
    pub fn for_master(&self) -> String {
        let mut settings = serde_json::Map::new();
        let mut set = |name: &str, value: Option<serde_json::Value>| {
            settings.extend(value.map(|value| (name.to_owned(), value)));
        };
        let millis = |time: Duration| time.as_millis().into();
        set("retentionMs", self.gc.retention.map(millis));
        set("maxHoldMs", self.gc.max_hold.map(millis));
        set("paused", self.gc.paused.map(Into::into));
        set("balance", self.balance.enabled.map(Into::into));
        let split_size = self.balance.split_size;
        set("splitBytes", split_size.map(|size| size.bytes().into()));
        set("splitLoad", self.balance.split_load.map(Into::into));
        set("tabletServers", Some(self.tablets.replicas.into()));
        // A master of an older version refuses fields that it doesn't know.
        let several = |count: u32| (count > 1).then(|| count.into());
        set("masters", several(self.master.replicas));
        set("oracles", several(self.oracle.replicas));
        serde_json::Value::Object(settings).to_string()
    }
}

/// Garbage collection: how long versions are kept that newer ones hide. A change counts within two minutes and
/// restarts nobody. What is said here wins over `percolator gc set`, which sets what is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Gc {
    /// How long versions are kept that no transaction reads, from 1s to 8784h (366 days). Snapshots that are older
    /// are refused. Default: what `percolator gc set` has set, or else 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = duration_between("1s", "8784h")))]
    pub retention: Option<Duration>,
    /// How long a transaction may keep versions from being collected, from 1s to 8784h; 0s: as long as it lives.
    /// One that goes on after that is refused. Default: what `percolator gc set` has set, or else 0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules(&[("duration(self) == duration('0s') || (duration(self) >= duration('1s') && duration(self) <= duration('8784h'))", "must be from 1s to 8784h, or 0s")])))]
    pub max_hold: Option<Duration>,
    /// Refuse no more, and collect no more than may go already. Default: what `percolator gc set` has set, or
    /// else false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// How tablets are spread over the tablet servers. A change counts within two minutes and restarts nobody.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Balance {
    /// Whether the master splits tablets that are too large or used too much, merges neighbours that have been small for an hour, and
    /// moves tablets to servers that have less. A server that is
    /// drained (`percolator server drain`) is emptied all the same. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// A tablet with more bytes of keys and values is split in two, at least 1Mi. Default: 256Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = quantity_at_least("1Mi")))]
    pub split_size: Option<Quantity>,
    /// A tablet of which more cells a second are read and written is split where half of that is, if its server has too much;
    /// and tablets go to servers that are used less. 0: load doesn't count. Default: 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split_load: Option<u32>,
}

/// The timestamp oracle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = least_memory(ORACLE_LEAST)))]
pub struct Oracle {
    /// How many oracles, from 1 to 3, of which one leads. With 2, another one takes over within some seconds when the
    /// leader dies. They share a register, on Kubernetes a ConfigMap, and go on without it while all of them are up. A cluster
    /// that has had several keeps the register. The first change from 1 to more restarts the oracle. Default: 1.
    #[schemars(extend("x-kubernetes-validations" = count_between(1, 3)))]
    pub replicas: u32,
    /// How far ahead of the clock a limit for timestamps is made durable, from 100ms to 60s.
    /// A longer window means fewer disk writes, and timestamps that may run further ahead of
    /// the clock after a restart. Changing it restarts the oracle. Default: 3s.
    #[schemars(extend("x-kubernetes-validations" = duration_between("100ms", "60s")))]
    pub window: Duration,
    /// The volume for the durable limit of timestamps.
    pub storage: Volume,
    /// The service that gives the oracle's pod a name.
    pub service: Service,
    /// Where clients reach each oracle, HOST:PORT, if the pods' addresses don't lead there, as from outside of the
    /// Kubernetes cluster. `{pod}` stands for the pod's name, as in `{pod}.db.example.com:7400`. Servers reach each other
    /// there, too. Changing it restarts the role's servers. Default: the pod's IP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// The oracle's pod.
    pub pod: Pod,
}

impl Default for Oracle {
    fn default() -> Self {
        Self {
            replicas: 1,
            window: Duration::from_millis(3_000),
            storage: Volume::default(),
            service: Service::default(),
            advertise: None,
            pod: Pod::default(),
        }
    }
}

/// The tablet servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = least_memory_with_cache()))]
pub struct Tablets {
    /// How many tablet servers, from 1 to 1000. With fewer than there are, those with the highest numbers go, when
    /// the master has moved all tablets off them. Default: 3.
    #[schemars(extend("x-kubernetes-validations" = count_between(1, 1000)))]
    pub replicas: u32,
    /// What each tablet server keeps its data in.
    pub storage: Storage,
    /// A tablet server that has to stop, because of a restart, an eviction or a drained node, first moves its tablets to the others,
    /// for at most so long, from 0s to 1h; 0s: it stops at once, and its rows are away until it has started again. Its pod has so
    /// much longer to end. A local cluster ignores it. Changing it restarts the tablet servers, one at a time. Default: 30s.
    #[schemars(extend("x-kubernetes-validations" = duration_between("0s", "1h")))]
    pub drain_on_stop: Duration,
    /// The service that gives the tablet servers' pods names.
    pub service: Service,
    /// Where clients reach each tablet server, HOST:PORT, if the pods' addresses don't lead there, as from outside of the
    /// Kubernetes cluster. `{pod}` stands for the pod's name, as in `{pod}.db.example.com:7400`. Servers reach each other
    /// there, too. Changing it restarts the role's servers. Default: the pod's IP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// The tablet servers' pods.
    pub pod: Pod,
}

impl Default for Tablets {
    fn default() -> Self {
        Self {
            replicas: 3,
            storage: Storage::default(),
            drain_on_stop: Duration::from_millis(30_000),
            service: Service::default(),
            advertise: None,
            pod: Pod::default(),
        }
    }
}

/// What each tablet server keeps its data in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Storage {
    /// The embedded store; it can't be changed. Default: redb.
    #[schemars(extend("x-kubernetes-validations" = rules(&[("self == oldSelf", "must not change: a server's data stays in the store it was written with")])))]
    pub engine: Engine,
    /// Memory for the store's cache, in bytes for each server, at least 1Mi; a server needs more beside it. Changing it
    /// restarts the tablet servers, one at a time. Default: 256Mi.
    #[schemars(extend("x-kubernetes-validations" = quantity_at_least("1Mi")))]
    pub cache_size: Quantity,
    /// The volume's size, in bytes for each server, at least 64Mi; it may grow, and not shrink below what volumes were
    /// asked for. A local cluster uses the disk as it is and ignores this. Default: 10Gi.
    #[schemars(extend("x-kubernetes-validations" = quantity_at_least("64Mi")))]
    pub size: Quantity,
    /// The storage class of the volumes; it can't be changed once there is one. Default: the Kubernetes cluster's
    /// default class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// The volumes' claims.
    pub claim: Claim,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            cache_size: Quantity::from_bytes(256 << 20),
            size: Quantity::from_bytes(10 << 30),
            storage_class_name: None,
            claim: Claim::default(),
        }
    }
}

/// An embedded store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Engine {
    /// redb: copy-on-write B-trees.
    #[default]
    Redb,
    /// sled: B+ trees on log-structured pages, which a loss of power can damage on a device with a volatile cache.
    Sled,
    /// Memory: nothing outlives the process. For tests.
    Memory,
}

impl Engine {
    /// The engine's name, as it stands in a manifest and in the servers' flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redb => "redb",
            Self::Sled => "sled",
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = least_memory(MASTER_LEAST)))]
pub struct Master {
    /// How many masters, from 1 to 3, of which one leads. With 2, another one takes over within some seconds when the
    /// leader dies. They share registers, on Kubernetes two ConfigMaps, and go on without these while all of them are up. A cluster
    /// that has had several keeps the registers. The first change from 1 to more restarts all servers, one at a time in each
    /// role. Default: 1.
    #[schemars(extend("x-kubernetes-validations" = count_between(1, MASTERS_MAX)))]
    pub replicas: u32,
    /// The volume for the directory.
    pub storage: Volume,
    /// The service that gives the master's pod a name.
    pub service: Service,
    /// Where clients reach each of several masters, HOST:PORT, if the pods' addresses don't lead there, as from outside of the
    /// Kubernetes cluster. `{pod}` stands for the pod's name, as in `{pod}.db.example.com:7400`. Servers reach each other
    /// there, too. Changing it restarts the role's servers. Default: the pod's IP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// The master's pod.
    pub pod: Pod,
}

impl Default for Master {
    fn default() -> Self {
        Self {
            replicas: 1,
            storage: Volume::default(),
            service: Service::default(),
            advertise: None,
            pod: Pod::default(),
        }
    }
}
