//! A client's gc-locks: the barrier of collection doesn't pass what its transactions read, as long as the
//! client renews its lease at the master.
//!
//! The lease is held at one timestamp, the floor: a timestamp of the oracle's, or where the oldest of the
//! client's transactions began if that is lower. Whatever begins later begins above the oracle's timestamp, so
//! it is covered without being named. A transaction that is just beginning may have been given its timestamp
//! before the floor's was: it counts from the last floor on until its own is known.
//!
//! A client that has settled gives its lease back, and takes another one with its next transaction.
//!
//! Nothing is wrong without a lease: what the barrier has passed is refused by the tablet servers. The check
//! before a commit saves work, and names the reason early: if the lease surely holds, no server is asked; if
//! it may have ended, the lease is renewed first, and the response says whether the barrier has passed. "Surely" is by
//! a clock of this machine that also runs while it is suspended, from before the request was sent: the master counts
//! from when the request came.
//!
//! A transaction is held until the last of its prewrites is in place. From then on it reads and locks nothing more,
//! and its locks stand for it: before versions go that it could hide, each is resolved or pushed above. Released
//! when the reads end, later prewrites could miss a write conflict.

mod renewing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::TooOld;
use percolator_protocol::types::{Timestamp, TraceParent};
use tokio::sync::Notify;

use crate::transport::Transport;

/// The most transactions that a renewal names, for people to see: the oldest.
const NAMED_MAX: usize = 100;
/// A renewal names no transactions that are younger, unless others see their locks.
const NAMED_AFTER_MS: u64 = 1_000;
/// A commit waits so long for the renewal of its lease. If the master is away, the tablet servers decide.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// The transactions of a client.
#[derive(Debug, Default)]
pub(crate) struct GcSession {
    state: Mutex<State>,
    /// Somebody waits for the lease to be renewed.
    wanted: Notify,
    /// An attempt to renew it has ended. Anyone who waits is woken in order, as `watch` doesn't: the simulator repeats it.
    attempted: Notify,
}

/// What the master has promised: nothing at or above the floor is refused.
#[derive(Clone, Copy, Debug)]
struct LeaseTerm {
    floor: Timestamp,
    /// By the client's clock, counted from before the lease was asked for: the master's ends later.
    until: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// By where they began.
    begun: BTreeMap<Timestamp, OpenSnapshot>,
    /// What began below is refused, and holds nothing any more.
    barrier: Timestamp,
    /// What began at or above the floor that was asked for is not refused before this time, on the transport's lease clock.
    leased_until: Option<Duration>,
    /// The highest floor that the master was asked for, also while no lease was granted: such a request may still arrive.
    asked: Timestamp,
    /// The last attempt to renew failed.
    away: bool,
    /// A timestamp of the oracle's: whatever begins from now on begins above it.
    covered: Timestamp,
    renewing: bool,
    /// The lease is to be given back, unless something is begun before.
    lets_go: bool,
    /// It was: nothing is renewed until something is begun.
    rests: bool,
    /// A transaction that is traced waits for the next renewal.
    trace: Option<TraceParent>,
}

/// What began at one timestamp.
#[derive(Debug, Default)]
struct OpenSnapshot {
    count: u32,
    /// One of them has locks that others see.
    is_flushed: bool,
}

/// What is to be done about a lease.
#[derive(Debug, PartialEq, Eq)]
enum LeaseStep {
    Renew,
    LetGo,
    Rest,
}

/// A transaction, or one that is about to begin, as long as it reads or locks.
#[derive(Debug)]
pub(crate) struct GcLockGuard {
    session: Arc<GcSession>,
    at: Timestamp,
}

impl GcSession {
    /// Whatever is given a timestamp from now on. True: somebody has to begin to renew the lease.
    pub(crate) fn hold(self: &Arc<Self>) -> (GcLockGuard, bool) {
        let mut state = self.state.lock();
        let at = state.covered;
        state.begun.entry(at).or_default().count += 1;
        let first = !std::mem::replace(&mut state.renewing, true);
        let session = self.clone();
        (GcLockGuard { session, at }, first)
    }

    /// The lowest floor that covers every transaction, now that `now` is a timestamp of the oracle's. `None`: one
    /// is just beginning, of which nothing is known yet.
    fn floor(&self, now: Timestamp) -> Option<Timestamp> {
        let mut state = self.state.lock();
        state.covered = state.covered.max(now);
        let oldest = state.living().next().map(|(ts, _)| ts);
        let oldest = oldest.filter(|_| !mutants::on(Mutant::FloorIsNow));
        Some(oldest.unwrap_or(now).min(now)).filter(|floor| *floor != Timestamp::ZERO)
    }

