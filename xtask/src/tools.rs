//! Tools that may be missing on a new machine.

use std::path::Path;

use anyhow::bail;

use crate::cmd::Cmd;

/// Makes sure of a component of the toolchain: `cargo SUBCOMMAND` has to work.
pub(crate) fn component(name: &str, subcommand: &str) -> anyhow::Result<()> {
    let works = || Cmd::cargo().args([subcommand, "--version"]).works();
    if works() {
        return Ok(());
    }
    if !Cmd::new("rustup").arg("--version").works() {
        bail!(
            "`cargo {subcommand}` is missing, and there is no rustup to install it with: \
             get {name} from where this Rust toolchain came from"
        );
    }
    Cmd::new("rustup").args(["component", "add", name]).run()?;
    if !works() {
        bail!("rustup has added {name}, but `cargo {subcommand}` still doesn't work");
    }
    Ok(())
}

/// Makes sure of a C compiler, which some dependencies are built with.
pub(crate) fn c_compiler() -> anyhow::Result<()> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if !Cmd::new(&compiler).arg("--version").works() {
        bail!(
            "there is no C compiler ({compiler}). Debian and Ubuntu: apt-get install build-essential; \
             Fedora: dnf install gcc; macOS: xcode-select --install"
        );
    }
    Ok(())
}

/// Room on the disk that has this folder; none where the system doesn't say.
pub(crate) fn free_gigabytes(folder: &Path) -> Option<u64> {
    let said = Cmd::new("df")
        .args(["-P", "-k"])
        .arg(folder)
        .silent_output()
        .ok()?;
    let kilobytes = said.lines().nth(1)?.split_whitespace().nth(3)?;
    Some(kilobytes.parse::<u64>().ok()? / 1_000_000)
}
