//! What the server does without being asked by a client: keeps what the master tells it, collects garbage, and
//! removes the rows of dropped tablets.

use std::time::Duration;

use percolator_client::Obstacle;
use percolator_engine::{Batch, Column};
use percolator_protocol::lease::Lease;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use prost::Message as _;

use super::groups::PendingDecision;
use super::queue::PendingRequest;
use super::{Core, Reply};
use crate::clearing::Clearing;
use crate::decision::Decision;
use crate::latches::Ticket;
use crate::limits::{Amount, Usage};
use crate::pace::TICK;
use crate::probe::Note;
use crate::progress::Progress;
use crate::resolution::Resolution;
use crate::sizes::Sizes;
use crate::state::State;
use crate::tablets::GcSettingsCopy;
use crate::work::Work;
use crate::{Error, garbage, wait_queue};

/// How long it may take until it is noticed that there is something to collect again.
const NOTHING_TO_DO: Duration = Duration::from_millis(500);

/// How far the collection of garbage is.
pub(super) struct Collection {
    /// Of dropped tablets.
    pub(super) clearing: Clearing,
    pub(super) collecting: Option<Collecting>,
    pub(super) progress: Progress,
    pub(super) sizes: Sizes,
    /// Of what waits for the safe point.
    pub(super) front: garbage::Front,
    /// Of what waits for resolved.
    pub(super) fates: garbage::Front,
    /// The lowest entry of tablets that are on their way here, or away.
    postponed: Option<Timestamp>,
}

/// The piece of garbage that is being collected.
pub(super) struct Collecting {
    pub(super) ticket: Ticket,
    pub(super) of_fates: bool,
}

impl Collection {
    pub(super) fn load(state: &State) -> Result<Self, Error> {
        Ok(Self {
            clearing: Clearing::default(),
            collecting: None,
            progress: Progress::load(&*state.engine, &state.tablets)?,
            sizes: Sizes::load(&*state.engine, &state.tablets)?,
            front: garbage::Front::new(false),
            fates: garbage::Front::new(true),
            postponed: None,
        })
    }

    pub(super) fn front(&mut self, of_fates: bool) -> &mut garbage::Front {
        if of_fates {
            &mut self.fates
        } else {
            &mut self.front
        }
    }

    /// Entries from this one on are left for when it is settled where their tablets are.
    pub(super) fn postpone(&mut self, ts: Timestamp) {
        self.postponed = Some(self.postponed.map_or(ts, |known| known.min(ts)));
    }

    /// That is settled for some.
    pub(super) fn look_at_postponed(&mut self) {
        if let Some(ts) = self.postponed.take() {
            for front in [&mut self.front, &mut self.fates] {
                front.entry_made(ts);
                front.collected_to = Timestamp::ZERO;
            }
        }
    }

    /// Whether there may be something to collect, and of what: first what waits for the safe point.
    fn may_collect(&self, points: Points) -> Option<bool> {
        if self.front.collected_to != points.safe_point {
            return Some(false);
        }
        (self.fates.collected_to != points.resolved).then_some(true)
    }
}

impl Core {
    /// What is held in memory, counted anew: for tests.
    pub fn usage(&self) -> Usage {
        let reads = self.queue.reads.iter();
        let decided = self.groups.decided.iter();
        let flushes = self.flushes.iter();
        Usage {
            queued: Amount::of(self.queue.waiting.values().map(|queued| queued.bytes)),
            reads: Amount::of(reads.map(|(_, request, _)| request.encoded_len())),
            flushes: Amount::of(flushes.map(|waiting| waiting.bytes)),
            decided: Amount::of(decided.map(|decided| decided.decision.batch.size_bytes())),
            group: Amount::of(self.groups.group.iter().map(Batch::size_bytes)),
            cache_bytes: self.state.cache.borrow().size_bytes(),
            scan_marks: self.state.readers.borrow().scanned_tablets(),
            tablets: self.state.tablets.len(),
        }
    }

    /// Of these tablets, those that aren't here.
    pub fn missing(&self, tablets: &[u64]) -> Vec<u64> {
        let here = &self.state.tablets;
        let is_under_way =
            |id| self.state.arriving.get(id).is_some() || here.departed(id).is_some();
        let is_missing = |id: &&u64| here.get(**id).is_none() && !is_under_way(**id);
        tablets.iter().filter(is_missing).copied().collect()
    }

