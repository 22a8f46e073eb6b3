//! Tablets that this server gets from others: how far each of them is, and what is to be asked of its owner next
//! ([`crate::moves`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Tablet, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use prost::Message as _;

use crate::Error;
use crate::latches::Ticket;
use crate::leaving::Range;
use crate::tablets;

const ARRIVING_PREFIX: &[u8] = b"arriving/";
/// A copy that isn't complete is given up when its owner was silent for so long.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// After an answer without anything in it, when the owner has too much to do, and after no answer.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_BUSY: Duration = Duration::from_millis(10);
const PAUSE_SILENT: Duration = Duration::from_millis(200);
/// Reasons that are remembered, one a tablet.
const FAILED_MAX: usize = 64;
/// A copy is given up when the disk has refused to take more of it for so long: others can get the tablet, and what is here of it
/// is in the way of those who write.
const REFUSED_MAX: Duration = Duration::from_secs(10);

/// Those of this server, by tablet.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    tablets: BTreeMap<u64, Arrival>,
    /// Why the last attempt to get a tablet was given up.
    failed: BTreeMap<u64, GivenUp>,
    /// The number of the last one.
    last_given_up: u64,
    last_attempt: u64,
    /// The tablet whose owner was asked last: each has its turn.
    last_asked: u64,
}

/// An attempt that was given up.
#[derive(Debug)]
struct GivenUp {
    /// Of the tablet.
    epoch: u64,
    why: String,
    /// Counts up, so that the oldest is forgotten first.
    number: u64,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// What is kept of it.
    pub(crate) record: v1::ArrivingTablet,
    /// As its owner has it.
    pub(crate) tablet: Tablet,
    /// Who it is from, in words.
    owner: v1::MovedTo,
    /// Chunks that are durable here, and their bytes.
    chunk: u64,
    bytes: u64,
    /// Entries of the index of garbage that were made for it.
    pub(crate) entries: u64,
    /// The highest snapshot that was read at its owner.
    pub(crate) read_ts: Timestamp,
    /// Everything was sent but the last changes.
    pub(crate) is_copied: bool,
    /// Others write to it at its owner.
    pub(crate) is_written: bool,
    /// Its owner is being asked.
    is_asked: bool,
    /// What is to be written down, and under which ticket that is under way.
    pub(crate) step: Option<Arc<Step>>,
    pub(crate) ticket: Option<Ticket>,
    /// What is to be written down behind that: its owner is asked for the next chunk while one is on its way to the disk.
    pub(crate) next_step: Option<Arc<Step>>,
    /// For how long the disk has refused the step; it is tried again with the next tick. None: it doesn't.
    refused: Option<Duration>,
    rests: bool,
    /// It isn't asked before this, by the runner's clock; and since when it doesn't answer.
    not_before: Duration,
    silent_since: Option<Duration>,
}

/// What is to be written down about a tablet that arrives.
#[derive(Debug)]
pub(crate) enum Step {
    /// Some of it.
    Chunk {
        entries: Vec<v1::MovedEntry>,
        /// How many of them are changes; the others were copied in the order of their keys.
        changes: usize,
        /// With the last ones: the points of its owner.
        last: Option<Points>,
        /// With the last ones: the columns of it that are observed.
        observed: Vec<Bytes>,
    },
    /// It is served here from now on, and what is below is refused: its owner did, when it handed it over.
    Serve { barrier: Timestamp },
    /// It isn't got, for this reason: what is here of it goes.
    GiveUp(String),
}

