//! Tablets that are handed over: what the server does for those that leave, and for those that arrive.

use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use super::{Core, Reply};
use crate::Refusal;
use crate::arriving::{MoveCall, Step, Unanswered};
use crate::decision::{Decision, TabletChange};
use crate::latches::Ticket;
use crate::leaving::{OLD_LOCKS, Pulled, Range, Source};
use crate::locks::{self, LockSearch};
use crate::moves::{Move, check_chunk, points_of};
use crate::probe::Note;
use crate::work::Work;

impl Core {
    /// A server that gets a tablet of this one asks for the next piece of it.
    pub(super) fn pull(&mut self, request: &v1::PullTabletRequest) -> Result<Body, Refusal> {
        self.state.check_addressee(request.to.clone())?;
        self.state.check_leased()?;
        let asked = request.tablet.unwrap_or_default();
        let id = asked.id;
        let resolved_ts = Timestamp::from_u64(request.resolved_ts);
        let is_resolved =
            self.resolution.resolved_ts() >= resolved_ts || mutants::on(Mutant::MovedUnresolved);
        if self.state.leaving.begins(request, id) {
            let known = self.state.tablets.get(id);
            let Some(tablet) = known.filter(|it| it.epoch == asked.epoch && !it.is_frozen()) else {
                return Ok(over(format!(
                    "its owner does not serve tablet {id} at epoch {}",
                    asked.epoch
                )));
            };
            let tablet = tablet.clone();
            if !is_resolved && self.resolution.is_blocked() {
                // All of it would be copied for nothing.
                let rows = Range::of(&tablet);
                let found = locks::search(&*self.state.engine, &rows, resolved_ts)?;
                if found == LockSearch::Found {
                    return Ok(over(OLD_LOCKS.into()));
                }
            }
            // Of an attempt that is over with this.
            self.state.tablets.reopen(id);
            self.state.leaving.begin(&tablet, request);
        }
        let engine = &*self.state.engine;
        let source =
            Source {
                engine,
                lease: self.state.lease,
                chunk_bytes: self.state.limits.move_bytes,
                is_ahead: request.ahead,
                is_quiet: self.is_quiet(id),
                may_have_old_locks: &|rows| {
                    Ok(!is_resolved
                        && locks::search(engine, rows, resolved_ts)? != LockSearch::Nothing)
                },
            };
        let pulled = self.state.leaving.pull(id, request, &source)?;
        Ok(match pulled {
            Ok(Pulled::Chunk(chunk)) => Body::PullTablet(chunk),
            Ok(Pulled::Closes(chunk)) => {
                self.state.tablets.close(id);
                Body::PullTablet(chunk)
            }
            Ok(Pulled::Last(chunk)) => {
                let points = self.state.points.durable;
                let resolved_ts = self.resolved_in(id, resolved_ts)?;
                let chunk = v1::PullTabletResponse {
                    barrier: self.state.points.now().barrier.as_u64(),
                    safe_point: points.safe_point.as_u64(),
                    all_resolved_ts: points.resolved.as_u64(),
                    read_ts: self.state.read_ts().as_u64(),
                    resolved_ts: resolved_ts.as_u64(),
                    observed: self.state.observed.columns(id),
                    ..chunk
                };
                self.state.leaving.sent_last(id, &chunk);
                Body::PullTablet(chunk)
            }
            Err(why) => {
                if self.state.leaving.rows(id).is_none() {
                    self.state.tablets.reopen(id);
                }
                over(why)
            }
        })
    }

    /// Up to where the locks of a tablet that is closed, and changes no more, are resolved. It need not wait for other tablets'.
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

    /// Whether nothing that is on its way to the disk changes the tablet.
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

    /// The tablet is on its way no more: it stays, or has left.
    pub(super) fn end_departure(&mut self, id: u64) {
        self.state.leaving.forget(id);
        self.state.tablets.reopen(id);
        self.gc.look_at_postponed();
    }

