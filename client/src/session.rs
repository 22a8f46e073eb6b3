//! A client's gc-locks: the barrier of collection doesn't pass what its transactions read, as long as the
//! client renews its lease at the master.
//!
//! The lease is held at one timestamp, the floor: a timestamp of the oracle's, or where the oldest of the
//! client's transactions began if that is lower. Whatever begins later begins above the oracle's timestamp, so
//! it is covered without being told of. A transaction that is just beginning may have been given its timestamp
//! before the floor's was: it counts from the last floor on until its own is known.
//!
//! Nothing is wrong without a lease: what the barrier has passed is refused by the tablet servers.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use crate::router::Router;
use crate::transport::Transport;

/// While the master hasn't said how long its leases are, or is away.
const PAUSE: Duration = Duration::from_millis(500);
/// While a transaction is just beginning, or where the floor was below the barrier.
const SOON: Duration = Duration::from_millis(20);
/// A lease is renewed so many times before it would end.
const RENEWALS: u32 = 3;
/// Transactions that the master is told of, the oldest; for people to see.
const TOLD_MAX: usize = 100;
/// Transactions that are younger aren't told of.
const TOLD_AFTER_MS: u64 = 1_000;

/// The transactions of a client.
#[derive(Debug, Default)]
pub(crate) struct Session {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where they began, and how many there.
    begun: BTreeMap<Timestamp, u32>,
    /// What began below is refused, and holds nothing any more.
    barrier: Timestamp,
    /// A timestamp of the oracle's: whatever begins from now on begins above it.
    covered: Timestamp,
    lease: Option<Lease>,
    renewing: bool,
}

/// What the master has promised: nothing at or above the floor is refused.
#[derive(Clone, Copy, Debug)]
struct Lease {
    floor: Timestamp,
    /// By the client's clock, counted from before the lease was asked for: the master's ends later.
    until: Duration,
}

/// A transaction, or one that is about to begin, as long as it reads or locks.
#[derive(Debug)]
pub(crate) struct Held {
    session: Arc<Session>,
    at: Timestamp,
}

impl Session {
    /// Whatever is given a timestamp from now on. True: somebody has to begin to renew the lease.
    pub(crate) fn hold(self: &Arc<Self>) -> (Held, bool) {
        let mut state = self.state.lock();
        let at = state.covered;
        *state.begun.entry(at).or_default() += 1;
        let first = !std::mem::replace(&mut state.renewing, true);
        let session = self.clone();
        (Held { session, at }, first)
    }

    /// The lowest floor that covers every transaction, now that `now` is a timestamp of the oracle's. `None`: one
    /// is just beginning, of which nothing is known yet.
    fn floor(&self, now: Timestamp) -> Option<Timestamp> {
        let mut state = self.state.lock();
        state.covered = state.covered.max(now);
        let oldest = state.living().next();
        Some(oldest.unwrap_or(now).min(now)).filter(|floor| *floor != Timestamp::ZERO)
    }

    /// The master is asked for a lease at this floor, and may have heard it from now on. The lease's floor never goes
    /// down: an older request may arrive after a newer one.
    fn asks(&self, floor: Timestamp) {
        if let Some(lease) = &mut self.state.lock().lease {
            lease.floor = lease.floor.max(floor);
        }
    }

    /// The master has said that it holds the floor until then, unless the barrier is above it.
    fn told(&self, floor: Timestamp, barrier: Timestamp, until: Duration) {
        let mut state = self.state.lock();
        state.barrier = state.barrier.max(barrier);
        let floor = state.lease.map_or(floor, |lease| lease.floor.max(floor));
        state.lease = (barrier <= floor).then_some(Lease { floor, until });
    }

    /// Whether nothing that began here is refused as too old now.
    pub(crate) fn is_covered(&self, start_ts: Timestamp, now: Duration) -> bool {
        let lease = self.state.lock().lease;
        lease.is_some_and(|lease| start_ts >= lease.floor && now < lease.until)
    }

    /// The oldest, for people to see.
    fn oldest(&self, now: Timestamp) -> Vec<u64> {
        let state = self.state.lock();
        let old =
            |ts: &Timestamp| ts.physical_ms().saturating_add(TOLD_AFTER_MS) <= now.physical_ms();
        let begun = state.living().filter(|ts| *ts != Timestamp::ZERO);
        begun
            .take_while(old)
            .take(TOLD_MAX)
            .map(Timestamp::as_u64)
            .collect()
    }
}

impl Held {
    /// It began here.
    pub(crate) fn begun(mut self, at: Timestamp) -> Self {
        let mut state = self.session.state.lock();
        state.release(self.at);
        *state.begun.entry(at).or_default() += 1;
        drop(state);
        self.at = at;
        self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.session.state.lock().release(self.at);
    }
}

impl State {
    /// Where those began that are not refused.
    fn living(&self) -> impl Iterator<Item = Timestamp> {
        self.begun.range(self.barrier..).map(|(ts, _)| *ts)
    }

