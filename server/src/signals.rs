//! Being told to stop.

use std::io::Read;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Set to 1 by a parent that holds the other end of the process's standard input: when that end is
/// closed, however the parent died, the process stops too.
pub const LIFELINE_VARIABLE: &str = "PERCOLATOR_LIFELINE";

/// Ends when the process is asked to stop: SIGINT (Ctrl-C), SIGTERM, SIGHUP (its terminal is closed), or
/// the end of the parent that asked for it with [`LIFELINE_VARIABLE`]. From this call on, not from the first poll, these signals no
/// longer end the process by themselves. Needs a tokio runtime around it.
pub fn shutdown() -> impl Future<Output = ()> {
    let interrupt = signal(SignalKind::interrupt()).ok();
    let terminate = signal(SignalKind::terminate()).ok();
    let hangup = signal(SignalKind::hangup()).ok();
    stopped(interrupt, terminate, hangup)
}

async fn stopped(
    mut interrupt: Option<Signal>,
    mut terminate: Option<Signal>,
    mut hangup: Option<Signal>,
) {
    let name = tokio::select! {
        Some(()) = async { interrupt.as_mut()?.recv().await } => "SIGINT",
        Some(()) = async { terminate.as_mut()?.recv().await } => "SIGTERM",
        Some(()) = async { hangup.as_mut()?.recv().await } => "SIGHUP",
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
    let (gone, is_gone) = oneshot::channel();
    // A thread of its own, which nobody waits for: reading can't be interrupted.
    let reader = std::thread::Builder::new()
        .name("lifeline".into())
        .spawn(move || {
            let mut nothing = [0];
            while matches!(std::io::stdin().read(&mut nothing), Ok(1)) {}
            let _ = gone.send(());
        });
    if reader.is_err() || is_gone.await.is_err() {
        std::future::pending().await
    }
}
