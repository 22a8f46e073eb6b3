//! The core's work beside clients' requests: it stores the master's settings, collects garbage, and removes the rows of dropped
//! tablets.

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

/// The tick of an idle server: new garbage waits at most this long.
const NOTHING_TO_DO: Duration = Duration::from_millis(500);

/// The progress of collection.
pub(super) struct Collection {
    /// Removes the rows of dropped tablets.
    pub(super) clearing: Clearing,
    pub(super) collecting: Option<Collecting>,
    pub(super) progress: Progress,
    pub(super) sizes: Sizes,
    /// Entries that wait for the safe point.
    pub(super) front: garbage::Front,
    /// Entries that wait for resolved.
    pub(super) fates: garbage::Front,
    /// The lowest postponed entry: its tablet arrives or leaves.
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

    /// Postpones entries from this one on, until it is settled which server has their tablets.
    pub(super) fn postpone(&mut self, ts: Timestamp) {
        self.postponed = Some(self.postponed.map_or(ts, |known| known.min(ts)));
    }

    /// Collects postponed entries again: the move of a tablet has ended.
    pub(super) fn resume_postponed(&mut self) {
        if let Some(ts) = self.postponed.take() {
            for front in [&mut self.front, &mut self.fates] {
                front.entry_made(ts);
                front.collected_to = Timestamp::ZERO;
            }
        }
    }

    /// Whether there may be garbage, and whether it is fates. Entries that wait for the safe point come first.
    fn may_collect(&self, points: Points) -> Option<bool> {
        if self.front.collected_to != points.safe_point {
            return Some(false);
        }
        (self.fates.collected_to != points.resolved).then_some(true)
    }
}

impl Core {
    /// The memory in use, counted anew. For tests.
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

    /// Those of these tablets that this server doesn't have.
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

    /// Raises the lease, which a master grants to the start that it has accepted. Before the first call no request that depends on a
    /// timestamp is answered, and nothing is written.
    pub fn lease(&mut self, lease: Lease) {
        self.is_accepted = true;
        self.state.lease = self.state.lease.raised(lease);
    }

    /// Ends the lease, because the master has not answered for that long: no request that depends on a timestamp is answered
    /// before the next lease. Correctness rests on the lease in timestamps; this only refuses delayed requests sooner.
    pub fn lapse(&mut self) {
        self.state.lease.until = Timestamp::ZERO;
    }

    /// Raises the points to those of the master; [`Self::report`] has them when they are durable.
    pub fn reach(&mut self, points: Points, out: &mut Vec<Reply>) {
        if self.state.points.durable.raised(points) != self.state.points.durable {
            self.enqueue(None, 0, Note::default(), Work::points(points), out);
        }
        // Rollbacks of old transactions leave garbage below the safe point, too.
        self.gc.front.collected_to = Timestamp::ZERO;
        self.gc.fates.collected_to = Timestamp::ZERO;
        self.collect(out);
    }

    /// Updates the resolution when the durable barrier may have moved.
    pub(super) fn note_barrier(&mut self) {
        let barrier = self.state.points.durable.barrier;
        if self.resolution.next(barrier).is_some() {
            // Other reads notice an engine that can't be read.
            let first = self.state.engine.first(Column::Lock, &[], &[]);
            let has_locks = first.is_ok_and(|first| first.is_some()) || self.failed.is_some();
            self.resolution.barrier_reached(barrier, has_locks);
        }
    }

    /// The barrier that is durable, if locks below it are not resolved yet.
    pub(crate) fn next_to_resolve(&mut self) -> Option<Timestamp> {
        self.resolution.begin(self.state.points.durable.barrier)
    }

    /// The progress of lock resolution.
    pub(crate) fn resolution(&mut self) -> &mut Resolution {
        &mut self.resolution
    }

    /// Takes the result of resolving the locks below this.
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

    /// Lets this much time pass since the last call, and works on what waits for its turn.
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

    /// Sets the master's limits: the bytes above which tablets are split, and the cells a second above which they may be; zero:
    /// none.
    pub fn split_above(&mut self, bytes: u64, load: u64) {
        self.gc.sizes.limit(bytes);
        self.state.rates.get_mut().limit(load);
    }

    /// Counts the bytes of tablets, some at a time.
    fn walk_tablets(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let walked = self.gc.sizes.walk(&*self.state.engine, &self.state.tablets);
        if let Err(error) = walked {
            // Requests for other rows are served on. Requests for these get the error.
            tracing::warn!(%error, "the size of a tablet is not known");
            self.gc.sizes.give_walk_up();
        }
    }

    /// Adds changed sizes to the next group, unless that is one which only a full disk's reserve can take.
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

    /// When [`Self::tick`] has to be called again, at the latest. A later call may return a shorter time.
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

    /// Collects some garbage, if there is any and no piece is under way. While clients write it goes with their groups: they
    /// would wait for a group of its own.
    pub(super) fn collect(&mut self, out: &mut Vec<Reply>) {
        if std::mem::take(&mut self.queue.writes) == 0 {
            self.collect_piece(out);
        }
    }

    /// Adds a piece of garbage to the next group.
    pub(super) fn collect_along(&mut self) {
        // The piece has no caller.
        self.collect_piece(&mut Vec::new());
    }

    fn collect_piece(&mut self, out: &mut Vec<Reply>) {
        if self.gc.collecting.is_some() || self.failed.is_some() {
            return;
        }
        // A chunk adds to entries of the index. Those that were read for the piece would be removed with the additions.
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
                    // The server is too busy: a later call collects the piece.
                    self.gc.collecting = None;
                } else {
                    self.pace.spent(items);
                }
            }
            Err(error) => self.note_fatal(&error.into()),
        }
    }

    /// Ends the estimates of garbage in split tablets, once none waits.
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

    /// Adds to the next group the removal of some rows of a dropped tablet.
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

    /// Adds a decision without a caller to the next group.
    pub(super) fn push_unasked(&mut self, decision: Decision) {
        self.groups.push(PendingDecision {
            ticket: self.queue.ticket(),
            asked: PendingRequest::default(),
            decision,
        });
    }
}
