//! The CustomResourceDefinition, made from the types.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use crate::ClusterObject;

/// Rules in CEL with their messages, in the form of a schema.
pub(crate) fn rules(rules: &[(&str, &str)]) -> Value {
    rules
        .iter()
        .map(|(rule, message)| json!({"rule": rule, "message": message}))
        .collect()
}

/// The rule of a count.
pub(crate) fn count_between(least: u32, most: u32) -> Value {
    let rule = format!("self >= {least} && self <= {most}");
    rules(&[(&rule, &format!("must be from {least} to {most}"))])
}

/// The rule of a duration.
pub(crate) fn duration_between(least: &str, most: &str) -> Value {
    let rule =
        format!("duration(self) >= duration('{least}') && duration(self) <= duration('{most}')");
    rules(&[(&rule, &format!("must be from {least} to {most}"))])
}

/// The rule of a quantity.
pub(crate) fn quantity_at_least(least: &str) -> Value {
    let rule = format!("quantity(string(self)).compareTo(quantity('{least}')) >= 0");
    rules(&[(&rule, &format!("must be at least {least}"))])
}

/// The definition of the resource, as `kubectl apply` takes it. A manifest without a `spec`, or with
/// parts of one, gets every default from the API server.
pub fn definition() -> Value {
    let mut definition = serde_json::to_value(ClusterObject::crd()).unwrap_or_default();
    without_nulls(&mut definition);
    bound(&mut definition);
    if let Some(root) = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        shorten(&mut root["properties"]["spec"], false);
        root["properties"]["spec"]["default"] = Value::Object(serde_json::Map::new());
        // A cluster that no operator has seen is not done: kstatus compares this with the generation.
        root["properties"]["status"]["default"] = json!({"observedGeneration": -1});
        if let Some(required) = root["required"].as_array_mut() {
            required.retain(|field| field != "spec");
        }
        if root["required"].as_array().is_some_and(Vec::is_empty)
            && let Some(root) = root.as_object_mut()
        {
            root.remove("required");
        }
        let mut of_root = rules(&[(
            "self.metadata.name.matches('^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$')",
            "metadata.name must be 1 to 40 of a-z, 0-9 and '-', starting with a letter and ending with a \
             letter or digit: names of services are made of it",
        )]);
        if let Some(of_root) = of_root.as_array_mut() {
            of_root.extend(what_volumes_forbid());
        }
        root["x-kubernetes-validations"] = of_root;
        for (list, keys) in KEYED {
            keyed(&mut root["properties"]["spec"], list, keys);
        }
    }
    definition
}

/// Rules about changes that volumes forbid, by the status: a change that was never carried out can be taken back.
fn what_volumes_forbid() -> Vec<Value> {
    let mut found = Vec::new();
    let mut add = |path: &str, rule: String, message: &str| {
        let role = path.split('.').next().unwrap_or_default();
        found.push(json!({
            // No operator has reconciled it yet.
            "rule": format!("!has(oldSelf.status) || !has(oldSelf.status.{role}) || {rule}"),
            "message": format!("spec.{path} {message}"),
            "fieldPath": format!(".spec.{path}"),
        }));
    };
    for role in ["tablets", "oracle", "master"] {
        let (new, old) = (
            format!("self.spec.{role}.storage"),
            format!("oldSelf.spec.{role}.storage"),
        );
        let there = format!("oldSelf.status.{role}");
        let class = "storageClassName";
        add(
            &format!("{role}.storage.{class}"),
            format!(
                "{there}.volumes == 0 || (has({new}.{class}) == has({old}.{class}) && (!has({new}.{class}) || \
                 {new}.{class} == {old}.{class}))"
            ),
            "must not change once there are volumes: they can't move from one class to another",
        );
        let at_least = |what: String| {
            format!("quantity(string({new}.size)).compareTo(quantity(string({what}))) >= 0")
        };
        add(
            &format!("{role}.storage.size"),
            format!(
                "{there}.volumes == 0 || {} || (has({there}.claimed) && {})",
                at_least(format!("{old}.size")),
                at_least(format!("{there}.claimed"))
            ),
            "must not shrink below what volumes were asked for: they can only grow",
        );
    }
    found
}

/// Lists whose elements Kubernetes identifies by these fields: it refuses two elements with the same values.
const KEYED: [(&str, &[&str]); 4] = [
    ("observers", &["name"]),
    ("env", &["name"]),
    ("imagePullSecrets", &["name"]),
    (
        "topologySpreadConstraints",
        &["topologyKey", "whenUnsatisfiable"],
    ),
];

/// Sets the key fields of all lists of this name below the schema.
fn keyed(schema: &mut Value, list: &str, keys: &[&str]) {
    // An index would write a null where there are no properties.
    let properties = schema.get_mut("properties");
    let properties = properties.and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if name == list {
            property["x-kubernetes-list-type"] = json!("map");
            property["x-kubernetes-list-map-keys"] = json!(keys);
        } else {
            keyed(property, list, keys);
        }
    }
}

/// Fields of Kubernetes' own types: `kubectl explain pod.spec` describes what is in them. Three times here, they
/// would make the definition larger than a client-side apply can carry.
pub const KUBERNETES_OWN: [&str; 7] = [
    "affinity",
    "containerSecurityContext",
    "env",
    "envFrom",
    "securityContext",
    "tolerations",
    "topologySpreadConstraints",
];

/// Takes the descriptions out of what lies below fields of Kubernetes' own types.
fn shorten(schema: &mut Value, is_below: bool) {
    match schema {
        Value::Object(fields) => {
            if is_below && fields.get("description").is_some_and(Value::is_string) {
                fields.remove("description");
            }
            for (name, field) in fields.iter_mut() {
                if !is_below && KUBERNETES_OWN.contains(&name.as_str()) {
                    for (keyword, part) in field.as_object_mut().into_iter().flatten() {
                        if keyword != "description" {
                            shorten(part, true);
                        }
                    }
                } else {
                    shorten(field, is_below);
                }
            }
        }
        Value::Array(elements) => elements
            .iter_mut()
            .for_each(|element| shorten(element, is_below)),
        _ => {}
    }
}

/// Bounds numbers: Kubernetes ignores their format, and would accept numbers that no field holds.
fn bound(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|it| it == "uint32") {
                fields.insert("maximum".into(), json!(u32::MAX));
            }
            fields.values_mut().for_each(bound);
        }
        Value::Array(elements) => elements.iter_mut().for_each(bound),
        _ => {}
    }
}

/// Defaults of optional fields are written as null, which Kubernetes takes for none. A field that may be null says no more
/// than one that may be left out: the API server drops nulls of other fields.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| !field.is_null() && name != "nullable");
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(without_nulls),
        _ => {}
    }
}
