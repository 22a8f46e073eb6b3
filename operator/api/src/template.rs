//! What a manifest may merge into the pods of a role, beyond the fields that [`Pod`](crate::Pod) has: part of a manifest.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::api::core::v1::PodSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value, json};

/// A part of Kubernetes' own PodSpec, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PodPatch(pub Map<String, Value>);

/// The name by which the reader of manifests knows this type, and gives JSON for it.
pub(crate) const NAME: &str = "PodPatch";

impl<'de> Deserialize<'de> for PodPatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = PodPatch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a group of fields")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<PodPatch, D::Error> {
                Map::deserialize(deserializer).map(PodPatch)
            }

            // The reader of manifests gives JSON.
            fn visit_str<E: de::Error>(self, text: &str) -> Result<PodPatch, E> {
                serde_json::from_str(text).map(PodPatch).map_err(E::custom)
            }
        }
        deserializer.deserialize_newtype_struct(NAME, Visitor)
    }
}

impl JsonSchema for PodPatch {
    fn schema_name() -> Cow<'static, str> {
        NAME.into()
    }

    fn inline_schema() -> bool {
        true
    }

    // The whole of Kubernetes' schema, three times, would make the definition too large to be applied.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    }
}

/// Fields of a pod that the manifest has elsewhere, and where.
const ELSEWHERE: [(&str, &str); 9] = [
    ("affinity", "pod.affinity"),
    ("imagePullSecrets", "spec.imagePullSecrets"),
    ("nodeSelector", "pod.nodeSelector"),
    ("priorityClassName", "pod.priorityClassName"),
    ("securityContext", "pod.securityContext"),
    ("serviceAccount", "pod.serviceAccountName"),
    ("serviceAccountName", "pod.serviceAccountName"),
    ("tolerations", "pod.tolerations"),
    ("topologySpreadConstraints", "pod.topologySpreadConstraints"),
];
/// Fields of a pod that the StatefulSet or the operator decides.
const OWN: [&str; 9] = [
    "activeDeadlineSeconds",
    "automountServiceAccountToken",
    "ephemeralContainers",
    "hostname",
    "hostnameOverride",
    "nodeName",
    "resources",
    "restartPolicy",
    "subdomain",
];
/// Fields of the server's container that the manifest has elsewhere, and where.
const CONTAINER_ELSEWHERE: [(&str, &str); 5] = [
    ("env", "pod.env"),
    ("image", "spec.image"),
    ("imagePullPolicy", "spec.imagePullPolicy"),
    ("resources", "pod.resources"),
    ("securityContext", "pod.containerSecurityContext"),
];
/// The only fields of the server's container that may be set here.
const CONTAINER_OPEN: [&str; 7] = [
    "envFrom",
    "lifecycle",
    "name",
    "ports",
    "resizePolicy",
    "volumeDevices",
    "volumeMounts",
];
/// The volumes of a server, and where it has them.
const OWN_VOLUMES: [(&str, &str); 2] = [("data", "/data"), ("config", "/config")];
const OWN_PORTS: [(&str, u64); 2] = [("grpc", 7400), ("metrics", 9090)];
/// Where the programs are.
const PROGRAMS: &str = "/usr/local/bin";

impl PodPatch {
    /// Its fields themselves, of a role's pods or of `podDefaults`.
    fn check_fields(&self, is_default: bool, add: &mut impl FnMut(String, String)) {
        if is_default && self.0.contains_key(GRACE) {
            let message = "differs from role to role: write it in the specPatch of a role";
            add(GRACE.into(), message.into());
        }
        for (field, place) in ELSEWHERE {
            if self.0.contains_key(field) {
                let place = match place.strip_prefix("pod.") {
                    Some(field) if is_default => format!("podDefaults.{field}"),
                    _ => place.to_owned(),
                };
                add(
                    field.into(),
                    format!("has a field of its own: write it as {place}"),
                );
            }
        }
        for field in OWN {
            if self.0.contains_key(field) {
                add(field.into(), IS_OWN.into());
            }
        }
    }

