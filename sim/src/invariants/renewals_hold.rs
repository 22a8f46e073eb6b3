//! A transaction that keeps itself alive is rolled back by nobody for its age: a large transaction lives as long as its client
//! renews the lock on its primary (`protocol/src/actions/keep_alive.rs`, `check_status.rs`). By what the client was answered, and by
//! the highest timestamp that the oracle has granted: not by the time that somebody who asks has named. Its own client may end it, and
//! so may one that asks for that whatever its age; all others have to find its time over, unless the table of its primary is deleted.

use std::collections::{BTreeMap, BTreeSet};

use percolator_protocol::oracle::Granted;
use percolator_protocol::types::Timestamp;

use super::{Invariant, last_of};
use crate::world::NodeId;

#[derive(Default)]
pub(super) struct RenewalsHold {
    /// By start_ts, whose they are, and until when they live, in milliseconds of the oracle's time.
    alive_until: BTreeMap<Timestamp, (NodeId, u64)>,
    /// Somebody who may has asked for their end.
    ended: BTreeSet<Timestamp>,
    /// A table is deleted, and what has its primary there can't commit: others may end it without asking for its age.
    tables_go: bool,
    highest: Timestamp,
}

impl Invariant for RenewalsHold {
    fn name(&self) -> &'static str {
        "renewals hold"
    }

    fn granted(&mut self, granted: Granted) -> Result<(), String> {
        self.highest = self.highest.max(last_of(granted));
        Ok(())
    }

    fn kept_alive(&mut self, start_ts: Timestamp, by: NodeId, ttl_ms: u64) -> Result<(), String> {
        let (_, until) = self.alive_until.entry(start_ts).or_insert((by, 0));
        *until = (*until).max(start_ts.physical_ms() + ttl_ms);
        Ok(())
    }

    fn end_asked(&mut self, start_ts: Timestamp, by: NodeId, forced: bool) -> Result<(), String> {
        let is_own = self
            .alive_until
            .get(&start_ts)
            .is_none_or(|(own, _)| *own == by);
        if forced || is_own || self.tables_go {
            self.ended.insert(start_ts);
            return Ok(());
        }
        self.found_rolled_back(start_ts)
    }

    fn deletion_asked(&mut self) -> Result<(), String> {
        self.tables_go = true;
        Ok(())
    }

    fn found_rolled_back(&mut self, start_ts: Timestamp) -> Result<(), String> {
        let now_ms = self.highest.physical_ms();
        match self.alive_until.get(&start_ts) {
            Some((_, until_ms)) if now_ms < *until_ms && !self.ended.contains(&start_ts) => {
                Err(format!(
                    "transaction {start_ts} was rolled back for its age, {} ms before the time up to which it has renewed its lock",
                    until_ms - now_ms
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::assert_broken;
    use super::*;

    const OWN: NodeId = 3;
    const OTHER: NodeId = 4;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn begun() -> RenewalsHold {
        let mut invariant = RenewalsHold::default();
        let (first, count) = (at(3_000), 1);
        assert_eq!(invariant.granted(Granted { first, count }), Ok(()));
        invariant
    }

    #[test]
    fn one_that_has_renewed_is_not_rolled_back_for_its_age() {
        let mut invariant = begun();
        assert_eq!(invariant.found_rolled_back(at(1_000)), Ok(()));
        assert_eq!(invariant.kept_alive(at(1_000), OWN, 2_000), Ok(()));
        assert_eq!(invariant.found_rolled_back(at(1_000)), Ok(()));
        assert_eq!(invariant.kept_alive(at(1_000), OWN, 2_001), Ok(()));
        assert_broken(invariant.found_rolled_back(at(1_000)), "1 ms before");
        assert_broken(invariant.end_asked(at(1_000), OTHER, false), "1 ms before");
        assert_eq!(invariant.found_rolled_back(at(1_001)), Ok(()));
    }

    #[test]
    fn for_other_reasons_it_may_be() {
        for (by, forced) in [(OWN, false), (OTHER, true)] {
            let mut invariant = begun();
            assert_eq!(invariant.kept_alive(at(1_000), OWN, 9_000), Ok(()));
            assert_eq!(invariant.end_asked(at(1_000), by, forced), Ok(()));
            assert_eq!(invariant.found_rolled_back(at(1_000)), Ok(()));
            assert_eq!(invariant.end_asked(at(1_000), OTHER, false), Ok(()));
        }
        let mut invariant = begun();
        assert_eq!(invariant.kept_alive(at(1_000), OWN, 9_000), Ok(()));
        assert_eq!(invariant.deletion_asked(), Ok(()));
        assert_eq!(invariant.end_asked(at(1_000), OTHER, false), Ok(()));
    }
}
