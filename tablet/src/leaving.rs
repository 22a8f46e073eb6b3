//! Tablets on their way to another server, at their owner: what of them was sent, and what has changed since. In memory alone,
//! until the owner writes down that the other one has the tablet ([`crate::moves`]).
//!
//! The copy goes by keys, from the engine as it is. What a group changes below the key that the copy has come to follows in
//! the tail; the rest of it the copy meets itself. Every change is a put or a delete of a key, so that it does no harm if
//! the other one gets it twice, as long as the order stays.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::lease::Lease;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Lock, Tablet, key};
use percolator_wire::v1;

use crate::Error;

/// The columns that hold rows. Locks first: they are few, and change most.
pub(crate) const COLUMNS: [Column; 4] = [Column::Lock, Column::Write, Column::Data, Column::Notify];

/// The attempt is over where more has changed that was not sent yet.
const TAIL_BYTES_MAX: usize = 64 << 20;
/// Chunks of changes alone, after which the rest is sent while the tablet is closed, however much it is.
const ROUNDS_MAX: u32 = 20;
/// An owner that waits for the points of the other one ends the attempt after so many chunks.
const WAITS_MAX: u32 = 5_000;
/// So many of them pass between two searches for locks.
const WAITS_UNSEEN: u32 = 64;
/// Why a tablet isn't handed over whose locks are older than what the other server may say of all of its own.
pub(crate) const OLD_LOCKS: &str = "its owner has old locks in it that can't be resolved yet";
/// An attempt is over when it was not heard of for so long.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The same while the tablet is closed: it is served again then.
const CLOSED_MAX: Duration = Duration::from_secs(2);

/// Those of this server, by tablet.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    tablets: BTreeMap<u64, Departure>,
    /// How many copies were begun since the start.
    copies: u64,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Departure {
    /// Who gets it, and the number of the attempt.
    by: v1::MovedTo,
    attempt: u64,
    /// The number of this copy. A late request for the first chunk may begin a second one of the same attempt.
    copy: u64,
    rows: Range,
    phase: Phase,
    /// The next key to be copied: of this column, and from here on.
    column: usize,
    next: Vec<u8>,
    tail: VecDeque<v1::MovedEntry>,
    tail_bytes: usize,
    /// Chunks since everything was copied, of changes, and without any.
    rounds: u32,
    waits: u32,
    /// The last chunk, and its number.
    chunk: u64,
    sent: v1::PullTabletResponse,
    /// Since it was heard of last.
    silent: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Copying,
    /// Nothing more is decided about the tablet.
    Closed,
    /// The last chunk was sent.
    Sent,
    /// It is on its way to the disk that the other one has it.
    Decided,
}

/// Keys of a tablet, the same in all columns.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Range {
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

/// What a chunk is made from.
pub(crate) struct Source<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) lease: Lease,
    /// Bytes of keys and values of a chunk, about.
    pub(crate) chunk_bytes: usize,
    /// The other one has not written the chunk before yet.
    pub(crate) is_ahead: bool,
    /// Nothing that changes the tablet is on its way to the disk.
    pub(crate) is_quiet: bool,
    /// Whether these rows may have locks that the other server couldn't have any more.
    pub(crate) may_have_old_locks: &'a dyn Fn(&Range) -> Result<bool, Error>,
}

/// What became of a request for a chunk.
#[derive(Debug)]
pub(crate) enum Pulled {
    Chunk(v1::PullTabletResponse),
    /// As [`Self::Chunk`]; the tablet is closed from now on.
    Closes(v1::PullTabletResponse),
    /// As [`Self::Chunk`], without its last words, which the server adds; it is kept by [`Leaving::sent_last`].
    Last(v1::PullTabletResponse),
}

impl Leaving {
    /// Whether the tablet is on its way by this attempt.
    fn is_known(&self, request: &v1::PullTabletRequest, id: u64) -> bool {
        let known = self.tablets.get(&id);
        known.is_some_and(|known| known.is_by(request.by.as_ref(), request.attempt))
    }

    /// Whether this request, which nobody knows, begins an attempt. One that is late doesn't.
    pub(crate) fn begins(&self, request: &v1::PullTabletRequest, id: u64) -> bool {
        let other = self.tablets.get(&id);
        let is_newer = other.is_none_or(|other| {
            let same = other.by.server == request.by.as_ref().and_then(|by| by.server.clone());
            other.phase != Phase::Decided && (!same || other.attempt < request.attempt)
        });
        request.chunk == 1 && !self.is_known(request, id) && is_newer
    }

