//! The signals to stop.

use std::io::Read;
use std::sync::OnceLock;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Set to 1 by a parent that holds the other end of the process's standard input: when that end is
/// closed, however the parent died, the process stops too.
pub const LIFELINE_VARIABLE: &str = "PERCOLATOR_LIFELINE";

/// The number of SIGHUP on every Linux.
const HANGUP: u32 = 1;

/// Ends when the process is asked to stop: SIGINT (Ctrl-C), SIGTERM, SIGHUP (its terminal is closed; not where it was started to
/// ignore that, as by nohup), or the end of the parent that asked for it with [`LIFELINE_VARIABLE`]. From this call on, not from the first poll, these signals no
/// longer end the process by themselves. Needs a tokio runtime around it.
pub fn shutdown() -> impl Future<Output = ()> {
    let interrupt = signal(SignalKind::interrupt()).ok();
    let terminate = signal(SignalKind::terminate()).ok();
    let hangup = (!ignores_hangup())
        .then(|| signal(SignalKind::hangup()).ok())
        .flatten();
    stopped(interrupt, terminate, hangup)
}

/// Whether the process was started with SIGHUP ignored. Known before the first handler is there.
fn ignores_hangup() -> bool {
    static IGNORES: OnceLock<bool> = OnceLock::new();
    *IGNORES.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status");
        status.is_ok_and(|status| ignores(&status, HANGUP))
    })
}

/// Whether a process ignores a signal, by the kernel's mask: a bit each, the lowest one for signal 1.
fn ignores(status: &str, signal: u32) -> bool {
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.is_some_and(|bits| bits >> (signal - 1) & 1 == 1)
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
    // A thread of its own, which is never joined: reading can't be interrupted.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_known() {
        let of = |bits: &str| {
            let status = format!("Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t{bits}\n");
            ignores(&status, HANGUP)
        };
        assert!(of("0000000000000001") && of("0000000000001001"));
        assert!(!of("0000000000001000") && !of("fffffffffffffffe"));
        assert!(!of("") && !ignores("", HANGUP));
    }
}
