//! The command `percolator`, in a pod that has it.

use crate::{Namespace, PROGRAM, server_of};

impl Namespace {
    /// Runs it in this pod, about a cluster of this namespace. What it prints.
    pub fn percolator(
        &self,
        pod: &str,
        cluster: &str,
        arguments: &[&str],
    ) -> Result<String, String> {
        let server = server_of(cluster);
        let exec = ["exec", pod, "--", PROGRAM, "-c", &server];
        self.kubectl(&[&exec[..], arguments].concat())
    }
}
