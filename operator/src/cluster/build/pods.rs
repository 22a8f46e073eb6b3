//! StatefulSets and their pods. What stands in a pod's template restarts pods when it changes: the golden files
//! in `testdata` show every such change in review, and it makes a new revision (`super::super::revisions`).

use percolator_api::{ClaimRetention, Needs, Pod, merge};
use serde_json::{Value, json};

use super::super::names::{self, CLAIM, METRICS_PORT, PORT, Role, RoleSpec};
use super::super::object::{Kind, Object};
use super::super::observed::{Observed, SIZE_ASKED};
use super::super::registers::REGISTER;
use super::super::revisions;
use super::{Builder, LOG_LEVEL, MANIFEST, NEW_CLUSTER, with};

/// The user and group of servers: no user of a node has this number.
const USER: u32 = 65532;
const DATA: &str = "/data";
/// The folder with the settings that servers read again without a restart, and the volume's name.
const CONFIG: &str = "/config";
const CONFIG_VOLUME: &str = "config";
/// The variable with the pod's address.
pub(super) const POD_IP: &str = "POD_IP";
/// Servers end within a second of SIGTERM, or of the move of their last tablet; the rest is for disks that hang.
pub(super) const GRACE_SECONDS: u64 = 30;
/// How long a server may take until it is healthy, as an oracle whose master is away. A tablet server that recovers much data is
/// healthy meanwhile, and not ready.
const STARTUP_SECONDS: u32 = 600;

/// The parts of a pod that differ from role to role, besides those of the spec.
pub(super) struct PodParts<'a> {
    pub(super) component: &'a str,
    pub(super) pod: &'a Pod,
    pub(super) account: String,
    pub(super) has_token: bool,
    pub(super) grace_seconds: u64,
    pub(super) container: Value,
    /// The containers that end before it starts.
    pub(super) init_containers: Vec<Value>,
    /// Volumes beside the configuration's.
    pub(super) volumes: Vec<Value>,
    /// The keys of the configuration that it has as files.
    pub(super) followed: &'a [&'a str],
    /// Whether its role's pods are spread over zones and nodes.
    pub(super) is_spread: bool,
}

/// The parts of a server's container that differ from role to role.
pub(super) struct ContainerParts<'a> {
    pub(super) component: &'a str,
    pub(super) pod: &'a Pod,
    pub(super) needs: Needs,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<Value>,
    pub(super) mounts: Value,
}

