//! `docs/reference.md` has every field, and each shared block of fields once.

use crate::support::{each_property, fresh, schema};
use percolator_api::KUBERNETES_OWN;
use serde_json::Value;

/// Blocks of fields that several fields have: where they stand, as the ends of paths, and what each is called.
const SHARED: [(&str, &[&str], &str); 6] = [
    (
        "pod",
        &[
            "spec.oracle.pod",
            "spec.tablets.pod",
            "spec.master.pod",
            "spec.proxy.pod",
        ],
        "The pods of a role",
    ),
    (
        "service",
        &[
            "spec.oracle.service",
            "spec.tablets.service",
            "spec.master.service",
        ],
        "The headless service of a role",
    ),
    (
        "clientService",
        &["spec.service", "spec.proxy.service"],
        "The services that clients connect to",
    ),
    (
        "claim",
        &[
            "spec.tablets.storage.claim",
            "spec.oracle.storage.claim",
            "spec.master.storage.claim",
        ],
        "The claims of a role's volumes",
    ),
    (
        "storage",
        &["spec.oracle.storage", "spec.master.storage"],
        "The volumes of oracles and masters",
    ),
    (
        "role",
        &["status.oracle", "status.tablets", "status.master"],
        "The state of a role",
    ),
];

fn shared(path: &str) -> Option<&'static str> {
    let of_path = |(_, paths, _): &&(&str, &[&str], &str)| paths.contains(&path);
    SHARED.iter().find(of_path).map(|(name, ..)| *name)
}

/// Every property below a part, with its path; shared blocks only by their names.
fn each_own_property(path: &str, schema: &Value, see: &mut impl FnMut(&str, &Value)) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        see(&path, property);
        if shared(&path).is_none() && !KUBERNETES_OWN.contains(&name.as_str()) {
            each_own_property(&path, property, see);
        }
    }
}

/// A block and its schema, which is the same wherever it stands.
fn block<'a>(schema: &'a Value, paths: &[&str]) -> &'a Value {
    let at = |path: &str| {
        let pointer = path.replace('.', "/properties/");
        let found = schema.pointer(&format!("/properties/{pointer}"));
        found.unwrap_or_else(|| panic!("there is no {path}"))
    };
    let first = at(paths[0]);
    for path in paths {
        assert_eq!(
            at(path)["properties"],
            first["properties"],
            "{path} is no shared block"
        );
    }
    first
}

/// The page with every field, for people.
#[test]
fn the_reference_is_fresh() {
    const HEAD: &str = "| field | type | default | what it is |\n|---|---|---|---|\n";
    let mut text = String::from(
        "<!-- Generated from operator/api by `cargo xtask generate`: change the types there. -->\n\n\
         # PercolatorCluster: every field\n\n\
         `apiVersion: percolator.dev/v1alpha1`, `kind: PercolatorCluster`, short name `perc`. Only `metadata.name` is\n\
         required. [kubernetes.md](kubernetes.md) says how to install the operator and what happens when.\n",
    );
    let schema = schema();
    let part = |part: &str| schema["properties"][part].clone();
    text += &format!("\n## What you ask for\n\n{HEAD}");
    each_own_property("spec", &part("spec"), &mut |path, property| {
        text += &row(path, property);
    });
    for (name, paths, title) in &SHARED[..5] {
        text += &format!("\n### {title}: `{name}`\n\n{HEAD}");
        // Of a block within a block, the path in the manifest.
        let own = paths[0];
        each_own_property(own, block(&schema, paths), &mut |path, property| {
            let below = path.strip_prefix(own).expect("a path below it");
            text += &row_of(&format!("{name}{below}"), shared(path), property);
        });
    }
    text += &format!("\n## What the operator says\n\n{HEAD}");
    each_own_property("status", &part("status"), &mut |path, property| {
        text += &row(path, property);
    });
    let (name, paths, title) = &SHARED[5];
    text += &format!("\n### {title}: `{name}`\n\n{HEAD}");
    each_property(name, block(&schema, paths), &mut |path, property| {
        text += &row_of(path, None, property);
    });
    text += "\n## What is refused, and when\n\n\
             The API server refuses these at once, by rules in the definition; the operator refuses them too, should an\n\
             object get past it.\n\n| field | rule |\n|---|---|\n";
    let mut rules = |path: &str, property: &Value| text += &refused(path, property);
    rules("metadata.name", &schema);
    each_own_property("spec", &part("spec"), &mut rules);
    for (name, paths, _) in &SHARED[..5] {
        each_own_property(paths[0], block(&schema, paths), &mut |path, property| {
            let below = path.strip_prefix(paths[0]).expect("a path below it");
            rules(&format!("{name}{below}"), property);
        });
    }
    fresh("docs/reference.md", &text);
}

/// The rows about what is refused of a property.
fn refused(path: &str, property: &Value) -> String {
    let mut text = String::new();
    let rules = property["x-kubernetes-validations"].as_array();
    for rule in rules.into_iter().flatten() {
        // The rules of the whole resource name their fields from the top.
        let path = match rule["fieldPath"].as_str() {
            Some(field) if field.starts_with(".spec.") => field.trim_start_matches('.').to_owned(),
            Some(field) => format!("{path}{field}"),
            None => path.to_owned(),
        };
        text += &format!(
            "| `{path}` | {} |\n",
            rule["message"].as_str().unwrap_or_default()
        );
    }
    if let Some(keys) = property["x-kubernetes-list-map-keys"].as_array() {
        let keys: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
        text += &format!(
            "| `{path}` | no two with the same {} |\n",
            keys.join(" and ")
        );
    }
    text
}

fn row(path: &str, property: &Value) -> String {
    row_of(path, shared(path), property)
}

/// A row about a field, and which block has the fields below it.
fn row_of(path: &str, block: Option<&str>, property: &Value) -> String {
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
    let title = SHARED.iter().find(|(name, ..)| Some(*name) == block);
    let more = title.map_or_else(String::new, |(name, _, title)| {
        let anchor = format!("{title}: {name}").to_lowercase().replace(' ', "-");
        format!(
            " Its fields: [{name}](#{}).",
            anchor.replace([':', '\''], "")
        )
    });
    let text = text + &more;
    format!("| `{path}` | {kind} | {default} | {text} |\n")
}
