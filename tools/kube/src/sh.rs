//! Short commands whose words are of interest only when they fail.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// Runs a script, and gives what it prints.
pub(crate) fn sh(script: &str) -> anyhow::Result<String> {
    output(Command::new("sh").args(["-euc", script]))
        .with_context(|| format!("this failed:\n{script}"))
}

/// Runs a command, and gives what it prints; what it says is in the error.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!(
            "{name}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The variable that marks the processes of a cluster: `down` finds them by it, even if xtask was killed.
pub(crate) const MARK: &str = "PERCOLATOR_KUBE";

/// Starts a process that goes on when we end.
pub(crate) fn start(command: &mut Command, log: &Path) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command
        .env(MARK, "1")
        // Most of Kubernetes' programs are in Go, and memory costs less here than time.
        .env("GOGC", "400")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        // Ctrl-C is for us.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    Ok(())
}

/// Waits until `check` gives something; it says what it waits for, which is the error when time is up.
pub(crate) fn wait<T>(
    within: Duration,
    mut check: impl FnMut() -> Result<T, String>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        match check() {
            Ok(found) => return Ok(found),
            Err(missing) if started.elapsed() > within => {
                bail!("after {} s: {missing}", within.as_secs())
            }
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}
