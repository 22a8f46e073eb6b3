//! Tablets that this server gets from others: the progress of each, and the next request to its owner ([`crate::moves`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Tablet, Timestamp};

use crate::Error;
use crate::latches::Ticket;
use crate::leaving::KeyRange;
use crate::peers::{
    MoveCall, MoveRequest, MovedEntry, PullRequest, ServerIncarnation, ServerLocation, TakeRequest,
    Unanswered,
};
use crate::{stored, tablets};

const ARRIVING_PREFIX: &[u8] = b"arriving/";
/// An incomplete copy is given up when its owner has not responded for this long.
const OWNER_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after an empty chunk.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause after a response that the owner is busy.
const PAUSE_BUSY: Duration = Duration::from_millis(10);
/// The pause after a request without a response.
const PAUSE_SILENT: Duration = Duration::from_millis(200);
/// Failures that are remembered, one a tablet.
const FAILURES_MAX: usize = 64;
/// A copy is given up when the disk has refused it for this long. Other servers can get the tablet, and the rows that are here
/// take room from writers.
const FULL_DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// The tablets that this server gets, by id.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    tablets: BTreeMap<u64, Arrival>,
    /// The last failed attempt of each tablet.
    failures: BTreeMap<u64, FailedArrival>,
    /// Failed attempts so far.
    failed: u64,
    last_attempt: u64,
    /// The tablet of the last call. Each owner has its turn.
    last_called: u64,
}

/// An attempt to get a tablet that was given up.
#[derive(Debug)]
struct FailedArrival {
    /// The tablet's epoch.
    epoch: u64,
    reason: String,
    /// Counts up, so that the oldest is removed first.
    number: u64,
}

/// A tablet that this server gets, as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalRecord {
    /// As its owner has it.
    pub(crate) tablet: Tablet,
    /// Its owner when the copy began.
    pub(crate) from: ServerLocation,
    pub(crate) attempt: u64,
    /// This server's incarnation when the attempt began.
    pub(crate) incarnation: u64,
    /// All of the tablet is durable here: only the owner decides now.
    pub(crate) is_complete: bool,
    /// This server's address.
    pub(crate) by_address: String,
    /// The number of the copy, once it is complete.
    pub(crate) copy: u64,
    /// The observed columns, once the copy is complete.
    pub(crate) observed: Vec<Bytes>,
}

/// A tablet that this server gets.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) record: ArrivalRecord,
    /// The owner now: it may have another incarnation than in the record.
    owner: ServerLocation,
    /// Chunks that are durable here, and their bytes.
    chunk: u64,
    bytes: u64,
    /// Entries of the index of garbage that were made for it.
    pub(crate) entries: u64,
    /// The highest snapshot that was read at its owner.
    pub(crate) read_ts: Timestamp,
    /// Everything was sent but the last changes.
    pub(crate) is_copied: bool,
    /// Transactions write to it at its owner.
    pub(crate) is_written: bool,
    /// A call to its owner is under way.
    is_called: bool,
    /// The next step to make durable, and the ticket under which that is under way.
    pub(crate) step: Option<Arc<Step>>,
    pub(crate) ticket: Option<Ticket>,
    /// The step after that: the next chunk is requested while one is on its way to the disk.
    pub(crate) next_step: Option<Arc<Step>>,
    /// How long the disk has refused the step. The next tick tries again.
    refused: Option<Duration>,
    rests: bool,
    /// No call starts before this time of the runner's clock.
    not_before: Duration,
    /// When the owner stopped responding.
    silent_since: Option<Duration>,
}

/// A step of an arrival that is made durable.
#[derive(Debug)]
pub(crate) enum Step {
    /// Stores a part of the tablet.
    Chunk {
        entries: Vec<MovedEntry>,
        /// The number of changes among the entries; the others were copied in the order of their keys.
        changes: usize,
        /// In the last chunk: the owner's points.
        last: Option<Points>,
        /// In the last chunk: the observed columns.
        observed: Vec<Bytes>,
    },
    /// Serves the tablet. This server then refuses what lies below the barrier, as the owner did.
    Serve { barrier: Timestamp },
    /// Ends the attempt for this reason, and removes the rows that are here.
    GiveUp(String),
}

