//! Tablets on their way to another server, at their owner: the progress of each copy, and the changes since it began. Only in
//! memory, until the owner makes durable that the receiver has the tablet ([`crate::moves`]).
//!
//! The copy goes by keys, from the engine as it is. A change below the copy's position is appended to the tail; the copy itself
//! reads the others. Every change is a put or a delete of a key. A change that is sent twice does no harm, as long as the order
//! stays.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::lease::Lease;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Lock, Tablet, key};

use crate::Error;
use crate::peers::{MovedEntry, PullRequest, ServerLocation, TabletChunk, TakeRequest};

/// The columns that hold rows. Locks first: they are few, and change most.
pub(crate) const COLUMNS: [Column; 4] = [Column::Lock, Column::Write, Column::Data, Column::Notify];

/// An attempt ends when its unsent changes exceed this.
const TAIL_BYTES_MAX: usize = 64 << 20;
/// After this many chunks of changes alone the tablet is closed, and the rest is sent, however much it is.
const ROUNDS_MAX: u32 = 20;
/// An owner that waits for the receiver's points ends the attempt after this many chunks.
const WAITS_MAX: u32 = 5_000;
/// Chunks between two searches for locks.
const WAITS_UNSEEN: u32 = 64;
/// The reason to keep a tablet whose locks are older than the receiver's resolved_ts allows.
pub(crate) const OLD_LOCKS: &str = "its owner has old locks in it that can't be resolved yet";
/// An attempt without requests ends after this.
const PULL_TIMEOUT: Duration = Duration::from_secs(10);
/// The same while the tablet is closed. The tablet is then served again.
const CLOSED_TIMEOUT: Duration = Duration::from_secs(2);

/// The tablets that leave this server, by id.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    tablets: BTreeMap<u64, Departure>,
    /// Copies that were begun by this incarnation.
    copies: u64,
}

/// A tablet that leaves this server.
#[derive(Debug)]
pub(crate) struct Departure {
    /// The receiver, and its number of the attempt.
    by: ServerLocation,
    attempt: u64,
    /// The number of this copy. A late request for the first chunk may begin a second one of the same attempt.
    copy: u64,
    rows: KeyRange,
    phase: Phase,
    /// The column and the key at which the copy continues.
    column: usize,
    next: Vec<u8>,
    tail: VecDeque<MovedEntry>,
    tail_bytes: usize,
    /// Chunks since everything was copied: of changes, and empty ones.
    rounds: u32,
    waits: u32,
    /// The number of the last chunk, and the chunk.
    chunk: u64,
    sent: TabletChunk,
    /// The time since the last request.
    silent: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Copying,
    /// No request about the tablet is decided any more.
    Closed,
    /// The last chunk was sent.
    Sent,
    /// The hand-over is decided, and on its way to the disk.
    Decided,
}

/// Keys of a tablet, the same in all columns.
#[derive(Clone, Debug)]
pub(crate) struct KeyRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl KeyRange {
    pub(crate) fn of(tablet: &Tablet) -> Self {
        Self {
            start: key::row_bound(tablet.table, &tablet.rows.start),
            end: key::rows_end(tablet.table, &tablet.rows.end),
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && key < &self.end[..]
    }

    /// Whether the batch changes one of these keys.
    pub(crate) fn is_touched_by(&self, batch: &Batch) -> bool {
        let mut ops = batch.ops();
        ops.any(|(column, key, _)| COLUMNS.contains(&column) && self.contains(key))
    }
}

/// The source of a chunk.
pub(crate) struct Source<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) lease: Lease,
    /// Bytes of keys and values of a chunk, about.
    pub(crate) chunk_bytes: usize,
    /// The chunk before is not durable at the receiver yet.
    pub(crate) is_ahead: bool,
    /// No change of the tablet is on its way to the disk.
    pub(crate) is_quiet: bool,
    /// Whether these rows may have locks below the receiver's resolved_ts.
    pub(crate) may_have_old_locks: &'a dyn Fn(&KeyRange) -> Result<bool, Error>,
}

/// A chunk for the receiver.
#[derive(Debug)]
pub(crate) enum PulledChunk {
    Chunk(TabletChunk),
    /// The tablet is closed from now on.
    Closes(TabletChunk),
    /// The last chunk, to which the core adds the state of the closed tablet. [`Leaving::sent_last`] stores it.
    Last(TabletChunk),
}

impl Leaving {
    /// Whether the request belongs to the tablet's attempt.
    fn is_known(&self, request: &PullRequest) -> bool {
        let known = self.tablets.get(&request.id);
        known.is_some_and(|known| known.is_by(&request.by, request.attempt))
    }