    /// Stores the settings of garbage collection; [`Self::report`] has them when they are durable.
    pub fn keep(&mut self, settings: Option<GcSettingsCopy>, out: &mut Vec<Reply>) {
        if let Some(settings) = settings.filter(|it| self.state.tablets.are_newer(*it)) {
            self.enqueue(None, 0, Note::default(), Work::settings(settings), out);
        }
    }

    /// Answers as far as the master lets it, by the answer to a heartbeat. Before the first call nothing is answered
    /// that depends on a timestamp.
    pub fn lease(&mut self, lease: Lease) {
        self.state.lease = self.state.lease.raised(lease);
    }

    /// The master has not been heard for as long as the lease lasts: nothing is answered that depends on a timestamp
    /// until it is heard again. The lease in timestamps is what correctness rests on; this ends sooner what requests
    /// that were long on their way could still decide.
    pub fn lapse(&mut self) {
        self.state.lease.until = Timestamp::ZERO;
    }

    /// Goes on to the points that the master has told; [`Self::report`] has them when they are durable.
    pub fn reach(&mut self, points: Points, out: &mut Vec<Reply>) {
        if self.state.points.durable.raised(points) != self.state.points.durable {
            self.enqueue(None, 0, Note::default(), Work::points(points), out);
        }
        // Rollbacks of old transactions leave garbage below the safe point, too.
        self.gc.front.collected_to = Timestamp::ZERO;
        self.gc.fates.collected_to = Timestamp::ZERO;
        self.collect(out);
    }

    /// After the durable barrier may have moved.
    pub(super) fn note_barrier(&mut self) {
        let barrier = self.state.points.durable.barrier;
        if self.resolution.next(barrier).is_some() {
            // An engine that can't be read is noticed by others.
            let first = self.state.engine.first(Column::Lock, &[], &[]);
            let has_locks = first.is_ok_and(|first| first.is_some()) || self.failed.is_some();
            self.resolution.barrier_reached(barrier, has_locks);
        }
    }

    /// The barrier that is durable, if locks below it are not resolved yet.
    pub(crate) fn next_to_resolve(&mut self) -> Option<Timestamp> {
        self.resolution.begin(self.state.points.durable.barrier)
    }

    /// Up to where locks are resolved, and what is in the way.
    pub(crate) fn resolution(&mut self) -> &mut Resolution {
        &mut self.resolution
    }

    /// The locks below this are resolved, or this one is in the way.
    pub fn locks_resolved(
        &mut self,
        now: Duration,
        below: Timestamp,
        result: Result<(), Obstacle>,
    ) {
        match result {
            Ok(()) => self.resolution.resolved(below),
            Err(obstacle) => self.resolution.blocked(now, obstacle),
        }
    }

    /// So much time has passed since the last call: more may be done of what waits for its turn.
    pub fn tick(&mut self, elapsed: Duration, out: &mut Vec<Reply>) {
        self.gc.clearing.try_again();
        self.pace.tick(elapsed, self.flushes.cells);
        self.run_flushes(out);
        self.tick_waits(elapsed, out);
        self.tick_moves(elapsed, out);
        self.walk_tablets();
        let State { rates, tablets, .. } = &mut self.state;
        rates.get_mut().tick(elapsed, tablets);
        self.tick_observers(elapsed, out);
        self.collect(out);
    }

    /// The master has tablets of more bytes split, and may have tablets split that more cells a second are read or written of;
    /// zero: none.
    pub fn split_above(&mut self, bytes: u64, load: u64) {
        self.gc.sizes.limit(bytes);
        self.state.rates.get_mut().limit(load);
    }

    /// Counts what lies in tablets, some of it at a time.
    fn walk_tablets(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let walked = self.gc.sizes.walk(&*self.state.engine, &self.state.tablets);
        if let Err(error) = walked {
            // It stops nobody who asks for other rows, and who asks for these hears of it.
            tracing::warn!(%error, "the size of a tablet is not known");
            self.gc.sizes.give_walk_up();
        }
    }

