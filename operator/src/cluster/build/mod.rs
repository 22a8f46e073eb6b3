//! The objects that a valid spec asks for: pure, and can't fail.

mod monitoring;
mod observers;
mod pods;
mod proxy;
mod registers;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use kube::Resource as _;
use percolator_api::{ClientService, ClusterObject};
use serde_json::{Value, json};

use super::names::{self, METRICS_PORT, PORT, Role};
use super::object::{Kind, Object};
use super::observed::Observed;
use super::registers::RegisterPlan;
use super::revisions;

/// The operator's settings, on which a cluster's objects depend besides its resource.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The servers' image, if the spec names none.
    pub(crate) image: String,
    /// For how many seconds no node may take a pod before that is reported as Degraded: an autoscaler may be adding one.
    pub(crate) unschedulable_timeout_seconds: i64,
    /// How many clusters change their servers at a time.
    pub(crate) rolls_max: usize,
}

/// The objects that a cluster is to have.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Objects that pods need, or that don't depend on pods: applied first.
    pub(crate) common: Vec<Object>,
    /// One StatefulSet for each role, in the order of [`Role::ALL`].
    pub(crate) sets: Vec<(Role, Object)>,
    /// Objects that belong to Deployments: applied after the StatefulSets, which don't need them.
    pub(crate) beside_deployments: Vec<Object>,
    /// The Deployments, whose pods are clients of the servers.
    pub(crate) deployments: Vec<Object>,
    /// Objects of kinds that the API server may not know: applied last, because the servers don't need them.
    pub(crate) monitoring: Vec<Object>,
    /// Why StatefulSets and Deployments that are there are not changed, if so.
    pub(crate) frozen: Option<String>,
}

impl Wanted {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Object> {
        self.common
            .iter()
            .chain(self.sets.iter().map(|(_, set)| set))
            .chain(&self.beside_deployments)
            .chain(&self.deployments)
            .chain(&self.monitoring)
    }
}

/// The image of a cluster that names none: the one that its status records, or else the operator's default. A new operator
/// with another default restarts no pod.
pub(crate) fn default_image<'a>(cluster: &'a ClusterObject, settings: &'a Settings) -> &'a str {
    let recorded = cluster.status.as_ref();
    let recorded = recorded.and_then(|status| status.default_image.as_deref());
    recorded.unwrap_or(&settings.image)
}

/// Builds all objects. What is there matters in two ways: StatefulSets can't change their claims, and a master without
/// state begins a new cluster only where there has never been one.
pub(crate) fn build(cluster: &ClusterObject, observed: &Observed, settings: &Settings) -> Wanted {
    let mut cluster = cluster.clone();
    cluster.spec.apply_pod_defaults();
    let cluster = &cluster;
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let builder = Builder {
        name,
        namespace: cluster.metadata.namespace.as_deref().unwrap_or_default(),
        owner: owner(cluster),
        cluster,
        default_image: default_image(cluster, settings),
        revision: revisions::of(cluster, observed, settings),
        masters: RegisterPlan::of(cluster, observed, Role::Master),
        oracles: RegisterPlan::of(cluster, observed, Role::Oracle),
        tablets: RegisterPlan::of(cluster, observed, Role::Tablet),
    };
    let mut common = builder.service_account();
    let registers = Role::ALL.into_iter();
    common.extend(registers.flat_map(|role| builder.registers(role, observed)));
    common.push(builder.config(observed));
    common.push(builder.master_service());
    common.extend(Role::ALL.map(|role| builder.headless_service(role)));
    common.extend(Role::ALL.map(|role| builder.disruption_budget(role.component())));
    let sets = Role::ALL.map(|role| (role, builder.stateful_set(role, observed)));
    Wanted {
        common,
        sets: sets.into(),
        beside_deployments: builder.beside_proxies(),
        deployments: builder
            .proxies()
            .into_iter()
            .chain(builder.observers())
            .collect(),
        monitoring: builder.monitoring(),
        frozen: revisions::of_newer_operator(cluster, observed, settings),
    }
}

struct Builder<'a> {
    name: &'a str,
    namespace: &'a str,
    owner: Value,
    cluster: &'a ClusterObject,
    default_image: &'a str,
    /// Of the servers' templates.
    revision: u32,
    masters: RegisterPlan,
    oracles: RegisterPlan,
    tablets: RegisterPlan,
}