    /// Whether the request begins an attempt. A late request of an older attempt doesn't.
    pub(crate) fn begins(&self, request: &PullRequest) -> bool {
        let other = self.tablets.get(&request.id);
        let is_newer = other.is_none_or(|other| {
            let same = other.by.server == request.by.server;
            other.phase != Phase::Decided && (!same || other.attempt < request.attempt)
        });
        request.chunk == 1 && !self.is_known(request) && is_newer
    }

    /// Begins the copy of this tablet.
    pub(crate) fn begin(&mut self, tablet: &Tablet, request: &PullRequest) {
        let rows = KeyRange::of(tablet);
        self.copies += 1;
        let departure = Departure {
            by: request.by.clone(),
            attempt: request.attempt,
            copy: self.copies,
            next: rows.start.clone(),
            rows,
            phase: Phase::Copying,
            column: 0,
            tail: VecDeque::new(),
            tail_bytes: 0,
            rounds: 0,
            waits: 0,
            chunk: 0,
            sent: TabletChunk::default(),
            silent: Duration::ZERO,
        };
        self.tablets.insert(tablet.id, departure);
    }

    /// The keys of the tablet, if it is on its way.
    pub(crate) fn rows(&self, id: u64) -> Option<&KeyRange> {
        self.tablets.get(&id).map(|departure| &departure.rows)
    }

    /// The requested chunk.
    ///
    /// # Errors
    /// The engine can't be read; and, inside, the reason for which the attempt is over.
    pub(crate) fn pull(
        &mut self,
        request: &PullRequest,
        source: &Source<'_>,
    ) -> Result<Result<PulledChunk, String>, Error> {
        let is_known = self.is_known(request);
        let known = self
            .tablets
            .get_mut(&request.id)
            .filter(|departure| is_known && (request.chunk == 1 || request.copy == departure.copy));
        let Some(departure) = known else {
            return Ok(Err(
                "its owner knows nothing of this attempt any more".into()
            ));
        };
        departure.silent = Duration::ZERO;
        if request.chunk == departure.chunk {
            return Ok(Ok(PulledChunk::Chunk(departure.sent.clone())));
        }
        if request.chunk != departure.chunk + 1 || departure.phase >= Phase::Sent {
            return Ok(Err(format!(
                "chunk {} is asked for, behind chunk {}",
                request.chunk, departure.chunk
            )));
        }
        let pulled = departure.next_chunk(source)?;
        if pulled.is_err() {
            self.tablets.remove(&request.id);
        }
        Ok(pulled)
    }

    /// Stores the last chunk, which the receiver may request again.
    pub(crate) fn sent_last(&mut self, id: u64, chunk: &TabletChunk) {
        if let Some(departure) = self.tablets.get_mut(&id) {
            departure.phase = Phase::Sent;
            departure.keep(chunk);
        }
    }

    /// Whether the receiver has all of the tablet, so that the hand-over may be decided.
    pub(crate) fn may_give(&self, take: &TakeRequest) -> bool {
        let known = self.tablets.get(&take.id);
        known.is_some_and(|known| {
            let is_its = known.is_by(&take.by, take.attempt) && known.copy == take.copy;
            is_its && known.phase == Phase::Sent
        })
    }

    /// Whether the hand-over is decided, and on its way to the disk.
    pub(crate) fn is_given(&self, id: u64) -> bool {
        let known = self.tablets.get(&id);
        known.is_some_and(|known| known.phase == Phase::Decided)
    }

    /// Notes that the hand-over is decided, or that the disk refused it.
    pub(crate) fn give(&mut self, id: u64, decided: bool) {
        if let Some(departure) = self.tablets.get_mut(&id) {
            departure.phase = if decided { Phase::Decided } else { Phase::Sent };
            departure.silent = Duration::ZERO;
        }
    }

    /// Ends the departure of the tablet.
    pub(crate) fn forget(&mut self, id: u64) {
        self.tablets.remove(&id);
    }

    /// Whether no tablet leaves.
    pub(crate) fn is_empty(&self) -> bool {
        self.tablets.is_empty()
    }

    /// Appends a durable batch to the tails.
    pub(crate) fn tap(&mut self, batch: &Batch) {
        for departure in self.tablets.values_mut() {
            departure.tap(batch);
        }
    }

