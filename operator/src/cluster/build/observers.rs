//! The workers of observers: a Deployment each.

use percolator_api::{Observer, Pod};
use serde_json::{Value, json};

use super::super::names::{self, METRICS_PORT, Role};
use super::super::object::Object;
use super::pods::{ContainerParts, GRACE_SECONDS, PodParts};
use super::{Builder, LOG_LEVEL};

/// Where programs may write.
const SCRATCH_VOLUME: &str = "scratch";
/// The command, in the servers' image.
const PROGRAM: &str = "/usr/local/bin/percolator";

impl Builder<'_> {
    pub(super) fn observers(&self) -> Vec<Object> {
        let observers = self.cluster.spec.observers.iter();
        observers.map(|observer| self.observer(observer)).collect()
    }

    fn observer(&self, observer: &Observer) -> Object {
        let component = names::observer(&observer.name);
        let spec = json!({"template": self.observer_template(observer, &component)});
        self.deployment(&component, observer.replicas, spec)
    }

    fn observer_template(&self, observer: &Observer, component: &str) -> Value {
        let pod = self.cluster.spec.pod_of(observer);
        let account = pod.service_account_name.as_deref();
        let container = self.observer_container(observer, &pod, component);
        let observe = self.observe_container(&container, observer);
        self.pod_template(PodParts {
            component,
            pod: &pod,
            account: account.unwrap_or(self.name).to_owned(),
            has_token: false,
            // Runs that are under way may end.
            grace_seconds: GRACE_SECONDS + observer.timeout.as_millis().div_ceil(1_000),
            container,
            init_containers: vec![observe],
            volumes: vec![json!({"name": SCRATCH_VOLUME, "emptyDir": {}})],
            followed: &[LOG_LEVEL],
            is_spread: true,
        })
    }

    fn observer_container(&self, observer: &Observer, pod: &Pod, component: &str) -> Value {
        let mut arguments = self.cluster_arguments();
        arguments.extend(["observe".to_owned(), "run".to_owned()]);
        arguments.push(format!("--metrics-listen=[::]:{METRICS_PORT}"));
        // Kubernetes makes something of `$` in arguments, and a shell is to see it.
        arguments.extend(observer.to_args().iter().map(|it| it.replace('$', "$$")));
        let mut environment = self.variables(false);
        if let Some(webhook) = &observer.webhook {
            let secret = &webhook.key_secret;
            environment.push(json!({
                "name": "PERCOLATOR_WEBHOOK_KEY",
                "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}},
            }));
        }
        environment.extend(pod.env.iter().map(|variable| json!(variable)));
        let mut container = self.server_container(ContainerParts {
            component,
            pod,
            needs: observer.needs(),
            arguments,
            environment,
            mounts: json!([
                Self::config_mount(),
                // Its root can't be written to.
                {"name": SCRATCH_VOLUME, "mountPath": "/tmp"},
            ]),
        });
        let program = match &observer.image {
            Some(image) => {
                container["image"] = json!(image);
                // Wherever that image has it.
                "percolator"
            }
            None => PROGRAM,
        };
        container["command"] = json!([program]);
        container["ports"] =
            json!([{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}]);
        if !observer.env_from.is_empty() {
            container["envFrom"] = json!(observer.env_from);
        }
        Self::probe_by_http(&mut container);
        container
    }

    /// The cluster, for the command.
    fn cluster_arguments(&self) -> Vec<String> {
        let has_register = self.has_register(Role::Master);
        let masters = names::masters(self.name, self.namespace, has_register);
        vec![format!("--cluster={masters}")]
    }

    /// Has the column observed, which is nothing if it is already. It ends with an error as long as there is no such table, and is
    /// run again.
    fn observe_container(&self, container: &Value, observer: &Observer) -> Value {
        let spec = &self.cluster.spec;
        let mut arguments = self.cluster_arguments();
        let observe = ["table", "observe", "--", &observer.table, &observer.column];
        let observe = observe.map(|it| it.replace('$', "$$"));
        arguments.extend(observe);
        let mut made = json!({
            "name": "observe",
            "image": spec.image.as_deref().unwrap_or(self.default_image),
            "command": [PROGRAM],
            "args": arguments,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": container["securityContext"],
            "resources": container["resources"],
        });
        if let Some(policy) = spec.image_pull_policy {
            made["imagePullPolicy"] = json!(policy.name());
        }
        made
    }
}