fn owner(cluster: &ClusterObject) -> Value {
    json!({
        "apiVersion": ClusterObject::api_version(&()),
        "kind": ClusterObject::kind(&()),
        "name": cluster.metadata.name,
        "uid": cluster.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// The key of the configuration that says whether the master may begin a new cluster.
const NEW_CLUSTER: &str = "new-cluster";
/// The key of the settings of garbage collection: the master's pod has them as a file, which the master reads again.
const MANIFEST: &str = "manifest.json";
/// The key of the log level: every pod has it as a file, which its server reads again.
const LOG_LEVEL: &str = "log-level";

/// One address of each family that the Kubernetes cluster has.
const FAMILIES: &str = "PreferDualStack";

impl Builder<'_> {
    fn plan(&self, role: Role) -> &RegisterPlan {
        match role {
            Role::Master => &self.masters,
            Role::Oracle => &self.oracles,
            Role::Tablet => &self.tablets,
        }
    }

    fn object(&self, kind: Kind, name: &str, labels: Value, body: Value) -> Object {
        Object::new(kind, name, labels, &self.owner, body)
    }

    fn common(&self, kind: Kind, body: Value) -> Object {
        self.object(kind, self.name, names::labels(self.name), body)
    }

    /// The service account of a role's pods: the spec's, or one of the operator's. Servers with a register have their role's own
    /// account, because the others need no rights.
    fn account(&self, role: Role) -> String {
        let pod = role.asked(&self.cluster.spec).pod;
        match &pod.service_account_name {
            Some(account) => account.clone(),
            None if self.has_register(role) => role.set(self.name),
            None => self.name.to_owned(),
        }
    }

    /// None if no role uses it.
    fn service_account(&self) -> Vec<Object> {
        let is_used = |role: Role| {
            let pod = role.asked(&self.cluster.spec).pod;
            pod.service_account_name.is_none() && self.account(role) == self.name
        };
        let proxies = self.cluster.spec.proxies();
        let is_of_proxies = proxies.is_some_and(|it| it.pod.service_account_name.is_none());
        let spec = &self.cluster.spec;
        let mut observers = spec.observers.iter().map(|it| spec.pod_of(it));
        let is_of_observers = observers.any(|pod| pod.service_account_name.is_none());
        let is_of_workers = is_of_proxies || is_of_observers;
        if !is_of_workers && !Role::ALL.into_iter().any(is_used) {
            return Vec::new();
        }
        vec![self.common(
            Kind::ServiceAccount,
            json!({"automountServiceAccountToken": false}),
        )]
    }

    /// The configuration. The servers read the log level and the settings of collection again, so that a change restarts no pod.
    fn config(&self, observed: &Observed) -> Object {
        let is_new = observed.is_new(self.name);
        self.common(
            Kind::ConfigMap,
            json!({"data": {
                NEW_CLUSTER: is_new.to_string(),
                MANIFEST: self.cluster.spec.for_master(),
                LOG_LEVEL: self.cluster.spec.log.level.name(),
            }}),
        )
    }

    fn master_service(&self) -> Object {
        let selector = names::role_selector(self.name, Role::Master);
        let body = client_service(&self.cluster.spec.service, &selector);
        let labels = with(names::labels(self.name), &self.cluster.spec.service.labels);
        self.object(Kind::Service, self.name, labels, body)
    }

    /// Gives each pod a name that outlives it. Also while it isn't ready: servers resolve each other then.
    fn headless_service(&self, role: Role) -> Object {
        let service = role.asked(&self.cluster.spec).service;
        self.object(
            Kind::Service,
            &role.set(self.name),
            with(names::role_labels(self.name, role), &service.labels),
            json!({
                "metadata": {"annotations": service.annotations},
                "spec": {
                    "type": "ClusterIP",
                    "clusterIP": "None",
                    "ipFamilyPolicy": FAMILIES,
                    "publishNotReadyAddresses": true,
                    "selector": names::role_selector(self.name, role),
                    "ports": [
                        {"name": "grpc", "port": PORT, "targetPort": "grpc", "protocol": "TCP"},
                        {"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"},
                    ],
                },
            }),
        )
    }

    /// One budget a role: of several masters or oracles one is enough, whatever becomes of a tablet server meanwhile.
    fn disruption_budget(&self, component: &str) -> Object {
        self.object(
            Kind::PodDisruptionBudget,
            &format!("{}-{component}", self.name),
            names::component_labels(self.name, component),
            json!({"spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": names::component_selector(self.name, component)},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            }}),
        )
    }
}

/// A service that clients connect to, of the pods with these labels.
fn client_service(service: &ClientService, selector: &Value) -> Value {
    let mut body = json!({
        "metadata": {"annotations": service.annotations},
        "spec": {
            "type": service.kind.name(),
            "ipFamilyPolicy": FAMILIES,
            "selector": selector,
            "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc", "protocol": "TCP"}],
        },
    });
    if let Some(class) = &service.load_balancer_class {
        body["spec"]["loadBalancerClass"] = json!(class);
    }
    body
}

/// These labels, and those that the spec asks for.
fn with(mut own: Value, more: &BTreeMap<String, String>) -> Value {
    for (key, label) in more {
        own[key] = json!(label);
    }
    own
}