    /// What is to be asked of the owners of tablets that this server gets: [`Self::asked`] is to be called with what became
    /// of it. None: ask again a moment later.
    pub fn next_call(&mut self, now: Duration) -> Option<MoveCall> {
        let resolved_ts = self.resolution.resolved_ts();
        let arriving = &mut self.state.arriving;
        arriving.next_call(now, &self.state.me, resolved_ts)
    }

    /// Whether this server is to have no tablets.
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

    /// What became of a call.
    pub fn asked(
        &mut self,
        now: Duration,
        call: &MoveCall,
        result: Result<Body, Unanswered>,
        out: &mut Vec<Reply>,
    ) {
        let Some(arrival) = self.state.arriving.get_mut(call.tablet) else {
            return;
        };
        if arrival.record.attempt != call.attempt {
            return;
        }
        let step = match result {
            Ok(Body::PullTablet(chunk)) => {
                arrival.answered();
                arrival.is_copied |= chunk.copied;
                arrival.is_written = chunk.changes > 0;
                arrival.record.copy = chunk.copy;
                next_step(now, arrival, chunk, self.resolution.resolved_ts())
            }
            Ok(Body::TakeTablet(answer)) => {
                arrival.answered();
                match answer.taken() {
                    v1::Taken::Moved => Some(Step::Serve {
                        barrier: Timestamp::from_u64(answer.barrier),
                    }),
                    v1::Taken::Stays => {
                        let owner = arrival.owner_name();
                        Some(Step::GiveUp(format!("it stays at {owner}")))
                    }
                    v1::Taken::Unspecified => {
                        let why = Unanswered::Lost("its owner has lost it".into());
                        arrival.missed(now, &why).map(Step::GiveUp)
                    }
                }
            }
            Ok(_) => {
                let why = Unanswered::Lost("an answer of another kind".into());
                arrival.missed(now, &why).map(Step::GiveUp)
            }
            Err(why) => arrival.missed(now, &why).map(Step::GiveUp),
        };
        let holds = self.state.arriving.holds_resolution();
        self.resolution.hold(holds);
        let Some(step) = step else { return };
        if let Some(arrival) = self.state.arriving.get_mut(call.tablet) {
            arrival.add_step(step);
        }
        self.write_steps(out);
    }

