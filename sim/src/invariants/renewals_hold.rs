//! A transaction that keeps itself alive is rolled back by nobody for its age: a large transaction lives as long as its client
//! renews the lock on its primary (`protocol/src/actions/keep_alive.rs`, `check_status.rs`). By what the client was answered, and by
//! the highest timestamp that the oracle has granted: not by the time that somebody who asks has named. Its own client may end it, and
//! so may one that asks for that whatever its age; all others have to find its time over, unless the table of its primary is deleted.

use std::collections::{BTreeMap, BTreeSet};

use percolator_protocol::oracle::Granted;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use super::{Invariant, last_of};
use crate::world::NodeId;

#[derive(Default)]
pub(super) struct RenewalsHold {
    /// By start_ts.
    kept: BTreeMap<Timestamp, Kept>,
    /// Somebody who may has asked for their end.
    ended: BTreeSet<Timestamp>,
    /// Tables that are deleted. What has its primary there can't commit: others may end it without asking for its age.
    deleted: BTreeSet<u32>,
    /// The table of each tablet that anybody has owned.
    tables: BTreeMap<u64, u32>,
    highest: Timestamp,
}

/// A transaction that has renewed its lock.
struct Kept {
    /// The tablet of its primary.
    tablet: u64,
    /// The client's process.
    by: NodeId,
    /// In milliseconds of the oracle's time.
    until_ms: u64,
}

impl Invariant for RenewalsHold {
    fn name(&self) -> &'static str {
        "renewals hold"
    }

    fn granted(&mut self, granted: Granted) -> Result<(), String> {
        self.highest = self.highest.max(last_of(granted));
        Ok(())
    }

    fn owns(&mut self, _: &str, tablets: &[v1::TabletInfo]) -> Result<(), String> {
        let tablets = tablets.iter();
        self.tables
            .extend(tablets.map(|tablet| (tablet.id, tablet.table_id)));
        Ok(())
    }

    fn kept_alive(
        &mut self,
        start_ts: Timestamp,
        (tablet, by): (u64, NodeId),
        ttl_ms: u64,
    ) -> Result<(), String> {
        let until_ms = start_ts.physical_ms() + ttl_ms;
        let kept = self.kept.entry(start_ts).or_insert(Kept {
            tablet,
            by,
            until_ms,
        });
        kept.until_ms = kept.until_ms.max(until_ms);
        Ok(())
    }

    fn end_asked(&mut self, start_ts: Timestamp, by: NodeId, forced: bool) -> Result<(), String> {
        let is_deleted = |kept: &Kept| {
            let table = self.tables.get(&kept.tablet);
            table.is_some_and(|table| self.deleted.contains(table))
        };
        let may_end = |kept: &Kept| kept.by == by || is_deleted(kept);
        if forced || self.kept.get(&start_ts).is_none_or(may_end) {
            self.ended.insert(start_ts);
            return Ok(());
        }
        self.found_rolled_back(start_ts)
    }

    fn deletion_asked(&mut self, table: u32) -> Result<(), String> {
        self.deleted.insert(table);
        Ok(())
    }

    fn found_rolled_back(&mut self, start_ts: Timestamp) -> Result<(), String> {
        let now_ms = self.highest.physical_ms();
        match self.kept.get(&start_ts) {
            Some(kept) if now_ms < kept.until_ms && !self.ended.contains(&start_ts) => {
                Err(format!(
                    "transaction {start_ts} was rolled back for its age, {} ms before the time up to which it has renewed its lock",
                    kept.until_ms - now_ms
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

    const TABLE: u32 = 1;
    const TABLET: u64 = 9;
    const OWN: NodeId = 3;
    const OTHER: NodeId = 4;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn begun() -> RenewalsHold {
        let mut invariant = RenewalsHold::default();
        let tablet = v1::TabletInfo {
            id: TABLET,
            table_id: TABLE,
            ..v1::TabletInfo::default()
        };
        assert_eq!(invariant.owns("tablet-0", &[tablet]), Ok(()));
        let (first, count) = (at(3_000), 1);
        assert_eq!(invariant.granted(Granted { first, count }), Ok(()));
        invariant
    }

    #[test]
    fn one_that_has_renewed_is_not_rolled_back_for_its_age() {
        let mut invariant = begun();
        assert_eq!(invariant.found_rolled_back(at(1_000)), Ok(()));
        assert_eq!(
            invariant.kept_alive(at(1_000), (TABLET, OWN), 2_000),
            Ok(())
        );
        assert_eq!(invariant.found_rolled_back(at(1_000)), Ok(()));
        assert_eq!(
            invariant.kept_alive(at(1_000), (TABLET, OWN), 2_001),
            Ok(())
        );
        assert_broken(invariant.found_rolled_back(at(1_000)), "1 ms before");
        assert_broken(invariant.end_asked(at(1_000), OTHER, false), "1 ms before");
        assert_eq!(invariant.found_rolled_back(at(1_001)), Ok(()));
    }

    #[test]
    fn for_other_reasons_it_may_be() {
        for (by, forced) in [(OWN, false), (OTHER, true)] {
            let mut invariant = begun();
            assert_eq!(
                invariant.kept_alive(at(1_000), (TABLET, OWN), 9_000),
                Ok(())
            );
            assert_eq!(invariant.end_asked(at(1_000), by, forced), Ok(()));
            assert_eq!(invariant.found_rolled_back(at(1_000)), Ok(()));
            assert_eq!(invariant.end_asked(at(1_000), OTHER, false), Ok(()));
        }
        let mut invariant = begun();
        assert_eq!(
            invariant.kept_alive(at(1_000), (TABLET, OWN), 9_000),
            Ok(())
        );
        assert_eq!(invariant.deletion_asked(TABLE + 1), Ok(()));
        assert_broken(invariant.end_asked(at(1_000), OTHER, false), "before");
        assert_eq!(invariant.deletion_asked(TABLE), Ok(()));
        assert_eq!(invariant.end_asked(at(1_000), OTHER, false), Ok(()));
    }
}
