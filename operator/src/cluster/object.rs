//! The objects of a cluster, as JSON, and their comparison with those that are there.

use std::hash::Hasher;

use kube::api::ApiResource;
use percolator_api::Amount;
use serde_json::{Map, Value, json};

/// The kinds of objects that the operator makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ServiceAccount,
    ConfigMap,
    Service,
    PodDisruptionBudget,
    Role,
    RoleBinding,
    StatefulSet,
    /// After all objects that belong to one: objects are removed in this order, and a list finds a Deployment that the spec doesn't
    /// name any more.
    Deployment,
    PodMonitor,
    PrometheusRule,
}

/// The group of roles and role bindings.
pub(crate) const RBAC: &str = "rbac.authorization.k8s.io";
/// The group of the Prometheus operator's kinds.
const MONITORING: &str = "monitoring.coreos.com";

impl Kind {
    /// The kinds of the Prometheus operator, whose definitions may be missing.
    pub(crate) const OF_MONITORING: [Self; 2] = [Self::PodMonitor, Self::PrometheusRule];

    pub(crate) fn is_of_monitoring(self) -> bool {
        Self::OF_MONITORING.contains(&self)
    }

    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::ServiceAccount => ("", "ServiceAccount", "serviceaccounts"),
            Self::ConfigMap => ("", "ConfigMap", "configmaps"),
            Self::Service => ("", "Service", "services"),
            Self::PodDisruptionBudget => ("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
            Self::Role => (RBAC, "Role", "roles"),
            Self::RoleBinding => (RBAC, "RoleBinding", "rolebindings"),
            Self::StatefulSet => ("apps", "StatefulSet", "statefulsets"),
            Self::Deployment => ("apps", "Deployment", "deployments"),
            Self::PodMonitor => (MONITORING, "PodMonitor", "podmonitors"),
            Self::PrometheusRule => (MONITORING, "PrometheusRule", "prometheusrules"),
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

/// The annotation with the mark of what was last applied. Without it a field that isn't applied any more would stay.
pub(crate) const ASKED: &str = "percolator.dev/asked";

/// The mark of an object: a text, or null.
pub(crate) fn asked_mark(object: &Value) -> &Value {
    &object["metadata"]["annotations"][ASKED]
}

impl Object {
    /// Completes an object with its name, labels and owner, and with a mark of all that is asked for.
    pub(crate) fn new(kind: Kind, name: &str, labels: Value, owner: &Value, body: Value) -> Self {
        let mut body = body;
        body["metadata"]["ownerReferences"] = json!([owner]);
        Self::unowned(kind, name, labels, body)
    }

    /// The same of an object that outlives the cluster's resource.
    pub(crate) fn unowned(kind: Kind, name: &str, labels: Value, body: Value) -> Self {
        let mut value = body;
        value["apiVersion"] = json!(kind.api().api_version);
        value["kind"] = json!(kind.name());
        let metadata = &mut value["metadata"];
        metadata["name"] = json!(name);
        for (key, label) in labels.as_object().into_iter().flatten() {
            metadata["labels"][key] = label.clone();
        }
        mark(&mut value);
        Self {
            kind,
            name: name.to_owned(),
            value,
        }
    }

    /// Whether the live object has all fields of this one, and was applied with no others.
    pub(crate) fn is_met_by(&self, live: &Value) -> bool {
        self.asked().all(|(field, wanted)| has(live, field, wanted))
    }

    /// The first place at which the live object differs from this one, as `.spec.replicas`.
    pub(crate) fn differs_at(&self, live: &Value) -> Option<String> {
        let (field, wanted) = self
            .asked()
            .find(|(field, wanted)| !has(live, field, wanted))?;
        Some(place(format!(".{field}"), live.get(field), wanted))
    }

    fn asked(&self) -> impl Iterator<Item = (&String, &Value)> {
        let fields = self.value.as_object().into_iter().flatten();
        // In lists, objects don't say of what kind they are.
        fields.filter(|(field, _)| *field != "apiVersion" && *field != "kind")
    }

    /// Whether the live object has all fields of this one, except at these places.
    pub(crate) fn differs_only_at(&self, places: &[&str], live: &Value) -> bool {
        let with = |change: &dyn Fn(&mut Value, &str)| {
            let mut asked = self.clone();
            for place in places {
                change(&mut asked.value, place);
            }
            mark(&mut asked.value);
            asked.is_met_by(live)
        };
        let take = |value: &mut Value, place: &str| {
            if let (Some(own), Some(live)) = (value.pointer_mut(place), live.pointer(place)) {
                own.clone_from(live);
            }
        };
        // What one of the two leaves to others, as a number of replicas, is in what only the other one was asked for.
        let add = |value: &mut Value, place: &str| {
            if let (Some((fields, name)), Some(live)) = (parent(value, place), live.pointer(place))
            {
                fields.insert(name, live.clone());
            }
        };
        let leave_out = |value: &mut Value, place: &str| {
            if let Some((fields, name)) = parent(value, place) {
                fields.remove(&name);
            }
        };
        with(&take) || with(&add) || with(&leave_out)
    }
}

/// The object that has a place, and the field's name in it.
fn parent<'a>(value: &'a mut Value, place: &str) -> Option<(&'a mut Map<String, Value>, String)> {
    let (fields, name) = place.rsplit_once('/')?;
    let fields = value.pointer_mut(fields)?.as_object_mut()?;
    Some((fields, name.replace("~1", "/").replace("~0", "~")))
}

/// Marks an object with the fingerprint of all its fields but the mark. An object without annotations gets the same mark as one that
/// has no annotation but the mark.
fn mark(value: &mut Value) {
    if let Some((metadata, name)) = parent(value, "/metadata/annotations") {
        let annotations = metadata.get_mut(&name).and_then(Value::as_object_mut);
        let is_empty = annotations.is_some_and(|annotations| {
            annotations.remove(ASKED);
            annotations.is_empty()
        });
        if is_empty {
            metadata.remove(&name);
        }
    }
    value["metadata"]["annotations"][ASKED] = json!(fingerprint(value));
}

/// Whether `live` has all of `wanted`: the API server or others have added the rest.
fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(_), Value::Object(fields)) => {
            fields.iter().all(|(key, wanted)| has(live, key, wanted))
        }
        // Kubernetes identifies these elements by it: others may have added some.
        (Value::Array(live), Value::Array(wanted)) if are_named(wanted) => {
            let mut live = live.iter();
            wanted
                .iter()
                .all(|wanted| live.any(|live| contains(live, wanted)))
        }
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