    /// The copy of this tablet begins.
    pub(crate) fn begin(&mut self, tablet: &Tablet, request: &v1::PullTabletRequest) {
        let rows = Range::of(tablet);
        self.copies += 1;
        let departure = Departure {
            by: request.by.clone().unwrap_or_default(),
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
            sent: v1::PullTabletResponse::default(),
            silent: Duration::ZERO,
        };
        self.tablets.insert(tablet.id, departure);
    }

    /// The keys of the tablet, if it is on its way.
    pub(crate) fn rows(&self, id: u64) -> Option<&Range> {
        self.tablets.get(&id).map(|departure| &departure.rows)
    }

    /// The chunk that is asked for.
    ///
    /// # Errors
    /// The engine can't be read; and, inside, why the attempt is over.
    pub(crate) fn pull(
        &mut self,
        id: u64,
        request: &v1::PullTabletRequest,
        source: &Source<'_>,
    ) -> Result<Result<Pulled, String>, Error> {
        let is_known = self.is_known(request, id);
        let known = self
            .tablets
            .get_mut(&id)
            .filter(|departure| is_known && (request.chunk == 1 || request.copy == departure.copy));
        let Some(departure) = known else {
            return Ok(Err(
                "its owner knows nothing of this attempt any more".into()
            ));
        };
        departure.silent = Duration::ZERO;
        if request.chunk == departure.chunk {
            return Ok(Ok(Pulled::Chunk(departure.sent.clone())));
        }
        if request.chunk != departure.chunk + 1 || departure.phase >= Phase::Sent {
            return Ok(Err(format!(
                "chunk {} is asked for, behind chunk {}",
                request.chunk, departure.chunk
            )));
        }
        let pulled = departure.next_chunk(source)?;
        if pulled.is_err() {
            self.tablets.remove(&id);
        }
        Ok(pulled)
    }

    /// This is the last chunk, which may be asked for again.
    pub(crate) fn sent_last(&mut self, id: u64, chunk: &v1::PullTabletResponse) {
        if let Some(departure) = self.tablets.get_mut(&id) {
            departure.phase = Phase::Sent;
            departure.keep(chunk);
        }
    }

    /// Whether this attempt has all of the tablet, so that it may be decided that it has it.
    pub(crate) fn may_give(&self, id: u64, take: &v1::TakeTabletRequest) -> bool {
        let known = self.tablets.get(&id);
        known.is_some_and(|known| {
            let is_its = known.is_by(take.by.as_ref(), take.attempt) && known.copy == take.copy;
            is_its && known.phase == Phase::Sent
        })
    }

    /// Whether that is decided, and on its way to the disk.
    pub(crate) fn is_given(&self, id: u64) -> bool {
        let known = self.tablets.get(&id);
        known.is_some_and(|known| known.phase == Phase::Decided)
    }

    /// That is decided, or was not made durable.
    pub(crate) fn give(&mut self, id: u64, decided: bool) {
        if let Some(departure) = self.tablets.get_mut(&id) {
            departure.phase = if decided { Phase::Decided } else { Phase::Sent };
            departure.silent = Duration::ZERO;
        }
    }

    /// The tablet is on its way no more.
    pub(crate) fn forget(&mut self, id: u64) {
        self.tablets.remove(&id);
    }

