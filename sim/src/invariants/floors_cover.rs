//! A client never asks its master for a lease at a floor above a transaction that is open, or whose prewrites are not all in place,
//! and never gives its lease back under one (`client/src/session/`). Only transactions that began below the barrier that the client knows hold
//! nothing: they are refused anyway. Not held either: a transaction between commit() and its first prewrite, and those of `transact`
//! and of observer workers, which the workloads don't see begin. "Leases hold" notices such a floor only when collection passes it and the transaction reads on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use percolator_client::Timestamp;

use crate::world::World;

/// Its name.
pub(crate) const NAME: &str = "floors cover";

/// The transactions of one client library that the application has open or commits.
#[derive(Default)]
pub struct OpenTransactions(Mutex<State>);

#[derive(Default)]
struct State {
    /// By start_ts.
    held: BTreeMap<Timestamp, Phases>,
    /// Transactions that this process has begun to roll back.
    rolled_back: BTreeSet<Timestamp>,
    /// The highest barrier that the master has answered.
    barrier: Timestamp,
}

/// What a transaction does.
#[derive(Clone, Copy)]
pub(crate) enum Phase {
    /// The application has it open.
    Open,
    /// It commits. It needs the lease until its prewrites are in place.
    Committing,
    /// It waits for the answer to a prewrite.
    Prewriting,
}

/// How often each phase is held at one timestamp: several transactions may read at one snapshot.
#[derive(Default)]
struct Phases([u32; 3]);

impl Phases {
    fn need_lease(&self) -> bool {
        let [open, committing, prewriting] = self.0;
        open > 0 || (committing > 0 && prewriting > 0)
    }
}

/// Holds one transaction in a phase.
pub(crate) struct OpenTransaction {
    all: Arc<OpenTransactions>,
    start_ts: Timestamp,
    phase: Phase,
}

impl OpenTransactions {
    /// The transaction is in this phase until the guard is dropped.
    pub(crate) fn hold(self: &Arc<Self>, start_ts: Timestamp, phase: Phase) -> OpenTransaction {
        self.0.lock().held.entry(start_ts).or_default().0[phase as usize] += 1;
        OpenTransaction {
            all: self.clone(),
            start_ts,
            phase,
        }
    }

    /// The client rolls a transaction back.
    pub(crate) fn rolls_back(&self, start_ts: Timestamp) {
        self.0.lock().rolled_back.insert(start_ts);
    }

    /// The client asks for a lease at this floor; zero gives it back.
    pub(crate) fn asked(&self, world: &World, session: u64, floor: Timestamp) {
        if let Some(start_ts) = self.uncovered(floor) {
            let why = if floor == Timestamp::ZERO {
                format!("session {session:x} gives its lease back while {start_ts} is open")
            } else {
                format!("session {session:x} asks for a lease at {floor} while {start_ts} is open")
            };
            world.fail(NAME, why);
        }
    }

    /// The master's answer names this barrier.
    pub(crate) fn answered(&self, barrier: Timestamp) {
        let mut state = self.0.lock();
        state.barrier = state.barrier.max(barrier);
    }

    /// The oldest transaction that a lease at this floor doesn't cover.
    fn uncovered(&self, floor: Timestamp) -> Option<Timestamp> {
        let state = self.0.lock();
        let mut living = state.held.range(state.barrier..);
        let (oldest, _) = living.find(|(start_ts, phases)| {
            phases.need_lease() && !state.rolled_back.contains(start_ts)
        })?;
        (floor == Timestamp::ZERO || *oldest < floor).then_some(*oldest)
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        let mut state = self.all.0.lock();
        if let Some(phases) = state.held.get_mut(&self.start_ts) {
            phases.0[self.phase as usize] -= 1;
            if phases.0 == [0; 3] {
                state.held.remove(&self.start_ts);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::ts;
    use super::*;

    #[test]
    fn a_floor_covers_the_oldest_transaction_that_is_not_refused_anyway() {
        let all = Arc::new(OpenTransactions::default());
        let open = |start_ts| all.hold(ts(start_ts), Phase::Open);
        assert_eq!(all.uncovered(ts(9)), None);
        assert_eq!(all.uncovered(Timestamp::ZERO), None);
        let (older, twin, newer) = (open(5), open(5), open(8));
        assert_eq!(all.uncovered(ts(5)), None);
        assert_eq!(all.uncovered(ts(6)), Some(ts(5)));
        assert_eq!(all.uncovered(Timestamp::ZERO), Some(ts(5)));
        drop(older);
        assert_eq!(all.uncovered(ts(6)), Some(ts(5)));
        drop(twin);
        assert_eq!(all.uncovered(ts(6)), None);
        assert_eq!(all.uncovered(ts(9)), Some(ts(8)));
        all.answered(ts(9));
        assert_eq!(all.uncovered(ts(20)), None);
        drop(newer);
        assert_eq!(all.uncovered(Timestamp::ZERO), None);
    }

    #[test]
    fn what_commits_is_covered_while_it_prewrites() {
        let all = Arc::new(OpenTransactions::default());
        let prewriting = all.hold(ts(5), Phase::Prewriting);
        assert_eq!(all.uncovered(ts(6)), None);
        let _committing = all.hold(ts(5), Phase::Committing);
        assert_eq!(all.uncovered(ts(6)), Some(ts(5)));
        drop(prewriting);
        assert_eq!(all.uncovered(ts(6)), None);
        let _prewriting = all.hold(ts(5), Phase::Prewriting);
        all.rolls_back(ts(5));
        assert_eq!(all.uncovered(ts(6)), None);
    }
}
