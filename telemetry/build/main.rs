//! Says of which commit the programs are, where nobody else does.

#![allow(
    clippy::print_stdout,
    reason = "a build script reports to cargo by these lines"
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
    if let Some(checkout) = revision::of(root) {
        println!("cargo::rustc-env={VARIABLE}={}", checkout.commit);
        for path in checkout.watched {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}