    /// Lets what is to be written down of tablets that arrive go to the disk.
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
                // Before the group leaves that has this: it goes to the disk with it.
                let read_ts = arrival.read_ts;
                self.state.readers.get_mut().was_read(read_ts);
            }
            let work = Work::of_move(Move::Arrival { id, attempt, step });
            self.enqueue(None, 0, Note::default(), work, out);
            if self.queue.next_ticket == before {
                // Too busy for it: later.
                if let Some(arrival) = self.state.arriving.get_mut(id) {
                    arrival.ticket = None;
                }
            }
        }
    }

    /// A background task has ended.
    pub(super) fn step_ended(&mut self, ticket: Ticket) {
        let ids: Vec<u64> = self.state.arriving.ids().collect();
        for id in ids {
            if let Some(arrival) = self.state.arriving.get_mut(id) {
                arrival.ticket.take_if(|its| *its == ticket);
            }
        }
    }

    /// So much time has passed.
    pub(super) fn tick_moves(&mut self, elapsed: Duration, out: &mut Vec<Reply>) {
        for id in self.state.leaving.tick(elapsed) {
            self.end_departure(id);
        }
        self.state.arriving.tick(elapsed);
        self.write_steps(out);
    }

    /// Whether a tablet is on its way here, or away.
    pub(super) fn moves(&self) -> bool {
        !self.state.leaving.is_empty() || self.is_arriving()
    }

    /// The servers from which this one gets tablets are there now.
    pub fn find_owners(&mut self, owners: &[v1::MovedTo]) {
        self.state.arriving.found(owners);
    }

    /// These tablets that this server gets will never be its own.
    pub fn settle_arrivals(&mut self, tablets: &[v1::TabletRef], out: &mut Vec<Reply>) {
        self.state.arriving.settled(tablets);
        self.write_steps(out);
    }

    /// The rows of these tablets, which others have and report, may go.
    pub fn settle(&mut self, ids: &[u64], out: &mut Vec<Reply>) {
        let is_here = |id: &&u64| self.state.tablets.departed(**id).is_some();
        let ids: Vec<u64> = ids.iter().filter(is_here).copied().collect();
        if !ids.is_empty() {
            let work = Work::of_move(Move::Settle(ids));
            self.enqueue(None, 0, Note::default(), work, out);
        }
    }

    /// This is decided, and not durable yet; or it was refused.
    pub(super) fn move_decided(&mut self, change: &TabletChange, is_decided: bool) {
        match change {
            TabletChange::Leave(record) => {
                if let Some(tablet) = &record.tablet {
                    self.state.leaving.give(tablet.id, is_decided);
                }
            }
            TabletChange::Arrived { id, .. } if !is_decided => {
                if let Some(arrival) = self.state.arriving.get_mut(*id) {
                    arrival.was_written(false);
                }
            }
            _ => {}
        }
    }

    /// It is durable.
    pub(super) fn move_done(&mut self, change: TabletChange) {
        match change {
            TabletChange::Arrive(record) => {
                if let Some(tablet) = &record.tablet {
                    self.state.tablets.arrives(tablet.id, tablet.epoch + 1);
                }
                // It was read before it was written.
                let _ = self.state.arriving.insert(*record);
            }
            TabletChange::Arrived { id, step, entries } => self.step_done(id, &step, entries),
            TabletChange::Leave(record) => {
                let Some(tablet) = record.tablet.clone() else {
                    return;
                };
                self.state.tablets.leave(tablet.id, *record);
                self.state.observed.forget(tablet.id);
                self.end_departure(tablet.id);
                self.gc.progress.dropped(tablet.id);
                self.gc.sizes.ends(tablet.id);
                self.state.rates.get_mut().ends(tablet.id);
                self.state.readers.get_mut().forget(tablet.id);
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
        let tablet = arrival.tablet.clone();
        match step {
            Step::Chunk {
                entries,
                last,
                observed,
                ..
            } => {
                let bytes = |entry: &v1::MovedEntry| {
                    entry.key.len() + entry.value.as_ref().map_or(0, bytes::Bytes::len)
                };
                let bytes: usize = entries.iter().map(bytes).sum();
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
                let served = percolator_protocol::types::Tablet {
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
            Step::GiveUp(why) => {
                self.state.arriving.end(id, Some(why));
                self.state.tablets.discard(tablet);
                self.gc.clearing.dropped(self.queue.next_ticket);
            }
        }
        self.state.tablets.arrives_no_more(id);
        self.gc.look_at_postponed();
        self.resolution.look_again();
        let holds = self.state.arriving.holds_resolution();
        self.resolution.hold(holds);
    }
}

/// What is to be written down of an answer.
fn next_step(
    now: Duration,
    arrival: &mut crate::arriving::Arrival,
    chunk: v1::PullTabletResponse,
    resolved_ts: Timestamp,
) -> Option<Step> {
    if !chunk.over.is_empty() {
        return Some(Step::GiveUp(chunk.over));
    }
    if let Err(why) = check_chunk(&chunk.entries, &arrival.rows()) {
        return Some(Step::GiveUp(why));
    }
    if chunk.last {
        let is_resolved = Timestamp::from_u64(chunk.resolved_ts) >= resolved_ts;
        if !is_resolved && !mutants::on(Mutant::MovedUnresolved) {
            return Some(Step::GiveUp(
                "its locks are not resolved as far as those of this server are".into(),
            ));
        }
        arrival.read_ts = Timestamp::from_u64(chunk.read_ts);
    }
    if chunk.entries.is_empty() && !chunk.last {
        arrival.wait(now);
        return None;
    }
    Some(Step::Chunk {
        last: chunk.last.then(|| points_of(&chunk)),
        changes: chunk.changes as usize,
        observed: if mutants::on(Mutant::MovedObservedForgotten) {
            Vec::new()
        } else {
            chunk.observed
        },
        entries: chunk.entries,
    })
}

/// The attempt is over.
fn over(why: String) -> Body {
    Body::PullTablet(v1::PullTabletResponse {
        over: why,
        ..v1::PullTabletResponse::default()
    })
}