/// Whether there are elements, and each has a name, as variables have, or an id, as owners have.
fn are_named(elements: &[Value]) -> bool {
    let is_named = |element: &Value| element["name"].is_string() || element["uid"].is_string();
    !elements.is_empty() && elements.iter().all(is_named)
}

/// Whether `live` has the wanted value of a field.
fn has(live: &Value, key: &str, wanted: &Value) -> bool {
    // What is empty isn't kept by the API server.
    live.get(key).map_or(is_empty(wanted), |live| {
        contains(live, wanted)
            || match key {
                "limits" | "requests" => are_same_amounts(live, wanted),
                "divisor" => amount(wanted).is_some_and(|it| amount(live) == Some(it)),
                _ => false,
            }
    })
}

/// The first place below `at` at which the live value differs from the wanted one.
fn place(at: String, live: Option<&Value>, wanted: &Value) -> String {
    let Some(live) = live else { return at };
    match (live, wanted) {
        (Value::Object(_), Value::Object(fields)) => {
            match fields.iter().find(|(key, wanted)| !has(live, key, wanted)) {
                Some((key, wanted)) => place(format!("{at}.{key}"), live.get(key), wanted),
                None => at,
            }
        }
        (Value::Array(all), Value::Array(wanted)) if all.len() == wanted.len() => {
            let mut pairs = all.iter().zip(wanted).enumerate();
            match pairs.find(|(_, (live, wanted))| !contains(live, wanted)) {
                Some((index, (live, wanted))) => {
                    place(format!("{at}[{index}]"), Some(live), wanted)
                }
                None => at,
            }
        }
        _ => at,
    }
}

fn amount(value: &Value) -> Option<Amount> {
    value.as_str().map(|text| Amount(text.to_owned()))
}

