//! Validates a manifest's values, beyond their types.

mod clients;
mod rules;

use std::collections::BTreeMap;
use std::fmt;

use crate::{Needs, PercolatorCluster, Pod, ServiceType, Spec};

/// A problem of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, from the top: `spec.tablets.replicas`. Empty: the whole manifest.
    pub path: String,
    /// Its line in the manifest, counted from 1; none without a text.
    pub line: Option<u64>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Pods and their controllers add up to 22 letters to a cluster's name, and a host's name may
/// have 63.
const NAME_LEN_MAX: usize = 40;
const LABEL_LEN_MAX: usize = 63;
const LABEL_PREFIX_LEN_MAX: usize = 253;
/// The operator's own labels, and those that it may have one day: it finds pods by them.
const RESERVED_PREFIXES: [&str; 2] = ["app.kubernetes.io/", OWN_PREFIX];
const OWN_PREFIX: &str = "percolator.dev/";
/// The labels of all of the operator's objects.
const OWN_LABELS: [&str; 4] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/managed-by",
];
/// The operator's own variables.
const RESERVED_VARIABLES: &str = "PERCOLATOR_";
const PROXY_POD: &str = "spec.proxy.pod";
/// Variables there that are no field: the bounds of a proxy.
const PROXY_BOUNDS: [&str; 7] = [
    "PERCOLATOR_PROXY_BYTES_MAX",
    "PERCOLATOR_PROXY_CALLS_MAX",
    "PERCOLATOR_PROXY_CONNECTIONS_MAX",
    "PERCOLATOR_PROXY_SCANS_MAX",
    "PERCOLATOR_PROXY_SESSIONS_MAX",
    "PERCOLATOR_PROXY_SESSION_BYTES_MAX",
    "PERCOLATOR_PROXY_TRANSIT_BYTES_MAX",
];
const OWN_VARIABLES: [&str; 2] = ["POD_IP", "POD_NAME"];

impl PercolatorCluster {
    /// All problems of the resource; empty if it is valid. They have paths, and no lines.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        self.check_metadata(&mut problems);
        self.spec.check(&mut problems);
        problems.found
    }

    fn check_metadata(&self, problems: &mut Problems) {
        let name = |max: usize| {
            format!(
                "must be 1 to {max} of a-z, 0-9 and '-', starting and ending with a letter or digit"
            )
        };
        let metadata = &self.metadata;
        if !is_host_name(&metadata.name, NAME_LEN_MAX) {
            problems.add(
                "metadata.name",
                format!("{:?} {}", metadata.name, name(NAME_LEN_MAX)),
            );
        }
        if let Some(namespace) = &metadata.namespace
            && !is_host_name(namespace, LABEL_LEN_MAX)
        {
            problems.add(
                "metadata.namespace",
                format!("{namespace:?} {}", name(LABEL_LEN_MAX)),
            );
        }
        for (key, value) in &metadata.labels {
            check_key("labels", key, problems);
            if !value.is_empty() && !is_label(value) {
                problems.add(
                    format!("metadata.labels.{key}"),
                    format!("{value:?} {LABEL_RULE}, or be empty"),
                );
            }
        }
        for key in metadata.annotations.keys() {
            check_key("annotations", key, problems);
        }
    }
}

