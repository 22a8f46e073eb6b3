//! What the process tells its operator: lines on standard error.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::{EnvFilter, reload};

/// The variable that says how much is told: a level (`error`, `warn`, `info`, `debug`, `trace`) or
/// a list of `target=level`.
pub const LEVEL_VARIABLE: &str = "PERCOLATOR_LOG";

/// The variable that names a file which says so in the same words, and is read again every second: whoever runs the
/// cluster changes it without a restart. [`LEVEL_VARIABLE`] wins where it is set.
pub const LEVEL_FILE_VARIABLE: &str = "PERCOLATOR_LOG_LEVEL_FILE";

/// The variable that says how a line looks: `text`, for people, or `json`, one object a line. Where it isn't set, it
/// is text on a terminal, and JSON elsewhere: who reads a file or a pipe is a program.
pub const FORMAT_VARIABLE: &str = "PERCOLATOR_LOG_FORMAT";

/// How often the file with the level is read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Sends the process's events to standard error, in colour on a terminal, from level `info` on
/// unless [`LEVEL_VARIABLE`] or [`LEVEL_FILE_VARIABLE`] says otherwise, as [`FORMAT_VARIABLE`] says. Does nothing if
/// events go somewhere already.
pub fn init() {
    init_from("info");
}

/// [`init`], from another level on.
pub fn init_from(level: &'static str) {
    let asked = std::env::var(LEVEL_VARIABLE).unwrap_or_default();
    let file = std::env::var_os(LEVEL_FILE_VARIABLE)
        .filter(|file| !file.is_empty() && asked.is_empty())
        .map(PathBuf::from);
    let said = match &file {
        Some(file) => read(file, level),
        None => Said::parse(&asked, level)
            .map_err(|error| format!("{LEVEL_VARIABLE}={asked} is not understood: {error}")),
    };
    let (said, problem) = match said {
        Ok(said) => (said, None),
        Err(problem) => (Said::default_of(level), Some(problem)),
    };
    let format = std::env::var(FORMAT_VARIABLE).unwrap_or_default();
    let logs = tracing_subscriber::fmt()
        .with_env_filter(said.filter)
        .with_writer(io::stderr);
    let follower = Follower {
        level,
        said: said.text,
        told: String::new(),
    };
    let is_json = match format.as_str() {
        "json" => true,
        "" => !io::stderr().is_terminal(),
        _ => false,
    };
    let installed = match is_json {
        true => {
            let logs = logs.json().flatten_event(true).with_filter_reloading();
            let filter = logs.reload_handle();
            let installed = logs.try_init().is_ok();
            installed.then(|| follow(file, follower, filter))
        }
        false => {
            let logs = logs.with_ansi(io::stderr().is_terminal());
            let logs = logs.with_filter_reloading();
            let filter = logs.reload_handle();
            let installed = logs.try_init().is_ok();
            installed.then(|| follow(file, follower, filter))
        }
    };
    if installed.is_some() && !matches!(format.as_str(), "" | "text" | "json") {
        tracing::warn!(
            format,
            "{FORMAT_VARIABLE} must be text or json: telling as text"
        );
    }
    if let (Some(()), Some(problem)) = (installed, problem) {
        tracing::warn!("{problem}: telling from {level} on");
    }
}

/// How much is to be told.
struct Said {
    text: String,
    filter: EnvFilter,
}

impl Said {
    fn default_of(level: &str) -> Self {
        Self {
            text: level.to_owned(),
            filter: EnvFilter::new(level),
        }
    }

    /// Where nothing is said, it's the default.
    fn parse(text: &str, default: &str) -> Result<Self, ParseError> {
        let text = match text.trim() {
            "" => default,
            text => text,
        };
        Ok(Self {
            text: text.to_owned(),
            filter: EnvFilter::try_new(text)?,
        })
    }
}

fn read(file: &Path, default: &str) -> Result<Said, String> {
    let problem = |error: &dyn std::fmt::Display| {
        format!(
            "{}, which {LEVEL_FILE_VARIABLE} names: {error}",
            file.display()
        )
    };
    let text = std::fs::read_to_string(file).map_err(|error| problem(&error))?;
    Said::parse(&text, default).map_err(|error| problem(&error))
}

/// What is remembered between two looks at the file.
struct Follower {
    /// Where the file says nothing.
    level: &'static str,
    said: String,
    /// The last problem that was told of: once is enough.
    told: String,
}

/// Reads the file again and again, in a thread of its own: reading may wait for a disk. What it said last counts as
/// long as it can't be read.
fn follow<S: 'static>(
    file: Option<PathBuf>,
    mut follower: Follower,
    filter: reload::Handle<EnvFilter, S>,
) {
    let Some(file) = file else { return };
    let thread = std::thread::Builder::new()
        .name("log-level".into())
        .spawn(move || {
            loop {
                std::thread::sleep(READ_EVERY);
                follower.look(&file, &filter);
            }
        });
    if let Err(error) = thread {
        tracing::warn!(%error, "no thread for changes of the log's level: it stays");
    }
}

impl Follower {
    fn look<S>(&mut self, file: &Path, filter: &reload::Handle<EnvFilter, S>) {
        match read(file, self.level) {
            Ok(said) if said.text != self.said => {
                // That it changed is told whatever the level.
                let ours = format!("{},{}=info", said.text, module_path!());
                let with_ours = EnvFilter::try_new(ours).unwrap_or(said.filter);
                if let Err(error) = filter.reload(with_ours) {
                    tracing::warn!(%error, "the log's level can't be changed any more");
                }
                tracing::info!(from = self.said, to = said.text, "log level");
                self.said = said.text;
                self.told.clear();
            }
            Ok(_) => self.told.clear(),
            Err(problem) if problem != self.told => {
                tracing::warn!("{problem}: telling from {} on, as before", self.said);
                self.told = problem;
            }
            Err(_) => {}
        }
    }
}
