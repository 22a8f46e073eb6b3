//! Tablets that are handed over, at their owner and at their receiver.

use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Tablet, Timestamp};

use super::{Core, Reply};
use crate::Refusal;
use crate::arriving::{Arrival, Step};
use crate::decision::{Decision, TabletChange};
use crate::latches::Ticket;
use crate::leaving::{KeyRange, OLD_LOCKS, PulledChunk, Source};
use crate::locks::{self, LockSearch};
use crate::moves::{Move, check_chunk};
use crate::peers::{
    ClosedTablet, MoveCall, MoveResponse, MovedEntry, PullRequest, PullResponse, ServerLocation,
    TabletChunk, TakeOutcome, Unanswered,
};
use crate::probe::Note;
use crate::work::Work;

impl Core {
    /// Takes a receiver's request for the next chunk of a tablet.
    pub(super) fn pull(&mut self, request: &PullRequest) -> Result<PullResponse, Refusal> {
        self.state.check_addressee(request.to.clone())?;
        self.state.check_leased()?;
        let PullRequest {
            id, resolved_ts, ..
        } = *request;
        let is_resolved =
            self.resolution.resolved_ts() >= resolved_ts || mutants::on(Mutant::MovedUnresolved);
        if self.state.leaving.begins(request)
            && let Some(refusal) = self.begin_departure(request, is_resolved)?
        {
            return Ok(PullResponse::Over(refusal));
        }
        let engine = &*self.state.engine;
        let source =
            Source {
                engine,
                lease: self.state.lease,
                chunk_bytes: self.state.limits.move_bytes,
                is_ahead: request.is_ahead,
                is_quiet: self.is_quiet(id),
                may_have_old_locks: &|rows| {
                    Ok(!is_resolved
                        && locks::search(engine, rows, resolved_ts)? != LockSearch::Nothing)
                },
            };
        let pulled = self.state.leaving.pull(request, &source)?;
        Ok(match pulled {
            Ok(PulledChunk::Chunk(chunk)) => PullResponse::Chunk(chunk),
            Ok(PulledChunk::Closes(chunk)) => {
                self.state.tablets.close(id);
                PullResponse::Chunk(chunk)
            }
            Ok(PulledChunk::Last(chunk)) => {
                let points = Points {
                    barrier: self.state.points.now().barrier,
                    ..self.state.points.durable
                };
                let closed = ClosedTablet {
                    points,
                    read_ts: self.state.read_ts(),
                    resolved_ts: self.resolved_in(id, resolved_ts)?,
                    observed: self.state.observed.columns(id),
                };
                let chunk = TabletChunk {
                    last: Some(closed),
                    ..chunk
                };
                self.state.leaving.sent_last(id, &chunk);
                PullResponse::Chunk(chunk)
            }
            Err(reason) => {
                if self.state.leaving.rows(id).is_none() {
                    self.state.tablets.reopen(id);
                }
                PullResponse::Over(reason)
            }
        })
    }

    /// Begins the departure of a tablet. Returns the reason if it stays.
    fn begin_departure(
        &mut self,
        request: &PullRequest,
        is_resolved: bool,
    ) -> Result<Option<String>, crate::Error> {
        let PullRequest { id, epoch, .. } = *request;
        let known = self.state.tablets.get(id);
        let Some(tablet) = known.filter(|it| it.epoch == epoch && !it.is_frozen()) else {
            return Ok(Some(format!(
                "its owner does not serve tablet {id} at epoch {epoch}"
            )));
        };
        if !is_resolved && self.resolution.is_blocked() {
            // The copy would be of no use.
            let rows = KeyRange::of(tablet);
            let found = locks::search(&*self.state.engine, &rows, request.resolved_ts)?;
            if found == LockSearch::Found {
                return Ok(Some(OLD_LOCKS.into()));
            }
        }
        self.state.leaving.begin(tablet, request);
        // An older attempt, which ends now, may have closed the tablet.
        self.state.tablets.reopen(id);
        Ok(None)
    }

