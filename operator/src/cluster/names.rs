//! The names, labels and selectors of a cluster's objects.

use percolator_api::{Claim, MASTERS_MAX, Needs, Pod, Quantity, Service, Spec};
use serde_json::{Value, json};

use super::object::Kind;

/// The field manager of all writes of the operator.
pub(crate) const MANAGER: &str = "percolator-operator";
/// The port of every server, and of the service for clients.
pub(crate) const PORT: u16 = 7400;
/// The port on which every server shows its metrics and health.
pub(crate) const METRICS_PORT: u16 = 9090;
/// The prefix of a pod's claim, before the pod's name.
pub(crate) const CLAIM: &str = "data";

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Master,
    Oracle,
    Tablet,
}

impl Role {
    /// All roles, in the order in which they start and change: all servers ask the master, and a tablet server needs an oracle.
    pub(crate) const ALL: [Self; 3] = [Self::Master, Self::Oracle, Self::Tablet];

    /// The role in labels, and in names after the cluster's.
    pub(crate) fn component(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Oracle => "tso",
            Self::Tablet => "tablet",
        }
    }

    /// For messages, and labels of registers.
    pub(crate) fn singular(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Oracle => "oracle",
            Self::Tablet => "tablet server",
        }
    }

    /// For messages.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Master => "the master",
            Self::Oracle => "the oracle",
            Self::Tablet => "tablet servers",
        }
    }

    /// The StatefulSet, and the headless service that gives its pods names.
    pub(crate) fn set(self, cluster: &str) -> String {
        format!("{cluster}-{}", self.component())
    }

    /// The role's part of a spec.
    pub(crate) fn asked(self, spec: &Spec) -> RoleSpec<'_> {
        match self {
            Self::Master => RoleSpec {
                path: "master",
                replicas: spec.master.replicas,
                size: spec.master.storage.size,
                class: spec.master.storage.storage_class_name.as_deref(),
                claim: &spec.master.storage.claim,
                advertise: spec.master.advertise.as_deref(),
                service: &spec.master.service,
                pod: &spec.master.pod,
            },
            Self::Oracle => RoleSpec {
                path: "oracle",
                replicas: spec.oracle.replicas,
                size: spec.oracle.storage.size,
                class: spec.oracle.storage.storage_class_name.as_deref(),
                claim: &spec.oracle.storage.claim,
                advertise: spec.oracle.advertise.as_deref(),
                service: &spec.oracle.service,
                pod: &spec.oracle.pod,
            },
            Self::Tablet => RoleSpec {
                path: "tablets",
                replicas: spec.tablets.replicas,
                size: spec.tablets.storage.size,
                class: spec.tablets.storage.storage_class_name.as_deref(),
                claim: &spec.tablets.storage.claim,
                advertise: spec.tablets.advertise.as_deref(),
                service: &spec.tablets.service,
                pod: &spec.tablets.pod,
            },
        }
    }

    /// What a server of the role needs of its node.
    pub(crate) fn needs(self, spec: &Spec) -> Needs {
        match self {
            Self::Master => spec.master.needs(),
            Self::Oracle => spec.oracle.needs(),
            Self::Tablet => spec.tablets.needs(),
        }
    }
}

/// The ConfigMaps with the registers of a role: first that of the leadership, then that of the masters' state. Empty for a role
/// without a leader.
pub(crate) fn registers(cluster: &str, role: Role) -> Vec<String> {
    let leadership = register(cluster, role);
    match role {
        Role::Master => {
            let state = format!("{leadership}-state");
            vec![leadership, state]
        }
        Role::Oracle => vec![leadership],
        Role::Tablet => Vec::new(),
    }
}

/// The ConfigMap with the leadership of the role, which the servers' argument names.
pub(crate) fn register(cluster: &str, role: Role) -> String {
    format!("{}-register", role.set(cluster))
}

