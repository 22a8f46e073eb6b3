//! What the tests of generated files share.

use std::path::{Path, PathBuf};

use percolator_api::{KUBERNETES_OWN, definition};
use serde_json::Value;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a file with what it has to be; with REWRITE=1 writes it.
pub(crate) fn fresh(path: &str, text: &str) {
    let file = root().join(path);
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(file.parent().expect("a file lies in a folder")).expect(path);
        std::fs::write(&file, text).expect(path);
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == text,
        "{path} is not what the types say: run `cargo xtask generate`, and check the difference"
    );
}

pub(crate) fn schema() -> Value {
    definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Every property below `spec`, with its path.
pub(crate) fn each_property(path: &str, schema: &Value, see: &mut impl FnMut(&str, &Value)) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        see(&path, property);
        if !KUBERNETES_OWN.contains(&name.as_str()) {
            each_property(&path, property, see);
        }
    }
}
