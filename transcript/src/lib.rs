//! Runs the console blocks of a page in Markdown and compares what they print with what the page shows.
//!
//! `cargo xtask test readme` runs the README and pages of the docs; the tests of the `percolator` command run
//! `cli/tests/transcripts/`. [`steps()`] says how blocks are read.
//!
//! An expected line `...` stands for any number of lines, and `...` within a line for any text. Blanks at the end of a
//! line don't count, nor do empty lines at the end.
//!
//! trycmd splits its command lines itself and starts each alone. These pages need a shell: pipes, variables, and
//! programs that go on in the background.

mod comparison;
mod page;
mod shell;

use std::{fs, path::Path};

use anyhow::{Context as _, bail};

use comparison::Comparison;
use page::rewritten;
pub use page::{Step, steps};
pub use shell::{CommandOutput, Environment, Shell};

/// What it means that a page shows no output below a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OmittedOutput {
    /// The command may print anything. For pages that are written for readers.
    Any,
    /// The command prints nothing.
    Empty,
}

/// What a step printed, and how that differs from what the page shows.
#[derive(Debug)]
pub struct StepOutcome {
    /// All that it printed.
    pub output: CommandOutput,
    /// For a person; `None` if nothing differs.
    pub mismatch: Option<String>,
}

impl Step {
    /// Runs the command. The step `next` matters if it shows the exit code.
    ///
    /// # Errors
    /// If the shell ends or the command hangs.
    pub fn run(
        &self,
        shell: &mut Shell,
        next: Option<&Self>,
        omitted: OmittedOutput,
    ) -> anyhow::Result<StepOutcome> {
        let output = if self.background {
            shell.run_in_background(self)?
        } else {
            shell.run(&self.command)?
        };
        let shows_status = next.is_some_and(|next| next.command == "echo $?");
        let status = if shows_status {
            output.status
        } else {
            self.status
        };
        let mut wrong = Vec::new();
        if output.status != status {
            let ended = output.status;
            wrong.push(format!("ends with {ended}, expected {status}"));
        }
        let is_omitted = self.expected.is_empty()
            && (self.is_script || self.background || omitted == OmittedOutput::Any);
        if !is_omitted {
            let mut expected = self.expected.clone();
            if self.background {
                expected.push("...".to_owned());
            }
            let comparison = Comparison::new(&expected, &output.lines);
            if !comparison.is_match() {
                wrong.push(comparison.to_string());
            }
        }
        Ok(StepOutcome {
            output,
            mismatch: (!wrong.is_empty()).then(|| wrong.join("\n")),
        })
    }
}

/// Runs a page to its end, and fails with all differences. `REWRITE=1` in the environment writes what was printed into
/// the page instead; wildcards that still match stay.
///
/// # Errors
/// If the page cannot be read or written, a command hangs, or a step prints something else than the page shows.
pub fn check(page: &Path, mut shell: Shell) -> anyhow::Result<()> {
    let text =
        fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let steps = steps(&text);
    if steps.is_empty() {
        bail!("{} shows no commands", page.display());
    }
    let (mut outputs, mut wrong) = (Vec::new(), Vec::new());
    for (at, step) in steps.iter().enumerate() {
        let place = format!("{}:{}: $ {}", page.display(), step.line, step.command);
        let outcome = step
            .run(&mut shell, steps.get(at + 1), OmittedOutput::Empty)
            .with_context(|| place.clone())?;
        if let Some(mismatch) = outcome.mismatch {
            wrong.push(format!("{place}\n{mismatch}"));
        }
        outputs.push(outcome.output);
    }
    shell.stop()?;
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        fs::write(page, rewritten(&text, &steps, &outputs))?;
    } else if !wrong.is_empty() {
        bail!(
            "{}\nREWRITE=1 writes what was printed into the page",
            wrong.join("\n")
        );
    }
    Ok(())
}