    /// The master is asked for a lease at this floor, and may have received the request from now on. The lease's floor never goes
    /// down: an older request may arrive after a newer one.
    fn asks(&self, floor: Timestamp) {
        let mut state = self.state.lock();
        state.asked = state.asked.max(floor);
    }

    /// Whether nothing that began here is refused as too old now, by the lease clock.
    pub(crate) fn is_covered(&self, start_ts: Timestamp, now: Duration) -> bool {
        self.state.lock().covers(start_ts, now)
    }

    /// The master has reported its barrier, and granted `lease`.
    fn renewed(&self, barrier: Timestamp, lease: LeaseTerm) {
        let mut state = self.state.lock();
        state.barrier = state.barrier.max(barrier);
        state.asked = state.asked.max(lease.floor);
        state.leased_until = (state.barrier <= state.asked).then_some(lease.until);
        state.away = false;
        drop(state);
        self.attempted.notify_waiters();
    }

    /// The master has not answered.
    fn not_renewed(&self) {
        self.state.lock().away = true;
        self.attempted.notify_waiters();
    }

    /// Whether the lease surely covers what began here, at this time of the lease clock; `None`: the master has to
    /// be asked.
    fn surely(&self, start_ts: Timestamp, now: Duration) -> Option<Result<(), TooOld>> {
        let state = self.state.lock();
        if start_ts < state.barrier {
            let barrier = state.barrier;
            return Some(Err(TooOld { start_ts, barrier }));
        }
        if state.covers(start_ts, now) || state.away {
            Some(Ok(()))
        } else {
            None
        }
    }

    /// The next attempt to renew the lease is for a transaction in this trace.
    fn renewed_for(&self, trace: Option<TraceParent>) {
        if trace.is_some() {
            self.state.lock().trace = trace;
        }
    }

    /// Whether what began here may still be committed: asked before anything is locked.
    async fn confirm(
        &self,
        start_ts: Timestamp,
        transport: &dyn Transport,
        trace: Option<TraceParent>,
    ) -> Result<(), TooOld> {
        let asked = async {
            loop {
                // Attempts that end from now on notify it.
                let attempted = self.attempted.notified();
                if let Some(known) = self.surely(start_ts, transport.lease_clock()) {
                    return known;
                }
                self.renewed_for(trace);
                self.wanted.notify_one();
                attempted.await;
            }
        };
        if let Some(known) = self.surely(start_ts, transport.lease_clock()) {
            return known;
        }
        tokio::select! {
            biased;
            known = asked => known,
            () = transport.sleep(CONFIRMED_WITHIN) => Ok(()),
        }
    }

    /// Asks for the lease to be given back. False: there is none, or it holds what is open.
    fn lets_go(&self) -> bool {
        let mut state = self.state.lock();
        state.lets_go = state.renewing && !state.rests && state.begun.is_empty();
        state.lets_go
    }

    /// What is to be done about the lease now. From here on nobody counts on one that is to be given back.
    fn next(&self) -> LeaseStep {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.lets_go) && state.begun.is_empty() {
            state.rests = true;
            state.leased_until = None;
            // The next one is another session's.
            state.asked = Timestamp::ZERO;
            return LeaseStep::LetGo;
        }
        if state.rests {
            LeaseStep::Rest
        } else {
            LeaseStep::Renew
        }
    }

    /// The transaction that began here has locks that others see: the next renewal names it, so that they learn its owner.
    pub(crate) fn flushes(&self, start_ts: Timestamp) {
        if let Some(begun) = self.state.lock().begun.get_mut(&start_ts) {
            begun.is_flushed = true;
            self.wanted.notify_one();
        }
    }

    /// The oldest, for people to see, and how many more have lived for as long.
    fn oldest(&self, now: Timestamp) -> (Vec<Timestamp>, u32) {
        let state = self.state.lock();
        let is_old =
            |ts: Timestamp| ts.physical_ms().saturating_add(NAMED_AFTER_MS) <= now.physical_ms();
        let is_named =
            |ts, begun: &OpenSnapshot| ts != Timestamp::ZERO && (begun.is_flushed || is_old(ts));
        let mut begun = state
            .living()
            .filter_map(|(ts, begun)| is_named(ts, begun).then_some(ts));
        let named = begun.by_ref().take(NAMED_MAX).collect();
        (named, u32::try_from(begun.count()).unwrap_or(u32::MAX))
    }
}

impl GcLockGuard {
    /// It began here.
    pub(crate) fn begun(mut self, at: Timestamp) -> Self {
        let mut state = self.session.state.lock();
        state.release(self.at);
        state.begun.entry(at).or_default().count += 1;
        // Its own timestamp is a floor; what was known before may be long past. If it begins below the floor that the
        // master knows, the lease is renewed before the barrier gets there.
        let is_below = at < state.asked;
        let rested = std::mem::take(&mut state.rests);
        drop(state);
        if rested || is_below {
            self.session.wanted.notify_one();
        }
        self.at = at;
        self
    }
}

