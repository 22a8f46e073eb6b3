//! Being told to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Ends when the process is asked to stop: SIGINT (Ctrl-C) or SIGTERM. From the first poll on,
/// these signals no longer end the process by themselves.
pub async fn shutdown() {
    let mut interrupt = signal(SignalKind::interrupt()).ok();
    let mut terminate = signal(SignalKind::terminate()).ok();
    let name = tokio::select! {
        Some(()) = async { interrupt.as_mut()?.recv().await } => "SIGINT",
        Some(()) = async { terminate.as_mut()?.recv().await } => "SIGTERM",
        // Signals that cannot be caught keep their default: they end the process.
        else => std::future::pending().await,
    };
    tracing::info!(signal = name, "stopping");
}
