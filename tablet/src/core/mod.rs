//! A tablet server without socket, clock or thread: it takes requests, and returns responses and groups of batches. The server
//! runs it on a network, the simulator on a simulated one.
//!
//! A write request queues for its rows' latches, loads, is decided by a rule of `protocol`, hands its batch to the next group,
//! and is answered when the group is durable. One group is on its way to the disk at a time. Decisions made meanwhile go with
//! the next one.

mod answer;
mod background;
mod effects;
mod facts;
mod flushes;
mod groups;
mod moves;
mod observing;
mod queue;
mod report;
mod unleased;
mod waits;

use std::sync::Arc;

use percolator_engine::{Batch, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Tablet;
use percolator_wire::v1;
use percolator_wire::v1::response::Body;
use prost::Message as _;

use self::background::Collection;
use self::groups::{CommittedGroup, Groups, PendingDecision};
use self::queue::{PendingRequest, Queue};
use crate::asked::RequestError;
use crate::latches::Ticket;
use crate::limits::Limits;
use crate::pace::Pace;
use crate::peers::ServerIncarnation;
use crate::probe::{Method, Note, Step, tablets};
use crate::resolution::Resolution;
use crate::state::State;
use crate::store::FolderProgress;
use crate::wait_queue::WaitQueue;
use crate::work::Work;
use crate::{Error, Failure, Refusal, asked, garbage, load, rates, reads, resolve};

pub use crate::commands::TabletCommand;
pub(crate) use facts::Facts;

/// The number of a caller, given by the runner.
pub type Asker = u64;

/// A response and its receiver.
#[derive(Debug)]
pub struct Reply {
    /// The receiver.
    pub to: Asker,
    /// The response; without a body it says that a command of the master was carried out.
    pub response: v1::Response,
}

/// A tablet server.
pub struct Core {
    state: State,
    /// Allows the benchmark's raw reads and writes.
    raw: bool,
    queue: Queue,
    /// Requests of large transactions that wait for their turn.
    flushes: flushes::FlushQueue,
    groups: Groups,
    /// Requests that wait for a turn at a cell.
    waits: WaitQueue<waits::Waiter>,
    /// Requests that wait for notifications.
    observing: observing::Observing,
    gc: Collection,
    resolution: Resolution,
    pace: Pace,
    /// A master has accepted this start, and with it the folder. Nothing is written before that: what a start writes by itself would
    /// make an older folder appear newer at the next start.
    is_accepted: bool,
    failed: Option<Failure>,
}

impl Core {
    /// Opens a server on this engine, with these limits. `raw` allows the benchmark's raw reads and writes. The incarnation of
    /// `me` is not zero, and no other start of the server has it.
    ///
    /// # Errors
    /// The engine can't be read, or its content is damaged.
    pub fn open(
        engine: Arc<dyn Engine>,
        limits: Limits,
        raw: bool,
        me: ServerIncarnation,
    ) -> Result<Self, Error> {
        let reached = FolderProgress::load(&*engine)?;
        let state = State::load(engine, limits, me, reached)?;
        let mut resolution = Resolution::at(state.points.durable);
        resolution.hold(state.arriving.holds_resolution());
        Ok(Self {
            gc: Collection::load(&state)?,
            resolution,
            state,
            raw,
            queue: Queue::default(),
            flushes: flushes::FlushQueue::default(),
            groups: Groups::at(reached),
            waits: WaitQueue::new(limits.waiting),
            observing: observing::Observing::default(),
            pace: Pace::new(limits.large_cells_a_second),
            is_accepted: false,
            failed: None,
        })
    }

    /// The tablet with this id, as it is here.
    pub fn tablet(&self, id: u64) -> Option<&Tablet> {
        self.state.tablets.get(id)
    }

    /// The number of tablets that this server owns.
    pub fn tablet_count(&self) -> usize {
        self.state.tablets.len()
    }

    /// The number of groups that are durable since the folder was made.
    pub fn groups(&self) -> u64 {
        self.groups.durable.groups
    }

    /// The number of locked cells, about.
    pub fn locks(&self) -> usize {
        self.state.filter.len()
    }

    /// Why the server has stopped, if it has: the disk lost a write, or can't be read.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_ref().map(|failure| &*failure.message)
    }

    /// Takes a request. Responses that are ready go to `out`, others come from [`Self::committed`].
    pub fn request(&mut self, to: Asker, request: v1::Request, out: &mut Vec<Reply>) {
        let method = Method::of(&request);
        let note = self.state.probe.came(method, Some(&request));
        load::count(&*self.state.probe, &self.state.tablets, method, &request);
        rates::count(self.state.rates.get_mut(), &self.state.tablets, &request);
        if note.traced.is_some() {
            let here = tablets(&request).filter_map(|id| self.state.tablets.get(id));
            here.for_each(|tablet| self.state.probe.of_table(&note, &tablet.table_name));
        }
        // The lease comes before all limits: a caller that waits here, or retries because the server is busy, would not find
        // another server that has taken this one's place.
        let depends_on = request.body.as_ref().and_then(asked::depends_on);
        if let Some(Err(not_leased)) = depends_on.map(|ts| self.state.lease.admit(ts)) {
            return self.answer(Some(to), request.id, note, Err(not_leased.into()), out);
        }
        self.take_in_turn(to, request, note, out);
    }

    fn take(&mut self, to: Asker, request: v1::Request, mut note: Note, out: &mut Vec<Reply>) {
        // The log may have changes that the store and the cache don't have.
        if let Some(failed) = &self.failed
            && !mutants::on(Mutant::ReadsAfterFailure)
        {
            let refusal = Refusal::failed(failed.clone());
            return self.answer(Some(to), request.id, note, Err(refusal), out);
        }
        if !self.state.readers.borrow().idle() && reads::has_to_wait(&self.state, &request) {
            return self.hold(to, request, note, out);
        }
        self.state.probe.ended(&mut note, Step::Queue);
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
            Err(RequestError::Reads(refs, body)) => reads::answer(&self.state, &refs, body),
            Err(RequestError::Resolves(refs, request)) => {
                match resolve::find(&self.state, refs, request, self.resolved_at_once()) {
                    Ok((tablet, piece)) => {
                        self.pace.spent_flush(piece.work());
                        let work = Work::resolve(tablet, piece);
                        return self.enqueue(Some(to), id, note, work, out);
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            Err(RequestError::Waits(refs, request)) => {
                return self.wait_for_cell(to, id, note, &refs, request, out);
            }
            Err(RequestError::Notifications(refs, request)) => {
                return self.notifications(to, id, note, &refs, request, out);
            }
            Err(RequestError::Pulls(request)) => self.pull(&request).map(Into::into),
            Err(RequestError::Refused(refusal)) => Err(refusal),
        };
        if let Err(refusal) = &result {
            self.note_fatal(refusal);
        }
        self.state.probe.ended(&mut note, Step::Decide);
        self.answer(Some(to), id, note, result.map(Some), out);
    }

    /// Takes a command of the master that is addressed to `meant`. It is answered like a request, under this id.
    pub fn command(
        &mut self,
        to: Asker,
        id: u64,
        meant: Option<ServerIncarnation>,
        command: TabletCommand,
        out: &mut Vec<Reply>,
    ) {
        let note = self.state.probe.came(Some(Method::Command), None);
        if let Err(refusal) = self.state.check_addressee(meant) {
            return self.answer(Some(to), id, note, Err(refusal), out);
        }
        self.enqueue(Some(to), id, note, Work::command(command), out);
    }

    /// The next group of batches to make durable, if there is one and none is on its way. The caller passes the result to
    /// [`Self::committed`]. `None` before the first lease.
    pub fn take_group(&mut self) -> Option<Arc<Vec<Batch>>> {
        let may_write = self.is_accepted || mutants::on(Mutant::WritesUnaccepted);
        if self.groups.in_flight || self.failed.is_some() || !may_write {
            return None;
        }
        // With enough decisions waiting, clearing waits, too.
        if !self.state.limits.enough_decided(self.groups.decided_bytes) {
            self.clear_dropped();
        }
        if self.groups.decided.is_empty() {
            return None;
        }
        self.collect_along();
        self.write_sizes();
        self.groups.committing = self.groups.next(&self.state.limits);
        let decisions = self.groups.committing.iter_mut().map(|it| &mut it.decision);
        self.state.points.take_nothing_back(decisions);
        for decided in &mut self.groups.committing {
            self.state.probe.ended(&mut decided.asked.note, Step::Group);
        }
        let read_ts = self.state.readers.borrow().highest();
        Some(self.groups.depart(read_ts))
    }

    /// Takes the result of the group. Answers its requests, and those that waited for their rows.
    pub fn committed(
        &mut self,
        result: Result<(), percolator_engine::Error>,
        out: &mut Vec<Reply>,
    ) {
        let CommittedGroup {
            group,
            refused_for_others,
        } = self.groups.arrive(result.as_ref().err());
        let failure = result.err().map(refused_by_disk);
        if let Some(refusal) = &failure {
            self.note_fatal(refusal);
        }
        let mut ready = Vec::new();
        let mut again = Vec::new();
        for (mut decided, batch) in std::mem::take(&mut self.groups.committing)
            .into_iter()
            .zip(group.iter())
        {
            if refused_for_others && batch.spends_reserve() {
                self.groups.decided_bytes += batch.size_bytes();
                decided.decision.batch = batch.clone();
                again.push(decided);
                continue;
            }
            for hash in decided.decision.held.iter().flat_map(|(_, cells)| cells) {
                self.state.readers.get_mut().release(*hash);
            }
            let result = match &failure {
                None => {
                    self.state.leaving.tap(batch);
                    let wakes = self.wakes(&decided.decision);
                    self.take_effect(decided.ticket, &mut decided.decision);
                    self.gc.sizes.wrote(batch, &self.state.tablets);
                    self.wake(wakes, out);
                    self.observed(&decided.decision);
                    if let Some(how) = decided.decision.commits {
                        self.state.probe.transaction(how);
                    }
                    Ok(self.durable_answer(&mut decided.decision))
                }
                Some(refusal) => {
                    if let Some(change) = decided.decision.tablet_change.take() {
                        self.move_decided(&change, false);
                    }
                    Err(refusal.clone())
                }
            };
            self.state
                .probe
                .ended(&mut decided.asked.note, Step::Commit);
            ready.extend(self.end(decided.ticket, decided.asked, result, out));
        }
        self.groups.decided.splice(0..0, again);
        self.state.points.settle(self.groups.waiting());
        self.note_barrier();
        self.run(ready, out);
        self.read_held(out);
        self.wake_observers(out);
        self.write_steps(out);
        if failure.is_none() {
            self.collect(out);
        }
    }

    /// Carries out the reads that waited for the disk.
    fn read_held(&mut self, out: &mut Vec<Reply>) {
        for (to, request, note) in std::mem::take(&mut self.queue.reads) {
            self.queue.bytes -= request.encoded_len();
            self.take(to, request, note, out);
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
        self.queue.writes += usize::from(to.is_some());
        let waiting =
            self.queue.waiting.len() + self.groups.decided.len() + self.groups.committing.len();
        if let Some(failed) = &self.failed {
            let refusal = Refusal::failed(failed.clone());
            return self.answer(to, id, note, Err(refusal), out);
        }
        // Latches go by table. A busy server, too, answers at once that it doesn't serve a tablet.
        if let Err(not_served) = work.served_by(&self.state.tablets) {
            return self.answer(to, id, note, Err(not_served.into()), out);
        }
        if let Some(limit) = self.limit_reached(waiting) {
            return self.refuse(to, id, note, limit, out);
        }
        let rows = if mutants::on(Mutant::NoLatches) {
            Vec::new()
        } else {
            work.rows(&self.state.tablets)
        };
        let ticket = self.queue.ticket();
        let is_ready = self.queue.latches.acquire(ticket, &rows);
        let asked = PendingRequest { to, id, note, rows };
        if is_ready {
            self.decide(ticket, asked, work, out);
        } else {
            self.state.probe.waits_for_rows();
            self.queue.push(ticket, asked, work);
        }
    }

    /// Decides requests that hold all of their latches now, and those that get theirs by that. The rest waits for the next
    /// group when enough is decided.
    fn run(&mut self, ready: Vec<Ticket>, out: &mut Vec<Reply>) {
        self.queue.ready.extend(ready);
        while !self.state.limits.enough_decided(self.groups.decided_bytes)
            && let Some((ticket, queued)) = self.queue.pop()
        {
            let ready = self.decide(ticket, queued.asked, queued.work, out);
            self.queue.ready.extend(ready);
        }
    }

    /// Decides a request that holds its latches. A request that writes nothing is answered, and releases them. Returns the
    /// tickets that hold their latches now.
    fn decide(
        &mut self,
        ticket: Ticket,
        mut asked: PendingRequest,
        work: Work,
        out: &mut Vec<Reply>,
    ) -> Vec<Ticket> {
        self.state.probe.ended(&mut asked.note, Step::Latch);
        let decided = work.decide(&self.state).and_then(|mut decision| {
            garbage::index(&self.state, &mut decision)?;
            Ok(decision)
        });
        self.state.probe.ended(&mut asked.note, Step::Decide);
        let result = match decided {
            Ok(decision) if !decision.batch.is_empty() => {
                self.take_effect_at_once(&decision);
                let wakes = self.wakes_at_once(&decision);
                self.wake(wakes, out);
                self.groups.push(PendingDecision {
                    ticket,
                    asked,
                    decision,
                });
                return Vec::new();
            }
            Ok(mut decision) => Ok(self.durable_answer(&mut decision)),
            Err(refusal) => {
                self.note_fatal(&refusal);
                Err(refusal)
            }
        };
        self.end(ticket, asked, result, out)
    }

    /// Answers a request, and releases its latches. Returns the tickets that hold theirs now.
    fn end(
        &mut self,
        ticket: Ticket,
        asked: PendingRequest,
        result: Result<Option<Body>, Refusal>,
        out: &mut Vec<Reply>,
    ) -> Vec<Ticket> {
        match asked.to {
            Some(_) => self.answer(asked.to, asked.id, asked.note, result, out),
            None => self.background_ended(ticket, result.is_ok()),
        }
        let mut ready = Vec::new();
        self.queue.latches.release(ticket, &asked.rows, &mut ready);
        ready
    }

    /// Stops the server if the engine has stopped. It has to be started again.
    fn note_fatal(&mut self, refusal: &Refusal) {
        if self.failed.is_none() {
            self.failed = refusal.failure();
        }
    }
}

/// The refusal for requests of a group that is not known to be durable.
fn refused_by_disk(error: percolator_engine::Error) -> Refusal {
    use percolator_engine::Error as E;
    // After these errors nothing was written, and the server goes on.
    let unknown = !matches!(
        error,
        E::Full { .. } | E::InvalidKey { .. } | E::TooLarge { .. }
    );
    Refusal::Engine {
        message: error.to_string(),
        unknown,
        fatal: unknown,
        damaged: error.is_damage(),
    }
}