impl Arriving {
    /// Reads the records.
    pub(crate) fn load(engine: &dyn Engine) -> Result<Self, Error> {
        let mut arriving = Self::default();
        let mut end = ARRIVING_PREFIX.to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        for pair in engine.scan(Column::Meta, ARRIVING_PREFIX, &end, Direction::Forward)? {
            let (_, value) = pair?;
            arriving.insert(stored::decode_arrival(value)?);
        }
        // The position in an incomplete copy is not stored.
        let arrivals = arriving.tablets.values_mut();
        for arrival in arrivals.filter(|arrival| !arrival.record.is_complete) {
            arrival.give_up("this server was started again");
        }
        Ok(arriving)
    }

    /// A number that no attempt of this incarnation has.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.last_attempt + 1
    }

    /// Adds a durable arrival.
    pub(crate) fn insert(&mut self, record: ArrivalRecord) {
        let id = record.tablet.id;
        self.last_attempt = self.last_attempt.max(record.attempt);
        self.failures.remove(&id);
        let arrival = Arrival {
            owner: record.from.clone(),
            record,
            chunk: 0,
            bytes: 0,
            entries: 0,
            read_ts: Timestamp::ZERO,
            is_copied: false,
            is_written: false,
            is_called: false,
            step: None,
            ticket: None,
            next_step: None,
            refused: None,
            rests: false,
            not_before: Duration::ZERO,
            silent_since: None,
        };
        self.tablets.insert(id, arrival);
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Arrival> {
        self.tablets.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Arrival> {
        self.tablets.get_mut(&id)
    }

    pub(crate) fn tablets(&self) -> impl Iterator<Item = &Tablet> {
        self.tablets.values().map(|arrival| &arrival.record.tablet)
    }

    /// Updates the locations of owners.
    pub(crate) fn locate_owners(&mut self, owners: &[ServerLocation]) {
        for arrival in self.tablets.values_mut() {
            let name = arrival.owner_name();
            if let Some(owner) = owners.iter().find(|it| it.server.server == name) {
                arrival.owner = owner.clone();
            }
        }
    }

    /// Gives up tablets, by id and epoch, that another server has as far as the master knows.
    pub(crate) fn settled(&mut self, tablets: &[(u64, u64)]) {
        for (id, epoch) in tablets {
            let arrival = self.tablets.get_mut(id);
            let same = arrival.filter(|arrival| arrival.record.tablet.epoch == *epoch);
            // A step on its way to the disk is durable before the next heartbeat, which repeats this.
            if let Some(arrival) = same.filter(|arrival| arrival.may_give_up()) {
                arrival.give_up("another server has it since, or its table is deleted");
            }
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.tablets.keys().copied()
    }

    /// Lets time pass: a refused step is tried again, or given up.
    pub(crate) fn tick(&mut self, elapsed: Duration) {
        for arrival in self.tablets.values_mut() {
            arrival.rests = false;
            let Some(refused) = &mut arrival.refused else {
                continue;
            };
            *refused += elapsed;
            if *refused >= FULL_DISK_TIMEOUT && arrival.may_give_up() {
                arrival.give_up("this server's disk is full");
            }
        }
    }

    /// Whether a step of any tablet is on its way to the disk.
    pub(crate) fn is_written(&self) -> bool {
        self.tablets
            .values()
            .any(|arrival| arrival.ticket.is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tablets.is_empty()
    }

    /// A tablet that has some of these rows.
    pub(crate) fn overlapping(&self, tablet: &Tablet) -> Option<&Tablet> {
        let mut all = self.tablets();
        all.find(|it| it.table == tablet.table && it.rows.overlaps(&tablet.rows))
    }

    /// Whether one of the tablets has this key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        let mut all = self.tablets.values();
        all.any(|arrival| arrival.rows().contains(key))
    }

    /// Removes an arrival that is served, or was given up for this reason.
    pub(crate) fn end(&mut self, id: u64, failure: Option<&str>) {
        let Some(ended) = self.tablets.remove(&id) else {
            return;
        };
        let Some(reason) = failure else { return };
        let oldest = self.failures.iter().min_by_key(|(_, it)| it.number);
        if let Some(oldest) = oldest.map(|(id, _)| *id)
            && self.failures.len() >= FAILURES_MAX
        {
            self.failures.remove(&oldest);
        }
        self.failed += 1;
        let failure = FailedArrival {
            epoch: ended.record.tablet.epoch,
            reason: reason.to_owned(),
            number: self.failed,
        };
        self.failures.insert(id, failure);
    }

    /// Whether an arrival is near its end: what this server reports of its locks must then hold for that tablet's, too.
    pub(crate) fn holds_resolution(&self) -> bool {
        let mut all = self.tablets.values();
        all.any(|arrival| arrival.is_copied || arrival.record.is_complete)
    }

    /// The arrivals that are under way.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.tablets.values()
    }

    /// The failed arrivals: id, epoch and reason.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (u64, u64, &str)> {
        let all = self.failures.iter();
        all.map(|(id, failure)| (*id, failure.epoch, &*failure.reason))
    }

    /// The next call of this server to an owner.
    pub(crate) fn next_call(
        &mut self,
        now: Duration,
        me: &ServerIncarnation,
        resolved_ts: Timestamp,
    ) -> Option<MoveCall> {
        let called = self.tablets.values().filter(|arrival| arrival.is_called);
        let called: BTreeSet<&str> = called.map(|arrival| &*arrival.owner.address).collect();
        let is_free = |arrival: &Arrival| {
            !called.contains(&*arrival.owner.address)
                && arrival.has_room()
                && arrival.not_before <= now
        };
        let behind = self.tablets.range(self.last_called + 1..);
        let mut in_turn = behind.chain(self.tablets.range(..=self.last_called));
        let id = in_turn
            .find(|(_, arrival)| is_free(arrival))
            .map(|(id, _)| *id)?;
        self.last_called = id;
        let arrival = self.tablets.get_mut(&id)?;
        arrival.is_called = true;
        Some(MoveCall {
            tablet: id,
            attempt: arrival.record.attempt,
            address: arrival.owner.address.clone(),
            request: arrival.request(me, resolved_ts),
        })
    }
}