    /// What is wrong with it, each with the path below this field. `own` is the name of the server's container; none where it is for
    /// the pods of all.
    pub(crate) fn problems(&self, own: Option<&str>) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut add = |path: String, message: String| found.push((path, message));
        self.check_fields(own.is_none(), &mut add);
        for list in ["containers", "initContainers"] {
            for (container, index) in elements(&self.0, list) {
                let path = format!("{list}[{index}]");
                match container["name"].as_str() {
                    None | Some("") => add(path, "a container needs a name".into()),
                    Some(name) if own == Some(name) && list == "containers" => {
                        check_server(&path, container, &mut add);
                    }
                    Some(name) if own == Some(name) => {
                        add(
                            path,
                            format!("the name {name:?} is that of the server's container"),
                        );
                    }
                    Some(name) if own.is_none() && is_server(name) => add(
                        path,
                        format!(
                            "the name {name:?} is that of a server's container: write it in the specPatch of its role"
                        ),
                    ),
                    Some(name) if container["image"].as_str().is_none_or(str::is_empty) => add(
                        path,
                        match own {
                            Some(own) => format!(
                                "the container {name:?} needs an image: the server's own is called {own:?}"
                            ),
                            None => format!("the container {name:?} needs an image"),
                        },
                    ),
                    Some(_) => {}
                }
            }
        }
        for (volume, index) in elements(&self.0, "volumes") {
            let path = format!("volumes[{index}]");
            match volume["name"].as_str() {
                None | Some("") => add(path, "a volume needs a name".into()),
                Some(name)
                    if OWN_VOLUMES.iter().any(|(own, _)| *own == name)
                        || (own.is_none() && name == SCRATCH) =>
                {
                    add(
                        path,
                        format!("the volume {name:?} is the operator's own: choose another name"),
                    );
                }
                Some(_) => {}
            }
        }
        for (list, key) in [
            ("containers", "name"),
            ("initContainers", "name"),
            ("volumes", "name"),
        ] {
            twice(&self.0, list, key, &mut add);
        }
        self.check_types(&mut add);
        found
    }

    /// Names and types of fields, where the API server knows them.
    fn check_types(&self, add: &mut impl FnMut(String, String)) {
        let written = Value::Object(self.0.clone());
        match PodSpec::deserialize(&written) {
            Err(error) => add(
                String::new(),
                format!("is no part of a pod's spec: {error}"),
            ),
            Ok(read) => unknown("", &written, &json!(read), add),
        }
    }
}

/// Whether a container of this name is a server's, or an observer's.
fn is_server(name: &str) -> bool {
    SERVERS.contains(&name) || name.starts_with("observer-")
}

const SERVERS: [&str; 5] = ["tso", "tablet", "master", "proxy", "observe"];
/// A volume of observers.
const SCRATCH: &str = "scratch";
const GRACE: &str = "terminationGracePeriodSeconds";

const IS_OWN: &str = "is the operator's own: leave it out";

/// The elements of a list, which need not be there, with their numbers.
fn elements<'a>(
    fields: &'a Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = (&'a Value, usize)> {
    let all = fields.get(list).and_then(Value::as_array);
    all.into_iter().flatten().zip(0..)
}

fn check_server(path: &str, container: &Value, add: &mut impl FnMut(String, String)) {
    let Some(fields) = container.as_object() else {
        return;
    };
    for field in fields.keys() {
        let path = format!("{path}.{field}");
        if let Some((_, place)) = CONTAINER_ELSEWHERE.iter().find(|(own, _)| own == field) {
            add(path, format!("has a field of its own: write it as {place}"));
        } else if !CONTAINER_OPEN.contains(&field.as_str()) {
            add(path, IS_OWN.into());
        }
    }
    for (mount, index) in elements(fields, "volumeMounts") {
        let place = mount["mountPath"].as_str().unwrap_or_default();
        let own = OWN_VOLUMES.iter().map(|(_, place)| *place);
        let hides = |own: &str| is_at_or_below(own, place) || is_at_or_below(place, own);
        if let Some(own) = own.chain([PROGRAMS]).find(|own| hides(own)) {
            add(
                format!("{path}.volumeMounts[{index}].mountPath"),
                format!(
                    "{place:?} would hide {own}, which the server needs: choose another folder"
                ),
            );
        }
        let name = mount["name"].as_str().unwrap_or_default();
        if OWN_VOLUMES.iter().any(|(own, _)| *own == name) {
            add(
                format!("{path}.volumeMounts[{index}].name"),
                format!("the volume {name:?} is mounted already"),
            );
        }
    }
    for (port, index) in elements(fields, "ports") {
        let is_own = |(name, number): &(&str, u64)| {
            port["name"] == *name || port["containerPort"] == *number
        };
        if OWN_PORTS.iter().any(is_own) {
            add(
                format!("{path}.ports[{index}]"),
                "a server has the ports grpc, 7400, and metrics, 9090, already".into(),
            );
        }
    }
    twice(
        fields,
        "volumeMounts",
        "mountPath",
        &mut |below, message| {
            add(format!("{path}.{below}"), message);
        },
    );
}

