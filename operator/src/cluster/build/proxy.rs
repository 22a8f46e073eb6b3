//! The proxies: a Deployment, the service that sessions are begun at, and the one that leads to each pod.

use serde_json::{Value, json};

use percolator_api::{Proxy, ServiceType};

use super::super::names::{self, METRICS_PORT, PORT, PROXY, Role};
use super::super::object::{Kind, Object};
use super::super::revisions;
use super::pods::{ContainerParts, GRACE_SECONDS, POD_IP, PodParts};
use super::{Builder, FAMILIES, LOG_LEVEL, client_service, with};

impl Builder<'_> {
    /// How the proxies are found, and how many may be away at a time.
    pub(super) fn beside_proxies(&self) -> Vec<Object> {
        let Some(proxy) = self.cluster.spec.proxies() else {
            return Vec::new();
        };
        vec![
            self.session_service(proxy),
            self.proxies_service(),
            self.disruption_budget(PROXY),
        ]
    }

    /// A session stays with its proxy: calls of one go to the address that its token names. From outside of the Kubernetes cluster
    /// no pod has an address, so that all connections of a client lead to one proxy there.
    fn session_service(&self, proxy: &Proxy) -> Object {
        let affinity = match proxy.service.kind {
            ServiceType::ClusterIP => "None",
            ServiceType::NodePort | ServiceType::LoadBalancer => "ClientIP",
        };
        let selector = names::component_selector(self.name, PROXY);
        let mut body = client_service(&proxy.service, &selector);
        body["spec"]["sessionAffinity"] = json!(affinity);
        let labels = names::component_labels(self.name, PROXY);
        let labels = with(labels, &proxy.service.labels);
        self.object(Kind::Service, &names::proxies(self.name), labels, body)
    }

    /// Has the address of each proxy: also of one that ends, whose sessions may go on for a while.
    fn proxies_service(&self) -> Object {
        self.object(
            Kind::Service,
            &names::pods_of(&names::proxies(self.name)),
            names::component_labels(self.name, PROXY),
            json!({"spec": {
                "type": "ClusterIP",
                "clusterIP": "None",
                "ipFamilyPolicy": FAMILIES,
                "publishNotReadyAddresses": true,
                "selector": names::component_selector(self.name, PROXY),
                "ports": [
                    {"name": "grpc", "port": PORT, "targetPort": "grpc", "protocol": "TCP"},
                    {"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"},
                ],
            }}),
        )
    }

    pub(super) fn proxies(&self) -> Option<Object> {
        let proxy = self.cluster.spec.proxies()?;
        let spec = json!({
            // One that ends is replaced before: it takes no new sessions.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": self.pod_template(self.proxy_pod(proxy)),
        });
        Some(self.deployment(PROXY, proxy.replicas, spec))
    }

    fn proxy_pod<'a>(&self, proxy: &'a Proxy) -> PodParts<'a> {
        let pod = &proxy.pod;
        let account = pod.service_account_name.as_deref();
        let mut environment = self.variables(true);
        environment.extend(pod.env.iter().map(|variable| json!(variable)));
        let mut container = self.server_container(ContainerParts {
            component: PROXY,
            pod,
            needs: proxy.needs(),
            arguments: self.proxy_arguments(proxy),
            environment,
            mounts: Value::from(vec![Self::config_mount()]),
        });
        if self.revision >= revisions::PROXY_PROBES {
            Self::probe_by_http(&mut container);
        }
        PodParts {
            component: PROXY,
            pod,
            account: account.unwrap_or(self.name).to_owned(),
            has_token: false,
            grace_seconds: GRACE_SECONDS + proxy.grace.as_millis().div_ceil(1_000),
            container,
            init_containers: Vec::new(),
            volumes: Vec::new(),
            followed: &[LOG_LEVEL],
            is_spread: true,
        }
    }

    fn proxy_arguments(&self, proxy: &Proxy) -> Vec<String> {
        let has_register = self.has_register(Role::Master);
        let masters = names::masters(self.name, self.namespace, has_register);
        let mut arguments = vec![
            format!("--listen=[::]:{PORT}"),
            format!("--metrics-listen=[::]:{METRICS_PORT}"),
            "--server=$(POD_NAME)".to_owned(),
            // Tokens name it: clients send a session's calls there.
            format!("--advertise=$({POD_IP})"),
            format!("--master={masters}"),
        ];
        if self.revision >= revisions::PROXY_PEERS {
            let proxies = names::pods_of(&names::proxies(self.name));
            arguments.push(format!("--peers={proxies}.{}.svc:{PORT}", self.namespace));
        }
        arguments.extend(proxy.to_args());
        arguments
    }
}
