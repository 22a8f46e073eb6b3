//! Registers whose work blocks a thread: it runs on the runtime's threads for that, and is not waited for beyond a time.

use std::path::Path;
use std::time::Duration;

use crate::{LoadError, RegisterVersion, SwapError, VersionedValue, WriteId};

/// Loads the register at this path.
pub(crate) async fn load(
    path: &Path,
    timeout: Duration,
    load: impl FnOnce() -> Result<Option<VersionedValue>, LoadError> + Send + 'static,
) -> Result<Option<VersionedValue>, LoadError> {
    let loaded = within(timeout, load).await;
    loaded.unwrap_or_else(|reason| {
        Err(LoadError::Unavailable {
            register: path.display().to_string(),
            reason,
        })
    })
}

/// Swaps the value of the register at this path. A thread that waits for the device can't be ended: what it does may be done later.
pub(crate) async fn swap(
    path: &Path,
    timeout: Duration,
    write: WriteId,
    swap: impl FnOnce() -> Result<RegisterVersion, SwapError> + Send + 'static,
) -> Result<RegisterVersion, SwapError> {
    let swapped = within(timeout, swap).await;
    swapped.unwrap_or_else(|reason| {
        Err(SwapError::Unknown {
            register: path.display().to_string(),
            write,
            reason,
        })
    })
}

/// Does the work on a thread that may block; an error is that it has not ended in time, or in a panic.
async fn within<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(timeout, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer from the device within {timeout:?}")),
    }
}
