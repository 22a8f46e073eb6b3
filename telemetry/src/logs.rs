//! The process's log: lines on standard error.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::{self, Format, JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::{EnvFilter, reload};

use crate::trace::key;
use crate::who::{self, ServerIdentity};

/// The variable that says how much is logged: a level (`error`, `warn`, `info`, `debug`, `trace`) or
/// a list of `target=level`.
pub const LEVEL_VARIABLE: &str = "PERCOLATOR_LOG";

/// The variable that names a file with the level. The file is read every second, so that the level changes without a restart.
/// [`LEVEL_VARIABLE`] wins if it is set.
pub const LEVEL_FILE_VARIABLE: &str = "PERCOLATOR_LOG_LEVEL_FILE";

/// The variable with the format of lines: `text`, or `json`, one object a line. If it isn't set, lines are text on a
/// terminal, and JSON in a file or a pipe, which programs read.
pub const FORMAT_VARIABLE: &str = "PERCOLATOR_LOG_FORMAT";

/// How often the file with the level is read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// How a process logs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The level, if the environment sets none.
    pub level: &'static str,
    /// A file with the level that is followed, where the environment names none.
    pub level_file: Option<PathBuf>,
    /// Whether lines are JSON. `None`: [`FORMAT_VARIABLE`] decides.
    pub json: Option<bool>,
}

impl Settings {
    /// From this level on, and else as the environment says.
    pub fn from(level: &'static str) -> Self {
        Self {
            level,
            level_file: None,
            json: None,
        }
    }
}

/// Logs the events of a process that is one server to standard error, in colour on a terminal. The level is `info`
/// unless [`LEVEL_VARIABLE`] or [`LEVEL_FILE_VARIABLE`] sets another one, and [`FORMAT_VARIABLE`] sets the format. Does
/// nothing if a subscriber is installed already.
pub fn init(who: ServerIdentity) {
    who.is_process();
    init_with(Settings::from("info"));
}

/// [`init`], for a process that is no server, or several.
pub fn init_with(settings: Settings) {
    let level = settings.level;
    let asked = std::env::var(LEVEL_VARIABLE).unwrap_or_default();
    let file = std::env::var_os(LEVEL_FILE_VARIABLE)
        .filter(|file| !file.is_empty())
        .map(PathBuf::from)
        .or(settings.level_file)
        .filter(|_| asked.is_empty());
    let limits = match &file {
        Some(file) => read(file, level),
        None => LogLimits::parse(&asked, level)
            .map_err(|error| format!("{LEVEL_VARIABLE}={asked} is not understood: {error}")),
    };
    let (limits, problem) = match limits {
        Ok(limits) => (limits, None),
        Err(problem) => (LogLimits::default_of(level), Some(problem)),
    };
    let format = std::env::var(FORMAT_VARIABLE).unwrap_or_default();
    let is_json = settings.json.unwrap_or_else(|| match format.as_str() {
        "json" => true,
        "" => !io::stderr().is_terminal(),
        _ => false,
    });
    let logs = tracing_subscriber::fmt()
        .with_env_filter(limits.filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && !is_json);
    let follower = Follower {
        level,
        current: limits.text,
        last_problem: String::new(),
    };
    let installed = if is_json {
        let json = format::format().json().flatten_event(true);
        let logs = logs.fmt_fields(JsonFields::new()).event_format(Json(json));
        let logs = logs.with_filter_reloading();
        let filter = logs.reload_handle();
        let installed = logs.try_init().is_ok();
        installed.then(|| follow(file, follower, filter))
    } else {
        let logs = logs.event_format(Text).with_filter_reloading();
        let filter = logs.reload_handle();
        let installed = logs.try_init().is_ok();
        installed.then(|| follow(file, follower, filter))
    };
    let is_known = settings.json.is_some() || matches!(format.as_str(), "" | "text" | "json");
    if installed.is_some() && !is_known {
        tracing::warn!(
            format,
            "{FORMAT_VARIABLE} must be text or json: logging as text"
        );
    }
    if let (Some(()), Some(problem)) = (installed, problem) {
        tracing::warn!("{problem}: logging from {level} on");
    }
}

/// A line of text: time, level, server, target, message.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (dim, plain) = if line.has_ansi_escapes() {
            ("\x1b[2m", "\x1b[0m")
        } else {
            ("", "")
        };
        let about = event.metadata();
        let colour = match *about.level() {
            _ if dim.is_empty() => "",
            Level::ERROR => "\x1b[31m",
            Level::WARN => "\x1b[33m",
            Level::INFO => "\x1b[32m",
            Level::DEBUG => "\x1b[34m",
            Level::TRACE => "\x1b[35m",
        };
        line.write_str(dim)?;
        SystemTime.format_time(&mut line)?;
        write!(line, "{plain} {colour}{:>5}{plain} ", about.level())?;
        if let Some(who) = who::current() {
            let ServerIdentity { role, server } = &*who;
            write!(line, "{}={role} {}={server} ", key::ROLE, key::SERVER)?;
        }
        let spans = context.event_scope().into_iter();
        for span in spans.flat_map(Scope::from_root) {
            line.write_str(span.name())?;
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<N>>()
                && !fields.is_empty()
            {
                write!(line, "{{{fields}}}")?;
            }
            line.write_str(": ")?;
        }
        write!(line, "{dim}{}:{plain} ", about.target())?;
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

