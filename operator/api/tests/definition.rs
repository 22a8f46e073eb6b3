//! The resource's definition: generated files are fresh, and its rules say what they should.

use std::path::{Path, PathBuf};

use kube::core::cel::Validator;
use percolator_api::{KUBERNETES_OWN, PercolatorCluster, definition};
use serde_json::{Value, json};

const HEAD: &str = "\
# Generated from operator/api by `cargo xtask generate`: change the types there.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a file with what it has to be; with REWRITE=1 writes it.
fn fresh(path: &str, text: &str) {
    let file = root().join(path);
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(file.parent().expect("a file lies in a folder")).expect(path);
        std::fs::write(&file, text).expect(path);
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == text,
        "{path} is not what the types say: run `cargo xtask generate`, and look at the difference"
    );
}

fn definition_text() -> String {
    let yaml = serde_saphyr::to_string(&definition()).expect("a definition can be written");
    format!("{HEAD}{yaml}")
}

#[test]
fn the_generated_definitions_are_fresh() {
    let text = definition_text();
    fresh("crds/percolatorclusters.yaml", &text);
    fresh(
        "charts/percolator-operator/crds/percolatorclusters.yaml",
        &text,
    );
    // A client-side apply keeps all of it in an annotation, which may have 256 KiB.
    assert!(text.len() < 250 << 10, "{} bytes", text.len());
}

#[test]
fn the_definition_can_be_read_back() {
    let read: Value = serde_saphyr::from_str(&definition_text()).expect("good YAML");
    assert_eq!(read, definition());
}

fn schema() -> Value {
    definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// A resource as the API server keeps it, with every default.
fn object(change: impl FnOnce(&mut Value)) -> Value {
    let cluster = PercolatorCluster::from_yaml(include_str!("../../../examples/cluster.yaml"));
    let mut object = serde_json::to_value(cluster.expect("the example is good")).expect("JSON");
    change(&mut object);
    object
}

fn refusals(new: &Value, old: Option<&Value>) -> Vec<String> {
    match Validator::new().validate(&schema(), new, old) {
        Ok(()) => Vec::new(),
        Err(errors) => {
            let errors = errors.into_vec().into_iter();
            errors
                .map(|error| format!("{}: {}", error.field_path, error.message))
                .collect()
        }
    }
}

#[test]
fn the_example_passes_every_rule() {
    let example = object(|_| {});
    assert_eq!(refusals(&example, None), Vec::<String>::new());
    assert_eq!(refusals(&example, Some(&example)), Vec::<String>::new());
}

#[test]
fn rules_for_values_refuse_what_they_should() {
    for (path, value, said) in [
        ("/metadata/name", json!("9lives"), "starting with a letter"),
        ("/metadata/name", json!("a.b"), "starting with a letter"),
        ("/metadata/name", json!("a".repeat(41)), "1 to 40"),
        ("/spec/oracle/replicas", json!(2), "standby oracles"),
        ("/spec/gcMaster/replicas", json!(0), "standby masters"),
        ("/spec/oracle/window", json!("99ms"), "from 100ms to 60s"),
        ("/spec/oracle/window", json!("1m1s"), "from 100ms to 60s"),
        ("/spec/tablets/replicas", json!(0), "from 1 to 1000"),
        ("/spec/tablets/replicas", json!(1001), "from 1 to 1000"),
        ("/spec/tablets/storage/size", json!("63Mi"), "at least 64Mi"),
        ("/spec/tablets/storage/size", json!(7), "at least 64Mi"),
        (
            "/spec/tablets/storage/cacheSize",
            json!("1k"),
            "at least 1Mi",
        ),
        ("/spec/oracle/storage/size", json!("1Mi"), "at least 16Mi"),
    ] {
        let bad = object(|object| *object.pointer_mut(path).expect(path) = value.clone());
        let refusals = refusals(&bad, None);
        assert!(
            refusals.len() == 1 && refusals[0].contains(said),
            "{path} {value}: {refusals:?}"
        );
    }
}

#[test]
fn rules_for_changes_refuse_what_they_should() {
    let old = object(|_| {});
    for (path, value, said) in [
        ("/spec/tablets/replicas", json!(2), "must not shrink"),
        (
            "/spec/tablets/storage/size",
            json!("9Gi"),
            "must not shrink",
        ),
        (
            "/spec/tablets/storage/engine",
            json!("fjall"),
            "must not change",
        ),
        (
            "/spec/gcMaster/storage/size",
            json!("100Mi"),
            "must not shrink",
        ),
    ] {
        let new = object(|object| *object.pointer_mut(path).expect(path) = value.clone());
        let refusals = refusals(&new, Some(&old));
        assert!(
            refusals.len() == 1 && refusals[0].contains(said),
            "{path} {value}: {refusals:?}"
        );
    }
    for role in ["tablets", "oracle", "gcMaster"] {
        let class = |class: &str| {
            object(|object| object["spec"][role]["storage"]["storageClassName"] = json!(class))
        };
        for (new, old) in [
            (&class("fast"), &old),
            (&old, &class("fast")),
            (&class("fast"), &class("slow")),
        ] {
            let refusals = refusals(new, Some(old));
            assert!(
                refusals.len() == 1 && refusals[0].contains("storageClassName must not change"),
                "{role}: {refusals:?}"
            );
        }
        assert_eq!(
            refusals(&class("fast"), Some(&class("fast"))),
            Vec::<String>::new()
        );
    }
}

#[test]
fn what_may_change_can_be_changed() {
    let old = object(|_| {});
    for (path, value) in [
        ("/spec/tablets/replicas", json!(4)),
        ("/spec/tablets/storage/size", json!("11Gi")),
        ("/spec/tablets/storage/cacheSize", json!("1Mi")),
        ("/spec/oracle/window", json!("1m")),
        ("/spec/oracle/window", json!("1m0s")),
        ("/spec/paused", json!(true)),
    ] {
        let new = object(|object| *object.pointer_mut(path).expect(path) = value.clone());
        assert_eq!(
            refusals(&new, Some(&old)),
            Vec::<String>::new(),
            "{path} {value}"
        );
    }
}

/// Every property below `spec`, with its path.
fn each_property(path: &str, schema: &Value, see: &mut impl FnMut(&str, &Value)) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        see(&path, property);
        if !KUBERNETES_OWN.contains(&name.as_str()) {
            each_property(&path, property, see);
        }
    }
}