fn is_at_or_below(place: &str, folder: &str) -> bool {
    let (place, folder) = (place.trim_end_matches('/'), folder.trim_end_matches('/'));
    place
        .strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Lists are merged by a key, which no two elements may share.
fn twice(fields: &Map<String, Value>, list: &str, key: &str, add: &mut impl FnMut(String, String)) {
    let mut seen: Vec<&Value> = Vec::new();
    for (element, index) in elements(fields, list) {
        let name = &element[key];
        if !name.is_null() && seen.contains(&name) {
            add(
                format!("{list}[{index}]"),
                format!("{key} {name} stands here twice"),
            );
        }
        seen.push(name);
    }
}

/// Fields that were written and that the type does not have.
fn unknown(path: &str, written: &Value, read: &Value, add: &mut impl FnMut(String, String)) {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            for (field, value) in written {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{field}");
                match read.get(field) {
                    Some(read) => unknown(&path, value, read, add),
                    None if value.is_null() => add(path, "has no value: leave it out".into()),
                    None => add(path, "unknown field of a pod's spec".into()),
                }
            }
        }
        (Value::Array(written), Value::Array(read)) => {
            for ((value, read), index) in written.iter().zip(read).zip(0..) {
                unknown(&format!("{path}[{index}]"), value, read, add);
            }
        }
        _ => {}
    }
}

/// Merges a change into what is there, as Kubernetes' strategic merge does: groups of fields field by field, lists of named
/// elements by their names. Other lists, and values, are replaced.
pub fn merge(base: &mut Value, change: &Value) {
    let (Value::Object(base), Value::Object(change)) = (&mut *base, change) else {
        base.clone_from(change);
        return;
    };
    for (field, value) in change {
        let Some(known) = base.get_mut(field) else {
            base.insert(field.clone(), value.clone());
            continue;
        };
        let key = KEYS.iter().find(|(list, _)| list == field);
        match (key, known, value) {
            (Some((_, key)), Value::Array(known), Value::Array(more)) => {
                for element in more {
                    match known.iter_mut().find(|it| it[*key] == element[*key]) {
                        Some(same) => merge(same, element),
                        None => known.push(element.clone()),
                    }
                }
            }
            (_, known, value) => merge(known, value),
        }
    }
}

