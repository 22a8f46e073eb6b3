//! Prometheus' own checker of metrics, from Debian's package, and Prometheus beside it: unpacked in `target`, so that
//! nothing is installed, and no Prometheus is started but by a test.

use std::path::PathBuf;

use crate::{cmd::Cmd, context::Context};

/// Where the tests look for it.
pub(crate) const VARIABLE: &str = "PERCOLATOR_PROMTOOL";

/// Where it is; none where it can't be had, which the tests that need it say themselves.
pub(crate) fn find(context: &Context) -> Option<PathBuf> {
    let installed = PathBuf::from("/usr/bin/promtool");
    if installed.exists() {
        return Some(installed);
    }
    let folder = context.root().join("target/prometheus");
    let unpacked = folder.join("usr/bin/promtool");
    if unpacked.exists() {
        return Some(unpacked);
    }
    std::fs::create_dir_all(&folder).ok()?;
    let download = || {
        let get = ["download", "-q", "prometheus"];
        Cmd::new("apt-get").args(get).dir(&folder).works()
    };
    // Without root the lists of packages are as old as they are.
    if !download() {
        let _ = Cmd::new("apt-get").args(["update", "-q"]).works();
        if !download() {
            return None;
        }
    }
    let unpack = "for package in *.deb; do dpkg -x \"$package\" .; done";
    let done = Cmd::new("sh").args(["-c", unpack]).dir(&folder).works();
    (done && unpacked.exists()).then_some(unpacked)
}
