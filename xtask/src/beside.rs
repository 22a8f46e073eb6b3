//! Parts of the tests that run beside the others, as a `cargo xtask test` of their own.

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
    tally::Tally,
};

/// A `cargo xtask test` of some parts.
#[derive(Debug)]
pub(crate) struct ParallelParts {
    parts: Vec<&'static str>,
    line: String,
    child: Child,
    started: Instant,
    /// Its output, which is read as a whole.
    output: PathBuf,
}

/// Its share of the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// As much as the others.
    Equal,
    /// The share that the others leave.
    Rest,
}

impl ParallelParts {
    /// Starts these parts, with these arguments of theirs.
    pub(crate) fn start(
        context: &Context,
        parts: &[Part],
        arguments: &[String],
        share: Share,
    ) -> anyhow::Result<Self> {
        let parts: Vec<_> = parts.iter().map(|part| part.name()).collect();
        let output = format!("beside-{}.txt", parts.join("-"));
        let output = context.metadata()?.target.join(output);
        let file = File::create(&output).with_context(|| output.display().to_string())?;
        // The one that was just built: the file of the running one may be gone by that.
        let own = context.built()?.programs.join("xtask");
        let command = match share {
            Share::Equal => Cmd::new(own),
            Share::Rest => idle().arg(own),
        };
        let command = command.arg("test").args(&parts).args(arguments);
        let shown = [&["cargo xtask test".to_owned(), parts.join(" ")], arguments].concat();
        let command = command.shown_as(&shown.join(" "));
        let line = command.line();
        let how = match share {
            Share::Equal => "",
            Share::Rest => ", with what it leaves of the processors",
        };
        println!(
            "beside what follows{how}: {line}, into {}",
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

    /// Waits for its end, and prints what it has printed.
    pub(crate) fn end(mut self) -> Ended {
        let ended = self.child.wait().context("cannot wait for it");
        let took = self.started.elapsed();
        println!("\n━━ {} ━━ beside the others", self.name());
        let output = fs::read(&self.output);
        let output = output.map_or_else(
            |error| format!("{}: {error}", self.output.display()),
            |output| String::from_utf8_lossy(&output).into_owned(),
        );
        println!("{output}");
        let last_words = last_words(&output);
        Ended {
            took,
            result: ended.and_then(|status| check(status, &self.line)),
            tally: Tally::read(&last_words),
            last_words: last_words.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// The results of parts that ran beside others.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) took: Duration,
    pub(crate) result: anyhow::Result<()>,
    pub(crate) tally: Tally,
    /// The lines behind its table: what failed, and why.
    pub(crate) last_words: Vec<String>,
}

/// The output of a `cargo xtask test` behind its table; of one that ends before it, its last lines.
fn last_words(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let table = lines.iter().rposition(|line| line.starts_with("all "));
    let from = table.map_or(lines.len().saturating_sub(20), |all| all + 1);
    lines[from..].to_vec()
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

#[cfg(test)]
mod tests {
    use super::last_words;

    #[test]
    fn what_failed_stands_behind_the_table() {
        let output = "all is well\nthread\n\nall    4.0\n\ntests: 1 passed, 1 failed, 0 skipped\nFAILED: a\n";
        let expected = ["", "tests: 1 passed, 1 failed, 0 skipped", "FAILED: a"];
        assert_eq!(last_words(output), expected);
        assert_eq!(last_words("killed\n"), ["killed"]);
        assert_eq!(last_words(&"a line\n".repeat(30)).len(), 20);
    }
}