impl Drop for GcLockGuard {
    fn drop(&mut self) {
        self.session.state.lock().release(self.at);
    }
}

impl State {
    /// Whether the lease surely holds what began here, at this time of the lease clock.
    fn covers(&self, start_ts: Timestamp, now: Duration) -> bool {
        start_ts >= self.asked && self.leased_until.is_some_and(|until| now < until)
    }

    /// Where those began that are not refused.
    fn living(&self) -> impl Iterator<Item = (Timestamp, &OpenSnapshot)> {
        self.begun
            .range(self.barrier..)
            .map(|(ts, begun)| (*ts, begun))
    }

    fn release(&mut self, at: Timestamp) {
        if let Some(begun) = self.begun.get_mut(&at) {
            begun.count -= 1;
            if begun.count == 0 {
                self.begun.remove(&at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn ts(ts: u64) -> Timestamp {
        Timestamp::from_u64(ts)
    }

    fn lease(floor: u64, until_s: u64) -> LeaseTerm {
        LeaseTerm {
            floor: ts(floor),
            until: Duration::from_secs(until_s),
        }
    }

    #[test]
    fn the_floor_is_the_oldest_transaction_or_the_oracles_time() {
        let session = Arc::new(GcSession::default());
        assert_eq!(session.floor(ts(5)), Some(ts(5)));
        let first = session.hold().0.begun(ts(7));
        let second = session.hold().0.begun(ts(9));
        assert_eq!(session.floor(ts(10)), Some(ts(7)));
        drop(first);
        assert_eq!(session.floor(ts(10)), Some(ts(9)));
        drop(second);
        assert_eq!(session.floor(ts(11)), Some(ts(11)));
    }

    #[test]
    fn a_master_that_was_away_is_asked_again_when_it_is_back() {
        let session = GcSession::default();
        let surely = |at_s| session.surely(ts(7), Duration::from_secs(at_s));
        assert_eq!(surely(1), None);
        session.not_renewed();
        // Tablet servers decide.
        assert_eq!(surely(1), Some(Ok(())));
        session.renewed(ts(1), lease(6, 10));
        assert_eq!(surely(9), Some(Ok(())));
        assert_eq!(surely(10), None);
        session.renewed(ts(8), lease(9, 20));
        assert!(matches!(surely(11), Some(Err(_))));
    }

    #[test]
    fn what_is_just_beginning_is_covered_from_the_last_floor_on() {
        let session = Arc::new(GcSession::default());
        session.floor(ts(5));
        // It will be given 6, and the next renewal's timestamp is 8.
        let beginning = session.hold().0;
        assert_eq!(session.floor(ts(8)), Some(ts(5)));
        let begun = beginning.begun(ts(6));
        assert_eq!(session.floor(ts(9)), Some(ts(6)));
        drop(begun);
        assert_eq!(session.floor(ts(10)), Some(ts(10)));
    }

    #[test]
    fn what_begins_before_anything_is_known_is_waited_for() {
        let session = Arc::new(GcSession::default());
        let beginning = session.hold().0;
        assert_eq!(session.floor(ts(5)), None);
        let _begun = beginning.begun(ts(4));
        assert_eq!(session.floor(ts(6)), Some(ts(4)));
    }

    #[test]
    fn snapshots_of_several_at_one_timestamp_are_held_until_the_last_is_gone() {
        let session = Arc::new(GcSession::default());
        let held = [0, 1].map(|_| session.hold().0.begun(ts(3)));
        let [first, second] = held;
        drop(first);
        assert_eq!(session.floor(ts(9)), Some(ts(3)));
        drop(second);
        assert_eq!(session.floor(ts(9)), Some(ts(9)));
    }

    #[test]
    fn what_is_refused_anyway_holds_nothing() {
        let session = Arc::new(GcSession::default());
        let old = session.hold().0.begun(ts(3));
        session.renewed(ts(5), lease(3, 10));
        assert_eq!(session.floor(ts(9)), Some(ts(9)));
        let _at_the_barrier = session.hold().0.begun(ts(5));
        assert_eq!(session.floor(ts(9)), Some(ts(5)));
        drop(old);
    }

    #[test]
    fn a_lease_that_holds_nothing_is_given_back_and_taken_again() {
        let session = Arc::new(GcSession::default());
        assert!(!session.lets_go(), "there is none");
        let first = session.hold().0.begun(ts(7));
        session.renewed(ts(2), lease(5, 10));
        assert!(!session.lets_go(), "it holds a transaction");
        assert_eq!(session.next(), LeaseStep::Renew);
        drop(first);
        assert!(session.lets_go());
        // What begins meanwhile keeps it.
        let second = session.hold().0;
        assert_eq!(session.next(), LeaseStep::Renew);
        drop(second);
        assert!(session.lets_go());
        assert_eq!(session.next(), LeaseStep::LetGo);
        assert!(!session.is_covered(ts(7), Duration::ZERO));
        assert!(!session.lets_go(), "it was given back");
        assert_eq!(session.next(), LeaseStep::Rest);
        let beginning = session.hold().0;
        assert_eq!(
            session.next(),
            LeaseStep::Rest,
            "no floor is known of it yet"
        );
        let _begun = beginning.begun(ts(9));
        assert_eq!(session.next(), LeaseStep::Renew);
        assert_eq!(session.floor(ts(10)), Some(ts(9)));
    }

    #[test]
    fn transactions_with_locks_are_named_at_once_and_others_when_they_are_old() {
        let session = Arc::new(GcSession::default());
        let at = |ms| Timestamp::from_millis(ms);
        let _begun = [1_000, 5_000, 5_001].map(|ms| session.hold().0.begun(at(ms)));
        assert_eq!(session.oldest(at(5_002)).0, [at(1_000)]);
        session.flushes(at(5_001));
        assert_eq!(session.oldest(at(5_002)).0, [at(1_000), at(5_001)]);
    }

    #[test]
    fn only_the_first_one_begins_to_renew() {
        let session = Arc::new(GcSession::default());
        assert!(session.hold().1);
        assert!(!session.hold().1);
    }

    #[test]
    fn a_lease_covers_what_began_at_its_floor_or_above_until_it_ends() {
        let session = GcSession::default();
        let covered =
            |start_ts, now_s| session.is_covered(ts(start_ts), Duration::from_secs(now_s));
        assert!(!covered(5, 0));
        session.renewed(ts(4), lease(5, 100));
        assert!(covered(5, 99) && !covered(5, 100) && !covered(4, 0));
        // The master may have received a higher floor, and must never get a lower one.
        session.asks(ts(7));
        assert!(covered(7, 99) && !covered(6, 0));
        session.renewed(ts(4), lease(5, 200));
        assert!(covered(7, 199) && !covered(6, 0));
        // What is below the barrier, no lease holds.
        session.renewed(ts(8), lease(7, 300));
        assert!(!covered(9, 0));
    }

    #[test]
    fn what_begins_below_a_floor_that_was_asked_for_is_named_at_once() {
        let session = Arc::new(GcSession::default());
        let wanted = || session.wanted.notified().now_or_never().is_some();
        // No lease was granted so far.
        session.asks(ts(7));
        let above = session.hold().0.begun(ts(7));
        assert!(!wanted());
        let below = session.hold().0.begun(ts(6));
        assert!(wanted());
        // The older request may arrive last.
        session.renewed(ts(4), lease(6, 100));
        assert!(!session.is_covered(ts(6), Duration::ZERO));
        assert!(session.is_covered(ts(7), Duration::ZERO));
        drop((above, below));
        assert!(session.lets_go());
        assert_eq!(session.next(), LeaseStep::LetGo);
        let _again = session.hold().0.begun(ts(6));
        assert!(wanted(), "it rested");
        session.renewed(ts(4), lease(6, 100));
        assert!(session.is_covered(ts(6), Duration::ZERO));
    }

    #[test]
    fn a_lease_holds_for_what_began_above_its_floor_until_its_end() {
        let session = GcSession::default();
        let at = Duration::from_secs;
        assert_eq!(session.surely(ts(7), at(1)), None);
        session.renewed(ts(2), lease(5, 10));
        assert_eq!(session.surely(ts(5), at(9)), Some(Ok(())));
        assert_eq!(session.surely(ts(4), at(9)), None);
        assert_eq!(session.surely(ts(7), at(10)), None);
        let refused = session.surely(ts(1), at(1)).unwrap().unwrap_err();
        assert_eq!((refused.start_ts, refused.barrier), (ts(1), ts(2)));
        // Without a master nothing is waited for.
        session.not_renewed();
        assert_eq!(session.surely(ts(7), at(10)), Some(Ok(())));
    }

    #[test]
    fn a_lease_below_the_barrier_holds_nothing() {
        let session = GcSession::default();
        session.renewed(ts(6), lease(5, 10));
        assert_eq!(session.surely(ts(7), Duration::ZERO), None);
        assert!(session.surely(ts(5), Duration::ZERO).unwrap().is_err());
    }
}
