//! The values of a cluster's `Available` over time, and the log of a pod to its end, which single reads would miss.

use std::process::{Child, Command};

use crate::{Namespace, wait};

/// The output of a kubectl that runs on; it ends with this value.
#[derive(Debug)]
pub struct FollowedOutput {
    kubectl: Child,
    file: tempfile::NamedTempFile,
}

impl FollowedOutput {
    /// Waits for its first word.
    fn start(command: &mut Command) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let kubectl = command
            .stdout(file.reopen().expect("a file"))
            .spawn()
            .expect("kubectl");
        let followed = Self { kubectl, file };
        wait("the first word", || match followed.said().as_str() {
            "" => Err("none".to_owned()),
            _ => Ok(()),
        });
        followed
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.file.path()).unwrap_or_default()
    }

    /// Waits until it has said that the cluster isn't available.
    pub fn has_seen_it_unavailable(self) {
        self.has_a_line("Available to be False on the way", |line| line == "False");
    }

    /// Waits for such a line.
    fn has_a_line(self, what: &str, is_it: impl Fn(&str) -> bool) {
        wait(what, || {
            let said = self.said();
            if said.lines().any(&is_it) {
                Ok(())
            } else {
                Err(said)
            }
        });
    }
}

impl Drop for FollowedOutput {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

impl Namespace {
    /// Follows what a cluster's `Available` is, from now on.
    pub fn follow(&self, cluster: &str) -> FollowedOutput {
        let path = "jsonpath={.status.conditions[?(@.type==\"Available\")].status}{\"\\n\"}";
        FollowedOutput::start(
            self.command()
                .args(["get", "perc", cluster, "--watch", "-o", path]),
        )
    }
}