    /// Lets time pass, and ends departures without requests. Returns their ids.
    pub(crate) fn tick(&mut self, elapsed: Duration) -> Vec<u64> {
        let mut over = Vec::new();
        self.tablets.retain(|id, departure| {
            departure.silent += elapsed;
            let may_stay = match departure.phase {
                Phase::Copying => departure.silent < PULL_TIMEOUT,
                Phase::Closed | Phase::Sent => departure.silent < CLOSED_TIMEOUT,
                Phase::Decided => true,
            };
            if !may_stay {
                over.push(*id);
            }
            may_stay
        });
        over
    }
}

impl PartialOrd for Phase {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some((*self as u8).cmp(&(*other as u8)))
    }
}

impl Departure {
    fn is_by(&self, by: &ServerLocation, attempt: u64) -> bool {
        self.attempt == attempt && by.server == self.by.server
    }

    fn is_copied(&self) -> bool {
        self.column == COLUMNS.len()
    }

    fn keep(&mut self, chunk: &TabletChunk) {
        self.chunk += 1;
        self.sent = chunk.clone();
    }

    fn next_chunk(&mut self, source: &Source<'_>) -> Result<Result<PulledChunk, String>, Error> {
        if self.is_behind() {
            return Ok(Err(format!(
                "{} bytes were written to it faster than they were copied",
                self.tail_bytes
            )));
        }
        let awaits = self.phase == Phase::Closed
            && !source.is_quiet
            && !mutants::on(Mutant::MovedInFlightForgotten);
        if awaits {
            return Ok(Ok(PulledChunk::Chunk(TabletChunk {
                is_copied: true,
                copy: self.copy,
                ..TabletChunk::default()
            })));
        }
        let mut entries = Vec::new();
        let mut bytes = self.take_tail(source, &mut entries)?;
        let changes = entries.len();
        if self.tail.is_empty() {
            self.copy(source, &mut entries, &mut bytes)?;
        }
        let chunk = TabletChunk {
            entries,
            changes,
            is_copied: self.is_copied(),
            copy: self.copy,
            last: None,
        };
        if self.phase == Phase::Closed && self.tail.is_empty() {
            return Ok(Ok(PulledChunk::Last(chunk)));
        }
        if !chunk.entries.is_empty() {
            self.keep(&chunk);
        }
        if self.phase != Phase::Copying || !self.is_copied() {
            return Ok(Ok(PulledChunk::Chunk(chunk)));
        }
        self.rounds += u32::from(!chunk.entries.is_empty());
        if !self.waits.is_multiple_of(WAITS_UNSEEN) || (source.may_have_old_locks)(&self.rows)? {
            self.waits += 1;
            if self.waits > WAITS_MAX {
                return Ok(Err(OLD_LOCKS.into()));
            }
            return Ok(Ok(PulledChunk::Chunk(chunk)));
        }
        // Callers of a closed tablet wait until the receiver's disk has the chunks before.
        let is_small = bytes <= source.chunk_bytes / 8;
        if source.is_ahead {
            return Ok(Ok(PulledChunk::Chunk(chunk)));
        }
        if (self.tail.is_empty() && is_small) || self.rounds > ROUNDS_MAX {
            self.phase = Phase::Closed;
            return Ok(Ok(PulledChunk::Closes(chunk)));
        }
        Ok(Ok(PulledChunk::Chunk(chunk)))
    }

    /// Takes changes from the tail. Returns their bytes.
    fn take_tail(
        &mut self,
        source: &Source<'_>,
        entries: &mut Vec<MovedEntry>,
    ) -> Result<usize, Error> {
        let mut bytes = 0;
        while bytes < source.chunk_bytes
            && let Some(mut entry) = self.tail.pop_front()
        {
            bytes += size(&entry);
            promise(&mut entry, source.lease)?;
            if !mutants::on(Mutant::MovedTailForgotten) {
                entries.push(entry);
            }
        }
        self.tail_bytes -= bytes;
        Ok(bytes)
    }

    /// Copies the next keys.
    fn copy(
        &mut self,
        source: &Source<'_>,
        entries: &mut Vec<MovedEntry>,
        bytes: &mut usize,
    ) -> Result<(), Error> {
        while let Some(column) = COLUMNS.get(self.column) {
            let pairs =
                source
                    .engine
                    .scan(*column, &self.next, &self.rows.end, Direction::Forward)?;
            for pair in pairs {
                let (key, value) = pair?;
                if *bytes >= source.chunk_bytes {
                    self.next = key.to_vec();
                    return Ok(());
                }
                let mut entry = MovedEntry {
                    column: *column,
                    key,
                    value: Some(value),
                };
                promise(&mut entry, source.lease)?;
                *bytes += size(&entry);
                entries.push(entry);
            }
            self.column += 1;
            self.next.clone_from(&self.rows.start);
        }
        Ok(())
    }

