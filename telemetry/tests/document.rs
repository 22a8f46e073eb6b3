//! `docs/metrics.md` is what the declarations say.

use std::path::Path;

#[test]
fn the_documentation_is_fresh() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let made = percolator_telemetry::markdown();
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        std::fs::write(&file, &made).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == made,
        "docs/metrics.md is not what the declarations say: cargo xtask generate"
    );
}