    /// Up to where the locks of a closed tablet are resolved. It changes no more, so that other tablets' locks don't matter.
    fn resolved_in(&self, id: u64, asked: Timestamp) -> Result<Timestamp, crate::Error> {
        let of_server = self.resolution.resolved_ts();
        let Some(rows) = self.state.leaving.rows(id).filter(|_| asked > of_server) else {
            return Ok(of_server);
        };
        Ok(match locks::search(&*self.state.engine, rows, asked)? {
            LockSearch::Nothing => asked,
            LockSearch::Found | LockSearch::Unfinished => of_server,
        })
    }

    /// Whether no batch on its way to the disk changes the tablet.
    fn is_quiet(&self, id: u64) -> bool {
        let Some(rows) = self.state.leaving.rows(id) else {
            return true;
        };
        let mut on_its_way = self.groups.group.iter();
        let mut decided = self.groups.decided.iter().chain(&self.groups.committing);
        let changes = |decision: &Decision| {
            let change = decision.tablet_change.as_ref();
            change.is_some_and(|change| change.is_about(id)) || rows.is_touched_by(&decision.batch)
        };
        !on_its_way.any(|batch| rows.is_touched_by(batch))
            && !decided.any(|decided| changes(&decided.decision))
    }

    /// Ends the departure of a tablet that stays, or has left.
    pub(super) fn end_departure(&mut self, id: u64) {
        self.state.leaving.forget(id);
        self.state.tablets.reopen(id);
        self.gc.resume_postponed();
    }

    /// The next call to an owner of a tablet that this server gets. The caller passes its result to [`Self::asked`]. `None`: there
    /// may be one a moment later, and there is none before the first lease.
    pub fn next_call(&mut self, now: Duration) -> Option<MoveCall> {
        if !self.is_accepted {
            return None;
        }
        let resolved_ts = self.resolution.resolved_ts();
        let arriving = &mut self.state.arriving;
        arriving.next_call(now, &self.state.me, resolved_ts)
    }

    /// Sets whether this server is being drained, and gets no tablets.
    pub fn drain(&mut self, draining: bool) {
        self.state.draining = draining;
    }

    /// Whether it is decided, and not durable yet, that this server gets a tablet.
    pub(super) fn is_getting(&self) -> bool {
        let mut decided = self.groups.decided.iter().chain(&self.groups.committing);
        decided.any(|it| matches!(it.decision.tablet_change, Some(TabletChange::Arrive(_))))
    }

    /// Whether this server gets any tablet.
    pub fn is_arriving(&self) -> bool {
        !self.state.arriving.is_empty()
    }

    /// Takes the result of a call.
    pub fn asked(
        &mut self,
        now: Duration,
        call: &MoveCall,
        result: Result<MoveResponse, Unanswered>,
        out: &mut Vec<Reply>,
    ) {
        let Some(arrival) = self.state.arriving.get_mut(call.tablet) else {
            return;
        };
        if arrival.record.attempt != call.attempt {
            return;
        }
        let step = match result {
            Ok(MoveResponse::Pull(PullResponse::Over(reason))) => {
                arrival.answered();
                Some(Step::GiveUp(reason))
            }
            Ok(MoveResponse::Pull(PullResponse::Chunk(chunk))) => {
                arrival.answered();
                arrival.is_copied |= chunk.is_copied;
                arrival.is_written = chunk.changes > 0;
                arrival.record.copy = chunk.copy;
                next_step(now, arrival, chunk, self.resolution.resolved_ts())
            }
            Ok(MoveResponse::Take(TakeOutcome::Moved { barrier })) => {
                arrival.answered();
                Some(Step::Serve { barrier })
            }
            Ok(MoveResponse::Take(TakeOutcome::Stays)) => {
                arrival.answered();
                let owner = arrival.owner_name();
                Some(Step::GiveUp(format!("it stays at {owner}")))
            }
            Ok(MoveResponse::Take(TakeOutcome::Undecided)) => {
                arrival.answered();
                let lost = Unanswered::Lost("its owner has lost it".into());
                arrival.missed(now, &lost).map(Step::GiveUp)
            }
            Err(unanswered) => arrival.missed(now, &unanswered).map(Step::GiveUp),
        };
        let holds = self.state.arriving.holds_resolution();
        self.resolution.hold(holds);
        let Some(step) = step else { return };
        if let Some(arrival) = self.state.arriving.get_mut(call.tablet) {
            arrival.add_step(step);
        }
        self.write_steps(out);
    }