impl Spec {
    /// All problems of the spec; empty if it is valid. Paths begin with `spec.`, and there are no lines.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        self.check(&mut problems);
        problems.found
    }

    fn check(&self, problems: &mut Problems) {
        self.check_image(problems);
        rules::check(self, problems);
        if let Some(defaults) = &self.pod_defaults {
            let path = "spec.podDefaults";
            check_patch(path, defaults, None, problems);
            check_pod(path, defaults, problems);
        }
        let cache = self.tablets.storage.cache_size;
        let tablets = format!("a tablet server with a cache of {cache}");
        for (role, pod, needs, who, container) in [
            (
                "oracle",
                &self.oracle.pod,
                self.oracle.needs(),
                "an oracle",
                "tso",
            ),
            (
                "tablets",
                &self.tablets.pod,
                self.tablets.needs(),
                &*tablets,
                "tablet",
            ),
            (
                "master",
                &self.master.pod,
                self.master.needs(),
                "a master",
                "master",
            ),
        ] {
            let path = format!("spec.{role}.pod");
            check_patch(&path, pod, Some(container), problems);
            check_pod(&path, pod, problems);
            self.check_needs(&path, pod, &needs, who, problems);
        }
        if let Some(proxy) = &self.proxy {
            clients::check_proxy(proxy, problems);
            let needs = proxy.needs();
            self.check_needs("spec.proxy.pod", &proxy.pod, &needs, "a proxy", problems);
        }
        let names = self.observers.iter().map(|it| it.name.as_str());
        check_names("spec.observers", "name", names, problems);
        for (observer, index) in self.observers.iter().zip(0_usize..) {
            let path = format!("spec.observers[{index}]");
            clients::check_observer(&path, observer, problems);
            let needs = observer.needs();
            self.check_needs(&path, &observer.pod(), &needs, "a worker", problems);
        }
        self.check_access(problems);
        self.check_own_labels(problems);
    }

    /// Checks the resources of the pod alone, or else of the pod with `podDefaults`.
    fn check_needs(
        &self,
        path: &str,
        pod: &Pod,
        needs: &Needs,
        who: &str,
        problems: &mut Problems,
    ) {
        let of_pod = pod.resources.contradictions(needs, who);
        if let Some(defaults) = &self.pod_defaults
            && of_pod.is_empty()
        {
            let whole = pod.over(defaults).resources;
            for (field, message) in whole.contradictions(needs, who) {
                let message = format!("{message} (together with {path})");
                problems.add(format!("spec.podDefaults.resources.{field}"), message);
            }
        }
        for (field, message) in of_pod {
            problems.add(format!("{path}.resources.{field}"), message);
        }
    }

    fn check_access(&self, problems: &mut Problems) {
        let of_proxies = self
            .proxy
            .as_ref()
            .map(|it| ("spec.proxy.service", &it.service));
        for (path, service) in [Some(("spec.service", &self.service)), of_proxies]
            .into_iter()
            .flatten()
        {
            if service.load_balancer_class.is_some() && service.kind != ServiceType::LoadBalancer {
                problems.add(
                    format!("{path}.loadBalancerClass"),
                    format!("is for the type LoadBalancer alone: leave it out, or set {path}.type"),
                );
            }
        }
        for (role, advertise) in [
            ("oracle", &self.oracle.advertise),
            ("tablets", &self.tablets.advertise),
            ("master", &self.master.advertise),
        ] {
            if let Some(advertise) = advertise.as_ref().filter(|it| !is_advertised(it)) {
                problems.add(
                    format!("spec.{role}.advertise"),
                    format!(
                        "{advertise:?} must be HOST:PORT, with {{pod}} in HOST in place of the pod's name, such as \
                         {{pod}}.db.example.com:7400"
                    ),
                );
            }
        }
    }

    fn check_image(&self, problems: &mut Problems) {
        if let Some(image) = &self.image
            && (image.is_empty() || image.contains(char::is_whitespace))
        {
            problems.add(
                "spec.image",
                format!("{image:?} must be an image's name without blanks, or be left out"),
            );
        }
        let digest = self.image.iter().find_map(|image| image.split_once('@'));
        if let Some((name, digest)) = digest
            && (name.is_empty() || !is_digest(digest))
        {
            problems.add(
                "spec.image",
                format!("{digest:?} is no digest: write NAME@sha256: and 64 of 0-9 and a-f"),
            );
        }
        let secrets = self.image_pull_secrets.iter();
        let secrets = secrets.map(|secret| secret.name.as_str());
        check_names("spec.imagePullSecrets", "name", secrets, problems);
    }

    fn check_own_labels(&self, problems: &mut Problems) {
        let monitoring = &self.monitoring;
        for (path, labels) in [
            ("service", &self.service.labels),
            ("oracle.storage.claim", &self.oracle.storage.claim.labels),
            ("tablets.storage.claim", &self.tablets.storage.claim.labels),
            ("master.storage.claim", &self.master.storage.claim.labels),
            ("oracle.service", &self.oracle.service.labels),
            ("tablets.service", &self.tablets.service.labels),
            ("master.service", &self.master.service.labels),
            ("monitoring.podMonitor", &monitoring.pod_monitor.labels),
            (
                "monitoring.prometheusRule",
                &monitoring.prometheus_rule.labels,
            ),
        ] {
            let is_of_role = path.ends_with(".service");
            let own = |key: &str| {
                OWN_LABELS.contains(&key)
                    || key.starts_with(OWN_PREFIX)
                    || (path.ends_with(".claim") && key.starts_with(RESERVED_PREFIXES[0]))
                    || (is_of_role && key == "app.kubernetes.io/component")
            };
            check_labels(&format!("spec.{path}"), labels, own, problems);
        }
    }
}

/// Refuses labels that the operator marks its objects with.
fn check_labels(
    path: &str,
    labels: &BTreeMap<String, String>,
    own: impl Fn(&str) -> bool,
    problems: &mut Problems,
) {
    for key in labels.keys().filter(|key| own(key)) {
        problems.add(
            format!("{path}.labels.{key}"),
            "is the operator's own: choose another one".into(),
        );
    }
}

