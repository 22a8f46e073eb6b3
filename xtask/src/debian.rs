//! Programs that tests run, from Debian's packages: unpacked in `target`, so that nothing is installed, and no service is
//! started but by a test.

use std::path::PathBuf;

use crate::{cmd::Cmd, context::Context};

/// A program, by the package that has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packaged {
    /// The package.
    pub(crate) package: &'static str,
    /// The program in `/usr/bin`.
    pub(crate) program: &'static str,
    /// The variable from which tests take its path.
    pub(crate) variable: &'static str,
}

/// Prometheus' own checker of metrics, and Prometheus beside it.
pub(crate) const PROMTOOL: Packaged = Packaged {
    package: "prometheus",
    program: "promtool",
    variable: "PERCOLATOR_PROMTOOL",
};

/// etcd, in which a register can be.
pub(crate) const ETCD: Packaged = Packaged {
    package: "etcd-server",
    program: "etcd",
    variable: "PERCOLATOR_ETCD",
};

impl Packaged {
    /// Its path; none if it can't be installed, which the tests that need it report themselves.
    pub(crate) fn find(self, context: &Context) -> Option<PathBuf> {
        let installed = PathBuf::from("/usr/bin").join(self.program);
        if installed.exists() {
            return Some(installed);
        }
        let folder = context.root().join("target").join(self.package);
        let unpacked = folder.join("usr/bin").join(self.program);
        if unpacked.exists() {
            return Some(unpacked);
        }
        std::fs::create_dir_all(&folder).ok()?;
        let download = || {
            let get = ["download", "-q", self.package];
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
}
