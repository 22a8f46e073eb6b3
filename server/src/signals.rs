//! Being told to stop.

use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// Set to 1 by a parent that holds the other end of the process's standard input: when that end is
/// closed, however the parent died, the process stops too.
pub const LIFELINE_VARIABLE: &str = "PERCOLATOR_LIFELINE";

/// Ends when the process is asked to stop: SIGINT (Ctrl-C) or SIGTERM. From the first poll on,
/// these signals no longer end the process by themselves.
pub async fn shutdown() {
    let mut interrupt = signal(SignalKind::interrupt()).ok();
    let mut terminate = signal(SignalKind::terminate()).ok();
    let name = tokio::select! {
        Some(()) = async { interrupt.as_mut()?.recv().await } => "SIGINT",
        Some(()) = async { terminate.as_mut()?.recv().await } => "SIGTERM",
        () = parent_gone() => "the end of the parent",
        // Signals that cannot be caught keep their default: they end the process.
        else => std::future::pending().await,
    };
    tracing::info!(signal = name, "stopping");
}

/// Ends when the parent that asked for it is gone.
async fn parent_gone() {
    if std::env::var_os(LIFELINE_VARIABLE).is_none_or(|value| value != "1") {
        return std::future::pending().await;
    }
    let mut nothing = [0];
    // Neither bytes nor an error is the end of the pipe.
    while !matches!(tokio::io::stdin().read(&mut nothing).await, Ok(0)) {}
}
