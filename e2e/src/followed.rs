//! What a cluster's `Available` was on the way, which a look here and there would miss.

use std::process::{Child, Command};

use crate::{Namespace, wait};

/// What a cluster's `Available` has been since it is followed; nobody follows it any more when this goes.
#[derive(Debug)]
pub struct AvailabilityLog {
    kubectl: Child,
    file: tempfile::NamedTempFile,
}

impl AvailabilityLog {
    /// None before the first word.
    fn said(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.file.path()).unwrap_or_default();
        Some(text).filter(|text| !text.is_empty())
    }

    /// Waits until it has said that the cluster isn't available.
    pub fn has_seen_it_unavailable(self) {
        wait("Available to be False on the way", || {
            let said = self.said().unwrap_or_default();
            if said.lines().any(|line| line == "False") {
                Ok(())
            } else {
                Err(said)
            }
        });
    }
}

impl Drop for AvailabilityLog {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

impl Namespace {
    /// Follows what a cluster's `Available` is, from now on.
    pub fn follow(&self, cluster: &str) -> AvailabilityLog {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = "jsonpath={.status.conditions[?(@.type==\"Available\")].status}{\"\\n\"}";
        let kubectl = Command::new("kubectl")
            .args([
                "-n", &self.name, "get", "perc", cluster, "--watch", "-o", path,
            ])
            .stdout(file.reopen().expect("a file"))
            .spawn()
            .expect("kubectl");
        let followed = AvailabilityLog { kubectl, file };
        wait("the first word", || {
            followed.said().map(drop).ok_or("none".to_owned())
        });
        followed
    }
}