/// The page with every field, for people.
#[test]
fn the_reference_is_fresh() {
    let mut text = String::from(
        "<!-- Generated from operator/api by `cargo xtask generate`: change the types there. -->\n\n\
         # PercolatorCluster: every field\n\n\
         `apiVersion: percolator.dev/v1alpha1`, `kind: PercolatorCluster`, short name `perc`. Only `metadata.name` is\n\
         required. [kubernetes.md](kubernetes.md) says how to install the operator and what happens when.\n",
    );
    for (part, title) in [
        ("spec", "What you ask for"),
        ("status", "What the operator says"),
    ] {
        text += &format!(
            "\n## {title}\n\n| field | type | default | what it is |\n|---|---|---|---|\n"
        );
        each_property(
            part,
            &schema()["properties"][part],
            &mut |path, property| {
                text += &row(path, property);
            },
        );
    }
    text += "\n## What is refused, and when\n\n\
             The API server refuses these at once, by rules in the definition; the operator refuses them too, should an\n\
             object get past it.\n\n| field | rule |\n|---|---|\n";
    let mut rules = |path: &str, property: &Value| {
        for rule in property["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            text += &format!(
                "| `{path}` | {} |\n",
                rule["message"].as_str().unwrap_or_default()
            );
        }
    };
    rules("metadata.name", &schema());
    each_property("spec", &schema()["properties"]["spec"], &mut rules);
    fresh("docs/reference.md", &text);
}

fn row(path: &str, property: &Value) -> String {
    let kind = match (property["type"].as_str(), property.get("enum")) {
        (_, Some(Value::Array(values))) => {
            let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            values.join(", ")
        }
        (Some(kind), None) => kind.to_owned(),
        _ => "amount".to_owned(),
    };
    let default = match property.get("default") {
        Some(Value::Object(_) | Value::Array(_)) | None => String::new(),
        Some(Value::String(text)) => format!("`{text}`"),
        Some(value) => format!("`{value}`"),
    };
    let text = property["description"].as_str().unwrap_or_default();
    let text = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|");
    format!("| `{path}` | {kind} | {default} | {text} |\n")
}

#[test]
fn every_field_is_described() {
    let mut seen = 0;
    each_property(
        "spec",
        &schema()["properties"]["spec"],
        &mut |path, property| {
            let text = property["description"].as_str().unwrap_or_default();
            assert!(text.len() > 10, "{path} is not described: {property}");
            seen += 1;
        },
    );
    assert!(seen > 50, "{seen}");
}
