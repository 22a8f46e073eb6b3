//! What the process tells its operator: lines on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// The variable that says how much is told: a level (`error`, `warn`, `info`, `debug`, `trace`) or
/// a list of `target=level`.
pub const LEVEL_VARIABLE: &str = "PERCOLATOR_LOG";

/// The variable that says how a line looks: `text`, for people, or `json`, one object a line.
pub const FORMAT_VARIABLE: &str = "PERCOLATOR_LOG_FORMAT";

/// Sends the process's events to standard error, in colour on a terminal, from level `info` on
/// unless [`LEVEL_VARIABLE`] says otherwise, as [`FORMAT_VARIABLE`] says. Does nothing if events go somewhere already.
pub fn init() {
    init_from("info");
}

/// [`init`], from another level on.
pub fn init_from(level: &str) {
    let asked = std::env::var(LEVEL_VARIABLE).unwrap_or_default();
    let parsed = if asked.is_empty() {
        Ok(EnvFilter::new(level))
    } else {
        EnvFilter::try_new(&asked)
    };
    let (filter, problem) = match parsed {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(level), Some(error)),
    };
    let format = std::env::var(FORMAT_VARIABLE).unwrap_or_default();
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let installed = match format.as_str() {
        "json" => logs.json().flatten_event(true).try_init(),
        _ => logs.with_ansi(io::stderr().is_terminal()).try_init(),
    };
    let installed = installed.is_ok();
    if installed && !matches!(format.as_str(), "" | "text" | "json") {
        tracing::warn!(
            format,
            "{FORMAT_VARIABLE} must be text or json: telling as text"
        );
    }
    if let (true, Some(error)) = (installed, problem) {
        tracing::warn!(%error, asked, "{LEVEL_VARIABLE} is not understood: telling from {level} on");
    }
}