fn check_patch(path: &str, pod: &Pod, container: Option<&str>, problems: &mut Problems) {
    for (field, message) in pod.spec_patch.iter().flat_map(|it| it.problems(container)) {
        let dot = if field.is_empty() { "" } else { "." };
        problems.add(format!("{path}.specPatch{dot}{field}"), message);
    }
}

fn check_pod(path: &str, pod: &Pod, problems: &mut Problems) {
    for (field, amounts) in [
        ("requests", &pod.resources.requests),
        ("limits", &pod.resources.limits),
    ] {
        for (name, amount) in amounts {
            if !amount.is_valid() {
                problems.add(
                    format!("{path}.resources.{field}.{name}"),
                    format!(
                        "\"{amount}\" is not an amount: write a number, if need be with m (a thousandth) or \
                         one of Ki Mi Gi Ti k M G T, such as \"500m\" or \"1Gi\""
                    ),
                );
            }
        }
    }
    let is_reserved = |key: &str| {
        RESERVED_PREFIXES
            .iter()
            .any(|prefix| key.starts_with(prefix))
    };
    check_labels(path, &pod.labels, is_reserved, problems);
    let variables = pod.env.iter().map(|variable| variable.name.as_str());
    check_names(&format!("{path}.env"), "name", variables, problems);
    let constraints = pod.topology_spread_constraints.iter().flatten();
    let constraints: Vec<String> = constraints
        .map(|one| format!("{}, {}", one.topology_key, one.when_unsatisfiable))
        .collect();
    check_names(
        &format!("{path}.topologySpreadConstraints"),
        "topologyKey, whenUnsatisfiable",
        constraints.iter().map(String::as_str),
        problems,
    );
    for (variable, index) in pod.env.iter().zip(0..) {
        let name = variable.name.as_str();
        let is_bound = path == PROXY_POD && PROXY_BOUNDS.contains(&name);
        let is_reserved = name.starts_with(RESERVED_VARIABLES) && !is_bound;
        if OWN_VARIABLES.contains(&name) || is_reserved {
            problems.add(
                format!("{path}.env[{index}].name"),
                format!(
                    "{:?} is the operator's own: the spec has fields for the servers' settings",
                    variable.name
                ),
            );
        }
    }
}

/// Kubernetes identifies the elements of some lists by their names, and refuses a second one of a name.
fn check_names<'a>(
    path: &str,
    field: &str,
    names: impl Iterator<Item = &'a str>,
    problems: &mut Problems,
) {
    let mut seen = BTreeMap::new();
    for (name, index) in names.zip(0_usize..) {
        if let Some(first) = seen.get(name) {
            problems.add(
                format!("{path}[{index}]"),
                format!("{field} {name:?} is that of [{first}], too: leave one of them out"),
            );
        }
        seen.entry(name).or_insert(index);
    }
}

/// Whether this gives each pod of a role an address.
fn is_advertised(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let name = host.replace("{pod}", "pod-0");
    host.contains("{pod}")
        && name
            .split('.')
            .all(|part| is_host_name(part, LABEL_LEN_MAX))
        && port.parse::<u16>().is_ok_and(|port| port != 0)
}

fn is_digest(text: &str) -> bool {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.strip_prefix("sha256:")
        .is_some_and(|digits| digits.len() == 64 && digits.bytes().all(is_hex))
}

#[derive(Default)]
struct Problems {
    found: Vec<Problem>,
}

impl Problems {
    fn add(&mut self, path: impl Into<String>, message: String) {
        self.found.push(Problem {
            path: path.into(),
            line: None,
            message,
        });
    }
}

const LABEL_RULE: &str = "must be at most 63 of letters, digits, '-', '_' and '.', starting and \
                          ending with a letter or digit";

fn check_key(field: &str, key: &str, problems: &mut Problems) {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let path = || format!("metadata.{field}.{key}");
    if !is_label(name) {
        problems.add(path(), format!("the key's name {name:?} {LABEL_RULE}"));
    }
    if let Some(prefix) = prefix
        && !(prefix.len() <= LABEL_PREFIX_LEN_MAX
            && prefix
                .split('.')
                .all(|part| is_host_name(part, LABEL_LEN_MAX)))
    {
        problems.add(
            path(),
            format!("the key's prefix {prefix:?} must be the name of a domain"),
        );
    }
}

fn is_host_name(text: &str, len_max: usize) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=len_max).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_label(text: &str) -> bool {
    let outer = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= LABEL_LEN_MAX
        && outer(text.bytes().next())
        && outer(text.bytes().last())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