    /// Sends the next steps of arrivals to the disk.
    pub(super) fn write_steps(&mut self, out: &mut Vec<Reply>) {
        // For the same reason that `collect_piece` waits for these.
        if self.gc.collecting.is_some() {
            return;
        }
        let ids: Vec<u64> = self.state.arriving.ids().collect();
        for id in ids {
            let Some(arrival) = self.state.arriving.get_mut(id) else {
                continue;
            };
            let Some(step) = arrival.writable_step() else {
                continue;
            };
            let attempt = arrival.record.attempt;
            let before = self.queue.next_ticket;
            arrival.ticket = Some(before);
            if let Step::Chunk { last: Some(_), .. } = &*step {
                // The group of this step makes the snapshot durable, too.
                let read_ts = arrival.read_ts;
                self.state.readers.get_mut().was_read(read_ts);
            }
            let work = Work::of_move(Move::Arrival { id, attempt, step });
            self.enqueue(None, 0, Note::default(), work, out);
            if self.queue.next_ticket == before {
                // The server is too busy: a later call sends the step.
                if let Some(arrival) = self.state.arriving.get_mut(id) {
                    arrival.ticket = None;
                }
            }
        }
    }

    /// Notes that a background task has ended.
    pub(super) fn step_ended(&mut self, ticket: Ticket) {
        let ids: Vec<u64> = self.state.arriving.ids().collect();
        for id in ids {
            if let Some(arrival) = self.state.arriving.get_mut(id) {
                arrival.ticket.take_if(|its| *its == ticket);
            }
        }
    }

    /// Lets time pass.
    pub(super) fn tick_moves(&mut self, elapsed: Duration, out: &mut Vec<Reply>) {
        for id in self.state.leaving.tick(elapsed) {
            self.end_departure(id);
        }
        self.state.arriving.tick(elapsed);
        self.write_steps(out);
    }

    /// Whether a tablet arrives or leaves.
    pub(super) fn moves(&self) -> bool {
        !self.state.leaving.is_empty() || self.is_arriving()
    }

    /// Updates the locations of the servers from which this one gets tablets.
    pub fn locate_owners(&mut self, owners: &[ServerLocation]) {
        self.state.arriving.locate_owners(owners);
    }

    /// Gives up tablets, by id and epoch, that this server will never own.
    pub fn settle_arrivals(&mut self, tablets: &[(u64, u64)], out: &mut Vec<Reply>) {
        self.state.arriving.settled(tablets);
        self.write_steps(out);
    }

    /// Lets the rows of these tablets go, which other servers report.
    pub fn settle(&mut self, ids: &[u64], out: &mut Vec<Reply>) {
        let is_here = |id: &&u64| self.state.tablets.departed(**id).is_some();
        let ids: Vec<u64> = ids.iter().filter(is_here).copied().collect();
        if !ids.is_empty() {
            let work = Work::of_move(Move::Settle(ids));
            self.enqueue(None, 0, Note::default(), work, out);
        }
    }

    /// Notes that a change is decided and not durable yet, or that the disk refused it.
    pub(super) fn move_decided(&mut self, change: &TabletChange, is_decided: bool) {
        match change {
            TabletChange::Leave(departed) => {
                self.state.leaving.give(departed.tablet.id, is_decided);
            }
            TabletChange::Arrived { id, .. } if !is_decided => {
                if let Some(arrival) = self.state.arriving.get_mut(*id) {
                    arrival.was_written(false);
                }
            }
            _ => {}
        }
    }