    fn release(&mut self, at: Timestamp) {
        if let Some(count) = self.begun.get_mut(&at) {
            *count -= 1;
            if *count == 0 {
                self.begun.remove(&at);
            }
        }
    }
}

impl Router {
    /// Whatever is given a timestamp from now on, covered by the client's lease.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        let (held, first) = self.session.hold();
        if first {
            let transport = self.transport.clone();
            let renewing = renew(Arc::downgrade(self), transport.clone());
            transport.spawn(renewing.boxed());
        }
        held
    }
}

/// Renews the lease until the client is gone.
async fn renew(router: Weak<Router>, transport: Arc<dyn Transport>) {
    let session = transport.random();
    let owner = owner();
    while let Some(session_of) = router.upgrade().map(|router| router.session.clone()) {
        let now = transport.timestamp().await.ok();
        let floor = now.and_then(|now| Some((now, session_of.floor(now)?)));
        let pause = match floor {
            Some((now, floor)) => {
                let request = v1::SessionRequest {
                    session,
                    owner: Some(owner.clone()),
                    floor: floor.as_u64() + u64::from(mutants::on(Mutant::FloorTooHighByOne)),
                    transactions: session_of.oldest(now),
                };
                session_of.asks(floor);
                let asked = transport.now();
                match transport.session(request).await {
                    Ok(told) => {
                        let barrier = Timestamp::from_u64(told.barrier);
                        let lease = Duration::from_millis(told.lease_ms.into());
                        let from = match mutants::on(Mutant::LeaseFromTheAnswer) {
                            true => transport.now(),
                            false => asked,
                        };
                        session_of.told(floor, barrier, from + lease);
                        match barrier > floor {
                            // What it asks for is refused anyway, and held back by its asking.
                            true => SOON,
                            false => lease / RENEWALS,
                        }
                    }
                    Err(_) => PAUSE,
                }
            }
            None if now.is_some() => SOON,
            None => PAUSE,
        };
        drop(session_of);
        transport.sleep(pause.max(Duration::from_millis(1))).await;
    }
    let last = v1::SessionRequest {
        session,
        ..v1::SessionRequest::default()
    };
    // Where it gets lost, the lease ends by itself.
    let _ = transport.session(last).await;
}

/// Who this is, for people to read.
fn owner() -> v1::Owner {
    let application = std::env::current_exe().ok();
    let application = application
        .as_deref()
        .and_then(std::path::Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    v1::Owner {
        host: host.trim().to_owned(),
        process: std::process::id(),
        application: application.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(ts: u64) -> Timestamp {
        Timestamp::from_u64(ts)
    }

    #[test]
    fn the_floor_is_the_oldest_transaction_or_the_oracles_time() {
        let session = Arc::new(Session::default());
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
    fn what_is_just_beginning_is_covered_from_the_last_floor_on() {
        let session = Arc::new(Session::default());
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
        let session = Arc::new(Session::default());
        let beginning = session.hold().0;
        assert_eq!(session.floor(ts(5)), None);
        let _begun = beginning.begun(ts(4));
        assert_eq!(session.floor(ts(6)), Some(ts(4)));
    }

    #[test]
    fn snapshots_of_several_at_one_timestamp_are_held_until_the_last_is_gone() {
        let session = Arc::new(Session::default());
        let held = [0, 1].map(|_| session.hold().0.begun(ts(3)));
        let [first, second] = held;
        drop(first);
        assert_eq!(session.floor(ts(9)), Some(ts(3)));
        drop(second);
        assert_eq!(session.floor(ts(9)), Some(ts(9)));
    }

    #[test]
    fn what_is_refused_anyway_holds_nothing() {
        let session = Arc::new(Session::default());
        let old = session.hold().0.begun(ts(3));
        session.told(ts(3), ts(5), Duration::ZERO);
        assert_eq!(session.floor(ts(9)), Some(ts(9)));
        let _at_the_barrier = session.hold().0.begun(ts(5));
        assert_eq!(session.floor(ts(9)), Some(ts(5)));
        drop(old);
    }

    #[test]
    fn a_lease_covers_what_began_at_its_floor_or_above_until_it_ends() {
        let session = Session::default();
        let covered =
            |start_ts, now_ms| session.is_covered(ts(start_ts), Duration::from_millis(now_ms));
        assert!(!covered(5, 0));
        session.told(ts(5), ts(4), Duration::from_millis(100));
        assert!(covered(5, 99) && !covered(5, 100) && !covered(4, 0));
        // The master may have heard of a higher floor, and may never hear of a lower one.
        session.asks(ts(7));
        assert!(covered(7, 99) && !covered(6, 0));
        session.told(ts(5), ts(4), Duration::from_millis(200));
        assert!(covered(7, 199) && !covered(6, 0));
        // What is below the barrier, no lease holds.
        session.told(ts(7), ts(8), Duration::from_millis(300));
        assert!(!covered(9, 0));
    }

    #[test]
    fn only_the_first_one_begins_to_renew() {
        let session = Arc::new(Session::default());
        assert!(session.hold().1);
        assert!(!session.hold().1);
    }
}
