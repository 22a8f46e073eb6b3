//! How far a long command is, on standard error: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// How often the bar is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows how far a command is.
pub(crate) struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
    total_bytes: Option<u64>,
    shown: Instant,
}

impl Progress {
    /// With a total, the bar is one of bytes; without, it only counts.
    pub(crate) fn new(output: Output, total_bytes: Option<u64>) -> Self {
        let bar = (!output.quiet && io::stderr().is_terminal()).then(|| {
            let (bar, template) = match total_bytes {
                Some(total) => (
                    ProgressBar::new(total),
                    "{bar:30} {bytes}/{total_bytes} {msg} ({eta} left)",
                ),
                None => (ProgressBar::new_spinner(), "{spinner} {msg} ({elapsed})"),
            };
            // A template that can't be read leaves the default one.
            match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self {
            output,
            bar,
            total_bytes,
            shown: Instant::now(),
        }
    }

    /// Shows a position, in bytes of the total or any count, and a message, if it is time to.
    pub(crate) fn show(&mut self, position: u64, message: impl FnOnce() -> String) {
        let every = if self.bar.is_some() {
            DRAW_EVERY
        } else {
            LINE_EVERY
        };
        if self.output.quiet || self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        match (&self.bar, self.total_bytes) {
            (Some(bar), _) => {
                bar.set_position(position);
                bar.set_message(message());
                bar.tick();
            }
            (None, Some(total)) => self.output.note(&format!(
                "{}, {:.0} % of the file",
                message(),
                // Only for a person to read.
                position as f64 * 100.0 / total.max(1) as f64
            )),
            (None, None) => self.output.note(&message()),
        }
    }

    /// Says something that has to be seen, above the bar.
    pub(crate) fn say(&self, message: &str) {
        self.above(|| super::say(message));
    }

    /// Says something that `--quiet` leaves out.
    pub(crate) fn note(&self, message: &str) {
        self.above(|| self.output.note(message));
    }

    fn above(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
