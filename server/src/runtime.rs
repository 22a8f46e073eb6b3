//! The runtime of a server process.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use percolator_telemetry::who;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Error;

/// How long work on other threads (a file being synced) may go on after the server ended.
const LEFTOVER: Duration = Duration::from_secs(5);

/// Runs the future to its end on this thread: on few cores one thread that serves requests where
/// it reads them is faster than workers that hand them over.
///
/// # Errors
/// [`Error::Runtime`] if the system gives no runtime.
pub fn run_on_current_thread<F: Future>(name: &str, future: F) -> Result<F::Output, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name(name)
        .on_thread_start(who::entering())
        .build()
        .map_err(|cause| Error::Runtime {
            name: name.to_owned(),
            cause,
        })?;
    let output = runtime.block_on(future);
    runtime.shutdown_timeout(LEFTOVER);
    Ok(output)
}

/// Has the system let this process have as many connections as it may. It has 1,024 open files where it doesn't ask for
/// more, for the sake of programs that need it so, and those that it starts have what it has: one that starts others than ours doesn't
/// ask.
pub fn many_connections() {
    let limits = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limits.maximum,
        ..limits
    };
    // At worst it has as many as before.
    let _ = setrlimit(Resource::Nofile, all);
}

/// How many files and connections the system lets this process have open at a time.
pub fn open_files_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    // None: there is no limit.
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

/// Makes the system give this process, and those that it starts, memory in small pages. A large one takes its room whole, and
/// is cleared at once, for milliseconds in which its thread answers no request. If the system can't, nothing is worse.
pub fn small_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// How a program ends: an error is one line on standard error, as people read it, and exit code 1.
pub fn exit_code<E: Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is closed: there is nowhere to log.
            let _ = writeln!(std::io::stderr().lock(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