/// Something to be asked of the owner of a tablet.
#[derive(Clone, Debug)]
pub struct MoveCall {
    /// The tablet.
    pub tablet: u64,
    /// The number of the attempt.
    pub attempt: u64,
    /// Where its owner is.
    pub address: String,
    /// What is asked.
    pub body: Ask,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Another start of the owner has its address, or it is another server.
    OtherServer,
    /// It has too much to do now.
    Later(String),
    /// It may be asked again.
    Lost(String),
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
            let unreadable = |detail: String| Error::TabletRecord { detail };
            let record =
                v1::ArrivingTablet::decode(value).map_err(|error| unreadable(error.to_string()))?;
            let is_complete = record.complete;
            arriving.insert(record).map_err(unreadable)?;
            // What its owner had still to send isn't known any more.
            if !is_complete {
                arriving.give_up_all("this server was started again");
            }
        }
        Ok(arriving)
    }

    fn give_up_all(&mut self, why: &str) {
        for arrival in self.tablets.values_mut().filter(|it| !it.record.complete) {
            arrival.give_up(why);
        }
    }

    /// A number that no attempt of this start of the server has.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.last_attempt + 1
    }

    /// This is durable: the tablet is to be got.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub(crate) fn insert(&mut self, record: v1::ArrivingTablet) -> Result<(), String> {
        let tablet = record.tablet.clone().unwrap_or_default();
        let tablet = Tablet::try_from(tablet).map_err(|error| error.to_string())?;
        let owner = record.from.clone().ok_or("it is from nowhere")?;
        self.last_attempt = self.last_attempt.max(record.attempt);
        self.failed.remove(&tablet.id);
        let arrival = Arrival {
            record,
            owner,
            chunk: 0,
            bytes: 0,
            entries: 0,
            read_ts: Timestamp::ZERO,
            is_copied: false,
            is_written: false,
            is_asked: false,
            step: None,
            ticket: None,
            next_step: None,
            refused: None,
            rests: false,
            not_before: Duration::ZERO,
            silent_since: None,
            tablet,
        };
        self.tablets.insert(arrival.tablet.id, arrival);
        Ok(())
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Arrival> {
        self.tablets.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Arrival> {
        self.tablets.get_mut(&id)
    }

    pub(crate) fn tablets(&self) -> impl Iterator<Item = &Tablet> {
        self.tablets.values().map(|arrival| &arrival.tablet)
    }

    /// These servers are there now.
    pub(crate) fn found(&mut self, owners: &[v1::MovedTo]) {
        for arrival in self.tablets.values_mut() {
            let is_owner = |it: &&v1::MovedTo| {
                let server = it.server.as_ref();
                server.is_some_and(|server| server.server == arrival.owner_name())
            };
            if let Some(owner) = owners.iter().find(is_owner) {
                arrival.owner = owner.clone();
            }
        }
    }

    /// These will never be this server's own: others have their rows, as far as the master knows.
    pub(crate) fn settled(&mut self, tablets: &[v1::TabletRef]) {
        for tablet in tablets {
            let arrival = self.tablets.get_mut(&tablet.id);
            let same = arrival.filter(|arrival| arrival.tablet.epoch == tablet.epoch);
            // What is on its way to the disk is looked at after that, with the next heartbeat.
            if let Some(arrival) = same.filter(|arrival| arrival.may_give_up()) {
                arrival.give_up("another server has it since, or its table is deleted");
            }
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.tablets.keys().copied()
    }

    /// So much time has passed: what was refused may be tried again, or is given up.
    pub(crate) fn tick(&mut self, elapsed: Duration) {
        for arrival in self.tablets.values_mut() {
            arrival.rests = false;
            let Some(refused) = &mut arrival.refused else {
                continue;
            };
            *refused += elapsed;
            if *refused >= REFUSED_MAX && arrival.may_give_up() {
                arrival.give_up("this server's disk is full");
            }
        }
    }

    /// Whether something of a tablet is on its way to the disk.
    pub(crate) fn is_written(&self) -> bool {
        self.tablets
            .values()
            .any(|arrival| arrival.ticket.is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tablets.is_empty()
    }

    /// One that has some of these rows of the table.
    pub(crate) fn overlapping(&self, tablet: &Tablet) -> Option<&Tablet> {
        let mut all = self.tablets();
        all.find(|it| it.table == tablet.table && it.rows.overlaps(&tablet.rows))
    }

    /// Whether this key is of one of them.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        let mut all = self.tablets.values();
        all.any(|arrival| arrival.rows().contains(key))
    }

    /// It is served, or given up for this reason.
    pub(crate) fn end(&mut self, id: u64, failure: Option<&str>) -> Option<Arrival> {
        let ended = self.tablets.remove(&id)?;
        if let Some(failure) = failure {
            let oldest = self.failed.iter().min_by_key(|(_, failed)| failed.number);
            if let Some(oldest) = oldest.map(|(id, _)| *id)
                && self.failed.len() >= FAILED_MAX
            {
                self.failed.remove(&oldest);
            }
            self.last_given_up += 1;
            let failed = GivenUp {
                epoch: ended.tablet.epoch,
                why: failure.to_owned(),
                number: self.last_given_up,
            };
            self.failed.insert(id, failed);
        }
        Some(ended)
    }

    /// Whether an arrival is at its end, so that nothing may be said of locks here that doesn't hold for its own.
    pub(crate) fn holds_resolution(&self) -> bool {
        let mut all = self.tablets.values();
        all.any(|arrival| arrival.is_copied || arrival.record.complete)
    }

    /// For the master.
    pub(crate) fn report(&self) -> Vec<v1::TabletArrival> {
        let under_way = self.tablets.iter().map(|(id, arrival)| v1::TabletArrival {
            tablet_id: *id,
            epoch: arrival.tablet.epoch,
            bytes: arrival.bytes,
            complete: arrival.record.complete,
            failure: String::new(),
            from: arrival.owner_name().to_owned(),
            table_id: arrival.tablet.table.0,
            start_row: arrival.tablet.rows.start.clone(),
        });
        let failed = self.failed.iter();
        let failed = failed.map(|(id, failed)| v1::TabletArrival {
            tablet_id: *id,
            epoch: failed.epoch,
            failure: failed.why.clone(),
            ..v1::TabletArrival::default()
        });
        under_way.chain(failed).collect()
    }

    /// What is to be asked next, by this server.
    pub(crate) fn next_call(
        &mut self,
        now: Duration,
        me: &v1::Addressee,
        resolved_ts: Timestamp,
    ) -> Option<MoveCall> {
        let asked = self.tablets.values().filter(|arrival| arrival.is_asked);
        let asked: BTreeSet<&str> = asked.map(|arrival| &*arrival.owner.address).collect();
        let is_free = |arrival: &Arrival| {
            !asked.contains(&*arrival.owner.address)
                && arrival.may_ask()
                && arrival.not_before <= now
        };
        let behind = self.tablets.range(self.last_asked + 1..);
        let mut in_turn = behind.chain(self.tablets.range(..=self.last_asked));
        let id = in_turn
            .find(|(_, arrival)| is_free(arrival))
            .map(|(id, _)| *id)?;
        self.last_asked = id;
        let arrival = self.tablets.get_mut(&id)?;
        arrival.is_asked = true;
        Some(MoveCall {
            tablet: id,
            attempt: arrival.record.attempt,
            address: arrival.owner.address.clone(),
            body: arrival.ask(me, resolved_ts),
        })
    }
}

impl Arrival {
    fn ask(&self, me: &v1::Addressee, resolved_ts: Timestamp) -> Ask {
        let tablet = Some(v1::TabletRef {
            id: self.tablet.id,
            epoch: self.tablet.epoch,
        });
        let address = self.record.by_address.clone();
        let by = |incarnation| {
            Some(v1::MovedTo {
                server: Some(v1::Addressee {
                    server: me.server.clone(),
                    incarnation,
                }),
                address: address.clone(),
            })
        };
        if self.record.complete {
            return Ask::TakeTablet(v1::TakeTabletRequest {
                server: self.owner_name().to_owned(),
                tablet,
                table_id: self.tablet.table.0,
                start_row: self.tablet.rows.start.clone(),
                by: by(self.record.incarnation),
                attempt: self.record.attempt,
                copy: self.record.copy,
            });
        }
        Ask::PullTablet(v1::PullTabletRequest {
            to: self.owner.server.clone(),
            tablet,
            by: by(me.incarnation),
            attempt: self.record.attempt,
            chunk: self.chunk + 1 + u64::from(self.step.is_some()),
            ahead: self.step.is_some(),
            resolved_ts: resolved_ts.as_u64(),
            copy: self.record.copy,
        })
    }

    /// Whether there is room for one more answer of its owner. At the end of the copy the owner closes the tablet: nothing is
    /// to be on its way to the disk then. And a copy that takes all of a disk is in the way of those who write.
    fn may_ask(&self) -> bool {
        match self.step.as_deref() {
            None => true,
            Some(Step::Chunk { last: None, .. }) => {
                self.next_step.is_none() && !self.is_copied && !self.is_written
            }
            Some(_) => false,
        }
    }

    /// Whether nothing of it is on its way to the disk, and its rows may be another server's.
    fn may_give_up(&self) -> bool {
        let is_chunk = |step: &Arc<Step>| matches!(**step, Step::Chunk { .. });
        self.ticket.is_none() && self.step.as_ref().is_none_or(is_chunk)
    }

    fn give_up(&mut self, why: &str) {
        self.step = Some(Arc::new(Step::GiveUp(why.to_owned())));
        self.next_step = None;
        self.refused = None;
    }

    /// What is to be written down next, unless it is on its way, or was refused just now.
    pub(crate) fn writable_step(&self) -> Option<Arc<Step>> {
        self.step
            .clone()
            .filter(|_| self.ticket.is_none() && !self.rests)
    }

    /// The disk has taken the step, or has refused it, as it would at once again.
    pub(crate) fn was_written(&mut self, durable: bool) {
        self.rests = !durable;
        self.refused = match self.refused {
            _ if durable => None,
            refused => refused.or(Some(Duration::ZERO)),
        };
    }

    /// This is to be written down, behind what is being written.
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
        self.owner.server.as_ref().map_or("", |it| &it.server)
    }

    /// All keys of the tablet.
    pub(crate) fn rows(&self) -> Range {
        Range::of(&self.tablet)
    }

    /// Its owner has answered, or not.
    pub(crate) fn answered(&mut self) {
        self.is_asked = false;
        self.silent_since = None;
    }

    /// To be asked again, a moment later.
    pub(crate) fn wait(&mut self, now: Duration) {
        self.not_before = now + PAUSE;
    }

    /// No answer came. Why it is to be given up, if so.
    pub(crate) fn missed(&mut self, now: Duration, why: &Unanswered) -> Option<String> {
        self.is_asked = false;
        self.not_before = now
            + match why {
                Unanswered::Later(_) => PAUSE_BUSY,
                Unanswered::OtherServer | Unanswered::Lost(_) => PAUSE_SILENT,
            };
        let silent = now.saturating_sub(*self.silent_since.get_or_insert(now));
        if self.record.complete {
            // Only its owner knows.
            return None;
        }
        match why {
            Unanswered::OtherServer => Some(format!("{} was started again", self.owner_name())),
            Unanswered::Later(why) | Unanswered::Lost(why) => (silent >= SILENCE_MAX).then(|| {
                format!(
                    "{} has not answered for {SILENCE_MAX:?}: {why}",
                    self.owner_name()
                )
            }),
        }
    }

    /// Bytes that have come since this start of the server.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A chunk of so many bytes is durable.
    pub(crate) fn stored(&mut self, bytes: u64, is_last: bool) {
        self.chunk += 1;
        self.bytes += bytes;
        self.record.complete |= is_last;
    }
}

/// The batch keeps this of a tablet that arrives.
pub(crate) fn put_record(batch: &mut Batch, id: u64, record: &v1::ArrivingTablet) {
    batch.put(
        Column::Meta,
        tablets::key(ARRIVING_PREFIX, id),
        record.encode_to_vec(),
    );
}

/// The batch forgets that.
pub(crate) fn remove_record(batch: &mut Batch, id: u64) {
    batch.delete(Column::Meta, tablets::key(ARRIVING_PREFIX, id));
}
