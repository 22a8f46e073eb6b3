//! A tablet server without socket, clock or thread: requests in, answers and groups of batches out. The
//! server runs it on a network, the simulator on a simulated one.
//!
//! A request that writes goes: queue for its rows' latches, load, decide by a rule of `protocol`, hand
//! its batch to the next group, be answered when the group is durable. One group is on its way to the
//! disk at a time; whatever is decided meanwhile makes the next one.

mod answer;
mod bulk;
mod chores;
mod effects;
mod facts;
mod waits;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use percolator_engine::{Batch, Column, Engine};
use percolator_protocol::lease::Lease;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;
use prost::Message as _;

pub(crate) use facts::Facts;

use crate::asked::Unread;
use crate::cache::CellCache;
use crate::clearing::Clearing;
use crate::decision::{Decision, Ground};
use crate::latches::{Latches, RowHash, Ticket};
use crate::limits::Limits;
use crate::marks::Marks;
use crate::pace::Pace;
use crate::probe::{Method, Note, Probe, Silent, Step, tablets};
use crate::progress::Progress;
use crate::readers::Readers;
use crate::store::{self, LockFilter, Reached};
use crate::tablets::Tablets;
use crate::wait_queue::WaitQueue;
use crate::work::Work;
use crate::{Error, Failure, Refusal, asked, garbage, points, reads, resolve};

/// Who asked, as the runner names them.
pub type Asker = u64;

/// An answer to a request.
#[derive(Debug)]
pub struct Reply {
    /// Who asked.
    pub to: Asker,
    /// The answer; without a body it says that an order of the master's was carried out.
    pub response: v1::Response,
}

/// An order of the master's.
#[derive(Clone, Debug)]
pub enum Order {
    /// Own this tablet, in this state.
    Create {
        /// The tablet.
        tablet: v1::TabletInfo,
        /// The server has said that it has it.
        made: bool,
        /// What is below is refused from before the tablet is served.
        barrier: Timestamp,
    },
    /// Forget this tablet of a table that is deleted.
    Drop {
        /// The tablet.
        id: u64,
        /// Its table.
        table: u32,
    },
}

/// The tablet server's state.
pub struct Core {
    engine: Arc<dyn Engine>,
    limits: Limits,
    raw: bool,
    tablets: Tablets,
    filter: LockFilter,
    cache: RefCell<CellCache>,
    records: Marks,
    /// The highest timestamp of any write record that was decided.
    high_ts: Timestamp,
    /// What is durable.
    durable: Reached,
    /// With the group that is on its way.
    group_reaches: Reached,
    readers: RefCell<Readers>,
    me: v1::Addressee,
    latches: Latches,
    next_ticket: Ticket,
    /// Waiting for latches.
    queued: HashMap<Ticket, Queued>,
    /// Of these, of the held reads and of large transactions' requests.
    queued_bytes: usize,
    /// Those of them that have their latches.
    ready: VecDeque<Ticket>,
    /// Reads that wait for what is on its way to the disk.
    held_reads: Vec<(Asker, v1::Request, Note)>,
    /// Requests of large transactions that wait for their turn.
    bulk: bulk::Queue,
    /// Decided, to go with the next group.
    decided: Vec<Decided>,
    decided_bytes: usize,
    /// On their way to the disk, and their batches.
    committing: Vec<Decided>,
    group: Arc<Vec<Batch>>,
    in_flight: bool,
    /// The last group of new data was refused, because the disk is full.
    short_of_room: bool,
    clearing: Clearing,
    /// Who waits for a turn at a cell.
    waits: WaitQueue<waits::Waiter>,
    points: points::Kept,
    lease: Lease,
    /// The piece of garbage that is being collected.
    collecting: Option<Ticket>,
    /// Nothing is left up to here, as far as the last look goes.
    collected_to: Timestamp,
    progress: Progress,
    front: garbage::Front,
    pace: Pace,
    /// Requests that write, since it was last looked for a piece.
    writes: usize,
    failed: Option<Failure>,
    probe: Box<dyn Probe>,
}