impl Builder<'_> {
    pub(super) fn stateful_set(&self, role: Role, observed: &Observed) -> Object {
        let spec = &self.cluster.spec;
        let asked = role.asked(spec);
        let claim = observed
            .frozen_claim(self.name, role, &asked)
            .unwrap_or_else(|| self.claim(role, &asked));
        self.object(
            Kind::StatefulSet,
            &role.set(self.name),
            names::role_labels(self.name, role),
            json!({"metadata": {"annotations": {SIZE_ASKED: asked.size.to_string()}}, "spec": {
                "serviceName": role.set(self.name),
                "replicas": self.plan(role).replicas,
                // A pod that can't start must not keep others from starting, nor a better template from it.
                "podManagementPolicy": "Parallel",
                "updateStrategy": {"type": "RollingUpdate"},
                "revisionHistoryLimit": 3,
                "persistentVolumeClaimRetentionPolicy": {
                    "whenDeleted": spec.claims.when_deleted.name(),
                    // It may be all there is of some rows: scaling a set by hand loses nothing. The
                    // operator deletes those of drained servers itself.
                    "whenScaled": ClaimRetention::Retain.name(),
                },
                "selector": {"matchLabels": names::role_selector(self.name, role)},
                "template": self.template(role),
                "volumeClaimTemplates": [claim],
            }}),
        )
    }

    /// Pods that keep nothing; `spec` is what differs from others.
    pub(super) fn deployment(
        &self,
        component: &str,
        replicas: Option<u32>,
        mut spec: Value,
    ) -> Object {
        spec["revisionHistoryLimit"] = json!(3);
        spec["selector"]["matchLabels"] = names::component_selector(self.name, component);
        // Without it the field is others' to set, as an autoscaler's.
        if let Some(replicas) = replicas {
            spec["replicas"] = json!(replicas);
        }
        self.object(
            Kind::Deployment,
            &format!("{}-{component}", self.name),
            names::component_labels(self.name, component),
            json!({ "spec": spec }),
        )
    }

    fn template(&self, role: Role) -> Value {
        self.pod_template(PodParts {
            component: role.component(),
            pod: role.asked(&self.cluster.spec).pod,
            account: self.account(role),
            // For the register alone.
            has_token: self.has_register(role),
            grace_seconds: self.grace_seconds(role),
            container: self.container(role),
            init_containers: Vec::new(),
            volumes: Vec::new(),
            followed: Self::followed(role),
            is_spread: role == Role::Tablet || self.has_register(role),
        })
    }

    pub(super) fn pod_template(&self, parts: PodParts<'_>) -> Value {
        let pod = parts.pod;
        let labels = names::component_labels(self.name, parts.component);
        let labels = with(labels, &pod.labels);
        let followed = parts.followed.iter();
        let followed: Value = followed
            .map(|key| json!({"key": key, "path": key}))
            .collect();
        let mut volumes = vec![json!({
            "name": CONFIG_VOLUME,
            "configMap": {"name": self.name, "items": followed},
        })];
        volumes.extend(parts.volumes);
        let mut template = json!({
            "metadata": {"labels": labels},
            "spec": {
                "serviceAccountName": parts.account,
                "automountServiceAccountToken": parts.has_token,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": parts.grace_seconds,
                "securityContext": self.security_context(pod),
                "containers": [parts.container],
                "volumes": volumes,
            },
        });
        if !parts.init_containers.is_empty() {
            template["spec"]["initContainers"] = json!(parts.init_containers);
        }
        if !pod.annotations.is_empty() {
            template["metadata"]["annotations"] = json!(pod.annotations);
        }
        let spec = &mut template["spec"];
        let secrets = &self.cluster.spec.image_pull_secrets;
        if !secrets.is_empty() {
            spec["imagePullSecrets"] = json!(secrets);
        }
        if !pod.node_selector.is_empty() {
            spec["nodeSelector"] = json!(pod.node_selector);
        }
        if let Some(affinity) = &pod.affinity {
            spec["affinity"] = json!(affinity);
        }
        if !pod.tolerations.is_empty() {
            spec["tolerations"] = json!(pod.tolerations);
        }
        if let Some(class) = &pod.priority_class_name {
            spec["priorityClassName"] = json!(class);
        }
        match &pod.topology_spread_constraints {
            Some(constraints) if constraints.is_empty() => {}
            Some(constraints) => spec["topologySpreadConstraints"] = json!(constraints),
            None if parts.is_spread => {
                spec["topologySpreadConstraints"] = self.spread(parts.component);
            }
            None => {}
        }
        if let Some(patch) = &pod.spec_patch {
            merge(&mut template["spec"], &json!(patch));
        }
        template
    }

    fn grace_seconds(&self, role: Role) -> u64 {
        let drain = self.cluster.spec.tablets.drain_on_stop;
        GRACE_SECONDS
            + if self.drains_on_stop(role) {
                drain.as_millis().div_ceil(1_000)
            } else {
                0
            }
    }

    fn drains_on_stop(&self, role: Role) -> bool {
        role == Role::Tablet && self.revision >= revisions::DRAIN_ON_STOP
    }

    /// The keys of the configuration that a server follows, as files. Nothing else: what changes there, changes the
    /// files of every pod that has it.
    fn followed(role: Role) -> &'static [&'static str] {
        match role {
            Role::Master => &[LOG_LEVEL, MANIFEST],
            Role::Oracle | Role::Tablet => &[LOG_LEVEL],
        }
    }

    /// Over zones, and within them over nodes. As evenly as can be: a server on a crowded node is better than
    /// none.
    fn spread(&self, component: &str) -> Value {
        let over = |key: &str| {
            json!({
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names::component_selector(self.name, component)},
            })
        };
        json!([
            over("topology.kubernetes.io/zone"),
            over("kubernetes.io/hostname")
        ])
    }

    fn security_context(&self, pod: &Pod) -> Value {
        match &pod.security_context {
            Some(context) => json!(context),
            None => json!({
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                // A volume with much data is not walked through at each start.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            }),
        }
    }

    fn container_security_context(pod: &Pod) -> Value {
        match &pod.container_security_context {
            Some(context) => json!(context),
            None => json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            }),
        }
    }

    fn container(&self, role: Role) -> Value {
        let spec = &self.cluster.spec;
        self.server_container(ContainerParts {
            component: role.component(),
            pod: role.asked(spec).pod,
            needs: role.needs(spec),
            arguments: self.arguments(role),
            environment: self.environment(role),
            mounts: json!([
                {"name": CLAIM, "mountPath": DATA},
                Self::config_mount(),
            ]),
        })
    }

    /// The mount of the configuration.
    pub(super) fn config_mount() -> Value {
        json!({"name": CONFIG_VOLUME, "mountPath": CONFIG, "readOnly": true})
    }

    /// Has a container probed where it shows metrics.
    pub(super) fn probe_by_http(container: &mut Value) {
        for (probe, path) in [
            ("startupProbe", "/healthz"),
            ("readinessProbe", "/readyz"),
            ("livenessProbe", "/healthz"),
        ] {
            let by_http = json!({"port": METRICS_PORT, "path": path});
            if let Some(probe) = container[probe].as_object_mut() {
                probe.remove("grpc");
                probe.insert("httpGet".into(), by_http);
            }
        }
    }

    pub(super) fn server_container(&self, parts: ContainerParts<'_>) -> Value {
        let (spec, pod) = (&self.cluster.spec, parts.pod);
        let image = spec.image.as_deref().unwrap_or(self.default_image);
        let probe = |period: u32, failures: u32| {
            json!({
                "grpc": {"port": PORT},
                "periodSeconds": period,
                "timeoutSeconds": 3,
                "failureThreshold": failures,
            })
        };
        let mut container = json!({
            "name": parts.component,
            "image": image,
            "command": [format!("/usr/local/bin/percolator-{}", parts.component)],
            "args": parts.arguments,
            "env": parts.environment,
            "ports": [
                {"name": "grpc", "containerPort": PORT, "protocol": "TCP"},
                {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
            ],
            "startupProbe": probe(1, STARTUP_SECONDS),
            "readinessProbe": probe(2, 2),
            "livenessProbe": probe(10, 6),
            // The error of a server that exits is in the pod's status.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": Self::container_security_context(pod),
            "volumeMounts": parts.mounts,
        });
        // A server that has lost rows isn't ready, and is no better for being started again.
        container["readinessProbe"]["grpc"]["service"] = json!("ready");
        if let Some(policy) = spec.image_pull_policy {
            container["imagePullPolicy"] = json!(policy.name());
        }
        let resources = pod.resources.completed(&parts.needs);
        for (field, amounts) in [
            ("requests", &resources.requests),
            ("limits", &resources.limits),
        ] {
            if !amounts.is_empty() {
                container["resources"][field] = json!(amounts);
            }
        }
        container
    }

    /// Whether servers of this role report their addresses. A single master doesn't, because no client is redirected to it.
    fn is_advertised(&self, role: Role) -> bool {
        role != Role::Master || self.has_register(role)
    }

    fn arguments(&self, role: Role) -> Vec<String> {
        let spec = &self.cluster.spec;
        let mut arguments = vec![
            format!("--data-dir={DATA}/server"),
            // Every address of whatever families the pod has.
            format!("--listen=[::]:{PORT}"),
            format!("--metrics-listen=[::]:{METRICS_PORT}"),
            "--server=$(POD_NAME)".to_owned(),
        ];
        if self.is_advertised(role) {
            // Names are remembered for half a minute, and nobody can wait for that when a pod was replaced.
            // The server adds the port: before one, an IPv6 address needs brackets, which can't be written here.
            let of_pod = || format!("$({POD_IP})");
            let asked = role.asked(spec).advertise;
            let asked = asked.map(|it| it.replace("{pod}", "$(POD_NAME)"));
            arguments.push(format!("--advertise={}", asked.unwrap_or_else(of_pod)));
        }
        if role != Role::Master {
            let has_register = self.has_register(Role::Master);
            let masters = names::masters(self.name, self.namespace, has_register);
            arguments.push(format!("--master={masters}"));
        }
        match role {
            Role::Master => arguments.push(format!("--manifest={CONFIG}/{MANIFEST}")),
            Role::Oracle => arguments.extend(spec.oracle.to_args()),
            Role::Tablet => {
                arguments.extend(spec.tablets.to_args());
                let drain = spec.tablets.drain_on_stop.as_millis();
                if self.drains_on_stop(role) {
                    arguments.push(format!("--drain-on-stop={drain}ms"));
                }
            }
        }
        if self.has_register(role) {
            let register = names::register(self.name, role);
            arguments.push(format!("{REGISTER}kube:{register}"));
        }
        arguments
    }

    fn environment(&self, role: Role) -> Vec<Value> {
        let mut variables = self.variables(self.is_advertised(role));
        if role == Role::Master {
            variables.push(json!({
                "name": "PERCOLATOR_MASTER_NEW_CLUSTER",
                "valueFrom": {"configMapKeyRef": {"name": self.name, "key": NEW_CLUSTER}},
            }));
        }
        let pod = role.asked(&self.cluster.spec).pod;
        variables.extend(pod.env.iter().map(|variable| json!(variable)));
        variables
    }

    /// Those of every server, and the pod's address if it is needed.
    pub(super) fn variables(&self, is_advertised: bool) -> Vec<Value> {
        let log = &self.cluster.spec.log;
        let mut variables = vec![
            json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
            json!({"name": "PERCOLATOR_LOG_LEVEL_FILE", "value": format!("{CONFIG}/{LOG_LEVEL}")}),
            json!({"name": "PERCOLATOR_LOG_FORMAT", "value": log.format.name()}),
        ];
        if is_advertised {
            let field = json!({"fieldRef": {"fieldPath": "status.podIP"}});
            variables.push(json!({"name": POD_IP, "valueFrom": field}));
        }
        variables
    }

    fn claim(&self, role: Role, asked: &RoleSpec<'_>) -> Value {
        let labels = with(names::role_labels(self.name, role), &asked.claim.labels);
        let mut metadata = json!({"name": CLAIM, "labels": labels});
        if !asked.claim.annotations.is_empty() {
            metadata["annotations"] = json!(asked.claim.annotations);
        }
        let mut spec = json!({
            "accessModes": [asked.claim.access_mode.name()],
            "resources": {"requests": {"storage": asked.size.to_string()}},
        });
        if let Some(class) = asked.class {
            spec["storageClassName"] = json!(class);
        }
        if let Some(class) = &asked.claim.volume_attributes_class_name {
            spec["volumeAttributesClassName"] = json!(class);
        }
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": spec,
        })
    }
}
