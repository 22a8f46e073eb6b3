//! Says of which commit the programs are, where nobody else does.

#![allow(
    clippy::print_stdout,
    reason = "this is how a build script tells cargo"
)]

mod revision;

use std::path::Path;

/// What `percolator_build_info` says; anyone who builds elsewhere, as in a container without `.git`, sets it.
const VARIABLE: &str = "PERCOLATOR_REVISION";

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build");
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    // In builds for development each commit would have nearly everything built anew.
    if std::env::var_os("PROFILE").is_none_or(|profile| profile != "release") {
        return;
    }
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let Some(root) = Path::new(&here).parent() else {
        return;
    };
    if let Some(found) = revision::of(root) {
        println!("cargo::rustc-env={VARIABLE}={}", found.commit);
        for path in found.watched {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}