struct Queued {
    to: Option<Asker>,
    id: u64,
    note: Note,
    rows: Vec<RowHash>,
    work: Work,
    /// What it holds in memory, once it waits.
    bytes: usize,
}

struct Decided {
    ticket: Ticket,
    rows: Vec<RowHash>,
    /// `None`: the server's own chore.
    to: Option<Asker>,
    id: u64,
    note: Note,
    decision: Decision,
}

impl Core {
    /// A server over this engine's content that keeps within these limits. `raw` allows the benchmark's
    /// plain reads and writes. `me` is the server's name and a number of this start of it: not zero, and
    /// never used again.
    ///
    /// # Errors
    /// The engine can't be read, or its content is damaged.
    pub fn open(
        engine: Arc<dyn Engine>,
        limits: Limits,
        raw: bool,
        me: v1::Addressee,
    ) -> Result<Self, Error> {
        let reached = Reached::load(&*engine)?;
        let tablets = Tablets::load(&*engine)?;
        Ok(Self {
            records: Marks::at(reached.high_ts, limits.marks),
            high_ts: reached.high_ts,
            durable: reached,
            group_reaches: reached,
            progress: Progress::load(&*engine, &tablets)?,
            tablets,
            filter: LockFilter::load(&*engine)?,
            points: points::Kept::load(&*engine)?,
            lease: Lease::default(),
            collecting: None,
            collected_to: Timestamp::ZERO,
            front: garbage::Front::default(),
            pace: Pace::new(limits.large_cells_a_second),
            writes: 0,
            engine,
            cache: RefCell::new(CellCache::new(limits.cache_bytes)),
            readers: RefCell::new(Readers::new(limits.marks)),
            limits,
            me,
            held_reads: Vec::new(),
            bulk: bulk::Queue::default(),
            raw,
            latches: Latches::default(),
            next_ticket: 0,
            queued: HashMap::new(),
            queued_bytes: 0,
            ready: VecDeque::new(),
            decided: Vec::new(),
            decided_bytes: 0,
            committing: Vec::new(),
            group: Arc::default(),
            in_flight: false,
            short_of_room: false,
            clearing: Clearing::default(),
            waits: WaitQueue::new(limits.waiting),
            failed: None,
            probe: Box::new(Silent),
        })
    }

    /// What the server durably holds, for the master: the heartbeat's fields from `tablets` on.
    pub fn report(&self) -> v1::HeartbeatRequest {
        v1::HeartbeatRequest {
            barrier: self.points.durable.barrier.as_u64(),
            safe_point: self.points.durable.safe_point.as_u64(),
            progress: Some(self.gc_progress()),
            high_ts: self.durable.high_ts.as_u64(),
            groups: self.durable.groups,
            ..self.tablets.report()
        }
    }

    /// How many cells are locked, about.
    pub fn locks(&self) -> usize {
        self.filter.len()
    }

