//! Scans of a session: a task reads at most one chunk ahead of its reader.

use std::net::IpAddr;
use std::sync::Arc;

use percolator_client::{Entry, Error};
use tokio::sync::{mpsc, watch};

use super::Transactions;
use crate::failure::Failure;
use crate::sessions::Refusal;
use crate::transit::Counted;

/// What a scan hands over at a time: so many cells, or the bytes that one more cell brings above this.
const CHUNK_CELLS: usize = 256;
const CHUNK_BYTES: usize = 256 << 10;

/// Some cells of a scan, in order.
pub(crate) type Chunk = Result<Entries, Failure>;

/// Cells that a reader has not taken yet.
#[derive(Debug)]
pub(crate) struct Entries {
    pub(crate) cells: Vec<Entry>,
    /// Their bytes are on their way.
    pub(crate) counted: Counted,
}

/// A scan under way.
pub(super) struct ScanGuard {
    pub(super) of: Arc<Transactions>,
    pub(super) session: String,
    pub(super) client: IpAddr,
    /// What it holds of the session's own writes.
    pub(super) own: Counted,
}

impl Drop for ScanGuard {
    fn drop(&mut self) {
        let now = self.of.now();
        let mut sessions = self.of.sessions.lock();
        sessions.scan_done(now, &self.session, self.client);
    }
}

/// Reads a scan for the receiver of its chunks, until it or the session ends.
pub(super) async fn produce(
    mut scan: percolator_client::Scan,
    mut ended: watch::Receiver<bool>,
    guard: ScanGuard,
    sender: mpsc::Sender<Chunk>,
) {
    loop {
        let place = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            place = sender.reserve() => place,
        };
        let Ok(place) = place else {
            return;
        };
        let read = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            read = chunk(&mut scan) => read,
        };
        let mut counted = guard.of.transit.counted(guard.client);
        let chunk = match read {
            Ok((cells, bytes, is_last)) => counted
                .take(bytes)
                .map(|()| (Entries { cells, counted }, is_last)),
            Err(error) => Err(guard.of.failed(&guard.session, error)),
        };
        let is_last = chunk.as_ref().map_or(true, |(_, is_last)| *is_last);
        place.send(chunk.map(|(entries, _)| entries));
        if is_last {
            return;
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

/// The next cells, their bytes, and whether these are the last ones.
async fn chunk(scan: &mut percolator_client::Scan) -> Result<(Vec<Entry>, usize, bool), Error> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while entries.len() < CHUNK_CELLS && bytes < CHUNK_BYTES {
        let Some(entry) = scan.next().await? else {
            return Ok((entries, bytes, true));
        };
        bytes += entry.row.len() + entry.column.len() + entry.value.len();
        entries.push(entry);
    }
    Ok((entries, bytes, false))
}
