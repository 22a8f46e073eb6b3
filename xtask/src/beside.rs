//! Parts of the tests that want processors and nothing else, run beside those that wait for a clock, with what these leave of the
//! processors.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Child,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{
    cmd::{Cmd, check},
    context::Context,
    parts::Part,
};

/// A `cargo xtask test` of some parts.
#[derive(Debug)]
pub(crate) struct Beside {
    parts: Vec<&'static str>,
    line: String,
    child: Child,
    started: Instant,
    /// What it prints, which is to be read as a whole.
    output: PathBuf,
}

impl Beside {
    pub(crate) fn start(context: &Context, parts: &[Part]) -> anyhow::Result<Self> {
        let parts: Vec<_> = parts.iter().map(|part| part.name()).collect();
        let output = context.metadata()?.target.join("beside.txt");
        let file = File::create(&output).with_context(|| output.display().to_string())?;
        // The one that was just built: the file of the running one may be gone by that.
        let own = context.built()?.programs.join("xtask");
        let command = idle().arg(own).arg("test").args(&parts);
        let command = command.shown_as(&format!("cargo xtask test {}", parts.join(" ")));
        let line = command.line();
        println!(
            "beside what follows, with what it leaves of the processors: {line}, into {}",
            output.display()
        );
        Ok(Self {
            parts,
            line,
            child: command.spawn_into(file)?,
            started: Instant::now(),
            output,
        })
    }

    /// Its parts.
    pub(crate) fn name(&self) -> String {
        self.parts.join(" ")
    }

    /// Waits for its end, and prints what it has printed. How long it took, and what failed.
    pub(crate) fn end(mut self) -> (Duration, anyhow::Result<()>) {
        let ended = self.child.wait().context("cannot wait for it");
        let took = self.started.elapsed();
        println!("\n━━ {} ━━ beside the others", self.name());
        match fs::read(&self.output) {
            Ok(output) => println!("{}", String::from_utf8_lossy(&output)),
            Err(error) => println!("{}: {error}", self.output.display()),
        }
        (took, ended.and_then(|status| check(status, &self.line)))
    }
}

/// Runs a program when nobody else wants a processor, or nearly so.
fn idle() -> Cmd {
    let chrt = || Cmd::new("chrt").args(["--idle", "0"]);
    if chrt().arg("true").works() {
        chrt()
    } else {
        Cmd::new("nice").args(["-n", "19"])
    }
}
