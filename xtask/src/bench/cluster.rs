//! A cluster for measurements.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};

/// Sends a signal to a process: its name without SIG.
pub(crate) fn signal(pid: &str, signal: &str) -> anyhow::Result<()> {
    let name = format!("-{signal}");
    if !Command::new("kill").args([&name, pid]).status()?.success() {
        bail!("cannot send {signal} to process {pid}");
    }
    Ok(())
}

/// A cluster of processes, which ends with the standard input of the command that it runs.
pub(crate) struct Cluster(Child);

impl Cluster {
    /// Starts it at this port, with more arguments for `up`.
    pub(crate) fn start(percolator: &Path, port: u16, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(percolator);
        command
            .args(["up", "--processes", "--quiet"])
            .args(arguments)
            .args(["--port", &port.to_string(), "--", "cat"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run `percolator up`")?;
        // `cat` echoes this line when the cluster is ready and runs it.
        let stdin = child.stdin.as_mut().context("no standard input")?;
        stdin.write_all(b"ready?\n")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        if said.trim() != "ready?" {
            bail!(
                "`percolator up` ended before it was ready: {}",
                child.wait()?
            );
        }
        Ok(Self(child))
    }

    /// The process of `percolator up`.
    pub(super) fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        if !status.success() {
            bail!("`percolator up` failed: {status}");
        }
        Ok(())
    }
}
