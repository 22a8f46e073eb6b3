//! The runtime of a server process.

use std::time::Duration;

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
        .build()
        .map_err(|source| Error::Runtime {
            name: name.to_owned(),
            source,
        })?;
    let output = runtime.block_on(future);
    runtime.shutdown_timeout(LEFTOVER);
    Ok(output)
}