/// The addresses of a cluster's masters, for `--master`. First the service, whose address outlives pods: DNS caches a pod's address
/// for half a minute. Then the pods, because the service leaves out pods that aren't ready. If there may be several, it has the
/// addresses of the largest number of them, so that a change of the number restarts no pod.
pub(crate) fn masters(cluster: &str, namespace: &str, has_register: bool) -> String {
    let set = Role::Master.set(cluster);
    let count = if has_register { MASTERS_MAX } else { 1 };
    let address = |ordinal| format!("{set}-{ordinal}.{set}.{namespace}.svc:{PORT}");
    let service = format!("{cluster}.{namespace}.svc:{PORT}");
    let all = std::iter::once(service).chain((0..count).map(address));
    all.collect::<Vec<_>>().join(",")
}

/// The label of registers, which the watch leaves out: they change every second.
pub(crate) const REGISTER_LABEL: &str = "percolator.dev/register";

/// A role's part of a spec.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoleSpec<'a> {
    /// The field below `spec`.
    pub(crate) path: &'static str,
    pub(crate) replicas: u32,
    /// The volumes' size and class.
    pub(crate) size: Quantity,
    pub(crate) class: Option<&'a str>,
    pub(crate) claim: &'a Claim,
    /// The address at which clients reach its servers, if it isn't their pods'.
    pub(crate) advertise: Option<&'a str>,
    pub(crate) service: &'a Service,
    pub(crate) pod: &'a Pod,
}

/// The name of a server's claim.
pub(crate) fn claim(cluster: &str, role: Role, ordinal: u32) -> String {
    format!("{CLAIM}-{}-{ordinal}", role.set(cluster))
}

/// The operator's own label with the cluster's name: others may use the generic labels for other objects.
pub(crate) const CLUSTER_LABEL: &str = "percolator.dev/cluster";
/// The operator's own label with the component ([`Role::component`]).
pub(crate) const COMPONENT_LABEL: &str = "percolator.dev/component";

/// The component of proxies, in labels and in names after the cluster's.
pub(crate) const PROXY: &str = "proxy";

/// The Deployment of the proxies, and the service at which sessions begin.
pub(crate) fn proxies(cluster: &str) -> String {
    format!("{cluster}-{PROXY}")
}

/// The component of an observer's workers, in labels and in names after the cluster's.
pub(crate) fn observer(name: &str) -> String {
    format!("observer-{name}")
}

/// The headless service of a Deployment's pods.
pub(crate) fn pods_of(deployment: &str) -> String {
    format!("{deployment}-pods")
}

/// A Deployment, and the objects that are made with it.
pub(crate) fn of_deployment(deployment: &str) -> [(Kind, String); 4] {
    [
        (Kind::Service, deployment.to_owned()),
        (Kind::Service, pods_of(deployment)),
        (Kind::PodDisruptionBudget, deployment.to_owned()),
        (Kind::Deployment, deployment.to_owned()),
    ]
}

/// Labels that every object of the cluster has.
pub(crate) fn labels(cluster: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "percolator",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/part-of": "percolator",
        "app.kubernetes.io/managed-by": MANAGER,
        CLUSTER_LABEL: cluster,
    })
}

/// Labels of a role's objects.
pub(crate) fn role_labels(cluster: &str, role: Role) -> Value {
    component_labels(cluster, role.component())
}

/// Labels of the objects of a component.
pub(crate) fn component_labels(cluster: &str, component: &str) -> Value {
    let mut labels = labels(cluster);
    labels["app.kubernetes.io/component"] = json!(component);
    labels[COMPONENT_LABEL] = json!(component);
    labels
}

/// Selects all pods of the cluster. Only the operator's own labels select: an application of the same release that also
/// sets the generic labels must not get the cluster's traffic, nor count in its budgets. Never changed, as StatefulSets
/// can't change theirs.
pub(crate) fn selector(cluster: &str) -> Value {
    json!({CLUSTER_LABEL: cluster})
}

/// Selects the pods of a role.
pub(crate) fn role_selector(cluster: &str, role: Role) -> Value {
    component_selector(cluster, role.component())
}

/// Selects the pods of a component.
pub(crate) fn component_selector(cluster: &str, component: &str) -> Value {
    let mut selector = selector(cluster);
    selector[COMPONENT_LABEL] = json!(component);
    selector
}

/// A selector as text, for requests and for the scale subresource.
pub(crate) fn selector_text(selector: &Value) -> String {
    let labels = selector.as_object().into_iter().flatten();
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    labels.join(",")
}
