//! The chart's own page: its table of values is made of `values.yaml`, in the form of helm-docs.

use std::path::{Path, PathBuf};

fn chart(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts/percolator-operator")
        .join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(chart(file)).unwrap_or_default()
}

/// A line of `values.yaml` that begins a value.
struct Entry<'a> {
    indent: usize,
    key: &'a str,
    /// What stands behind the colon.
    value: &'a str,
    /// The comment above that begins with `# -- `.
    text: Option<String>,
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut found = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        if let Some(words) = content.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        if let Some((key, value)) = content.split_once(':') {
            let text = comment.join(" ");
            found.push(Entry {
                indent: line.len() - content.len(),
                key,
                value: value.trim(),
                text: text.strip_prefix("-- ").map(str::to_owned),
            });
        }
        comment.clear();
    }
    found
}

/// The values' defaults by their paths.
fn default(values: &serde_json::Value, path: &str) -> serde_json::Value {
    let pointer = format!("/{}", path.replace('.', "/"));
    let found = values.pointer(&pointer);
    found
        .unwrap_or_else(|| panic!("values.yaml has no {path}"))
        .clone()
}

/// The rows of helm-docs: a described value is one row, whatever lies below it.
fn rows() -> Vec<String> {
    let text = read("values.yaml");
    let values: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
    let mut rows = Vec::new();
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut described: Option<usize> = None;
    for entry in entries(&text) {
        above.retain(|(indent, _)| *indent < entry.indent);
        if described.is_some_and(|indent| entry.indent > indent) {
            continue;
        }
        described = None;
        let mut path: Vec<&str> = above.iter().map(|(_, key)| key.as_str()).collect();
        path.push(entry.key);
        let path = path.join(".");
        above.push((entry.indent, entry.key.to_owned()));
        let Some(text) = entry.text else {
            assert!(
                entry.value.is_empty(),
                "values.yaml: {path} is not described: write `# -- ` above it"
            );
            continue;
        };
        described = Some(entry.indent);
        let default = default(&values, &path);
        let kind = match &default {
            serde_json::Value::Bool(_) => "bool",
            serde_json::Value::Number(_) => "int",
            serde_json::Value::String(_) => "string",
            serde_json::Value::Array(_) => "list",
            _ => "object",
        };
        let text = text.replace('|', "\\|");
        rows.push(format!("| {path} | {kind} | `{default}` | {text} |"));
    }
    rows
}

#[test]
fn the_page_of_the_chart_is_fresh() {
    let head = read("README.md");
    let (head, _) = head.split_once("## Values\n").expect("a chapter of values");
    let rows = rows();
    assert!(rows.len() > 40, "{}", rows.len());
    let table = format!(
        "## Values\n\n| Key | Type | Default | Description |\n|-----|------|---------|-------------|\n{}\n",
        rows.join("\n")
    );
    let page = format!("{head}{table}");
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        std::fs::write(chart("README.md"), &page).expect("README.md");
    }
    assert!(
        read("README.md") == page,
        "the chart's README.md is not what values.yaml says: run `cargo xtask generate`"
    );
}

#[test]
fn the_pages_versions_are_those_of_the_chart() {
    let about: serde_json::Value = serde_saphyr::from_str(&read("Chart.yaml")).expect("YAML");
    let page = read("README.md");
    for field in ["version", "appVersion"] {
        let version = about[field].as_str().expect(field);
        assert_eq!(version, env!("CARGO_PKG_VERSION"), "{field}");
        assert!(page.contains(version), "{field}");
    }
    assert!(
        about["icon"]
            .as_str()
            .is_some_and(|icon| icon.ends_with("/icon.svg"))
    );
    assert!(chart("icon.svg").exists());
    let examples = &about["annotations"]["artifacthub.io/crdsExamples"];
    assert!(
        examples
            .as_str()
            .is_some_and(|it| it.contains("kind: PercolatorCluster"))
    );
}