/// Whether two maps have the same amounts of resources: the API server writes amounts in its own form.
fn are_same_amounts(live: &Value, wanted: &Value) -> bool {
    let (Some(live), Some(wanted)) = (live.as_object(), wanted.as_object()) else {
        return false;
    };
    wanted.iter().all(|(resource, wanted)| {
        let live = live.get(resource);
        live.is_some_and(|live| {
            live == wanted || amount(wanted).is_some_and(|wanted| amount(live) == Some(wanted))
        })
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(elements) => elements.is_empty(),
        _ => false,
    }
}

/// A hash of the value that is the same in every version of the operator (FNV-1a, 64 bits).
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

    /// As an admission webhook does, at the end or between: Kubernetes identifies such elements by their names.
    #[test]
    fn elements_that_others_add_are_no_difference() {
        let wanted = object(json!({"env": [{"name": "A", "value": "1"}, {"name": "B"}]}));
        let mut live = wanted.value.clone();
        live["env"] =
            json!([{"name": "X"}, {"name": "A", "value": "1"}, {"name": "Y"}, {"name": "B"}]);
        let owners = live["metadata"]["ownerReferences"].as_array_mut();
        owners.unwrap().push(json!({"uid": "of another"}));
        assert!(wanted.is_met_by(&live));
        for env in [
            // Variables may refer to those before them.
            json!([{"name": "B"}, {"name": "A", "value": "1"}]),
            json!([{"name": "A", "value": "2"}, {"name": "B"}]),
            json!([{"name": "A", "value": "1"}, {"name": "Y"}]),
            json!([]),
        ] {
            live["env"] = env;
            assert!(!wanted.is_met_by(&live), "{}", live["env"]);
        }
        // Those without a name are as they stand.
        let wanted = object(json!({"args": ["a", "b"]}));
        let mut live = wanted.value.clone();
        live["args"] = json!(["a", "x", "b"]);
        assert!(!wanted.is_met_by(&live));
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
    fn amounts_are_compared_by_what_they_are() {
        let of = |amount: &str| object(json!({"resources": {"limits": {"cpu": amount}}}));
        // As the API server keeps them.
        for (asked, kept) in [("1000m", "1"), ("1024Mi", "1Gi"), ("2", "2")] {
            assert!(
                of(asked).is_met_by(&with_mark(&of(asked), &of(kept))),
                "{asked}"
            );
        }
        for (asked, other) in [("1000m", "2"), ("x", "y")] {
            assert!(
                !of(asked).is_met_by(&with_mark(&of(asked), &of(other))),
                "{asked}"
            );
        }
        let text = |value: &str| object(json!({"env": [{"name": "A", "value": value}]}));
        assert!(!text("1000").is_met_by(&with_mark(&text("1000"), &text("1k"))));
    }

    #[test]
    fn what_is_kept_otherwise_is_named() {
        let wanted = object(
            json!({"spec": {"list": [{"image": "a"}, {"image": "b"}], "divisor": "1024Ki"}}),
        );
        let mut live = wanted.value.clone();
        live["spec"]["divisor"] = json!("1Mi");
        assert_eq!(wanted.differs_at(&live), None);
        live["spec"]["list"][1]["image"] = json!("mirror/b");
        assert_eq!(
            wanted.differs_at(&live).as_deref(),
            Some(".spec.list[1].image")
        );
        live["spec"]["list"] = json!([{"image": "a"}]);
        assert_eq!(wanted.differs_at(&live).as_deref(), Some(".spec.list"));
        live["spec"] = json!({});
        assert_eq!(wanted.differs_at(&live).as_deref(), Some(".spec.divisor"));
    }

    /// The other's body with the mark of what was asked.
    fn with_mark(asked: &Object, other: &Object) -> Value {
        let mut live = other.value.clone();
        live["metadata"] = asked.value["metadata"].clone();
        live
    }

    #[test]
    fn an_empty_text_is_not_kept_and_not_missed() {
        let wanted = object(json!({"env": [{"name": "A", "value": ""}], "priorityClassName": ""}));
        let live = object(json!({"env": [{"name": "A"}]}));
        assert!(wanted.is_met_by(&with_mark(&wanted, &live)));
    }

    #[test]
    fn what_is_not_asked_for_any_more_is_noticed() {
        let live = object(json!({"data": {"x": "1", "y": "2"}})).value;
        assert!(!object(json!({"data": {"x": "1"}})).is_met_by(&live));
    }
}