impl Arrival {
    fn request(&self, me: &ServerIncarnation, resolved_ts: Timestamp) -> MoveRequest {
        let tablet = &self.record.tablet;
        let by = |incarnation| ServerLocation {
            server: ServerIncarnation {
                server: me.server.clone(),
                incarnation,
            },
            address: self.record.by_address.clone(),
        };
        if self.record.is_complete {
            return MoveRequest::Take(TakeRequest {
                owner: self.owner_name().to_owned(),
                id: tablet.id,
                epoch: tablet.epoch,
                table: tablet.table.0,
                start_row: tablet.rows.start.clone(),
                by: by(self.record.incarnation),
                attempt: self.record.attempt,
                copy: self.record.copy,
            });
        }
        MoveRequest::Pull(PullRequest {
            to: Some(self.owner.server.clone()),
            id: tablet.id,
            epoch: tablet.epoch,
            by: by(me.incarnation),
            attempt: self.record.attempt,
            chunk: self.chunk + 1 + u64::from(self.step.is_some()),
            copy: self.record.copy,
            is_ahead: self.step.is_some(),
            resolved_ts,
        })
    }

    /// Whether there is room for one more response of its owner. At the end of the copy the owner closes the tablet, and no step
    /// may be on its way to the disk then. A copy that uses all of a disk's bandwidth would delay writers.
    fn has_room(&self) -> bool {
        match self.step.as_deref() {
            None => true,
            Some(Step::Chunk { last: None, .. }) => {
                self.next_step.is_none() && !self.is_copied && !self.is_written
            }
            Some(_) => false,
        }
    }