    /// Carries out a durable change.
    pub(super) fn move_done(&mut self, change: TabletChange) {
        match change {
            TabletChange::Arrive(record) => {
                let Tablet { id, epoch, .. } = record.tablet;
                self.state.tablets.arrives(id, epoch + 1);
                self.state.arriving.insert(*record);
            }
            TabletChange::Arrived { id, step, entries } => self.step_done(id, &step, entries),
            TabletChange::Leave(departed) => {
                let id = departed.tablet.id;
                self.state.tablets.leave(*departed);
                self.state.observed.forget(id);
                self.end_departure(id);
                self.gc.progress.dropped(id);
                self.gc.sizes.ends(id);
                self.state.rates.get_mut().ends(id);
                self.state.readers.get_mut().forget(id);
            }
            TabletChange::Settle(tablets) => {
                for tablet in tablets {
                    self.state.tablets.settle(tablet);
                }
                self.gc.clearing.dropped(self.queue.next_ticket);
            }
            _ => {}
        }
    }

    fn step_done(&mut self, id: u64, step: &Step, made: u64) {
        let Some(arrival) = self.state.arriving.get_mut(id) else {
            return;
        };
        arrival.was_written(true);
        arrival.step = arrival.next_step.take();
        let tablet = arrival.record.tablet.clone();
        match step {
            Step::Chunk {
                entries,
                last,
                observed,
                ..
            } => {
                let bytes: usize = entries.iter().map(MovedEntry::size_bytes).sum();
                arrival.stored(bytes as u64, last.is_some());
                arrival.entries += made;
                arrival.record.observed.clone_from(observed);
                if last.is_some() && mutants::on(Mutant::MovedUndecided) {
                    let barrier = Timestamp::ZERO;
                    arrival.step = Some(Arc::new(Step::Serve { barrier }));
                }
                return;
            }
            Step::Serve { .. } => {
                let served = Tablet {
                    epoch: tablet.epoch + 1,
                    ..tablet
                };
                self.gc.progress.arrived(id, arrival.entries);
                self.gc.sizes.arrived(id, arrival.bytes());
                // After a restart all marks are as high.
                let read_ts = arrival.read_ts;
                self.state.readers.get_mut().scan(id, read_ts);
                let observed = std::mem::take(&mut arrival.record.observed);
                self.state.observed.set(id, served.table.0, observed);
                self.state.arriving.end(id, None);
                self.state.tablets.insert(served);
            }
            Step::GiveUp(reason) => {
                self.state.arriving.end(id, Some(reason));
                self.state.tablets.discard(tablet);
                self.gc.clearing.dropped(self.queue.next_ticket);
            }
        }
        self.state.tablets.arrives_no_more(id);
        self.gc.resume_postponed();
        self.resolution.restart();
        let holds = self.state.arriving.holds_resolution();
        self.resolution.hold(holds);
    }
}

/// The step that makes a chunk durable, or gives the tablet up.
fn next_step(
    now: Duration,
    arrival: &mut Arrival,
    chunk: TabletChunk,
    resolved_ts: Timestamp,
) -> Option<Step> {
    if let Err(reason) = check_chunk(&chunk.entries, &arrival.rows()) {
        return Some(Step::GiveUp(reason));
    }
    let (mut last, mut observed) = (None, Vec::new());
    if let Some(closed) = chunk.last {
        if closed.resolved_ts < resolved_ts && !mutants::on(Mutant::MovedUnresolved) {
            return Some(Step::GiveUp(
                "its locks are not resolved as far as those of this server are".into(),
            ));
        }
        arrival.read_ts = closed.read_ts;
        last = Some(closed.points);
        if !mutants::on(Mutant::MovedObservedForgotten) {
            observed = closed.observed;
        }
    } else if chunk.entries.is_empty() {
        arrival.wait(now);
        return None;
    }
    Some(Step::Chunk {
        entries: chunk.entries,
        changes: chunk.changes,
        last,
        observed,
    })
}
