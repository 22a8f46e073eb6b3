//! Scans of a session: a task reads at most one chunk ahead of its reader.

use std::sync::Arc;

use percolator_client::{Entry, Error};
use tokio::sync::{mpsc, watch};

use super::Transactions;
use crate::failure::Failure;
use crate::sessions::Refusal;

/// What a scan hands over at a time: so many cells, or the bytes that one more cell brings above this.
const CHUNK_CELLS: usize = 256;
const CHUNK_BYTES: usize = 256 << 10;

/// Some cells of a scan, in order.
pub(crate) type Chunk = Result<Vec<Entry>, Failure>;

/// A scan under way.
pub(super) struct ScanGuard {
    pub(super) of: Arc<Transactions>,
    pub(super) session: String,
}

impl Drop for ScanGuard {
    fn drop(&mut self) {
        let now = self.of.now();
        self.of.sessions.lock().scan_done(now, &self.session);
    }
}

/// Reads a scan for whoever takes its chunks, to its end or the session's.
pub(super) async fn produce(
    mut scan: percolator_client::Scan,
    mut ended: watch::Receiver<bool>,
    guard: ScanGuard,
    sender: mpsc::Sender<Chunk>,
) {
    loop {
        let read = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            read = chunk(&mut scan) => read,
        };
        let (chunk, is_last) = match read {
            Ok((entries, is_last)) => (Ok(entries), is_last),
            Err(error) => (Err(guard.of.failed(&guard.session, error)), true),
        };
        tokio::select! {
            biased;
            sent = sender.send(chunk) => if sent.is_err() || is_last {
                return;
            },
            _ = ended.wait_for(|ended| *ended) => break,
        }
        let now = guard.of.now();
        guard.of.sessions.lock().scan_goes_on(now, &guard.session);
    }
    let why = guard.of.sessions.lock().why_gone(&guard.session);
    let why = why.unwrap_or(Refusal::Unknown);
    let failure = guard.of.refused(&guard.session, why);
    // The reader may take its time: nothing is held for it any more.
    drop((scan, guard));
    let _ = sender.send(Err(failure)).await;
}

/// The next cells, and whether these are the last ones.
async fn chunk(scan: &mut percolator_client::Scan) -> Result<(Vec<Entry>, bool), Error> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while entries.len() < CHUNK_CELLS && bytes < CHUNK_BYTES {
        let Some(entry) = scan.next().await? else {
            return Ok((entries, true));
        };
        bytes += entry.row.len() + entry.column.len() + entry.value.len();
        entries.push(entry);
    }
    Ok((entries, false))
}
