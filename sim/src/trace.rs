//! What happened, for people and for the proof that a seed always does the same.

use std::time::Duration;

/// What of the trace is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Nothing: the texts aren't made.
    #[default]
    Nothing,
    /// Everything.
    All,
}

/// A length of time, for people: `1.5 s`, `20 ms`, `300 us`.
pub(crate) fn shown(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{} ms", micros as f64 / 1_000.0),
        _ => format!("{} s", micros as f64 / 1_000_000.0),
    }
}

/// Events as lines.
#[derive(Debug, Default)]
pub struct Trace {
    keep: Keep,
    lines: Vec<String>,
    events: u64,
}

impl Trace {
    /// An empty trace.
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            ..Self::default()
        }
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The lines that were kept.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    pub(crate) fn note(&mut self, now_us: u64, text: impl FnOnce() -> String) {
        self.events += 1;
        if self.keep == Keep::Nothing {
            return;
        }
        let at = Duration::from_micros(now_us).as_secs_f64();
        self.lines.push(format!("{at:11.6}  {}", text()));
    }
}
