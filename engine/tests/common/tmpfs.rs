//! A small file system for tests, where one may be mounted.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted tmpfs, unmounted when it is dropped.
pub(crate) struct Tmpfs(pub(crate) PathBuf);

impl Tmpfs {
    /// Mounts one of this size, as `mount` writes it. `None` where that may not be done, which is said.
    pub(crate) fn mount(at: &Path, size: &str) -> Option<Tmpfs> {
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .output();
        match output {
            Ok(output) if output.status.success() => Some(Tmpfs(at.to_owned())),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("SKIPPED: cannot mount a tmpfs (this needs root): {why}");
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: cannot run mount: {error}");
                None
            }
        }
    }

    /// A file of somebody else.
    pub(crate) fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Fills it up to so many bytes that stay free, or fewer.
    pub(crate) fn leave(&self, bytes: u64) {
        let mut ballast = File::options()
            .create(true)
            .append(true)
            .open(self.ballast())
            .expect("a file");
        const BLOCK: [u8; 4096] = [1; 4096];
        // Anyone else who writes there takes part of it meanwhile.
        while self.free_bytes() > bytes && ballast.write_all(&BLOCK).is_ok() {}
    }

    /// Removes the ballast.
    pub(crate) fn make_room(&self) {
        fs::remove_file(self.ballast()).expect("room");
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("a mounted file system");
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
