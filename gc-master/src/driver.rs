//! Drives collection: asks the oracle for the time, and lets the directory move its points.

use std::time::Duration;

use percolator_client::TimestampClient;
use percolator_protocol::types::Timestamp;

/// Takes a step again and again until `step` returns `None`. `step` takes the directory's step
/// ([`Directory::collect`](crate::Directory::collect)) with a timestamp that was taken since its last call, or why there is
/// none, and returns how long to wait before the next one.
pub(crate) async fn drive(
    oracle: &TimestampClient,
    mut step: impl FnMut(Result<Timestamp, String>) -> Option<Duration>,
) {
    let mut pause = Duration::from_millis(100);
    loop {
        oracle.pause(pause).await;
        match step(oracle.timestamp().await) {
            Some(next) => pause = next,
            None => return,
        }
    }
}