    /// Whether none is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.tablets.is_empty()
    }

    /// A batch is durable.
    pub(crate) fn tap(&mut self, batch: &Batch) {
        for departure in self.tablets.values_mut() {
            departure.tap(batch);
        }
    }

    /// So much time has passed. Those that are over are forgotten: their ids.
    pub(crate) fn tick(&mut self, elapsed: Duration) -> Vec<u64> {
        let mut over = Vec::new();
        self.tablets.retain(|id, departure| {
            departure.silent += elapsed;
            let may_stay = match departure.phase {
                Phase::Copying => departure.silent < SILENCE_MAX,
                Phase::Closed | Phase::Sent => departure.silent < CLOSED_MAX,
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
    fn is_by(&self, by: Option<&v1::MovedTo>, attempt: u64) -> bool {
        self.attempt == attempt && by.is_some_and(|by| by.server == self.by.server)
    }

    fn is_copied(&self) -> bool {
        self.column == COLUMNS.len()
    }

    fn keep(&mut self, chunk: &v1::PullTabletResponse) {
        self.chunk += 1;
        self.sent = chunk.clone();
    }

    fn next_chunk(&mut self, source: &Source<'_>) -> Result<Result<Pulled, String>, Error> {
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
            return Ok(Ok(Pulled::Chunk(v1::PullTabletResponse {
                copied: true,
                copy: self.copy,
                ..v1::PullTabletResponse::default()
            })));
        }
        let mut entries = Vec::new();
        let mut bytes = self.take_tail(source, &mut entries)?;
        let changes = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        if self.tail.is_empty() {
            self.copy(source, &mut entries, &mut bytes)?;
        }
        let chunk = v1::PullTabletResponse {
            entries,
            changes,
            copied: self.is_copied(),
            copy: self.copy,
            ..v1::PullTabletResponse::default()
        };
        if self.phase == Phase::Closed && self.tail.is_empty() {
            return Ok(Ok(Pulled::Last(v1::PullTabletResponse {
                last: true,
                ..chunk
            })));
        }
        if !chunk.entries.is_empty() {
            self.keep(&chunk);
        }
        if self.phase != Phase::Copying || !self.is_copied() {
            return Ok(Ok(Pulled::Chunk(chunk)));
        }
        self.rounds += u32::from(!chunk.entries.is_empty());
        if !self.waits.is_multiple_of(WAITS_UNSEEN) || (source.may_have_old_locks)(&self.rows)? {
            self.waits += 1;
            if self.waits > WAITS_MAX {
                return Ok(Err(OLD_LOCKS.into()));
            }
            return Ok(Ok(Pulled::Chunk(chunk)));
        }
        // What is on its way to the other one's disk when the tablet is closed keeps its callers waiting.
        let is_small = bytes <= source.chunk_bytes / 8;
        if source.is_ahead {
            return Ok(Ok(Pulled::Chunk(chunk)));
        }
        if (self.tail.is_empty() && is_small) || self.rounds > ROUNDS_MAX {
            self.phase = Phase::Closed;
            return Ok(Ok(Pulled::Closes(chunk)));
        }
        Ok(Ok(Pulled::Chunk(chunk)))
    }

    /// Some of what has changed below the copy. How many bytes.
    fn take_tail(
        &mut self,
        source: &Source<'_>,
        entries: &mut Vec<v1::MovedEntry>,
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

    /// The next keys.
    fn copy(
        &mut self,
        source: &Source<'_>,
        entries: &mut Vec<v1::MovedEntry>,
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
                let mut entry = v1::MovedEntry {
                    column: moved_column(*column).into(),
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
            let entry = v1::MovedEntry {
                column: moved_column(column).into(),
                // The message that it came in may be much larger.
                key: bytes::Bytes::copy_from_slice(key),
                value: value.map(|value| bytes::Bytes::copy_from_slice(value)),
            };
            self.tail_bytes += size(&entry);
            self.tail.push_back(entry);
        }
        if self.is_behind() {
            // The next request ends the attempt, and may be long in coming.
            self.tail = VecDeque::new();
        }
    }

    /// Whether more has changed than is kept: the attempt is over.
    fn is_behind(&self) -> bool {
        self.tail_bytes > TAIL_BYTES_MAX
    }
}

/// A lock leaves with what readers at an earlier incarnation of its server were promised, which the other server doesn't know.
fn promise(entry: &mut v1::MovedEntry, lease: Lease) -> Result<(), Error> {
    if entry.column() != v1::MovedColumn::Lock {
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

fn size(entry: &v1::MovedEntry) -> usize {
    entry.key.len() + entry.value.as_ref().map_or(0, bytes::Bytes::len) + 16
}

fn moved_column(column: Column) -> v1::MovedColumn {
    match column {
        Column::Lock => v1::MovedColumn::Lock,
        Column::Write => v1::MovedColumn::Write,
        Column::Data => v1::MovedColumn::Data,
        Column::Notify => v1::MovedColumn::Notify,
        Column::Garbage | Column::Meta => v1::MovedColumn::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use percolator_engine::{EngineKind, Options, open};
    use percolator_protocol::types::{Rows, TableId, TabletState};

    use super::*;

    fn pulled(leaving: &mut Leaving, chunk: u64) -> Result<Pulled, String> {
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
        leaving.pull(1, &request(chunk), &source).unwrap()
    }

    fn request(chunk: u64) -> v1::PullTabletRequest {
        v1::PullTabletRequest {
            by: Some(v1::MovedTo::default()),
            attempt: 1,
            chunk,
            copy: 1,
            ..v1::PullTabletRequest::default()
        }
    }

    #[test]
    fn what_changes_while_nobody_asks_is_bounded_and_ends_the_attempt() {
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
        assert!(matches!(pulled(&mut leaving, 1), Ok(Pulled::Chunk(_))));
        let held = |leaving: &Leaving| {
            let tail = &leaving.tablets[&1].tail;
            tail.iter().map(size).sum::<usize>()
        };
        let value = vec![0; 1 << 20];
        let mut most = 0;
        for n in 0..200_u64 {
            let key = [&Range::of(&tablet).start[..], &n.to_be_bytes()].concat();
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