    /// Why the server can't go on, if it can't: the disk lost a write, or can't be read.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_ref().map(|failure| &*failure.message)
    }

    fn take(&mut self, to: Asker, request: v1::Request, mut note: Note, out: &mut Vec<Reply>) {
        if !self.readers.borrow().idle() && reads::has_to_wait(self.ground(), &request) {
            return self.hold(to, request, note, out);
        }
        self.probe.ended(&mut note, Step::Queue);
        let id = request.id;
        let Some(body) = request.body else {
            let refusal = Refusal::Invalid("a request without a body".into());
            return self.answer(Some(to), id, note, Err(refusal), out);
        };
        if !self.raw && asked::is_raw(&body) {
            let why = "raw access is off; it is for benchmarks alone".into();
            return self.answer(Some(to), id, note, Err(Refusal::Invalid(why)), out);
        }
        let result = match Work::read(request.tablets, body) {
            Ok(work) => return self.enqueue(Some(to), id, note, work, out),
            Err(Unread::Reads(refs, body)) => reads::answer(self.ground(), &refs, body),
            Err(Unread::Resolves(refs, request)) => {
                match resolve::find(self.ground(), refs, request, self.resolved_at_once()) {
                    Ok((tablet, piece)) => {
                        self.pace.spent_bulk(piece.work());
                        let work = Work::resolve(tablet, piece);
                        return self.enqueue(Some(to), id, note, work, out);
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            Err(Unread::Waits(refs, request)) => {
                return self.wait_for_cell(to, id, note, &refs, request, out);
            }
            Err(Unread::Refused(refusal)) => Err(refusal),
        };
        if let Err(refusal) = &result {
            self.note_fatal(refusal);
        }
        self.probe.ended(&mut note, Step::Decide);
        self.answer(Some(to), id, note, result.map(Some), out);
    }

    /// Takes an order of the master's, that is meant for this server; answered like a request, under this id.
    pub fn order(
        &mut self,
        to: Asker,
        id: u64,
        meant: Option<v1::Addressee>,
        order: Order,
        out: &mut Vec<Reply>,
    ) {
        let note = self.probe.came(Some(Method::Order), None);
        if let Err(refusal) = self.ground().check_addressee(meant) {
            return self.answer(Some(to), id, note, Err(refusal), out);
        }
        let work = match order {
            Order::Create {
                tablet,
                made,
                barrier,
            } => Work::create_tablet(tablet, made, barrier),
            Order::Drop { id, table } => Work::drop_tablet(id, table),
        };
        self.enqueue(Some(to), id, note, work, out);
    }

    /// The next group of batches to make durable, when there's one and none is on its way.
    /// [`Self::committed`] is to be called with what became of it.
    pub fn take_group(&mut self) -> Option<Arc<Vec<Batch>>> {
        if self.in_flight || self.failed.is_some() {
            return None;
        }
        // A full disk refuses it, and would again at once.
        if !self.short_of_room {
            self.clear_dropped();
        }
        if self.decided.is_empty() {
            return None;
        }
        self.collect_along();
        self.committing = self.next_group();
        let decisions = self.committing.iter_mut().map(|it| &mut it.decision);
        self.points.take_nothing_back(decisions);
        let mut group: Vec<Batch> = self
            .committing
            .iter_mut()
            .map(|decided| std::mem::take(&mut decided.decision.batch))
            .collect();
        for decided in &mut self.committing {
            self.probe.ended(&mut decided.note, Step::Group);
        }
        let taken: usize = group.iter().map(Batch::size_bytes).sum();
        self.decided_bytes = self.decided_bytes.saturating_sub(taken);
        // With the records that it is about, or before them; each time, as a batch that was refused and comes
        // again has an older one in it.
        let single = group.len() == 1 && mutants::on(Mutant::HighTsNotEachTime);
        self.group_reaches = Reached {
            high_ts: self.high_ts,
            groups: self.durable.groups + 1,
        };
        if let Some(last) = group.last_mut().filter(|_| !single) {
            last.put(Column::Meta, store::REACHED, self.group_reaches.encode());
        }
        self.in_flight = true;
        self.group = Arc::new(group);
        Some(self.group.clone())
    }

    /// The group that was taken is durable, or is not. Answers it, and whoever waited for its rows.
    pub fn committed(
        &mut self,
        result: Result<(), percolator_engine::Error>,
        out: &mut Vec<Reply>,
    ) {
        self.in_flight = false;
        let group = std::mem::take(&mut self.group);
        let (mut spending, mut new) = (false, false);
        for batch in group.iter() {
            spending |= batch.spends_reserve();
            new |= !batch.spends_reserve();
        }
        if result.is_ok() {
            self.durable = self.group_reaches;
        }
        let full = matches!(result, Err(percolator_engine::Error::Full { .. }));
        if new {
            self.short_of_room = full;
        }
        let failure = result.err().map(|error| {
            use percolator_engine::Error as E;
            // Here nothing was written, and the server goes on.
            let unknown = !matches!(
                error,
                E::Full { .. } | E::InvalidKey { .. } | E::TooLarge { .. }
            );
            let refusal = Refusal::Engine {
                message: error.to_string(),
                unknown,
                fatal: unknown,
                damaged: error.is_damage(),
            };
            self.note_fatal(&refusal);
            refusal
        });
        let mut ready = Vec::new();
        let mut again = Vec::new();
        for (mut decided, batch) in std::mem::take(&mut self.committing)
            .into_iter()
            .zip(group.iter())
        {
            if full && new && spending && batch.spends_reserve() {
                // Refused for the others' sake.
                self.decided_bytes += batch.size_bytes();
                decided.decision.batch = batch.clone();
                again.push(decided);
                continue;
            }
            for hash in decided.decision.held.iter().flat_map(|(_, cells)| cells) {
                self.readers.get_mut().release(*hash);
            }
            let result = match &failure {
                None => {
                    let wakes = self.wakes(&decided.decision);
                    self.take_effect(decided.ticket, &mut decided.decision);
                    self.wake(wakes, out);
                    if let Some(how) = decided.decision.commits {
                        self.probe.transaction(how);
                    }
                    Ok(decided.decision.answer)
                }
                Some(refusal) => Err(refusal.clone()),
            };
            self.probe.ended(&mut decided.note, Step::Commit);
            match decided.to {
                Some(_) => self.answer(decided.to, decided.id, decided.note, result, out),
                None => self.chore_ended(decided.ticket, result.is_ok()),
            }
            self.latches
                .release(decided.ticket, &decided.rows, &mut ready);
        }
        self.decided.splice(0..0, again);
        let waiting = self.decided.iter().map(|decided| decided.ticket);
        self.points.settle(waiting);
        self.run(ready, out);
        for (to, request, note) in std::mem::take(&mut self.held_reads) {
            self.queued_bytes -= request.encoded_len();
            if let Some(failed) = &self.failed {
                let refusal = Refusal::failed(failed.clone());
                self.answer(Some(to), request.id, note, Err(refusal), out);
            } else {
                self.take(to, request, note, out);
            }
        }
        if failure.is_none() {
            self.collect(out);
        }
    }

    fn ground(&self) -> Ground<'_> {
        Ground {
            engine: &*self.engine,
            limits: &self.limits,
            filter: &self.filter,
            records: &self.records,
            cache: &self.cache,
            tablets: &self.tablets,
            readers: &self.readers,
            points: self.points.now(),
            lease: self.lease,
            to_raise: self.points.highest(),
            life: self.me.incarnation,
            me: &self.me,
            probe: &*self.probe,
        }
    }

    fn enqueue(
        &mut self,
        to: Option<Asker>,
        id: u64,
        note: Note,
        work: Work,
        out: &mut Vec<Reply>,
    ) {
        self.writes += usize::from(to.is_some());
        let waiting = self.queued.len() + self.decided.len() + self.committing.len();
        if let Some(failed) = &self.failed {
            let refusal = Refusal::failed(failed.clone());
            return self.answer(to, id, note, Err(refusal), out);
        }
        // Rows are latched by their table; and who asks the wrong server is told that, however busy this one is.
        if let Err(not_served) = work.served_by(&self.tablets) {
            return self.answer(to, id, note, Err(not_served.into()), out);
        }
        if let Some(limit) = self.limit_reached(waiting) {
            return self.refuse(to, id, note, limit, out);
        }
        let rows = if mutants::on(Mutant::NoLatches) {
            Vec::new()
        } else {
            work.rows(&self.tablets)
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let mut queued = Queued {
            to,
            id,
            note,
            rows,
            work,
            bytes: 0,
        };
        if self.latches.acquire(ticket, &queued.rows) {
            self.decide(ticket, queued, out);
        } else {
            self.probe.waits_for_rows();
            queued.bytes = queued.work.detach();
            self.queued_bytes += queued.bytes;
            self.queued.insert(ticket, queued);
        }
    }

    /// Runs requests that hold all of their latches now, and whoever those let through; where enough is
    /// decided for now, when the next group is durable.
    fn run(&mut self, ready: Vec<Ticket>, out: &mut Vec<Reply>) {
        self.ready.extend(ready);
        while !self.limits.enough_decided(self.decided_bytes)
            && let Some(ticket) = self.ready.pop_front()
        {
            if let Some(queued) = self.queued.remove(&ticket) {
                self.queued_bytes -= queued.bytes;
                let ready = self.decide(ticket, queued, out);
                self.ready.extend(ready);
            }
        }
    }

    /// Decides a request that holds its latches. Where nothing is to be written, it is answered, lets
    /// go of them, and returns who holds theirs now.
    fn decide(&mut self, ticket: Ticket, queued: Queued, out: &mut Vec<Reply>) -> Vec<Ticket> {
        let mut note = queued.note;
        self.probe.ended(&mut note, Step::Latch);
        let decided = queued.work.decide(self.ground()).and_then(|mut decision| {
            garbage::index(&self.tablets, &mut decision)?;
            Ok(decision)
        });
        self.probe.ended(&mut note, Step::Decide);
        let result = match decided {
            Ok(decision) if !decision.batch.is_empty() => {
                self.decided_bytes += decision.batch.size_bytes();
                for (hash, ts) in &decision.records {
                    self.records.raise(*hash, *ts);
                    self.high_ts = self.high_ts.max(*ts);
                }
                if let Some(points) = decision.points {
                    self.points.decided(points);
                }
                if let Some((commit_ts, cells)) = &decision.held {
                    let readers = self.readers.get_mut();
                    for hash in cells {
                        readers.hold(*hash, *commit_ts);
                    }
                }
                let wakes = self.wakes_at_once(&decision);
                self.wake(wakes, out);
                self.decided.push(Decided {
                    ticket,
                    rows: queued.rows,
                    to: queued.to,
                    id: queued.id,
                    note,
                    decision,
                });
                return Vec::new();
            }
            Ok(decision) => Ok(decision.answer),
            Err(refusal) => {
                self.note_fatal(&refusal);
                Err(refusal)
            }
        };
        let mut ready = Vec::new();
        match queued.to {
            Some(_) => self.answer(queued.to, queued.id, note, result, out),
            None => self.chore_ended(ticket, result.is_ok()),
        }
        self.latches.release(ticket, &queued.rows, &mut ready);
        ready
    }

    /// An engine that has stopped doesn't come back: the server has to be started again.
    fn note_fatal(&mut self, refusal: &Refusal) {
        if self.failed.is_none() {
            self.failed = refusal.failure();
        }
    }

    /// What goes with the next group. Where the disk is short of room, all of it may spend the reserve or
    /// none may, as the one that waits longest: the others don't spoil it, and have their turn next.
    fn next_group(&mut self) -> Vec<Decided> {
        let kind = |decided: &Decided| decided.decision.batch.spends_reserve();
        let of_kind = match (self.short_of_room, self.decided.first()) {
            (true, Some(first)) => Some(kind(first)),
            _ => None,
        };
        let mut bytes = 0;
        let mut fits = |decided: &Decided| {
            if of_kind.is_some_and(|of_kind| of_kind != kind(decided)) {
                return false;
            }
            let first = bytes == 0;
            bytes += decided.decision.batch.size_bytes().max(1);
            first || self.limits.is_a_group(bytes)
        };
        if of_kind.is_some() {
            return self.decided.extract_if(.., |one| fits(one)).collect();
        }
        let fits = self.decided.iter().take_while(|one| fits(one)).count();
        self.decided.drain(..fits).collect()
    }
}