/// Lists whose elements are identified by a field: Kubernetes' `patchMergeKey`.
const KEYS: [(&str, &str); 8] = [
    ("containers", "name"),
    ("env", "name"),
    ("hostAliases", "ip"),
    ("initContainers", "name"),
    ("ports", "containerPort"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(patch: Value) -> Vec<String> {
        let patch: PodPatch = serde_json::from_value(patch).expect("an object");
        let found = patch.problems(Some("tablet")).into_iter();
        found
            .map(|(path, message)| format!("{path}: {message}"))
            .collect()
    }

    #[test]
    fn sidecars_volumes_and_what_has_no_field_are_taken() {
        let good = json!({
            "containers": [
                {"name": "tablet", "envFrom": [{"secretRef": {"name": "a"}}], "volumeMounts":
                    [{"name": "certs", "mountPath": "/certs"}]},
                {"name": "proxy", "image": "proxy:1", "resources": {"limits": {"memory": "64Mi"}}},
            ],
            "initContainers": [{"name": "wait", "image": "wait:1", "restartPolicy": "Always"}],
            "volumes": [{"name": "certs", "secret": {"secretName": "certs"}}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
            "runtimeClassName": "gvisor",
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        });
        assert_eq!(problems(good), Vec::<String>::new());
    }

    #[test]
    fn what_a_server_needs_is_refused_in_words() {
        for (patch, said) in [
            (
                json!({"containers": [{"name": "tablet", "image": "x"}]}),
                "containers[0].image: has a field of its own: write it as spec.image",
            ),
            (
                json!({"containers": [{"name": "tablet", "args": []}]}),
                "containers[0].args: is the operator's own: leave it out",
            ),
            (
                json!({"containers": [{"name": "tablet", "livenessProbe": {}}]}),
                "containers[0].livenessProbe: is the operator's own: leave it out",
            ),
            (
                json!({"containers": [{"name": "proxy"}]}),
                "containers[0]: the container \"proxy\" needs an image: the server's own is called \"tablet\"",
            ),
            (
                json!({"containers": [{"image": "a"}]}),
                "containers[0]: a container needs a name",
            ),
            (
                json!({"initContainers": [{"name": "tablet", "image": "a"}]}),
                "initContainers[0]: the name \"tablet\" is that of the server's container",
            ),
            (
                json!({"volumes": [{"name": "data", "emptyDir": {}}]}),
                "volumes[0]: the volume \"data\" is the operator's own: choose another name",
            ),
            (
                json!({"volumes": [{"name": "a"}, {"name": "a"}]}),
                "volumes[1]: name \"a\" stands here twice",
            ),
            (
                json!({"containers": [{"name": "tablet", "volumeMounts": [{"name": "a", "mountPath": "/data/server"}]}]}),
                "containers[0].volumeMounts[0].mountPath: \"/data/server\" would hide /data, which the server needs: choose another folder",
            ),
            (
                json!({"containers": [{"name": "tablet", "volumeMounts": [{"name": "a", "mountPath": "/usr"}]}]}),
                "containers[0].volumeMounts[0].mountPath: \"/usr\" would hide /usr/local/bin, which the server needs: choose another folder",
            ),
            (
                json!({"containers": [{"name": "tablet", "ports": [{"containerPort": 9090}]}]}),
                "containers[0].ports[0]: a server has the ports grpc, 7400, and metrics, 9090, already",
            ),
            (
                json!({"nodeSelector": {"a": "b"}}),
                "nodeSelector: has a field of its own: write it as pod.nodeSelector",
            ),
            (
                json!({"restartPolicy": "Never"}),
                "restartPolicy: is the operator's own: leave it out",
            ),
            (
                json!({"dnsConfg": {}}),
                "dnsConfg: unknown field of a pod's spec",
            ),
            (
                json!({"dnsConfig": {"nameserver": []}}),
                "dnsConfig.nameserver: unknown field of a pod's spec",
            ),
            (
                json!({"runtimeClassName": null}),
                "runtimeClassName: has no value: leave it out",
            ),
        ] {
            assert_eq!(problems(patch), [said]);
        }
        let wrong = problems(json!({"hostNetwork": "yes"}));
        assert!(wrong[0].contains("is no part of a pod's spec"), "{wrong:?}");
    }

    #[test]
    fn named_elements_are_merged_and_other_lists_replaced() {
        let mut base = json!({
            "containers": [{"name": "tablet", "args": ["a"], "volumeMounts": [{"mountPath": "/data", "name": "data"}]}],
            "dnsConfig": {"searches": ["a"], "nameservers": ["b"]},
        });
        let change = json!({
            "containers": [
                {"name": "proxy", "image": "p"},
                {"name": "tablet", "volumeMounts": [{"mountPath": "/certs", "name": "certs"}]},
            ],
            "dnsConfig": {"searches": ["c"]},
            "runtimeClassName": "r",
        });
        merge(&mut base, &change);
        let merged = json!({
            "containers": [
                {"name": "tablet", "args": ["a"], "volumeMounts": [
                    {"mountPath": "/data", "name": "data"}, {"mountPath": "/certs", "name": "certs"},
                ]},
                {"name": "proxy", "image": "p"},
            ],
            "dnsConfig": {"searches": ["c"], "nameservers": ["b"]},
            "runtimeClassName": "r",
        });
        assert_eq!(base, merged);
        let once = base.clone();
        merge(&mut base, &change);
        assert_eq!(base, once);
    }
}