    /// Whether no step is on its way to the disk, and another server may have the rows.
    fn may_give_up(&self) -> bool {
        let is_chunk = |step: &Arc<Step>| matches!(**step, Step::Chunk { .. });
        self.ticket.is_none() && self.step.as_ref().is_none_or(is_chunk)
    }

    fn give_up(&mut self, reason: &str) {
        self.step = Some(Arc::new(Step::GiveUp(reason.to_owned())));
        self.next_step = None;
        self.refused = None;
    }

    /// The next step, unless it is on its way to the disk, or was refused since the last tick.
    pub(crate) fn writable_step(&self) -> Option<Arc<Step>> {
        self.step
            .clone()
            .filter(|_| self.ticket.is_none() && !self.rests)
    }

    /// Notes whether the disk has taken the step. A full disk would refuse it again at once.
    pub(crate) fn was_written(&mut self, durable: bool) {
        self.rests = !durable;
        self.refused = match self.refused {
            _ if durable => None,
            refused => refused.or(Some(Duration::ZERO)),
        };
    }

    /// Adds a step behind the one that is being written.
    pub(crate) fn add_step(&mut self, step: Step) {
        let step = Some(Arc::new(step));
        if self.step.is_none() {
            self.step = step;
        } else if mutants::on(Mutant::MovedAheadForgotten) {
            self.chunk += 1;
        } else {
            self.next_step = step;
        }
    }

    pub(crate) fn owner_name(&self) -> &str {
        &self.owner.server.server
    }

    /// All keys of the tablet.
    pub(crate) fn rows(&self) -> KeyRange {
        KeyRange::of(&self.record.tablet)
    }

    /// Its owner has responded.
    pub(crate) fn answered(&mut self) {
        self.is_called = false;
        self.silent_since = None;
    }

    /// Delays the next call.
    pub(crate) fn wait(&mut self, now: Duration) {
        self.not_before = now + PAUSE;
    }

    /// Notes that no response came. Returns the reason to give up, if there is one.
    pub(crate) fn missed(&mut self, now: Duration, unanswered: &Unanswered) -> Option<String> {
        self.is_called = false;
        self.not_before = now
            + match unanswered {
                Unanswered::Later(_) => PAUSE_BUSY,
                Unanswered::OtherServer | Unanswered::Lost(_) => PAUSE_SILENT,
            };
        let silent = now.saturating_sub(*self.silent_since.get_or_insert(now));
        if self.record.is_complete {
            // The owner may have handed the tablet over: only it knows.
            return None;
        }
        match unanswered {
            Unanswered::OtherServer => Some(format!("{} was started again", self.owner_name())),
            Unanswered::Later(why) | Unanswered::Lost(why) => {
                (silent >= OWNER_TIMEOUT).then(|| {
                    format!(
                        "{} has not answered for {OWNER_TIMEOUT:?}: {why}",
                        self.owner_name()
                    )
                })
            }
        }
    }

    /// Bytes that this incarnation has received.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that a chunk of this many bytes is durable.
    pub(crate) fn stored(&mut self, bytes: u64, is_last: bool) {
        self.chunk += 1;
        self.bytes += bytes;
        self.record.is_complete |= is_last;
    }
}

/// Adds the record of an arrival to the batch.
pub(crate) fn put_record(batch: &mut Batch, record: ArrivalRecord) {
    let key = tablets::key(ARRIVING_PREFIX, record.tablet.id);
    batch.put(Column::Meta, key, stored::encode_arrival(record));
}

/// Removes the record of an arrival, in the batch.
pub(crate) fn remove_record(batch: &mut Batch, id: u64) {
    batch.delete(Column::Meta, tablets::key(ARRIVING_PREFIX, id));
}