/// One JSON object a line, with the server as its last fields.
struct Json(Format<format::Json>);

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(who) = who::current() else {
            return self.0.format_event(context, line, event);
        };
        let mut object = String::new();
        self.0
            .format_event(context, Writer::new(&mut object), event)?;
        let object = object.trim_end();
        let fields = object.strip_suffix('}').unwrap_or(object);
        let (role, server) = (key::ROLE, key::SERVER);
        let name = serde_json::Value::from(who.server.as_str());
        writeln!(
            line,
            r#"{fields},"{role}":"{}","{server}":{name}}}"#,
            who.role
        )
    }
}

/// A filter of events, and the text that it was made from.
struct LogLimits {
    text: String,
    filter: EnvFilter,
}

impl LogLimits {
    fn default_of(level: &str) -> Self {
        Self {
            text: level.to_owned(),
            filter: EnvFilter::new(level),
        }
    }

    /// Of a text that is empty, the default.
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

fn read(file: &Path, default: &str) -> Result<LogLimits, String> {
    let problem = |error: &dyn std::fmt::Display| {
        format!(
            "{}, which {LEVEL_FILE_VARIABLE} names: {error}",
            file.display()
        )
    };
    let text = std::fs::read_to_string(file).map_err(|error| problem(&error))?;
    LogLimits::parse(&text, default).map_err(|error| problem(&error))
}

/// What is remembered between two reads of the file.
struct Follower {
    /// The level if the file is empty.
    level: &'static str,
    current: String,
    /// The last problem that was logged: once is enough.
    last_problem: String,
}

/// Reads the file again and again, in a thread of its own, because a read may wait for a disk. While the file can't be
/// read, the last level counts.
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
                follower.reread(&file, &filter);
            }
        });
    if let Err(error) = thread {
        tracing::warn!(%error, "no thread for changes of the log's level: it stays");
    }
}

impl Follower {
    fn reread<S>(&mut self, file: &Path, filter: &reload::Handle<EnvFilter, S>) {
        match read(file, self.level) {
            Ok(limits) if limits.text != self.current => {
                // The change is logged at any level.
                let ours = format!("{},{}=info", limits.text, module_path!());
                let with_ours = EnvFilter::try_new(ours).unwrap_or(limits.filter);
                if let Err(error) = filter.reload(with_ours) {
                    tracing::warn!(%error, "the log's level can't be changed any more");
                }
                tracing::info!(from = self.current, to = limits.text, "log level");
                self.current = limits.text;
                self.last_problem.clear();
            }
            Ok(_) => self.last_problem.clear(),
            Err(problem) if problem != self.last_problem => {
                tracing::warn!("{problem}: logging from {} on, as before", self.current);
                self.last_problem = problem;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The line that a thread of this server logs, without the time.
    fn logged(server: &str, is_json: bool) -> String {
        let lines = Lines::default();
        let (writer, server) = (lines.clone(), server.to_owned());
        let thread = std::thread::spawn(move || {
            let who = ServerIdentity {
                role: "tablet",
                server,
            };
            who.is_thread();
            let logs = tracing_subscriber::fmt()
                .with_writer(move || writer.clone())
                .with_ansi(false);
            let warn = || {
                let span = tracing::info_span!("step", number = 1);
                let _step = span.enter();
                tracing::warn!(target: "here", tablet = 7, "it is late");
            };
            if is_json {
                let json = format::format()
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false);
                let logs = logs.fmt_fields(JsonFields::new()).event_format(Json(json));
                tracing::subscriber::with_default(logs.finish(), warn);
            } else {
                tracing::subscriber::with_default(logs.event_format(Text).finish(), warn);
            }
        });
        thread.join().expect("no panic");
        let lines = lines.0.lock().expect("no panic").clone();
        let text = String::from_utf8(lines).expect("text");
        if is_json {
            let mut object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let time = object["timestamp"].take();
            assert!(time.is_string(), "{text}");
            object.to_string()
        } else {
            text.split_once(' ').expect("a time").1.to_owned()
        }
    }

    #[test]
    fn a_line_names_its_server() {
        assert_eq!(
            logged("tablet-0", false),
            " WARN role=tablet server=tablet-0 step{number=1}: here: it is late tablet=7\n"
        );
        assert_eq!(
            logged("\"odd\"", true),
            r#"{"level":"WARN","message":"it is late","role":"tablet","server":"\"odd\"","tablet":7,"target":"here","timestamp":null}"#
        );
    }
}
