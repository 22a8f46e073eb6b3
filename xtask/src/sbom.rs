//! The bill of materials of the image's programs: every crate that is linked into them, as SPDX 2.3 in JSON.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::ensure;
use serde_json::{Value, json};

use crate::context::Context;

/// Packages whose programs are in the image.
const PROGRAMS: [&str; 2] = ["percolator-cli", "percolator-operator"];

/// Writes the bill of the image of this name.
pub(crate) fn write(context: &Context, image: &str, file: &Path) -> anyhow::Result<()> {
    let mut arguments = vec![
        "tree",
        "--locked",
        "--edges=normal",
        "--prefix=none",
        "--format={p}|{l}",
    ];
    arguments.extend(PROGRAMS.iter().flat_map(|program| ["--package", *program]));
    let tree = context.cargo(arguments).output()?;
    let bill = bill(image, &packages(&tree));
    let count = bill["packages"].as_array().map_or(0, Vec::len);
    ensure!(
        count > PROGRAMS.len(),
        "cargo tree names no packages: {tree:?}"
    );
    std::fs::write(file, serde_json::to_string_pretty(&bill)? + "\n")?;
    Ok(())
}

/// A crate: its name, its version and its licence.
type Package = (String, String, String);

/// The crates of `cargo tree`'s lines, each once: `NAME vVERSION (SOURCE)|LICENCE (*)`.
fn packages(tree: &str) -> BTreeSet<Package> {
    let package = |line: &str| {
        let (what, licence) = line.split_once('|')?;
        let mut words = what.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        let licence = licence.trim_end_matches("(*)").trim();
        Some((name.to_owned(), version.to_owned(), licence.to_owned()))
    };
    tree.lines().filter_map(package).collect()
}

fn bill(image: &str, packages: &BTreeSet<Package>) -> Value {
    const NONE: &str = "NOASSERTION";
    let mut all = vec![json!({
        "SPDXID": "SPDXRef-image",
        "name": image,
        "downloadLocation": NONE,
        "filesAnalyzed": false,
        "licenseConcluded": NONE,
        "licenseDeclared": "Apache-2.0",
        "primaryPackagePurpose": "CONTAINER",
    })];
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image")];
    for (name, version, licence) in packages {
        let id = format!("SPDXRef-crate-{}-{}", plain(name), plain(version));
        relations.push(relation("SPDXRef-image", "CONTAINS", &id));
        all.push(json!({
            "SPDXID": id,
            "name": name,
            "versionInfo": version,
            "downloadLocation": NONE,
            "filesAnalyzed": false,
            "licenseConcluded": NONE,
            // Cargo once wrote a slash for OR.
            "licenseDeclared": if licence.is_empty() { NONE.to_owned() } else { licence.replace('/', " OR ") },
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{name}@{version}"),
            }],
        }));
    }
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": image,
        "documentNamespace": format!("https://github.com/percolator-dev/percolator/sbom/{}", plain(image)),
        // The same programs give the same bill.
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: cargo-xtask-image"]},
        "packages": all,
        "relationships": relations,
    })
}

fn relation(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

/// An identifier of SPDX has letters, digits, '.' and '-' alone.
fn plain(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    text.replace(|c| !is_plain(c), "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_is_named_once_with_its_licence() {
        let tree = "percolator-cli v0.1.0 (/src/cli)|Apache-2.0\n\
                    serde v1.0.1|MIT/Apache-2.0\n\
                    serde_json v1.0.2|MIT OR Apache-2.0\n\
                    serde v1.0.1|MIT/Apache-2.0 (*)\n\n";
        let bill = bill("localhost/percolator:1", &packages(tree));
        let packages = bill["packages"].as_array().unwrap();
        assert_eq!(packages.len(), 4, "{bill}");
        let serde = packages.iter().find(|it| it["name"] == "serde").unwrap();
        assert_eq!(serde["licenseDeclared"], "MIT OR Apache-2.0");
        assert_eq!(
            serde["externalRefs"][0]["referenceLocator"],
            "pkg:cargo/serde@1.0.1"
        );
        let ids: BTreeSet<&str> = packages
            .iter()
            .filter_map(|it| it["SPDXID"].as_str())
            .collect();
        assert_eq!(ids.len(), 4);
        for relation in bill["relationships"].as_array().unwrap() {
            assert!(
                ids.contains(relation["relatedSpdxElement"].as_str().unwrap()),
                "{relation}"
            );
        }
        assert!(!bill.to_string().contains("/src/"), "{bill}");
    }
}
