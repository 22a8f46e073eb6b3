//! The objects that a cluster is made of, as JSON: what is wanted of one, and whether one that is there has it.

use std::hash::Hasher;

use kube::api::ApiResource;
use serde_json::{Value, json};

/// The kinds of objects that the operator makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ServiceAccount,
    ConfigMap,
    Service,
    PodDisruptionBudget,
    StatefulSet,
}

impl Kind {
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::ServiceAccount => ("", "ServiceAccount", "serviceaccounts"),
            Self::ConfigMap => ("", "ConfigMap", "configmaps"),
            Self::Service => ("", "Service", "services"),
            Self::PodDisruptionBudget => ("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
            Self::StatefulSet => ("apps", "StatefulSet", "statefulsets"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.names().1
    }

    pub(crate) fn api(self) -> ApiResource {
        let (group, kind, plural) = self.names();
        let api_version = if group.is_empty() {
            "v1".to_owned()
        } else {
            format!("{group}/v1")
        };
        ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version,
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }
}

/// An object as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// With `apiVersion`, `kind` and `metadata`.
    pub(crate) value: Value,
}

/// Where an object keeps what was last asked of it: a field that isn't asked for any more would not be missed
/// otherwise.
const ASKED: &str = "percolator.dev/asked";

impl Object {
    /// Completes an object with its name, labels and owner, and with a mark of all that is asked for.
    pub(crate) fn new(kind: Kind, name: &str, labels: Value, owner: &Value, body: Value) -> Self {
        let mut value = body;
        value["apiVersion"] = json!(kind.api().api_version);
        value["kind"] = json!(kind.name());
        let metadata = &mut value["metadata"];
        metadata["name"] = json!(name);
        for (key, label) in labels.as_object().into_iter().flatten() {
            metadata["labels"][key] = label.clone();
        }
        metadata["ownerReferences"] = json!([owner]);
        let mark = fingerprint(&value);
        value["metadata"]["annotations"][ASKED] = json!(mark);
        Self {
            kind,
            name: name.to_owned(),
            value,
        }
    }

    /// Whether the object that is there has everything that this one asks for, and was asked for nothing else.
    pub(crate) fn is_met_by(&self, live: &Value) -> bool {
        let wanted = self.value.as_object().into_iter().flatten();
        wanted
            // In lists, objects don't say of what kind they are.
            .filter(|(field, _)| *field != "apiVersion" && *field != "kind")
            .all(|(field, wanted)| {
                live.get(field)
                    .map_or(is_empty(wanted), |live| contains(live, wanted))
            })
    }
}

/// Whether `live` has all of `wanted`: what else is there was filled in by the API server or by others.
fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            // What is empty isn't kept by the API server.
            live.get(key)
                .map_or(is_empty(wanted), |live| contains(live, wanted))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| contains(live, wanted))
        }
        (live, wanted) => live == wanted,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(elements) => elements.is_empty(),
        _ => false,
    }
}

/// A number that stands for the value, the same in every version of the operator (FNV-1a, 64 bits).
pub(crate) fn fingerprint(value: &Value) -> String {
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    // Fields are written in the order of their names.
    hasher.write(value.to_string().as_bytes());
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(body: Value) -> Object {
        let owner = json!({"uid": "u"});
        Object::new(Kind::ConfigMap, "a", json!({"l": "1"}), &owner, body)
    }

    #[test]
    fn what_others_add_is_no_difference() {
        let wanted = object(json!({"data": {"x": "1"}, "list": [{"a": 1}], "none": {}}));
        let mut live = wanted.value.clone();
        live.as_object_mut().unwrap().remove("none");
        live["metadata"]["resourceVersion"] = json!("7");
        live["data"]["y"] = json!("2");
        live["list"][0]["b"] = json!(2);
        assert!(wanted.is_met_by(&live));
    }

    #[test]
    fn what_differs_is_noticed() {
        let wanted = object(json!({"data": {"x": "1"}, "list": [{"a": 1}]}));
        for (path, value) in [
            ("/data/x", json!("2")),
            ("/metadata/labels/l", json!("2")),
            ("/metadata/ownerReferences/0/uid", json!("v")),
            ("/list/0/a", json!(2)),
            ("/list", json!([{"a": 1}, {"a": 1}])),
            ("/data", json!({})),
        ] {
            let mut live = wanted.value.clone();
            *live.pointer_mut(path).expect(path) = value;
            assert!(!wanted.is_met_by(&live), "{path}");
        }
    }

    #[test]
    fn what_is_not_asked_for_any_more_is_noticed() {
        let live = object(json!({"data": {"x": "1", "y": "2"}})).value;
        assert!(!object(json!({"data": {"x": "1"}})).is_met_by(&live));
    }
}