    fn tap(&mut self, batch: &Batch) {
        if self.phase >= Phase::Sent || self.is_behind() {
            return;
        }
        for (column, key, value) in batch.ops() {
            let Some(place) = COLUMNS.iter().position(|known| *known == column) else {
                continue;
            };
            let is_copied = (place, &key[..]) < (self.column, &self.next[..]);
            if !self.rows.contains(key) || !is_copied {
                continue;
            }
            let entry = MovedEntry {
                column,
                // The message of which the key is a part may be much larger.
                key: bytes::Bytes::copy_from_slice(key),
                value: value.map(|value| bytes::Bytes::copy_from_slice(value)),
            };
            self.tail_bytes += size(&entry);
            self.tail.push_back(entry);
        }
        if self.is_behind() {
            // The next request ends the attempt, and may come late.
            self.tail = VecDeque::new();
        }
    }

    /// Whether the tail is too long: the attempt is over.
    fn is_behind(&self) -> bool {
        self.tail_bytes > TAIL_BYTES_MAX
    }
}

/// Raises a lock's min_commit_ts to what an earlier incarnation may have promised to readers. The receiver doesn't know that.
fn promise(entry: &mut MovedEntry, lease: Lease) -> Result<(), Error> {
    if entry.column != Column::Lock {
        return Ok(());
    }
    let Some(value) = entry.value.take() else {
        return Ok(());
    };
    let lock = Lock::decode(value)?;
    let lock = lease.promised(lock, &key::decode_cell(&entry.key)?);
    entry.value = Some(lock.encode().into());
    Ok(())
}

/// The memory of an entry in the tail.
fn size(entry: &MovedEntry) -> usize {
    entry.size_bytes() + 16
}

#[cfg(test)]
mod tests {
    use percolator_engine::{EngineKind, Options, open};
    use percolator_protocol::types::{Rows, TableId, TabletState, Timestamp};

    use super::*;
    use crate::peers::ServerIncarnation;

    fn pulled(leaving: &mut Leaving, chunk: u64) -> Result<PulledChunk, String> {
        let options = Options::new(EngineKind::Memory, "tablet-0");
        let engine = open(std::path::Path::new("nowhere"), &options).unwrap();
        let source = Source {
            engine: &*engine,
            lease: Lease::UNLIMITED,
            chunk_bytes: 1 << 20,
            is_ahead: false,
            is_quiet: true,
            may_have_old_locks: &|_| Ok(true),
        };
        leaving.pull(&request(chunk), &source).unwrap()
    }

    fn request(chunk: u64) -> PullRequest {
        PullRequest {
            to: None,
            id: 1,
            epoch: 1,
            by: ServerLocation {
                server: ServerIncarnation {
                    server: "tablet-1".into(),
                    incarnation: 1,
                },
                address: "tablet-1:1".into(),
            },
            attempt: 1,
            chunk,
            copy: 1,
            is_ahead: false,
            resolved_ts: Timestamp::ZERO,
        }
    }

    #[test]
    fn changes_without_requests_are_bounded_and_end_the_attempt() {
        let tablet = Tablet {
            id: 1,
            table: TableId(5),
            table_name: "t".into(),
            rows: Rows::default(),
            epoch: 1,
            state: TabletState::Serving,
        };
        let mut leaving = Leaving::default();
        leaving.begin(&tablet, &request(1));
        // All of it is copied, as there is nothing.
        assert!(matches!(pulled(&mut leaving, 1), Ok(PulledChunk::Chunk(_))));
        let held = |leaving: &Leaving| {
            let tail = &leaving.tablets[&1].tail;
            tail.iter().map(size).sum::<usize>()
        };
        let value = vec![0; 1 << 20];
        let mut most = 0;
        for n in 0..200_u64 {
            let key = [&KeyRange::of(&tablet).start[..], &n.to_be_bytes()].concat();
            let mut batch = Batch::default();
            batch.put(Column::Data, key, value.clone());
            leaving.tap(&batch);
            most = most.max(held(&leaving));
        }
        assert!(most > TAIL_BYTES_MAX / 2, "{most}");
        assert!(most <= TAIL_BYTES_MAX, "{most}");
        let why = pulled(&mut leaving, 1).unwrap_err();
        assert!(why.contains("faster than they were copied"), "{why}");
        assert!(leaving.is_empty());
    }
}