    /// Lets sizes that have changed go along with what is to be made durable now. Not with what a full disk takes alone.
    pub(super) fn write_sizes(&mut self) {
        let mut decided = self.groups.decided.iter();
        if !self.gc.sizes.has_to_write()
            || decided.any(|decided| decided.decision.batch.spends_reserve())
        {
            return;
        }
        if let Some(batch) = self.gc.sizes.take_unwritten() {
            let mut decision = Decision::new();
            decision.batch = batch;
            self.push_unasked(decision);
        }
    }

    /// When [`Self::tick`] is to be called again, at the latest. It may be sooner than was said before.
    pub fn next_tick(&self) -> Duration {
        let points = self.state.points.durable;
        let all_is_done = self.gc.may_collect(points).is_none()
            && self.flushes.is_empty()
            && !self.gc.sizes.has_to_walk();
        let is_idle = self.waits.is_idle() && !self.moves() && self.observing.is_idle();
        match (all_is_done, is_idle) {
            (false, _) => TICK,
            (true, false) => wait_queue::TICK,
            (true, true) => NOTHING_TO_DO,
        }
    }

    /// Collects some garbage, where there is any and none is being collected. Not in a group of its own while others
    /// write: the next of them would wait for it.
    pub(super) fn collect(&mut self, out: &mut Vec<Reply>) {
        if std::mem::take(&mut self.queue.writes) == 0 {
            self.collect_piece(out);
        }
    }

    /// Lets a piece go along with what is to be made durable now.
    pub(super) fn collect_along(&mut self) {
        // Nobody has asked for it.
        self.collect_piece(&mut Vec::new());
    }

    fn collect_piece(&mut self, out: &mut Vec<Reply>) {
        if self.gc.collecting.is_some() || self.failed.is_some() {
            return;
        }
        // A chunk adds to entries of the index that were read for the piece: what it adds would go with them.
        if self.state.arriving.is_written() {
            return;
        }
        let points = self.state.points.durable;
        let Some(of_fates) = self.gc.may_collect(points) else {
            return;
        };
        let Some(most) = self.pace.piece() else {
            return;
        };
        let point = if of_fates {
            points.resolved
        } else {
            points.safe_point
        };
        let front = self.gc.front(of_fates);
        match garbage::piece(&*self.state.engine, front, point, most) {
            Ok(piece) if piece.is_empty() => front.collected_to = point,
            Ok(piece) => {
                let items = garbage::items(&piece);
                self.gc.collecting = Some(Collecting {
                    ticket: self.queue.next_ticket,
                    of_fates,
                });
                let before = self.queue.next_ticket;
                self.enqueue(None, 0, Note::default(), Work::collect(piece), out);
                if self.queue.next_ticket == before {
                    // Too busy for it: later.
                    self.gc.collecting = None;
                } else {
                    self.pace.spent(items);
                }
            }
            Err(error) => self.note_fatal(&error.into()),
        }
    }

    /// Ends the estimates of what waits in tablets that were split, once nothing waits.
    pub(crate) fn correct_progress(&mut self) {
        if !self.gc.progress.is_estimate() {
            return;
        }
        let engine = &*self.state.engine;
        let is_empty = |front: &garbage::Front| matches!(front.oldest(engine), Ok(None));
        if is_empty(&self.gc.front) && is_empty(&self.gc.fates) {
            self.gc.progress.nothing_waits();
        }
    }

    /// The oldest entry of the index of garbage.
    pub(super) fn oldest_garbage(&self) -> Option<Timestamp> {
        // Other reads notice an engine that can't be read.
        self.gc.front.oldest(&*self.state.engine).ok().flatten()
    }

    pub(super) fn background_ended(&mut self, ticket: Ticket, durable: bool) {
        self.gc
            .collecting
            .take_if(|collecting| collecting.ticket == ticket);
        self.gc.clearing.ended(ticket, durable);
        self.step_ended(ticket);
    }

    /// Removes some of the rows of a dropped tablet, with the next group.
    pub(super) fn clear_dropped(&mut self) {
        let piece = self.gc.clearing.piece(
            self.queue.next_ticket,
            &*self.state.engine,
            &self.state.tablets,
            self.groups.waiting(),
        );
        if let Some(decision) = piece {
            self.push_unasked(decision);
        }
    }

    /// Lets a decision go with the next group that nobody has asked for.
    pub(super) fn push_unasked(&mut self, decision: Decision) {
        self.groups.push(PendingDecision {
            ticket: self.queue.ticket(),
            asked: PendingRequest::default(),
            decision,
        });
    }
}
